// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>
#include <vector>

/// From a workload to what a fleet is asked: more or fewer conversations, whole.
namespace stateport::replay {

/// What belongs together, for every request of a workload.
struct Conversations {
  std::vector<std::uint64_t> of;            ///< a name for its conversation
  std::vector<std::int32_t> shared_blocks;  ///< leading blocks that prompts of other conversations have, too
};

/// Where the workload names no session, a shared opening (a system prompt) ends with the last block that more than 16
/// different blocks follow, and the block behind it names the conversation; a prompt without such a block is one of its
/// own. O(total blocks).
[[nodiscard]] Conversations find_conversations(const Workload& workload);

struct CrowdOptions {
  /// The workload so many times at once; a part of a time: so many of its conversations. Each copy has conversations of
  /// its own, which share with each other what those of the workload share, and begin up to a minute later.
  double load = 1;
  double part = 1;         ///< of these, drawn by conversation
  std::uint64_t seed = 1;  ///< of the draw
};

/// Requests with the names of their conversations.
struct Crowd {
  Workload workload;
  std::vector<std::uint64_t> conversations;
};

/// In order of arrival. With the defaults the workload itself. Throws InvalidArgument: load that is not finite or <= 0,
/// part outside (0, 1].
[[nodiscard]] Crowd make_crowd(const Workload& workload, const Conversations& conversations,
                               const CrowdOptions& options);

}  // namespace stateport::replay
