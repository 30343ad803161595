// SPDX-License-Identifier: Apache-2.0
// Ranks that share a model: layouts, copies between their stores, hand-overs.
#include "c_device_world.hpp"

namespace stateport::fuzz {
namespace {

stateport_model_layout* pick_layout(World& world) {
  return world.pick<stateport_model_layout>(Kind::layout);
}
stateport_handover_end* pick_end(World& world) {
  return world.pick<stateport_handover_end>(Kind::handover);
}

void small_layout(DeviceWorld& world) {
  static_cast<void>(world.small_layout());
}

/// A store of a rank's part of the model.
stateport_store* rank_store(DeviceWorld& world, stateport_model_layout* layout, const stateport_shard& shard) {
  stateport_spec* spec = nullptr;
  if (stateport_model_layout_spec(layout, &shard, &spec) != STATEPORT_OK) return nullptr;
  stateport_store* const store = make_store(world, spec, 1 + static_cast<std::int32_t>(world.input.below(6)));
  expect(stateport_spec_destroy(spec) == STATEPORT_OK, "a spec can be destroyed");
  return store;
}

std::vector<stateport_shard_store> shard_stores(DeviceWorld& world, stateport_model_layout* layout) {
  std::vector<stateport_shard_store> stores(world.input.chance(240) ? 1 + world.input.below(2) : 0);
  for (std::size_t i = 0; i < stores.size(); ++i) {
    stores[i].shard = world.shard();
    if (stores.size() == 2 && world.input.chance(128)) stores[i].shard = {0, 2, static_cast<std::int32_t>(i), 2};
    stores[i].store =
        world.input.chance(24) ? world.pick<stateport_store>(Kind::store) : rank_store(world, layout, stores[i].shard);
  }
  return stores;
}

template <class T>
T* given_array(World& world, const std::vector<T>& values) {
  T* const all = world.room<T>(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) all[i] = values[i];
  return world.maybe(all);
}

void resharder_create(DeviceWorld& world) {
  auto* const layout = pick_layout(world);
  const auto sources = shard_stores(world, layout);
  const auto destinations = shard_stores(world, layout);
  const auto* const from = given_array(world, sources);
  const auto* const to = given_array(world, destinations);
  world.make<stateport_resharder>(Kind::resharder, [&](stateport_resharder** out) {
    return stateport_resharder_create(layout, from, sources.size(), to, destinations.size(), out);
  });
}

void resharder_copy(DeviceWorld& world) {
  auto* const resharder = world.pick<stateport_resharder>(Kind::resharder);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const copies = world.copies(count);
  world.keep_stores();
  world.judge(stateport_resharder_copy(resharder, stream, copies, count));
}

stateport_handover_options handover_options(DeviceWorld& world) {
  stateport_handover_options options = {};
  options.model = world.model(options.model_bytes);
  options.content = world.input.chance(8) ? world.number() : STATEPORT_STATE;
  options.group = world.input.chance(8) ? world.number() : 0;
  const auto type = [&] { return world.input.chance(64) ? world.number() % 9 : 0; };
  options.encoding = {type(), type()};
  options.head_groups = world.input.chance(16) ? world.number() : 1 + static_cast<std::int32_t>(world.input.below(2));
  options.layers_per_object = world.input.chance(16) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  return options;
}

void handover_plan(DeviceWorld& world) {
  auto* const layout = pick_layout(world);
  const auto ranks = [&] {
    std::vector<stateport_rank> all(world.input.below(4));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = {world.input.chance(8) ? world.number() : static_cast<std::int32_t>(i), world.shard()};
    return all;
  };
  const auto sources = ranks();
  const auto destinations = ranks();
  const auto* const from = given_array(world, sources);
  const auto* const to = given_array(world, destinations);
  auto* const options = world.given(handover_options(world));
  if (options != nullptr && options->size >= sizeof options->size && options->size <= sizeof *options)
    world.keep(options, options->size);
  const std::size_t capacity = world.input.below(6);
  auto* const out = world.maybe(world.room<stateport_handover_range>(capacity));
  if (out != nullptr) world.keep(out, capacity * sizeof *out);
  world.judge(stateport_handover_plan(layout, from, sources.size(), to, destinations.size(), options, out, capacity,
                                      world.value<std::size_t>()));
}

void end_create(DeviceWorld& world) {
  auto* const layout = pick_layout(world);
  const stateport_shard shard = world.shard();
  auto* const store =
      world.input.chance(24) ? world.pick<stateport_store>(Kind::store) : rank_store(world, layout, shard);
  auto* const shared = world.room<stateport_shared_layout>(1);
  *shared = {layout, world.input.chance(8) ? world.shard() : shard};
  const auto* const options = world.given(handover_options(world));
  const std::int32_t places =
      world.input.chance(8) ? world.number() : 1 + static_cast<std::int32_t>(world.input.below(3));
  const auto* const given = world.maybe(shared);
  world.make<stateport_handover_end>(Kind::handover, [&](stateport_handover_end** out) {
    return stateport_handover_end_create(store, given, options, places, out);
  });
}

void end_copy(DeviceWorld& world) {
  auto* const end = pick_end(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const copies = world.copies(count);
  const bool unpacks = world.input.chance(128);
  if (unpacks) world.keep_stores();
  world.judge(unpacks ? stateport_handover_end_unpack(end, stream, copies, count)
                      : stateport_handover_end_pack(end, stream, copies, count));
}

void end_seal(DeviceWorld& world) {
  auto* const end = pick_end(world);
  const std::int32_t place = world.slot();
  auto* const key = world.room<stateport_image_key>(1);
  *key = world.key();
  world.judge(stateport_handover_end_seal(end, place, world.maybe(key)));
}

void end_check(DeviceWorld& world) {
  auto* const end = pick_end(world);
  const std::int32_t place = world.slot();
  auto* const key = world.room<stateport_image_key>(1);
  *key = world.key();
  const auto* const given = world.maybe(key);
  world.judge(stateport_handover_end_check(end, place, given, world.value<std::int32_t>()));
}

/// A transport: copies bytes of any place to any place, some of them damaged.
void end_transport(DeviceWorld& world) {
  auto* const end = pick_end(world);
  stateport_handover_memory memory = {};
  memory.size = sizeof memory;
  const stateport_status status = stateport_handover_end_describe(end, &memory);
  if (status == STATEPORT_OK) {
    auto* const bytes = static_cast<unsigned char*>(memory.base);
    world.read(bytes, memory.bytes);
    if (memory.bytes > 0 && world.input.chance(128)) bytes[world.input.take<std::uint16_t>() % memory.bytes] ^= 1;
    const std::size_t places = memory.bytes / memory.place_bytes;
    if (places > 1) std::memcpy(bytes + memory.place_bytes, bytes, memory.place_bytes);
  }
  world.judge(status);
  world.judge(stateport_handover_end_describe(end, world.result<stateport_handover_memory>()));
}

constexpr DeviceCall calls[] = {small_layout,
                                small_layout,
                                resharder_create,
                                resharder_create,
                                destroy<stateport_resharder, Kind::resharder, stateport_resharder_destroy>,
                                resharder_copy,
                                resharder_copy,
                                handover_plan,
                                handover_plan,
                                end_create,
                                end_create,
                                destroy<stateport_handover_end, Kind::handover, stateport_handover_end_destroy>,
                                end_copy,
                                end_copy,
                                end_seal,
                                end_check,
                                end_transport};

}  // namespace

Family rank_family() {
  static constexpr DeviceCall begin[] = {small_layout, resharder_create, end_create};
  return {begin, calls};
}

}  // namespace stateport::fuzz
