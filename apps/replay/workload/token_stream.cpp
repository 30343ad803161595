// SPDX-License-Identifier: Apache-2.0
#include "workload/token_stream.hpp"

#include <algorithm>

namespace stateport::replay {

void TokenStream::append(std::uint64_t content, std::int64_t tokens) {
  std::int64_t offset = 0;
  while (offset < tokens) {
    const std::int64_t room = block_size_tokens_ - now_.tokens % block_size_tokens_;
    const std::int64_t taken = std::min(room, tokens - offset);
    // A piece is known by its text, where in the text it begins, and how much of it is in this block.
    const std::uint64_t piece = mix(content) ^ mix(static_cast<std::uint64_t>(offset) * 2 + 1);
    now_.partial_block = mix(now_.partial_block ^ mix(piece + static_cast<std::uint64_t>(taken)));
    now_.tokens += taken;
    offset += taken;
    // The next block starts from this identity, so that an identity names its whole prefix.
    if (taken == room) blocks_.push_back(now_.partial_block);
  }
}

void TokenStream::rewind(const Mark& mark) {
  now_ = mark;
  blocks_.resize(static_cast<std::size_t>(mark.tokens / block_size_tokens_));
}

}  // namespace stateport::replay
