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
  names_.rename_all();
  forget(Forgotten{});
}

void RequestEpochs::forget(const Namespace& name_space, ForgetBy by) {
  require(by <= ForgetBy::salt, "by", static_cast<int>(by), "is no ForgetBy");
  Forgotten forgotten{.extra_key = by != ForgetBy::salt, .salt = by != ForgetBy::extra_key};
  const NamespaceTag tag = NamespaceTag::of(name_space);
  if (forgotten.extra_key) forgotten.tag.extra_key = tag.extra_key;
  if (forgotten.salt) forgotten.tag.salt = tag.salt;
  forget(names_.rename(forgotten) ? forgotten : Forgotten{});
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
