// SPDX-License-Identifier: Apache-2.0
#include "sequences.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <utility>

namespace stateport::llamacpp {

std::size_t common_tokens(std::span<const llama_token> a, std::span<const llama_token> b) noexcept {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

Sequences::Sequences(std::int32_t count) : sequences_(static_cast<std::size_t>(count)) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) sequences_[i].id = static_cast<llama_seq_id>(i);
}

Sequence& Sequences::take(std::int32_t slot, RequestId request, const Prompt& prompt) {
  const auto common_with = [&](const Sequence& sequence) {
    return sequence.name_space == prompt.name_space ? common_tokens(sequence.tokens, prompt.tokens) : 0;
  };
  Sequence* best = &of_slot(slot);
  std::size_t most = common_with(*best);
  for (Sequence& other : sequences_) {
    const std::size_t common = other.request ? 0 : common_with(other);
    if (common > most) {
      best = &other;
      most = common;
    }
  }
  std::swap(of_slot(slot), *best);
  Sequence& taken = of_slot(slot);
  taken.request = request;
  taken.saved_tokens = 0;
  return taken;
}

Sequence& Sequences::of(RequestId request) {
  const auto found = std::ranges::find(sequences_, std::optional(request), &Sequence::request);
  require(found != sequences_.end(), "request", request, "does not run");
  return *found;
}

}  // namespace stateport::llamacpp
