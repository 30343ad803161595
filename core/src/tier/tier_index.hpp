// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include "tier/admission.hpp"
#include "tier/load_time.hpp"
#include "tier/remote_finds.hpp"
#include "tier/residency.hpp"
#include "tier/tier_loads.hpp"
#include "tier/tier_setup.hpp"
#include "tier/tier_stores.hpp"
#include "tier/tier_transfers.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stateport::detail {

/// Decides which contents lie below the device. Moves no byte: its decisions are taken as a TransferPlan, and settle()
/// must hear how each transfer ended.
///
///     TierStores   follows the device, stores its victims  ─┐
///     TierLoads    finds the hits of prompts, loads them    ├─► Admission ───► Residency ─────► TierTransfers
///     RemoteFinds  asks the remote tier for contents       ─┘   takes, evicts  contents, bytes  names, answers
///
/// It hears of all contents that come to the device and leave it, and of all prompts, so that it knows for each state
/// which shorter prefix has one: every tier evicts its states by the policy of the device.
///
/// find(), report_prompt() and load() are O(blocks of the prompt), drain() and reset() O(all). The others are O(1) for
/// each image that they name or evict, and for each block before a state that is evicted, besides the costs of
/// VictimOrder. Not thread-safe.
///
/// The constructor reserves address space for all that the options allow; nothing else allocates, as long as transfers
/// are taken as CacheTiers says.
class TierIndex {
 public:
  explicit TierIndex(const TierSetup& setup);
  TierIndex(const TierIndex&) = delete;
  TierIndex& operator=(const TierIndex&) = delete;

  [[nodiscard]] TierStores& stores() noexcept { return stores_; }
  [[nodiscard]] TierLoads& loads() noexcept { return loads_; }
  [[nodiscard]] RemoteFinds& finds() noexcept { return finds_; }
  [[nodiscard]] const TierLevels& levels() const noexcept { return contents_.levels(); }

  /// The policy hears of a request with this prompt, as in SlotAllocator::note_served. The spans have an element for
  /// each whole block.
  PromptPast report_prompt(std::span<const BlockHash> keys, std::span<const PrefixHash> prefixes,
                           const PromptFacts& prompt, double now_s);
  /// The number of leading blocks up to the deepest state that is anywhere; 0: there is none.
  [[nodiscard]] std::size_t deepest_state(std::span<const PrefixHash> prefixes) const noexcept;

  /// A request has the last answer that it waits for.
  struct WaitEnd {
    RequestId request;
    bool asked = false;  ///< to its finds; false: to its load
    bool done = false;   ///< the load brought all that it was to bring
  };
  /// The first result whose transfer is not under way, or which stands for the second time. Null: there is none.
  [[nodiscard]] const TransferResult* find_wrong(std::span<const TransferResult> results) noexcept {
    return transfers_.find_wrong(results);
  }
  /// A transfer ended. Precondition: it was under way.
  std::optional<WaitEnd> settle(const TransferResult& result);
  /// Ends a call of the cache.
  void flush();
  /// A tier has this image, from before. A state is there when all of its images were attached, one after the other. If
  /// another image is attached or a call ends before, those images are dropped. False: too many.
  bool attach(Medium medium, const ImageKey& image);

  /// The largest number of images that come to tiers and leave them in one call.
  [[nodiscard]] std::size_t changes_max() const noexcept { return changes_max_; }
  /// The largest number of transfers between two calls of take_transfers().
  [[nodiscard]] std::size_t transfers_max() const noexcept { return transfers_.plan_max(); }
  /// The decisions since the last call; valid until the next call of anything.
  [[nodiscard]] TransferPlan take_transfers() { return transfers_.take_plan(); }
  [[nodiscard]] std::size_t transfers_under_way() const noexcept { return transfers_.size(); }
  void set_speeds(const TierSpeeds& speeds) noexcept { times_.set_speeds(speeds); }
  [[nodiscard]] TierUsage usage(Medium medium) const noexcept;
  /// Forgets these contents, and those of which no namespace is known. Transfers may be under way. The device has lost
  /// its own, or is about to.
  void forget(const Forgotten& forgotten);
  /// The state of this prefix is wrong: no tier has it any more, and none stores it. Before the device loses it.
  void withdraw_state(const PrefixHash& prefix) { stores_.withdraw_state(prefix); }
  /// Forgets everything, in all tiers. Throws InvalidState while transfers are under way.
  void reset();
  /// Throws std::logic_error naming the first violation. O(all).
  void check_invariants() const;

 private:
  void count_end(const UnderWay& transfer, TransferStatus status) noexcept;

  /// The images of one state that were attached, and the last ones.
  struct Found {
    Medium medium = Medium::file;
    PrefixHash prefix;
    std::int64_t tokens = 0;
    std::uint32_t groups = 0;  ///< a bit each; never all
    [[nodiscard]] bool is_of(Medium tier, const ImageKey& image) const noexcept {
      return medium == tier && prefix == image.prefix && tokens == image.tokens;
    }
  };

  void drop_found();

  std::size_t groups_;
  TierTransfers transfers_;
  LoadTime times_;
  Residency contents_;
  Admission admission_;
  RemoteFinds finds_;
  TierLoads loads_;
  TierStores stores_;
  std::size_t changes_max_ = 0;
  Found found_;
};

}  // namespace stateport::detail
