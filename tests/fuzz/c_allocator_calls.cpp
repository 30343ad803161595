// SPDX-License-Identifier: Apache-2.0
// The slot allocator, and the checkpoint planner over it.
#include "c_world.hpp"

namespace stateport::fuzz {
namespace {

stateport_slot_allocator* pick_allocator(World& world) {
  return world.pick<stateport_slot_allocator>(Kind::allocator);
}
stateport_checkpoint_planner* pick_planner(World& world) {
  return world.pick<stateport_checkpoint_planner>(Kind::planner);
}

void hear_victim(const stateport_slot_victim* victim, void* context) {
  World& world = *static_cast<World*>(context);
  world.know(victim->block);
  const stateport_status status =
      stateport_slot_allocator_advance_tick(static_cast<stateport_slot_allocator*>(world.living(Kind::allocator)));
  expect(status == STATEPORT_OK || status == STATEPORT_INVALID_STATE || status == STATEPORT_INVALID_HANDLE,
         "a call in a callback");
}

void allocator_create(World& world) {
  stateport_slot_allocator_options options = {};
  options.blocks = world.capacity();
  options.slots = world.capacity();
  options.policy = world.input.chance(8) ? world.number() : world.flag();
  options.external_blocks = world.flag();
  if (options.external_blocks != 0 && world.input.chance(200)) options.policy = 0;
  options.eviction = eviction(world);
  if (world.input.chance(96)) {
    options.on_victim = hear_victim;
    options.on_victim_context = &world;
  }
  const auto* const given = world.given(options, options.on_victim != nullptr ? sizeof options : 0);
  world.make<stateport_slot_allocator>(
      Kind::allocator, [&](stateport_slot_allocator** out) { return stateport_slot_allocator_create(given, out); });
}

void allocator_destroy(World& world) {
  auto* const allocator = pick_allocator(world);
  const stateport_status status = stateport_slot_allocator_destroy(allocator);
  if (status == STATEPORT_OK) world.forget(allocator);
  world.judge(status);
}

void allocator_describe(World& world) {
  auto* const allocator = pick_allocator(world);
  world.judge(stateport_slot_allocator_describe(allocator, world.result<stateport_slot_allocator_info>()));
}

void allocate_blocks(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::size_t count = world.input.below(8);
  auto* const out = world.maybe(world.room<std::int32_t>(count));
  const stateport_status status = stateport_slot_allocator_allocate_blocks(allocator, out, count);
  if (status == STATEPORT_OK)
    for (std::size_t i = 0; i < count; ++i) world.know(out[i]);
  world.judge(status);
}

/// The calls that name blocks and answer nothing.
template <auto call>
void name_blocks(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const blocks = world.array<std::int32_t>(count, &World::number);
  world.judge(call(allocator, blocks, count));
}

void register_blocks(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const blocks = world.array<std::int32_t>(count, &World::number);
  const std::size_t room = blocks == nullptr ? 0 : count;
  const auto* const hashes = world.maybe(world.room(room, &World::wide_number));
  const auto* const parents = world.input.chance(128) ? nullptr : world.room(room, &World::wide_number);
  world.judge(stateport_slot_allocator_register_blocks(allocator, blocks, hashes, parents, count));
}

void clear_blocks(World& world) {
  world.judge(stateport_slot_allocator_clear_blocks(pick_allocator(world)));
}

void find_blocks(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const hashes = world.array<std::int64_t>(count, &World::wide_number);
  auto* const blocks = world.maybe(world.room<std::int32_t>(hashes == nullptr ? 0 : count));
  world.judge(stateport_slot_allocator_find_blocks(allocator, hashes, count, blocks, world.value<std::size_t>()));
}

void advance_tick(World& world) {
  world.judge(stateport_slot_allocator_advance_tick(pick_allocator(world)));
}

void allocate_slots(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const blocks = world.array<std::int32_t>(count, &World::number);
  auto* const slots = world.maybe(world.room<std::int32_t>(blocks == nullptr ? 0 : count));
  const stateport_status status = stateport_slot_allocator_allocate_slots(allocator, blocks, count, slots);
  if (status == STATEPORT_OK)
    for (std::size_t i = 0; i < count; ++i) world.know(slots[i]);
  world.judge(status);
}

void evict(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::int64_t states = world.wide_number();
  world.judge(stateport_slot_allocator_evict(allocator, states, world.value<std::int64_t>()));
}

void peek_victims(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::size_t capacity = world.input.below(8);
  auto* const out = world.results<stateport_slot_victim>(capacity, true);
  world.judge(stateport_slot_allocator_peek_victims(allocator, out, capacity, world.value<std::size_t>()));
}

void slot_of(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::int32_t block = world.number();
  world.judge(stateport_slot_allocator_slot_of(allocator, block, world.value<std::int32_t>()));
}

void set_tag(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::int32_t block = world.number();
  world.judge(stateport_slot_allocator_set_tag(allocator, block, world.given(tag(world))));
}

void register_states(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const blocks = world.array<std::int32_t>(count, &World::number);
  const auto* const hashes = world.maybe(world.room(blocks == nullptr ? 0 : count, &World::wide_number));
  world.judge(stateport_slot_allocator_register_states(allocator, blocks, hashes, count));
}

void note_served(World& world) {
  auto* const allocator = pick_allocator(world);
  stateport_served_prompt prompt = {};
  prompt.now_s = world.real();
  prompt.hashes = world.array<std::int64_t>(prompt.count, &World::wide_number);
  prompt.usable_blocks = world.number();
  prompt.matched_blocks = world.number();
  prompt.hit_blocks = world.number();
  prompt.hint = hint(world);
  world.judge(stateport_slot_allocator_note_served(allocator, world.given(prompt)));
}

void find_state(World& world) {
  auto* const allocator = pick_allocator(world);
  std::size_t count = 0;
  const auto* const hashes = world.array<std::int64_t>(count, &World::wide_number);
  world.judge(stateport_slot_allocator_find_state(allocator, hashes, count, world.result<stateport_found_state>()));
}

void restore(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::int32_t block = world.number();
  const std::int32_t live = world.number();
  const auto* const wanted = world.given(tag(world));
  world.judge(stateport_slot_allocator_restore(allocator, block, live, wanted, world.result<stateport_restore>()));
}

void withdraw(World& world) {
  auto* const allocator = pick_allocator(world);
  world.judge(stateport_slot_allocator_withdraw(allocator, world.number()));
}

void pin(World& world) {
  auto* const allocator = pick_allocator(world);
  const std::int32_t number = world.number();
  if (world.input.chance(128)) return world.judge(stateport_slot_allocator_unpin(allocator, number));
  world.judge(stateport_slot_allocator_pin(allocator, number, world.value<std::int32_t>()));
}

void allocator_check(World& world) {
  world.judge(stateport_slot_allocator_check(pick_allocator(world)));
}

/// The calls of a request that leaves a state.
void keep_state(World& world) {
  auto* const allocator = pick_allocator(world);
  std::int32_t block = 0;
  std::int32_t slot = 0;
  const std::int64_t hash = world.wide_number();
  stateport_tag wanted = tag(world);
  wanted.size = sizeof wanted;
  stateport_status status = stateport_slot_allocator_allocate_blocks(allocator, &block, 1);
  if (status == STATEPORT_OK) {
    world.know(block);
    world.know(hash);
    status = stateport_slot_allocator_register_blocks(allocator, &block, &hash, nullptr, 1);
  }
  if (status == STATEPORT_OK) status = stateport_slot_allocator_allocate_slots(allocator, &block, 1, &slot);
  if (status == STATEPORT_OK) status = stateport_slot_allocator_set_tag(allocator, block, &wanted);
  if (status == STATEPORT_OK) status = stateport_slot_allocator_register_states(allocator, &block, &hash, 1);
  if (world.input.chance(128)) static_cast<void>(stateport_slot_allocator_release_blocks(allocator, &block, 1));
  world.judge(status);
}

void planner_create(World& world) {
  auto* const allocator = pick_allocator(world);
  stateport_checkpoint_options options = {};
  options.block_size_tokens = world.capacity();
  options.alignment_tokens = world.input.chance(200) ? 1 : world.capacity();
  options.max_rows = world.capacity();
  options.layout_fingerprint = world.input.below(3);
  const auto* const given = world.given(options);
  world.make<stateport_checkpoint_planner>(Kind::planner, [&](stateport_checkpoint_planner** out) {
    return stateport_checkpoint_planner_create(allocator, given, out);
  });
}

void planner_destroy(World& world) {
  auto* const planner = pick_planner(world);
  const stateport_status status = stateport_checkpoint_planner_destroy(planner);
  if (status == STATEPORT_OK) world.forget(planner);
  world.judge(status);
}

void planner_plan(World& world) {
  auto* const planner = pick_planner(world);
  std::vector<stateport_prefill_chunk> chunks(world.input.below(3));
  for (stateport_prefill_chunk& chunk : chunks) {
    chunk.row = world.number();
    chunk.live_slot = world.number();
    chunk.prompt_tokens = world.wide_number();
    chunk.finished_tokens = world.input.chance(128) ? world.wide_number() : 0;
    chunk.skip_tokens = world.input.chance(64) ? world.wide_number() : 0;
    chunk.chunk_tokens = world.wide_number();
    chunk.matched_blocks = world.number();
    chunk.required_blocks = world.number();
    chunk.blocks = world.array<std::int32_t>(chunk.block_count, &World::number);
    chunk.prefix_count = chunk.blocks == nullptr ? 0 : chunk.block_count;
    chunk.prefixes = world.room<std::uint64_t>(2 * chunk.prefix_count);
  }
  const auto* const given = world.structs(chunks);
  auto* const out = world.results<stateport_planned_checkpoints>(chunks.size(), false);
  world.judge(stateport_checkpoint_planner_plan(planner, given, chunks.size(), out, world.value<std::size_t>(false)));
}

void planner_arrays(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t rows = world.number();
  auto* const out = world.result<stateport_checkpoint_arrays>();
  const stateport_status status = stateport_checkpoint_planner_device_arrays(planner, rows, out);
  if (status == STATEPORT_OK && out->size == sizeof *out && out->counts != nullptr) {
    world.read(out->offsets, static_cast<std::size_t>(rows) * STATEPORT_CHECKPOINTS_MAX);
    world.read(out->counts, static_cast<std::size_t>(rows));
  }
  world.judge(status);
}

void planner_commit(World& world) {
  auto* const planner = pick_planner(world);
  auto* const out = world.result<stateport_checkpoint_commit>();
  const stateport_status status = stateport_checkpoint_planner_commit(planner, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) {
    world.read(out->from_scratch, out->scratch_count);
    world.read(out->from_live, out->live_count);
  }
  world.judge(status);
}

template <auto call>
void tell_planner(World& world) {
  world.judge(call(pick_planner(world)));
}

void numbers_of_slots(World& world) {
  if (world.input.chance(128)) {
    const std::int64_t tokens = world.wide_number();
    const std::int32_t block = world.number();
    const std::int32_t requests = world.number();
    world.judge(stateport_scratch_slots_bound(tokens, block, requests, world.value<std::int32_t>()));
  } else {
    const auto budget = static_cast<std::size_t>(world.wide_number());
    const auto slot = static_cast<std::size_t>(world.wide_number());
    const std::int32_t scratch = world.number();
    world.judge(stateport_slots_for_budget(budget, slot, scratch, world.value<std::int64_t>()));
  }
}

constexpr Call calls[] = {allocator_create,
                          allocator_destroy,
                          allocator_describe,
                          allocate_blocks,
                          name_blocks<stateport_slot_allocator_retain_blocks>,
                          name_blocks<stateport_slot_allocator_release_blocks>,
                          name_blocks<stateport_slot_allocator_deregister_blocks>,
                          name_blocks<stateport_slot_allocator_invalidate>,
                          register_blocks,
                          clear_blocks,
                          find_blocks,
                          advance_tick,
                          allocate_slots,
                          evict,
                          peek_victims,
                          slot_of,
                          set_tag,
                          register_states,
                          note_served,
                          find_state,
                          restore,
                          withdraw,
                          pin,
                          allocator_check,
                          keep_state,
                          keep_state,
                          planner_create,
                          planner_destroy,
                          planner_plan,
                          planner_plan,
                          planner_arrays,
                          planner_commit,
                          tell_planner<stateport_checkpoint_planner_publish>,
                          tell_planner<stateport_checkpoint_planner_abandon>,
                          tell_planner<stateport_checkpoint_planner_clear>,
                          tell_planner<stateport_checkpoint_planner_check>,
                          numbers_of_slots};

}  // namespace

std::span<const Call> allocator_calls() {
  return calls;
}

}  // namespace stateport::fuzz
