// SPDX-License-Identifier: Apache-2.0
#include "hash/block_hash_index.hpp"

#include "colliding_hashes.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

using namespace stateport;
using test::colliding_hashes;

TEST_CASE("hashes with the same mixed bits find their own blocks, and a stranger among them finds none") {
  const std::vector<BlockHash> hashes = colliding_hashes(0xffffffffu, 5);
  const auto hash_of = [&](BlockId block) { return hashes[block.index()]; };
  detail::BlockHashIndex<BlockId> index(4);
  for (std::int32_t block = 0; block < 4; ++block)
    index.assign(hashes[BlockId{block}.index()], BlockId{block}, hash_of);
  for (std::int32_t block = 0; block < 4; ++block)
    CHECK(index.find(hashes[BlockId{block}.index()], hash_of) == BlockId{block});
  CHECK_FALSE(index.find(hashes[4], hash_of).valid());
  CHECK(index.guess(hashes[4]).valid());  // a guess compares no hash
  index.erase(hashes[1], BlockId{1});
  CHECK_FALSE(index.find(hashes[1], hash_of).valid());
  CHECK(index.find(hashes[3], hash_of) == BlockId{3});
  CHECK(index.size() == 3);
  index.check_invariants(hash_of);
}

TEST_CASE("random assignments agree with a map: the id assigned last is found and only it takes the hash away") {
  std::vector<BlockHash> pool;
  for (const std::uint32_t mixed : {0u, 1u << 30, 0xffffffffu})
    for (const BlockHash hash : colliding_hashes(mixed, 4)) pool.push_back(hash);
  test::for_each_seed(4000, [&](test::Random& random, std::uint64_t) {
    const auto count = static_cast<std::size_t>(random.between(1, 16));
    detail::BlockHashIndex<SlotId> index(count);
    std::vector<BlockHash> kept(count, hash_not_computed);
    std::unordered_map<BlockHash, SlotId> model;
    const auto hash_of = [&](SlotId slot) { return kept[slot.index()]; };
    for (int step = 0; step < 60; ++step) {
      const SlotId slot{random.between32(0, static_cast<std::int32_t>(count) - 1)};
      BlockHash& own = kept[slot.index()];
      if (own > 0 && random.chance(60)) {
        index.erase(own, slot);
        if (const auto entry = model.find(own); entry != model.end() && entry->second == slot) model.erase(entry);
        own = hash_not_computed;
      } else {
        if (own <= 0) own = random.chance(80) ? pool[random.bits() % pool.size()] : random.between(1, 1000);
        index.assign(own, slot, hash_of);
        model[own] = slot;
      }
      for (const BlockHash hash : pool) {
        const auto entry = model.find(hash);
        REQUIRE(index.find(hash, hash_of) == (entry == model.end() ? SlotId{} : entry->second));
      }
      for (const auto& [hash, owner] : model) REQUIRE(index.find(hash, hash_of) == owner);
      REQUIRE(index.size() == model.size());
      index.check_invariants(hash_of);
    }
  });
}
