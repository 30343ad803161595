// SPDX-License-Identifier: Apache-2.0
#include "sequences.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace stateport::llamacpp {

std::size_t common_tokens(std::span<const llama_token> a, std::span<const llama_token> b) noexcept {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

Sequences::Sequences(std::int32_t count, std::int32_t block_tokens)
    : block_tokens_(static_cast<std::size_t>(block_tokens)), sequences_(static_cast<std::size_t>(count)) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) sequences_[i].id = static_cast<llama_seq_id>(i);
}

Sequence& Sequences::take(std::int32_t slot, RequestId request, const Prompt& prompt) {
  // A sequence whose tokens all begin the prompt loses nothing, an empty one neither. Of others whole blocks stay.
  const auto rank = [&](const Sequence& sequence) {
    const bool known = sequence.name_space == prompt.name_space;
    const std::size_t common = known ? common_tokens(sequence.tokens, prompt.tokens) : 0;
    const bool loses = common < sequence.tokens.size();
    return std::tuple(!loses, loses ? common / block_tokens_ : common, -sequence.taken_at);
  };
  Sequence* best = &of_slot(slot);
  for (Sequence& other : sequences_)
    if (!other.request && rank(other) > rank(*best)) best = &other;
  std::swap(of_slot(slot), *best);
  Sequence& taken = of_slot(slot);
  taken.request = request;
  taken.taken_at = ++takes_;
  taken.saved_tokens = 0;
  return taken;
}

bool Sequences::runs_any() const noexcept {
  return std::ranges::any_of(sequences_, [](const Sequence& sequence) { return sequence.request.has_value(); });
}

Sequence& Sequences::of(RequestId request) {
  const auto found = std::ranges::find(sequences_, std::optional(request), &Sequence::request);
  require(found != sequences_.end(), "request", request, "does not run");
  return *found;
}

}  // namespace stateport::llamacpp
