// SPDX-License-Identifier: Apache-2.0
#include "workload/sequence.hpp"

#include "containers/flat_map.hpp"

#include <algorithm>

namespace stateport::replay {

Sequence::Sequence(std::int64_t block_size_tokens, std::int64_t tokens, std::span<const BlockIdentity> known,
                   std::uint64_t own)
    : block_size_tokens_(block_size_tokens), tokens_(tokens), boundaries_(1, empty_content) {
  const auto blocks = static_cast<std::size_t>((tokens + block_size_tokens - 1) / block_size_tokens);
  identities_.assign(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(std::min(blocks, known.size())));
  while (identities_.size() < blocks) identities_.push_back(mix(mix(own) + identities_.size()));
  for (std::int64_t k = 0; k < tokens / block_size_tokens; ++k)
    boundaries_.push_back(append_block(boundaries_.back(), identities_[static_cast<std::size_t>(k)]));
}

Content Sequence::prefix(std::int64_t tokens) const noexcept {
  if (tokens <= 0) return empty_content;
  const auto block = static_cast<std::size_t>(tokens / block_size_tokens_);
  const auto further = static_cast<std::uint64_t>(tokens % block_size_tokens_);
  if (further == 0) return boundaries_[block];
  return append_block(boundaries_[block], mix(identities_[block]) + further);
}

Token Sequence::token(std::int64_t position) const noexcept {
  const BlockIdentity identity = identities_[static_cast<std::size_t>(position / block_size_tokens_)];
  const auto offset = static_cast<std::uint64_t>(position % block_size_tokens_);
  if (offset == 1) return static_cast<Token>(identity >> 32);
  return static_cast<Token>((offset == 0 ? identity : mix(identity + offset)) & 0xffff'ffffU);
}

std::vector<std::size_t> find_continuations(const Workload& workload) {
  std::vector<std::size_t> continuations(workload.size());
  FlatMap<std::int64_t, std::size_t> next_of_session;
  for (std::size_t i = workload.size(); i-- > 0;) {
    continuations[i] = i;
    const std::int64_t session = workload.request(i).session;
    if (session < 0) continue;
    const bool is_rewritten = workload.request(i).left_at_tokens > 0;
    if (const auto next = next_of_session.find(session); next != next_of_session.end() && !is_rewritten) {
      const std::span<const BlockIdentity> own = workload.blocks(i);
      const std::span<const BlockIdentity> later = workload.blocks(next->second);
      if (later.size() > own.size() && std::ranges::equal(own, later.first(own.size())))
        continuations[i] = next->second;
    }
    next_of_session[session] = i;
  }
  return continuations;
}

}  // namespace stateport::replay
