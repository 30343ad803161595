// SPDX-License-Identifier: Apache-2.0
// Arguments are checked here; the work is done by detail::RadixTree.
#include <stateport/core/tree/prefix_tree.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"
#include "tree/radix_tree.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <string>
#include <utility>

namespace stateport {
namespace {

constexpr std::size_t max_key_tokens = INT32_MAX;

PrefixTreeOptions checked(PrefixTreeOptions options) {
  require(options.page_size >= 1, "page_size", options.page_size, "must be at least 1");
  require(options.chunk_size >= 1, "chunk_size", options.chunk_size, "must be at least 1");
  require(options.slots >= 0, "slots", options.slots, "must not be negative");
  require(options.max_states_per_path >= -1, "max_states_per_path", options.max_states_per_path,
          "must be a limit, or -1 for none");
  check_memory_cost(options.memory);
  require(options.position_tokens >= 1, "position_tokens", options.position_tokens, "must be at least 1");
  require(options.kv_indices >= 0 && options.kv_indices <= INT32_MAX, "kv_indices", options.kv_indices,
          "must be a number of 32-bit indices, or 0 for unknown");
  return options;
}

void check_key(std::span<const Token> tokens) {
  require(tokens.size() <= max_key_tokens, "tokens", static_cast<std::int64_t>(tokens.size()), "is too long");
}

void check_lookup(std::span<const Token> tokens, std::span<KvIndex> kv_out) {
  check_key(tokens);
  require(kv_out.empty() || kv_out.size() >= tokens.size(), "kv_out", static_cast<std::int64_t>(kv_out.size()),
          "must be empty or have room for every token");
}

/// The pool refuses slots that are free or out of range.
void check_callers(const SlotPool& pool, SlotId slot, std::string_view argument) {
  require(pool.owner(slot) == SlotPool::caller, argument, slot, "is owned by a node of the tree");
}

void check_callers_or_none(const SlotPool& pool, SlotId slot, std::string_view argument) {
  require(slot.valid() || slot == SlotId{}, argument, slot, "is neither a slot nor none");
  if (slot.valid()) check_callers(pool, slot, argument);
}

void check_request_tokens(std::int64_t tokens) {
  require(tokens >= 0 && tokens <= INT32_MAX, "request_tokens", tokens, "must be a number of tokens, or 0 for unknown");
}

/// The facts about the request that a LearningPolicy observes.
void check_told(const PromptFacts& prompt, double now_s) {
  check_hint(prompt.hint);
  const double looked_up_s = prompt.past.looked_up_s.value_or(0);
  require(looked_up_s >= 0 && looked_up_s <= now_s, "past.looked_up_s", looked_up_s,
          "must be a time of the clock, up to now");
  require(prompt.past.known_blocks >= 0, "past.known_blocks", prompt.past.known_blocks, "must not be negative");
  check_request_tokens(prompt.tokens);
}

}  // namespace

void PrefixLock::release() noexcept {
  if (const auto tree = tree_.lock()) tree->unlock(node_);
  tree_.reset();
  node_ = {};
}

PrefixTree::PrefixTree(Options options) : impl_(std::make_shared<detail::RadixTree>(checked(std::move(options)))) {}
PrefixTree::~PrefixTree() = default;
PrefixTree::PrefixTree(PrefixTree&&) noexcept = default;
PrefixTree& PrefixTree::operator=(PrefixTree&&) noexcept = default;

PrefixMatch PrefixTree::match(std::span<const Token> tokens, const Namespace& name_space, std::span<KvIndex> kv_out,
                              Lookup lookup, std::int64_t request_tokens) {
  check_lookup(tokens, kv_out);
  check_request_tokens(request_tokens);
  return impl_->match(tokens, name_space, kv_out, lookup, request_tokens);
}

PrefixMatch PrefixTree::peek(std::span<const Token> tokens, const Namespace& name_space) const {
  check_key(tokens);
  return detail::peek(*impl_, tokens, name_space);
}

void PrefixTree::set_time(double now_s) {
  require(std::isfinite(now_s) && now_s >= impl_->now_s(), "now_s", now_s,
          "must be finite and not before the last time");
  impl_->set_time(now_s);
}

PrefixMatch PrefixTree::match_with_live_slot(std::span<const Token> tokens, const Namespace& name_space,
                                             std::span<KvIndex> kv_out, SlotId live_slot, Freed& freed,
                                             std::int64_t request_tokens) {
  check_lookup(tokens, kv_out);
  check_request_tokens(request_tokens);
  check_callers_or_none(slots(), live_slot, "live_slot");
  PrefixMatch hit = impl_->match(tokens, name_space, kv_out, Lookup::request, request_tokens);
  if (hit.node.is_root()) return hit;
  if (!live_slot.valid()) live_slot = impl_->take_slot_beside(hit.node.index, freed);
  if (live_slot.valid()) {
    hit.live_slot = live_slot;
    return hit;
  }
  return {.node = impl_->shape().id(detail::RadixTree::root),
          .walked_tokens = hit.walked_tokens,
          .kv_node = hit.kv_node,
          .branching_position = hit.branching_position,
          .lost = LostHit::locked_pool,
          .past = hit.past};
}

InsertResult PrefixTree::insert(const PrefixInsert& prefix, Freed& freed) {
  check_key(prefix.tokens);
  const auto page = static_cast<std::size_t>(page_size());
  const std::size_t cut = prefix.tokens.size() / page * page;
  require(prefix.kv.size() >= cut, "kv", static_cast<std::int64_t>(prefix.kv.size()),
          "must have an index for every token of the whole pages");
  require(prefix.prev_tokens >= 0 && prefix.prev_tokens % page_size() == 0, "prev_tokens", prefix.prev_tokens,
          "must be whole pages");
  if (impl_->options().policy->learning() != nullptr) check_told(prefix.prompt, impl_->now_s());
  check_callers_or_none(slots(), prefix.slot, "slot");
  return impl_->insert(prefix, freed);
}

EvictResult PrefixTree::evict(EvictDemand demand, Freed& freed, const std::function<bool(KvIndex)>& chosen) {
  require(demand.tokens >= 0, "demand.tokens", demand.tokens, "must not be negative");
  require(demand.states >= 0, "demand.states", demand.states, "must not be negative");
  require(demand.bytes >= 0, "demand.bytes", demand.bytes, "must not be negative");
  EvictResult result;
  const std::int64_t states = sizes().total_states();
  try {
    impl_->evict(demand, freed, result, chosen);
  } catch (const std::bad_alloc&) {
    // A state whose slot the listener kept has gone, too, and is not counted.
    if (result.tokens == 0 && sizes().total_states() == states) throw;
  }
  return result;
}

std::size_t PrefixTree::peek_victims(VictimKind kind, std::span<Victim> out) {
  require(kind <= VictimKind::bytes, "kind", static_cast<std::int64_t>(kind), "is no kind of demand");
  return impl_->peek_victims(kind, out);
}

void PrefixTree::drop_state(NodeId node, Freed& freed) {
  const NodeInfo info = this->node(node);
  require(info.slot.valid(), "node", node.index, "has no state");
  require(info.state_lock == 0, "node", node.index, "has a locked state");
  impl_->drop_state(node.index, &freed);
}

void PrefixTree::count_unlocked_pages(std::int32_t extent_pages, std::span<std::int32_t> by_extent) const {
  require(extent_pages >= 1, "extent_pages", extent_pages, "must be at least 1");
  detail::count_unlocked_pages(*impl_, extent_pages, by_extent);
}

void PrefixTree::move_pages(const std::function<std::int32_t(std::int32_t)>& new_page) {
  impl_->move_pages(new_page);
}

EvictResult PrefixTree::evict_closed_states(Freed& freed) {
  EvictResult result;
  const SlotPool& pool = slots();
  for (std::int32_t i = 0; i < pool.capacity_slots(); ++i) {
    const SlotId slot{i};
    if (!pool.is_closed(slot) || pool.is_free(slot) || pool.owner(slot) == SlotPool::caller ||
        pool.lock_count(slot) > 0)
      continue;
    impl_->drop_state(static_cast<std::uint32_t>(pool.owner(slot)), &freed);
    ++result.states;
  }
  return result;
}

EvictResult PrefixTree::forget(const std::function<bool(std::uint64_t)>& chosen, Freed& freed, NodeId end) {
  require(contains(end), "end", end.index, "is not in the tree, or has been evicted");
  EvictResult result;
  const detail::RadixNodes& nodes = impl_->shape();
  const auto forget = [&](std::uint32_t node) {
    if (nodes[node].pages > 0 && chosen(nodes.names().tag(nodes[node].name_space))) impl_->forget(node, freed, result);
  };
  if (!end.is_root()) forget(end.index);
  for (std::uint32_t node = 1; end.is_root() && node < nodes.size(); ++node) forget(node);
  return result;
}

PrefixLock PrefixTree::lock(NodeId node) {
  require(contains(node), "node", node.index, "is not in the tree, or has been evicted");
  if (node.is_root()) return {};
  impl_->lock(node.index);
  return {impl_, node};
}

void PrefixTree::touch(NodeId node) {
  require(impl_->shape().contains(node), "node", node.index, "is not in the tree, or has been evicted");
  impl_->touch(node.index);
}

void PrefixTree::touch(std::span<const NodeId> nodes) {
  detail::for_each_prefetched(
      nodes.size(), [&](std::size_t i) { impl_->shape().fetch(nodes[i]); },
      [&](std::size_t i) {
        require(impl_->shape().contains(nodes[i]), "nodes", nodes[i].index, "is not in the tree, or has been evicted");
      });
  impl_->touch(nodes);
}

bool PrefixTree::allocate_slots(std::span<SlotId> out) noexcept {
  return impl_->pool().allocate(out);
}

void PrefixTree::release_slots(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) check_callers(impl_->pool(), slot, "slots");
  impl_->pool().release(slots);
}

void PrefixTree::close_slots(std::span<const NumberRange> ranges) {
  impl_->pool().close(ranges);
}

void PrefixTree::open_slots(std::int32_t first, std::int32_t count) {
  impl_->pool().open(first, count);
}

StateTag PrefixTree::state_tag(std::span<const Token> tokens, const Namespace& name_space) const {
  return detail::state_tag(tokens, name_space, impl_->options());
}

void PrefixTree::tag_slot(SlotId slot, const StateTag& tag) {
  check_callers(slots(), slot, "slot");
  impl_->pool().set_tag(slot, tag);
}

void PrefixTree::drop_state(SlotId slot) {
  const bool is_trees = slot.valid() && slot.value() < slots().capacity_slots() && !slots().is_free(slot) &&
                        slots().owner(slot) != SlotPool::caller;
  require(is_trees, "slot", slot, "holds no state of the tree");
  impl_->drop_state(static_cast<std::uint32_t>(slots().owner(slot)), nullptr);
}

const SlotPool& PrefixTree::slots() const noexcept {
  return impl_->pool();
}

TagCheck PrefixTree::check_restore(const PrefixMatch& hit) const noexcept {
  if (!hit.slot.valid() || hit.slot.value() >= slots().capacity_slots() || slots().is_free(hit.slot))
    return TagCheck::empty;
  return check_tag(slots().tag(hit.slot), hit.tag);
}

bool PrefixTree::contains(NodeId node) const noexcept {
  return impl_->shape().contains(node);
}
const TreeSizes& PrefixTree::sizes() const noexcept {
  return impl_->sizes();
}
std::size_t PrefixTree::node_count() const noexcept {
  return impl_->shape().live();
}
std::size_t PrefixTree::bookkeeping_bytes() const noexcept {
  return impl_->bookkeeping_bytes();
}
std::int32_t PrefixTree::page_size() const noexcept {
  return impl_->options().page_size;
}
std::int64_t PrefixTree::grid() const noexcept {
  return impl_->grid();
}
std::int64_t PrefixTree::track_step() const noexcept {
  return std::max(impl_->options().chunk_size, impl_->options().page_size);
}
void PrefixTree::reset(Freed& freed) {
  impl_->reset(freed);
}
NodeInfo PrefixTree::node(NodeId node) const {
  require(contains(node) && !node.is_root(), "node", node.index, "is not in the tree, or has been evicted");
  return impl_->node(node.index, impl_->shape().end_page(node.index));
}
std::vector<NodeInfo> PrefixTree::nodes() const {
  return detail::nodes_of(*impl_);
}
std::string PrefixTree::pretty_print() const {
  return detail::pretty_print(nodes());
}
void PrefixTree::check_invariants() const {
  impl_->check_invariants();
}

}  // namespace stateport
