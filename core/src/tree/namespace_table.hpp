// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "containers/hash_index.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// A seed for hashes over a namespace's tokens; depends on the names and `seed` alone.
[[nodiscard]] std::uint64_t namespace_seed(const Namespace& name_space, std::uint64_t seed) noexcept;

/// Numbers namespaces. A number lives as long as the root has children in its namespace; the unnamed namespace has 0
/// for ever. Only reserve() allocates.
class NamespaceTable {
 public:
  static constexpr std::uint32_t unnamed = 0;
  static constexpr std::uint32_t none = UINT32_MAX;

  /// `seed` is of the hash table.
  explicit NamespaceTable(std::uint64_t seed = 0) : seed_(seed) { records_.emplace_back(); }

  /// Makes room for `names` named namespaces.
  void reserve(std::size_t names);
  [[nodiscard]] std::uint32_t find(const Namespace& name_space) const noexcept;  ///< none if it has no number
  /// Precondition for a new namespace: there is room.
  [[nodiscard]] std::uint32_t find_or_add(const Namespace& name_space, std::uint64_t tag = 0) noexcept;
  [[nodiscard]] const Namespace& name(std::uint32_t number) const noexcept { return records_[number].name; }
  /// PrefixInsert::name_tag.
  [[nodiscard]] std::uint64_t tag(std::uint32_t number) const noexcept { return records_[number].tag; }

  void add_child(std::uint32_t number) noexcept { ++records_[number].children; }
  void drop_child(std::uint32_t number) noexcept;
  void clear() noexcept;

  [[nodiscard]] std::uint32_t children(std::uint32_t number) const noexcept { return records_[number].children; }
  /// True for a name without children, which should have lost its number.
  [[nodiscard]] bool is_idle(std::uint32_t number) const noexcept {
    return records_[number].children == 0 && records_[number].name != Namespace{};
  }
  [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return records_.size() * sizeof(Record) + numbers_.bytes(); }

 private:
  struct Record {
    Namespace name;
    std::uint64_t tag = 0;
    std::uint32_t children = 0;
  };

  [[nodiscard]] std::uint32_t hash(const Namespace& name_space) const noexcept {
    return static_cast<std::uint32_t>(namespace_seed(name_space, seed_) >> 32);
  }

  std::uint64_t seed_;
  std::vector<Record> records_;      ///< by number
  std::vector<std::uint32_t> free_;  ///< numbers
  HashIndex numbers_{80};
};

}  // namespace stateport::detail
