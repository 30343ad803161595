// SPDX-License-Identifier: Apache-2.0
// State tiers, alone and under a request cache.
#include "c_device_world.hpp"

#include <chrono>
#include <thread>

namespace stateport::fuzz {
namespace {

stateport_state_tiers* pick_tiers(World& world) {
  return world.pick<stateport_state_tiers>(Kind::tiers);
}
stateport_request_cache* pick_cache(World& world) {
  return world.pick<stateport_request_cache>(Kind::cache);
}

constexpr std::uint64_t frame_bytes = std::uint64_t{1} << 16;

const stateport_remote_options* remote_options(DeviceWorld& world, std::size_t states) {
  if (!world.input.chance(64)) return nullptr;
  stateport_remote_options options = {};
  options.store = world.pick<stateport_remote_store>(Kind::remote);
  options.state_count = world.input.chance(8) ? world.input.below(3) : states;
  auto* const shared = world.room<stateport_shared_layout>(options.state_count + 1);
  for (std::size_t i = 0; i <= options.state_count; ++i)
    shared[i] = {world.pick<stateport_model_layout>(Kind::layout), world.shard()};
  options.states = world.maybe(shared);
  if (world.input.chance(64)) options.kv = shared + options.state_count;
  options.head_groups = world.input.chance(32) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  options.layers_per_object = world.input.chance(32) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  if (world.input.chance(32)) {
    options.encoding_count = world.input.below(3);
    auto* const encodings = world.room<stateport_object_encoding>(options.encoding_count);
    for (std::size_t i = 0; i < options.encoding_count; ++i) encodings[i] = {world.number() % 9, world.number() % 9};
    options.encodings = encodings;
  }
  options.staging_bytes = world.input.chance(16) ? static_cast<std::uint64_t>(world.wide_number()) : 1 << 18;
  return world.given(options);
}

void unusual(DeviceWorld& world, stateport_state_tiers_options& options) {
  const stateport_shard shard = world.shard();
  options.layer_begin = shard.layer_begin;
  options.layer_end = shard.layer_end;
  options.head_group = shard.head_group;
  options.head_groups = shard.head_groups;
  options.host_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.file_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.free_floor_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.file_queue_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.staging_bytes = static_cast<std::uint64_t>(world.wide_number());
  options.file_transfers_max = static_cast<std::size_t>(world.wide_number());
  options.file_lanes = world.number();
}

void tiers_create(DeviceWorld& world) {
  const std::size_t count = world.input.chance(240) ? 1 + world.input.below(2) : world.input.below(3);
  stateport_store** const states = world.room<stateport_store*>(count);
  for (std::size_t i = 0; i < count; ++i) states[i] = world.pick<stateport_store>(Kind::store);
  stateport_state_tiers_options options = {};
  options.states = world.maybe(states);
  options.state_count = count;
  if (world.input.chance(96)) options.kv = world.pick<stateport_store>(Kind::store);
  options.model = world.model(options.model_bytes);
  options.host_bytes = world.input.below(4) * frame_bytes;
  if (world.input.chance(128)) {
    options.folder = world.folder();
    options.file_bytes = 1 << 18;
  }
  options.staging_bytes = 2 * frame_bytes;
  options.file_queue_bytes = 1 << 18;
  options.scrub = world.flag();
  if (world.input.chance(8)) unusual(world, options);
  options.remote = remote_options(world, count);
  const auto* const given = world.given(options);
  world.make<stateport_state_tiers>(
      Kind::tiers, [&](stateport_state_tiers** out) { return stateport_state_tiers_create(given, out); });
}

/// A store without a user: in the process, or of the caller's functions.
stateport_remote_store* new_remote(DeviceWorld& world) {
  if (world.input.chance(96)) {
    make_client(world);
    return world.pick<stateport_remote_store>(Kind::remote);
  }
  stateport_remote_objects* objects = nullptr;
  stateport_remote_store* store = nullptr;
  if (stateport_remote_objects_create(std::uint64_t{1} << 18, &objects) != STATEPORT_OK) return nullptr;
  world.add(Kind::objects, objects);
  if (stateport_remote_store_in_process(objects, nullptr, world.flag(), &store) == STATEPORT_OK)
    world.add(Kind::remote, store);
  return store;
}

/// Tiers over a store that is made for them, often with a remote tier by the layout of that store.
void matching_tiers(DeviceWorld& world) {
  stateport_model_layout* const layout = world.small_layout();
  stateport_spec* spec = nullptr;
  const stateport_shard whole = {};
  if (layout == nullptr || stateport_model_layout_spec(layout, &whole, &spec) != STATEPORT_OK) return;
  world.add(Kind::spec, spec);
  stateport_store* const states = make_store(world, spec, 6);
  if (states == nullptr) return;
  const stateport_shared_layout shared = {layout, whole};
  stateport_remote_options remote = {};
  remote.size = sizeof remote;
  remote.states = &shared;
  remote.state_count = 1;
  remote.head_groups = 1 + world.flag();
  remote.layers_per_object = world.flag();
  remote.staging_bytes = 1 << 18;
  stateport_state_tiers_options options = {};
  options.size = sizeof options;
  options.states = &states;
  options.state_count = 1;
  options.model = "m";
  options.model_bytes = 1;
  options.host_bytes = (1 + world.input.below(2)) * frame_bytes;
  options.staging_bytes = 2 * frame_bytes;
  if (world.input.chance(128)) {
    remote.store = new_remote(world);
    options.remote = &remote;
  }
  if (world.input.chance(128)) {
    options.folder = world.folder();
    options.file_bytes = 1 << 18;
  }
  world.make<stateport_state_tiers>(
      Kind::tiers, [&](stateport_state_tiers** out) { return stateport_state_tiers_create(&options, out); });
}

std::size_t in_flight(stateport_state_tiers* tiers) {
  stateport_state_tiers_info info = {};
  info.size = sizeof info;
  return stateport_state_tiers_describe(tiers, &info) == STATEPORT_OK ? info.in_flight : 0;
}

/// Usually takes all results, and checks the status of the call that began the transfers.
void settle(DeviceWorld& world, stateport_state_tiers* tiers, stateport_status status) {
  const bool waits = !world.input.chance(24);
  if (status != STATEPORT_OK || !waits) return world.judge(status);
  constexpr int polls_max = 500;
  for (int i = 0; i < polls_max && in_flight(tiers) > 0; ++i) {
    stateport_transfer_result results[8];
    std::size_t count = 0;
    if (stateport_state_tiers_poll(tiers, nullptr, results, std::size(results), &count) != STATEPORT_OK) break;
    for (const stateport_transfer_result& result : std::span(results, count))
      expect(result.status >= STATEPORT_TRANSFER_DONE && result.status <= STATEPORT_TRANSFER_FAILED, "an answer");
    if (count == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  world.judge(status);
}

void describe(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  if (world.input.chance(128)) return world.judge(stateport_state_tiers_check(tiers));
  world.judge(stateport_state_tiers_describe(tiers, world.result<stateport_state_tiers_info>()));
}

stateport_slot_image* images(DeviceWorld& world, std::size_t& count) {
  count = world.input.below(5);
  auto* const all = world.room<stateport_slot_image>(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = {world.key(), world.slot(), world.input.chance(4) ? 1 : 0};
  auto* const given = world.maybe(all);
  if (given == nullptr && count > 0) count = world.strange_count();
  return given;
}

std::int32_t medium(World& world) {
  return world.input.chance(8) ? world.number() : static_cast<std::int32_t>(world.input.below(5));
}

void put(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const given = images(world, count);
  const std::int32_t to = medium(world);
  settle(world, tiers, stateport_state_tiers_put(tiers, stream, given, count, to, world.value<std::uint64_t>()));
}

void get(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const given = images(world, count);
  settle(world, tiers, stateport_state_tiers_get(tiers, stream, given, count, world.value<std::uint64_t>()));
}

void find(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  settle(world, tiers, stateport_state_tiers_find(tiers, stream, keys, count, world.value<std::uint64_t>()));
}

void lookup(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  auto* const media = world.maybe(world.room<std::int32_t>(keys == nullptr ? 0 : count));
  world.judge(stateport_state_tiers_lookup(tiers, keys, count, media));
}

void remove(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  std::size_t count = 0;
  const auto* const keys = world.keys(count);
  settle(world, tiers, stateport_state_tiers_remove(tiers, stream, keys, count));
}

void all_keys(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  const std::int32_t of = medium(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_image_key>(world, capacity, 5);
  world.judge(stateport_state_tiers_keys(tiers, of, out, capacity, world.value<std::size_t>()));
}

void drain(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  settle(world, tiers, stateport_state_tiers_drain(tiers, stream, world.value<std::size_t>()));
}

void execute(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  constexpr struct {
    std::int32_t kind, from, to;
  } ways[] = {{STATEPORT_TRANSFER_STORE, 0, 1}, {STATEPORT_TRANSFER_LOAD, 1, 0},  {STATEPORT_TRANSFER_COPY, 1, 2},
              {STATEPORT_TRANSFER_DROP, 1, 1},  {STATEPORT_TRANSFER_STORE, 0, 2}, {STATEPORT_TRANSFER_LOAD, 2, 0},
              {STATEPORT_TRANSFER_DROP, 2, 2},  {STATEPORT_TRANSFER_STORE, 0, 3}, {STATEPORT_TRANSFER_LOAD, 3, 0},
              {STATEPORT_TRANSFER_FIND, 3, 3},  {STATEPORT_TRANSFER_COPY, 1, 3},  {STATEPORT_TRANSFER_LOAD, 4, 0}};
  std::size_t count = world.input.below(5);
  auto* const transfers = world.room<stateport_transfer>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& way = ways[world.input.below(12)];
    transfers[i] = {static_cast<std::uint64_t>(world.wide_number()),
                    way.kind,
                    way.from,
                    way.to,
                    world.slot(),
                    world.number(),
                    world.key()};
    if (!world.input.chance(12)) continue;
    transfers[i].kind = world.number() % 8;
    transfers[i].from = world.number() % 8;
    transfers[i].to = world.number() % 8;
  }
  const auto* const given = world.maybe(transfers);
  if (given == nullptr && count > 0) count = world.strange_count();
  settle(world, tiers, stateport_state_tiers_execute(tiers, stream, given, count));
}

void poll(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  std::size_t capacity = 0;
  auto* const out = answers<stateport_transfer_result>(world, capacity, 5);
  world.judge(stateport_state_tiers_poll(tiers, stream, out, capacity, world.value<std::size_t>()));
}

// --- Under a request cache -------------------------------------------------------------------------------------------

constexpr std::int32_t block_tokens = 4;
constexpr std::int64_t kv_tokens = 64;

std::int64_t leading_blocks(const std::uint64_t* prefixes, std::size_t count, void* context) {
  static_cast<World*>(context)->read(prefixes, 2 * count);
  return static_cast<std::int64_t>(count);
}

stateport_request_cache* served_cache(DeviceWorld& world, std::uint64_t fingerprint) {
  stateport_tier_options below = {};
  below.size = sizeof below;
  below.host_bytes = static_cast<std::int64_t>(world.input.below(4) * frame_bytes);
  below.file_bytes = world.flag() * (1 << 18);
  below.remote_bytes = world.flag() * (1 << 18);
  below.state_image_bytes = 1 << 15;
  below.kv_image_bytes = 1 << 13;
  below.write_through = world.flag();
  if (world.input.chance(48)) {
    below.leading_blocks = leading_blocks;
    below.leading_blocks_context = &world;
  }
  stateport_state_group group = {};
  group.size = sizeof group;
  group.block_size_tokens = block_tokens;
  group.blocks = 8;
  group.conv_window = 4;
  group.layout_fingerprint = fingerprint;
  stateport_slot_layout slots = {};
  slots.size = sizeof slots;
  slots.layout_fingerprint = fingerprint;
  slots.checkpoints = 3;
  stateport_column_layout columns = {};
  columns.size = sizeof columns;
  columns.groups = &group;
  columns.group_count = 1;
  stateport_request_cache_options options = {};
  options.size = sizeof options;
  const std::int64_t kind = world.input.below(4);
  options.index = static_cast<std::int32_t>(kind % 2);
  options.max_requests = 3;
  options.max_request_tokens = 48;
  options.block_size_tokens = block_tokens;
  options.kv_tokens = kv_tokens;
  options.overlap = world.flag();
  options.tiers = &below;
  if (kind < 2)
    options.slots = &slots;
  else
    options.columns = &columns;
  stateport_request_cache* cache = nullptr;
  if (stateport_request_cache_create(&options, &cache) != STATEPORT_OK) return nullptr;
  world.add(Kind::cache, cache);
  return cache;
}

/// A cache, and stores and tiers that have its slots and blocks, or a few less.
void serve_create(DeviceWorld& world) {
  stateport_spec* const spec = world.small_spec();
  stateport_spec_info info = {};
  info.size = sizeof info;
  expect(stateport_spec_describe(spec, &info) == STATEPORT_OK, "a spec tells itself");
  stateport_request_cache* const cache = served_cache(world, info.fingerprint);
  std::int32_t slots = 0;
  if (cache == nullptr || stateport_request_cache_state_slots(cache, 0, &slots) != STATEPORT_OK) return;
  stateport_tensor_spec block = {};
  block.size = sizeof block;
  block.kind = STATEPORT_RECURRENT;
  block.type = STATEPORT_FP16;
  block.shape[0] = block_tokens;
  block.shape[1] = 3;
  block.shape[2] = 1;
  stateport_spec* blocks = nullptr;
  expect(stateport_spec_create(&block, 1, &blocks) == STATEPORT_OK, "a spec of blocks");
  world.add(Kind::spec, blocks);
  stateport_store* const states = make_store(world, spec, world.input.chance(8) ? 1 : slots);
  stateport_store* const kv = make_store(world, blocks, world.input.chance(8) ? 1 : 2 * kv_tokens);
  if (states == nullptr || kv == nullptr) return;
  stateport_state_tiers_options options = {};
  options.size = sizeof options;
  options.states = &states;
  options.state_count = 1;
  options.kv = world.input.chance(8) ? nullptr : kv;
  options.model = "m";
  options.model_bytes = 1;
  options.host_bytes = (1 + world.input.below(4)) * frame_bytes;
  options.staging_bytes = 2 * frame_bytes;
  if (world.input.chance(128)) {
    options.folder = world.folder();
    options.file_bytes = 1 << 18;
  }
  world.make<stateport_state_tiers>(
      Kind::tiers, [&](stateport_state_tiers** out) { return stateport_state_tiers_create(&options, out); });
}

void begin_transfers(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  stateport_transfer_plan drained = {};
  drained.size = sizeof drained;
  static_cast<void>(stateport_request_cache_drain(cache, world.input.chance(128) ? &drained : nullptr));
  world.judge(stateport_state_tiers_begin_transfers(tiers, stream, cache, drained.transfers, drained.count));
}

void end_transfers(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  world.judge(stateport_state_tiers_end_transfers(tiers, stream, cache, world.value<std::int32_t>()));
}

/// Ends the cache's transfers under way, unless the tiers refuse.
void settle_served(stateport_state_tiers* tiers, stateport_request_cache* cache) {
  constexpr int calls_max = 200;
  for (int i = 0; i < calls_max && in_flight(tiers) > 0; ++i) {
    if (stateport_state_tiers_end_transfers(tiers, nullptr, cache, nullptr) != STATEPORT_OK) return;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/// A request from its start to its end, with all that its passes move.
void serve(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const tiers = pick_tiers(world);
  std::int32_t tokens[24] = {};
  const std::int32_t first = static_cast<std::int32_t>(world.input.below(3));
  for (std::int32_t& token : tokens) token = first + static_cast<std::int32_t>(&token - tokens);
  stateport_prompt prompt = {};
  prompt.size = sizeof prompt;
  prompt.tokens = tokens;
  prompt.count = 1 + world.input.below(24);
  std::int64_t budgets[3] = {};
  for (std::int64_t& budget : budgets) budget = 1 + world.input.below(24);
  const auto how = static_cast<std::int32_t>(world.input.below(3));
  stateport_started_request started = {};
  started.size = sizeof started;
  std::size_t done = 0;
  stateport_status status = stateport_request_cache_start(cache, &prompt, 1, &started, &done);
  const auto begin = [&](const auto& answer) {
    static_cast<void>(
        stateport_state_tiers_begin_transfers(tiers, nullptr, cache, answer.transfers, answer.transfer_count));
  };
  if (status == STATEPORT_OK) begin(started);
  for (const std::int64_t budget : budgets) {
    if (status != STATEPORT_OK) break;
    settle_served(tiers, cache);
    std::int64_t chunk = 0;
    status = stateport_request_cache_chunk(cache, &started.request, &budget, 1, &chunk, nullptr);
    if (status != STATEPORT_OK || chunk == 0) break;
    const auto row_tokens = static_cast<std::int32_t>(chunk);
    stateport_pass_batch batch = {sizeof batch, &started.request, &row_tokens, nullptr, 1};
    stateport_pass_plan plan = {};
    plan.size = sizeof plan;
    status = stateport_request_cache_plan(cache, &batch, &plan);
    if (status != STATEPORT_OK) break;
    begin(plan);
    stateport_pass_plan next = {};
    next.size = sizeof next;
    stateport_pass_commit commit = {};
    commit.size = sizeof commit;
    commit.next = &next;
    const std::int32_t count = 0;
    status = stateport_request_cache_commit(cache, plan.pass, &count, 1, nullptr, 0, &commit);
    if (status == STATEPORT_OK) begin(commit);
  }
  world.judge(status);
  if (done == 0) return;
  stateport_ended_requests ended = {};
  ended.size = sizeof ended;
  status = stateport_request_cache_end(cache, &started.request, 1, how, nullptr, &ended);
  world.judge(status);
  if (status == STATEPORT_OK) begin(ended);
  settle_served(tiers, cache);
}

void take_loads(DeviceWorld& world) {
  auto* const tiers = pick_tiers(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_transfer>(world, capacity, 5);
  world.judge(stateport_state_tiers_take_loads(tiers, out, capacity, world.value<std::size_t>()));
}

void attach(DeviceWorld& world) {
  auto* const cache = pick_cache(world);
  auto* const tiers = pick_tiers(world);
  void* const stream = world.stream();
  world.judge(stateport_state_tiers_attach(tiers, stream, cache, world.result<stateport_attached_images>()));
}

constexpr DeviceCall calls[] = {tiers_create,
                                matching_tiers,
                                matching_tiers,
                                destroy<stateport_state_tiers, Kind::tiers, stateport_state_tiers_destroy>,
                                describe,
                                put,
                                put,
                                put,
                                get,
                                get,
                                find,
                                lookup,
                                remove,
                                all_keys,
                                drain,
                                execute,
                                execute,
                                poll,
                                serve_create,
                                serve_create,
                                begin_transfers,
                                end_transfers,
                                serve,
                                serve,
                                serve,
                                take_loads,
                                attach};

}  // namespace

Family tiers_family() {
  static constexpr DeviceCall begin[] = {matching_tiers, serve_create};
  return {begin, calls};
}

}  // namespace stateport::fuzz
