// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hash/namespace_tag.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// Whether prompts continue the answers of earlier requests, by namespace. Where a chat template rewrites each answer
/// in the next turn none does, and a state behind an answer is of no use. Two namespaces may share their counts.
class AnswerUse {
 public:
  /// A request of the namespace ends. Whether to keep the state behind its answer.
  [[nodiscard]] bool keeps(const NamespaceTag& name_space) noexcept {
    Counts& counts = counts_of(name_space);
    const bool is_probe = ++counts.ended % probe_distance == 0;
    if (!is_probe && counts.kept >= trial && counts.continued * uses_per_state < counts.kept) return false;
    if (++counts.kept == remembered) {
      counts.kept /= 2;
      counts.continued /= 2;
    }
    return true;
  }
  /// A prompt of the namespace continues from such a state, which it is the first to do.
  void continued(const NamespaceTag& name_space) noexcept { ++counts_of(name_space).continued; }

 private:
  static constexpr std::uint32_t trial = 64;           ///< states that are kept before anything is known
  static constexpr std::uint32_t uses_per_state = 64;  ///< one used state of 64 is enough: others may have been evicted
  static constexpr std::uint32_t probe_distance = 16;  ///< so that a template that changes is noticed
  static constexpr std::uint32_t remembered = 4096;    ///< kept states, of which the counts tell
  struct Counts {
    std::uint32_t ended = 0;
    std::uint32_t kept = 0;
    std::uint32_t continued = 0;
  };

  [[nodiscard]] Counts& counts_of(const NamespaceTag& name_space) noexcept {
    return counts_[name_space.bucket(counts_.size())];
  }

  std::array<Counts, 251> counts_ = {};
};

}  // namespace stateport::detail
