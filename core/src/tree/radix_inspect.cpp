// SPDX-License-Identifier: Apache-2.0
// Dumps, and the recount of everything that the tree keeps in more than one place.
#include "tree/radix_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace stateport::detail {
namespace {

constexpr std::size_t max_indented_depth = 20;

std::string quoted(const std::optional<NameKey>& name) {
  if (!name) return "none";
  if (name->length() == name->text().size()) return fmt::format("\"{}\"", name->text());
  std::string digest = fmt::format("{} bytes with SHA-256 ", name->length());
  for (const char byte : name->text())
    fmt::format_to(std::back_inserter(digest), "{:02x}", static_cast<unsigned char>(byte));
  return digest;
}

}  // namespace

NodeInfo RadixTree::node(std::uint32_t index, std::uint32_t end_page) const {
  const RadixNode& node = nodes_[index];
  const bool state = node.slot >= 0;
  return {.id = nodes_.id(index),
          .parent = nodes_.id(node.parent),
          .name_space = nodes_.names().name(node.name_space),
          .tokens = nodes_.tokens(index),
          .kv = nodes_.kv(index),
          .end_tokens = nodes_.tokens_of(end_page),
          .slot = state ? SlotId{node.slot} : SlotId{},
          .full_lock = node.full_lock,
          .state_lock = state ? pool_.lock_count(SlotId{node.slot}) : node.state_locks(),
          .children = node.children,
          .tick = node.tick,
          .state_tick = state ? pool_.last_use_tick(SlotId{node.slot}) : 0,
          .created_tick = node.created,
          .hits = node.hits,
          .priority = node.priority};
}

std::vector<NodeInfo> nodes_of(const RadixTree& tree) {
  const RadixNodes& nodes = tree.shape();
  const std::vector<std::uint32_t> ends = nodes.ends();
  std::vector<NodeInfo> all;
  all.reserve(nodes.live());
  for (std::uint32_t index = 1; index < nodes.size(); ++index)
    if (nodes[index].pages > 0) all.push_back(tree.node(index, ends[index]));
  // A path grows from parent to child.
  std::ranges::sort(all, {}, [](const NodeInfo& node) { return std::pair(node.end_tokens, node.id.index); });
  return all;
}

std::string pretty_print(std::span<const NodeInfo> all) {
  std::uint32_t largest = 0;
  for (const NodeInfo& node : all) largest = std::max(largest, node.id.index);
  // Depth first without recursion: the siblings still to print are linked, oldest index first.
  std::vector<std::uint32_t> first(std::size_t{largest} + 1, RadixNodes::none);
  std::vector<std::uint32_t> sibling(all.size(), RadixNodes::none);
  for (auto at = static_cast<std::uint32_t>(all.size()); at-- > 0;) {
    sibling[at] = first[all[at].parent.index];
    first[all[at].parent.index] = at;
  }
  std::string text;
  std::vector<std::uint32_t> pending{first[RadixNodes::root]};
  while (!pending.empty()) {
    const std::uint32_t at = pending.back();
    if (at == RadixNodes::none) {
      pending.pop_back();
      continue;
    }
    const NodeInfo& node = all[at];
    // A path may be very deep: the indentation stops, the depth goes on.
    const std::size_t depth = pending.size();
    fmt::format_to(std::back_inserter(text), "{:{}}{} [{}] tokens {}-{} slot {} locks {}/{} tick {}", "",
                   2 * std::min(depth - 1, max_indented_depth), depth, node.id.index,
                   node.end_tokens - static_cast<std::int64_t>(node.tokens.size()), node.end_tokens, node.slot.value(),
                   node.full_lock, node.state_lock, node.tick);
    if (node.parent.is_root() && node.name_space != Namespace{})
      fmt::format_to(std::back_inserter(text), " namespace {} {}", quoted(node.name_space.extra_key),
                     quoted(node.name_space.salt));
    text += '\n';
    pending.back() = sibling[at];
    pending.push_back(first[node.id.index]);
  }
  return text;
}

void RadixTree::check_nodes() const {
  TreeSizes recount;
  std::vector<KvIndex> all;
  std::vector<std::int64_t> locks(nodes_.size(), 0);  // of the node itself and of all below
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0) continue;
    require_invariant(node.tick <= tick_ && node.created <= tick_, structure, "a node is younger than the clock");
    const std::span<const KvIndex> kv = nodes_.kv(index);
    all.insert(all.end(), kv.begin(), kv.end());
    (node.full_lock > 0 ? recount.protected_tokens : recount.evictable_tokens) += std::ssize(kv);
    const SlotId slot{node.slot};
    const std::int32_t state_locks = node.slot < 0 ? node.state_locks() : pool_.lock_count(slot);
    require_invariant(state_locks >= 0, structure, "a node is unlocked more often than locked");
    locks[index] += state_locks;
    locks[node.parent] += node.full_lock;
    if (node.slot < 0) continue;
    require_invariant(!pool_.is_free(slot) && pool_.owner(slot) == static_cast<std::int32_t>(index), structure,
                      "the slot of a node is owned by another");
    ++(state_locks > 0 ? recount.protected_states : recount.evictable_states);
  }
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    require_invariant(locks[index] == nodes_[index].full_lock, structure,
                      "the KV of a node has locks without an owner");
  require_invariant(recount == sizes_, structure, "the sizes are not those of the nodes");
  std::ranges::sort(all);
  require_invariant(std::ranges::adjacent_find(all) == all.end(), structure, "two tokens share a KV index");
  require_invariant(!kv_.is_known() || kv_.owned() == all.size(), structure,
                    "the owned KV indices are not those of the nodes");
}

void RadixTree::check_states() const {
  const std::vector<std::uint32_t> ends = nodes_.ends();
  std::size_t with_state = 0;
  std::vector<Token> path;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0 || node.slot < 0) continue;
    ++with_state;
    path.resize(static_cast<std::size_t>(nodes_.tokens_of(ends[index])));
    for (std::uint32_t at = index; at != root; at = nodes_[at].parent)
      std::ranges::copy(nodes_.tokens(at), path.begin() + nodes_.tokens_of(ends[at] - nodes_[at].pages));
    const TagCheck check =
        check_tag(pool_.tag(SlotId{node.slot}), state_tag(path, nodes_.names().name(node.name_space), options_));
    require_invariant(check == TagCheck::match, structure, "a slot holds the state of another path");
  }
  std::size_t owned = 0;
  for (std::int32_t slot = 0; slot < pool_.capacity_slots(); ++slot)
    owned += !pool_.is_free(SlotId{slot}) && pool_.owner(SlotId{slot}) != SlotPool::caller;
  require_invariant(owned == with_state, structure, "the tree owns slots of no node");
}

void RadixTree::check_invariants() const {
  nodes_.check_invariants();
  victims_.check_invariants();
  if (history_) history_->check_invariants();
  pool_.check_invariants();
  check_nodes();
  check_states();
}

}  // namespace stateport::detail
