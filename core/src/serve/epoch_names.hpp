// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/serve/cache_epochs.hpp>

#include "hash/namespace_tag.hpp"
#include "serve/forget_records.hpp"

#include <cstdint>
#include <span>

namespace stateport::detail {

/// Names of prompts in indexes, tiers and stores. Contents that were forgotten keep the names that they had, and
/// prompts get others from then on: so no prompt finds them, wherever they are. A name follows from the epoch and from
/// the records of all calls that forgot it, in any order: so caches with equal epochs and records have equal names.
class EpochNames {
 public:
  explicit EpochNames(std::uint64_t epoch);

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// The records stay: another machine may know the names of this epoch without them.
  void advance(std::uint64_t epoch) noexcept { epoch_ = epoch; }
  /// Prompts of these namespaces have other names from now on, which no other cache has without the record of this
  /// call. False: there are too many records; prompts of all namespaces have such names. O(records).
  bool forget(const Forgotten& forgotten) noexcept;
  /// Another cache forgot these. `full`: as forget() with too many. O(records).
  ForgetRecords::Added adopt(const ForgetRecord& record) noexcept;
  /// There were too many records once. Names are this cache's alone.
  [[nodiscard]] bool is_alone() const noexcept { return is_alone_; }
  [[nodiscard]] std::span<const ForgetRecord> records() const noexcept { return records_.all(); }
  /// A record with the number of this cache that it did not make.
  [[nodiscard]] bool is_forged(const ForgetRecord& record) const noexcept {
    return record.cache == number_ && record.call > calls_;
  }
  /// `name_space` itself, until it was forgotten or the epoch is not 0. O(records).
  [[nodiscard]] Namespace current(const Namespace& name_space) const;

 private:
  void be_alone() noexcept;
  [[nodiscard]] ForgetRecord record_of(const Forgotten& forgotten) noexcept;

  std::uint64_t epoch_;
  std::uint64_t number_;  ///< of this cache, random
  std::uint64_t calls_ = 0;
  ForgetRecords records_{CacheEpochs::records_max};
  bool is_alone_ = false;
};

}  // namespace stateport::detail
