// SPDX-License-Identifier: Apache-2.0
#include "workload/workload.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/flat_map.hpp"

#include <algorithm>
#include <cmath>

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

Workload Workload::first(std::size_t requests) const {
  Workload first(block_size_tokens_);
  for (std::size_t i = 0; i < std::min(requests, size()); ++i) first.add(request(i), blocks(i));
  return first;
}

void Workload::give_hints(const HintKinds& kinds) {
  constexpr std::int64_t tool_call_ms = 20'000;
  constexpr double ms_of_second = 1000;
  FlatMap<std::uint64_t, std::int64_t> continued_ms;  // by prefix: the arrival of the next prompt that goes beyond it
  std::vector<std::uint64_t> prefixes;
  std::vector<bool> continued(size());
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
    continued[index] = next != continued_ms.end();
    const auto usable = static_cast<std::size_t>((request.input_tokens - 1) / block_size_tokens_);
    for (std::size_t block = 0; block < std::min(usable, prefixes.size()); ++block)
      continued_ms[prefixes[block]] = request.arrival_ms;
  }
  if (kinds.continues_auc > 0) tell_chances(continued, kinds.continues_auc);
}

/// A score for each prompt, normally distributed with one mean for those that are continued and another for the others,
/// so far apart that the area under the ROC curve is `auc`; the probability follows from the score and from the share
/// of prompts that are continued. Below 0.5 the classifier is as sure of the opposite. It depends on nothing but the
/// number of the request.
void Workload::tell_chances(const std::vector<bool>& continued, double auc) {
  constexpr double two_pi = 6.283185307179586;
  const double share = static_cast<double>(std::ranges::count(continued, true)) / static_cast<double>(size());
  const double prior = std::log(std::max(share, 1e-9) / std::max(1 - share, 1e-9));
  double apart = 0;  // area = Phi(apart / sqrt(2)) = erfc(-apart / 2) / 2
  for (double step = 8; step > 1e-9; step /= 2)
    if (std::erfc(-(apart + step) / 2) / 2 <= std::max(auc, 1 - auc)) apart += step;
  for (std::size_t index = 0; index < size(); ++index) {
    const auto uniform = [&](std::uint64_t salt) {
      return (static_cast<double>(mix(2 * index + salt) >> 11) + 0.5) * 0x1p-53;
    };
    const double normal = std::sqrt(-2 * std::log(uniform(1))) * std::cos(two_pi * uniform(2));  // Box and Muller
    const double score = normal + (continued[index] == (auc >= 0.5) ? apart : 0);
    const double odds = prior + apart * score - apart * apart / 2;
    requests_[index].hint.continues = static_cast<float>(std::clamp(1 / (1 + std::exp(-odds)), 1e-6, 1 - 1e-6));
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
