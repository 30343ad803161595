// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/serve/request_types.hpp>

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::llamacpp {

/// A sequence of the context. Of an ended request it keeps the tokens, until another one needs it.
struct Sequence {
  llama_seq_id id = 0;
  std::optional<RequestId> request;  ///< runs on it
  std::vector<llama_token> tokens;   ///< with KV in the context
  Namespace name_space;              ///< of their prompt
  std::int64_t taken_at = 0;         ///< counts requests
  // Of the request:
  std::int64_t ready_tokens = 0;  ///< of the prompt, which the sequence has, with the state after them; 0: none
  std::int64_t saved_tokens = 0;  ///< whose KV is cached, in whole blocks
  std::int64_t prompt_tokens = 0;
  /// Where its passes over the prompt end: where the prompt leaves tokens whose KV was cached when it started, at the
  /// last block's end before its last token, at its end, and at named positions.
  std::vector<std::int64_t> stops;
};

/// The sequences, in the order of the cache's live slots: the state of live slot i is that of sequence i.
class Sequences {
 public:
  Sequences(std::int32_t count, std::int32_t block_tokens);

  /// The sequence of live slot `slot`, which no request runs on. The best of all such sequences changes places with it:
  /// the longest one that the prompt continues, else an empty one, else that which shares most whole blocks with the
  /// prompt, and of equals the one that was taken first. Tokens of other namespaces share nothing. O(count x tokens).
  Sequence& take(std::int32_t slot, RequestId request, const Prompt& prompt);

  [[nodiscard]] Sequence& of_slot(std::int32_t slot) noexcept { return sequences_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] bool runs_any() const noexcept;
  /// Throws InvalidArgument for a request that does not run. O(count).
  [[nodiscard]] Sequence& of(RequestId request);

 private:
  std::size_t block_tokens_;
  std::int64_t takes_ = 0;
  std::vector<Sequence> sequences_;
};

/// The number of leading tokens in which they agree.
[[nodiscard]] std::size_t common_tokens(std::span<const llama_token> a, std::span<const llama_token> b) noexcept;

}  // namespace stateport::llamacpp
