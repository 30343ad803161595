// SPDX-License-Identifier: Apache-2.0
#include "caches/tree_cache.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>

namespace stateport::replay {
namespace {

/// An identity stands for all tokens of its block; the tree sees it as a page of two.
constexpr std::int32_t tokens_per_identity = 2;

constexpr std::size_t token_count(std::int32_t blocks) {
  return static_cast<std::size_t>(blocks) * tokens_per_identity;
}

constexpr std::int32_t block_count(std::int64_t tokens) {
  return static_cast<std::int32_t>(tokens / tokens_per_identity);
}

/// The same cost, of tokens as the tree counts them.
ComputeCost cost_in_tree(const ComputeCost& cost, std::int64_t block_size_tokens) {
  const double tokens = static_cast<double>(block_size_tokens) / tokens_per_identity;
  return {.linear = cost.linear * tokens, .quadratic = cost.quadratic * tokens * tokens};
}

PrefixTree::Options tree_options(const TreeCacheOptions& options) {
  constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max() / tokens_per_identity;
  require(options.blocks >= 1 && options.blocks <= most, "blocks", options.blocks, "1 to 2^30 - 1");
  require(options.slots >= 1, "slots", options.slots, "at least 1");
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "at least 1");
  return {
      .page_size = tokens_per_identity,
      .slots = options.slots,
      .layout_fingerprint = options.layout_fingerprint,
      .eviction = options.eviction,
      .eviction_options = {.benefit = cost_in_tree(options.benefit, options.block_size_tokens),
                           .positions = options.positions,
                           .samples = options.samples},
      .memory = {.state_bytes = options.state_bytes,
                 .kv_bytes_per_token = options.kv_bytes_per_token * options.block_size_tokens / tokens_per_identity},
      .position_tokens = tokens_per_identity,
      .kv_indices = std::int64_t{options.blocks} * tokens_per_identity,
      .reserve_nodes = static_cast<std::size_t>(options.slots),
      .reserve_tokens = token_count(options.blocks)};
}

}  // namespace

TreeCache::TreeCache(const TreeCacheOptions& options)
    : options_(options), tree_(tree_options(options)), used_s_(static_cast<std::size_t>(options.slots), 0) {
  require(options.budget_bytes >= 0, "budget_bytes", options.budget_bytes, "must not be negative");
  free_blocks_.reserve(static_cast<std::size_t>(options.blocks));
  for (std::int32_t block = options.blocks; block > 0; --block) free_blocks_.push_back(block - 1);
}

void TreeCache::prepare(std::span<const BlockIdentity> identities, std::int64_t input_tokens) {
  input_tokens_ = input_tokens;
  tokens_.clear();
  for (const BlockIdentity identity : identities) {
    tokens_.push_back(static_cast<Token>(identity & 0xffff'ffffU));
    tokens_.push_back(static_cast<Token>(identity >> 32));
  }
}

Hit TreeCache::begin() {
  const auto blocks = block_count(std::ssize(tokens_));
  // The forward needs a token.
  const auto usable = std::min(blocks, static_cast<std::int32_t>((input_tokens_ - 1) / options_.block_size_tokens));
  const PrefixMatch match = tree_.match(prefix(usable), {}, {}, Lookup::request, std::ssize(tokens_));
  past_ = match.past;
  Hit hit{.matched_blocks = block_count(match.walked_tokens), .lost = match.lost};
  if (usable < blocks && hit.matched_blocks == usable) {
    const PrefixMatch longer = tree_.match(tokens_, {}, {}, Lookup::again);
    hit.matched_blocks = block_count(longer.walked_tokens);
    if (longer.tokens > match.tokens) hit.lost = LostHit::too_few_tokens;
  }
  matched_ = hit.matched_blocks;
  pin(match.node);
  take_blocks();
  if (!match.slot.valid()) return hit;
  require_invariant(tree_.check_restore(match) == TagCheck::match, "TreeCache", "a pinned state lost its slot");
  hit.hit_blocks = block_count(match.tokens);
  hit.slot = match.slot;
  used_s_[match.slot.index()] = now_s_;
  return hit;
}

/// A match names the node of the state. The node where the KV ends, which is to be pinned too, is what an insert of
/// nothing new answers: it reads no KV index below prev_tokens.
void TreeCache::pin(NodeId state_node) {
  state_lock_ = tree_.lock(state_node);
  in_tree_ = matched_;
  kv_.resize(token_count(matched_));
  const InsertResult end = tree_.insert({.tokens = prefix(matched_),
                                         .kv = kv_,
                                         .prev_tokens = static_cast<std::int64_t>(token_count(matched_)),
                                         .chunked = true,
                                         .prompt = {.tokens = std::ssize(tokens_) + 1, .past = past_}},
                                        freed_);
  path_lock_ = tree_.lock(end.node);
}

/// Finds room for the blocks that were not matched; what the whole pool cannot hold stays uncached.
void TreeCache::take_blocks() {
  const std::int32_t wanted = block_count(static_cast<std::int64_t>(tokens_.size())) - matched_;
  const auto free_blocks = [this] { return static_cast<std::int32_t>(free_blocks_.size()); };
  if (wanted > free_blocks())
    evict({.tokens = static_cast<std::int64_t>(token_count(wanted - free_blocks())), .states = 0});
  const std::int32_t taken = std::min(wanted, free_blocks());
  uncached_blocks_ += wanted - taken;
  cached_ = matched_ + taken;
  for (std::int32_t i = 0; i < taken; ++i) {
    const KvIndex first = free_blocks_.back() * tokens_per_identity;
    free_blocks_.pop_back();
    for (KvIndex token = 0; token < tokens_per_identity; ++token) kv_.push_back(first + token);
  }
}

void TreeCache::place(std::span<const std::int32_t> depths, std::vector<Checkpoint>& kept) {
  kept.clear();
  for (const std::int32_t depth : depths) {
    // A state that this request could not use (it would have left no token to the forward) needs no second copy.
    const bool has_state = depth == matched_ && path_lock_.holds_state();
    if (depth > cached_)
      ++dropped_checkpoints_;
    else if (!has_state)
      kept.push_back({.depth_blocks = depth});
  }
  take_slots(kept);
  for (const Checkpoint& checkpoint : kept) {
    tree_.tag_slot(checkpoint.slot, tree_.state_tag(prefix(checkpoint.depth_blocks)));
    used_s_[checkpoint.slot.index()] = now_s_;
  }
  checkpoints_ = kept;
}

void TreeCache::take_slots(std::vector<Checkpoint>& kept) {
  const auto missing = [&] { return static_cast<std::ptrdiff_t>(kept.size()) - tree_.slots().free_slots(); };
  if (missing() > 0) evict({.tokens = 0, .states = missing()});
  if (missing() > 0) {
    // The deepest states serve the requests that continue this one.
    const std::ptrdiff_t dropped = missing();
    dropped_checkpoints_ += dropped;
    kept.erase(kept.begin(), kept.begin() + dropped);
  }
  taken_slots_.resize(kept.size());
  const bool taken = tree_.allocate_slots(taken_slots_);
  require_invariant(taken, "TreeCache", "the tree gave less than it said it has");
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i].slot = taken_slots_[i];
}

void TreeCache::finish() {
  for (const Checkpoint& checkpoint : checkpoints_) insert(checkpoint.depth_blocks, checkpoint.slot);
  // The tree also hears of an end that needs no new state.
  if (checkpoints_.empty() || checkpoints_.back().depth_blocks < cached_) insert(cached_, {});
  checkpoints_.clear();
  if (options_.budget_bytes > 0 && options_.spares_request) enforce_budget();
  path_lock_.release();
  state_lock_.release();
  if (options_.budget_bytes > 0 && !options_.spares_request) enforce_budget();
}

void TreeCache::enforce_budget() {
  const CacheCounts now = counts();
  const std::int64_t used = now.resident_blocks * options_.kv_bytes_per_token * options_.block_size_tokens +
                            now.resident_states * options_.state_bytes;
  if (used > options_.budget_bytes) evict({.bytes = used - options_.budget_bytes});
}

void TreeCache::insert(std::int32_t depth_blocks, SlotId slot) {
  const std::size_t known = token_count(std::min(in_tree_, depth_blocks));
  const InsertResult result = tree_.insert({.tokens = prefix(depth_blocks),
                                            .kv = kv_,
                                            .slot = slot,
                                            .prev_tokens = static_cast<std::int64_t>(known),
                                            .prompt = {.tokens = std::ssize(tokens_), .past = past_, .hint = hint_}},
                                           freed_);
  require_invariant(freed_.kv.empty() && !(slot.valid() && result.state_exists), "TreeCache",
                    "the tree already had what this request made");
  in_tree_ = std::max(in_tree_, depth_blocks);
}

void TreeCache::evict(EvictDemand demand) {
  const EvictResult result = tree_.evict(demand, freed_);
  state_evictions_ += result.states;
  block_evictions_ += block_count(result.tokens);
  for (const SlotId slot : freed_.slots) eviction_ages_.add(now_s_ - used_s_[slot.index()]);
  for (const KvIndex index : freed_.kv)
    if (index % tokens_per_identity == 0) free_blocks_.push_back(index / tokens_per_identity);
  freed_.clear();
}

std::span<const Token> TreeCache::prefix(std::int32_t depth_blocks) const {
  return std::span(tokens_).first(token_count(depth_blocks));
}

CacheCounts TreeCache::counts() const {
  return {.state_evictions = state_evictions_,
          .block_evictions = block_evictions_,
          .dropped_checkpoints = dropped_checkpoints_,
          .uncached_blocks = uncached_blocks_,
          .resident_blocks = options_.blocks - static_cast<std::int64_t>(free_blocks_.size()),
          .resident_states = options_.slots - tree_.slots().free_slots(),
          .victims = state_evictions_,
          .metadata_bytes = static_cast<std::int64_t>(tree_.bookkeeping_bytes())};
}

void TreeCache::check_invariants() const {
  tree_.check_invariants();
  std::vector<bool> known(static_cast<std::size_t>(options_.blocks), false);
  const auto count = [&](std::int32_t block) {
    require_invariant(!known[static_cast<std::size_t>(block)], "TreeCache", "a block is free or in use twice");
    known[static_cast<std::size_t>(block)] = true;
  };
  for (const std::int32_t block : free_blocks_) count(block);
  for (const NodeInfo& node : tree_.nodes())
    for (std::size_t i = 0; i < node.kv.size(); i += tokens_per_identity) count(node.kv[i] / tokens_per_identity);
  // The blocks that a request holds before finish() are neither.
  const std::int64_t in_hand = cached_ - in_tree_;
  require_invariant(std::ranges::count(known, false) == in_hand, "TreeCache", "a block got lost");
}

}  // namespace stateport::replay
