// SPDX-License-Identifier: Apache-2.0
// Dumps, and the recount of everything that the tree keeps in more than one place.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "tree/radix_tree.hpp"

namespace stateport::detail {
namespace {

constexpr const char* structure = "PrefixTree";
constexpr std::size_t max_indented_depth = 20;

std::string quoted(const std::optional<std::string_view>& name) {
  return name ? fmt::format("\"{}\"", *name) : std::string("none");
}

}  // namespace

std::vector<std::uint32_t> RadixTree::path_ends() const {
  std::vector<std::uint32_t> ends(nodes_.size(), 0);
  std::vector<std::uint32_t> path;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    if (nodes_[index].pages == 0) continue;
    for (std::uint32_t at = index; ends[at] == 0 && at != root; at = nodes_[at].parent) path.push_back(at);
    for (; !path.empty(); path.pop_back())
      ends[path.back()] = ends[nodes_[path.back()].parent] + nodes_[path.back()].pages;
  }
  return ends;
}

std::uint32_t RadixTree::end_page(std::uint32_t node) const noexcept {
  std::uint32_t pages = 0;
  for (; node != root; node = nodes_[node].parent) pages += nodes_[node].pages;
  return pages;
}

NodeInfo RadixTree::describe(std::uint32_t index, std::uint32_t end_page) const {
  const RadixNode& node = nodes_[index];
  const auto tokens = static_cast<std::size_t>(tokens_of(node.pages));
  const bool state = node.slot >= 0;
  return {.id = id(index),
          .parent = id(node.parent),
          .name_space = names_.name(node.name_space),
          .tokens = {arena_.tokens(node.first_page), tokens},
          .kv = {arena_.kv(node.first_page), tokens},
          .end_tokens = tokens_of(end_page),
          .slot = state ? SlotId{node.slot} : SlotId{},
          .full_lock = node.full_lock,
          .state_lock = state ? pool_.lock_count(SlotId{node.slot}) : 0,
          .children = node.children,
          .tick = node.tick,
          .state_tick = state ? state_ticks_[static_cast<std::size_t>(node.slot)] : 0,
          .created_tick = node.created,
          .hits = node.hits,
          .priority = node.priority};
}

std::vector<NodeInfo> RadixTree::nodes() const {
  const std::vector<std::uint32_t> ends = path_ends();
  std::vector<NodeInfo> all;
  all.reserve(live_nodes_);
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    if (nodes_[index].pages > 0) all.push_back(describe(index, ends[index]));
  // A path grows from parent to child.
  std::ranges::sort(all, {}, [](const NodeInfo& node) { return std::pair(node.end_tokens, node.id.index); });
  return all;
}

std::string RadixTree::pretty_print() const {
  std::vector<NodeInfo> all = nodes();
  // Depth first without recursion: the siblings still to print are linked, oldest index first.
  std::vector<std::uint32_t> first(nodes_.size(), none);
  std::vector<std::uint32_t> sibling(all.size(), none);
  for (auto at = static_cast<std::uint32_t>(all.size()); at-- > 0;) {
    sibling[at] = first[all[at].parent.index];
    first[all[at].parent.index] = at;
  }
  std::string text;
  std::vector<std::uint32_t> pending{first[root]};
  while (!pending.empty()) {
    const std::uint32_t at = pending.back();
    if (at == none) {
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

void RadixTree::check_node(std::uint32_t index) const {
  const RadixNode& node = nodes_[index];
  const RadixNode& parent = nodes_[node.parent];
  const Token* first_page = arena_.tokens(node.first_page);
  require_invariant(node.parent < nodes_.size() && (node.parent == root || parent.pages > 0), structure,
                    "a node's parent is not in the tree");
  require_invariant(node.parent == root || node.name_space == parent.name_space, structure,
                    "a node is in another namespace than its parent");
  const std::uint32_t found = children_.find(child_hash(index), [&](std::uint32_t other) {
    return nodes_[other].parent == node.parent && nodes_[other].name_space == node.name_space &&
           same_page(arena_.tokens(nodes_[other].first_page), first_page);
  });
  require_invariant(found == index, structure, "a node is not found, or a sibling begins with the same page");
  require_invariant(node.tick <= tick_ && node.created <= tick_, structure, "a node is younger than the clock");
  require_invariant(node.newer < nodes_.size() || node.newer == none, structure, "a node hints at no node");
  require_invariant(!is_victim_leaf(index) || (draws() && node.slot < 0 ? bare_.contains(bare_leaves(), index)
                                                                        : leaves_.contains(leaves(), index)),
                    structure, "an evictable leaf is not indexed");
  if (node.slot < 0) return;
  const SlotId slot{node.slot};
  require_invariant(!pool_.is_free(slot) && pool_.owner(slot) == static_cast<std::int32_t>(index), structure,
                    "the slot of a node is owned by another");
  require_invariant(static_cast<std::uint32_t>(pool_.lock_count(slot)) <= node.full_lock, structure,
                    "a state is locked more often than its KV");
  const auto place = static_cast<std::uint32_t>(node.slot);
  require_invariant(pool_.lock_count(slot) > 0 || states_.contains(states(), place), structure,
                    "an evictable state is not indexed");
}

void RadixTree::check_nodes(std::vector<std::uint32_t>& children, std::vector<std::uint64_t>& lock_sums,
                            std::vector<bool>& used_pages) const {
  std::vector<std::uint32_t> root_children(names_.size(), 0);
  std::size_t live = 0;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0) continue;
    ++live;
    check_node(index);
    ++children[node.parent];
    lock_sums[node.parent] += node.full_lock;
    if (node.parent == root) ++root_children[node.name_space];
    for (std::uint32_t page = node.first_page; page < node.first_page + node.pages; ++page) {
      require_invariant(!used_pages[page], structure, "two nodes own a page of the arena");
      used_pages[page] = true;
    }
  }
  require_invariant(live == live_nodes_ && live == children_.count(), structure, "the number of nodes is wrong");
  children_.check_invariants([this](std::uint32_t node) { return child_hash(node); });
  for (std::uint32_t name = 0; name < names_.size(); ++name)
    require_invariant(root_children[name] == names_.children(name), structure, "a namespace counts other children");
}

void RadixTree::check_list() const {
  std::size_t found = 0;
  for (std::uint32_t at = nodes_[root].newer; at != root; at = nodes_[at].newer, ++found) {
    require_invariant(leaves_.strategy() == VictimStrategy::list && found <= live_nodes_, structure,
                      "the list of leaves does not end");
    require_invariant(nodes_[at].pages > 0 && nodes_[at].children == 0, structure, "what is listed is no leaf");
  }
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    if (listed(index)) --found;
  require_invariant(found == 0, structure, "a node is linked but not listed");
}

void RadixTree::check_policy() const {
  leaves_.check_invariants(leaves());
  bare_.check_invariants(bare_leaves());
  states_.check_invariants(states());
  if (!learning_) return;
  const std::vector<std::uint32_t> ends = path_ends();
  for (std::uint32_t index = 1; index < nodes_.size(); ++index)
    require_invariant(nodes_[index].pages == 0 || path_pages_[index] == ends[index], structure,
                      "a node ends elsewhere than its path");
  std::vector<Token> scratch;
  for (std::uint32_t index = 1; positions_ && index < nodes_.size(); ++index)
    if (nodes_[index].pages > 0) check_positions(index, scratch);
  learning_->check_invariants();
}

void RadixTree::check_positions(std::uint32_t node, std::vector<Token>& scratch) const {
  const std::uint32_t begin_page = path_pages_[nodes_[node].parent];
  for (std::uint32_t position = positions_->count(path_pages_[node]); positions_->end_page(position) > begin_page;
       --position) {
    // The tokens of a position may lie in several nodes, last page first.
    scratch.clear();
    std::uint32_t at = node;
    for (std::uint32_t page = positions_->end_page(position); page-- > positions_->end_page(position - 1);) {
      while (path_pages_[nodes_[at].parent] > page) at = nodes_[at].parent;
      const Token* tokens = arena_.tokens(nodes_[at].first_page + page - path_pages_[nodes_[at].parent]);
      scratch.insert(scratch.begin(), tokens, tokens + options_.page_size);
    }
    const PositionKey before = position == 1 ? namespace_seed(names_.name(nodes_[node].name_space))
                                             : positions_->key(position_page(at = node, position - 1));
    require_invariant(positions_->key(position_page(at = node, position)) == positions_->next(scratch, 1, before),
                      structure, "a position has the key of other tokens");
  }
}

void RadixTree::check_sizes() const {
  TreeSizes recount;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    (node.full_lock > 0 ? recount.protected_tokens : recount.evictable_tokens) += tokens_of(node.pages);
    if (node.slot >= 0)
      ++(pool_.lock_count(SlotId{node.slot}) > 0 ? recount.protected_states : recount.evictable_states);
  }
  require_invariant(recount == sizes_, structure, "the sizes are not those of the nodes");
}

void RadixTree::check_indices() const {
  std::vector<KvIndex> all;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const KvIndex* kv = arena_.kv(nodes_[index].first_page);
    all.insert(all.end(), kv, kv + tokens_of(nodes_[index].pages));
  }
  std::ranges::sort(all);
  require_invariant(std::ranges::adjacent_find(all) == all.end(), structure, "two tokens share a KV index");
  if (options_.kv_indices == 0) return;
  std::size_t owned = 0;
  for (const std::uint64_t word : owned_indices_) owned += static_cast<std::size_t>(std::popcount(word));
  require_invariant(owned == all.size(), structure, "the owned KV indices are not those of the nodes");
}

void RadixTree::check_states() const {
  const std::vector<std::uint32_t> ends = path_ends();
  std::size_t with_state = 0;
  std::vector<Token> path;
  for (std::uint32_t index = 1; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    if (node.pages == 0 || node.slot < 0) continue;
    ++with_state;
    path.resize(static_cast<std::size_t>(tokens_of(ends[index])));
    for (std::uint32_t at = index; at != root; at = nodes_[at].parent) {
      const Token* tokens = arena_.tokens(nodes_[at].first_page);
      std::copy(tokens, tokens + tokens_of(nodes_[at].pages), path.begin() + tokens_of(ends[at] - nodes_[at].pages));
    }
    const TagCheck check = check_tag(pool_.tag(SlotId{node.slot}), state_tag(path, names_.name(node.name_space)));
    require_invariant(check == TagCheck::match, structure, "a slot holds the state of another path");
  }
  std::size_t owned = 0;
  for (std::int32_t slot = 0; slot < pool_.capacity_slots(); ++slot)
    owned += !pool_.is_free(SlotId{slot}) && pool_.owner(SlotId{slot}) != SlotPool::caller;
  require_invariant(owned == with_state, structure, "the tree owns slots of no node");
}

void RadixTree::check_invariants() const {
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  std::vector<std::uint64_t> lock_sums(nodes_.size(), 0);
  std::vector<bool> used_pages(arena_.capacity_pages(), false);
  check_nodes(children, lock_sums, used_pages);
  for (std::uint32_t index = 0; index < nodes_.size(); ++index) {
    const RadixNode& node = nodes_[index];
    require_invariant(children[index] == node.children, structure, "a node counts other children");
    require_invariant(index == root || node.pages == 0 || lock_sums[index] <= node.full_lock, structure,
                      "the children of a node are locked more often than it is");
  }
  std::size_t free_nodes = 0;
  for (std::uint32_t index = free_head_; index != none; index = nodes_[index].parent, ++free_nodes)
    require_invariant(nodes_[index].pages == 0 && free_nodes <= nodes_.size(), structure, "a node in use is free");
  require_invariant(free_nodes + live_nodes_ + 1 == nodes_.size(), structure, "a node is neither in use nor free");
  arena_.check_invariants(used_pages);
  check_list();
  check_policy();
  pool_.check_invariants();
  check_sizes();
  check_indices();
  check_states();
}

}  // namespace stateport::detail
