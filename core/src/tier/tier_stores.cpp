// SPDX-License-Identifier: Apache-2.0
#include "tier/tier_stores.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace stateport::detail {

TierStores::TierStores(const TierSetup& setup, Residency& contents, Admission& admission)
    : contents_(contents),
      levels_(contents.levels()),
      nodes_(contents.nodes()),
      admission_(admission),
      groups_(setup.groups),
      writes_through_(setup.tiers.write_through) {
  // A place on the device may lose its content twice in one call, once to a load.
  const std::size_t states = 2 * setup.states * groups_;
  leaving_states_.reserve(states);
  incomplete_.reserve(states);
  leaving_kv_.reserve(2 * setup.device_blocks);
  if (writes_through_) {
    fresh_.reserve(states);
    to_write_.reserve(states);
  }
}

void TierStores::kv_stored(const PrefixHash& prefix, const PrefixHash& parent, std::int64_t tokens, std::int32_t block,
                           const NamespaceTag& tag) {
  // States alone need no KV, so that nothing has to be known of the blocks before them.
  const std::uint32_t node = nodes_.intern(prefix, contents_.states_alone() ? PrefixHash{} : parent, tokens);
  if (node == TierNode::none) return;
  nodes_[node].kv.in |= on_device;
  nodes_[node].kv_block = block;
  nodes_[node].tag = tag;
  nodes_[node].is_tagged = true;
  nodes_[node].is_forgotten = false;  // whoever stores it now has its name
  admission_.on_device_again(node, CacheContent::kv_block);
}

void TierStores::kv_lost(const PrefixHash& prefix) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == TierNode::none || (nodes_[node].kv.in & on_device) == 0) return;
  nodes_[node].kv.in &= below_device;
  leaving_kv_.push_back({node, nodes_[node].tokens});
  contents_.hold(node, CacheContent::kv_block);  // until flush()
}

void TierStores::kv_moved(std::span<const std::int32_t> moved_to) {
  for (std::uint32_t node = 0; node < nodes_.capacity(); ++node) {
    TierNode& entry = nodes_[node];
    if ((entry.kv.in & on_device) == 0 || entry.kv_block < 0) continue;
    if (const std::int32_t block = moved_to[static_cast<std::size_t>(entry.kv_block)]; block >= 0)
      entry.kv_block = block;
  }
}

void TierStores::state_stored(const PrefixHash& prefix, std::size_t group, SlotId slot) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == TierNode::none) return;
  TierNode& entry = nodes_[node];
  nodes_.slots(node)[group] = slot.value();
  entry.device_groups |= 1U << group;
  entry.made_in = call_;
  contents_.touch(node);
  if (std::cmp_less(std::popcount(entry.device_groups), groups_)) return;
  contents_.enter_device(node);
  if (writes_through_) fresh_.push_back(node);
  admission_.on_device_again(node, CacheContent::state);
}

void TierStores::state_lost(const PrefixHash& prefix, std::size_t group) {
  const std::uint32_t node = nodes_.find(prefix);
  if (node == TierNode::none) return;
  TierNode& entry = nodes_[node];
  entry.device_groups &= ~(1U << group);
  contents_.hold(node, CacheContent::state);  // until flush()
  if ((entry.state.in & on_device) == 0) return incomplete_.push_back(node);
  entry.state.in &= below_device;
  leaving_states_.push_back(node);
}

void TierStores::withdraw_state(const PrefixHash& prefix) {
  for (const Medium medium : levels_.tiers()) {
    const std::uint32_t node = nodes_.find(prefix);
    if (node == TierNode::none) return;
    nodes_[node].made_in = call_;
    if (nodes_[node].state.is_at(medium)) admission_.lost(node, CacheContent::state, medium);
  }
}

/// Begins a store into the tier. While the victims of the tier are still being moved down, the content goes down at
/// once: a long prompt needs more room than a tier keeps free. False: there is no room, or no place in the queue.
bool TierStores::store(std::uint32_t node, CacheContent content, Medium to) {
  if (!contents_.has_queue_room(content)) return false;
  const auto store_in = [&](Medium medium) {
    if (medium != to && content == CacheContent::state && !admission_.is_worth_it(medium, node)) return false;
    // The last state that needs this KV may be evicted to make room.
    return admission_.make_room(medium, contents_.bytes_of(content)) && nodes_[node].is_needed() &&
           contents_.begin(Transfer::Kind::store, node, content, Medium::device, medium);
  };
  for (std::optional<Medium> medium = to; medium; medium = levels_.below(*medium))
    if (contents_.item(node, content).is_at(*medium) || store_in(*medium)) return true;
  return false;
}

void TierStores::store_state(std::uint32_t node) {
  const auto tiers = levels_.tiers();
  const auto worthy = std::ranges::find_if(tiers, [&](Medium tier) { return admission_.is_worth_it(tier, node); });
  const Medium to = worthy == tiers.end() ? tiers.back() : *worthy;
  if (nodes_[node].state.is_kept(to)) return;
  TierUsage& usage = levels_[to].usage;
  if (nodes_[node].made_in == call_) {  // the copy that makes it is not enqueued yet
    ++usage.refused_images;
  } else if (worthy == tiers.end()) {
    ++usage.dropped_states;
  } else {
    const auto is_needed = [&](const Leaving& leaving) {
      return leaving.tokens <= nodes_[node].tokens && !nodes_[leaving.node].kv.is_kept(to);
    };
    const std::int64_t kv_bytes =
        std::ranges::count_if(leaving_kv_, is_needed) * contents_.bytes_of(CacheContent::kv_block);
    static_cast<void>(admission_.make_room(to, contents_.bytes_of(CacheContent::state) + kv_bytes));
    if (store(node, CacheContent::state, to)) return;
    ++usage.refused_images;
  }
  contents_.forget_state(node);
}

/// KV is worth a place where a state behind it is, or will be.
void TierStores::store_kv(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  const std::optional<Medium> to = admission_.needing_tier(node);
  if (!to || entry.kv.is_kept(*to)) return;
  if (entry.parent != TierNode::none && (nodes_[entry.parent].kv.in | nodes_[entry.parent].kv.coming) == 0) {
    ++levels_[levels_.tiers().front()].usage.refused_images;  // no request could load it without the block before
    return;
  }
  if (store(node, CacheContent::kv_block, *to)) return;
  ++levels_[*to].usage.refused_images;
  admission_.kv_is_gone(node);
}

void TierStores::flush() {
  for (const std::uint32_t node : leaving_states_) {
    if ((nodes_[node].state.in & on_device) == 0) store_state(node);
    contents_.let_go(node, CacheContent::state);
    nodes_.drop_need(node, Medium::device);
  }
  std::ranges::sort(leaving_kv_, {}, &Leaving::tokens);
  for (const Leaving& leaving : leaving_kv_) {
    if ((nodes_[leaving.node].kv.in & on_device) == 0 && !contents_.states_alone()) store_kv(leaving.node);
    contents_.let_go(leaving.node, CacheContent::kv_block);
  }
  for (const std::uint32_t node : incomplete_) contents_.let_go(node, CacheContent::state);
  // Before nodes are released: a prune begins at a node that is there.
  for (const std::uint32_t node : leaving_states_) {
    if (nodes_[node].used) admission_.prune(node);
  }
  for (const std::uint32_t node : incomplete_) contents_.release(node);
  for (std::size_t i = leaving_kv_.size(); i-- > 0;)
    if (nodes_[leaving_kv_[i].node].used) admission_.prune(leaving_kv_[i].node);
  incomplete_.clear();
  leaving_states_.clear();
  leaving_kv_.clear();
  for (const std::uint32_t node : to_write_) write_through(node);
  std::swap(to_write_, fresh_);
  fresh_.clear();
  admission_.trim();
  ++call_;
}

/// The state and its KV, to the slowest tier, as far as that does not have them.
void TierStores::write_through(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  if (!entry.used || (entry.state.in & on_device) == 0 || entry.made_in == call_) return;
  static_cast<void>(write_all_of(node, levels_.tiers().back()));
}

/// False: there is no room, or no place in the queue.
bool TierStores::write_all_of(std::uint32_t node, Medium to) {
  if (!write(node, CacheContent::state, to)) return false;
  for (std::uint32_t at = node; at != TierNode::none; at = nodes_[at].parent)
    if (!write(at, CacheContent::kv_block, to)) return false;
  return true;
}

/// From the fastest medium that has it, which keeps it. False: there is no room, or no place in the queue.
bool TierStores::write(std::uint32_t node, CacheContent content, Medium to) {
  if (content == CacheContent::kv_block && contents_.states_alone()) return true;
  const TierItem& item = contents_.item(node, content);
  const MediumSet sources = item.in & down_to(to);
  if (item.is_at(to) || item.coming != 0 || sources == 0) return true;
  const bool stored = (item.in & on_device) != 0;
  const Medium from = stored ? Medium::device : fastest(sources);
  const Transfer::Kind kind = stored ? Transfer::Kind::store : Transfer::Kind::copy;
  contents_.hold(node, content);
  const bool room = admission_.make_room(to, contents_.bytes_of(content));
  contents_.let_go(node, content);
  if (room && contents_.begin(kind, node, content, from, to, true)) return true;
  ++levels_[to].usage.refused_images;
  admission_.prune(node);  // the last state that needs this KV may have made room
  return false;
}

void TierStores::drain() {
  contents_.orders().set_draining(true);
  for (std::uint32_t node = 0; node < nodes_.made(); ++node)
    if (nodes_[node].used && nodes_[node].state.in != 0 && !write_all_of(node, levels_.durable())) break;
  contents_.orders().set_draining(false);
  for (std::uint32_t node = 0; node < nodes_.made(); ++node)
    if (nodes_[node].used) contents_.orders().offer(node);
}

void TierStores::clear() noexcept {
  incomplete_.clear();
  leaving_states_.clear();
  leaving_kv_.clear();
  to_write_.clear();
  fresh_.clear();
}

}  // namespace stateport::detail
