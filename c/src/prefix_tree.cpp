// SPDX-License-Identifier: Apache-2.0
// Checkpoints found by tokens.
#include <stateport/c/prefix_tree.h>

#include <stateport/core/tree/prefix_tree.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "arguments.hpp"
#include "eviction.hpp"
#include "guard.hpp"
#include "handle_table.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(STATEPORT_LOST_NO_CHECKPOINT == static_cast<int>(LostHit::no_checkpoint) + 1 &&
              STATEPORT_LOST_OFF_GRID == static_cast<int>(LostHit::off_grid) + 1 &&
              STATEPORT_LOST_EVICTED == static_cast<int>(LostHit::evicted) + 1 &&
              STATEPORT_LOST_TOO_FEW_TOKENS == static_cast<int>(LostHit::too_few_tokens) + 1 &&
              STATEPORT_LOST_LOCKED_POOL == static_cast<int>(LostHit::locked_pool) + 1);
static_assert(STATEPORT_TAG_MATCH == static_cast<int>(TagCheck::match) &&
              STATEPORT_TAG_EMPTY == static_cast<int>(TagCheck::empty) &&
              STATEPORT_TAG_TOKEN_COUNT == static_cast<int>(TagCheck::token_count) &&
              STATEPORT_TAG_PREFIX == static_cast<int>(TagCheck::prefix) &&
              STATEPORT_TAG_LAYOUT == static_cast<int>(TagCheck::layout));

struct TreeObject final : Object {
  static constexpr Kind kind = Kind::tree;
  explicit TreeObject(const PrefixTree::Options& options)
      : Object(kind), layout_fingerprint(options.layout_fingerprint), tree(options) {}

  /// For one call. What it frees of slots is in the pool again; KV indices wait until they are taken.
  [[nodiscard]] Freed& collect() noexcept {
    freed.slots.clear();
    return freed;
  }

  std::uint64_t layout_fingerprint;
  PrefixTree tree;
  Freed freed;
  std::size_t taken = 0;  ///< of freed.kv
  std::vector<SlotId> slots;
};

struct LockObject final : Object {
  static constexpr Kind kind = Kind::tree_lock;
  explicit LockObject(std::shared_ptr<TreeObject> of) : Object(kind), tree(std::move(of)) {}
  ~LockObject() override {
    const std::lock_guard turn(tree->mutex());
    lock.release();
  }

  std::shared_ptr<TreeObject> tree;
  PrefixLock lock;
};

NodeId node_from_c(std::uint64_t node) noexcept {
  return {static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(node >> 32)};
}
std::uint64_t to_c(NodeId node) noexcept {
  return node.is_root() ? 0 : std::uint64_t{node.generation} << 32 | node.index;
}

std::optional<std::string_view> key(const void* data, std::size_t bytes, const char* argument) {
  const auto characters = array(static_cast<const char*>(data), bytes, argument);
  if (data == nullptr) return std::nullopt;
  return std::string_view(characters.data(), characters.size());
}
Namespace from_c(const stateport_namespace* name_space) {
  const auto given = read_optional_struct(name_space, "name_space");
  return {key(given.extra_key, given.extra_key_bytes, "extra_key"), key(given.salt, given.salt_bytes, "salt")};
}

/// A past in C: zeros are none, else the bits of the time, and
///
///     63     42 41 40      39        32 31          0
///     [   0    ][1][repeat][ generation ][known blocks]
constexpr unsigned generation_at = 32;
constexpr unsigned repeat_at = 40;
constexpr unsigned there_at = 41;

std::array<std::uint64_t, 2> to_c(const PromptPast& past) noexcept {
  if (!past.looked_up_s) return {};
  return {std::bit_cast<std::uint64_t>(*past.looked_up_s),
          std::uint64_t{1} << there_at | std::uint64_t{past.repeat} << repeat_at |
              std::uint64_t{past.generation} << generation_at | static_cast<std::uint32_t>(past.known_blocks)};
}

PromptPast from_c(const std::uint64_t (&words)[2]) {
  if (words[0] == 0 && words[1] == 0) return {};
  require(words[1] >> there_at == 1, "past[1]", words[1], "must be of a match");
  return {.looked_up_s = std::bit_cast<double>(words[0]),
          .known_blocks = static_cast<std::int32_t>(words[1]),
          .generation = static_cast<std::uint8_t>(words[1] >> generation_at),
          .repeat = (words[1] >> repeat_at & 1) != 0};
}

stateport_match to_c(const PrefixMatch& match) noexcept {
  const auto past = to_c(match.past);
  return {.node = to_c(match.node),
          .tokens = match.tokens,
          .walked_tokens = match.walked_tokens,
          .branching_position = match.branching_position.value_or(0),
          .slot = match.slot.value(),
          .live_slot = match.live_slot.value(),
          .lost = match.lost ? static_cast<std::int32_t>(*match.lost) + 1 : STATEPORT_LOST_NOTHING,
          .prefix = {match.tag.prefix.words[0], match.tag.prefix.words[1]},
          .past = {past[0], past[1]}};
}

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

PrefixTree::Options from_c(const stateport_tree_options& given) {
  require(given.max_states_per_path >= 0, "max_states_per_path", given.max_states_per_path,
          "must be a limit, or 0 for none");
  PrefixTree::Options options{.page_size = given.page_size == 0 ? 1 : given.page_size,
                              .slots = given.slots,
                              .chunk_size = given.chunk_size == 0 ? 1 : given.chunk_size,
                              .max_states_per_path = given.max_states_per_path == 0 ? -1 : given.max_states_per_path,
                              .layout_fingerprint = given.layout_fingerprint,
                              .eviction = enumerator(given.eviction, EvictionOrder::filo, "eviction"),
                              .eviction_options = memory_sizes(given.state_bytes, given.kv_bytes_per_token),
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
      return std::make_shared<TreeObject>(from_c(read_struct<stateport_tree_options>(options, "options")));
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
    const InsertResult done = held->tree.insert({.tokens = array(given.tokens, given.count, "tokens"),
                                                 .kv = array(given.kv, given.count, "kv"),
                                                 .slot = SlotId{given.slot},
                                                 .name_space = from_c(given.name_space),
                                                 .prev_tokens = given.prev_tokens,
                                                 .priority = given.priority,
                                                 .chunked = given.chunked != 0,
                                                 .past = from_c(given.past),
                                                 .hint = read_hint(given.hint, "hint"),
                                                 .request_tokens = given.request_tokens},
                                                held->collect());
    result.write({.prefix_tokens = done.prefix_tokens, .node = to_c(done.node), .state_exists = done.state_exists});
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

stateport_status stateport_tree_take_freed_kv(stateport_tree* tree, int32_t* out, size_t capacity, size_t* count) {
  return guarded([&] {
    const Held<TreeObject> held(tree, "tree");
    const auto room = array(out, capacity, "out");
    std::size_t& told = checked(count, "count");
    const auto waiting = std::span(held->freed.kv).subspan(held->taken);
    told = std::min(room.size(), waiting.size());
    std::ranges::copy(waiting.first(told), room.begin());
    held->taken += told;
    if (held->taken == held->freed.kv.size()) {
      held->freed.clear();
      held->taken = 0;
    }
  });
}

stateport_status stateport_tree_lock_node(stateport_tree* tree, uint64_t node, stateport_tree_lock** out) {
  return guarded([&] {
    create(out, [&] {
      const auto object = std::make_shared<LockObject>(find<TreeObject>(tree, "tree"));
      const std::lock_guard turn(object->tree->mutex());
      if (node != 0) object->lock = object->tree->tree.lock(node_from_c(node));
      return object;
    });
  });
}

stateport_status stateport_tree_lock_destroy(stateport_tree_lock* lock) {
  return guarded([&] { destroy<LockObject>(lock, "lock"); });
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
