// SPDX-License-Identifier: Apache-2.0
// The align planner.
#include "c_world.hpp"

namespace stateport::fuzz {
namespace {

stateport_align_planner* pick_planner(World& world) {
  return world.pick<stateport_align_planner>(Kind::align);
}

std::int32_t group(World& world) {
  return world.input.chance(32) ? world.number() : 0;
}

void align_create(World& world) {
  std::vector<stateport_align_group> groups(world.input.chance(240) ? 1 + world.input.below(2) : world.input.below(3));
  for (stateport_align_group& one : groups) {
    one.block_size_tokens = world.capacity();
    one.blocks = world.capacity();
    one.conv_window = world.capacity() % 5;
    one.retention_tokens = world.input.chance(64) ? world.wide_number() : 0;
  }
  stateport_align_options options = {};
  options.drafts = world.input.chance(128) ? world.capacity() % 5 : 0;
  options.max_requests = world.capacity();
  options.groups = world.structs(groups);
  options.group_count = groups.size();
  options.mode = world.input.chance(96) ? world.number() : 0;
  const auto* const given = world.given(options);
  world.make<stateport_align_planner>(
      Kind::align, [&](stateport_align_planner** out) { return stateport_align_planner_create(given, out); });
}

void align_destroy(World& world) {
  auto* const planner = pick_planner(world);
  const stateport_status status = stateport_align_planner_destroy(planner);
  if (status == STATEPORT_OK) world.forget(planner);
  world.judge(status);
}

void add_requests(World& world) {
  auto* const planner = pick_planner(world);
  std::size_t count = 0;
  const auto* const requests = world.array<std::int32_t>(count, &World::number);
  const auto* const computed = world.maybe(world.room(requests == nullptr ? 0 : count, &World::wide_number));
  world.judge(stateport_align_planner_add_requests(planner, requests, computed, count));
}

void forget_requests(World& world) {
  auto* const planner = pick_planner(world);
  std::size_t count = 0;
  const auto* const requests = world.array<std::int32_t>(count, &World::number);
  world.judge(stateport_align_planner_forget(planner, requests, count));
}

template <auto call>
void step(World& world) {
  auto* const planner = pick_planner(world);
  const std::size_t rows = world.input.below(5);
  stateport_align_batch batch = {};
  batch.request = world.maybe(world.room(rows, &World::number));
  batch.computed = world.maybe(world.room(rows, &World::number));
  batch.scheduled = world.maybe(world.room(rows, &World::number));
  batch.drafts = world.input.chance(128) ? world.room(rows, &World::number) : nullptr;
  batch.rows = world.input.chance(8) ? -static_cast<std::int32_t>(world.input.take()) : static_cast<std::int32_t>(rows);
  std::vector<stateport_block_table> tables(world.input.chance(16) ? world.input.below(4) : 1);
  for (stateport_block_table& table : tables) {
    const std::int32_t columns = static_cast<std::int32_t>(world.input.below(10));
    table.id_count = rows * static_cast<std::size_t>(columns);
    table.ids = world.maybe(world.room(table.id_count, &World::number));
    table.row_stride = world.input.chance(16) ? world.wide_number() : columns;
    table.columns = world.input.chance(16) ? world.number() : columns;
  }
  const auto* const given_batch = world.given(batch);
  const auto* const given_tables = world.structs(tables);
  auto* const out = world.result<stateport_align_step>();
  world.judge(call(planner, given_batch, given_tables, tables.size(), out));
}

void accept(World& world) {
  auto* const planner = pick_planner(world);
  std::size_t rows = 0;
  const auto* const requests = world.array<std::int32_t>(rows, &World::number);
  const auto* const sampled = world.maybe(world.room(requests == nullptr ? 0 : rows, &World::number));
  world.judge(stateport_align_planner_accept(planner, requests, sampled, rows));
}

void plan(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  const stateport_slot_copy* copies = nullptr;
  std::size_t count = 0;
  const stateport_status status = stateport_align_planner_plan(planner, of, world.input.chance(4) ? nullptr : &copies,
                                                               world.input.chance(4) ? nullptr : &count);
  if (status == STATEPORT_OK) world.read(copies, count);
  world.judge(status);
}

void arrays(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  world.judge(stateport_align_planner_arrays(planner, of, world.result<stateport_align_arrays>()));
}

void gather(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  std::size_t rows = 0;
  const auto* const requests = world.array<std::int32_t>(rows, &World::number);
  auto* const out = world.maybe(world.room<std::int32_t>(requests == nullptr ? 0 : rows));
  world.judge(stateport_align_planner_gather_accepted(planner, of, requests, rows, out));
}

void retention(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  const std::int64_t start = world.wide_number();
  std::size_t count = 0;
  const auto* const boundaries = world.array<std::int64_t>(count, &World::wide_number);
  const std::size_t columns = world.input.below(20);
  auto* const keep = world.maybe(world.room<std::uint8_t>(columns));
  world.judge(stateport_align_planner_retention(planner, of, start, boundaries, count, keep, columns));
}

void checkpoint_in(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  const auto* const chunk = world.given(stateport_chunk_checkpoint{.size = 0,
                                                                   .start = world.wide_number(),
                                                                   .end = world.wide_number(),
                                                                   .position = world.wide_number(),
                                                                   .hash_block = world.wide_number(),
                                                                   .alignment = world.wide_number()});
  auto* const column = world.value<std::int32_t>();
  world.judge(stateport_align_planner_checkpoint_in(planner, of, chunk, column, world.value<std::int64_t>()));
}

void publish(World& world) {
  auto* const planner = pick_planner(world);
  const std::int32_t of = group(world);
  std::size_t count = 0;
  const auto* const blocks = world.array<std::int32_t>(count, &World::number);
  const std::size_t room = blocks == nullptr ? 0 : count;
  const auto* const tokens = world.maybe(world.room(room, &World::wide_number));
  if (world.input.chance(128)) return world.judge(stateport_align_planner_wrote(planner, of, blocks, tokens, count));
  auto* const published = world.maybe(world.room<std::uint8_t>(room));
  world.judge(stateport_align_planner_publish(planner, of, blocks, tokens, count, published));
}

void check(World& world) {
  world.judge(stateport_align_planner_check(pick_planner(world)));
}

constexpr Call calls[] = {align_create,
                          align_destroy,
                          add_requests,
                          add_requests,
                          forget_requests,
                          step<stateport_align_planner_pre_step>,
                          step<stateport_align_planner_pre_step>,
                          step<stateport_align_planner_post_step>,
                          step<stateport_align_planner_post_step_advanced>,
                          accept,
                          plan,
                          arrays,
                          gather,
                          retention,
                          checkpoint_in,
                          publish,
                          check};

}  // namespace

std::span<const Call> align_calls() {
  return calls;
}

}  // namespace stateport::fuzz
