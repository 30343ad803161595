// SPDX-License-Identifier: Apache-2.0
// Fixed bookkeeping workloads whose instructions baselines/check_instructions.py counts: the same work on every
// machine. `stateport-instructions NAME` sets a workload up and runs it once inside counted(), the only function that
// counts.
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/pool/slot_pool.hpp>
#include <stateport/core/slots/slot_allocator.hpp>
#include <stateport/core/tree/prefix_tree.hpp>
#include <stateport/parts/align_planner.hpp>

#include "decode_workload.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace stateport::perf {

/// The counter counts the instructions of this function.
[[gnu::noinline]] void counted(const std::function<void()>& body) {
  body();
}

namespace {

void expect(bool ok) {
  if (!ok) std::abort();
}

std::vector<Token> random_tokens(std::mt19937_64& random, std::size_t count) {
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random() & 0x1FFFF);
  return tokens;
}

/// B1: 8 cached prompts of 8,192 tokens, hashed and looked up by blocks of 16.
void lookup() {
  constexpr std::size_t prompts = 8;
  constexpr std::size_t blocks = 512;
  std::mt19937_64 random(1);
  BlockHasher hasher({.kind = BlockHashKind::xxh3_128, .block_size_tokens = 16});
  BlockPool pool({.blocks = static_cast<std::int32_t>(prompts * blocks) + 1});
  PromptHashes hashes;
  std::vector<BlockId> row(blocks);
  std::vector<std::vector<Token>> tokens;
  for (std::size_t i = 0; i < prompts; ++i) {
    tokens.push_back(random_tokens(random, blocks * 16));
    hasher.hash_prompt(tokens.back(), {}, hashes);
    expect(pool.allocate(row));
    pool.register_hashes(row, hashes.keys);
  }
  counted([&] {
    for (const std::vector<Token>& prompt : tokens) {
      hasher.hash_prompt(prompt, {}, hashes);
      expect(pool.find_prefix(hashes.keys, row) == blocks);
    }
  });
}

/// B2: 4 cached prompts of 32,768 tokens, each held in `nodes` edges.
void match(std::size_t nodes) {
  constexpr std::size_t prompts = 4;
  constexpr std::size_t tokens = 32768;
  std::mt19937_64 random(2);
  PrefixTree tree({.page_size = 16,
                   .slots = static_cast<std::int32_t>(prompts),
                   .eviction = EvictionOrder::lru,
                   .reserve_nodes = prompts * nodes,
                   .reserve_tokens = prompts * tokens});
  std::vector<KvIndex> kv(tokens);
  std::iota(kv.begin(), kv.end(), 0);
  std::vector<std::vector<Token>> keys;
  Freed freed;
  for (std::size_t i = 0; i < prompts; ++i) {
    keys.push_back(random_tokens(random, tokens));
    SlotId slot;
    expect(tree.allocate_slots({&slot, 1}));
    tree.tag_slot(slot, tree.state_tag(keys.back()));
    tree.insert({.tokens = keys.back(), .kv = kv, .slot = slot}, freed);
    for (std::size_t edge = nodes - 1; edge > 0; --edge)
      tree.match(std::span(keys.back()).first(edge * (tokens / nodes)));
    tree.match(keys.back());
  }
  expect(tree.node_count() == prompts * nodes);
  counted([&] {
    for (const std::vector<Token>& key : keys) expect(tree.match(key, {}, kv).tokens == tokens);
  });
}

/// B3: a tree of 20,000 one-page leaves; 4,000 uses, or 4,000 times evict one and insert one.
void lru(bool exchange) {
  constexpr std::size_t leaves = 20'000;
  constexpr std::size_t calls = 4'000;
  constexpr std::size_t page = 16;
  std::mt19937_64 random(3);
  PrefixTree tree({.page_size = page,
                   .eviction = EvictionOrder::lru,
                   .reserve_nodes = leaves + 8,
                   .reserve_tokens = (leaves + 8) * page});
  const std::vector<KvIndex> kv(page, 0);
  const std::vector<Token> tokens = random_tokens(random, (leaves + calls) * page);
  Freed freed;
  const auto insert = [&](std::size_t i) {
    tree.insert({.tokens = std::span(tokens).subspan(i * page, page), .kv = kv}, freed);
  };
  for (std::size_t i = 0; i < leaves; ++i) insert(i);
  std::vector<NodeId> order;
  for (const NodeInfo& node : tree.nodes()) order.push_back(node.id);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (const NodeId node : order) tree.touch(node);
  counted([&] {
    for (std::size_t i = 0; i < calls; ++i) {
      if (!exchange) {
        tree.touch(order[i * 7 % order.size()]);
        continue;
      }
      freed.clear();
      expect(tree.evict({.tokens = 1}, freed).tokens == page);
      insert(leaves + i);
    }
  });
}

/// B4: one step of 512 requests in 4 groups, all of which cross a block boundary.
void plan_step() {
  constexpr std::int32_t requests = 512;
  constexpr std::int32_t drafts = 3;
  constexpr std::int32_t block_size = 560;
  constexpr std::int32_t columns = 64;
  AlignOptions options{.drafts = drafts, .max_requests = requests, .groups = {}};
  std::vector<std::int32_t> ids(requests * columns);
  std::iota(ids.begin(), ids.end(), 1);
  std::vector<BlockTable> tables;
  for (int group = 0; group < 4; ++group) {
    options.groups.push_back({.block_size_tokens = block_size, .blocks = requests * columns + 1, .conv_window = 6});
    tables.push_back({ids, columns, columns});
  }
  AlignPlanner planner(options);
  std::vector<std::int32_t> request, computed;
  const std::vector<std::int32_t> scheduled(requests, 1 + drafts), draft(requests, drafts);
  for (std::int32_t i = 0; i < requests; ++i) {
    request.push_back(i * 37 % requests);
    computed.push_back((i % 40 + 1) * block_size - 2);
    planner.add_request(RequestIndex{request.back()}, computed.back());
  }
  const AlignBatch batch{request, computed, scheduled, draft};
  counted([&] {
    expect(planner.pre_step(batch, tables).copies >= 0);
    planner.accept(request, scheduled);
    expect(planner.post_step(batch, tables).copies > 0);
  });
}

/// 20,000 cached blocks, last used in random order; `states` of them have a slot. 500 times, 8 new blocks evict the
/// least recently used ones and are registered and released, and with states get slots from 8 others.
void evict_blocks(std::size_t states) {
  constexpr std::size_t blocks = 20'000;
  constexpr std::size_t calls = 500;
  constexpr std::size_t batch = 8;
  std::mt19937_64 random(4);
  const auto hash = [&] { return static_cast<BlockHash>(random() >> 1) | 1; };
  BlockPool pool({.blocks = static_cast<std::int32_t>(blocks) + 1});
  SlotPool slots(static_cast<std::int32_t>(states));
  SlotAllocator allocator(slots, pool);
  std::vector<BlockId> all(blocks);
  expect(pool.allocate(all));
  std::vector<BlockHash> hashes(blocks);
  for (BlockHash& one : hashes) one = hash();
  pool.register_hashes(all, hashes);
  std::vector<SlotId> given(states);
  allocator.allocate(std::span(all).first(states), given);
  allocator.register_hashes(std::span(all).first(states), std::span(hashes).first(states));
  for (std::size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
  for (const BlockId& block : all) {
    pool.advance_tick();
    pool.retain({&block, 1});
    for (int reference = 0; reference < 2; ++reference) pool.release({&block, 1});
  }
  all.resize(batch);
  hashes.resize(batch);
  given.resize(batch);
  counted([&] {
    for (std::size_t i = 0; i < calls; ++i) {
      pool.advance_tick();
      expect(pool.allocate(all));
      for (BlockHash& one : hashes) one = hash();
      pool.register_hashes(all, hashes);
      if (states > 0) {
        allocator.allocate(all, given);
        allocator.register_hashes(all, hashes);
      }
      pool.release(all);
    }
  });
}

/// 20,000 states of blocks without references: 4,000 times, one is used by a request and let go.
void use_states() {
  constexpr std::size_t states = 20'000;
  BlockPool pool({.blocks = static_cast<std::int32_t>(states) + 1});
  SlotPool slots(static_cast<std::int32_t>(states));
  SlotAllocator allocator(slots, pool);
  std::vector<BlockId> all(states);
  expect(pool.allocate(all));
  std::vector<BlockHash> hashes(states);
  std::iota(hashes.begin(), hashes.end(), 1);
  pool.register_hashes(all, hashes);
  std::vector<SlotId> given(states);
  allocator.allocate(all, given);
  allocator.register_hashes(all, hashes);
  pool.release(all);
  counted([&] {
    for (std::size_t i = 0; i < 4'000; ++i) {
      pool.advance_tick();
      const auto found = allocator.find_longest_state({&hashes[i * 7 % states], 1});
      pool.retain({&found->block, 1});
      pool.release({&found->block, 1});
    }
  });
}

/// R1: 256 decode steps of 256 requests, in which each fills one block, or with drafts a few. The instructions of
/// sha256 are those of a library that is not ours.
void decode_steps(DecodeCache cache, std::int32_t drafts) {
  const std::unique_ptr<DecodeWorkload> workload =
      decode_with_request_cache({.cache = cache, .drafts = drafts, .hash = BlockHashKind::xxh3_128});
  workload->start();
  for (std::int32_t step = 0; step < DecodeShape::steps; ++step) workload->step();
  workload->start();
  counted([&] {
    for (std::int32_t step = 0; step < DecodeShape::block_size; ++step) workload->step();
  });
}

const std::map<std::string, std::function<void()>> workloads{
    {"B1.lookup", &lookup},
    {"B2.match_8_edges", [] { match(8); }},
    {"B2.match_2048_pages", [] { match(2048); }},
    {"B3.touch", [] { lru(false); }},
    {"B3.evict_insert", [] { lru(true); }},
    {"B4.plan_step", &plan_step},
    {"R1.slots", [] { decode_steps(DecodeCache::hash_slots, 0); }},
    {"R1.slots_3_drafts", [] { decode_steps(DecodeCache::hash_slots, 3); }},
    {"R1.tree", [] { decode_steps(DecodeCache::tree_slots, 0); }},
    {"R1.tree_3_drafts", [] { decode_steps(DecodeCache::tree_slots, 3); }},
    {"R1.align", [] { decode_steps(DecodeCache::hash_columns, 0); }},
    {"R1.align_3_drafts", [] { decode_steps(DecodeCache::hash_columns, 3); }},
    {"blocks.evict", [] { evict_blocks(0); }},
    {"states.evict", [] { evict_blocks(5'000); }},
    {"states.use", &use_states},
};

}  // namespace
}  // namespace stateport::perf

int main(int argc, char** argv) {
  const auto& workloads = stateport::perf::workloads;
  const auto chosen = argc == 2 ? workloads.find(argv[1]) : workloads.end();
  if (chosen == workloads.end()) {
    std::puts("usage: stateport-instructions WORKLOAD, one of:");
    for (const auto& [name, body] : workloads) std::printf("  %s\n", name.c_str());
    return 2;
  }
  chosen->second();
  return 0;
}
