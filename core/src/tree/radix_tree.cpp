// SPDX-License-Identifier: Apache-2.0
// Lookups, recency and locks. Numbers in comments are those of the rules that the golden files test.
#include "tree/radix_tree.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace stateport::detail {
namespace {

constexpr std::size_t unbounded_nodes = UINT32_MAX / 2;

std::size_t pages_of(std::int64_t tokens, const PrefixTreeOptions& options) noexcept {
  return static_cast<std::size_t>(tokens / options.page_size);
}

/// A segment lies in one run of pages, so the arena has room for runs that are free but too short for the next segment.
/// If even that is not enough, a segment is kept in several nodes.
std::size_t arena_pages(const PrefixTreeOptions& options) noexcept {
  constexpr std::size_t room = 4;
  if (options.kv_indices == 0) return 0;
  const std::size_t pages = pages_of(options.kv_indices, options);
  const std::size_t reserved = options.reserve_tokens / static_cast<std::size_t>(options.page_size);
  return std::min<std::size_t>(reserved > 0 ? std::max(pages, reserved) : room * pages, UINT32_MAX - 1);
}

PrefixTreeOptions with_policy(PrefixTreeOptions options) {
  if (!options.policy)
    options.policy = make_eviction_policy(options.eviction, options.eviction_options, options.memory);
  LearningPolicy* learning = options.policy->learning();
  require_state(learning == nullptr || learning->claim(), "PrefixTree", "the policy observes another cache");
  return options;
}

/// Moves the answer up to a node whose state is its own: a wrong state is never answered, whatever went wrong.
void refuse_wrong_states(const RadixNodes& nodes, const SlotPool& pool, std::uint64_t layout_fingerprint,
                         RadixWalk& walk) noexcept {
  // By the tag. The tokens of a state were checked when the tree took it.
  const auto holds_state = [&] {
    if (nodes[walk.answer].slot < 0) return false;
    const StateTag& tag = pool.tag(SlotId{nodes[walk.answer].slot});
    return tag.token_count == nodes.tokens_of(walk.answer_pages) && tag.layout_fingerprint == layout_fingerprint;
  };
  while (walk.answer != RadixNodes::root && !holds_state()) {
    const RadixNode& node = nodes[walk.answer];
    walk.lost_state = walk.lost_state || node.lost_state();
    walk.answer_pages -= node.pages;
    --walk.answer_depth;
    walk.answer = node.parent;
  }
}

RadixWalk find(const RadixNodes& nodes, const SlotPool& pool, const PrefixTreeOptions& options,
               std::span<const Token> tokens, const Namespace& name_space, PathWalked& path) noexcept {
  const auto pages = static_cast<std::uint32_t>(tokens.size() / static_cast<std::size_t>(options.page_size));
  RadixWalk found = nodes.walk(tokens.data(), pages, nodes.names().find(name_space), path);
  refuse_wrong_states(nodes, pool, options.layout_fingerprint, found);
  return found;
}

PrefixMatch describe(const RadixNodes& nodes, const SlotPool& pool, std::int64_t grid, const RadixWalk& walk,
                     std::uint32_t kv_node) noexcept {
  PrefixMatch match;
  match.kv_node = nodes.id(kv_node);
  match.node = nodes.id(walk.answer);
  match.tokens = nodes.tokens_of(walk.answer_pages);
  match.walked_tokens = nodes.tokens_of(walk.pages);
  if (walk.answer != RadixNodes::root) {
    match.slot = SlotId{nodes[walk.answer].slot};
    match.tag = pool.tag(match.slot);
  }
  const std::int64_t branching = match.walked_tokens / grid * grid;
  if (branching > match.tokens) match.branching_position = branching;
  if (match.walked_tokens > match.tokens)
    match.lost = walk.lost_state            ? LostHit::evicted
                 : match.branching_position ? LostHit::no_checkpoint
                                            : LostHit::off_grid;
  return match;
}

}  // namespace

RadixTree::RadixTree(PrefixTreeOptions options)
    : options_(with_policy(std::move(options))),
      nodes_max_(options_.kv_indices > 0 ? pages_of(options_.kv_indices, options_) + 1 : unbounded_nodes),
      grid_(std::lcm(std::int64_t{options_.chunk_size}, std::int64_t{options_.page_size})),
      pool_(options_.slots, SlotPool::Order::queue),
      learning_(options_.policy->learning()),
      nodes_(options_, learning_ != nullptr, arena_pages(options_)),
      victims_(nodes_, pool_, options_),
      kv_(options_.kv_indices),
      events_(options_.on_kv_event, {.kind = options_.kv_event_hash,
                                     .block_size_tokens = options_.page_size,
                                     .seed = options_.kv_event_hash_seed}) {
  if (learning_) history_.emplace(nodes_, *learning_, options_);
  if (options_.kv_indices == 0) {
    reserve_nodes(std::max(options_.reserve_nodes, spare_nodes) + spare_nodes);
    if (history_) history_->reserve(0, nodes_.arena().capacity_pages());
    return;
  }
  const auto pages = static_cast<std::uint32_t>(nodes_max_ - 1);
  reserve_nodes(nodes_max_);
  if (history_) history_->reserve(pages, arena_pages(options_));
  if (events_.is_on()) events_.reserve(pages, arena_pages(options_));
  if (options_.max_states_per_path >= 0) path_.reserve(std::size_t{pages} + 2);
}

void RadixTree::reserve_nodes(std::size_t nodes) {
  if (nodes <= nodes_.capacity()) return;
  require(nodes <= unbounded_nodes, "nodes", static_cast<std::int64_t>(nodes), "too many nodes for one tree");
  victims_.reserve(nodes);
  if (learning_) learning_->reserve(nodes);
  nodes_.reserve(nodes);  // last: its capacity tells the others'
}

std::uint32_t RadixTree::split(std::uint32_t node, std::uint32_t pages) noexcept {
  const std::uint32_t upper_index = nodes_.split(node, pages);
  victims_.touch(upper_index, ++tick_);
  victims_.touch(node, ++tick_);  // but not its state: a lookup that misses makes no state recent (1)
  return upper_index;
}

void RadixTree::touch(std::uint32_t node) noexcept {
  if (node == root) return;
  std::uint32_t depth = 0;
  for (std::uint32_t at = node; at != root; at = nodes_[at].parent) ++depth;
  raise_path(node, depth);
  if (nodes_[node].slot >= 0) pool_.touch(SlotId{nodes_[node].slot}, ++tick_);
  path_was_used(node);
}

void RadixTree::touch(std::span<const NodeId> nodes) noexcept {
  const auto fetch_neighbours = [&](std::size_t i) {
    const RadixNode& node = nodes_[nodes[i].index];
    if (!nodes_.listed(nodes[i].index)) return;
    prefetch(&nodes_[node.older]);
    prefetch(&nodes_[node.newer]);
  };
  for_each_prefetched(nodes.size(), fetch_neighbours, [&](std::size_t i) { touch(nodes[i].index); });
}

void RadixTree::set_time(double now_s) {
  now_s_ = now_s;
  if (history_) history_->set_time(now_s);
}

PrefixMatch RadixTree::match(std::span<const Token> tokens, const Namespace& name_space, std::span<KvIndex> kv_out,
                             Lookup lookup, std::int64_t request_tokens) {
  const auto page = static_cast<std::size_t>(options_.page_size);
  const RadixWalk found = find(nodes_, pool_, options_, tokens, name_space, walked_);
  // A lookup splits too (12). Without a node at hand the edge stays whole: the answer is the same.
  std::uint32_t kv_node = found.node;
  if (found.cut_node != none && nodes_.node_at_hand()) kv_node = split(found.cut_node, found.cut_pages);
  PrefixMatch match = describe(nodes_, pool_, grid_, found, kv_node);
  if (history_ && lookup == Lookup::request) {
    match.past = history_->looked_up(tokens, request_tokens, name_space, found);
    victims_.rank_state_again(found.answer);
  }
  tick_ += found.answer_depth;
  std::uint64_t tick = tick_;
  std::uint32_t begin = found.answer_pages;
  std::uint32_t depth = found.answer_depth;
  PathAhead below;
  for (std::uint32_t at = found.answer; at != root; at = nodes_[at].parent, --depth) {
    nodes_.fetch_above(depth, walked_);
    RadixNode& node = nodes_[at];
    begin -= node.pages;
    if (!kv_out.empty())
      std::memcpy(kv_out.data() + begin * page, nodes_.kv(at).data(), sizeof(KvIndex) * node.pages * page);
    node.tick = tick--;
    nodes_.note_ahead(at, depth, below);
  }
  if (found.answer == root) return match;
  path_was_used(found.answer);
  pool_.touch(SlotId{nodes_[found.answer].slot}, ++tick_);
  return match;
}

PrefixMatch peek(RadixTree& tree, std::span<const Token> tokens, const Namespace& name_space) {
  PathWalked path;
  const RadixWalk found = find(tree.shape(), tree.pool(), tree.options(), tokens, name_space, path);
  return describe(tree.shape(), tree.pool(), tree.grid(), found, found.node);
}

SlotId RadixTree::take_slot_beside(std::uint32_t answer, Freed& freed) {
  SlotId slot;
  if (pool_.allocate({&slot, 1})) return slot;
  lock(answer);
  EvictResult evicted;
  try {
    evict({.tokens = 0, .states = 1}, freed, evicted, {});
  } catch (...) {
    unlock(nodes_.id(answer));
    throw;
  }
  unlock(nodes_.id(answer));
  return pool_.allocate({&slot, 1}) ? slot : SlotId{};
}

void RadixTree::lock(std::uint32_t node) noexcept {
  for (std::uint32_t at = node; at != root; at = nodes_[at].parent) {
    RadixNode& entry = nodes_[at];
    if (entry.full_lock++ > 0) continue;
    sizes_.evictable_tokens -= nodes_.tokens_of(entry.pages);
    sizes_.protected_tokens += nodes_.tokens_of(entry.pages);
  }
  if (nodes_[node].slot < 0) {
    nodes_[node].slot -= RadixNode::state_lock;
    return;
  }
  const SlotId slot{nodes_[node].slot};
  pool_.lock(slot);
  if (pool_.lock_count(slot) == 1) {
    --sizes_.evictable_states;
    ++sizes_.protected_states;
  }
}

void RadixTree::unlock(NodeId node) noexcept {
  if (!nodes_.contains(node)) return;  // forgotten by reset(): nothing else removes a locked node
  if (nodes_[node.index].slot < 0) {
    nodes_[node.index].slot += RadixNode::state_lock;
  } else {
    const SlotId slot{nodes_[node.index].slot};
    pool_.unlock(slot);
    if (pool_.lock_count(slot) == 0) {
      ++sizes_.evictable_states;
      --sizes_.protected_states;
      victims_.unlock_state(slot);
    }
  }
  for (std::uint32_t at = node.index; at != root; at = nodes_[at].parent) {
    RadixNode& entry = nodes_[at];
    if (--entry.full_lock > 0) continue;
    sizes_.evictable_tokens += nodes_.tokens_of(entry.pages);
    sizes_.protected_tokens -= nodes_.tokens_of(entry.pages);
    if (entry.children == 0) victims_.offer(at);
  }
}

}  // namespace stateport::detail
