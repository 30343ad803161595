// SPDX-License-Identifier: Apache-2.0
// Checkpoints found by tokens.
#include <stateport/c/prefix_tree.h>

#include "arguments.hpp"
#include "eviction.hpp"
#include "guard.hpp"
#include "prefix_tree.hpp"

#include <algorithm>
#include <utility>

using namespace stateport;
using namespace stateport::c;

namespace {

/// The arguments of a lookup.
struct MatchArguments {
  std::span<const Token> tokens;
  std::span<KvIndex> kv_out;
  Namespace name_space;
  Out<stateport_match> out;

  MatchArguments(const std::int32_t* token_data, std::size_t count, const stateport_namespace* names,
                 std::int32_t* kv_data, stateport_match* result)
      : tokens(array(token_data, count, "tokens")),
        kv_out(kv_data, kv_data == nullptr ? 0 : count),
        name_space(from_c(names)),
        out(result, "out") {}
};

PrefixTree::Options options_from_c(const stateport_tree_options& given) {
  require(given.max_states_per_path >= 0, "max_states_per_path", given.max_states_per_path,
          "must be a limit, or 0 for none");
  PrefixTree::Options options{.page_size = given.page_size == 0 ? 1 : given.page_size,
                              .slots = given.slots,
                              .chunk_size = given.chunk_size == 0 ? 1 : given.chunk_size,
                              .max_states_per_path = given.max_states_per_path == 0 ? -1 : given.max_states_per_path,
                              .layout_fingerprint = given.layout_fingerprint,
                              .eviction = enumerator(given.eviction, EvictionOrder::filo, "eviction"),
                              .memory = read_memory_cost(given.state_bytes, given.kv_bytes_per_token),
                              .policy = make_policy(given.eviction_options, "eviction_options"),
                              .kv_indices = given.kv_indices,
                              .hash_seed = given.hash_seed};
  if (given.position_tokens != 0) options.position_tokens = given.position_tokens;
  return options;
}

}  // namespace

stateport_status stateport_tree_create(const stateport_tree_options* options, stateport_tree** out) {
  return guarded([&] {
    create(out, [&] {
      const auto given = read_struct<stateport_tree_options>(options, "options");
      return std::make_shared<TreeObject>(options_from_c(given),
                                          TreeVictimFunction{given.on_victim, given.on_victim_context});
    });
  });
}

stateport_status stateport_tree_destroy(stateport_tree* tree) {
  return guarded([&] { destroy<TreeObject>(tree, "tree"); });
}

stateport_status stateport_tree_describe(stateport_tree* tree, stateport_tree_sizes* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const TreeSizes& sizes = held->tree.sizes();
    Out(out, "out")
        .write({.evictable_tokens = sizes.evictable_tokens,
                .protected_tokens = sizes.protected_tokens,
                .evictable_states = sizes.evictable_states,
                .protected_states = sizes.protected_states,
                .free_slots = held->tree.slots().free_slots()});
  });
}

stateport_status stateport_tree_set_time(stateport_tree* tree, double now_s) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    held->tree.set_time(now_s);
  });
}

stateport_status stateport_tree_match(stateport_tree* tree, const int32_t* tokens, size_t count,
                                      const stateport_namespace* name_space, int32_t* kv_out, stateport_match* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const MatchArguments asked(tokens, count, name_space, kv_out, out);
    asked.out.write(to_c(held->tree.match(asked.tokens, asked.name_space, asked.kv_out)));
  });
}

stateport_status stateport_tree_match_with_live_slot(stateport_tree* tree, const int32_t* tokens, size_t count,
                                                     const stateport_namespace* name_space, int32_t* kv_out,
                                                     int32_t live_slot, stateport_match* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const MatchArguments asked(tokens, count, name_space, kv_out, out);
    asked.out.write(to_c(held->tree.match_with_live_slot(asked.tokens, asked.name_space, asked.kv_out,
                                                         SlotId{live_slot}, held->collect())));
  });
}

stateport_status stateport_tree_match_again(stateport_tree* tree, const int32_t* tokens, size_t count,
                                            const stateport_namespace* name_space, int32_t* kv_out,
                                            stateport_match* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const MatchArguments asked(tokens, count, name_space, kv_out, out);
    asked.out.write(to_c(held->tree.match(asked.tokens, asked.name_space, asked.kv_out, Lookup::again)));
  });
}

stateport_status stateport_tree_check_restore(stateport_tree* tree, const stateport_match* match, int32_t* check) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto given = read_struct<stateport_match>(match, "match");
    std::int32_t& result = checked(check, "check");
    const PrefixMatch hit{.node = node_from_c(given.node),
                          .tokens = given.tokens,
                          .slot = SlotId{given.slot},
                          .tag = {given.tokens, {{given.prefix[0], given.prefix[1]}}, held->layout_fingerprint}};
    result = static_cast<std::int32_t>(held->tree.check_restore(hit));
  });
}

stateport_status stateport_tree_insert(stateport_tree* tree, const stateport_insert* prefix,
                                       stateport_insert_result* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto given = read_struct<stateport_insert>(prefix, "prefix");
    const Out result(out, "out");
    result.write(to_c(held->tree.insert(from_c(given), held->collect())));
  });
}

stateport_status stateport_tree_evict(stateport_tree* tree, int64_t tokens, int64_t states, int64_t* tokens_freed,
                                      int64_t* states_freed) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const EvictResult done = held->tree.evict({.tokens = tokens, .states = states}, held->collect());
    if (tokens_freed != nullptr) *tokens_freed = done.tokens;
    if (states_freed != nullptr) *states_freed = done.states;
  });
}

stateport_status stateport_tree_evict_demand(stateport_tree* tree, const stateport_evict_demand* demand,
                                             stateport_evict_result* out) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto given = read_struct<stateport_evict_demand>(demand, "demand");
    const Out result(out, "out");
    const EvictResult done =
        held->tree.evict({.tokens = given.tokens, .states = given.states, .bytes = given.bytes}, held->collect());
    result.write({.tokens = done.tokens, .states = done.states});
  });
}

stateport_status stateport_tree_take_freed_kv(stateport_tree* tree, int32_t* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    const auto waiting = std::span(held->freed.kv).subspan(held->taken);
    reported = std::min(room.size(), waiting.size());
    std::ranges::copy(waiting.first(reported), room.begin());
    held->taken += reported;
    if (held->taken == held->freed.kv.size()) {
      held->freed.clear();
      held->taken = 0;
    }
  });
}

stateport_status stateport_tree_allocate_slots(stateport_tree* tree, int32_t* out, size_t count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    static_cast<void>(array(out, count, "out"));
    const std::int32_t available = held->tree.slots().free_slots();
    if (std::cmp_greater(count, available)) throw NoCapacity("slots", static_cast<std::int64_t>(count), available);
    held->slots.assign(count, SlotId{});
    if (!held->tree.allocate_slots(held->slots)) throw NoCapacity("slots", static_cast<std::int64_t>(count), available);
    write_ids<SlotId>(held->slots, out);
  });
}

stateport_status stateport_tree_release_slots(stateport_tree* tree, const int32_t* slots, size_t count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    held->tree.release_slots(read_ids(slots, count, "slots", held->slots));
  });
}

stateport_status stateport_tree_tag_slot(stateport_tree* tree, int32_t slot, const int32_t* tokens, size_t count,
                                         const stateport_namespace* name_space) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const StateTag tag = held->tree.state_tag(array(tokens, count, "tokens"), from_c(name_space));
    held->tree.tag_slot(SlotId{slot}, tag);
  });
}

stateport_status stateport_tree_reset(stateport_tree* tree) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    held->tree.reset(held->collect());
    held->tree.release_slots(held->freed.slots);
  });
}

stateport_status stateport_tree_check(stateport_tree* tree) {
  return guarded([&] { Held<TreeObject>(tree, "tree")->tree.check_invariants(); });
}
