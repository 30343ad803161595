// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_directory.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <span>
#include <vector>

namespace stateport::test {

using Blocks = std::vector<BlockId>;
using Hashes = std::vector<BlockHash>;

inline Blocks ids(std::initializer_list<std::int32_t> values) {
  Blocks blocks;
  for (const std::int32_t value : values) blocks.emplace_back(value);
  return blocks;
}

/// Events that a listener received, in order.
struct ToldOfBlocks {
  Blocks unreferenced;
  Blocks lost;
  Hashes hashes;  ///< of the lost blocks
  friend bool operator==(const ToldOfBlocks&, const ToldOfBlocks&) = default;
};

/// Records the events that it receives, and checks that the books of the directory are right by then.
class BlockRecorder final : public BlockListener {
 public:
  explicit BlockRecorder(BlockDirectory& blocks) : blocks_(blocks) { blocks_.add_listener(*this); }
  ~BlockRecorder() { blocks_.remove_listener(*this); }
  BlockRecorder(const BlockRecorder&) = delete;
  BlockRecorder& operator=(const BlockRecorder&) = delete;

  void on_blocks_unreferenced(std::span<const BlockId> blocks) override {
    for (const BlockId block : blocks) CHECK(blocks_.ref_count(block) == 0);
    reported.unreferenced.insert(reported.unreferenced.end(), blocks.begin(), blocks.end());
  }
  void on_blocks_deregistered(std::span<const BlockId> blocks, std::span<const BlockHash> hashes) override {
    for (const BlockId block : blocks) {
      CHECK(blocks_.ref_count(block) == 0);
      CHECK(blocks_.hash(block) == hash_not_computed);
    }
    reported.lost.insert(reported.lost.end(), blocks.begin(), blocks.end());
    reported.hashes.insert(reported.hashes.end(), hashes.begin(), hashes.end());
  }

  ToldOfBlocks reported;

 private:
  BlockDirectory& blocks_;
};

}  // namespace stateport::test
