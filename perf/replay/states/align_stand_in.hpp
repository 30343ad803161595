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

/// The forward of StandInModel over block tables. A row reads its state where the device says it is: conv tokens from
/// the running column, `accepted` - 1 tokens further, the recurrent state `accepted` - 1 columns further. It writes the
/// conv window of the running column, and one recurrent state per draft and one more from there on. Of the conv tokens
/// it carries on those that were there before, so a wrong token stays wrong while the window holds it.
class AlignStandIn {
 public:
  /// A row of a step, in batch order.
  struct Row {
    Content from = empty_content;
    std::int32_t request = 0;
    std::int32_t computed = 0;
    std::int32_t scheduled = 0;
    std::int32_t drafts = 0;
  };
  /// What the rows are decided by, in device memory: [rows, columns] and [requests].
  struct Tables {
    const std::int32_t* block_table = nullptr;
    std::int32_t columns = 0;
    const std::int32_t* column_of_request = nullptr;
    const std::int32_t* accepted_of_request = nullptr;
  };
  /// A part of a tensor that one team works on: words of every token of a conv window, or of a recurrent state.
  struct Tile {
    std::byte* base = nullptr;
    std::int64_t stride_bytes = 0;
    std::uint64_t tensor = 0;
    std::uint32_t first_word = 0;
    std::uint32_t words = 0;
    std::uint32_t token_words = 0;  ///< words of a conv token; 0: a recurrent state
  };

  /// `history`: conv tokens of a state without drafts, at least 1. Throws InvalidArgument unless conv tensors are sd
  /// with windows of history + drafts tokens and tokens and recurrent states consist of whole words.
  AlignStandIn(MemoryResource& resource, const StateStore& states, std::int32_t history, std::int32_t drafts,
               std::int32_t rows_max, const Stream& stream);

  /// One launch. `window`: [rows, history + drafts], see AlignStepView. Both may be reused when the stream has been
  /// synchronized.
  void forward(const Stream& stream, std::span<const Row> rows, std::span<const Content> window, const Tables& tables);
  /// Number of words of a block that are not those of the state after `window` [history]. Waits for the stream.
  [[nodiscard]] std::uint64_t count_wrong_words(const Stream& stream, std::int32_t block,
                                                std::span<const Content> window);

 private:
  std::int32_t history_;
  std::int32_t drafts_;
  Buffer tiles_;  ///< [tile_count_] Tile
  Buffer rows_;   ///< [rows_max] Row
  Buffer window_;
  std::vector<Row> staged_rows_;
  std::vector<Content> staged_window_;
  std::uint32_t tile_count_ = 0;
};

}  // namespace stateport::replay
