// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_nodes.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::detail {

TierNodes::TierNodes(std::size_t capacity, std::size_t groups)
    : groups_(groups), nodes_(capacity), slots_(capacity * groups, -1) {
  free_.reserve(capacity);
  index_.reserve(capacity);
}

std::uint32_t TierNodes::find(const PrefixHash& prefix) const noexcept {
  return index_.find(mixed(prefix), [&](std::uint32_t node) { return nodes_[node].prefix == prefix; });
}

std::uint32_t TierNodes::intern(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens) noexcept {
  const std::uint32_t above = parent == PrefixHash{} ? none : find(parent);
  std::uint32_t node = find(prefix);
  if (node == none) {
    if (free_.empty() && made_ == nodes_.size()) return none;
    node = free_.empty() ? made_ : free_.back();
    index_.insert(mixed(prefix), node);
    if (node == made_)
      ++made_;
    else
      free_.pop_back();
    nodes_[node].prefix = prefix;
    nodes_[node].tokens = tokens;
    nodes_[node].used = true;
  }
  if (nodes_[node].parent == none && above != none) link(node, above);
  return node;
}

void TierNodes::link(std::uint32_t node, std::uint32_t parent) noexcept {
  TierNode& entry = nodes_[node];
  TierNode& above = nodes_[parent];
  entry.parent = parent;
  entry.next = above.first_child;
  if (entry.next != none) nodes_[entry.next].before = node;
  above.first_child = node;
  for (int medium = 0; medium < medium_count; ++medium)
    if (entry.need[static_cast<std::size_t>(medium)] > 0) add_need(parent, static_cast<Medium>(medium));
}

std::uint32_t TierNodes::remove(std::uint32_t node) noexcept {
  TierNode& entry = nodes_[node];
  const std::uint32_t parent = entry.parent;
  if (entry.next != none) nodes_[entry.next].before = entry.before;
  if (entry.before != none)
    nodes_[entry.before].next = entry.next;
  else if (parent != none)
    nodes_[parent].first_child = entry.next;
  index_.erase(mixed(entry.prefix), node);
  entry = {};
  free_.push_back(node);
  return parent;
}

/// A node counts once with its parent, however much it needs itself.
void TierNodes::add_need(std::uint32_t node, Medium medium) noexcept {
  const auto at = static_cast<std::size_t>(medium);
  while (node != none && nodes_[node].need[at]++ == 0) node = nodes_[node].parent;
}

void TierNodes::drop_need(std::uint32_t node, Medium medium) noexcept {
  const auto at = static_cast<std::size_t>(medium);
  while (node != none && --nodes_[node].need[at] == 0) node = nodes_[node].parent;
}

void TierNodes::clear() noexcept {
  index_.clear();
  free_.clear();
  for (std::uint32_t node = 0; node < made_; ++node) nodes_[node] = {};
  made_ = 0;
}

void TierNodes::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "TierNodes", what); };
  std::vector<std::array<std::uint32_t, medium_count>> need(made_);
  std::size_t used = 0;
  for (std::uint32_t node = 0; node < made_; ++node) {
    const TierNode& entry = nodes_[node];
    if (!entry.used) continue;
    ++used;
    check(find(entry.prefix) == node, "a node is not found");
    check(!is_empty(node), "a node holds nothing");
    for (std::uint32_t child = entry.first_child; child != none; child = nodes_[child].next) {
      check(nodes_[child].used && nodes_[child].parent == node, "a child has another parent");
      for (std::size_t at = 0; at < medium_count; ++at) need[node][at] += nodes_[child].need[at] > 0;
    }
    for (int medium = 0; medium < medium_count; ++medium)
      need[node][static_cast<std::size_t>(medium)] += entry.state.is_at(static_cast<Medium>(medium));
  }
  index_.check_invariants([&](std::uint32_t node) { return mixed(nodes_[node].prefix); });
  check(used == index_.count() && used + free_.size() == made_, "a node is lost");
  for (std::uint32_t node = 0; node < made_; ++node)
    if (nodes_[node].used) check(nodes_[node].need == need[node], "the need below a node is counted wrong");
}

}  // namespace stateport::detail
