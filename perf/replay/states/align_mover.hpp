// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_staging.hpp>
#include <stateport/core/model/ids.hpp>

#include "states/state_mover.hpp"

#include <cstdint>
#include <span>

namespace stateport::replay {

/// One step of a batch, everything in batch order.
struct AlignStepView {
  std::span<const StagedRequest> rows;
  std::span<const std::int32_t> sampled;      ///< [rows] tokens kept; 0: a prefill chunk that does not end the prompt
  std::span<const std::int32_t> block_table;  ///< [rows, columns]
  std::int32_t columns = 0;
  std::span<const Content> from;  ///< [rows] the prefix that a row's forward continues
  /// [rows, history + drafts] what the forward writes: the prefixes that end at its last `history` tokens before any
  /// draft, then those with one draft more each. Drafts that are not kept have names of their own.
  std::span<const Content> window;
};

/// Makes and moves states in the align modes: all decisions about columns are taken by what moves them.
class AlignMover {
 public:
  virtual ~AlignMover() = default;

  virtual void add_request(RequestId request, std::int64_t computed) = 0;
  virtual void forget(std::span<const RequestId> requests) = 0;
  /// Pre-step, forward, sampling and post-step of a batch.
  virtual void step(const AlignStepView& step) = 0;
  /// True if the remembered columns and accepted counts [requests] are these.
  [[nodiscard]] virtual bool remembers(std::span<const std::int32_t> columns,
                                       std::span<const std::int32_t> accepted) = 0;
  /// A request continues from a cached block (restored), or a block is about to be made findable: the number of
  /// 16-byte words that are not those of the state after `window` [history], the prefixes that end at its last tokens.
  [[nodiscard]] virtual std::uint64_t check_restored(BlockId block, std::span<const Content> window) = 0;
  [[nodiscard]] virtual std::uint64_t check_published(BlockId block, std::span<const Content> window) = 0;

  /// Restores: requests that continued from a cached block. Commits: published states. Both are verified.
  [[nodiscard]] virtual MoverCounts counts() const = 0;
};

/// Moves nothing: for questions about hit rates and planning times alone.
class NoAlignStates final : public AlignMover {
 public:
  void add_request(RequestId, std::int64_t) override {}
  void forget(std::span<const RequestId>) override {}
  void step(const AlignStepView&) override {}
  bool remembers(std::span<const std::int32_t>, std::span<const std::int32_t>) override { return true; }
  std::uint64_t check_restored(BlockId, std::span<const Content>) override {
    ++counts_.restores;
    return 0;
  }
  std::uint64_t check_published(BlockId, std::span<const Content>) override {
    ++counts_.commits;
    return 0;
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }

 private:
  MoverCounts counts_;
};

}  // namespace stateport::replay
