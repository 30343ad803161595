// SPDX-License-Identifier: Apache-2.0
#include "containers/reserve_amortised.hpp"
#include "tree/radix_tree.hpp"

#include <xxhash.h>

#include <algorithm>
#include <string>

namespace stateport::detail {
namespace {

void count_use(RadixNode& node, const PrefixInsert& prefix) noexcept {
  if (!prefix.chunked && node.hits < UINT32_MAX) ++node.hits;
  node.priority = std::max(node.priority, prefix.priority);
}

/// The last page of the arena that `walk` matched; none if it matched nothing.
std::optional<std::uint32_t> last_page(const RadixNodes& nodes, const RadixWalk& walk) noexcept {
  if (walk.cut_node != RadixNodes::none) return nodes[walk.cut_node].first_page + walk.cut_pages - 1;
  if (walk.node != RadixNodes::root) return nodes[walk.node].first_page + nodes[walk.node].pages - 1;
  return std::nullopt;
}

void read_kv(const RadixNodes& nodes, std::uint32_t end, std::uint32_t pages, std::span<KvIndex> out) {
  for (std::uint32_t at = end; at != RadixNodes::root; at = nodes[at].parent) {
    pages -= nodes[at].pages;
    std::ranges::copy(nodes.kv(at), out.begin() + nodes.tokens_of(pages));
  }
}

}  // namespace

StateTag state_tag(std::span<const Token> tokens, const Namespace& name_space,
                   const PrefixTreeOptions& options) noexcept {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(tokens.data(), tokens.size() * sizeof(Token),
                                                   namespace_seed(name_space, options.hash_seed));
  return {static_cast<std::int64_t>(tokens.size()), {{hash.high64, hash.low64}}, options.layout_fingerprint};
}

void RadixTree::check_insert(const PrefixInsert& prefix, std::uint32_t cut_tokens, const RadixWalk& walk) {
  require(prefix.prev_tokens <= nodes_.tokens_of(walk.pages), "prev_tokens", prefix.prev_tokens,
          "is more than the tree holds: keep the lock from match to insert");
  const auto prev = static_cast<std::size_t>(prefix.prev_tokens);
  kv_.check_new(prefix.kv.subspan(prev, cut_tokens - prev));
  if (!prefix.slot.valid()) return;
  // A deeper state on this node would be a wrong state (14).
  const TagCheck check =
      check_tag(pool_.tag(prefix.slot), state_tag(prefix.tokens.first(cut_tokens), prefix.name_space, options_));
  if (check != TagCheck::match) {
    const std::string rule = "holds no state of these tokens' whole pages: " + std::string(stateport::name(check));
    require(false, "slot", prefix.slot, rule);
  }
}

std::uint32_t RadixTree::add_pages(std::uint32_t parent, const PrefixInsert& prefix, const RadixWalk& found,
                                   std::uint32_t end_page) noexcept {
  const std::uint32_t name_space = nodes_.names().find_or_add(prefix.name_space, prefix.name_tag);
  if (parent != root && nodes_.listed(parent)) victims_.drop(parent);
  const auto begin = static_cast<std::size_t>(nodes_.tokens_of(found.pages));
  const auto count = static_cast<std::size_t>(nodes_.tokens_of(end_page)) - begin;
  std::span<const Token> tokens = prefix.tokens.subspan(begin, count);
  std::span<const KvIndex> kv = prefix.kv.subspan(begin, count);
  sizes_.evictable_tokens += static_cast<std::int64_t>(count);
  kv_.add(kv);
  for (std::optional<std::uint32_t> hash = found.missing_child; !tokens.empty(); hash.reset()) {
    parent = nodes_.add_leaf(parent, name_space, hash, tokens, kv);
    RadixNode& node = nodes_[parent];
    const auto kept = static_cast<std::size_t>(nodes_.tokens_of(node.pages));
    node.hits = prefix.chunked ? 0 : 1;
    node.priority = prefix.priority;
    if (history_) history_->added(parent, prefix);
    node.tick = node.created = ++tick_;
    if (events_.is_on()) events_.stored(node.first_page, node.pages, tokens.first(kept), prefix.name_space);
    tokens = tokens.subspan(kept);
    kv = kv.subspan(kept);
  }
  victims_.offer_new(parent);
  return parent;
}

void RadixTree::adopt(std::uint32_t node, SlotId slot) noexcept {
  // A lock on the node without a state holds this one (22).
  const std::int32_t locks = nodes_[node].state_locks();
  nodes_[node].slot = slot.value();
  pool_.set_owner(slot, static_cast<std::int32_t>(node));
  for (std::int32_t lock = 0; lock < locks; ++lock) pool_.lock(slot);
  ++(locks > 0 ? sizes_.protected_states : sizes_.evictable_states);
  victims_.add_state(node, slot, ++tick_);
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

void RadixTree::make_room(std::uint32_t pages, std::uint32_t new_pages) {
  const std::size_t nodes = std::min(nodes_.live() + spare_nodes + 3, nodes_max_);
  if (nodes > nodes_.capacity()) reserve_nodes(std::max(nodes, 2 * nodes_.capacity()));
  if (new_pages > 0) nodes_.reserve_run(new_pages);
  if (history_) history_->reserve(pages, nodes_.arena().capacity_pages());
  if (events_.is_on()) events_.reserve(new_pages, nodes_.arena().capacity_pages());
}

InsertResult RadixTree::insert(const PrefixInsert& prefix, Freed& freed) {
  const auto page = static_cast<std::size_t>(options_.page_size);
  const auto pages = static_cast<std::uint32_t>(prefix.tokens.size() / page);
  if (pages == 0) return {.node = nodes_.id(root), .prefix_tokens = 0, .state_exists = true};
  const RadixWalk found = nodes_.walk(prefix.tokens.data(), pages, nodes_.names().find(prefix.name_space), walked_);
  check_insert(prefix, static_cast<std::uint32_t>(pages * page), found);

  // All that can fail comes before the first change.
  make_room(pages, pages - found.pages);
  if (events_.is_on() && found.pages < pages)
    events_.prepare(last_page(nodes_, found), prefix.tokens.first(pages * page).subspan(found.pages * page),
                    prefix.name_space);
  const std::int64_t prefix_tokens = nodes_.tokens_of(found.pages);
  const auto duplicates = prefix.kv.subspan(static_cast<std::size_t>(prefix.prev_tokens),
                                            static_cast<std::size_t>(prefix_tokens - prefix.prev_tokens));
  if (options_.max_states_per_path >= 0) {
    reserve_amortised(path_, found.depth + 2);
    reserve_amortised(freed.slots, freed.slots.size() + found.depth + 2);
  }
  reserve_amortised(freed.kv, freed.kv.size() + duplicates.size());
  freed.kv.insert(freed.kv.end(), duplicates.begin(), duplicates.end());

  for (std::uint32_t at = found.node, depth = found.depth; at != root; at = nodes_[at].parent, --depth) {
    nodes_.fetch_above(depth, walked_);
    count_use(nodes_[at], prefix);
  }
  if (found.node != root) {
    raise_path(found.node, found.depth);
    path_was_used(found.node);
  }
  std::uint32_t end = found.node;
  if (found.cut_node != none) {
    end = split(found.cut_node, found.cut_pages);
    count_use(nodes_[end], prefix);
  }
  if (found.pages < pages)
    end = add_pages(end, prefix, found, pages);
  else
    victims_.touch(end, ++tick_);
  if (!prefix.kv_out.empty()) read_kv(nodes_, end, pages, prefix.kv_out);
  const bool had_state = nodes_[end].slot >= 0;
  if (had_state) {
    pool_.touch(SlotId{nodes_[end].slot}, ++tick_);
  } else if (prefix.slot.valid()) {
    adopt(end, prefix.slot);
    if (options_.max_states_per_path >= 0) cap_path(end, freed);
  }
  if (history_ && !prefix.spare) {
    history_->kept(end, prefix, found.pages == pages);
    victims_.rank_state_again(end);
  }
  return {.node = nodes_.id(end), .prefix_tokens = prefix_tokens, .state_exists = had_state};
}

}  // namespace stateport::detail
