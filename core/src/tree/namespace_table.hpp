// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "containers/flat_map.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stateport::detail {

/// A seed for hashes over a namespace's tokens; depends on the names and `seed` alone.
[[nodiscard]] std::uint64_t namespace_seed(const Namespace& name_space, std::uint64_t seed) noexcept;

/// Numbers namespaces. A number lives as long as there are children of the root in its namespace; the unnamed
/// namespace has 0 for ever. find() allocates nothing.
class NamespaceTable {
 public:
  static constexpr std::uint32_t unnamed = 0;
  static constexpr std::uint32_t none = UINT32_MAX;

  /// `seed`: of the hash table.
  explicit NamespaceTable(std::uint64_t seed = 0);

  [[nodiscard]] std::uint32_t find(const Namespace& name_space) const;  ///< none if it has no number
  [[nodiscard]] std::uint32_t find_or_add(const Namespace& name_space);
  [[nodiscard]] Namespace name(std::uint32_t number) const noexcept;

  /// Adds these, and keeps them until the next call even if they have no children.
  void reserve(std::span<const Namespace> names);
  void add_child(std::uint32_t number) noexcept { ++records_[number].children; }
  void drop_child(std::uint32_t number) noexcept;
  void clear() noexcept;

  [[nodiscard]] std::uint32_t children(std::uint32_t number) const noexcept { return records_[number].children; }
  /// Has a name that nothing needs.
  [[nodiscard]] bool is_idle(std::uint32_t number) const noexcept {
    const Record& record = records_[number];
    return record.children == 0 && !record.reserved && (record.name.extra_key || record.name.salt);
  }
  [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }

 private:
  struct Name {
    std::optional<std::string> extra_key;
    std::optional<std::string> salt;
    [[nodiscard]] Namespace view() const noexcept { return {extra_key, salt}; }
  };
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(const Namespace& name) const noexcept { return namespace_seed(name, seed); }
    std::size_t operator()(const Name& name) const noexcept { return namespace_seed(name.view(), seed); }
    std::uint64_t seed = 0;
  };
  struct NameEqual {
    using is_transparent = void;
    bool operator()(const Name& a, const Name& b) const noexcept { return a.view() == b.view(); }
    bool operator()(const Namespace& a, const Name& b) const noexcept { return a == b.view(); }
    bool operator()(const Name& a, const Namespace& b) const noexcept { return a.view() == b; }
  };
  struct Record {
    Name name;
    std::uint32_t children = 0;
    bool reserved = false;
  };

  void erase(std::uint32_t number) noexcept;

  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> reserved_;
  FlatMap<Name, std::uint32_t, NameHash, NameEqual> numbers_;
};

}  // namespace stateport::detail
