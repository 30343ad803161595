// SPDX-License-Identifier: Apache-2.0
#include "workload/unnamed_prompts.hpp"

#include <cstddef>

namespace stateport::replay {

std::span<const BlockIdentity> UnnamedPrompts::blocks_of(const Request& request) {
  const std::uint64_t message = ++texts_;
  const std::uint64_t answer = ++texts_;
  if (request.session < 0) {
    alone_ = TokenStream(block_size_tokens_);
    alone_.append(message, request.input_tokens);
    return alone_.full_blocks();
  }
  const auto session = static_cast<std::size_t>(request.session);
  while (conversations_.size() <= session)
    conversations_.push_back({.prompt = TokenStream(block_size_tokens_), .answer = 0, .answer_tokens = 0});
  Conversation& before = conversations_[session];
  if (request.input_tokens >= before.prompt.tokens() + before.answer_tokens)
    before.prompt.append(before.answer, before.answer_tokens);
  else
    before.prompt = TokenStream(block_size_tokens_);
  before.prompt.append(message, request.input_tokens - before.prompt.tokens());
  before.answer = answer;
  before.answer_tokens = request.output_tokens;
  return before.prompt.full_blocks();
}

}  // namespace stateport::replay
