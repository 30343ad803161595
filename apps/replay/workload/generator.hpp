// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace stateport::replay {

enum class WorkloadKind : std::uint8_t {
  chat,           ///< multi-turn sessions, a few shared system prompts, seconds to minutes of thinking, some edits
  agent,          ///< long tool-calling sessions on one large system prompt, compacted when they grow too long
  chat_template,  ///< chat with reasoning: the next turn drops it, and has another text before the answer
  shared_prompt,  ///< single questions after one of many shared documents: every hit needs a branch point
  grpo,           ///< groups of 16 samples of one prompt, all at once, as in reinforcement learning
  burst           ///< agents with one opening of 8,192 tokens and tasks of their own, all at once
};

[[nodiscard]] std::string_view name(WorkloadKind kind) noexcept;

/// Of a kind whose requests all come at once, the usual number: 64 groups, 64 agents. None: the kind goes on.
[[nodiscard]] std::optional<std::int64_t> requests_at_once(WorkloadKind kind) noexcept;

struct GeneratorOptions {
  WorkloadKind kind = WorkloadKind::chat;
  std::int64_t requests = 3000;
  std::int64_t block_size_tokens = 512;
  std::uint64_t seed = 1;
};

/// A made-up workload in order of arrival. The same options give the same workload on every platform: all arithmetic
/// is on integers. Throws InvalidArgument: requests < 0, block_size_tokens < 1.
[[nodiscard]] Workload generate_workload(const GeneratorOptions& options);

}  // namespace stateport::replay
