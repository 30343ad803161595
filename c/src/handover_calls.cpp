// SPDX-License-Identifier: Apache-2.0
// States that go from one group of ranks to another.
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/c/handover.h>
#include <stateport/tiers/handover.hpp>

#include "arguments.hpp"
#include "copies.hpp"
#include "guard.hpp"
#include "model_layout_object.hpp"
#include "object_encoding.hpp"
#include "store_object.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_rank) == 20 && sizeof(stateport_handover_range) == 32);

constexpr std::size_t grid_end = offsetof(stateport_handover_options, layers_per_object) + sizeof(std::int32_t);

struct HandoverObject final : Object {
  static constexpr Kind kind = Kind::handover_end;
  HandoverObject(std::shared_ptr<StoreObject> of, const SharedLayout& shared, const ObjectSetOptions& options,
                 std::int32_t places)
      : Object(kind), store(std::move(of)), end(memory, shared, store->store, options, places) {}

  std::shared_ptr<StoreObject> store;
  PinnedResource memory;
  HandoverEnd end;
  std::vector<SlotCopy> plan;
};

using HeldEnd = Held<HandoverObject>;

ObjectSetOptions read_options(const stateport_handover_options& given) {
  const auto name = array(static_cast<const char*>(given.model), given.model_bytes, "model");
  require(!name.empty(), "model_bytes", given.model_bytes, "a hand-over needs the name of the model");
  return {.model = ModelId(std::string_view(name.data(), name.size())),
          .content = enumerator(given.content, CacheContent::state, "content"),
          .group = given.group,
          .grid = {.head_groups = given.head_groups, .layers_per_object = given.layers_per_object},
          .encoding = from_c(given.encoding)};
}

std::vector<ReshardRank> read_ranks(const stateport_rank* ranks, std::size_t count, const char* argument) {
  std::vector<ReshardRank> wanted;
  for (const stateport_rank& rank : array(ranks, count, argument))
    wanted.push_back({.global_rank = rank.global_rank, .shard = from_c(rank.shard)});
  return wanted;
}

ImageKey read_key(const stateport_image_key* key) {
  require(key != nullptr, "key", "null", "must point to a key");
  return from_c(*key);
}

}  // namespace

stateport_status stateport_handover_plan(stateport_model_layout* layout, const stateport_rank* sources,
                                         size_t source_count, const stateport_rank* destinations,
                                         size_t destination_count, stateport_handover_options* options,
                                         stateport_handover_range* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const Held<ModelLayoutObject> held(layout, "layout");
    const auto given = read_struct<stateport_handover_options>(options, "options");
    require(options->size >= grid_end, "options", options->size, "its size must have room for the grid");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    const HandoverPlan plan =
        plan_handover(held->layout, read_ranks(sources, source_count, "sources"),
                      read_ranks(destinations, destination_count, "destinations"), read_options(given));
    options->head_groups = plan.grid.head_groups;
    options->layers_per_object = plan.grid.layers_per_object;
    reported = plan.ranges.size();
    for (std::size_t i = 0; i < std::min(room.size(), reported); ++i) {
      const HandoverRange& range = plan.ranges[i];
      room[i] = {range.src_rank, range.dst_rank, range.src_offset, range.dst_offset, range.bytes};
    }
  });
}

stateport_status stateport_handover_end_create(stateport_store* store, const stateport_shared_layout* shared,
                                               const stateport_handover_options* options, int32_t places,
                                               stateport_handover_end** out) {
  return guarded([&] {
    create(out, [&] {
      auto of = find<StoreObject>(store, "store");
      require(shared != nullptr, "shared", "null", "must point to a layout and a shard");
      const Held<ModelLayoutObject> layout(shared->layout, "shared.layout");
      const auto given = read_struct<stateport_handover_options>(options, "options");
      return std::make_shared<HandoverObject>(std::move(of), SharedLayout{layout->layout, from_c(shared->shard)},
                                              read_options(given), places);
    });
  });
}

stateport_status stateport_handover_end_destroy(stateport_handover_end* end) {
  return guarded([&] { destroy<HandoverObject>(end, "end"); });
}

stateport_status stateport_handover_end_describe(stateport_handover_end* end, stateport_handover_memory* out) {
  return guarded([&] {
    const HeldEnd held(end, "end");
    const std::span<std::byte> memory = held->end.memory();
    Out(out, "out").write({.base = memory.data(), .bytes = memory.size(), .place_bytes = held->end.set().bytes()});
  });
}

stateport_status stateport_handover_end_pack(stateport_handover_end* end, void* stream,
                                             const stateport_slot_copy* copies, size_t count) {
  return guarded([&] {
    const HeldEnd held(end, "end");
    held->end.pack(Stream::from_native(stream), read_plan(copies, count, held->plan));
  });
}

stateport_status stateport_handover_end_seal(stateport_handover_end* end, int32_t place,
                                             const stateport_image_key* key) {
  return guarded([&] { HeldEnd(end, "end")->end.seal(place, read_key(key)); });
}

stateport_status stateport_handover_end_check(stateport_handover_end* end, int32_t place,
                                              const stateport_image_key* key, int32_t* status) {
  return guarded([&] {
    const HeldEnd held(end, "end");
    std::int32_t& reported = checked(status, "status");
    reported = static_cast<std::int32_t>(held->end.check(place, read_key(key)));
  });
}

stateport_status stateport_handover_end_unpack(stateport_handover_end* end, void* stream,
                                               const stateport_slot_copy* copies, size_t count) {
  return guarded([&] {
    const HeldEnd held(end, "end");
    held->end.unpack(Stream::from_native(stream), read_plan(copies, count, held->plan));
  });
}
