// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>
#include <vector>

/// Makes the requests of a fleet from a workload, with more or fewer whole conversations.
namespace stateport::replay {

/// Groups the requests of a workload by conversation.
struct Conversations {
  std::vector<std::uint64_t> of;            ///< a name for its conversation
  std::vector<std::int32_t> shared_blocks;  ///< leading blocks that prompts of other conversations have, too
};

/// Where the workload names no session, a shared opening (a system prompt) ends with the last block that more than 16
/// different blocks follow, and the block behind it names the conversation; a prompt without such a block is one of its
/// own. O(total blocks).
[[nodiscard]] Conversations find_conversations(const Workload& workload);

struct CrowdOptions {
  /// The number of copies of the workload that run at once; a fraction is a copy with that part of its conversations.
  /// Each copy has conversations of its own. They share the same prefixes among each other as those of the workload,
  /// and begin up to a minute later.
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

/// The workload as the requests of a quiet tenant, and beside it those of a tenant that floods: a crowd of the load
/// `times`. The two share nothing. In order of arrival; of equal times the quiet one's come first. Throws
/// InvalidArgument for `times` that is not finite or <= 0.
[[nodiscard]] Workload add_flood(const Workload& quiet, double times);

}  // namespace stateport::replay
