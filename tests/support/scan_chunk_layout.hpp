// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::test {

/// How a scan kernel cuts a batch of sequences into pieces: on the grid of `chunk` tokens of the absolute position, and
/// at a checkpoint inside a piece. The rule of an engine's kernel, for the recorded cases: no layer of stateport needs
/// it.
class ScanChunkLayout {
 public:
  /// computed, query_tokens [sequences]; checkpoint_offsets [sequences] from the start of the query, 0 = none, or
  /// empty. The arrays of the last build are replaced; allocates only when the batch has more pieces than any before.
  /// Throws InvalidArgument: chunk < 1, arrays of different lengths, negative counts, a checkpoint after the query.
  /// O(pieces).
  void build(std::int32_t chunk, std::span<const std::int32_t> computed, std::span<const std::int32_t> query_tokens,
             std::span<const std::int32_t> checkpoint_offsets);

  /// [pieces + 1] tokens of the batch before each piece.
  [[nodiscard]] std::span<const std::int32_t> cumulative_tokens() const noexcept { return cumulative_; }
  /// [pieces] the sequence of each piece.
  [[nodiscard]] std::span<const std::int32_t> sequence() const noexcept { return sequence_; }
  /// [sequences] the last piece of each sequence (the piece before its first one if its query is empty).
  [[nodiscard]] std::span<const std::int32_t> last_piece() const noexcept { return last_; }
  /// [sequences] the piece after which the checkpoint is stored; -1: no piece of the sequence ends there.
  [[nodiscard]] std::span<const std::int32_t> checkpoint_piece() const noexcept { return checkpoint_; }

 private:
  std::vector<std::int32_t> cumulative_;
  std::vector<std::int32_t> sequence_;
  std::vector<std::int32_t> last_;
  std::vector<std::int32_t> checkpoint_;
};

}  // namespace stateport::test
