// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/memory_mover.hpp>

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/elastic_store.hpp>

#include <algorithm>

namespace stateport {
namespace {

using Kind = MemoryMove::Kind;

std::size_t index_of(MemoryPart part) noexcept {
  return static_cast<std::size_t>(part);
}

bool is_unmap(const MemoryMove& move) noexcept {
  return move.kind == Kind::unmap;
}

}  // namespace

MemoryMover::MemoryMover(ElasticStore& kv, ElasticStore& states) : stores_{&kv, &states}, kv_copier_(kv.store()) {
  std::size_t all = 0;
  for (std::size_t part = 0; part < stores_.size(); ++part) {
    const ElasticStore& store = *stores_[part];
    for (std::int32_t extent = 0; extent < store.extents(); ++extent)
      extents_[part].push_back(store.is_mapped(extent) ? Extent::mapped : Extent::unmapped);
    all += extents_[part].size();
  }
  unmaps_.items.resize(all);   // an extent waits once at most,
  batches_.items.resize(all);  // and no batch is empty
  settled_.reserve(all);
}

MemoryMover::~MemoryMover() = default;

ElasticStore& MemoryMover::store(const MemoryMove& move) const noexcept {
  return *stores_[index_of(move.part)];
}

MemoryMover::Extent& MemoryMover::state(const MemoryMove& move) noexcept {
  return extents_[index_of(move.part)][static_cast<std::size_t>(move.extent)];
}

void MemoryMover::require_move(const MemoryMove& move) const {
  require(index_of(move.part) < stores_.size(), "part", index_of(move.part), "must be a MemoryPart");
  require(move.kind == Kind::unmap || move.kind == Kind::map, "kind", static_cast<int>(move.kind),
          "must be a MemoryMove::Kind");
  const std::vector<Extent>& extents = extents_[index_of(move.part)];
  require(move.extent >= 0 && static_cast<std::size_t>(move.extent) < extents.size(), "extent", move.extent,
          "must be an extent of its store");
  const Extent now = extents[static_cast<std::size_t>(move.extent)];
  if (is_unmap(move))
    require(now == Extent::mapped, "extent", move.extent, "must be mapped, and not be under way to be unmapped");
  else
    require(now == Extent::unmapped, "extent", move.extent, "must be unmapped, and that settled");
}

void MemoryMover::note_planned(MovePlan moves) {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    try {
      require_move(moves[i]);
    } catch (...) {
      forget_planned(moves.first(i));
      throw;
    }
    state(moves[i]) = is_unmap(moves[i]) ? Extent::leaving : Extent::mapped;
  }
}

void MemoryMover::forget_planned(MovePlan moves) noexcept {
  for (std::size_t i = moves.size(); i-- > 0;) state(moves[i]) = is_unmap(moves[i]) ? Extent::mapped : Extent::unmapped;
}

void MemoryMover::begin(const CacheArena& arena) {
  for (const MemoryPart part : {MemoryPart::kv, MemoryPart::states}) {
    ElasticStore& owner = *stores_[index_of(part)];
    for (std::int32_t extent = 0; extent < owner.extents(); ++extent) {
      if (!arena.is_mapped(part, extent) || owner.is_mapped(extent)) continue;
      if (!owner.map(extent)) throw OutOfMemory("MemoryMover", static_cast<std::size_t>(owner.extent().bytes), 0);
      extents_[index_of(part)][static_cast<std::size_t>(extent)] = Extent::mapped;
    }
  }
}

/// A copy that the plan's unmaps wait for comes from an extent that is still there.
void MemoryMover::require_mapped_blocks(CopyPlan copies) const {
  const ElasticStore& kv = *stores_[0];
  for (const SlotCopy& copy : copies)
    for (const std::int32_t block : {copy.src_slot, copy.dst_slot})
      require(block >= 0 && block < kv.store().slots() && kv.is_mapped(block / kv.extent().count), "kv_copies", block,
              "must be a block that is mapped");
}

void MemoryMover::enqueue(const MemoryPlan& plan, const Stream& stream) {
  const MovePlan moves = plan.moves;
  if (moves.empty() && plan.kv_copies.empty()) return;
  require_mapped_blocks(plan.kv_copies);
  require_state(!detail::is_capturing(stream), "MemoryMover", "the stream captures a graph");
  settled_.reserve(settled_.size() + unmaps_.count + moves.size());  // nothing can fail once a move is carried out
  note_planned(moves);
  try {
    kv_copier_.copy_slots(stream, plan.kv_copies);
  } catch (...) {
    forget_planned(moves);
    throw;
  }
  if (const auto unmaps = static_cast<std::size_t>(std::ranges::count_if(moves, is_unmap)); unmaps > 0) {
    Batch& batch = batches_.next();
    try {
      if (!batch.event) batch.event.emplace();
      batch.event->record(stream);
    } catch (...) {
      forget_planned(moves);
      throw;
    }
    batch.unmaps = unmaps;
    ++batches_.count;
  }
  for (const MemoryMove& move : moves) {
    if (!is_unmap(move)) {
      carry_out(move);
    } else {
      unmaps_.next() = move;
      ++unmaps_.count;
    }
  }
}

void MemoryMover::carry_out(const MemoryMove& move) {
  ElasticStore& owner = store(move);
  bool done = false;
  try {
    if (!is_unmap(move)) {
      done = owner.map(move.extent);
    } else if (owner.is_mapped(move.extent)) {  // not if its map was refused
      owner.unmap(move.extent);
      done = true;
    }
  } catch (const BackendError&) {
    // The answer says that it was refused, unless an unmap went half the way: then nothing may use the extent.
    done = is_unmap(move) && !owner.is_mapped(move.extent);
  } catch (const InvalidArgument&) {
    // A part of the extent stayed mapped when the system refused both a map and its way back.
  }
  // An unmap that the same plan wants after this map is still under way.
  if (is_unmap(move) || state(move) == Extent::mapped)
    state(move) = owner.is_mapped(move.extent) ? Extent::mapped : Extent::unmapped;
  settled_.push_back({.id = move.id, .done = done});
}

void MemoryMover::carry_out_batch() {
  for (std::size_t left = batches_.front().unmaps; left > 0; --left) {
    carry_out(unmaps_.front());
    unmaps_.pop();
  }
  batches_.pop();
}

std::size_t MemoryMover::poll(std::span<Settled> out) {
  while (batches_.count > 0 && batches_.front().event->query()) carry_out_batch();
  const std::size_t count = std::min(out.size(), settled_.size());
  std::copy_n(settled_.begin(), count, out.begin());
  settled_.erase(settled_.begin(), settled_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

void MemoryMover::finish() {
  while (batches_.count > 0) {
    batches_.front().event->synchronize();
    carry_out_batch();
  }
}

}  // namespace stateport
