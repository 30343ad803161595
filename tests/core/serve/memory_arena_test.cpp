// SPDX-License-Identifier: Apache-2.0
#include "serve/memory_arena.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "arena_world.hpp"
#include "combination.hpp"
#include "random.hpp"
#include "random_engine.hpp"
#include "serve/arena_sizes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
  std::int64_t serve(const std::vector<Token>& tokens, bool done = true, bool refuses_maps = false) {
    refuses_maps_ = refuses_maps;
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
  void settle(MemoryPlan plan, bool done) {
    for (; !plan.moves.empty(); plan = cache_->arena()->take())
      for (const MemoryMove& move : plan.moves)
        cache_->arena()->settle(move.id, done && !(refuses_maps_ && move.kind == MemoryMove::Kind::map));
    cache_->check_invariants();
  }

  std::unique_ptr<RequestCache> cache_;
  bool refuses_maps_ = false;
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
  // In a tree states of running requests lie among checkpoints, and stay: each may hold an extent of several slots.
  if (index == Combination::tree_slots && !slots(options).separate_checkpoints) {
    slots(options).arena.states.bytes /= slots(options).arena.states.count;
    slots(options).arena.states.count = 1;
  }
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

TEST_CASE("schedules that found less room once find as much") {
  // States kept a free slot for themselves; running requests held states that they did not need any more; the last
  // extent, which has fewer blocks than its memory holds, was mapped in the place of a full one; what was free lay in
  // three extents, each with a state of a running request.
  constexpr std::pair<std::uint64_t, Combination> schedules[] = {{856, Combination::tree_slots},
                                                                 {952, Combination::tree_slots},
                                                                 {38109, Combination::hash_slots},
                                                                 {113362, Combination::tree_slots}};
  for (const auto& [seed, index] : schedules) {
    CAPTURE(seed);
    Random random(seed);
    run_beside_walls(random, index);
  }
}

namespace {

void settle_all(RequestCache& cache, MemoryPlan plan) {
  for (; !plan.moves.empty(); plan = cache.arena()->take())
    for (const MemoryMove& move : plan.moves) cache.arena()->settle(move.id, true);
}

/// Serves prompts of which each ends while the next one runs, and counts stores of KV blocks that copies of the same
/// answer write: transfers come before them.
std::int64_t misread_stores(Random& random, Combination index, std::int64_t& stores, std::int64_t& copies) {
  RequestCacheOptions options = arena_options(index);
  slots(options).arena.kv = {4, 160};
  options.tiers.file_bytes = 1'000'000;
  options.tiers.write_through = true;
  const auto cache = make_request_cache(options);
  std::optional<RequestId> last;
  std::vector<TransferResult> under_way;
  std::int64_t misread = 0;
  const auto take = [&](TransferPlan plan) {
    for (const Transfer& transfer : plan)
      if (transfer.kind != Transfer::Kind::drop) under_way.push_back({.id = transfer.id});
  };
  for (int step = 0; step < 300; ++step) {
    const std::vector<Token> tokens = repeated(random.between32(1, 40), random.between(1, 5) * block);
    const auto started = cache->start({.tokens = tokens, .search = PromptSearch::device});
    REQUIRE(started);
    take(started->transfers);
    const PassRow row{.request = started->request,
                      .tokens = static_cast<std::int32_t>(std::ssize(tokens) - started->reused_tokens)};
    const PassPlan plan = cache->plan({&row, 1});
    take(plan.transfers);
    settle_all(*cache, plan.memory);
    REQUIRE(plan.rows_without_room == 0);
    if (last) take(cache->preempt(*last).transfers);
    const std::int32_t none = 0;
    const PassCommit commit = cache->commit(plan.pass, {&none, 1}, {});
    for (const Transfer& transfer : commit.transfers) {
      if (transfer.kind != Transfer::Kind::store || transfer.image.content != CacheContent::kv_block) continue;
      ++stores;
      misread += std::ranges::count(commit.memory.kv_copies, transfer.place, &SlotCopy::dst_slot);
    }
    copies += std::ssize(commit.memory.kv_copies);
    take(commit.transfers);
    settle_all(*cache, commit.memory);
    last = started->request;
    take(cache->tiers()->settle(std::exchange(under_way, {})).transfers);
  }
  return misread;
}

}  // namespace

TEST_CASE("a store never reads KV from a place that it has yet to be copied to") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    std::int64_t stores = 0;
    std::int64_t copies = 0;
    std::uint64_t seeds = 0;
    for_each_seed(150, [&](Random& random, std::uint64_t) {
      REQUIRE(misread_stores(random, index, stores, copies) == 0);
      ++seeds;
    });
    if (seeds < 150) continue;
    if (index == Combination::tree_slots) CHECK(stores > 1000);  // by hash an end flushes what is to be written
    CHECK(copies > 100);
  }
}

namespace {

struct EvictedForRoom {
  std::int64_t without_room = 0;  ///< plans
  std::int64_t states = 0;        ///< there before such plans
  std::int64_t lost = 0;          ///< of these
};

/// Prompts of many states, more than fit: how many states are evicted to make room for KV.
void evict_for_room(Random& random, Combination index, EvictedForRoom& counts) {
  RequestCacheOptions options = arena_options(index);
  options.max_requests = 4;
  options.max_request_tokens = 96;
  options.kv_tokens = std::int64_t{block} * 140;
  slots(options).checkpoints = 140;
  slots(options).placement = CheckpointPlacement::every;
  slots(options).separate_checkpoints = random.chance(50);
  slots(options).arena.bytes = 140 * 40;
  slots(options).arena.state_share = static_cast<double>(random.between(5, 7)) / 10;
  const auto cache = make_request_cache(options);
  std::map<RequestId, std::int64_t> prompts;
  Token fresh = 10;
  for (int step = 0; step < 100; ++step) {
    const std::vector<Token> tokens = repeated(++fresh, random.between(40, 95));
    if (random.chance(80))
      if (const auto started = cache->start({.tokens = tokens})) prompts[started->request] = std::ssize(tokens);
    std::vector<PassRow> rows;
    for (const auto& [id, length] : prompts)
      if (cache->computed(id) < length)
        rows.push_back({.request = id, .tokens = static_cast<std::int32_t>(length - cache->computed(id))});
    if (!rows.empty()) {
      const std::int64_t before = cache->usage().states;
      PassPlan plan = cache->plan(rows);
      settle_all(*cache, plan.memory);
      if (plan.rows_without_room > 0) {
        ++counts.without_room;
        counts.states += before;
        counts.lost += std::max<std::int64_t>(before - cache->usage().states, 0);
      }
      for (int tries = 0; plan.rows_without_room > 0 && tries < 4; ++tries) {
        cache->cancel(plan.pass);
        plan = cache->plan(rows);
        settle_all(*cache, plan.memory);
      }
      const std::vector<std::int32_t> none(rows.size(), 0);
      settle_all(*cache, cache->commit(plan.pass, none, {}).memory);
    }
    for (auto at = prompts.begin(); at != prompts.end();) {
      const auto ended = at++;
      if (!random.chance(30)) continue;
      cache->finish(ended->first);
      prompts.erase(ended);
    }
    cache->check_invariants();
  }
}

}  // namespace

TEST_CASE("a row without room evicts no more states than it needs the memory of") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    EvictedForRoom counts;
    std::uint64_t seeds = 0;
    for_each_seed(100, [&](Random& random, std::uint64_t) {
      evict_for_room(random, index, counts);
      ++seeds;
    });
    if (seeds < 100) continue;
    CHECK(counts.without_room > 50);
    CHECK(2 * counts.lost < counts.states);
  }
}

namespace {

/// States that are evicted until the last pass of a prompt of 20 blocks is planned, four blocks a pass, in a cache full
/// of prompts of one block and one state.
std::int64_t evicted_by_long_prompt(RequestCacheOptions options) {
  options.max_request_tokens = 96;
  slots(options).placement = CheckpointPlacement::last;
  ArenaServer server(options);
  for (std::int32_t name = 100; name < 200; ++name) server.serve(repeated(name, block + 1));
  RequestCache& cache = server.cache();
  const std::int64_t before = cache.usage().evicted_states;
  std::int64_t evicted = 0;
  const auto tokens = repeated(1, 20 * block);
  const auto started = cache.start({.tokens = tokens});
  REQUIRE(started);
  for (int pass = 0; pass < 5; ++pass) {
    const PassRow row{.request = started->request, .tokens = 4 * block};
    const PassPlan plan = cache.plan({&row, 1});
    REQUIRE(plan.rows_without_room == 0);
    evicted = cache.usage().evicted_states - before;
    settle_all(cache, plan.memory);
    const std::int32_t none = 0;
    settle_all(cache, cache.commit(plan.pass, {&none, 1}, {}).memory);
    cache.check_invariants();
  }
  cache.finish(started->request);
  return evicted;
}

}  // namespace

TEST_CASE("memory comes to KV before the passes of a long prompt need it") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    const std::int64_t evicted = evicted_by_long_prompt(arena_options(index));
    CAPTURE(evicted);
    CHECK(evicted <= 11);
  }
}

TEST_CASE("memory that comes back goes to the part that is short at once, by take() or by the next answer") {
  for (const Combination index : slot_combinations)
    for (const bool takes : {false, true}) {
      CAPTURE(static_cast<int>(index));
      CAPTURE(takes);
      const auto cache = make_request_cache(arena_options(index));
      int late = 0;
      for (std::int32_t name = 1; name < 60; ++name) {
        const std::vector<Token> tokens = repeated(name, 5 * block + 1);
        const auto started = cache->start({.tokens = tokens});
        const PassRow row{.request = started->request, .tokens = 5 * block + 1};
        const PassPlan plan = cache->plan({&row, 1});
        REQUIRE(plan.rows_without_room == 0);
        for (const MemoryMove& move : plan.memory.moves) cache->arena()->settle(move.id, true);
        const std::int32_t none = 0;
        const MemoryPlan moves = cache->commit(plan.pass, {&none, 1}, {}).memory;
        std::vector<MemoryMove> all(moves.moves.begin(), moves.moves.end());
        for (const MemoryMove& move : all) cache->arena()->settle(move.id, true);
        const std::int64_t decided = cache->arena()->usage().moves;
        if (takes) {
          all.clear();
          for (const MemoryMove& move : cache->arena()->take().moves) all.push_back(move);
          CHECK(cache->arena()->take().moves.empty());
          for (const MemoryMove& move : all) {
            CHECK(move.kind == MemoryMove::Kind::map);
            CHECK_FALSE(cache->arena()->is_mapped(move.part, move.extent));
            cache->arena()->settle(move.id, true);
            CHECK(cache->arena()->is_mapped(move.part, move.extent));
          }
          late += static_cast<int>(all.size());
          CHECK(cache->arena()->usage().moves == decided);
        } else if (!all.empty()) {
          late += static_cast<int>(decided - static_cast<std::int64_t>(all.back().id));
        }
        cache->finish(started->request);
        cache->check_invariants();
      }
      CHECK(late > 10);
    }
}

TEST_CASE("a pass finds as much free KV as one of the last passes took") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = arena_options(index);
    options.max_request_tokens = 11 * block;
    const auto cache = make_request_cache(options);
    for (std::int32_t name = 1; name < 60; ++name) {
      const std::vector<Token> tokens = repeated(name, 9 * block + 1);
      const auto started = cache->start({.tokens = tokens});
      const PassRow row{.request = started->request, .tokens = 9 * block + 1};
      const CacheUsage before = cache->usage();
      PassPlan plan = cache->plan({&row, 1});
      if (name > 20) CHECK(cache->usage().evicted_states == before.evicted_states);
      settle_all(*cache, plan.memory);
      for (int tries = 0; plan.rows_without_room > 0 && tries < 4; ++tries) {
        cache->cancel(plan.pass);
        plan = cache->plan({&row, 1});
        settle_all(*cache, plan.memory);
      }
      const std::int32_t none = 0;
      settle_all(*cache, cache->commit(plan.pass, {&none, 1}, {}).memory);
      cache->finish(started->request);
    }
  }
}

namespace {

/// Numbers without content behind them, of which the first ones are used.
class FakeIndex final : public detail::ElasticIndex {
 public:
  explicit FakeIndex(const RequestCacheOptions& options)
      : closed_{std::vector<bool>(static_cast<std::size_t>(kv_blocks(options))),
                std::vector<bool>(static_cast<std::size_t>(checkpoint_slots(options)))} {}

  void use(MemoryPart part, std::int32_t numbers) { used_[static_cast<std::size_t>(part)] = numbers; }

  [[nodiscard]] std::int32_t free_numbers(MemoryPart part) const noexcept override {
    const std::vector<bool>& closed = closed_[static_cast<std::size_t>(part)];
    std::int32_t free = 0;
    for (std::int32_t i = used_[static_cast<std::size_t>(part)]; std::cmp_less(i, closed.size()); ++i)
      free += !closed[static_cast<std::size_t>(i)];
    return free;
  }
  [[nodiscard]] bool is_free(MemoryPart part, std::int32_t number) const override {
    return number >= used_[static_cast<std::size_t>(part)];
  }
  void close(MemoryPart part, std::span<const NumberRange> ranges) override {
    for (const NumberRange& range : ranges) set(part, range.first, range.count, true);
  }
  void open(MemoryPart part, std::int32_t first, std::int32_t count) override { set(part, first, count, false); }
  void count_movable(MemoryPart, std::int32_t, std::span<std::int32_t> by_extent) override {
    std::ranges::fill(by_extent, 0);
  }
  void vacate(MemoryPart, std::vector<SlotCopy>&) override {}
  bool evict_least() override { return false; }
  bool evict_held_state() override { return false; }

 private:
  void set(MemoryPart part, std::int32_t first, std::int32_t count, bool closed) {
    for (std::int32_t i = first; i < first + count; ++i)
      closed_[static_cast<std::size_t>(part)][static_cast<std::size_t>(i)] = closed;
  }

  std::array<std::vector<bool>, memory_part_count> closed_;
  std::array<std::int32_t, memory_part_count> used_ = {};
};

}  // namespace

namespace {

/// An arena with half of its memory for each part. KV has 6 of 40 numbers free, states have 30.
struct FakeArena {
  FakeArena() {
    index.use(MemoryPart::kv, 34);
    index.use(MemoryPart::states, 10);
  }
  /// Moves that are decided next.
  std::size_t moves() {
    arena.begin_call();
    arena.balance();
    return arena.take().moves.size();
  }

  RequestCacheOptions options = arena_options(Combination::hash_slots);
  FakeIndex index{options};
  detail::MemoryArena arena{options, index, nullptr};
};

}  // namespace

TEST_CASE("memory comes to KV for the rest of a prompt before its passes") {
  FakeArena fake;
  CHECK(fake.moves() == 0);
  fake.arena.expect_kv(10);
  CHECK(fake.moves() == 4);
}

TEST_CASE("room for what a pass took is kept for some passes, and then no longer") {
  for (const std::int32_t numbers : {1, 0}) {
    CAPTURE(numbers);
    const int passes = numbers > 0 ? 16 : 1024;
    for (const bool is_old : {false, true}) {
      CAPTURE(is_old);
      FakeArena fake;
      fake.arena.note_need(MemoryPart::kv, 10);
      for (int i = 0; i < (is_old ? 2 * passes + 1 : passes - 2); ++i) fake.arena.note_need(MemoryPart::kv, numbers);
      CHECK(fake.moves() == (is_old ? 0 : 4));
    }
  }
}

TEST_CASE("a part that found too few numbers once gives memory as soon as enough are free") {
  const RequestCacheOptions options = arena_options(Combination::hash_slots);
  FakeIndex index(options);
  index.use(MemoryPart::kv, 40);
  index.use(MemoryPart::states, 40);
  detail::MemoryArena arena(options, index, nullptr);
  arena.note_lack(MemoryPart::states, 3);
  index.use(MemoryPart::states, 10);
  arena.balance();
  const MemoryPlan plan = arena.take();
  REQUIRE(!plan.moves.empty());
  for (const MemoryMove& move : plan.moves) {
    CHECK(move.kind == MemoryMove::Kind::unmap);
    CHECK(move.part == MemoryPart::states);
  }
}

TEST_CASE("a prompt that leaves two checkpoints finds memory for both") {
  RequestCacheOptions options = arena_options(Combination::hash_slots);
  options.max_request_tokens = 96;
  options.kv_tokens = std::int64_t{block} * 200;
  slots(options).placement = CheckpointPlacement::branch;
  slots(options).arena.bytes = 200 * 40;
  ArenaServer server(options);
  for (std::int32_t name = 1; name <= 40; ++name) server.serve(repeated(name, 20 * block + 1));
  for (int again = 0; again < 3; ++again) server.serve(repeated(40, 20 * block + 1));  // memory moves meanwhile
  const CacheUsage before = server.cache().usage();
  std::vector<Token> branch = repeated(40, 19 * block);
  branch.resize(20 * block + 1, 1000);
  server.serve(branch);
  CHECK(server.cache().usage().states == before.states + 2);
  CHECK(server.cache().usage().evicted_states == before.evicted_states);
}

TEST_CASE("memory that the system refused for a while comes back") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    ArenaServer server(arena_options(index));
    ArenaServer never_refused(arena_options(index));
    std::int32_t name = 0;
    const auto serve = [&](int prompts, bool refuses_maps) {
      for (int i = 0; i < prompts; ++i) {
        server.serve(repeated(++name, 5 * block + 1), true, refuses_maps);
        never_refused.serve(repeated(name, 5 * block + 1));
      }
    };
    const auto content = [](ArenaServer& of) {
      return of.cache().usage().kv_tokens / block + of.cache().usage().states;
    };
    serve(100, true);
    CHECK(server.usage().refused_moves > 0);
    CHECK(content(server) < content(never_refused));
    serve(1200, false);
    CHECK(content(server) == content(never_refused));
  }
}

TEST_CASE("an extent that the system always refuses costs the cache that extent alone") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    std::array<std::int64_t, 2> mapped = {};
    for (const bool bad : {false, true}) {
      const auto cache = make_request_cache(arena_options(index));
      std::optional<std::int32_t> bad_extent;
      const auto settle = [&](const MemoryPlan& plan) {
        for (const MemoryMove& move : plan.moves) {
          const bool map = move.kind == MemoryMove::Kind::map && move.part == MemoryPart::kv;
          if (bad && map && !bad_extent) bad_extent = move.extent;
          cache->arena()->settle(move.id, !map || bad_extent != move.extent);
        }
      };
      for (std::int32_t name = 1; name < 400; ++name) {
        const auto tokens = repeated(name, 21);
        const auto started = cache->start({.tokens = tokens});
        REQUIRE(started);
        const PassRow row{.request = started->request, .tokens = 21};
        const PassPlan plan = cache->plan({&row, 1});
        REQUIRE(plan.rows_without_room == 0);
        settle(plan.memory);
        const std::int32_t none = 0;
        settle(cache->commit(plan.pass, {&none, 1}, {}).memory);
        cache->finish(started->request);
      }
      const ArenaUsage usage = cache->arena()->usage();
      mapped[bad] = usage.kv_bytes + usage.state_bytes;
      CHECK((usage.refused_moves > 0) == bad);
    }
    CHECK(mapped[1] > mapped[0] - 5 * 40);
  }
}

TEST_CASE("an insert that finds no room makes some by moves that take() answers") {
  for (const Combination index : slot_combinations) {
    CAPTURE(static_cast<int>(index));
    RequestCacheOptions options = arena_options(index);
    options.max_requests = 10;
    const auto cache = make_request_cache(options);
    for (std::int32_t name = 100; name < 110; ++name) {
      const auto tokens = repeated(name, 24);
      const auto started = cache->start({.tokens = tokens});
      REQUIRE(started);
      int tries = 0;
      for (bool done = false; !done; ++tries) {
        REQUIRE(tries < 4);
        const auto inserted = cache->insert(started->request, 24);
        settle_all(*cache, inserted ? inserted->commit.memory : cache->arena()->take());
        CHECK(cache->arena()->take().moves.empty());
        done = inserted.has_value();
      }
    }
  }
}

TEST_CASE("a cache in an arena is reset with moves under way, and may have no checkpoints") {
  std::int64_t resets = 0;
  std::uint64_t seeds = 0;
  for (const Combination index : slot_combinations)
    for_each_seed(60, [&](Random& random, std::uint64_t) {
      ++seeds;
      RequestCacheOptions options = arena_options(index);
      slots(options).separate_checkpoints = random.chance(50);
      slots(options).arena.kv = {2, 80};
      options.scrub = random.chance(50);
      if (!slots(options).separate_checkpoints && random.chance(20)) slots(options).checkpoints = 0;
      const auto cache = make_request_cache(options);
      std::vector<std::uint64_t> moves;
      const auto take = [&](const MemoryPlan& plan) {
        for (const MemoryMove& move : plan.moves) moves.push_back(move.id);
      };
      for (int step = 0; step < 200; ++step) {
        const auto tokens = repeated(random.between32(1, 40), random.between(1, 24));
        const auto started = cache->start({.tokens = tokens});
        REQUIRE(started);
        const PassRow row{.request = started->request,
                          .tokens = static_cast<std::int32_t>(std::ssize(tokens) - started->reused_tokens)};
        const PassPlan plan = cache->plan({&row, 1});
        take(plan.memory);
        const std::int32_t none = 0;
        take(cache->commit(plan.pass, {&none, 1}, {}).memory);
        cache->finish(started->request);
        if (random.chance(10)) {
          resets += !moves.empty();
          cache->reset();
        }
        cache->check_invariants();
        while (!moves.empty() && random.chance(40)) {
          cache->arena()->settle(moves.back(), !random.chance(10));
          moves.pop_back();
          cache->check_invariants();
        }
      }
    });
  if (seeds >= 120) CHECK(resets > 100);
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
  refused("arena.kv.bytes = 7", [](SlotLayout& slots) { slots.arena.kv = {.count = 8, .bytes = 7}; });
  refused("arena.kv.bytes = 72057594037927936",
          [](SlotLayout& slots) { slots.arena.kv.bytes = std::int64_t{1} << 56; });
  refused("arena.states.count = -1", [](SlotLayout& slots) { slots.arena.states.count = -1; });
  refused("arena.states.bytes = 0", [](SlotLayout& slots) { slots.arena.states.bytes = 0; });
  refused("arena.state_share = 1.5", [](SlotLayout& slots) { slots.arena.state_share = 1.5; });
  refused("arena.bytes = 1000", [](SlotLayout& slots) {
    constexpr std::int64_t most = std::int64_t{1} << 52;
    slots.arena = {.bytes = 1000, .kv = {1000, most}, .states = {1000, most}};
  });
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
