// SPDX-License-Identifier: Apache-2.0
// The request cache, its tiers and its arena.
#include "c_world.hpp"

#include <algorithm>

namespace stateport::fuzz {
namespace {

stateport_request_cache* pick_cache(World& world) {
  return world.pick<stateport_request_cache>(Kind::cache);
}

std::int64_t hear_blocks(const std::uint64_t* prefixes, std::size_t count, void* context) {
  World& world = *static_cast<World*>(context);
  world.read(prefixes, 2 * count);
  const auto answer = static_cast<std::int64_t>(world.input.below(4));
  return world.input.chance(8) ? world.wide_number() : std::min(answer, static_cast<std::int64_t>(count));
}

const stateport_tier_options* tiers(World& world) {
  if (world.input.chance(160)) return nullptr;
  const auto bytes = [&] { return world.input.chance(160) ? 64 * world.input.take() : world.wide_number(); };
  stateport_tier_options options = {};
  options.host_bytes = bytes();
  options.file_bytes = bytes();
  options.remote_bytes = bytes();
  options.state_image_bytes = world.input.chance(200) ? 64 : world.wide_number();
  options.kv_image_bytes = world.input.chance(200) ? 16 : world.wide_number();
  options.queue_bytes = world.input.chance(64) ? world.wide_number() : 0;
  options.write_through = world.flag();
  if (world.input.chance(64)) {
    options.host_bytes_per_s = world.real();
    options.file_bytes_per_s = world.real();
    options.tokens_per_s = world.real();
    options.remote_bytes_per_s = world.real();
    options.remote_latency_s = world.real();
    options.max_finds = world.number();
  }
  if (world.input.chance(48)) {
    options.leading_blocks = hear_blocks;
    options.leading_blocks_context = &world;
  }
  return world.given(options);
}

const stateport_arena* arena(World& world) {
  const auto extent_count = [&] {
    return world.input.chance(224) ? static_cast<std::int32_t>(world.input.below(4)) : world.number();
  };
  stateport_arena result = {};
  result.bytes = world.input.chance(224) ? 16 * world.input.take() : world.wide_number();
  result.kv_extent_count = extent_count();
  result.kv_extent_bytes = world.input.chance(224) ? 16 : world.wide_number();
  result.states_extent_count = extent_count();
  result.states_extent_bytes = world.input.chance(224) ? 64 : world.wide_number();
  result.state_share = world.input.chance(64) ? world.real() : 0;
  return world.given(result);
}

/// Options, and both layouts. Now and then both are given, or none.
struct Setup {
  stateport_request_cache_options options = {};
  stateport_slot_layout slots = {};
  stateport_column_layout columns = {};
};

const stateport_prefix_options* prefix_options(World& world) {
  return world.given(stateport_prefix_options{.size = 0,
                                              .pins = world.input.chance(16) ? world.number() : 2,
                                              .pinned_bytes = world.input.chance(16) ? world.wide_number() : 1'000'000,
                                              .prefetches = static_cast<std::int32_t>(world.input.below(3)),
                                              .prefetched_bytes = 1'000'000});
}

const stateport_session_options* session_options(World& world) {
  return world.given(stateport_session_options{.size = 0,
                                               .remembered = world.input.chance(16) ? world.number() % 100'000 : 8,
                                               .idle_s = world.input.chance(64) ? world.real() : 0,
                                               .most_bytes = world.input.chance(64) ? world.wide_number() : 0});
}

const stateport_share_running* share_running(World& world) {
  stateport_share_running result = {};
  result.least_tokens = world.input.chance(224) ? world.input.below(24) : world.wide_number();
  result.longest_commits = world.input.chance(224) ? static_cast<std::int32_t>(world.input.below(24)) : world.number();
  return world.given(result);
}

void unusual(World& world, Setup& setup) {
  setup.columns.mode = world.number();
  setup.options.unchecked_layout = world.flag();
  setup.slots.scan_alignment_tokens = world.number();
  setup.slots.decode_checkpoint_tokens = world.wide_number();
  setup.options.hash = world.input.chance(16) ? world.number() : world.flag();
  setup.options.cost_linear = world.real();
  setup.options.cost_quadratic = world.real();
  setup.options.position_tokens = world.capacity();
  setup.slots.budget_bytes = world.wide_number();
  setup.slots.spare_checkpoint_tokens = world.wide_number();
  setup.slots.breakpoint_saves = world.number();
  setup.slots.tail_tokens = world.wide_number();
}

void set_groups(World& world, stateport_column_layout& columns, std::size_t count) {
  std::vector<stateport_state_group> groups(count);
  for (stateport_state_group& group : groups) {
    group.block_size_tokens = world.input.chance(32) ? world.number() : 4;
    group.blocks = world.input.chance(32) ? world.capacity() : 40;
    group.conv_window = world.capacity() % 5;
    group.layout_fingerprint = 7;
  }
  columns.groups = world.structs(groups);
  columns.group_count = groups.size();
}

void cache_create(World& world) {
  Setup setup;
  stateport_request_cache_options& options = setup.options;
  const bool wrong = world.input.chance(8);
  const auto kind = static_cast<std::int32_t>(world.input.below(wrong ? 5 : 4));  // 4: an index that does not exist
  const bool columns = kind == 2 || kind == 3;
  options.index = kind == 4 ? 2 : kind % 2;
  options.max_requests = world.capacity() % 9;
  options.max_request_tokens = world.input.chance(16) ? world.wide_number() : 48;
  options.drafts = world.input.chance(96) ? world.capacity() % 5 : 0;
  options.block_size_tokens = world.input.chance(16) ? world.number() : 4;
  options.kv_tokens = world.input.chance(16) ? world.wide_number() : 16 * world.input.below(32);
  setup.slots.layout_fingerprint = 7;
  setup.slots.checkpoints = world.capacity();
  options.overlap = world.flag();
  options.events = world.flag();
  setup.slots.placement = columns ? 0 : static_cast<std::int32_t>(world.input.below(6));
  setup.slots.separate_checkpoints = columns ? 0 : world.flag();
  // 0: none is given; 32 to 47: prompts wait for each other; 48 to 63: an arena; 64: both. Half of them: checks.
  const std::uint32_t unusual_layout = world.input.below(65);
  set_groups(world, setup.columns, 1 + world.input.below(2));
  options.eviction = eviction(world);
  if (world.input.chance(48)) unusual(world, setup);
  options.tiers = tiers(world);
  if (unusual_layout >= 32 && unusual_layout < 48) options.share_running = share_running(world);
  options.integrity = unusual_layout % 8 < 4;
  if (unusual_layout % 4 == 1) options.prefixes = prefix_options(world);
  if (unusual_layout % 4 == 2) options.sessions = session_options(world);
  if (!columns && unusual_layout >= 48) setup.slots.arena = arena(world);
  if (unusual_layout == 64 || (!columns && unusual_layout != 0)) options.slots = world.given(setup.slots);
  if (unusual_layout == 64 || (columns && unusual_layout != 0)) options.columns = world.given(setup.columns);
  const auto* const given = world.given(options);
  world.make<stateport_request_cache>(
      Kind::cache, [&](stateport_request_cache** out) { return stateport_request_cache_create(given, out); });
}

void cache_destroy(World& world) {
  auto* const cache = pick_cache(world);
  const stateport_status status = stateport_request_cache_destroy(cache);
  if (status == STATEPORT_OK) world.forget(cache);
  world.judge(status);
}

void describe(World& world) {
  auto* const cache = pick_cache(world);
  const auto group = static_cast<std::size_t>(world.input.chance(16) ? world.wide_number() : 0);
  switch (world.input.below(5)) {
    case 0:
      return world.judge(stateport_request_cache_describe(cache, world.result<stateport_request_cache_info>()));
    case 1:
      return world.judge(stateport_request_cache_state_slots(cache, group, world.value<std::int32_t>()));
    case 2:
      return world.judge(stateport_request_cache_checkpoint_slots(cache, group, world.value<std::int32_t>()));
    case 3:
      return world.judge(stateport_request_cache_stats(cache, world.result<stateport_cache_stats>()));
    default: {
      const std::int32_t medium = world.number() % 8;
      world.judge(stateport_request_cache_tier_usage(cache, medium, world.result<stateport_tier_usage>()));
    }
  }
}

stateport_prompt prompt(World& world) {
  stateport_prompt prompt = {};
  prompt.tokens = world.array<std::int32_t>(prompt.count, &World::number);
  prompt.name_space = name_space(world);
  prompt.media = media(world, prompt.media_count);
  prompt.hint = hint(world);
  prompt.now_s = world.input.chance(32) ? world.real() : 0;
  prompt.search = world.input.chance(32) ? world.number() : 0;
  return prompt;
}

void start(World& world) {
  auto* const cache = pick_cache(world);
  std::vector<stateport_prompt> prompts(world.input.chance(32) ? world.input.below(4) : 1);
  for (stateport_prompt& wanted : prompts) wanted = prompt(world);
  const auto* const given = world.structs(prompts);
  auto* const out = world.results<stateport_started_request>(prompts.size(), false);
  auto* const done = world.value<std::size_t>(false);
  if (done != nullptr) *done = 0;
  const stateport_status status = stateport_request_cache_start(cache, given, prompts.size(), out, done);
  if (done != nullptr && out != nullptr && *done > 0 && *done <= prompts.size() && out->size >= 16)
    world.know(out->request);
  world.judge(status);
}

void chunk(World& world) {
  auto* const cache = pick_cache(world);
  std::size_t count = 0;
  const auto* const requests = world.array<std::int64_t>(count, &World::wide_number);
  const std::size_t room = requests == nullptr ? 0 : count;
  const auto* const budgets = world.maybe(world.room(room, &World::wide_number));
  auto* const tokens = world.maybe(world.room<std::int64_t>(room));
  auto* const least_budgets = world.maybe(world.room<std::int64_t>(room));
  world.judge(stateport_request_cache_chunk(cache, requests, budgets, count, tokens, least_budgets));
}

std::size_t groups_of(World& world, const stateport_request_cache* cache) {
  stateport_request_cache_info info = {};
  info.size = sizeof info;
  const bool reported =
      stateport_request_cache_describe(const_cast<stateport_request_cache*>(cache), &info) == STATEPORT_OK;
  return reported && !world.input.chance(8) ? info.groups : world.input.below(4);
}

stateport_pass_plan* room_for_plan(World& world, std::size_t groups) {
  stateport_pass_plan plan = {};
  plan.group_count = world.input.chance(200) ? groups : 0;
  plan.groups = plan.group_count == 0 ? nullptr : world.results<stateport_group_plan>(plan.group_count, false);
  return world.results<stateport_pass_plan>(1, false, plan);
}

void read_group(World& world, const stateport_group_plan& group, std::size_t rows) {
  world.read(group.clear, group.clear_count);
  world.read(group.copies, group.copy_count);
  world.read(group.saves, group.save_count);
  for (const std::int32_t* array : {group.read_column, group.read_bias, group.write_column, group.read_slot,
                                    group.read_recurrent_slot, group.write_slot})
    if (array != nullptr) world.read(array, rows);
  if (group.slot_count != nullptr)
    for (std::size_t i = 0; i < rows; ++i) world.read(group.slots[i], static_cast<std::size_t>(group.slot_count[i]));
}

void read_transfers(World& world, const stateport_transfer* transfers, std::size_t count) {
  world.read(transfers, count);
  for (std::size_t i = 0; i < count; ++i) {
    world.know(static_cast<std::int64_t>(transfers[i].id));
    world.know(static_cast<std::int64_t>(transfers[i].image.prefix[0]));
  }
}

template <class Answer>
void read_memory(World& world, const Answer& answer) {
  world.read(answer.kv_copies, answer.kv_copy_count);
  world.read(answer.moves, answer.move_count);
  for (std::size_t i = 0; i < answer.move_count; ++i) world.know(static_cast<std::int64_t>(answer.moves[i].id));
}

void read_plan(World& world, const stateport_pass_plan* plan) {
  if (plan == nullptr || plan->size != sizeof *plan) return;
  read_transfers(world, plan->transfers, plan->transfer_count);
  read_memory(world, *plan);
  world.know(static_cast<std::int64_t>(plan->pass));
  if (plan->room != nullptr) world.read(plan->room, plan->rows);
  if (plan->ready == 0) return;
  if (plan->start != nullptr) world.read(plan->start, plan->rows);
  if (plan->kv != nullptr)
    for (std::size_t i = 0; i < plan->rows; ++i) world.read(plan->kv[i], static_cast<std::size_t>(plan->kv_count[i]));
  if (plan->groups != nullptr && plan->group_count > 0 && plan->groups->size == sizeof *plan->groups)
    for (std::size_t g = 0; g < plan->group_count; ++g) read_group(world, plan->groups[g], plan->rows);
}

void plan(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t groups = groups_of(world, cache);
  const std::size_t rows = world.input.below(5);
  stateport_pass_batch batch = {};
  batch.request = world.maybe(world.room(rows, &World::wide_number));
  batch.tokens = world.maybe(world.room(rows, &World::number));
  batch.drafts = world.input.chance(160) ? nullptr : world.room(rows, &World::number);
  batch.rows = rows;
  const auto* const given = world.given(batch);
  auto* const out = room_for_plan(world, groups);
  const stateport_status status = stateport_request_cache_plan(cache, given, out);
  if (status == STATEPORT_OK) read_plan(world, out);
  world.judge(status);
}

void cancel(World& world) {
  auto* const cache = pick_cache(world);
  world.judge(stateport_request_cache_cancel(cache, static_cast<std::uint64_t>(world.wide_number())));
}

stateport_pass_commit* room_for_commit(World& world, std::size_t groups, const std::int32_t* steps = nullptr) {
  stateport_pass_commit commit = {};
  commit.steps = steps;
  commit.group_count = world.input.chance(200) ? groups : 0;
  commit.groups = commit.group_count == 0 ? nullptr : world.results<stateport_group_commit>(commit.group_count, false);
  commit.next = world.maybe(room_for_plan(world, groups));
  return world.results<stateport_pass_commit>(1, false, commit);
}

void read_commit(World& world, const stateport_pass_commit* commit) {
  if (commit->size != sizeof *commit) return;
  read_transfers(world, commit->transfers, commit->transfer_count);
  read_memory(world, *commit);
  world.read(commit->kv_moves, commit->kv_move_count);
  if (commit->has_next != 0) read_plan(world, commit->next);
  if (commit->groups == nullptr || commit->group_count == 0 || commit->groups->size != sizeof *commit->groups) return;
  for (std::size_t g = 0; g < commit->group_count; ++g) {
    world.read(commit->groups[g].steps, commit->groups[g].step_count);
    world.read(commit->groups[g].from_scratch, commit->groups[g].from_scratch_count);
    world.read(commit->groups[g].copies, commit->groups[g].copy_count);
  }
}

void commit(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t groups = groups_of(world, cache);
  const auto pass = static_cast<std::uint64_t>(world.wide_number());
  const std::size_t rows = world.input.below(5);
  const auto* const counts = world.maybe(world.room(rows, &World::number));
  std::size_t sampled_count = 0;
  const auto* const sampled = world.array<std::int32_t>(sampled_count, &World::number);
  auto* const out = room_for_commit(world, groups);
  const stateport_status status =
      stateport_request_cache_commit(cache, pass, counts, rows, sampled, sampled_count, out);
  if (status == STATEPORT_OK) read_commit(world, out);
  world.judge(status);
}

/// As an owner of memory does it that has enough.
void carry_out(World& world, stateport_request_cache* cache, const stateport_memory_move* moves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) world.judge(stateport_request_cache_settle_move(cache, moves[i].id, 1));
}

/// A pass of one request, from its chunk to its commit, as an engine does it.
void run_pass(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t groups = groups_of(world, cache);
  const std::int64_t request = world.wide_number();
  const std::int64_t budget = 1 + world.input.below(16);
  std::int64_t tokens = 0;
  stateport_status status = stateport_request_cache_chunk(cache, &request, &budget, 1, &tokens, nullptr);
  const auto row_tokens = static_cast<std::int32_t>(tokens);
  const std::int32_t drafts = world.flag() * std::max(row_tokens - 1, 0);
  stateport_pass_batch batch = {sizeof batch, &request, &row_tokens, &drafts, 1};
  stateport_pass_plan* const out = room_for_plan(world, groups);
  if (status == STATEPORT_OK) status = stateport_request_cache_plan(cache, &batch, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) {
    read_plan(world, out);
    const std::int32_t count = world.flag() + (drafts > 0 ? world.flag() : 0);
    const std::int32_t sampled[] = {world.number(), world.number()};
    auto* const committed = room_for_commit(world, groups);
    status = stateport_request_cache_commit(cache, out->pass, &count, 1, sampled, static_cast<std::size_t>(count),
                                            committed);
    if (status == STATEPORT_OK) {
      read_commit(world, committed);
      if (committed->size == sizeof *committed) carry_out(world, cache, committed->moves, committed->move_count);
    }
  }
  world.judge(status);
}

/// A pass of one request over a tree of drafts.
void run_tree(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t groups = groups_of(world, cache);
  const std::int64_t request = world.wide_number();
  const auto drafts = static_cast<std::int32_t>(1 + world.input.below(4));
  const std::int32_t tokens = 1 + drafts;
  auto* const parents = world.room<std::int32_t>(static_cast<std::size_t>(drafts));
  for (std::int32_t i = 0; i < drafts; ++i)
    parents[i] = world.input.chance(4)
                     ? world.number()
                     : static_cast<std::int32_t>(world.input.below(1 + static_cast<std::uint32_t>(i)));
  stateport_pass_batch batch = {};
  batch.size = sizeof batch;
  batch.request = &request;
  batch.tokens = &tokens;
  batch.drafts = &drafts;
  batch.rows = 1;
  batch.parents = parents;
  batch.parent_count = static_cast<std::size_t>(drafts);
  if (world.input.chance(8)) batch.parents = world.array<std::int32_t>(batch.parent_count, &World::number);
  stateport_pass_plan* const out = room_for_plan(world, groups);
  stateport_status status = stateport_request_cache_plan(cache, &batch, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) {
    read_plan(world, out);
    auto* const steps = world.room<std::int32_t>(1);
    *steps = static_cast<std::int32_t>(world.input.below(1 + static_cast<std::uint32_t>(drafts)));
    std::int32_t count = 1;
    for (std::int32_t step = *steps; step > 0 && batch.parents != nullptr; step = batch.parents[step - 1]) ++count;
    if (world.input.chance(8)) *steps = world.number();
    const auto* const sampled = world.room(static_cast<std::size_t>(count), &World::number);
    auto* const committed = room_for_commit(world, groups, world.maybe(steps));
    status = stateport_request_cache_commit(cache, out->pass, &count, 1, sampled, static_cast<std::size_t>(count),
                                            committed);
    if (status == STATEPORT_OK) {
      read_commit(world, committed);
      if (committed->size == sizeof *committed) carry_out(world, cache, committed->moves, committed->move_count);
    }
  }
  world.judge(status);
}

void end(World& world) {
  auto* const cache = pick_cache(world);
  std::size_t count = 0;
  const auto* const requests = world.array<std::int64_t>(count, &World::wide_number);
  const std::int32_t how = world.input.chance(8) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  std::vector<stateport_reuse_hint> hints(requests == nullptr ? 0 : count);
  for (stateport_reuse_hint& one : hints) one.last_turn = world.flag();
  const auto* const given = world.input.chance(64) ? world.structs(hints) : nullptr;
  auto* const out = world.result<stateport_ended_requests>();
  const stateport_status status = stateport_request_cache_end(cache, requests, count, how, given, out);
  if (status == STATEPORT_OK && out != nullptr && out->size == sizeof *out) {
    read_transfers(world, out->transfers, out->transfer_count);
    world.read(out->copies, out->copy_count);
  }
  world.judge(status);
}

void request(World& world) {
  auto* const cache = pick_cache(world);
  const std::int64_t number = world.wide_number();
  if (world.input.chance(128)) {
    auto* const out = world.result<stateport_running_request>();
    const stateport_status status = stateport_request_cache_request(cache, number, out);
    if (status == STATEPORT_OK && out->size == sizeof *out) {
      world.read(out->tokens, out->count);
      world.read(out->kv, out->kv_count);
    }
    return world.judge(status);
  }
  auto* const out = world.result<stateport_group_plan>();
  const auto group = static_cast<std::size_t>(world.input.chance(16) ? world.wide_number() : 0);
  const stateport_status status = stateport_request_cache_state(cache, number, group, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) read_group(world, *out, 1);
  world.judge(status);
}

void places(World& world) {
  auto* const cache = pick_cache(world);
  auto* const out = world.result<stateport_hit_places>();
  const auto group = static_cast<std::size_t>(world.input.chance(16) ? world.wide_number() : 0);
  const stateport_status status = stateport_request_cache_places(cache, world.wide_number(), group, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) world.read(out->kv, out->kv_count);
  world.judge(status);
}

void refresh(World& world) {
  auto* const cache = pick_cache(world);
  auto* const out = world.result<stateport_started_request>();
  auto* const found = world.value<std::uint8_t>();
  const stateport_status status = stateport_request_cache_refresh(cache, world.wide_number(), out, found);
  if (status == STATEPORT_OK && *found != 0 && out->size == sizeof *out) {
    read_transfers(world, out->transfers, out->transfer_count);
    world.read(out->breakpoints, out->breakpoint_count);
  }
  world.judge(status);
}

void fork(World& world) {
  auto* const cache = pick_cache(world);
  const std::int64_t request = world.wide_number();
  std::size_t count = 0;
  const auto* const tokens = world.array<std::int32_t>(count, &World::number);
  const std::size_t forks = tokens == nullptr || world.input.chance(64) ? world.input.below(4) : count;
  world.judge(
      stateport_request_cache_fork(cache, request, tokens, count, world.maybe(world.room<std::int64_t>(forks)), forks));
}

void insert(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t groups = groups_of(world, cache);
  auto* const plan = room_for_plan(world, groups);
  auto* const commit = room_for_commit(world, groups);
  const std::int64_t request = world.wide_number();
  const std::int64_t tokens = world.input.chance(16) ? world.wide_number() : 1 + world.input.below(32);
  const stateport_status status = stateport_request_cache_insert(cache, request, tokens, plan, commit);
  if (status == STATEPORT_OK) {
    read_plan(world, plan);
    read_commit(world, commit);
  }
  world.judge(status);
}

void reset(World& world) {
  world.judge(stateport_request_cache_reset(pick_cache(world)));
}

void prometheus(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t capacity = world.input.chance(128) ? world.input.below(5000) : 0;
  auto* const text = world.maybe(world.room<char>(capacity));
  const char* const prefix = world.flag() == 0 ? nullptr : "name";
  world.judge(stateport_request_cache_prometheus(cache, prefix, text, capacity, world.value<std::size_t>()));
}

void take_events(World& world) {
  auto* const cache = pick_cache(world);
  const std::size_t capacity = world.input.below(100);
  auto* const out = world.results<stateport_cache_event>(capacity, true);
  world.judge(stateport_request_cache_take_events(cache, out, capacity, world.value<std::size_t>()));
}

void check(World& world) {
  world.judge(stateport_request_cache_check(pick_cache(world)));
}

void settle(World& world) {
  auto* const cache = pick_cache(world);
  std::size_t count = world.input.below(4);
  auto* const results = world.room<stateport_transfer_result>(count);
  for (std::size_t i = 0; i < count; ++i)
    results[i] = {static_cast<std::uint64_t>(world.wide_number()), world.flag() * (world.number() % 9),
                  world.input.chance(4) ? 1 : 0};
  const auto* const given = world.maybe(results);
  auto* const out = world.result<stateport_settled_transfers>();
  const stateport_status status = stateport_request_cache_settle(cache, given, count, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) read_transfers(world, out->transfers, out->transfer_count);
  world.judge(status);
}

void move_memory(World& world) {
  auto* const cache = pick_cache(world);
  switch (world.input.below(4)) {
    case 0:
      return world.judge(stateport_request_cache_arena_usage(cache, world.result<stateport_arena_usage>()));
    case 1: {
      const std::int32_t part = world.input.chance(32) ? world.number() : world.flag();
      const std::int32_t extent = world.number();
      return world.judge(stateport_request_cache_is_mapped(cache, part, extent, world.value<std::uint8_t>()));
    }
    case 2: {
      auto* const out = world.result<stateport_memory_plan>();
      const stateport_status status = stateport_request_cache_take_memory(cache, out);
      if (status == STATEPORT_OK && out->size == sizeof *out) read_memory(world, *out);
      return world.judge(status);
    }
    default: {
      const auto move = static_cast<std::uint64_t>(world.wide_number());
      world.judge(stateport_request_cache_settle_move(cache, move, world.flag()));
    }
  }
}

void forget(World& world) {
  auto* const cache = pick_cache(world);
  switch (world.input.below(4)) {
    case 0:
      return world.judge(stateport_request_cache_advance_epoch(cache, static_cast<std::uint64_t>(world.number() % 3),
                                                               world.value<std::uint64_t>(false)));
    case 1:
      return world.judge(stateport_request_cache_epoch(cache, world.value<std::uint64_t>()));
    case 2:
      return world.judge(stateport_request_cache_is_stale(cache, world.wide_number(), world.value<std::uint8_t>()));
    default: {
      const std::int32_t by = world.input.chance(32) ? world.number() : world.flag();
      world.judge(stateport_request_cache_forget(cache, name_space(world), by));
    }
  }
}

void hold(World& world) {
  auto* const cache = pick_cache(world);
  switch (world.input.below(5)) {
    case 0: {
      const auto* const wanted = world.given(prompt(world));
      return world.judge(
          stateport_request_cache_pin(cache, wanted, world.real(), world.result<stateport_pinned_prefix>()));
    }
    case 1:
      return world.judge(stateport_request_cache_unpin(cache, world.input.below(6), world.value<std::uint8_t>()));
    case 2: {
      const auto* const wanted = world.given(prompt(world));
      auto* const out = world.result<stateport_prefetch>();
      const stateport_status status = stateport_request_cache_prefetch(cache, wanted, out);
      if (status == STATEPORT_OK && out->size == sizeof *out)
        read_transfers(world, out->transfers, out->transfer_count);
      return world.judge(status);
    }
    case 3:
      return world.judge(stateport_request_cache_prefetching(cache, world.input.below(6), world.value<std::uint8_t>()));
    default:
      world.judge(stateport_request_cache_prefix_usage(cache, world.result<stateport_prefix_usage>()));
  }
}

void close_session(World& world) {
  auto* const cache = pick_cache(world);
  const auto session = static_cast<std::uint64_t>(world.input.below(5));
  if (world.input.chance(128))
    world.judge(stateport_request_cache_close_session(cache, session, world.value<std::uint8_t>()));
  else
    world.judge(stateport_request_cache_session_usage(cache, session, world.result<stateport_session_usage>()));
}

void withdraw(World& world, stateport_request_cache* cache, const std::vector<stateport_state_fault>& faults) {
  auto* const room = world.room<stateport_state_fault>(faults.size());
  std::ranges::copy(faults, room);
  const auto* const given = world.maybe(room);
  world.judge(stateport_request_cache_withdraw(cache, given, faults.size(), world.value<std::int32_t>()));
}

/// Faults of anything.
void withdraw(World& world, stateport_request_cache* cache) {
  std::vector<stateport_state_fault> faults(world.input.below(4));
  for (stateport_state_fault& fault : faults) {
    fault.kind = world.input.chance(8) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
    fault.check.group = world.input.chance(16) ? world.number() : world.flag();
    fault.check.slot = world.number();
    fault.check.content = static_cast<std::uint64_t>(world.wide_number());
  }
  withdraw(world, cache, faults);
}

/// Withdraws some of the checkpoints that the checks name.
void check_states(World& world) {
  auto* const cache = pick_cache(world);
  switch (world.input.below(3)) {
    case 0: {
      auto* const checks = world.value<const stateport_state_check*>();
      auto* const count = world.value<std::size_t>();
      const stateport_status status = stateport_request_cache_take_checks(cache, checks, count);
      std::vector<stateport_state_fault> faults;
      for (std::size_t i = 0; status == STATEPORT_OK && i < *count; ++i) {
        world.read(*checks + i, 1);
        world.know((*checks)[i].slot);
        world.know(static_cast<std::int64_t>((*checks)[i].content));
        if (world.input.chance(128)) faults.push_back({.kind = 0, .tensor = 0, .check = (*checks)[i]});
      }
      world.judge(status);
      if (!faults.empty()) withdraw(world, cache, faults);
      return;
    }
    case 1:
      return withdraw(world, cache);
    default:
      world.judge(stateport_request_cache_integrity_usage(cache, world.result<stateport_integrity_usage>()));
  }
}

void loading(World& world) {
  auto* const cache = pick_cache(world);
  std::size_t count = 0;
  const auto* const requests = world.array<std::int64_t>(count, &World::wide_number);
  auto* const out = world.maybe(world.room<std::uint8_t>(requests == nullptr ? 0 : count));
  world.judge(stateport_request_cache_loading(cache, requests, count, out));
}

void drain(World& world) {
  auto* const cache = pick_cache(world);
  auto* const out = world.result<stateport_transfer_plan>();
  const stateport_status status = stateport_request_cache_drain(cache, out);
  if (status == STATEPORT_OK && out->size == sizeof *out) read_transfers(world, out->transfers, out->count);
  world.judge(status);
}

void attach(World& world) {
  auto* const cache = pick_cache(world);
  const std::int32_t medium = world.number() % 6;
  const std::size_t count = world.input.below(4);
  auto* const images = world.room<stateport_image_key>(count);
  for (std::size_t i = 0; i < count; ++i)
    images[i] = {{static_cast<std::uint64_t>(world.wide_number()), world.input.take()},
                 world.input.chance(64) ? world.wide_number() : 4 * world.input.below(8),
                 world.input.chance(8) ? world.number() : world.flag(),
                 world.input.chance(16) ? world.number() : 0};
  const auto* const given = world.maybe(images);
  auto* const attached = world.maybe(world.room<std::uint8_t>(count));
  world.judge(stateport_request_cache_attach(cache, medium, given, count, attached, world.value<std::size_t>(false)));
}

void set_speeds(World& world) {
  auto* const cache = pick_cache(world);
  world.judge(
      stateport_request_cache_set_speeds(cache, world.given(stateport_tier_speeds{.size = 0,
                                                                                  .host_bytes_per_s = world.real(),
                                                                                  .file_bytes_per_s = world.real(),
                                                                                  .tokens_per_s = world.real(),
                                                                                  .remote_bytes_per_s = world.real(),
                                                                                  .remote_latency_s = world.real()})));
}

constexpr Call calls[] = {
    cache_create, cache_destroy, describe,      start,    start,    start,        chunk,       plan,    plan,
    cancel,       commit,        commit,        run_pass, run_pass, run_pass,     end,         end,     end,
    request,      places,        insert,        insert,   reset,    prometheus,   take_events, check,   settle,
    settle,       move_memory,   loading,       drain,    attach,   set_speeds,   forget,      refresh, run_tree,
    hold,         run_tree,      close_session, fork,     fork,     check_states, check_states};

}  // namespace

std::span<const Call> cache_calls() {
  return calls;
}

}  // namespace stateport::fuzz
