// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>

#include "hash/namespace_tag.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// Names of prompts in indexes, tiers and stores. Contents that were forgotten keep the names that they had, and
/// prompts get others from then on: so no prompt finds them, wherever they are. Equal epochs have equal names on all
/// machines. The names of rename() are this object's alone, because another machine may have forgotten other contents.
class EpochNames {
 public:
  static constexpr std::size_t renamed_max = 1024;

  explicit EpochNames(std::uint64_t epoch);

  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// What was renamed stays so: another machine may know the plain names of this epoch.
  void advance(std::uint64_t epoch) noexcept { epoch_ = epoch; }
  /// Prompts of these namespaces have other names from now on. False: too many; all namespaces have. O(renamed).
  bool rename(const Forgotten& forgotten) noexcept;
  /// Prompts of all namespaces have.
  void rename_all() noexcept;
  /// `name_space` itself, until it was forgotten or the epoch is not 0. O(renamed).
  [[nodiscard]] Namespace current(const Namespace& name_space) const;

 private:
  struct Renamed {
    Forgotten which;
    std::uint32_t call = 0;  ///< the last that renamed these, from 1
  };
  std::uint64_t epoch_;
  std::uint32_t calls_ = 0;
  std::uint64_t nonce_;  ///< a random number
  std::vector<Renamed> renamed_;
};

}  // namespace stateport::detail
