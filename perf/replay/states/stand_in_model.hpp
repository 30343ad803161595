// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/state_store.hpp>

#include "states/state_mover.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// Stands for a model's forward: makes states whose every 16-byte word is a function of the token prefix, the tensor
/// and the place in it, and knows a wrong one. Like a recurrence it computes the new state from the old one (the
/// pattern of the old prefix is taken out, that of the new one put in), so a wrong state stays wrong in all that
/// follow it. The state of the empty prefix is zero.
class StandInModel {
 public:
  /// Most rows of one step.
  static constexpr std::size_t rows_max = 1024;

  /// A row of a step: the live state of `from` → the state of `to` in a row of the scratch store.
  struct Row {
    Content from = empty_content;
    Content to = empty_content;
    std::int32_t live_slot = 0;
    std::int32_t scratch_slot = 0;
  };

  /// Both stores must have the same spec and outlive this. Throws InvalidArgument unless their tensors consist of whole
  /// words.
  StandInModel(MemoryResource& resource, const StateStore& live, const StateStore& scratch, const Stream& stream);

  /// Intermediates: one launch for all rows. `rows` may be reused when the stream has been synchronized.
  void make_intermediates(const Stream& stream, std::span<const Row> rows);
  /// The live slot itself goes from prefix `from` to prefix `to`.
  void advance(const Stream& stream, std::int32_t live_slot, Content from, Content to);
  /// Number of words of the live slot that are not what the state of `content` has. Waits for the stream.
  [[nodiscard]] std::uint64_t count_wrong_words(const Stream& stream, std::int32_t live_slot, Content content) const;

  /// A part of a tensor that one team works on. For the kernels.
  struct Tile {
    std::byte* live = nullptr;
    std::byte* scratch = nullptr;
    std::int64_t live_stride_bytes = 0;
    std::int64_t scratch_stride_bytes = 0;
    std::uint64_t tensor = 0;
    std::uint32_t first_word = 0;
    std::uint32_t words = 0;
  };

 private:
  Buffer tiles_;  ///< [tile_count_] Tile
  Buffer rows_;   ///< [rows_max] Row
  std::vector<Row> staged_rows_;
  std::uint32_t tile_count_ = 0;
};

}  // namespace stateport::replay
