// SPDX-License-Identifier: Apache-2.0
#include "serve/request_epochs.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::detail {

std::uint64_t RequestEpochs::advance(std::uint64_t epoch) {
  const std::uint64_t next = epoch == 0 ? names_.epoch() + 1 : epoch;
  require(next > names_.epoch(), "epoch", epoch, "must be greater than the current one, and below 2^64");
  names_.advance(next);
  forget(Forgotten{});
  return next;
}

void RequestEpochs::forget_all() {
  static_cast<void>(names_.forget(Forgotten{}));
  forget(Forgotten{});
}

void RequestEpochs::forget(const Namespace& name_space, ForgetBy by) {
  require(by <= ForgetBy::all, "by", static_cast<int>(by), "is no ForgetBy");
  Forgotten forgotten = namespaces_of({.by = by});
  const NamespaceTag tag = NamespaceTag::of(name_space);
  if (forgotten.extra_key) forgotten.tag.extra_key = tag.extra_key;
  if (forgotten.salt) forgotten.tag.salt = tag.salt;
  forget(names_.forget(forgotten) ? forgotten : Forgotten{});
}

bool RequestEpochs::adopt(std::span<const ForgetRecord> records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const char* const wrong =
        names_.is_forged(records[i]) ? "call is none that this cache made" : find_wrong(records[i]);
    require(wrong == nullptr, "records", i, wrong == nullptr ? "" : wrong);
  }
  for (const ForgetRecord& record : records) {
    if (names_.is_alone()) break;
    const ForgetRecords::Added added = names_.adopt(record);
    if (added == ForgetRecords::Added::known) continue;
    forget(added == ForgetRecords::Added::full ? Forgotten{} : namespaces_of(record));
  }
  return !names_.is_alone();
}

/// The tiers first: what the device loses after that, they do not store.
void RequestEpochs::forget(const Forgotten& forgotten) {
  for (RequestRecord& record : book_.records) record.stale |= record.running && forgotten(record.tag);
  if (tiers_ != nullptr) tiers_->forget(forgotten);
  book_.forgetting = true;
  if (holder_ != nullptr) holder_->end_stale();
  index_.forget(forgotten);
  book_.forgetting = false;
  if (tiers_ != nullptr) tiers_->end_call();
}

bool RequestEpochs::is_stale(RequestId request) const {
  check_running(book_.records, request);
  return book_.record(request).stale;
}

}  // namespace stateport::detail
