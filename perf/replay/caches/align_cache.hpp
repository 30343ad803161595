// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/column_table.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/block_pool.hpp>
#include <stateport/core/stats/lost_hit.hpp>

#include "caches/cache.hpp"
#include "containers/flat_map.hpp"
#include "states/state_mover.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::replay {

/// Blocks that a running request may need: the running window, the boundary before it, one more with asynchronous
/// counters, and one while the window moves.
[[nodiscard]] constexpr std::int64_t blocks_held_max(std::int32_t drafts) noexcept {
  return 4 + std::int64_t{drafts};
}

struct AlignCacheOptions {
  std::int32_t blocks = 0;  ///< blocks of one state each, the null block not counted
  std::int64_t block_size_tokens = 512;
  std::int32_t drafts = 0;
  std::int32_t requests = 1;  ///< served at the same time
};

/// Where a request continues.
struct AlignHit {
  std::int64_t tokens = 0;      ///< 0: from nothing
  BlockId block;                ///< holds state@tokens
  std::optional<LostHit> lost;  ///< why not at the end of the longest prefix that was computed before
};

/// The index of the align modes: a block of the pool is a slot, found by the prefix whose state it holds, and owned by
/// the columns of running requests. Least recently used blocks go first. KV is taken to be unlimited. Block ids are
/// from 1 on; 0 is the null block.
class AlignCache {
 public:
  /// Throws InvalidArgument: sizes < 1, fewer blocks than the requests hold when each needs the most.
  explicit AlignCache(const AlignCacheOptions& options);

  /// Starts the row of a request over the longest prefix with a cached state; boundaries[k] names its first k blocks.
  [[nodiscard]] AlignHit begin(RequestId request, std::span<const Content> boundaries, std::int64_t prompt_tokens);
  /// Hands back the columns behind `processed` tokens, then makes room for a running window that ends at `cover`.
  /// Returns the blocks that are new, valid until the next call.
  [[nodiscard]] std::span<const BlockId> make_room(RequestId request, std::int64_t processed, std::int64_t cover);
  /// Block ids by column, 0 = null.
  [[nodiscard]] std::span<const std::int32_t> columns(RequestId request) const;
  /// Makes the block of a column findable as the state of `prefix`.
  void publish(RequestId request, std::int32_t column, Content prefix);
  /// The request has computed these prefixes and gives back its blocks.
  void end(RequestId request, std::span<const Content> boundaries);
  /// Once per step: the clock of what was used last.
  void advance_tick() noexcept { pool_.advance_tick(); }

  [[nodiscard]] CacheCounts counts() const;
  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  /// Counts states that lose their block.
  class Evictions final : public BlockListener {
   public:
    explicit Evictions(BlockPool& pool) : pool_(pool) { pool_.add_listener(*this); }
    ~Evictions() { pool_.remove_listener(*this); }
    Evictions(const Evictions&) = delete;
    Evictions& operator=(const Evictions&) = delete;

    void on_blocks_unreferenced(std::span<const BlockId>) override {}
    void on_blocks_deregistered(std::span<const BlockId>, std::span<const BlockHash> hashes) override;
    std::int64_t count = 0;

   private:
    BlockPool& pool_;
  };

  [[nodiscard]] ColumnTable& row(RequestId request) { return rows_[request.index()]; }
  [[nodiscard]] std::optional<LostHit> reason_lost(std::span<const Content> boundaries, std::int64_t hit_blocks,
                                                   std::int64_t usable_blocks) const;
  void give_back();

  AlignCacheOptions options_;
  BlockPool pool_;  ///< its block i is block i + 1 here: 0 is null
  Evictions evictions_;
  std::vector<ColumnTable> rows_;
  FlatSet<Content> computed_;   ///< prefixes of full blocks whose KV exists
  FlatSet<Content> published_;  ///< prefixes whose state was cached at some time
  std::vector<BlockId> released_;
  std::vector<BlockId> fresh_;
};

}  // namespace stateport::replay
