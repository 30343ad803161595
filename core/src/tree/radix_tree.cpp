// SPDX-License-Identifier: Apache-2.0
// Nodes, the walk, lookups, recency and locks. Numbers in comments are those of the rules that the golden files test.
#include "tree/radix_tree.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <xxhash.h>

#include <stateport/core/containers/prefetch.hpp>

namespace stateport::detail {

RadixTree::RadixTree(PrefixTreeOptions options)
    : options_(std::move(options)),
      grid_(std::lcm(std::int64_t{options_.chunk_size}, std::int64_t{options_.page_size})),
      pool_(options_.slots, SlotPool::Order::queue),
      arena_(options_.page_size, options_.reserve_tokens),
      events_(options_.on_kv_event, options_.kv_event_hash, options_.page_size),
      state_ticks_(static_cast<std::size_t>(options_.slots), 0) {
  if (!options_.policy)
    options_.policy = make_eviction_policy(options_.eviction, options_.eviction_options, options_.memory);
  learning_ = options_.policy->learning();
  require(!learning_ || learning_->claim(), "policy", options_.policy->name(), "belongs to another cache");
  const VictimTraits traits = options_.policy->traits();
  leaves_ = VictimOrder<LinkedRecency>(traits);
  if (draws()) states_ = bare_ = VictimOrder<>(traits);  // of other policies, only leaves are ranked by key
  states_.reserve(static_cast<std::size_t>(options_.slots));
  if (learning_ && learning_->observes_prompts()) {
    const std::int64_t step_tokens = std::int64_t{options_.position_tokens} + options_.page_size - 1;
    positions_.emplace(options_.page_size, static_cast<std::uint32_t>(step_tokens / options_.page_size));
    positions_->reserve(arena_.capacity_pages(), 0);
  }
  owned_indices_.resize(static_cast<std::size_t>((options_.kv_indices + 63) / 64), 0);
  reserve_nodes(std::max(options_.reserve_nodes, spare_nodes) + spare_nodes);
  nodes_.emplace_back();
  nodes_[root].full_lock = 1;
  nodes_[root].older = nodes_[root].newer = root;
}

bool RadixTree::node_at_hand() const noexcept {
  return free_head_ != none || nodes_.size() < node_capacity_;
}

void RadixTree::reserve_nodes(std::size_t nodes) {
  if (nodes <= node_capacity_) return;
  require(nodes < UINT32_MAX / 2, "nodes", static_cast<std::int64_t>(nodes), "too many nodes for one tree");
  nodes_.reserve(nodes);
  children_.reserve(nodes);
  leaves_.reserve(nodes);
  if (draws()) bare_.reserve(nodes);
  if (learning_) {
    path_pages_.resize(nodes, 0);
    learning_->reserve(nodes);
  }
  node_capacity_ = nodes;
}

std::uint32_t RadixTree::take_node() noexcept {
  ++live_nodes_;
  if (free_head_ == none) {
    nodes_.emplace_back();
    return static_cast<std::uint32_t>(nodes_.size()) - 1;
  }
  const std::uint32_t node = free_head_;
  free_head_ = nodes_[node].parent;
  const std::uint32_t generation = nodes_[node].generation;
  nodes_[node] = {};
  nodes_[node].generation = generation;
  return node;
}

std::uint32_t RadixTree::child_hash(std::uint32_t parent, std::uint32_t name_space, const Token* page) const noexcept {
  // The page is hashed without the parent: its hash does not wait for the previous step of the walk.
  const std::uint64_t tokens =
      XXH3_64bits_withSeed(page, sizeof(Token) * static_cast<std::size_t>(options_.page_size), options_.hash_seed);
  const std::uint64_t place = std::uint64_t{name_space} << 32 | parent;
  std::uint64_t mixed = (tokens ^ place * 0x9E3779B97F4A7C15U) * 0xD6E8FEB86659FD93U;
  mixed ^= mixed >> 32;
  return static_cast<std::uint32_t>((mixed * 0xD6E8FEB86659FD93U) >> 32);
}

std::uint32_t RadixTree::child_hash(std::uint32_t node) const noexcept {
  const RadixNode& entry = nodes_[node];
  return child_hash(entry.parent, entry.name_space, arena_.tokens(entry.first_page));
}

bool RadixTree::same_page(const Token* a, const Token* b) const noexcept {
  return std::memcmp(a, b, sizeof(Token) * static_cast<std::size_t>(options_.page_size)) == 0;
}

std::uint32_t RadixTree::common_pages(const Token* a, const Token* b, std::uint32_t pages) const noexcept {
  // memcmp tells that a block differs, not where: large blocks first, then pages inside the one that differs.
  constexpr std::uint32_t block_tokens = 2048;
  const auto page = static_cast<std::size_t>(options_.page_size);
  const auto block_pages = static_cast<std::uint32_t>(std::max<std::size_t>(1, block_tokens / page));
  std::uint32_t common = 0;
  while (common < pages) {
    const std::uint32_t next = std::min(block_pages, pages - common);
    if (std::memcmp(a + common * page, b + common * page, sizeof(Token) * next * page) != 0) break;
    common += next;
  }
  while (common < pages && same_page(a + common * page, b + common * page)) ++common;
  return common;
}

std::uint32_t RadixTree::find_child(Walk& walk, std::uint32_t name_space, const Token* page,
                                    std::uint32_t hint) const noexcept {
  const auto is_child = [&](std::uint32_t index) {
    const RadixNode& node = nodes_[index];
    return node.parent == walk.node && node.name_space == name_space && same_page(arena_.tokens(node.first_page), page);
  };
  if (hint != none && is_child(hint)) return hint;  // never a free node: its parent, if any, is a free node too
  const std::uint32_t hash = child_hash(walk.node, name_space, page);
  const std::uint32_t child = children_.find(hash, is_child);
  if (child == none) walk.missing_child = hash;
  return child;
}

void RadixTree::look_ahead(std::uint32_t node, std::uint32_t depth, PathAhead& ahead) const noexcept {
  const std::uint32_t far = listed(node) ? none : nodes_[node].newer;
  ahead.note(depth, far);
  if (far != none) prefetch(&nodes_[far]);
  // What was fetched some levels before is here by now: it tells where its pages are.
  const std::uint32_t near = ahead.at(depth + PathAhead::levels / 2);
  if (near == none) return;
  prefetch(arena_.tokens(nodes_[near].first_page));
  prefetch(arena_.kv(nodes_[near].first_page));
}

RadixTree::Walk RadixTree::walk(const Token* tokens, std::uint32_t pages, std::uint32_t name_space) const noexcept {
  constexpr std::uint32_t fetched_pages = 8;  // of the key, ahead of the walk: it may be as cold as the nodes
  Walk walk;
  PathAhead ahead;
  const auto page = static_cast<std::size_t>(options_.page_size);
  while (walk.pages < pages && name_space != NamespaceTable::none) {
    const Token* rest = tokens + walk.pages * page;
    prefetch(tokens + std::min(walk.pages + fetched_pages, pages) * page);
    const std::uint32_t child = find_child(walk, name_space, rest, ahead.at(walk.depth + 1));
    if (child == none) break;
    const RadixNode& node = nodes_[child];
    const std::uint32_t common = 1 + common_pages(arena_.tokens(node.first_page) + page, rest + page,
                                                  std::min(node.pages, pages - walk.pages) - 1);
    walk.pages += common;
    if (common < node.pages) {
      walk.cut_node = child;
      walk.cut_pages = common;
      break;
    }
    walk.node = child;
    ++walk.depth;
    look_ahead(child, walk.depth, ahead);
    if (node.slot >= 0) {
      walk.answer = child;
      walk.answer_depth = walk.depth;
      walk.answer_pages = walk.pages;
      walk.lost_state = false;
    } else if (node.slot == lost_slot) {
      walk.lost_state = true;
    }
  }
  return walk;
}

std::uint32_t RadixTree::split(std::uint32_t node, std::uint32_t pages) noexcept {
  const std::uint32_t upper_index = take_node();
  RadixNode& upper = nodes_[upper_index];
  RadixNode& lower = nodes_[node];
  // A state is valid at one position: it stays with the lower part, which keeps its identity (1, 17).
  upper.parent = lower.parent;
  upper.first_page = lower.first_page;
  upper.pages = pages;
  upper.children = 1;
  upper.name_space = lower.name_space;
  upper.full_lock = lower.full_lock;
  upper.created = lower.created;
  upper.hits = lower.hits;
  upper.priority = lower.priority;
  children_.assign(child_hash(node), upper_index, [&](std::uint32_t child) { return child == node; });
  lower.parent = upper_index;
  lower.first_page += pages;
  lower.pages -= pages;
  children_.insert(child_hash(node), node);
  if (learning_) path_pages_[upper_index] = path_pages_[upper.parent] + pages;
  touch_node(upper_index, ++tick_);
  touch_node(node, ++tick_);
  if (lower.slot >= 0) touch_state(node);
  return upper_index;
}

void RadixTree::touch_state(std::uint32_t node) noexcept {
  state_ticks_[static_cast<std::size_t>(nodes_[node].slot)] = ++tick_;
}

void RadixTree::touch(std::uint32_t node) noexcept {
  std::uint32_t depth = 0;
  for (std::uint32_t at = node; at != root; at = nodes_[at].parent) ++depth;
  touch_path(node, depth);
  if (nodes_[node].slot >= 0) touch_state(node);
}

void RadixTree::touch(std::span<const NodeId> nodes) noexcept {
  const auto fetch_neighbours = [&](std::size_t i) {
    const RadixNode& node = nodes_[nodes[i].index];
    if (!listed(nodes[i].index)) return;
    prefetch(&nodes_[node.older]);
    prefetch(&nodes_[node.newer]);
  };
  for_each_prefetched(nodes.size(), fetch_neighbours, [&](std::size_t i) { touch(nodes[i].index); });
}

bool RadixTree::holds_state_at(std::uint32_t node, std::uint32_t pages) const noexcept {
  if (nodes_[node].slot < 0) return false;
  const StateTag& tag = pool_.tag(SlotId{nodes_[node].slot});
  return tag.token_count == tokens_of(pages) && tag.layout_fingerprint == options_.layout_fingerprint;
}

void RadixTree::refuse_wrong_states(Walk& walk) const noexcept {
  while (walk.answer != root && !holds_state_at(walk.answer, walk.answer_pages)) {
    const RadixNode& node = nodes_[walk.answer];
    walk.lost_state = walk.lost_state || node.slot == lost_slot;
    walk.answer_pages -= node.pages;
    --walk.answer_depth;
    walk.answer = node.parent;
  }
}

PrefixMatch RadixTree::describe(const Walk& walk, std::uint32_t kv_node) const noexcept {
  PrefixMatch match;
  match.kv_node = id(kv_node);
  match.node = id(walk.answer);
  match.tokens = tokens_of(walk.answer_pages);
  match.walked_tokens = tokens_of(walk.pages);
  if (walk.answer != root) {
    match.slot = SlotId{nodes_[walk.answer].slot};
    match.tag = pool_.tag(match.slot);
  }
  const std::int64_t branching = match.walked_tokens / grid_ * grid_;
  if (branching > match.tokens) match.branching_position = branching;
  if (match.walked_tokens > match.tokens)
    match.lost = walk.lost_state            ? LostHit::evicted
                 : match.branching_position ? LostHit::no_checkpoint
                                            : LostHit::off_grid;
  return match;
}

void RadixTree::set_time(double now_s) {
  now_s_ = now_s;
  told_time_ = true;
  if (learning_) learning_->set_time(now_s);
}

std::uint32_t RadixTree::position_page(std::uint32_t& node, std::uint32_t position) const noexcept {
  const std::uint32_t page = positions_->end_page(position) - 1;
  while (path_pages_[nodes_[node].parent] > page) node = nodes_[node].parent;
  return nodes_[node].first_page + page - path_pages_[nodes_[node].parent];
}

void RadixTree::name_positions(std::uint32_t leaf, const PrefixInsert& prefix) noexcept {
  std::uint32_t above = nodes_[leaf].parent;
  std::uint32_t position = positions_->count(path_pages_[above]);
  PositionKey key = position == 0 ? namespace_seed(prefix.name_space) : positions_->key(position_page(above, position));
  for (const std::uint32_t last = positions_->count(path_pages_[leaf]); position < last;) {
    key = positions_->next(prefix.tokens, ++position, key);
    positions_->key(position_page(leaf, position)) = key;
  }
}

PromptPast RadixTree::past_of(std::span<const Token> tokens, std::int64_t request_tokens, const Namespace& name_space,
                              const Walk& found) noexcept {
  const std::span<PositionKey> keys = positions_->open(static_cast<std::int64_t>(tokens.size()));
  const auto held = std::min(positions_->count(found.pages), static_cast<std::uint32_t>(keys.size()));
  std::uint32_t node = found.cut_node != none ? found.cut_node : found.node;
  for (std::uint32_t position = held; position > 0; --position)
    keys[position - 1] = positions_->key(position_page(node, position));
  PositionKey key = held == 0 ? namespace_seed(name_space) : keys[held - 1];
  for (std::uint32_t position = held; position < keys.size();) {
    key = positions_->next(tokens, position + 1, key);
    keys[position++] = key;
  }
  const std::int32_t blocks = positions_->count_of_tokens(std::max(request_tokens, std::ssize(tokens)));
  return learning_->looked_up({.keys = keys, .blocks = blocks});
}

PrefixMatch RadixTree::match(std::span<const Token> tokens, const Namespace& name_space, std::span<KvIndex> kv_out,
                             Lookup lookup, std::int64_t request_tokens) {
  const auto page = static_cast<std::size_t>(options_.page_size);
  Walk found = walk(tokens.data(), static_cast<std::uint32_t>(tokens.size() / page), names_.find(name_space));
  refuse_wrong_states(found);
  // A lookup splits too (12). Without a node at hand the edge stays whole: the answer is the same.
  std::uint32_t kv_node = found.node;
  if (found.cut_node != none && node_at_hand()) kv_node = split(found.cut_node, found.cut_pages);
  PrefixMatch match = describe(found, kv_node);
  if (learning_ && lookup == Lookup::request) {
    if (!told_time_) learning_->set_time(++now_s_);
    if (positions_) match.past = past_of(tokens, request_tokens, name_space, found);
    if (!match.node.is_root()) learning_->used(match.node.index);
  }
  tick_ += found.answer_depth;
  std::uint64_t tick = tick_;
  std::uint32_t begin = found.answer_pages;
  std::uint32_t depth = found.answer_depth;
  PathAhead below;
  for (std::uint32_t at = found.answer; at != root; at = nodes_[at].parent, --depth) {
    RadixNode& node = nodes_[at];
    begin -= node.pages;
    if (!kv_out.empty())
      std::memcpy(kv_out.data() + begin * page, arena_.kv(node.first_page), sizeof(KvIndex) * node.pages * page);
    node.tick = tick--;
    note_ahead(at, depth, below);
  }
  path_was_used(found.answer);
  if (found.answer != root) touch_state(found.answer);
  return match;
}

SlotId RadixTree::take_slot_beside(std::uint32_t answer, Freed& freed) {
  SlotId slot;
  if (pool_.allocate({&slot, 1})) return slot;
  const bool state = lock(answer);
  evict({.tokens = 0, .states = 1}, freed);
  unlock(id(answer), state);
  return pool_.allocate({&slot, 1}) ? slot : SlotId{};
}

bool RadixTree::lock(std::uint32_t node) noexcept {
  for (std::uint32_t at = node; at != root; at = nodes_[at].parent) {
    RadixNode& entry = nodes_[at];
    if (entry.full_lock++ > 0) continue;
    sizes_.evictable_tokens -= tokens_of(entry.pages);
    sizes_.protected_tokens += tokens_of(entry.pages);
  }
  if (nodes_[node].slot < 0) return false;
  const SlotId slot{nodes_[node].slot};
  pool_.lock(slot);
  if (pool_.lock_count(slot) == 1) {
    --sizes_.evictable_states;
    ++sizes_.protected_states;
  }
  return true;
}

void RadixTree::unlock(NodeId node, bool state) noexcept {
  if (!contains(node)) return;  // forgotten by reset(): nothing else removes a locked node
  if (state) {
    const SlotId slot{nodes_[node.index].slot};
    pool_.unlock(slot);
    if (pool_.lock_count(slot) == 0) {
      ++sizes_.evictable_states;
      --sizes_.protected_states;
      states_.offer_again(states(), static_cast<std::uint32_t>(slot.value()));
    }
  }
  for (std::uint32_t at = node.index; at != root; at = nodes_[at].parent) {
    RadixNode& entry = nodes_[at];
    if (--entry.full_lock > 0) continue;
    sizes_.evictable_tokens += tokens_of(entry.pages);
    sizes_.protected_tokens -= tokens_of(entry.pages);
    if (entry.children == 0) add_candidate(at);
  }
}

std::size_t RadixTree::bookkeeping_bytes() const noexcept {
  return node_capacity_ * sizeof(RadixNode) + leaves_.bytes() + bare_.bytes() + children_.bytes() +
         path_pages_.size() * sizeof(std::uint32_t) + (learning_ ? learning_->bytes() : 0) +
         (positions_ ? positions_->bytes() : 0);
}

}  // namespace stateport::detail
