// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "combination.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve/arena_sizes.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stateport {
namespace {

using namespace test;

constexpr std::int32_t block = 4;

/// KV for 40 blocks and slots for 30 states, and memory for half of both together: 20 of 10 bytes and 15 of 40.
RequestCacheOptions arena_options(Combination index) {
  RequestCacheOptions options{.index = index_of(index),
                              .max_requests = 2,
                              .max_request_tokens = 24,
                              .block_size_tokens = block,
                              .kv_tokens = std::int64_t{block} * 80,
                              .hash = BlockHashKind::xxh3_128};
  options.memory = {.state_bytes = 40, .kv_bytes_per_token = 10};
  options.layout = SlotLayout{.layout_fingerprint = 3,
                              .checkpoints = 80,
                              .separate_checkpoints = true,
                              .placement = CheckpointPlacement::last,
                              .arena = {.bytes = 80 * 40, .kv = {1, 40}, .states = {1, 40}, .state_share = 0.5}};
  return options;
}

/// Serves one prompt of these tokens to its end, decodes nothing, and carries out all moves at once.
class ArenaServer {
 public:
  explicit ArenaServer(const RequestCacheOptions& options) : cache_(make_request_cache(options)) {}

  [[nodiscard]] RequestCache& cache() { return *cache_; }
  [[nodiscard]] ArenaUsage usage() { return cache_->arena()->usage(); }
  std::int64_t serve(const std::vector<Token>& tokens, bool done = true) {
    const auto started = cache_->start({.tokens = tokens});
    REQUIRE(started);
    for (int tries = 0;; ++tries) {
      REQUIRE(tries < 4);
      const PassRow row{.request = started->request,
                        .tokens = static_cast<std::int32_t>(std::ssize(tokens) - started->reused_tokens)};
      const PassPlan plan = cache_->plan({&row, 1});
      settle(plan.memory, done);
      if (plan.rows_without_room > 0) {
        cache_->cancel(plan.pass);
        continue;
      }
      const std::int32_t none = 0;
      settle(cache_->commit(plan.pass, {&none, 1}, {}).memory, done);
      cache_->finish(started->request);
      cache_->check_invariants();
      return started->reused_tokens;
    }
  }

 private:
  void settle(const MemoryPlan& plan, bool done) {
    for (const MemoryMove& move : plan.moves) cache_->arena()->settle(move.id, done);
    cache_->check_invariants();
  }

  std::unique_ptr<RequestCache> cache_;
};

std::vector<Token> repeated(std::int32_t name, std::int64_t tokens) {
  return std::vector<Token>(static_cast<std::size_t>(tokens), name);
}

}  // namespace

TEST_CASE("in an arena, too, whatever an engine does, every pass reads the state and the KV of its own tokens") {
  for (const Combination index : slot_combinations)
    for (const bool tiers : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(tiers);
      std::int64_t moves = 0;
      std::int64_t refused = 0;
      std::int64_t copies = 0;
      std::int64_t hits = 0;
      std::uint64_t seeds = 0;
      for_each_seed(300, [&](Random& random, std::uint64_t) {
        RequestCacheOptions options = random_options(random, index);
        draw_arena(random, options);
        if (tiers) options.tiers = random_tiers(random, options);
        RandomEngine engine(random, options);
        for (int step = 0; step < 200; ++step) engine.step();
        engine.finish();
        moves += engine.arena()->moves;
        refused += engine.arena()->refused;
        copies += engine.arena()->copies;
        hits += engine.hits;
        ++seeds;
      });
      if (seeds < 300) continue;
      CHECK(moves > 2000);
      CHECK(refused > 50);
      CHECK(copies > 100);
      CHECK(hits > 300);
    }
}

TEST_CASE("memory follows the content: to KV for long prompts, to states for short ones, and back") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    ArenaServer server(arena_options(index));
    CHECK(server.usage().kv_bytes == 40 * 40);
    CHECK(server.usage().state_bytes == 40 * 40);
    for (std::int32_t name = 1; name < 60; ++name) server.serve(repeated(name, 5 * block + 1));
    const ArenaUsage of_long = server.usage();
    CHECK(of_long.kv_bytes > 60 * 40);
    for (std::int32_t name = 100; name < 200; ++name) server.serve(repeated(name, block + 1));
    const ArenaUsage of_short = server.usage();
    CHECK(of_short.kv_bytes < 50 * 40);
    CHECK(of_short.kv_bytes + of_short.state_bytes <= 80 * 40);
    CHECK(of_short.moves > of_long.moves);
    for (std::int32_t name = 1; name < 60; ++name) server.serve(repeated(name, 5 * block + 1));
    CHECK(server.usage().kv_bytes > 60 * 40);
    CHECK(server.usage().refused_moves == 0);
  }
}

TEST_CASE("a map that the system refuses changes nothing, and no more memory is asked for until some comes back") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = arena_options(index);
    ArenaServer server(options);
    const ArenaUsage before = server.usage();
    for (std::int32_t name = 1; name < 60; ++name) server.serve(repeated(name, 5 * block + 1), false);
    CHECK(server.usage().refused_moves > 0);
    CHECK(server.usage().kv_bytes == before.kv_bytes);
    CHECK(server.usage().state_bytes == before.state_bytes);
    for (std::int32_t name = 1; name < 60; ++name) server.serve(repeated(name, 5 * block + 1));
    CHECK(server.usage().kv_bytes > before.kv_bytes);
  }
}

namespace {

/// Requests that run at once, each over a prompt of its own. No one waits for ever for room that walls, with the memory
/// of the start, would have given.
void run_beside_walls(Random& random, Combination index) {
  RequestCacheOptions options = random_options(random, index);
  draw_arena(random, options);
  options.overlap = false;
  slots(options).arena.state_share = static_cast<double>(random.between(2, 8)) / 10;
  const auto cache = make_request_cache(options);
  std::int64_t wall_blocks = -1;  // one is never handed out
  for (std::int32_t id = 0; id < kv_blocks(options); ++id)
    wall_blocks += cache->arena()->is_mapped(MemoryPart::kv, id / slots(options).arena.kv.count);
  std::map<RequestId, std::int64_t> prompts;  // and their lengths
  std::vector<MemoryMove> moves;
  Token fresh = 10;
  const auto settle = [&](const MemoryPlan& plan) {
    for (const MemoryMove& move : plan.moves) cache->arena()->settle(move.id, true);
  };
  for (int step = 0; step < 60; ++step) {
    if (random.chance(60)) {
      std::vector<Token> tokens(static_cast<std::size_t>(random.between(1, 88)), ++fresh);
      if (const auto started = cache->start({.tokens = tokens})) prompts[started->request] = std::ssize(tokens);
    }
    std::vector<PassRow> rows;
    for (const auto& [id, length] : prompts)
      if (cache->computed(id) < length)
        rows.push_back({.request = id, .tokens = static_cast<std::int32_t>(length - cache->computed(id))});
    if (rows.empty()) continue;
    std::int64_t blocks = 0;
    for (const auto& [id, length] : prompts) blocks += ceil_div(length, std::int64_t{options.block_size_tokens});
    PassPlan plan = cache->plan(rows);
    settle(plan.memory);
    for (int tries = 0; plan.rows_without_room > 0 && tries < 4; ++tries) {
      cache->cancel(plan.pass);
      plan = cache->plan(rows);
      settle(plan.memory);
    }
    if (blocks <= wall_blocks) REQUIRE(plan.rows_without_room == 0);
    const std::vector<std::int32_t> none(rows.size(), 0);
    const std::vector<RowPlan> planned(plan.rows.begin(), plan.rows.end());
    settle(cache->commit(plan.pass, none, {}).memory);
    for (const RowPlan& row : planned)
      if (random.chance(row.room ? 60 : 20)) {
        cache->finish(row.request);
        prompts.erase(row.request);
      }
    cache->check_invariants();
  }
}

}  // namespace

TEST_CASE("no request finds less room than walls would give it, once the moves are settled") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    for_each_seed(500, [&](Random& random, std::uint64_t) { run_beside_walls(random, index); });
  }
}

TEST_CASE("an arena that no cache can have is refused by name") {
  const auto refused = [](const char* name, auto change) {
    RequestCacheOptions options = arena_options(Combination::hash_slots);
    change(slots(options));
    CHECK_THROWS_WITH_AS(static_cast<void>(make_request_cache(options)), doctest::Contains(name), InvalidArgument);
  };
  refused("arena.bytes = -1", [](SlotLayout& slots) { slots.arena.bytes = -1; });
  refused("arena.bytes = 400", [](SlotLayout& slots) { slots.arena.bytes = 400; });
  refused("arena.kv.count = 0", [](SlotLayout& slots) { slots.arena.kv.count = 0; });
  refused("arena.kv.bytes = 0", [](SlotLayout& slots) { slots.arena.kv.bytes = 0; });
  refused("arena.states.count = -1", [](SlotLayout& slots) { slots.arena.states.count = -1; });
  refused("arena.states.bytes = 0", [](SlotLayout& slots) { slots.arena.states.bytes = 0; });
  refused("arena.state_share = 1.5", [](SlotLayout& slots) { slots.arena.state_share = 1.5; });
  refused("budget_bytes = 7", [](SlotLayout& slots) { slots.budget_bytes = 7; });
}

TEST_CASE("a move that is not under way is refused, and a cache without an arena has none") {
  const auto cache = make_request_cache(arena_options(Combination::tree_slots));
  CHECK_THROWS_WITH_AS(cache->arena()->settle(1, true), doctest::Contains("move = 1"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(cache->arena()->is_mapped(MemoryPart::states, 80)),
                       doctest::Contains("extent = 80"), InvalidArgument);
  RequestCacheOptions plain = arena_options(Combination::tree_slots);
  slots(plain).arena = {};
  CHECK(make_request_cache(plain)->arena() == nullptr);
}

}  // namespace stateport
