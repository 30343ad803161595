// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/serve/cache_integrity.hpp>
#include <stateport/core/serve/cache_options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::detail {

/// Numbers the publications of checkpoints, and collects the checks of the current call. Indexes tell it which states
/// are published and lost. No call allocates after construction.
class StateChecks {
 public:
  explicit StateChecks(const RequestCacheOptions& options);

  /// The pass that is committed; 0: none is.
  void set_pass(std::uint64_t pass) noexcept { pass_ = pass; }
  /// The slot has a checkpoint that `request` made or loaded, from now on. `prefix`: with tiers, names it there.
  /// `is_found`: later prompts find it.
  void published(std::size_t group, SlotId slot, RequestId request, const PrefixHash& prefix, bool is_found = true);
  /// No later prompt finds it any more. Requests may still hold it.
  void lost(std::size_t group, SlotId slot) noexcept;
  /// The pass reads the checkpoint in this slot, which its request holds.
  void read(std::size_t group, SlotId slot, RequestId request, std::uint64_t pass);
  /// A transfer stores the state of this prefix from this slot, which may have lost it, and have another one by now.
  void stored(std::size_t group, SlotId slot, const PrefixHash& prefix);
  void clear() noexcept;

  [[nodiscard]] CheckPlan take();
  /// Later prompts find the checkpoint.
  [[nodiscard]] bool is_current(const StateCheck& check) const noexcept;
  /// The prefix of a checkpoint that was stored, if that was not long ago.
  [[nodiscard]] std::optional<PrefixHash> stored_prefix(std::uint64_t content) const noexcept;
  [[nodiscard]] std::size_t groups() const noexcept { return places_.size(); }
  [[nodiscard]] std::size_t slots(std::size_t group) const noexcept { return places_[group].size(); }

  IntegrityUsage usage;

 private:
  struct Content {
    std::uint64_t number = 0;  ///< 0: none, or one that is not checked
    PrefixHash prefix;
  };
  struct Place {
    Content content;        ///< the checkpoint that was published last
    bool is_found = false;  ///< later prompts find it
    Content left;           ///< the checkpoint that was lost last
  };

  [[nodiscard]] Place& at(std::size_t group, SlotId slot) noexcept { return places_[group][slot.index()]; }
  [[nodiscard]] const Place& place_of(const StateCheck& check) const noexcept {
    return places_[static_cast<std::size_t>(check.group)][check.slot.index()];
  }
  void push_read(const StateCheck& check);

  std::vector<std::vector<Place>> places_;  ///< [groups][slots]
  std::vector<StateCheck> checks_;
  std::vector<StateCheck> taken_;
  std::vector<Content> stored_;  ///< the last ones, in a ring
  std::size_t next_stored_ = 0;
  std::uint64_t last_content_ = 0;
  std::uint64_t known_content_ = 0;  ///< the last one that take() has answered
  std::uint64_t pass_ = 0;
};

}  // namespace stateport::detail
