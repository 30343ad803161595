// SPDX-License-Identifier: Apache-2.0
// Elastic memory, its stores, and the moves of a request cache between them.
#include <stateport/c/elastic.h>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/memory_mover.hpp>

#include "arguments.hpp"
#include "cache_object.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "store_object.hpp"

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

using HeldStateStore = Held<StoreObject>;

constexpr std::size_t settled_at_once = 64;

ElasticStore& elastic_of(const StoreObject& store, const char* argument) {
  require(store.elastic != nullptr, argument, "a store of memory that stays", "must be an elastic one");
  return *store.elastic;
}

/// Its extents are the caller's to map and unmap.
ElasticStore& free_of_movers(const StoreObject& store) {
  ElasticStore& elastic = elastic_of(store, "store");
  require_state(!store.has_mover, "store", "a memory mover maps and unmaps its extents");
  return elastic;
}

/// Settles the moves itself, so it holds the cache during its calls.
struct MoverObject final : Object {
  static constexpr Kind kind = Kind::memory_mover;
  MoverObject(std::shared_ptr<CacheObject> of, std::shared_ptr<StoreObject> kv_store,
              std::shared_ptr<StoreObject> state_store)
      : Object(kind),
        cache(std::move(of)),
        kv(std::move(kv_store)),
        states(std::move(state_store)),
        mover(*kv->elastic, *states->elastic) {}
  ~MoverObject() override {
    if (!has_begun) return;
    const std::scoped_lock turn(kv->mutex(), states->mutex());
    kv->has_mover = states->has_mover = false;
  }
  [[nodiscard]] const Object& turn_owner() const noexcept override { return *cache; }

  /// Maps what the cache counts as mapped, or nothing. The calling thread has the cache and the stores.
  void begin() {
    try {
      mover.begin(cache->arena());
    } catch (...) {
      for (ElasticStore* const store : {kv->elastic.get(), states->elastic.get()})
        for (std::int32_t extent = 0; extent < store->extents(); ++extent)
          if (store->is_mapped(extent)) store->unmap(extent);
      throw;
    }
    has_begun = kv->has_mover = states->has_mover = true;
  }
  /// Throws unless these are the moves that the cache decided next.
  void require_next(MovePlan plan) const {
    const CacheArena& arena = cache->arena();
    std::uint64_t last = last_move;
    for (const MemoryMove& move : plan) {
      require(move.id == ++last && move.id <= static_cast<std::uint64_t>(arena.usage().moves), "moves.id", move.id,
              "must be the next move of the cache");
      require(!arena.is_mapped(move.part, move.extent), "moves.extent", move.extent,
              "must be that of a move under way");
    }
  }
  /// No answer has moves that are not carried out yet.
  [[nodiscard]] bool has_all_moves() const {
    return last_move == static_cast<std::uint64_t>(cache->arena().usage().moves);
  }
  /// Carries out maps that settled unmaps made possible. They end at once. Answers how many other moves ended.
  std::size_t carry_out_late(const Stream& stream) {
    std::size_t others = 0;
    for (MemoryPlan late = cache->arena().take(); !late.moves.empty(); late = cache->arena().take()) {
      const std::size_t maps = late.moves.size();
      last_move += maps;
      try {
        mover.enqueue(late, stream);
      } catch (const InvalidState&) {  // the stream captures a graph
        for (const MemoryMove& move : late.moves) cache->arena().settle(move.id, false);
        return others;
      }
      others += settle() - maps;
    }
    return others;
  }
  /// Tells the cache of all moves that have ended.
  std::size_t settle() {
    std::array<MemoryMover::Settled, settled_at_once> ended;
    std::size_t all = 0;
    while (const std::size_t count = mover.poll(ended)) {
      for (const auto& [move, done] : std::span(ended).first(count)) cache->arena().settle(move, done);
      all += count;
    }
    return all;
  }

  std::shared_ptr<CacheObject> cache;
  std::shared_ptr<StoreObject> kv;
  std::shared_ptr<StoreObject> states;
  MemoryMover mover;
  bool has_begun = false;
  std::uint64_t last_move = 0;  ///< that was enqueued
  std::vector<SlotCopy> copies;
  std::vector<MemoryMove> moves;
};

MovePlan read_moves(const stateport_memory_plan& given, std::vector<MemoryMove>& storage) {
  storage.clear();
  for (const stateport_memory_move& move : array(given.moves, given.move_count, "moves")) {
    require(move.reserved == 0, "moves.reserved", move.reserved, "must be 0");
    storage.push_back({.id = move.id,
                       .kind = enumerator(move.kind, MemoryMove::Kind::map, "moves.kind"),
                       .part = enumerator(move.part, MemoryPart::states, "moves.part"),
                       .extent = move.extent});
  }
  return storage;
}

/// The store of one part of the arena, as a mover may have it.
void require_part(const StoreObject& store, const char* argument, const ExtentShape& extent, std::int32_t slots) {
  const ElasticStore& elastic = elastic_of(store, argument);
  require(elastic.extent() == extent, argument, elastic.extent().count, "must have the extents of the arena");
  require(store.store.slots() == slots, argument, store.store.slots(), "must have the slots of the cache");
  require_state(!store.has_mover, argument, "another mover has this store");
  require_state(elastic.mapped_extents() == 0, argument, "extents of this store are mapped");
}

void require_parts(const CacheObject& cache, const StoreObject& kv, const StoreObject& states) {
  require_state(cache.arena().usage().moves == 0, "cache", "has decided moves: a mover is made before the first plan");
  const RequestCacheOptions& options = cache.cache->options();
  const ArenaOptions& arena = slot_layout(options).arena;
  require_part(kv, "kv", arena.kv, kv_blocks(options));
  require_part(states, "states", arena.states, checkpoint_slots(options));
}

}  // namespace

stateport_status stateport_elastic_memory_create(const stateport_elastic_options* options,
                                                 stateport_elastic_memory** out) {
  return guarded([&] {
    create(out, [&] {
      const auto given = read_struct<stateport_elastic_options>(options, "options");
      return std::make_shared<ElasticObject>(
          ElasticResource::Options{.limit_bytes = given.limit_bytes, .granularity_bytes = given.granularity_bytes});
    });
  });
}

stateport_status stateport_elastic_memory_destroy(stateport_elastic_memory* memory) {
  return guarded([&] { destroy<ElasticObject>(memory, "memory"); });
}

stateport_status stateport_elastic_memory_usage(stateport_elastic_memory* memory, stateport_elastic_usage* out) {
  return guarded([&] {
    const auto held = find<ElasticObject>(memory, "memory");
    const ElasticResource& resource = held->resource;
    Out(out, "out")
        .write({.granularity_bytes = resource.granularity(),
                .limit_bytes = resource.limit_bytes(),
                .mapped_bytes = resource.mapped_bytes(),
                .held_bytes = resource.held_bytes()});
  });
}

stateport_status stateport_elastic_store_create(stateport_elastic_memory* memory, stateport_spec* spec,
                                                const stateport_store_options* options, void* stream,
                                                stateport_store** out) {
  return guarded([&] {
    create(out, [&] {
      auto of = find<ElasticObject>(memory, "memory");
      const Held<SpecObject> held(spec, "spec");
      const auto given = read_struct<stateport_store_options>(options, "options");
      require(given.allocate == nullptr && given.deallocate == nullptr, "allocate", "a function",
              "must be null: the memory is elastic");
      const StoreOptions wanted{.slots = given.slots,
                                .layout = enumerator(given.layout, StoreLayout::slot_major, "layout")};
      return std::make_shared<StoreObject>(std::move(of), held->spec, wanted, Stream::from_native(stream));
    });
  });
}

stateport_status stateport_elastic_store_describe(stateport_store* store, stateport_elastic_store_info* out) {
  return guarded([&] {
    const HeldStateStore held(store, "store");
    const ElasticStore& elastic = elastic_of(*held, "store");
    Out(out, "out")
        .write({.extent_count = elastic.extent().count,
                .extents = elastic.extents(),
                .extent_bytes = elastic.extent().bytes,
                .fixed_bytes = elastic.fixed_bytes(),
                .mapped_extents = elastic.mapped_extents()});
  });
}

stateport_status stateport_elastic_store_is_mapped(stateport_store* store, int32_t extent, uint8_t* mapped) {
  return guarded([&] {
    const HeldStateStore held(store, "store");
    const ElasticStore& elastic = elastic_of(*held, "store");
    std::uint8_t& reported = checked(mapped, "mapped");
    reported = elastic.is_mapped(extent) ? 1 : 0;
  });
}

stateport_status stateport_elastic_store_map(stateport_store* store, int32_t extent) {
  return guarded([&] {
    const HeldStateStore held(store, "store");
    ElasticStore& elastic = free_of_movers(*held);
    const ElasticResource& resource = held->elastic_memory->resource;
    if (!elastic.map(extent))
      throw OutOfMemory("elastic store", static_cast<std::size_t>(elastic.extent().bytes),
                        resource.limit_bytes() - resource.mapped_bytes());
  });
}

stateport_status stateport_elastic_store_unmap(stateport_store* store, int32_t extent) {
  return guarded([&] { free_of_movers(*HeldStateStore(store, "store")).unmap(extent); });
}

stateport_status stateport_memory_mover_create(stateport_request_cache* cache, stateport_store* kv,
                                               stateport_store* states, stateport_memory_mover** out) {
  return guarded([&] {
    auto of = find<CacheObject>(cache, "cache");
    auto kv_store = find<StoreObject>(kv, "kv");
    auto state_store = find<StoreObject>(states, "states");
    require(kv_store != state_store, "states", "the store of kv", "must be another store");
    const std::scoped_lock turn(of->mutex(), kv_store->mutex(), state_store->mutex());
    require_parts(*of, *kv_store, *state_store);
    const auto made = std::make_shared<MoverObject>(of, kv_store, state_store);
    stateport_memory_mover* handle = nullptr;
    create(out != nullptr ? &handle : out, [&] { return made; });
    try {
      made->begin();
    } catch (...) {
      destroy<MoverObject>(handle, "mover");
      throw;
    }
    *out = handle;
  });
}

stateport_status stateport_memory_mover_destroy(stateport_memory_mover* mover) {
  return guarded([&] { destroy<MoverObject>(mover, "mover"); });
}

stateport_status stateport_memory_mover_carry_out(stateport_memory_mover* mover, void* stream,
                                                  const stateport_memory_plan* plan, int32_t wait, size_t* settled) {
  return guarded([&] {
    const auto held = find<MoverObject>(mover, "mover");
    const std::scoped_lock turn(held->cache->mutex(), held->kv->mutex(), held->states->mutex());
    const auto given = read_optional_struct(plan, "plan");
    const CopyPlan copies = read_plan(given.kv_copies, given.kv_copy_count, held->copies, "kv_copies");
    const MovePlan moves = read_moves(given, held->moves);
    held->require_next(moves);
    held->mover.enqueue({.kv_copies = copies, .moves = moves}, Stream::from_native(stream));
    held->last_move += moves.size();
    if (wait != 0) held->mover.finish();
    const bool has_all = held->has_all_moves();
    std::size_t ended = held->settle();
    if (has_all) ended += held->carry_out_late(Stream::from_native(stream));
    if (settled != nullptr) *settled = ended;
  });
}
