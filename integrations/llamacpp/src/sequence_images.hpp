// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::llamacpp {

/// The KV and the states of a context's sequences, as images. llama.cpp has calls for a whole sequence and for its
/// state. KV of some tokens goes through a scratch sequence, which shares their cells and has no state.
///
/// All calls throw BackendError with the call of llama.cpp that failed.
class SequenceImages {
 public:
  SequenceImages(llama_context* context, llama_seq_id scratch);

  [[nodiscard]] std::size_t state_bytes(llama_seq_id sequence) const;
  /// Of the KV of the tokens [first, first + count).
  [[nodiscard]] std::size_t kv_bytes(llama_seq_id sequence, std::int64_t first, std::int64_t count);

  void save_state(llama_seq_id sequence, std::span<std::byte> image);
  void save_kv(llama_seq_id sequence, std::int64_t first, std::int64_t count, std::span<std::byte> image);
  /// Appends KV of these tokens to the sequence, which has no state then.
  void load_kv(llama_seq_id sequence, std::int64_t first, std::int64_t count, std::span<const std::byte> image);
  /// The last step: KV that is appended later drops the state.
  void load_state(llama_seq_id sequence, std::span<const std::byte> image);
  /// Keeps the KV of the first tokens, and no state.
  void cut(llama_seq_id sequence, std::int64_t tokens);
  /// Tokens with KV and state.
  [[nodiscard]] std::int64_t tokens(llama_seq_id sequence) const;

 private:
  [[nodiscard]] std::vector<std::uint8_t> empty_state() const;
  void drop_state(llama_seq_id sequence);
  void share(llama_seq_id sequence, std::int64_t first, std::int64_t count);
  void release();

  llama_context* context_;
  llama_memory_t memory_;
  llama_seq_id scratch_;
  std::vector<std::uint8_t> empty_state_;  ///< image of the state of a sequence that has none
};

}  // namespace stateport::llamacpp
