// SPDX-License-Identifier: Apache-2.0
#include "fleet/checkpoint_map.hpp"

#include <algorithm>

namespace stateport::replay {
namespace {

std::uint8_t bit_of(Medium medium) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(medium));
}

}  // namespace

void CheckpointMap::hear(std::uint32_t node, const CacheEvent& event) {
  if (event.kind == CacheEvent::Kind::cleared) return forget(node);
  if (event.medium == Medium::remote) return;
  const bool stored = event.kind == CacheEvent::Kind::stored;
  auto entry = holders_.find(event.prefix);
  if (entry == holders_.end()) {
    if (!stored) return;
    entry = holders_.try_emplace(event.prefix).first;
  }
  std::vector<Holder>& holders = entry.value();
  auto holder = std::ranges::find(holders, node, &Holder::node);
  if (holder == holders.end()) {
    if (!stored) return;
    holder = holders.insert(holders.end(), {.node = node});
  }
  std::uint8_t& media = event.content == CacheContent::state ? holder->states : holder->kv;
  const std::uint8_t bit = bit_of(event.medium);
  media = static_cast<std::uint8_t>(stored ? media | bit : media & ~bit);
  if ((holder->kv | holder->states) != 0) return;
  holders.erase(holder);
  if (holders.empty()) holders_.erase(entry);
}

void CheckpointMap::forget(std::uint32_t node) {
  for (auto entry = holders_.begin(); entry != holders_.end();) {
    std::vector<Holder>& holders = entry.value();
    std::erase_if(holders, [&](const Holder& holder) { return holder.node == node; });
    entry = holders.empty() ? holders_.erase(entry) : std::next(entry);
  }
}

/// False: the node lacks KV before this block, or of it.
bool CheckpointMap::walk_on(const Holder& holder, std::int32_t depth) {
  Walk& walk = reach_[holder.node];
  if (walk.number != walk_) walk = {.number = walk_};
  if (walk.kv_blocks + 1 != depth || holder.kv == 0) return false;
  walk.kv_blocks = depth;
  if (holder.states == 0) return true;
  if (walk.state_blocks == 0) found_.push_back({.node = holder.node});
  walk.state_blocks = depth;
  return true;
}

std::span<const CheckpointMap::Reach> CheckpointMap::reaches(std::span<const PrefixHash> prefixes) {
  ++walk_;
  found_.clear();
  std::int32_t depth = 0;
  for (const PrefixHash& prefix : prefixes) {
    const auto entry = holders_.find(prefix);
    if (entry == holders_.end()) break;
    ++depth;
    bool any = false;
    for (const Holder& holder : entry->second) any |= walk_on(holder, depth);
    if (!any) break;
  }
  for (Reach& reach : found_) reach.blocks = reach_[reach.node].state_blocks;
  return found_;
}

}  // namespace stateport::replay
