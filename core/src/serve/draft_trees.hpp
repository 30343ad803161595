// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/pass_queue.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Drafts that are trees: which steps of a row a commit keeps, and where their KV belongs. A step counts the tokens of
/// a row from 0; step i + 1 is draft i. Nothing allocates after construction.
class DraftTrees {
 public:
  explicit DraftTrees(const RequestCacheOptions& options);

  /// Throws: see RequestCache::plan.
  void check_parents(std::span<const PassRow> rows, std::span<const std::int32_t> parents) const;
  /// Throws: see RequestCache::commit. The counts are checked.
  void check_steps(const Pass& pass, std::span<const std::int32_t> counts, std::span<const std::int32_t> steps) const;
  /// The pass keeps the paths to these steps, which are checked. Fills in pass.paths.
  void keep(Pass& pass, std::span<const std::int32_t> counts, std::span<const std::int32_t> steps);
  /// The KV of kept tokens that do not lie where they belong.
  [[nodiscard]] std::span<const KvMove> moves() const noexcept { return moves_; }

 private:
  const RequestCacheOptions& options_;
  std::vector<KvMove> moves_;
};

}  // namespace stateport::detail
