// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_options.hpp>

#include <array>
#include <cstdint>
#include <variant>

namespace stateport::test {

/// An index and a layout of a RequestCache.
enum class Combination : std::uint8_t { hash_slots, tree_slots, hash_columns, tree_columns };

inline constexpr std::array every_combination = {Combination::hash_slots, Combination::tree_slots,
                                                 Combination::hash_columns, Combination::tree_columns};
inline constexpr std::array slot_combinations = {Combination::hash_slots, Combination::tree_slots};

[[nodiscard]] constexpr bool in_columns(Combination combination) noexcept {
  return combination >= Combination::hash_columns;
}
[[nodiscard]] constexpr CacheIndex index_of(Combination combination) noexcept {
  const bool tree = combination == Combination::tree_slots || combination == Combination::tree_columns;
  return tree ? CacheIndex::tree : CacheIndex::hash;
}
[[nodiscard]] constexpr bool by_tokens(Combination combination) noexcept {
  return index_of(combination) == CacheIndex::tree;
}
[[nodiscard]] inline Combination combination_of(const RequestCacheOptions& options) noexcept {
  if (stateport::in_columns(options))
    return options.index == CacheIndex::tree ? Combination::tree_columns : Combination::hash_columns;
  return options.index == CacheIndex::tree ? Combination::tree_slots : Combination::hash_slots;
}

/// The layout of options that have one of this kind. Throws std::bad_variant_access for others.
[[nodiscard]] inline SlotLayout& slots(RequestCacheOptions& options) {
  return std::get<SlotLayout>(options.layout);
}
[[nodiscard]] inline ColumnLayout& columns(RequestCacheOptions& options) {
  return std::get<ColumnLayout>(options.layout);
}
[[nodiscard]] inline const ColumnLayout& columns(const RequestCacheOptions& options) {
  return std::get<ColumnLayout>(options.layout);
}
/// A pass itself writes the states at all boundaries: its rows have all drafts or none.
[[nodiscard]] inline bool is_mode_all(const RequestCacheOptions& options) noexcept {
  return column_layout(options).mode == AlignMode::all;
}
/// False in columns, too.
[[nodiscard]] inline bool has_separate_checkpoints(const RequestCacheOptions& options) noexcept {
  return slot_layout(options).separate_checkpoints;
}

}  // namespace stateport::test
