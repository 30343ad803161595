// SPDX-License-Identifier: Apache-2.0
#include "tree/namespace_table.hpp"

#include "containers/ready_vector.hpp"

#include <xxhash.h>

#include <algorithm>

namespace stateport::detail {
namespace {

std::uint64_t add_name(std::uint64_t seed, const std::optional<std::string_view>& name) noexcept {
  // A name of no characters must differ from no name.
  if (!name) return XXH3_64bits_withSeed(nullptr, 0, ~seed);
  return XXH3_64bits_withSeed(name->data(), name->size(), seed);
}

}  // namespace

std::uint64_t namespace_seed(const Namespace& name_space, std::uint64_t seed) noexcept {
  if (name_space == Namespace{}) return seed;
  return add_name(add_name(seed, name_space.extra_key), name_space.salt);
}

NamespaceTable::NamespaceTable(std::uint64_t seed) : numbers_(0, NameHash{seed}) {
  records_.emplace_back();
}

std::uint32_t NamespaceTable::find(const Namespace& name_space) const {
  if (name_space == Namespace{}) return unnamed;
  const auto entry = numbers_.find(name_space);
  return entry == numbers_.end() ? none : entry->second;
}

std::uint32_t NamespaceTable::find_or_add(const Namespace& name_space) {
  if (const std::uint32_t known = find(name_space); known != none) return known;
  Name name;
  if (name_space.extra_key) name.extra_key.emplace(*name_space.extra_key);
  if (name_space.salt) name.salt.emplace(*name_space.salt);
  reserve_amortised(free_, records_.size() + 1);  // so that drop_child cannot fail
  if (free_.empty()) {
    records_.emplace_back();
    free_.push_back(static_cast<std::uint32_t>(records_.size()) - 1);
  }
  const std::uint32_t number = free_.back();
  numbers_.emplace(name, number);
  records_[number].name = std::move(name);
  free_.pop_back();
  return number;
}

Namespace NamespaceTable::name(std::uint32_t number) const noexcept {
  return records_[number].name.view();
}

void NamespaceTable::reserve(std::span<const Namespace> names) {
  reserved_.reserve(std::max(names.size(), reserved_.size()));
  for (const std::uint32_t number : reserved_) {
    records_[number].reserved = false;
    if (records_[number].children == 0) erase(number);
  }
  reserved_.clear();
  for (const Namespace& name : names) {
    const std::uint32_t number = find_or_add(name);
    if (number == unnamed || records_[number].reserved) continue;
    records_[number].reserved = true;
    reserved_.push_back(number);
  }
}

void NamespaceTable::drop_child(std::uint32_t number) noexcept {
  Record& record = records_[number];
  if (--record.children == 0 && number != unnamed && !record.reserved) erase(number);
}

void NamespaceTable::erase(std::uint32_t number) noexcept {
  Record& record = records_[number];
  numbers_.erase(record.name);
  record.name = {};
  free_.push_back(number);
}

void NamespaceTable::clear() noexcept {
  records_.resize(1);
  reserved_.clear();
  records_.front().children = 0;
  free_.clear();
  numbers_.clear();
}

}  // namespace stateport::detail
