// SPDX-License-Identifier: Apache-2.0
// Elastic memory, its stores, and the mover of a request cache whose KV and states lie in them.
#include "c_device_world.hpp"

#include <algorithm>

namespace stateport::fuzz {
namespace {

constexpr std::int64_t granule_bytes = 4096;  ///< a page of a host, or a part of one
constexpr std::int32_t granules = 24;
constexpr std::int32_t block_tokens = 4;
constexpr std::int32_t blocks = 20;
constexpr std::int32_t checkpoints = 18;

stateport_elastic_memory* pick_memory(World& world) {
  return world.pick<stateport_elastic_memory>(Kind::elastic_memory);
}
stateport_store* pick_store(World& world) {
  return world.pick<stateport_store>(Kind::store);
}
stateport_request_cache* pick_cache(World& world) {
  return world.pick<stateport_request_cache>(Kind::cache);
}
stateport_memory_mover* pick_mover(World& world) {
  return world.pick<stateport_memory_mover>(Kind::memory_mover);
}

/// Of a state, and of a block of KV: mostly one granule.
void granule_spec(DeviceWorld& world) {
  stateport_tensor_spec tensor = {};
  tensor.size = sizeof tensor;
  tensor.kind = STATEPORT_RECURRENT;
  tensor.type = STATEPORT_FP32;
  tensor.shape[0] = granule_bytes / 4 * (world.input.chance(16) ? 2 : 1);
  tensor.shape[1] = tensor.shape[2] = 1;
  if (world.input.chance(16)) tensor.shape[0] = 1 + world.input.below(3000);
  stateport_spec* spec = nullptr;
  expect(stateport_spec_create(&tensor, 1, &spec) == STATEPORT_OK, "a spec of one tensor");
  world.add(Kind::spec, spec);
}

void memory_create(DeviceWorld& world) {
  stateport_elastic_options options = {};
  options.limit_bytes = granules * granule_bytes;
  if (world.input.chance(32)) options.limit_bytes = static_cast<std::uint64_t>(world.wide_number());
  if (world.input.chance(32)) options.granularity_bytes = static_cast<std::uint64_t>(world.wide_number());
  if (world.input.chance(32)) options.granularity_bytes = std::uint64_t{1} << world.input.below(64);
  const auto* const given = world.given(options);
  world.make<stateport_elastic_memory>(Kind::elastic_memory, [&](stateport_elastic_memory** out) {
    return stateport_elastic_memory_create(given, out);
  });
}

void memory_usage(DeviceWorld& world) {
  auto* const memory = pick_memory(world);
  auto* const out = world.result<stateport_elastic_usage>();
  const stateport_status status = stateport_elastic_memory_usage(memory, out);
  if (status == STATEPORT_OK && out->size == sizeof *out)
    expect(out->mapped_bytes <= out->held_bytes && out->held_bytes <= out->limit_bytes, "memory stays below its limit");
  world.judge(status);
}

/// Slots of one granule: the memory of an extent of one slot.
void store_create(DeviceWorld& world, std::int32_t slots) {
  auto* const memory = pick_memory(world);
  auto* const spec = world.pick<stateport_spec>(Kind::spec);
  stateport_store_options options = {};
  options.slots = slots;
  options.layout = STATEPORT_SLOT_MAJOR;
  if (world.input.chance(24)) options.layout = world.number() % 3;
  if (world.input.chance(4)) options.allocate = &DeviceWorld::allocate;
  const auto* const given = world.given(options, sizeof options);
  void* const stream = world.stream();
  world.make<stateport_store>(Kind::store, [&](stateport_store** out) {
    return stateport_elastic_store_create(memory, spec, given, stream, out);
  });
}
void kv_create(DeviceWorld& world) {
  store_create(world, blocks);
}
void states_create(DeviceWorld& world) {
  store_create(world, checkpoints);
}
void any_store_create(DeviceWorld& world) {
  store_create(world, world.capacity());
}
/// One whose memory stays.
void fixed_store_create(DeviceWorld& world) {
  static_cast<void>(make_store(world, world.pick<stateport_spec>(Kind::spec), 2));
}

void cache_create(DeviceWorld& world) {
  stateport_arena arena = {};
  arena.bytes = granules * granule_bytes;
  if (world.input.chance(32)) arena.bytes = granule_bytes * world.input.below(60);
  arena.kv_extent_count = arena.states_extent_count = 1;
  arena.kv_extent_bytes = arena.states_extent_bytes = granule_bytes;
  if (world.input.chance(32)) arena.kv_extent_count = world.number();
  if (world.input.chance(48)) arena.state_share = world.real();
  stateport_slot_layout slots = {};
  slots.layout_fingerprint = 3;
  slots.checkpoints = checkpoints;
  slots.separate_checkpoints = 1;
  slots.placement = static_cast<std::int32_t>(world.input.below(6));
  slots.arena = world.given(arena);
  stateport_request_cache_options options = {};
  options.index = world.flag();
  options.slots = world.given(slots);
  options.max_requests = 1 + static_cast<std::int32_t>(world.input.below(2));
  options.max_request_tokens = 6 * block_tokens;
  options.block_size_tokens = block_tokens;
  options.kv_tokens = block_tokens * (blocks - 1 + world.flag());  // an index of trees has a block beside
  options.integrity = world.flag();
  const auto* const given = world.given(options);
  world.make<stateport_request_cache>(
      Kind::cache, [&](stateport_request_cache** out) { return stateport_request_cache_create(given, out); });
}

void mover_create(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const one = pick_store(world);
  auto* const other = pick_store(world);
  world.make<stateport_memory_mover>(Kind::memory_mover, [&](stateport_memory_mover** out) {
    return stateport_memory_mover_create(cache, one, other, out);
  });
}

void describe_store(DeviceWorld& world) {
  auto* const store = pick_store(world);
  world.judge(stateport_elastic_store_describe(store, world.result<stateport_elastic_store_info>()));
}

void extent(DeviceWorld& world) {
  auto* const store = pick_store(world);
  const std::int32_t number =
      world.input.chance(224) ? static_cast<std::int32_t>(world.input.below(blocks)) : world.number();
  const std::uint32_t choice = world.input.below(3);
  if (choice == 0) return world.judge(stateport_elastic_store_map(store, number));
  if (choice == 1) return world.judge(stateport_elastic_store_unmap(store, number));
  world.judge(stateport_elastic_store_is_mapped(store, number, world.value<std::uint8_t>()));
}

void carry_out(DeviceWorld& world) {
  auto* const mover = pick_mover(world);
  stateport_memory_plan plan = {};
  plan.kv_copies = world.copies(plan.kv_copy_count);
  plan.move_count = world.input.below(4);
  auto* const moves = world.room<stateport_memory_move>(plan.move_count);
  for (std::size_t i = 0; i < plan.move_count; ++i)
    moves[i] = {.id = 1 + i + world.input.below(8),
                .kind = world.flag(),
                .part = world.flag(),
                .extent = static_cast<std::int32_t>(world.input.below(blocks)),
                .reserved = world.input.chance(4) ? 1 : 0};
  plan.moves = world.maybe(moves);
  const auto* const given = world.input.chance(96) ? nullptr : world.given(plan);
  void* const stream = world.stream();
  world.judge(stateport_memory_mover_carry_out(mover, stream, given, world.flag(), world.value<std::size_t>()));
}

/// Memory work that no answer has named. With another mover it is refused.
void take_memory(DeviceWorld& world) {
  auto* const mover = pick_mover(world);
  auto* const cache = pick_cache(world);
  stateport_memory_plan plan = {};
  plan.size = sizeof plan;
  if (stateport_request_cache_take_memory(cache, &plan) != STATEPORT_OK) return;
  world.judge(stateport_memory_mover_carry_out(mover, nullptr, &plan, world.flag(), nullptr));
}

/// A request from its start to its end, whose memory work is carried out; now and then some of it is not.
void serve(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const mover = pick_mover(world);
  std::int32_t tokens[24] = {};
  const auto first = static_cast<std::int32_t>(world.input.below(6));
  for (std::int32_t& token : tokens) token = first + static_cast<std::int32_t>(&token - tokens);
  stateport_prompt prompt = {};
  prompt.size = sizeof prompt;
  prompt.tokens = tokens;
  prompt.count = 1 + world.input.below(22);
  const bool carries = !world.input.chance(8);
  const std::int32_t waits = world.flag();
  const auto how = static_cast<std::int32_t>(world.input.below(3));
  const auto move = [&](const auto& answer) {
    const stateport_memory_plan work = {sizeof work, answer.kv_copies, answer.kv_copy_count, answer.moves,
                                        answer.move_count};
    if (carries) static_cast<void>(stateport_memory_mover_carry_out(mover, nullptr, &work, waits, nullptr));
  };
  stateport_started_request started = {};
  started.size = sizeof started;
  std::size_t done = 0;
  stateport_status status = stateport_request_cache_start(cache, &prompt, 1, &started, &done);
  for (int pass = 0; pass < 4 && status == STATEPORT_OK && done == 1; ++pass) {
    const std::int64_t budget = 24;
    std::int64_t chunk = 0;
    status = stateport_request_cache_chunk(cache, &started.request, &budget, 1, &chunk, nullptr);
    if (status != STATEPORT_OK || chunk == 0) break;
    const auto row_tokens = static_cast<std::int32_t>(chunk);
    const stateport_pass_batch batch = {sizeof batch, &started.request, &row_tokens, nullptr, 1};
    stateport_pass_plan plan = {};
    plan.size = sizeof plan;
    status = stateport_request_cache_plan(cache, &batch, &plan);
    if (status != STATEPORT_OK) break;
    move(plan);
    stateport_pass_commit commit = {};
    commit.size = sizeof commit;
    const std::int32_t count = 0;
    status = stateport_request_cache_commit(cache, plan.pass, &count, 1, nullptr, 0, &commit);
    if (status == STATEPORT_OK) move(commit);
  }
  world.judge(status);
  if (done == 0) return;
  world.judge(stateport_request_cache_end(cache, &started.request, 1, how, nullptr, nullptr));
}

/// Contents that are forgotten, and their records.
void forget(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  if (world.input.chance(128)) {
    const std::int32_t by = world.input.chance(16) ? world.number() : static_cast<std::int32_t>(world.input.below(4));
    return world.judge(stateport_request_cache_forget(cache, name_space(world), by));
  }
  stateport_forget_record records[6] = {};
  std::size_t count = 0;
  if (world.input.chance(128)) static_cast<void>(stateport_request_cache_forgotten(cache, records, 6, &count));
  count = world.input.chance(128) ? std::min<std::size_t>(count, 6) : world.input.below(6);
  auto* const given = world.room<stateport_forget_record>(count);
  std::copy_n(records, count, given);
  for (std::size_t i = 0; i < count; ++i) {
    if (world.input.chance(96)) given[i].call = world.input.below(5);
    if (world.input.chance(64)) given[i].by = static_cast<std::int32_t>(world.input.below(5));
    if (world.input.chance(32)) given[i].names = static_cast<std::uint64_t>(world.wide_number());
    if (world.input.chance(32)) given[i].cache = world.input.below(3);
    if (world.input.chance(4)) given[i].reserved = world.number();
  }
  const auto* const told = world.maybe(given);
  if (told == nullptr) count = world.strange_count();
  world.judge(stateport_request_cache_adopt_forgotten(pick_cache(world), told, count, world.value<std::uint8_t>()));
}

void forgotten(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_forget_record>(world, capacity, 5);
  world.judge(stateport_request_cache_forgotten(cache, out, capacity, world.value<std::size_t>()));
}

constexpr DeviceCall calls[] = {
    granule_spec,
    memory_create,
    memory_usage,
    destroy<stateport_elastic_memory, Kind::elastic_memory, stateport_elastic_memory_destroy>,
    kv_create,
    states_create,
    any_store_create,
    fixed_store_create,
    destroy<stateport_store, Kind::store, stateport_store_destroy>,
    cache_create,
    destroy<stateport_request_cache, Kind::cache, stateport_request_cache_destroy>,
    mover_create,
    destroy<stateport_memory_mover, Kind::memory_mover, stateport_memory_mover_destroy>,
    describe_store,
    extent,
    extent,
    carry_out,
    carry_out,
    take_memory,
    serve,
    serve,
    serve,
    serve,
    forget,
    forgotten};

}  // namespace

Family elastic_family() {
  static constexpr DeviceCall begin[] = {granule_spec,  memory_create, kv_create,
                                         states_create, cache_create,  mover_create};
  return {begin, calls};
}

}  // namespace stateport::fuzz
