// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/kernels/state_store.hpp>

#include "states/pass_mover.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// Stands for a model's forward over the plans of a cache: a state is read and written where the plan says, and every
/// 16-byte word of it is a function of the token prefix, the tensor and the place in it. Of the conv tokens it carries
/// on those that were there before, so a wrong token stays wrong while the window holds it; a recurrent state is made
/// from the one that is read, so a wrong one stays wrong for good.
class PassStandIn {
 public:
  /// A part of a tensor that one team works on: words of every token of a conv window, or of a recurrent state.
  struct Tile {
    std::byte* base = nullptr;
    std::byte* scratch = nullptr;
    std::int64_t stride_bytes = 0;
    std::int64_t scratch_stride_bytes = 0;
    std::uint64_t tensor = 0;
    std::uint32_t first_word = 0;
    std::uint32_t words = 0;
    std::uint32_t token_words = 0;                  ///< words of a conv token; 0: a recurrent state
    std::uint64_t random_bits = ~std::uint64_t{0};  ///< of eight bytes
    std::uint64_t fixed_bits = 0;
  };
  enum class Numbers : std::uint8_t {
    bits,  ///< any
    exact  ///< recurrent states are 127 and -127, which checkpoints of every type keep as they are
  };

  /// `scratch`: of the same spec, or null for an index that needs none. `history`: conv tokens of a state without
  /// drafts, at least 1. Throws InvalidArgument unless conv tensors are sd with windows of history + drafts tokens and
  /// tokens and recurrent states consist of whole words.
  PassStandIn(MemoryResource& resource, const StateStore& states, const StateStore* scratch, Numbers numbers,
              std::int32_t history, std::int32_t drafts, const Stream& stream);

  /// At most one launch for the saves and one for the targets. Waits for the stream, so that the arrays may be reused.
  void forward(const Stream& stream, const PassForward& pass);
  /// Number of words that are not those of the state after `window` [history]: conv tokens from the one `bias` on of
  /// slot `conv`, and the recurrent state of slot `recurrent`. Waits for the stream.
  [[nodiscard]] std::uint64_t count_wrong_words(const Stream& stream, std::int32_t conv, std::int32_t bias,
                                                std::int32_t recurrent, std::span<const Content> window);

 private:
  void stage(const Stream& stream, Buffer& buffer, const void* data, std::size_t bytes);

  MemoryResource& resource_;
  std::int32_t history_;
  std::int32_t drafts_;
  Buffer tiles_;  ///< [tile_count_] Tile
  Buffer saves_;
  Buffer targets_;
  Buffer outs_;
  Buffer window_;
  std::uint32_t tile_count_ = 0;
};

}  // namespace stateport::replay
