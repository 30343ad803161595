// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stateport {

/// How many tokens the states in the blocks of one group stand for, so that a block is registered for reuse only with
/// the count that it holds. Conv and recurrent parts are counted apart: with drafts they lie in different columns.
/// Every call is O(1) and allocates nothing. Not thread-safe.
class PublicationCheck {
 public:
  static constexpr std::int64_t unknown = unknown_tokens;

  /// Throws InvalidArgument for blocks < 1.
  explicit PublicationCheck(std::int32_t blocks);

  [[nodiscard]] std::int32_t blocks() const noexcept { return static_cast<std::int32_t>(held_.size()); }

  /// The forward left the conv window (the recurrent state) of `tokens` tokens in a block. A null or negative block is
  /// ignored. Throws InvalidArgument for a block out of range.
  void wrote_conv(BlockId block, std::int64_t tokens) {
    if (block.value() > null_block) at(block).conv = tokens;
  }
  void wrote_recurrent(BlockId block, std::int64_t tokens) {
    if (block.value() > null_block) at(block).recurrent = tokens;
  }
  /// A forward with a running state of `running` tokens wrote neighbouring columns, the first of them `skipped` behind
  /// the running column; `kept`: forward_kept().
  void wrote_window(std::span<const std::int32_t> blocks, std::int64_t skipped, std::int64_t running,
                    std::int32_t kept) {
    const std::span<Held> held = held_;
    if (skipped == 0 && !blocks.empty() && blocks.front() > null_block)
      checked(held, blocks.front()).conv = forward_conv_tokens(running, kept);
    for (const std::int32_t block : blocks) {
      if (block > null_block) checked(held, block).recurrent = forward_recurrent_tokens(running, kept, skipped);
      ++skipped;
    }
  }
  void wrote(BlockId block, std::int64_t tokens) {
    wrote_conv(block, tokens);
    wrote_recurrent(block, tokens);
  }
  /// A copy of a plan was enqueued.
  void copied(const SlotCopy& copy) {
    if (copy.dst_slot <= null_block) return;
    const std::span<Held> held = held_;
    Held& dst = checked(held, copy.dst_slot);
    // Either source may be the destination: each count is read before it is written.
    const Held& recurrent_src = copy.recurrent_src_slot > null_block ? checked(held, copy.recurrent_src_slot) : dst;
    if (copy.src_slot > null_block) {
      dst.conv = copied_conv_tokens(checked(held, copy.src_slot).conv, copy.conv_shift);
    }
    dst.recurrent = recurrent_src.recurrent;
  }
  /// The block has a new owner, or its content is no longer known. Must be called before a block is used again.
  void forget(BlockId block);

  /// True, and counted as published, iff the block holds state@tokens in both parts. Otherwise the block must not be
  /// registered; counted as refused. Throws InvalidArgument for a block < 1 or out of range.
  [[nodiscard]] bool publish(BlockId block, std::int64_t tokens);
  /// The tokens that a block stands for; unknown if its parts differ.
  [[nodiscard]] std::int64_t tokens(BlockId block) const;
  /// The tokens that each part stands for.
  [[nodiscard]] std::int64_t conv_tokens(BlockId block) const { return at(block).conv; }
  [[nodiscard]] std::int64_t recurrent_tokens(BlockId block) const { return at(block).recurrent; }

  [[nodiscard]] std::int64_t published() const noexcept { return published_; }
  [[nodiscard]] std::int64_t refused() const noexcept { return refused_; }

 private:
  struct Held {
    std::int64_t conv = unknown;
    std::int64_t recurrent = unknown;
  };
  template <class Entry>
  static Entry& checked(std::span<Entry> held, std::int32_t block) {
    require(static_cast<std::uint32_t>(block) < held.size(), "block", block, "is not a block of the group");
    return held[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] const Held& at(BlockId block) const { return checked(std::span(held_), block.value()); }
  [[nodiscard]] Held& at(BlockId block) { return const_cast<Held&>(std::as_const(*this).at(block)); }

  std::vector<Held> held_;
  std::int64_t published_ = 0;
  std::int64_t refused_ = 0;
};

}  // namespace stateport
