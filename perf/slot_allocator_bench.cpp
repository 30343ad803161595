// SPDX-License-Identifier: Apache-2.0
// The cost of an eviction at 10⁶ blocks. Peer in the same run: a bare flat map of as many entries, erase one and insert
// one. And the cost of a request's bookkeeping per block of its prompt, without hashing.
#include <stateport/core/slots/slot_allocator.hpp>

#include <stateport/core/pool/block_pool.hpp>

#include "comparison.hpp"
#include "containers/flat_map.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t batch = 8;
constexpr std::size_t batches_per_run = 1000;
constexpr double evictions_per_run = batch * batches_per_run;

void require_true(bool ok) {
  if (!ok) throw std::runtime_error("the workload is broken");
}

BlockHash random_hash(std::mt19937_64& random) {
  return static_cast<BlockHash>(random() >> 1) | 1;
}

/// The peer: the keys that are in the map, oldest first, in a ring.
class BareMap {
 public:
  explicit BareMap(std::size_t entries) : keys_(entries) {
    map_.reserve(entries);
    for (BlockHash& key : keys_) map_[key = random_hash(random_)] = BlockId{0};
  }
  void run() {
    for (std::size_t i = 0; i < batch * batches_per_run; ++i) {
      map_.erase(keys_[oldest_]);
      const BlockHash key = random_hash(random_);
      map_[key] = BlockId{static_cast<std::int32_t>(oldest_)};
      keys_[oldest_] = key;
      if (++oldest_ == keys_.size()) oldest_ = 0;
    }
  }

 private:
  std::mt19937_64 random_{1};
  std::vector<BlockHash> keys_;
  FlatMap<BlockHash, BlockId> map_;
  std::size_t oldest_ = 0;
};

/// All blocks cached, last used in random order.
class FullPool {
 public:
  explicit FullPool(std::size_t blocks) : pool({.blocks = static_cast<std::int32_t>(blocks) + 1}), all(blocks) {
    require_true(pool.allocate(all));
    std::vector<BlockHash> hashes(blocks);
    for (BlockHash& hash : hashes) hash = random_hash(random);
    pool.register_hashes(all, hashes);
    std::ranges::shuffle(all, random);
    for (const BlockId& block : all) {
      pool.advance_tick();
      pool.retain({&block, 1});
      pool.release({&block, 1});
      pool.release({&block, 1});
    }
  }
  std::mt19937_64 random{2};
  BlockPool pool;
  std::vector<BlockId> all;
};

/// A batch of new blocks evicts the least recently used ones and is registered and released.
void evict_blocks(FullPool& full) {
  std::array<BlockId, batch> blocks;
  std::array<BlockHash, batch> hashes;
  for (std::size_t i = 0; i < batches_per_run; ++i) {
    full.pool.advance_tick();
    require_true(full.pool.allocate(blocks));
    for (BlockHash& hash : hashes) hash = random_hash(full.random);
    full.pool.register_hashes(blocks, hashes);
    full.pool.release(blocks);
  }
}

void block_pool_evict(benchmark::State& state) {
  const auto blocks = static_cast<std::size_t>(state.range(0));
  FullPool full(blocks);
  BareMap bare(blocks);
  const Comparison result =
      report(state, {{"ours", [&](int) { evict_blocks(full); }}, {"flat_map", [&](int) { bare.run(); }}}, 0, 31);
  state.counters["ns_per_eviction"] = result.ours().median_ns / evictions_per_run;
}

/// `states` blocks have a state and some more have none; those ask for one, so that every slot given is one taken.
class FullStates {
 public:
  explicit FullStates(std::size_t states)
      : full_(states + states / 8), slots_(static_cast<std::int32_t>(states)), states_(slots_, full_.pool) {
    std::vector<SlotId> slots(states);
    const std::span first = std::span(full_.all).first(states);
    states_.allocate(first, slots);
    for (const BlockId block : first) register_one(block);
    next_ = states;
  }
  void run() {
    std::array<SlotId, batch> slots;
    for (std::size_t i = 0; i < batches_per_run; ++i) {
      if (next_ + batch > full_.all.size()) next_ = 0;
      const std::span blocks = std::span(full_.all).subspan(next_, batch);
      next_ += batch;
      full_.pool.advance_tick();
      full_.pool.retain(blocks);
      states_.allocate(blocks, slots);
      for (const BlockId block : blocks) register_one(block);
      full_.pool.release(blocks);
    }
  }
  [[nodiscard]] std::int64_t evictions() const { return states_.evictions(); }

 private:
  void register_one(BlockId block) {
    const BlockHash hash = random_hash(full_.random);
    states_.register_hashes({&block, 1}, {&hash, 1});
  }
  FullPool full_;
  SlotPool slots_;
  SlotAllocator states_;
  std::size_t next_ = 0;
};

void slot_allocate_evict(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  FullStates states(count);
  BareMap bare(count);
  std::int64_t runs = 0;
  const auto ours = [&](int) {
    states.run();
    ++runs;
  };
  const Comparison result = report(state, {{"ours", ours}, {"flat_map", [&](int) { bare.run(); }}}, 0, 31);
  require_true(states.evictions() == runs * static_cast<std::int64_t>(batch * batches_per_run));
  state.counters["ns_per_eviction"] = result.ours().median_ns / evictions_per_run;
}

/// A request whose prompt is half cached: find, retain, allocate, register, release.
class Requests {
 public:
  explicit Requests(std::size_t blocks)
      : full_(blocks), keys_(prompt_blocks), parents_(prompt_blocks), row_(prompt_blocks) {
    prefixes_.resize(blocks / prompt_blocks / 2);
    for (std::vector<BlockHash>& prefix : prefixes_) prefix = {};
  }
  void run() {
    for (int request = 0; request < requests_per_run; ++request) one();
  }
  static constexpr int requests_per_run = 64;
  static constexpr std::size_t prompt_blocks = 128;

 private:
  void one() {
    std::vector<BlockHash>& cached = prefixes_[full_.random() % prefixes_.size()];
    for (std::size_t i = 0; i < prompt_blocks; ++i) {
      keys_[i] = i < cached.size() ? cached[i] : random_hash(full_.random);
      parents_[i] = i == 0 ? root_hash : keys_[i - 1];
    }
    full_.pool.advance_tick();
    const std::size_t matched = full_.pool.find_prefix(keys_, row_);
    const std::span row(row_);
    full_.pool.retain(row.first(matched));
    require_true(full_.pool.allocate(row.subspan(matched)));
    full_.pool.register_hashes(row, keys_, parents_);
    full_.pool.release(row);
    cached.assign(keys_.begin(), keys_.begin() + prompt_blocks / 2);
  }
  FullPool full_;
  std::vector<std::vector<BlockHash>> prefixes_;
  std::vector<BlockHash> keys_;
  std::vector<BlockHash> parents_;
  std::vector<BlockId> row_;
};

void request_bookkeeping(benchmark::State& state) {
  Requests requests(static_cast<std::size_t>(state.range(0)));
  for (int warm = 0; warm < 20; ++warm) requests.run();
  const Comparison result = report(state, {{"ours", [&](int) { requests.run(); }}}, 0, 101);
  state.counters["ns_per_block"] =
      result.ours().median_ns / static_cast<double>(Requests::requests_per_run * Requests::prompt_blocks);
}

BENCHMARK(block_pool_evict)->Arg(1'000)->Arg(1'000'000)->Iterations(1)->UseManualTime();
BENCHMARK(slot_allocate_evict)->Arg(1'000'000)->Iterations(1)->UseManualTime();
BENCHMARK(request_bookkeeping)->Arg(10'000)->Arg(1'000'000)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
