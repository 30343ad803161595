// SPDX-License-Identifier: Apache-2.0
#include "serve/forget_records.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>

namespace stateport::detail {
namespace {

/// Of two such records one has the later call.
bool is_same_choice(const ForgetRecord& a, const ForgetRecord& b) noexcept {
  return a.cache == b.cache && a.extra_key == b.extra_key && a.salt == b.salt && a.by == b.by;
}

bool compares_extra_key(ForgetBy by) noexcept {
  return by == ForgetBy::name_space || by == ForgetBy::extra_key;
}
bool compares_salt(ForgetBy by) noexcept {
  return by == ForgetBy::name_space || by == ForgetBy::salt;
}

}  // namespace

ForgetRecords::Added ForgetRecords::add(const ForgetRecord& record) noexcept {
  const auto at = std::ranges::find_if(records_, [&](const ForgetRecord& of) { return is_same_choice(of, record); });
  if (at != records_.end()) {
    if (at->call >= record.call) return Added::known;
    at->call = record.call;
    return Added::added;
  }
  if (records_.size() == records_max_) return Added::full;
  records_.push_back(record);
  return Added::added;
}

bool ForgetRecords::holds(const ForgetRecord& record) const noexcept {
  return std::ranges::any_of(
      records_, [&](const ForgetRecord& of) { return is_same_choice(of, record) && of.call >= record.call; });
}

Forgotten namespaces_of(const ForgetRecord& record) noexcept {
  return {.tag = {.extra_key = record.extra_key, .salt = record.salt},
          .extra_key = compares_extra_key(record.by),
          .salt = compares_salt(record.by)};
}

std::array<std::uint64_t, 2> hash_of(const ForgetRecord& record) noexcept {
  const std::array<std::uint64_t, 4> words = {
      record.cache, record.call, std::uint64_t{record.extra_key} << 32 | record.salt, std::uint64_t(record.by)};
  const XXH128_hash_t hash = XXH3_128bits(words.data(), sizeof words);
  return {hash.low64, hash.high64};
}

const char* find_wrong(const ForgetRecord& record) noexcept {
  if (record.call == 0) return "call must not be 0";
  if (record.by > ForgetBy::all) return "by must be a ForgetBy";
  if (record.extra_key != 0 && !compares_extra_key(record.by)) return "extra_key must be 0 where it is not compared";
  if (record.salt != 0 && !compares_salt(record.by)) return "salt must be 0 where it is not compared";
  return nullptr;
}

}  // namespace stateport::detail
