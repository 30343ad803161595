// SPDX-License-Identifier: Apache-2.0
#include "tree/namespace_table.hpp"

#include <xxhash.h>

#include <optional>

namespace stateport::detail {
namespace {

std::uint64_t add_name(std::uint64_t seed, const std::optional<NameKey>& name) noexcept {
  // A name of no characters must differ from no name.
  if (!name) return XXH3_64bits_withSeed(nullptr, 0, ~seed);
  const std::string_view text = name->text();
  // 0 for a name that is its own text.
  const std::uint64_t digested_bytes = name->length() - text.size();
  return XXH3_64bits_withSeed(text.data(), text.size(), seed + digested_bytes);
}

}  // namespace

std::uint64_t namespace_seed(const Namespace& name_space, std::uint64_t seed) noexcept {
  if (!name_space.extra_key && !name_space.salt) return seed;
  return add_name(add_name(seed, name_space.extra_key), name_space.salt);
}

void NamespaceTable::reserve(std::size_t names) {
  free_.reserve(names);
  numbers_.reserve(names);
  records_.reserve(names + 1);
}

std::uint32_t NamespaceTable::find(const Namespace& name_space) const noexcept {
  if (!name_space.extra_key && !name_space.salt) return unnamed;
  if (numbers_.count() == 0) return none;
  return numbers_.find(hash(name_space), [&](std::uint32_t number) { return records_[number].name == name_space; });
}

std::uint32_t NamespaceTable::find_or_add(const Namespace& name_space, std::uint64_t tag) noexcept {
  if (const std::uint32_t known = find(name_space); known != none) return known;
  std::uint32_t number = static_cast<std::uint32_t>(records_.size());
  if (free_.empty()) {
    records_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  records_[number].name = name_space;
  records_[number].tag = tag;
  numbers_.insert(hash(name_space), number);
  return number;
}

void NamespaceTable::drop_child(std::uint32_t number) noexcept {
  Record& record = records_[number];
  if (--record.children > 0 || number == unnamed) return;
  numbers_.erase(hash(record.name), number);
  record.name = {};
  free_.push_back(number);
}

void NamespaceTable::clear() noexcept {
  records_.resize(1);
  records_.front().children = 0;
  free_.clear();
  numbers_.clear();
}

}  // namespace stateport::detail
