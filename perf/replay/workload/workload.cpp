// SPDX-License-Identifier: Apache-2.0
#include "workload/workload.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/flat_map.hpp"

#include <algorithm>

namespace stateport::replay {
namespace {

/// Names the prefix that is one block longer. An identity alone may repeat after different prefixes.
std::uint64_t append(std::uint64_t prefix, BlockIdentity identity) {
  return mix(prefix ^ mix(identity + 1)) + 1;
}

}  // namespace

Workload::Workload(std::int64_t block_size_tokens) : block_size_tokens_(block_size_tokens) {
  require(block_size_tokens >= 1, "block_size_tokens", block_size_tokens, "at least 1");
}

void Workload::add(const Request& request, std::span<const BlockIdentity> identities) {
  require(request.input_tokens >= 1, "input_tokens", request.input_tokens, "at least 1");
  require(request.output_tokens >= 0, "output_tokens", request.output_tokens, "not negative");
  require(request.arrival_ms >= 0, "arrival_ms", request.arrival_ms, "not negative");
  const std::int64_t full_blocks = request.input_tokens / block_size_tokens_;
  require(static_cast<std::int64_t>(identities.size()) >= full_blocks, "identities", identities.size(),
          "at least one per full block of the prompt");
  const auto kept = identities.first(static_cast<std::size_t>(full_blocks));
  identities_.insert(identities_.end(), kept.begin(), kept.end());
  ends_.push_back(identities_.size());
  requests_.push_back(request);
  longest_blocks_ = std::max(longest_blocks_, full_blocks);
}

void Workload::give_hints(const HintKinds& kinds) {
  constexpr std::int64_t tool_call_ms = 20'000;
  constexpr double ms_of_second = 1000;
  FlatMap<std::uint64_t, std::int64_t> continued_ms;  // by prefix: the arrival of the next prompt that goes beyond it
  std::vector<std::uint64_t> prefixes;
  for (std::size_t index = size(); index-- > 0;) {
    Request& request = requests_[index];
    prefixes.clear();
    std::uint64_t prefix = 0;
    for (const BlockIdentity identity : blocks(index)) prefixes.push_back(prefix = append(prefix, identity));
    request.hint = {};
    if (kinds.sessions && request.session >= 0) request.hint.session = static_cast<std::uint64_t>(request.session) + 1;
    if (prefixes.empty()) continue;
    const auto next = continued_ms.find(prefixes.back());
    if (next == continued_ms.end()) {
      request.hint.last_turn = kinds.last_turns;
    } else {
      const std::int64_t wait_ms = std::max<std::int64_t>(next->second - request.arrival_ms, 0);
      request.hint.tool_call_pending = kinds.tool_calls && wait_ms <= tool_call_ms;
      if (kinds.idle_times) request.hint.expected_idle_s = static_cast<double>(wait_ms) / ms_of_second / 2;
    }
    const auto usable = static_cast<std::size_t>((request.input_tokens - 1) / block_size_tokens_);
    for (std::size_t block = 0; block < std::min(usable, prefixes.size()); ++block)
      continued_ms[prefixes[block]] = request.arrival_ms;
  }
}

std::int64_t Workload::distinct_blocks() const {
  FlatSet<std::uint64_t> seen;
  seen.reserve(identities_.size());
  for (std::size_t index = 0; index < size(); ++index) {
    std::uint64_t chain = 0;
    for (const BlockIdentity identity : blocks(index)) {
      chain = append(chain, identity);
      seen.insert(chain);
    }
  }
  return static_cast<std::int64_t>(seen.size());
}

}  // namespace stateport::replay
