// SPDX-License-Identifier: Apache-2.0
// The prefix tree.
#include "c_world.hpp"

namespace stateport::fuzz {
namespace {

std::int32_t hear_victim(const stateport_victim* victim, void* context) {
  World& world = *static_cast<World*>(context);
  world.read(victim->tokens, victim->count);
  world.read(victim->kv, victim->count);
  world.know(static_cast<std::int64_t>(victim->node));
  if (victim->slot >= 0) world.know(victim->slot);
  // Calls on the tree itself are refused; others are not.
  stateport_tree_sizes sizes = {};
  sizes.size = sizeof sizes;
  const stateport_status status =
      stateport_tree_describe(static_cast<stateport_tree*>(world.living(Kind::tree)), &sizes);
  expect(status == STATEPORT_OK || status == STATEPORT_INVALID_STATE || status == STATEPORT_INVALID_HANDLE,
         "a call in a callback");
  return victim->slot >= 0 ? world.flag() : 0;
}

stateport_tree* pick_tree(World& world) {
  return world.pick<stateport_tree>(Kind::tree);
}

void tree_create(World& world) {
  stateport_tree_options options = {};
  options.slots = world.capacity();
  options.page_size = world.input.chance(128) ? world.capacity() % 4 : 0;
  // 0 is a promise that no KV index is given twice, which this caller does not keep.
  options.kv_indices = world.input.chance(240) ? 200 : world.capacity();
  if (options.kv_indices == 0) options.kv_indices = 1;
  if (world.input.chance(128)) {
    options.chunk_size = world.capacity();
    options.max_states_per_path = world.capacity();
    options.eviction = static_cast<std::int32_t>(world.input.below(10));
    options.layout_fingerprint = world.input.below(3);
    options.hash_seed = world.input.take();
    options.state_bytes = world.wide_number();
    options.kv_bytes_per_token = world.wide_number();
    options.eviction_options = eviction(world);
    options.position_tokens = world.capacity();
  }
  if (world.input.chance(96)) {
    options.on_victim = hear_victim;
    options.on_victim_context = &world;
  }
  const auto* const given = world.given(options, sizeof options);
  world.make<stateport_tree>(Kind::tree, [&](stateport_tree** out) { return stateport_tree_create(given, out); });
}

void tree_destroy(World& world) {
  auto* const tree = pick_tree(world);
  const stateport_status status = stateport_tree_destroy(tree);
  if (status == STATEPORT_OK) world.forget(tree);
  world.judge(status);
}

void tree_describe(World& world) {
  auto* const tree = pick_tree(world);
  world.judge(stateport_tree_describe(tree, world.result<stateport_tree_sizes>()));
}

void tree_set_time(World& world) {
  auto* const tree = pick_tree(world);
  world.judge(stateport_tree_set_time(tree, world.real()));
}

void know(World& world, stateport_status status, const stateport_match* match) {
  if (status != STATEPORT_OK || match->size < sizeof *match) return;
  world.know(static_cast<std::int64_t>(match->node));
  if (match->slot >= 0) world.know(match->slot);
  if (match->live_slot >= 0) world.know(match->live_slot);
}

void tree_match(World& world) {
  auto* const tree = pick_tree(world);
  std::size_t count = 0;
  const auto* const tokens = world.array<std::int32_t>(count, &World::number);
  auto* const kv = tokens == nullptr ? nullptr : world.maybe(world.room<std::int32_t>(count));
  const auto* const names = name_space(world);
  auto* const out = world.result<stateport_match>();
  stateport_status status = STATEPORT_OK;
  switch (world.input.below(4)) {
    case 0:
      status = stateport_tree_match_with_live_slot(tree, tokens, count, names, kv, world.number(), out);
      break;
    case 1:
      status = stateport_tree_match_again(tree, tokens, count, names, kv, out);
      break;
    default:
      status = stateport_tree_match(tree, tokens, count, names, kv, out);
  }
  know(world, status, out);
  world.judge(status);
}

void tree_match_many(World& world) {
  auto* const tree = pick_tree(world);
  std::vector<stateport_lookup> lookups(world.input.below(4));
  for (stateport_lookup& lookup : lookups) {
    lookup.tokens = world.array<std::int32_t>(lookup.count, &World::number);
    lookup.name_space = name_space(world);
    lookup.kv_out = lookup.tokens == nullptr ? nullptr : world.maybe(world.room<std::int32_t>(lookup.count));
    lookup.again = world.flag();
  }
  const auto* const given = world.structs(lookups);
  world.judge(
      stateport_tree_match_many(tree, given, lookups.size(), world.results<stateport_match>(lookups.size(), true)));
}

void tree_check_restore(World& world) {
  auto* const tree = pick_tree(world);
  stateport_match match = {};
  match.node = static_cast<std::uint64_t>(world.wide_number());
  match.tokens = world.wide_number();
  match.slot = world.number();
  match.prefix[0] = static_cast<std::uint64_t>(world.wide_number());
  const auto* const given = world.given(match);
  world.judge(stateport_tree_check_restore(tree, given, world.value<std::int32_t>()));
}

stateport_insert insert_of(World& world) {
  stateport_insert result = {};
  result.tokens = world.array<std::int32_t>(result.count, &World::number);
  result.kv = result.tokens == nullptr ? nullptr : world.maybe(world.room(result.count, &World::number));
  result.name_space = name_space(world);
  result.prev_tokens = world.input.chance(64) ? world.wide_number() : 0;
  result.slot = world.input.chance(128) ? world.number() : STATEPORT_NONE;
  result.priority = world.input.chance(32) ? world.number() : 0;
  result.chunked = world.flag();
  if (world.input.chance(48)) {
    result.past[0] = static_cast<std::uint64_t>(world.wide_number());
    result.past[1] = static_cast<std::uint64_t>(world.wide_number());
    result.request_tokens = world.wide_number();
  }
  result.hint = hint(world);
  return result;
}

void tree_insert(World& world) {
  auto* const tree = pick_tree(world);
  const auto* const given = world.given(insert_of(world));
  auto* const out = world.result<stateport_insert_result>();
  const stateport_status status = stateport_tree_insert(tree, given, out);
  if (status == STATEPORT_OK && out->size >= sizeof *out) world.know(static_cast<std::int64_t>(out->node));
  world.judge(status);
}

void tree_insert_many(World& world) {
  auto* const tree = pick_tree(world);
  std::vector<stateport_insert> prefixes(world.input.below(4));
  for (stateport_insert& prefix : prefixes) prefix = insert_of(world);
  const auto* const given = world.structs(prefixes);
  auto* const out = world.results<stateport_insert_result>(prefixes.size(), false);
  world.judge(stateport_tree_insert_many(tree, given, prefixes.size(), out, world.value<std::size_t>(false)));
}

std::uint64_t* nodes(World& world, std::size_t& count) {
  std::size_t drawn = 0;
  auto* const numbers = world.array<std::int64_t>(drawn, &World::wide_number);
  count = drawn;
  return reinterpret_cast<std::uint64_t*>(numbers);
}

void tree_touch(World& world) {
  auto* const tree = pick_tree(world);
  std::size_t count = 0;
  const auto* const given = nodes(world, count);
  world.judge(stateport_tree_touch(tree, given, count));
}

void tree_evict(World& world) {
  auto* const tree = pick_tree(world);
  const std::int64_t tokens = world.wide_number();
  const std::int64_t states = world.wide_number();
  if (world.input.chance(128)) {
    const auto* const demand = world.given(
        stateport_evict_demand{.size = 0, .tokens = tokens, .states = states, .bytes = world.wide_number()});
    world.judge(stateport_tree_evict_demand(tree, demand, world.result<stateport_evict_result>()));
  } else {
    auto* const freed = world.value<std::int64_t>();
    world.judge(stateport_tree_evict(tree, tokens, states, freed, world.value<std::int64_t>()));
  }
}

void tree_peek_victims(World& world) {
  auto* const tree = pick_tree(world);
  const std::int32_t kind = world.input.chance(8) ? world.number() : static_cast<std::int32_t>(world.input.below(3));
  const std::size_t capacity = world.input.below(8);
  auto* const out = world.results<stateport_victim>(capacity, true);
  auto* const count = world.value<std::size_t>();
  const stateport_status status = stateport_tree_peek_victims(tree, kind, out, capacity, count);
  if (status == STATEPORT_OK && out != nullptr && capacity > 0 && out->size == sizeof *out)
    for (std::size_t i = 0; i < *count; ++i) {
      world.read(out[i].tokens, out[i].count);
      world.read(out[i].kv, out[i].count);
      world.know(static_cast<std::int64_t>(out[i].node));
    }
  world.judge(status);
}

void tree_drop_state(World& world) {
  auto* const tree = pick_tree(world);
  world.judge(stateport_tree_drop_state(tree, static_cast<std::uint64_t>(world.wide_number())));
}

void tree_take_freed_kv(World& world) {
  auto* const tree = pick_tree(world);
  const std::size_t capacity = world.input.below(9);
  auto* const out = world.maybe(world.room<std::int32_t>(capacity));
  world.judge(stateport_tree_take_freed_kv(tree, out, capacity, world.value<std::size_t>()));
}

void tree_lock(World& world) {
  auto* const tree = pick_tree(world);
  const auto node = static_cast<std::uint64_t>(world.wide_number());
  world.make<stateport_tree_lock>(Kind::lock,
                                  [&](stateport_tree_lock** out) { return stateport_tree_lock_node(tree, node, out); });
}

void tree_lock_many(World& world) {
  auto* const tree = pick_tree(world);
  std::size_t count = 0;
  const auto* const given = nodes(world, count);
  auto* const out = world.maybe(world.room<stateport_tree_lock*>(given == nullptr ? 0 : count));
  const stateport_status status = stateport_tree_lock_nodes(tree, given, count, out);
  if (status == STATEPORT_OK)
    for (std::size_t i = 0; i < count; ++i) world.add(Kind::lock, out[i]);
  world.judge(status);
}

void tree_unlock(World& world) {
  auto* const lock = world.pick<stateport_tree_lock>(Kind::lock);
  const stateport_status status = stateport_tree_lock_destroy(lock);
  if (status == STATEPORT_OK) world.forget(lock);
  world.judge(status);
}

void tree_unlock_many(World& world) {
  std::size_t count = world.input.below(4);
  auto* const locks = world.room<stateport_tree_lock*>(count);
  for (std::size_t i = 0; i < count; ++i) locks[i] = world.pick<stateport_tree_lock>(Kind::lock);
  auto* const given = world.maybe(locks);
  const stateport_status status = stateport_tree_locks_destroy(given, count);
  if (status == STATEPORT_OK)
    for (std::size_t i = 0; i < count; ++i) world.forget(given[i]);
  world.judge(status);
}

void tree_allocate_slots(World& world) {
  auto* const tree = pick_tree(world);
  const std::size_t count = world.input.below(4);
  auto* const out = world.maybe(world.room<std::int32_t>(count));
  const stateport_status status = stateport_tree_allocate_slots(tree, out, count);
  if (status == STATEPORT_OK)
    for (std::size_t i = 0; i < count; ++i) world.know(out[i]);
  world.judge(status);
}

void tree_release_slots(World& world) {
  auto* const tree = pick_tree(world);
  std::size_t count = 0;
  const auto* const slots = world.array<std::int32_t>(count, &World::number);
  world.judge(stateport_tree_release_slots(tree, slots, count));
}

void tree_tag_slot(World& world) {
  auto* const tree = pick_tree(world);
  const std::int32_t slot = world.number();
  std::size_t count = 0;
  const auto* const tokens = world.array<std::int32_t>(count, &World::number);
  world.judge(stateport_tree_tag_slot(tree, slot, tokens, count, name_space(world)));
}

/// The calls of a request that leaves a checkpoint.
void tree_keep(World& world) {
  auto* const tree = pick_tree(world);
  const std::size_t count = world.input.below(24);
  const auto* const tokens = world.room(count, &World::number);
  std::int32_t slot = STATEPORT_NONE;
  stateport_status status = stateport_tree_allocate_slots(tree, &slot, 1);
  if (status == STATEPORT_OK) status = stateport_tree_tag_slot(tree, slot, tokens, count, nullptr);
  stateport_insert insert = {};
  insert.size = sizeof insert;
  insert.tokens = tokens;
  insert.kv = world.room(count, &World::number);
  insert.count = count;
  insert.slot = slot;
  stateport_insert_result kept = {};
  kept.size = sizeof kept;
  if (status == STATEPORT_OK) status = stateport_tree_insert(tree, &insert, &kept);
  world.know(slot);
  world.know(static_cast<std::int64_t>(kept.node));
  world.judge(status);
}

void tree_reset(World& world) {
  world.judge(stateport_tree_reset(pick_tree(world)));
}

void tree_check(World& world) {
  world.judge(stateport_tree_check(pick_tree(world)));
}

constexpr Call calls[] = {tree_create,      tree_destroy,        tree_describe,      tree_set_time,  tree_match,
                          tree_match,       tree_match_many,     tree_check_restore, tree_insert,    tree_insert,
                          tree_insert_many, tree_touch,          tree_evict,         tree_evict,     tree_peek_victims,
                          tree_drop_state,  tree_take_freed_kv,  tree_lock,          tree_lock_many, tree_unlock,
                          tree_unlock_many, tree_allocate_slots, tree_release_slots, tree_tag_slot,  tree_keep,
                          tree_keep,        tree_reset,          tree_check};

}  // namespace

std::span<const Call> tree_calls() {
  return calls;
}

}  // namespace stateport::fuzz
