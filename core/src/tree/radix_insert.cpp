// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include <xxhash.h>

#include "tree/radix_tree.hpp"

namespace stateport::detail {

StateTag RadixTree::state_tag(std::span<const Token> tokens, const Namespace& name_space) const noexcept {
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(tokens.data(), tokens.size() * sizeof(Token), namespace_seed(name_space));
  return {static_cast<std::int64_t>(tokens.size()), {{hash.high64, hash.low64}}, options_.layout_fingerprint};
}

void RadixTree::check_new_indices(std::span<const KvIndex> kv) {
  const KvIndex together = std::accumulate(kv.begin(), kv.end(), KvIndex{0}, std::bit_or());
  if (together < 0) require(false, "kv", *std::ranges::min_element(kv), "must not be negative");
  if (options_.kv_indices == 0) return;
  for (const KvIndex index : kv) {
    require(index < options_.kv_indices, "kv", index, "is beyond kv_indices");
    require(!owned_index(index), "kv", index, "is owned by the tree");
  }
  // Marked while looked at, so that an index named twice is found; the marks go in either case.
  std::size_t marked = 0;
  while (marked < kv.size() && !owned_index(kv[marked])) own_indices(kv.subspan(marked++, 1), true);
  own_indices(kv.first(marked), false);
  require(marked == kv.size(), "kv", marked < kv.size() ? kv[marked] : 0, "is named twice");
}

bool RadixTree::owned_index(KvIndex index) const noexcept {
  const auto at = static_cast<std::size_t>(index);
  return (owned_indices_[at / 64] >> (at % 64) & 1U) != 0;
}

void RadixTree::check_insert(const PrefixInsert& prefix, std::uint32_t cut_tokens, const Walk& walk) {
  require(prefix.prev_tokens <= tokens_of(walk.pages), "prev_tokens", prefix.prev_tokens,
          "is more than the tree holds: keep the lock from match to insert");
  const auto prev = static_cast<std::size_t>(prefix.prev_tokens);
  check_new_indices(prefix.kv.subspan(prev, cut_tokens - prev));
  if (!prefix.slot.valid()) return;
  // A deeper state on this node would be a wrong state (14).
  const TagCheck check =
      check_tag(pool_.tag(prefix.slot), state_tag(prefix.tokens.first(cut_tokens), prefix.name_space));
  if (check != TagCheck::match) {
    const std::string rule = "holds no state of these tokens' whole pages: " + std::string(stateport::name(check));
    require(false, "slot", prefix.slot, rule);
  }
}

void RadixTree::own_indices(std::span<const KvIndex> kv, bool own) noexcept {
  if (options_.kv_indices == 0) return;
  for (const KvIndex index : kv) {
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    std::uint64_t& word = owned_indices_[static_cast<std::size_t>(index) / 64];
    word = own ? word | bit : word & ~bit;
  }
}

void RadixTree::prepare_event(const PrefixInsert& prefix, const Walk& walk, std::uint32_t pages) {
  const auto page = static_cast<std::size_t>(options_.page_size);
  std::optional<std::uint32_t> parent;
  if (walk.cut_node != none)
    parent = nodes_[walk.cut_node].first_page + walk.cut_pages - 1;
  else if (walk.node != root)
    parent = nodes_[walk.node].first_page + nodes_[walk.node].pages - 1;
  events_.prepare(parent, prefix.tokens.first(pages * page).subspan(walk.pages * page), prefix.name_space,
                  arena_.capacity_pages());
}

void RadixTree::count_use(std::uint32_t node, const PrefixInsert& prefix) noexcept {
  RadixNode& entry = nodes_[node];
  if (!prefix.chunked && entry.hits < UINT32_MAX) ++entry.hits;
  entry.priority = std::max(entry.priority, prefix.priority);
}

std::uint32_t RadixTree::add_leaf(std::uint32_t parent, const PrefixInsert& prefix, std::uint32_t name_space,
                                  const Walk& found, std::uint32_t end_page) noexcept {
  const auto page = static_cast<std::size_t>(options_.page_size);
  const std::uint32_t leaf = take_node();
  RadixNode& node = nodes_[leaf];
  node.parent = parent;
  node.pages = end_page - found.pages;
  node.name_space = name_space;
  node.first_page = arena_.allocate(node.pages);
  node.hits = prefix.chunked ? 0 : 1;
  node.priority = prefix.priority;
  const auto tokens = prefix.tokens.subspan(found.pages * page, node.pages * page);
  const auto kv = prefix.kv.subspan(found.pages * page, node.pages * page);
  std::ranges::copy(tokens, arena_.tokens(node.first_page));
  std::ranges::copy(kv, arena_.kv(node.first_page));
  own_indices(kv, true);
  children_.insert(found.missing_child ? *found.missing_child : child_hash(leaf), leaf);
  if (nodes_[parent].children++ == 0 && parent != root && listed(parent)) leaves_.erase(leaves(), parent);
  if (parent == root) names_.add_child(name_space);
  sizes_.evictable_tokens += tokens_of(node.pages);
  if (learning_) path_pages_[leaf] = end_page;
  if (positions_) name_positions(leaf, prefix);
  node.tick = node.created = ++tick_;
  if (draws())
    bare_.offer(bare_leaves(), leaf);
  else
    leaves_.offer_newest(leaves(), leaf);
  return leaf;
}

bool RadixTree::adopt(std::uint32_t node, SlotId slot) noexcept {
  RadixNode& entry = nodes_[node];
  if (entry.slot >= 0) {
    touch_state(node);
    return false;
  }
  if (!slot.valid()) return false;
  entry.slot = slot.value();
  pool_.set_owner(slot, static_cast<std::int32_t>(node));
  ++sizes_.evictable_states;
  touch_state(node);
  states_.offer(states(), static_cast<std::uint32_t>(slot.value()));
  if (draws() && is_victim_leaf(node)) add_candidate(node);
  leaves_.rank_again(leaves(), node);
  return true;
}

void RadixTree::tell_kept(std::uint32_t node, const PrefixInsert& prefix, bool known) noexcept {
  const auto tokens = static_cast<std::int64_t>(prefix.tokens.size());
  const bool at_end = !prefix.chunked && prefix.request_tokens <= tokens;
  const bool has_state = nodes_[node].slot >= 0;
  if (!at_end && !has_state) return;
  KeptFacts kept{.index = node,
                 .has_state = has_state,
                 .at = at_end  ? KeptAt::end
                       : known ? KeptAt::branch
                               : KeptAt::rung,
                 .past = prefix.past,
                 .hint = prefix.hint};
  if (positions_) {
    const std::uint32_t position = positions_->count(path_pages_[node]);
    if (position > 0) kept.key = positions_->key(position_page(node, position));
    kept.depth_blocks = static_cast<std::int32_t>(position);
    kept.prompt_blocks = positions_->count_of_tokens(std::max(prefix.request_tokens, tokens));
  }
  learning_->kept(kept);
}

void RadixTree::cap_path(std::uint32_t tail, Freed& freed) {
  path_.clear();
  for (std::uint32_t at = tail; at != root; at = nodes_[at].parent)
    if (nodes_[at].slot >= 0) path_.push_back(at);
  EvictResult dropped;
  auto surplus = static_cast<std::int64_t>(path_.size()) - options_.max_states_per_path;
  // Shallowest first, not the tail; forks and locked states are spared and count all the same (26).
  for (std::size_t i = path_.size(); surplus > 0 && i > 1; --i) {
    const std::uint32_t node = path_[i - 1];
    if (nodes_[node].children != 1 || pool_.lock_count(SlotId{nodes_[node].slot}) > 0) continue;
    remove_state(node, freed, dropped);
    --surplus;
  }
}

InsertResult RadixTree::insert(const PrefixInsert& prefix, Freed& freed) {
  const auto page = static_cast<std::size_t>(options_.page_size);
  const auto pages = static_cast<std::uint32_t>(prefix.tokens.size() / page);
  if (pages == 0) return {.node = id(root), .prefix_tokens = 0, .state_exists = true};
  const Walk found = walk(prefix.tokens.data(), pages, names_.find(prefix.name_space));
  check_insert(prefix, static_cast<std::uint32_t>(pages * page), found);

  // All that can fail comes before the first change.
  if (live_nodes_ + spare_nodes + 3 > node_capacity_) reserve_nodes(2 * node_capacity_);
  if (found.pages < pages) arena_.reserve_run(pages - found.pages);
  if (positions_) positions_->reserve(arena_.capacity_pages(), pages);
  const bool tell = events_.is_on() && found.pages < pages;
  if (tell) prepare_event(prefix, found, pages);
  const std::int64_t prefix_tokens = tokens_of(found.pages);
  const auto duplicates = prefix.kv.subspan(static_cast<std::size_t>(prefix.prev_tokens),
                                            static_cast<std::size_t>(prefix_tokens - prefix.prev_tokens));
  const std::uint32_t name_space = names_.find_or_add(prefix.name_space);
  if (options_.max_states_per_path >= 0) path_.reserve(found.depth + 2);
  freed.kv.insert(freed.kv.end(), duplicates.begin(), duplicates.end());

  for (std::uint32_t at = found.node; at != root; at = nodes_[at].parent) count_use(at, prefix);
  touch_path(found.node, found.depth);
  std::uint32_t end = found.node;
  if (found.cut_node != none) {
    end = split(found.cut_node, found.cut_pages);
    count_use(end, prefix);
  }
  if (found.pages < pages)
    end = add_leaf(end, prefix, name_space, found, pages);
  else
    touch_node(end, ++tick_);
  const bool had_state = nodes_[end].slot >= 0;
  if (adopt(end, prefix.slot) && options_.max_states_per_path >= 0) cap_path(end, freed);
  if (learning_) tell_kept(end, prefix, found.pages == pages);
  if (tell)
    events_.stored(nodes_[end].first_page, prefix.tokens.first(pages * page).subspan(found.pages * page),
                   prefix.name_space);
  return {.node = id(end), .prefix_tokens = prefix_tokens, .state_exists = had_state};
}

}  // namespace stateport::detail
