// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace stateport::soak {

using test::has_separate_checkpoints;

/// Stands for tokens [0, n): depends on all of them and their order. No tokens: 0.
using Mark = std::uint64_t;
[[nodiscard]] constexpr Mark next_mark(Mark before, std::uint64_t token) noexcept {
  std::uint64_t bits = (before ^ (token + 1)) + 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return bits ^ (bits >> 31);
}

/// The content of a slot. A conv window is the last inputs of `base` tokens, and inputs after these, of which the marks
/// [first, first + count) are known. A recurrent state is exact.
struct StateMark {
  static constexpr std::int32_t marks_max = 4;
  std::int64_t base = -1;  ///< -1: no conv window was written
  std::int64_t first = 0;
  std::int64_t recurrent_tokens = -1;  ///< -1: no recurrent state was written
  Mark recurrent = 0;
  std::int32_t count = 0;
  std::int32_t unused = 0;  ///< no byte of an image is undefined
  std::array<Mark, marks_max> marks = {};

  [[nodiscard]] static StateMark whole(std::int64_t tokens, Mark mark) {
    return {
        .base = tokens, .first = tokens, .recurrent_tokens = tokens, .recurrent = mark, .count = 1, .marks = {mark}};
  }
  friend bool operator==(const StateMark&, const StateMark&) = default;
};
static_assert(std::is_trivially_copyable_v<StateMark>);

/// Memory of an engine in which a state and the KV of a token are marks of all the tokens that they follow from. A pass
/// reads a right state exactly if it is the mark of its request. Carries out plans and commits of a RequestCache.
/// Throws Violation for a wrong mark.
class MarkWorld {
 public:
  explicit MarkWorld(const RequestCacheOptions& options);

  /// Carries out the plan's work before the pass.
  void before(const PassPlan& plan);
  /// Runs one row over marks [start + 1, start + tokens] of `marks`, the marks after 0, 1, 2 … tokens of its request.
  void run(std::size_t index, const RowPlan& row, std::span<const Mark> marks);
  /// The state after a step of a row whose drafts are a tree.
  struct Step {
    std::int64_t tokens = 0;
    Mark mark = 0;
  };
  /// The same for a row whose tokens are a tree, in slots. `marks`: at least those of the tokens before the row.
  void run_tree(std::size_t index, const RowPlan& row, std::span<const Mark> marks, std::span<const Step> steps);
  /// Moves the KV of single tokens, in this order: the first work of a commit.
  void move_kv(std::span<const KvMove> moves);
  /// Carries out the commit's work after the pass, but for moves of KV.
  void after(const PassCommit& commit);
  /// Carries out the copies that the end of a request asks for.
  void after_end(CopyPlan copies);
  /// Whether the state after the computed tokens has the mark that it must have.
  [[nodiscard]] bool holds(const RowState& state, std::size_t group, std::int64_t tokens, Mark mark) const;

  /// A slot for checkpoints.
  [[nodiscard]] StateMark& checkpoint(std::size_t group, std::int32_t slot) {
    return checkpoints(group).at(static_cast<std::size_t>(slot));
  }
  /// The KV of a block; 0 where nothing was written.
  [[nodiscard]] std::span<Mark> block(std::int32_t number) {
    const auto size = static_cast<std::size_t>(options_.block_size_tokens);
    return std::span(kv_).subspan(static_cast<std::size_t>(number) * size, size);
  }

  void copy_block(const SlotCopy& copy) { std::ranges::copy(block(copy.src_slot), block(copy.dst_slot).begin()); }
  /// The memory of these KV blocks, or of these slots for checkpoints in a layout of slots, is gone.
  void wipe(MemoryPart part, std::int32_t first, std::int32_t count);

  /// For a proof that a wrong state is noticed: one of this number of copies of a checkpoint does not happen. 0: all
  /// happen.
  std::int64_t lose_every_copies = 0;

 private:
  using Slots = std::vector<StateMark>;
  void copy(CopyPlan plan, const Slots& from, Slots& to);
  /// Checks what the row reads.
  void read(const RowPlan& row, std::span<const Mark> marks) const;
  [[nodiscard]] Slots& checkpoints(std::size_t group) {
    return has_separate_checkpoints(options_) ? checkpoints_ : slots_[group];
  }
  void write(std::size_t group, const RowState& state, const RowPlan& row, std::span<const Mark> marks);

  RequestCacheOptions options_;
  std::vector<Slots> slots_;  ///< by group
  Slots checkpoints_;         ///< with separate_checkpoints
  Slots scratch_;
  Slots sources_;
  std::vector<std::vector<StateMark>> steps_;  ///< by row of the pass: the state after each of its tokens
  std::vector<Mark> kv_;                       ///< by KV index: all tokens up to its own
  std::int64_t copies_ = 0;
};

}  // namespace stateport::soak
