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
  // Of the request:
  std::int64_t ready_tokens = 0;  ///< of the prompt, which the sequence has, with the state after them; 0: none
  std::int64_t saved_tokens = 0;  ///< whose KV is cached, in whole blocks
  std::int64_t prompt_tokens = 0;
  std::int64_t branch_tokens = 0;  ///< of the prompt, whose KV was cached when it started
};

/// The sequences, in the order of the cache's live slots: the state of live slot i is that of sequence i.
class Sequences {
 public:
  explicit Sequences(std::int32_t count);

  /// The sequence of live slot `slot`, which no request runs on: the one whose tokens have most in common with the
  /// prompt and are of its namespace changes places with it. O(count x tokens).
  Sequence& take(std::int32_t slot, RequestId request, const Prompt& prompt);

  [[nodiscard]] Sequence& of_slot(std::int32_t slot) noexcept { return sequences_[static_cast<std::size_t>(slot)]; }
  /// Throws InvalidArgument for a request that does not run. O(count).
  [[nodiscard]] Sequence& of(RequestId request);

 private:
  std::vector<Sequence> sequences_;
};

/// The number of leading tokens in which they agree.
[[nodiscard]] std::size_t common_tokens(std::span<const llama_token> a, std::span<const llama_token> b) noexcept;

}  // namespace stateport::llamacpp
