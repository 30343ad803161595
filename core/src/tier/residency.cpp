// SPDX-License-Identifier: Apache-2.0
#include "tier/residency.hpp"

#include <stateport/core/model/error.hpp>

namespace stateport::detail {
namespace {

/// A tier may hold the contents of the device beside its own. Nodes without content are few.
std::size_t node_capacity(const TierSetup& setup) {
  const TierOptions& tiers = setup.tiers;
  const std::int64_t image_bytes = tiers.kv_elsewhere != nullptr ? tiers.state_image_bytes : tiers.kv_image_bytes;
  const auto images = [&](std::int64_t bytes) {
    return static_cast<std::size_t>(bytes / std::max<std::int64_t>(image_bytes, 1));
  };
  const std::size_t nodes = setup.device_blocks + images(tiers.host_bytes) + images(tiers.file_bytes) +
                            images(tiers.remote_bytes) + setup.states;
  return std::min<std::size_t>(nodes + nodes / 8 + 64, INT32_MAX);
}

std::shared_ptr<EvictionPolicy> tier_policy(const TierSetup& setup) {
  const EvictionOrder order = setup.eviction == EvictionOrder::mru ? EvictionOrder::lru : setup.eviction;
  return make_eviction_policy(order, setup.eviction_options, setup.memory);
}

}  // namespace

Residency::Residency(const TierSetup& setup, TierTransfers& transfers)
    : options_(setup.tiers),
      groups_(setup.groups),
      usable_states_(setup.states_apart ? all_media : below_device),
      listener_(setup.listener),
      transfers_(transfers),
      policy_(tier_policy(setup)),
      levels_(setup.tiers),
      nodes_(node_capacity(setup), setup.groups),
      forest_(policy_, nodes_, setup.request_blocks, true),
      orders_(policy_->traits(), levels_, nodes_, forest_) {
  require(setup.groups <= 32, "groups", setup.groups, "at most 32 with tiers");
}

ImageKey Residency::key_of(std::uint32_t node, CacheContent content, std::size_t group) const noexcept {
  return {.prefix = nodes_[node].prefix,
          .tokens = nodes_[node].tokens,
          .content = content,
          .group = static_cast<std::int32_t>(group)};
}

/// While there was a reader, the orders may have passed over the state.
void Residency::let_go(std::uint32_t node, CacheContent content) {
  if (--item(node, content).readers == 0 && content == CacheContent::state) orders_.offer(node);
}

void Residency::forget_state(std::uint32_t node) {
  const TierItem& state = nodes_[node].state;
  if ((state.in | state.coming) != 0 || !forest_.has_state(node)) return;
  const std::uint32_t heir = forest_.lose(BlockId{static_cast<std::int32_t>(node)});
  if (heir != StateForest::none) orders_.rank_again(heir);
}

std::uint32_t Residency::release(std::uint32_t node) {
  if (!nodes_[node].used) return TierNode::none;
  return nodes_.release(node, [&](std::uint32_t gone) {
    if (forest_.has_state(gone)) static_cast<void>(forest_.lose(BlockId{static_cast<std::int32_t>(gone)}));
    forest_.forget(BlockId{static_cast<std::int32_t>(gone)});
  });
}

void Residency::report(Medium medium, bool stored, std::uint32_t node, CacheContent content) {
  if (listener_ == nullptr) return;
  for (std::size_t group = 0; group < images_of(content); ++group)
    listener_->on_tier(medium, stored, key_of(node, content, group));
}

void Residency::drop(std::uint32_t node, CacheContent content, Medium medium) {
  for (std::size_t group = 0; group < images_of(content); ++group)
    transfers_.drop(medium, key_of(node, content, group));
}

void Residency::enter_device(std::uint32_t node) {
  TierItem& state = nodes_[node].state;
  if ((state.in & on_device) == 0) nodes_.add_need(node, Medium::device);
  state.in |= on_device;
  state.given_up = 0;
  if (!forest_.has_state(node)) forest_.store(BlockId{static_cast<std::int32_t>(node)});
}

void Residency::enter(std::uint32_t node, CacheContent content, Medium medium) {
  TierLevels::Level& tier = levels_[medium];
  item(node, content).in |= bit(medium);
  tier.usage.bytes += bytes_of(content);
  ++(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
  report(medium, true, node, content);
  if (content != CacheContent::state) return;
  nodes_.add_need(node, medium);
  if (!forest_.has_state(node)) forest_.store(BlockId{static_cast<std::int32_t>(node)});
  orders_.offer(node);
}

void Residency::leave(std::uint32_t node, CacheContent content, Medium medium) {
  TierItem& item = this->item(node, content);
  TierLevels::Level& tier = levels_[medium];
  item.in &= static_cast<MediumSet>(~bit(medium));
  tier.usage.bytes -= bytes_of(content);
  --(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
  drop(node, content, medium);
  report(medium, false, node, content);
  if (content != CacheContent::state) return;
  orders_.erase(node, medium);
  nodes_.drop_need(node, medium);
}

bool Residency::begin(Transfer::Kind kind, std::uint32_t node, CacheContent content, Medium from, Medium to,
                      bool stays) {
  if (!has_queue_room(content)) return false;
  const std::int64_t bytes = bytes_of(content);
  queued_bytes_ += bytes;
  levels_[to].usage.bytes += bytes;
  TierItem& item = this->item(node, content);
  const std::size_t images = images_of(content);
  item.coming |= bit(to);
  item.going = kind == Transfer::Kind::copy;
  if (item.going && !stays) levels_[from].going_bytes += bytes;
  item.failed = false;
  item.lost = 0;
  item.parts_coming = static_cast<std::uint8_t>(images);
  if (content == CacheContent::state) nodes_.add_need(node, to);
  for (std::size_t group = 0; group < images; ++group) {
    std::int32_t place = -1;
    if (kind == Transfer::Kind::store)
      place = content == CacheContent::state ? nodes_.slots(node)[group] : nodes_[node].kv_block;
    transfers_.name({.kind = kind, .image = key_of(node, content, group), .from = from, .to = to, .place = place},
                    {kind, from, to, content, node, {}, stays});
  }
  return true;
}

void Residency::finish(std::uint32_t node, CacheContent content, const UnderWay& transfer, bool done) {
  TierItem& item = this->item(node, content);
  TierLevels::Level& tier = levels_[transfer.to];
  const std::int64_t bytes = bytes_of(content);
  const bool copied = transfer.kind == Transfer::Kind::copy;
  queued_bytes_ -= bytes;
  item.coming &= static_cast<MediumSet>(~bit(transfer.to));
  item.going = false;
  if (copied && !transfer.stays) levels_[transfer.from].going_bytes -= bytes;
  // An image that a load found damaged meanwhile may be the one that the tier kept in place of this one.
  const bool is_lost = (item.lost & bit(transfer.to)) != 0;
  const bool is_forgotten = nodes_[node].is_forgotten;
  const bool is_unwanted = done && is_forgotten;
  done = done && !is_lost && !is_forgotten;
  if (done) {
    item.in |= bit(transfer.to);
    ++(content == CacheContent::state ? tier.usage.states : tier.usage.kv_blocks);
    tier.usage.bytes_written += bytes;
    if (copied) levels_[transfer.from].usage.bytes_read += bytes;
    report(transfer.to, true, node, content);
    if (content == CacheContent::state) orders_.offer(node);
  } else {
    tier.usage.bytes -= bytes;
    tier.usage.refused_images += !is_unwanted;
    if (content == CacheContent::state) nodes_.drop_need(node, transfer.to);
    // Some of its groups may have arrived.
    if (is_lost || is_unwanted || (content == CacheContent::state && groups_ > 1)) drop(node, content, transfer.to);
  }
  if (copied && (item.in & bit(transfer.from)) != 0) {
    // An image that could not be moved must go all the same: else nothing makes room again.
    const bool moves = !transfer.stays && (done || item.readers == 0);
    const bool goes = (item.lost & bit(transfer.from)) != 0 || (is_forgotten && item.readers == 0);
    if (moves || goes) leave(node, content, transfer.from);
    if (content == CacheContent::state) orders_.offer(node);
  }
}

void Residency::clear() {
  for (std::uint32_t node = 0; node < nodes_.made(); ++node) {
    if (!nodes_[node].used) continue;
    for (const CacheContent content : {CacheContent::state, CacheContent::kv_block})
      for (const Medium medium : levels_.tiers())
        if ((item(node, content).in & bit(medium)) != 0) leave(node, content, medium);
  }
  forest_.clear();
  nodes_.clear();
}

std::size_t Residency::parts_coming() const noexcept {
  std::size_t parts = 0;
  for (std::uint32_t node = 0; node < nodes_.made(); ++node)
    parts += std::size_t{nodes_[node].state.parts_coming} + nodes_[node].kv.parts_coming;
  return parts;
}

void Residency::check_invariants() const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "Residency", what); };
  nodes_.check_invariants();
  forest_.check_invariants(nodes_.made());
  std::array<std::int64_t, medium_count> bytes = {};
  std::array<std::int64_t, medium_count> states = {};
  std::array<std::int64_t, medium_count> blocks = {};
  for (std::uint32_t node = 0; node < nodes_.made(); ++node) {
    const TierNode& entry = nodes_[node];
    if (!entry.used) continue;
    check(forest_.has_state(node) == ((entry.state.in | entry.state.coming) != 0),
          "a state is not in the forest, or has gone");
    for (const CacheContent content : {CacheContent::state, CacheContent::kv_block}) {
      const TierItem& item = content == CacheContent::state ? entry.state : entry.kv;
      check((item.in & item.coming) == 0, "an image comes to where it is");
      check((item.coming == 0) == (item.parts_coming == 0), "coming images are counted wrong");
      for (int m = 1; m < medium_count; ++m) {
        const auto at = static_cast<std::size_t>(m);
        if (item.is_at(static_cast<Medium>(m))) bytes[at] += bytes_of(content);
        if ((item.in & bit(static_cast<Medium>(m))) != 0) ++(content == CacheContent::state ? states : blocks)[at];
      }
    }
    for (const Medium medium : levels_.tiers())
      check(orders_.is_complete(node, medium), "a state in a tier is no candidate");
  }
  for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
    const auto at = index_of(medium);
    const TierUsage& usage = levels_[medium].usage;
    check(usage.bytes == bytes[at] && usage.states == states[at] && usage.kv_blocks == blocks[at],
          "the images of a tier are counted wrong");
    check(usage.bytes <= levels_[medium].capacity, "a tier holds too much");
  }
}

}  // namespace stateport::detail
