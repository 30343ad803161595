// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/token_stream.hpp"
#include "workload/workload.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// Makes the blocks of prompts for which a trace gives nothing but lengths. Every prompt and every answer is a text of
/// its own, so prompts of different sessions share nothing, and those without a session share nothing with any other.
/// In a session a prompt begins with the prompt before it and its answer. A prompt that is shorter than these shares
/// nothing with them: the conversation was cut at an unknown place.
class UnnamedPrompts {
 public:
  explicit UnnamedPrompts(std::int64_t block_size_tokens) : block_size_tokens_(block_size_tokens) {}

  /// The full blocks of the next request, valid until the next call. Sessions are numbers from 0 without large gaps.
  /// O(new blocks) time and O(blocks of the last prompt of each session) memory.
  [[nodiscard]] std::span<const BlockIdentity> blocks_of(const Request& request);

 private:
  struct Conversation {
    TokenStream prompt;
    std::uint64_t answer;
    std::int64_t answer_tokens;
  };

  std::int64_t block_size_tokens_;
  std::uint64_t texts_ = 0;                  ///< named so far
  std::vector<Conversation> conversations_;  ///< by session
  TokenStream alone_{block_size_tokens_};    ///< the last prompt without a session
};

}  // namespace stateport::replay
