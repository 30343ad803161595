// SPDX-License-Identifier: Apache-2.0
#include "arena_moves.hpp"

#include <stateport/core/align/align_rules.hpp>

#include "violation.hpp"

namespace stateport::soak {

ArenaMoves::ArenaMoves(RequestCache& cache, MarkWorld& world)
    : options_(std::get<SlotLayout>(cache.options().layout).arena), arena_(*cache.arena()), world_(world) {
  const auto count = [&](MemoryPart part, const ExtentShape& shape, std::int32_t numbers) {
    for (std::int32_t extent = 0; std::int64_t{extent} * shape.count < numbers; ++extent)
      if (arena_.is_mapped(part, extent)) mapped_bytes_ += shape.bytes;
  };
  count(MemoryPart::kv, options_.kv, kv_blocks(cache.options()));
  count(MemoryPart::states, options_.states, checkpoint_slots(cache.options()));
  must(mapped_bytes_ <= options_.bytes, "a new arena has more memory than it may have");
}

void ArenaMoves::take(const MemoryPlan& plan) {
  for (const SlotCopy& copy : plan.kv_copies) world_.copy_block(copy);
  under_way_.insert(under_way_.end(), plan.moves.begin(), plan.moves.end());
}

void ArenaMoves::step(test::Random& random) {
  while (!under_way_.empty() && random.chance(50)) {
    const auto at = under_way_.begin() + random.between(0, std::ssize(under_way_) - 1);
    const MemoryMove move = *at;
    under_way_.erase(at);
    end(move, !random.chance(2));
  }
  if (random.chance(50)) take(arena_.take());
}

void ArenaMoves::end(const MemoryMove& move, bool done) {
  const ExtentShape& shape = move.part == MemoryPart::kv ? options_.kv : options_.states;
  if (done) {
    mapped_bytes_ += move.kind == MemoryMove::Kind::map ? shape.bytes : -shape.bytes;
    must(mapped_bytes_ <= options_.bytes, "an arena maps more memory than it may have");
    world_.wipe(move.part, move.extent * shape.count, shape.count);
  }
  arena_.settle(move.id, done);
  const ArenaUsage usage = arena_.usage();
  must(mapped_bytes_ <= usage.kv_bytes + usage.state_bytes, "an arena counts fewer bytes than are mapped");
}

}  // namespace stateport::soak
