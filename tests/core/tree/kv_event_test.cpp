// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/tree/prefix_tree.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <numeric>
#include <string>
#include <vector>

using namespace stateport;
using stateport::test::Random;

namespace {

using Key = std::vector<Token>;
using Bytes = std::array<std::uint8_t, 32>;

/// A router's list of one worker's blocks, each with its parent.
struct Router {
  void hear(const KvEvent& event) {
    if (event.kind == KvEvent::Kind::cleared) return held.clear();
    if (event.kind == KvEvent::Kind::stored) {
      Bytes parent = event.parent.bytes;
      ok &= event.parent == BlockDigest{} || held.contains(parent);
      for (const BlockDigest& block : event.blocks) {
        ok &= held.emplace(block.bytes, parent).second;
        parent = block.bytes;
      }
      return;
    }
    for (const BlockDigest& block : event.blocks) ok &= held.erase(block.bytes) == 1;
    for (const auto& [block, parent] : held) ok &= parent == Bytes{} || held.contains(parent);
  }
  std::map<Bytes, Bytes> held;
  bool ok = true;
};

/// The same from the tree itself, hashed anew.
std::map<Bytes, Bytes> held_blocks(const PrefixTree& tree, BlockHashKind kind) {
  const auto page = static_cast<std::size_t>(tree.page_size());
  BlockHasher hasher({.kind = kind, .block_size_tokens = tree.page_size()});
  std::map<std::uint32_t, BlockDigest> ends;
  std::map<Bytes, Bytes> held;
  for (const NodeInfo& node : tree.nodes()) {
    std::vector<ExtraKey> names;
    if (node.parent.is_root() && node.name_space.salt)
      names.push_back({.kind = ExtraKey::Kind::tenant_salt, .id = *node.name_space.salt});
    if (node.parent.is_root() && node.name_space.extra_key)
      names.push_back({.kind = ExtraKey::Kind::adapter, .id = *node.name_space.extra_key});
    BlockDigest before = node.parent.is_root() ? BlockDigest{} : ends.at(node.parent.index);
    for (std::size_t at = 0; at < node.tokens.size(); at += page, names.clear()) {
      const BlockDigest block = hasher.hash_block(before, node.tokens.subspan(at, page), names);
      held.emplace(block.bytes, before.bytes);
      before = block;
    }
    ends[node.id.index] = before;
  }
  return held;
}

void insert_kv(PrefixTree& tree, const Key& key, KvIndex first_kv, const Namespace& name_space = {}) {
  std::vector<KvIndex> kv(key.size());
  std::iota(kv.begin(), kv.end(), first_kv);
  Freed freed;
  tree.insert({.tokens = key, .kv = kv, .name_space = name_space}, freed);
}

}  // namespace

TEST_CASE("KV events name new blocks and their parent, and blocks that left") {
  std::vector<std::string> said;
  PromptHashes prompt;
  BlockHasher hasher({.block_size_tokens = 2});
  hasher.hash_prompt(Key{1, 2, 3, 4, 5, 6, 7, 8}, {}, prompt);
  std::vector<BlockHash> keys;
  BlockHash parent = 0;
  Key tokens;
  PrefixTree tree({.page_size = 2, .on_kv_event = [&](const KvEvent& event) {
                     keys.clear();
                     for (const BlockDigest& block : event.blocks) keys.push_back(block.key());
                     parent = event.parent == BlockDigest{} ? root_hash : event.parent.key();
                     tokens.assign(event.tokens.begin(), event.tokens.end());
                     said.push_back(event.kind == KvEvent::Kind::stored    ? "stored"
                                    : event.kind == KvEvent::Kind::removed ? "removed"
                                                                           : "cleared");
                   }});
  insert_kv(tree, {1, 2, 3, 4, 5, 6, 9}, 0);
  CHECK(keys == std::vector(prompt.keys.begin(), prompt.keys.begin() + 3));
  CHECK(parent == root_hash);
  CHECK(tokens == Key{1, 2, 3, 4, 5, 6});
  tree.match(Key{1, 2, 3, 4});  // a split tells nothing
  insert_kv(tree, {1, 2, 3, 4, 5, 6}, 10);
  CHECK(said == std::vector<std::string>{"stored"});
  insert_kv(tree, {1, 2, 3, 4, 5, 6, 7, 8}, 20);
  CHECK(keys == std::vector{prompt.keys[3]});
  CHECK(parent == prompt.keys[2]);
  CHECK(tokens == Key{7, 8});
  insert_kv(tree, {1, 2, 9, 9}, 30);
  CHECK(parent == prompt.keys[0]);
  Freed freed;
  tree.evict({.tokens = 1}, freed);
  CHECK(keys == std::vector{prompt.keys[3]});
  tree.reset(freed);
  CHECK(said == std::vector<std::string>{"stored", "stored", "stored", "removed", "cleared"});
}

TEST_CASE("a router that follows KV events knows exactly the blocks in the tree") {
  constexpr std::array<Namespace, 3> names{Namespace{}, Namespace{"", std::nullopt}, Namespace{"a", "s"}};
  test::for_each_seed(300, [&](Random& random, std::uint64_t seed) {
    Router router;
    const auto kind = seed % 4 == 0 ? BlockHashKind::sha256 : BlockHashKind::xxh3_128;
    PrefixTree tree({.page_size = random.between32(1, 3),
                     .eviction = seed % 2 == 0 ? EvictionOrder::lru : EvictionOrder::lfu,
                     .reserve_nodes = 0,
                     .on_kv_event = [&](const KvEvent& event) { router.hear(event); },
                     .kv_event_hash = kind});
    KvIndex next_kv = 0;
    for (int step = 0; step < 60; ++step) {
      Key key(static_cast<std::size_t>(random.between(0, 12)));
      for (Token& token : key) token = random.between32(0, 1);
      const Namespace& name = names[static_cast<std::size_t>(random.between(0, 2))];
      Freed freed;
      const std::int64_t dice = random.between(0, 99);
      if (dice < 50) {
        insert_kv(tree, key, next_kv, name);
        next_kv += static_cast<KvIndex>(key.size());
      } else if (dice < 70) {
        tree.match(key, name);
      } else if (dice < 98) {
        tree.evict({.tokens = random.between(1, 8)}, freed);
      } else {
        tree.reset(freed);
      }
      REQUIRE(router.ok);
      REQUIRE((router.held == held_blocks(tree, kind)));
    }
  });
}

TEST_CASE("KV events of a warm tree allocate nothing") {
  std::int64_t blocks = 0;
  PrefixTree tree(
      {.page_size = 4, .reserve_nodes = 64, .reserve_tokens = 4096, .on_kv_event = [&blocks](const KvEvent& event) {
         blocks += std::ssize(event.blocks);
       }});
  Key key(32);
  std::vector<KvIndex> kv(32, 0);
  Freed freed;
  freed.kv.reserve(4096);
  std::uint64_t before = 0;
  for (int round = 0; round < 30; ++round) {
    if (round == 10) before = test::heap_allocations();
    freed.clear();
    std::iota(key.begin(), key.end(), 100 * round);
    tree.insert({.tokens = key, .kv = kv}, freed);
    if (round >= 5) tree.evict({.tokens = 32}, freed);
  }
  CHECK(test::heap_allocations() == before);
  CHECK(blocks == 30 * 8 + 25 * 8);
}
