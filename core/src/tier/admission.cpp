// SPDX-License-Identifier: Apache-2.0
#include "tier/admission.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace stateport::detail {
namespace {

constexpr double average_weight = 0.9;   // of the victims before the last one, in the moving average of their ranks
constexpr double full_enough = 0.98;     // from here on a tier takes only states that are worth more than its victims
constexpr std::int64_t room_parts = 50;  // a tier above another one keeps this part of its capacity free

}  // namespace

Admission::Admission(Residency& contents)
    : contents_(contents),
      levels_(contents.levels()),
      nodes_(contents.nodes()),
      orders_(contents.orders()),
      forest_(contents.forest()),
      learning_(contents.policy().learning()),
      ranks_(learning_ != nullptr && learning_->observes_prompts()) {
  for (const Medium medium : levels_.tiers()) unclaimed_[index_of(medium)].reserve(nodes_.capacity());
  to_prune_.reserve(nodes_.capacity());
  to_cut_.reserve(nodes_.capacity());
  to_move_.reserve(nodes_.capacity());
}

double Admission::rank(std::uint32_t node) const noexcept {
  const VictimKey key = forest_.key(node);
  return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.rank())) << 32 |
                               key.order() >> 32);
}

bool Admission::is_worth_it(Medium medium, std::uint32_t node) {
  const std::int64_t bytes = levels_[medium].usage.bytes;
  const std::int64_t capacity = levels_[medium].capacity;
  if (ranks_) {
    const bool full = static_cast<double>(bytes) >= full_enough * static_cast<double>(capacity);
    return !full || rank(node) >= victim_rank_[index_of(medium)];
  }
  const bool given_up = (nodes_[node].state.given_up & bit(medium)) != 0;
  if (!given_up || bytes + contents_.bytes_of(CacheContent::state) <= capacity) return true;
  const auto victim = orders_.next(medium);
  return !victim || orders_.precedes(medium, *victim, node);
}

bool Admission::make_room(Medium medium, std::int64_t bytes) {
  const std::int64_t capacity = levels_[medium].capacity;
  if (bytes > capacity) return false;
  const TierUsage& usage = levels_[medium].usage;
  while (usage.bytes + bytes > capacity) {
    if (usage.bytes - levels_[medium].going_bytes + bytes <= capacity) return false;
    const auto victim = orders_.next(medium);
    if (!victim && !drop_unclaimed(medium)) return false;
    if (!victim) continue;
    // A state that is moved is not gone; gdsf's clock follows its choice all the same, as on the device.
    if (learning_ != nullptr && !learning_->has_no_expected_hits(*victim)) learning_->chosen(forest_.facts(*victim));
    double& average = victim_rank_[index_of(medium)];
    if (ranks_) average = average_weight * average + (1 - average_weight) * rank(*victim);
    move_state(*victim, medium);
  }
  return true;
}

/// KV that the tier had before the cache was made, and that no prompt has asked for: no state is known to need it.
/// False: there is none.
bool Admission::drop_unclaimed(Medium medium) {
  while (const std::optional<std::uint32_t> node = unclaimed_[index_of(medium)].take()) {
    const TierItem& kv = nodes_[*node].kv;
    if (!nodes_[*node].used || (kv.in & bit(medium)) == 0 || kv.readers > 0 || kv.going) continue;
    if (nodes_[*node].is_needed_in(medium)) continue;
    contents_.leave(*node, CacheContent::kv_block, medium);
    contents_.release(*node);
    return true;
  }
  return false;
}

/// The slower tiers first, because they take the victims of the faster ones.
void Admission::trim() {
  const auto tiers = levels_.tiers();
  const std::int64_t least = contents_.bytes_of(CacheContent::state) + contents_.bytes_of(CacheContent::kv_block);
  for (std::size_t i = tiers.size() - 1; i-- > 0;) {
    const std::int64_t capacity = levels_[tiers[i]].capacity;
    static_cast<void>(make_room(tiers[i], std::min(std::max(capacity / room_parts, least), capacity)));
  }
}

std::optional<Medium> Admission::needing_tier(std::uint32_t node) const noexcept {
  for (const Medium tier : levels_.tiers())
    if (nodes_[node].is_needed_in(tier)) return tier;
  return std::nullopt;
}

/// To the next tier that has room for it, or away. A state that the next tier has already, or that is on its way into
/// any tier, just goes.
void Admission::move_state(std::uint32_t node, Medium from) {
  const TierItem& state = nodes_[node].state;
  const std::optional<Medium> next = levels_.below(from);
  if (!next || state.is_at(*next) || state.coming != 0) return evict_state(node, from);
  orders_.erase(node, from);
  const bool worth = is_worth_it(*next, node);
  contents_.hold(node, CacheContent::state);  // states that go to make room may take KV with them that this one needs
  std::optional<Medium> to = next;
  for (; to && !state.is_at(*to); to = levels_.below(*to))
    if (is_worth_it(*to, node) && make_room(*to, contents_.bytes_of(CacheContent::state))) break;
  contents_.let_go(node, CacheContent::state);
  const bool moves = to && !state.is_at(*to);
  if (moves && contents_.begin(Transfer::Kind::copy, node, CacheContent::state, from, *to)) return;
  TierUsage& usage = levels_[*next].usage;
  ++(worth ? usage.refused_images : usage.dropped_states);
  evict_state(node, from);
}

void Admission::evict_state(std::uint32_t node, Medium medium) {
  ++levels_[medium].usage.evicted_states;
  nodes_[node].state.given_up |= bit(medium);
  contents_.leave(node, CacheContent::state, medium);
  contents_.forget_state(node);
  prune(node);
}

void Admission::prune(std::uint32_t node) {
  to_prune_.add(node);
  work_off();
}

void Admission::kv_is_gone(std::uint32_t node) {
  const TierNode& entry = nodes_[node];
  if ((entry.kv.in | entry.kv.coming) != 0 || !entry.is_needed()) return;
  to_cut_.add(node);
  work_off();
}

void Admission::work_off() {
  if (std::exchange(works_, true)) return;
  for (;;) {
    if (const auto cut = to_cut_.take())
      evict_behind(*cut);
    else if (const auto pruned = to_prune_.take())
      prune_path(*pruned);
    else
      break;
  }
  works_ = false;
  if (std::exchange(moves_kv_, true)) return;
  for (std::size_t i = 0; i < to_move_.size(); ++i) move_kv(to_move_[i].node, to_move_[i].from);
  to_move_.clear();
  moves_kv_ = false;
}

/// This block's states, and then, one after the other, those of the blocks behind it. The node may be gone.
void Admission::evict_behind(std::uint32_t node) {
  for (const Medium medium : levels_.tiers()) {
    const TierItem& state = nodes_[node].state;
    if ((state.in & bit(medium)) != 0 && state.readers == 0 && !state.going) evict_state(node, medium);
  }
  for (std::uint32_t child = nodes_[node].first_child; child != TierNode::none; child = nodes_[child].next)
    if (nodes_[child].is_needed()) to_cut_.add(child);
}

void Admission::prune_path(std::uint32_t node) {
  std::uint32_t first = node;
  for (const Medium medium : levels_.tiers())
    for (std::uint32_t at = first; at != TierNode::none && nodes_[at].used && !nodes_[at].is_needed_in(medium);) {
      const std::uint32_t parent = nodes_[at].parent;
      prune_block(at, medium);
      const std::uint32_t left = contents_.release(at);
      if (at == first && left != at) first = left;  // slower tiers may have KV of the blocks before it
      at = left == at ? parent : left;
    }
  if (first != TierNode::none) contents_.release(first);
}

/// No state needs this KV there. It goes to the tier where one does, after all other evictions: it may need their room.
void Admission::prune_block(std::uint32_t node, Medium medium) {
  const TierItem& kv = nodes_[node].kv;
  if ((kv.in & bit(medium)) == 0 || kv.readers > 0 || kv.going) return;
  const bool stays = (kv.in & on_device) != 0 || kv.coming != 0;
  if (const auto to = needing_tier(node); to && !stays && !kv.is_at(*to)) {
    contents_.hold(node, CacheContent::kv_block);
    to_move_.push_back({node, medium});
    return;
  }
  contents_.leave(node, CacheContent::kv_block, medium);
  kv_is_gone(node);
}

/// To the fastest tier where a state needs it, if that has room, or away.
void Admission::move_kv(std::uint32_t node, Medium from) {
  const TierItem& kv = nodes_[node].kv;
  const auto to = needing_tier(node);
  const bool room = to && !kv.is_at(*to) && make_room(*to, contents_.bytes_of(CacheContent::kv_block));
  contents_.let_go(node, CacheContent::kv_block);
  if (room && contents_.begin(Transfer::Kind::copy, node, CacheContent::kv_block, from, *to)) return;
  contents_.leave(node, CacheContent::kv_block, from);
  kv_is_gone(node);
  prune(node);
}

void Admission::on_device_again(std::uint32_t node, CacheContent content) {
  const TierItem& item = contents_.item(node, content);
  if ((item.in & on_device) == 0 || (item.in & bit(Medium::host)) == 0 || item.readers > 0 || item.going) return;
  contents_.leave(node, content, Medium::host);
  if (content == CacheContent::state) prune(node);
}

void Admission::unpin(std::uint32_t node, CacheContent content) {
  contents_.let_go(node, content);
  if (contents_.item(node, content).readers > 0) return;
  if (nodes_[node].is_forgotten) leave_forgotten(node);
  on_device_again(node, content);
  prune(node);
}

void Admission::lost(std::uint32_t node, CacheContent content, Medium medium) {
  TierItem& item = contents_.item(node, content);
  ++levels_[medium].usage.lost_images;
  item.lost |= bit(medium);
  if ((item.in & bit(medium)) == 0 || item.going) return;
  contents_.leave(node, content, medium);
  if (content == CacheContent::state) {
    contents_.forget_state(node);
    prune(node);
  } else {
    kv_is_gone(node);
  }
}

void Admission::forget(std::uint32_t node) {
  TierNode& entry = nodes_[node];
  if ((entry.state.in & on_device) != 0) nodes_.drop_need(node, Medium::device);
  entry.device_groups = 0;
  entry.kv_block = -1;
  entry.is_forgotten = true;
  entry.state.in &= below_device;
  entry.kv.in &= below_device;
  leave_forgotten(node);
}

void Admission::leave_forgotten(std::uint32_t node) {
  for (const CacheContent content : {CacheContent::state, CacheContent::kv_block}) {
    const TierItem& item = contents_.item(node, content);
    for (const Medium medium : levels_.tiers())
      if ((item.in & bit(medium)) != 0 && !item.going && item.readers == 0) contents_.leave(node, content, medium);
  }
  contents_.forget_state(node);
}

void Admission::arrived(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done) {
  contents_.finish(node, content, transfer, done);
  if (nodes_[node].is_forgotten) leave_forgotten(node);
  on_device_again(node, content);
  if (content == CacheContent::state)
    contents_.forget_state(node);
  else
    kv_is_gone(node);
  if (nodes_[node].used) prune(node);
}

void Admission::add_unclaimed(std::uint32_t node, Medium medium) {
  unclaimed_[index_of(medium)].add(node);
}

void Admission::forget_unclaimed() {
  for (NodeList& nodes : unclaimed_) nodes.clear();
}

bool Admission::is_unclaimed(std::uint32_t node) const {
  return std::ranges::any_of(unclaimed_, [&](const NodeList& nodes) { return nodes.contains(node); });
}

}  // namespace stateport::detail
