// SPDX-License-Identifier: Apache-2.0
#include "cache.hpp"

namespace stateport::engine {

TierCounts& TierCounts::operator+=(const TierCounts& other) {
  stored_states += other.stored_states;
  stored_blocks += other.stored_blocks;
  loaded_states += other.loaded_states;
  loaded_blocks += other.loaded_blocks;
  host_hits += other.host_hits;
  file_hits += other.file_hits;
  restarts += other.restarts;
  attached_images += other.attached_images;
  foreign_images += other.foreign_images;
  restored_states += other.restored_states;
  lost_images += other.lost_images;
  refused_images += other.refused_images;
  return *this;
}

CacheCounts& CacheCounts::operator+=(const CacheCounts& other) {
  lookup_tokens += other.lookup_tokens;
  hit_tokens += other.hit_tokens;
  copies += other.copies;
  evictions += other.evictions;
  memory_moves += other.memory_moves;
  kv_copies += other.kv_copies;
  kv_moves += other.kv_moves;
  awaited_tokens += other.awaited_tokens;
  forks += other.forks;
  stale += other.stale;
  checks += other.checks;
  damaged += other.damaged;
  faults += other.faults;
  withdrawn += other.withdrawn;
  planned_ahead += other.planned_ahead;
  ready_ahead += other.ready_ahead;
  tiers += other.tiers;
  return *this;
}

}  // namespace stateport::engine
