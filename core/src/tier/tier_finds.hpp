// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tier/tier_contents.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// A prompt, and how far a request can get with what is known.
struct PromptReach {
  std::span<const PrefixHash> prefixes;  ///< of its whole blocks
  std::int64_t device_tokens = 0;        ///< the device's own hit
  std::int64_t walked_tokens = 0;        ///< whose KV is on the device or below
  std::int64_t usable_tokens = 0;        ///< no state behind these is of use
  double saved_s = 0;                    ///< by the best load that is known
};

/// Images that a request asks for in one round, at most. Short requests count for more, up to the default of max_finds:
/// so many answers of requests that ended may be missing before nothing is asked.
[[nodiscard]] inline std::size_t most_finds(const TierSetup& setup) noexcept {
  const auto limit = static_cast<std::size_t>(std::max(setup.tiers.max_finds, 0));
  constexpr std::size_t usual = TierOptions{}.max_finds;
  return std::max(std::min(limit, std::max(usual, setup.request_blocks * setup.groups)), setup.request_blocks);
}

/// Asks the remote tier for a request, in two rounds: for states beyond all that are known below the device, and then
/// for KV up to the deepest state. Where the engine keeps KV, no state is asked for behind the KV that it has. The
/// second round names no more finds than the load would name loads. What could not be worth a load by the speeds that
/// are known is not asked for.
///
/// What is found is remembered when the last answer of a round is there, states from the shortest prefix on, KV as far
/// as it is there without a gap. A state behind a gap is forgotten: the next request asks again.
///
/// A request that ends while it waits for answers is forgotten at once, and so are its answers when they come. While
/// more of those are missing than all requests together ask for in one round at most, nothing is asked.
///
/// ask_states() and ask_kv() are O(blocks), the last answer O(images asked for), besides what makes room.
class TierFinds : protected TierContents {
 public:
  /// Each names finds for the request. False: there is nothing to ask for.
  [[nodiscard]] bool ask_states(RequestId request, const PromptReach& prompt);
  [[nodiscard]] bool ask_kv(RequestId request, const PromptReach& prompt);
  /// The request ends while it waits for answers.
  void forget_finds(RequestId request) noexcept;

 protected:
  struct Ask {
    struct Image {
      PrefixHash prefix;
      std::int64_t tokens = 0;
      std::uint32_t node = none;  ///< KV that is there, with what lies before it
      bool known = false;         ///< is not asked for
      std::uint8_t found = 0;     ///< of its groups
    };
    RequestId request;  ///< none: it ended while it waited
    CacheContent content = CacheContent::state;
    std::vector<Image> images;  ///< states: from the longest prefix on; KV: all blocks of a range, from the first on
    PrefixHash before;          ///< KV: of the block before the first; zero: there is none
    std::int64_t left = 0;      ///< finds; 0: nothing is asked
  };

  explicit TierFinds(const TierSetup& setup)
      : TierContents(setup),
        usable_states_(setup.states_apart ? all_media : below_device),
        grid_(setup.state_grid_tokens),
        asks_(setup.requests),
        forgotten_finds_max_(setup.requests * most_finds(setup)) {
    for (Ask& ask : asks_)
      if (has(Medium::remote)) ask.images.reserve(setup.request_blocks);
  }
  ~TierFinds() = default;

  /// Where the state of a block is, if it is of use to a load of that block's KV.
  [[nodiscard]] MediumSet usable_state(std::uint32_t node) const noexcept {
    return node == none ? MediumSet{0} : static_cast<MediumSet>(nodes_[node].state.in & usable_states_);
  }
  /// Whether the request that asked still waits for the answer.
  [[nodiscard]] bool is_awaited(const UnderWay& find) const noexcept {
    return ask_of(find.request).request == find.request;
  }
  /// A find ended. True: it was the last one of a request that waits.
  [[nodiscard]] bool answered(const UnderWay& find, TransferStatus status);
  [[nodiscard]] const Ask& ask_of(RequestId request) const noexcept { return asks_[request.index()]; }
  [[nodiscard]] std::span<const Ask> asks() const noexcept { return asks_; }
  [[nodiscard]] std::size_t forgotten_finds() const noexcept { return forgotten_finds_; }

 private:
  [[nodiscard]] bool may_ask() const noexcept;
  [[nodiscard]] std::int64_t usable_reach(const PromptReach& prompt) const noexcept;
  [[nodiscard]] bool may_be_worth(const PromptReach& prompt, std::int64_t tokens,
                                  const MediumBytes& bytes) const noexcept;
  [[nodiscard]] Ask& new_ask(RequestId request, CacheContent content) noexcept;
  [[nodiscard]] bool begin_ask(RequestId request);
  [[nodiscard]] bool is_kv_below(const PrefixHash& prefix) const noexcept;
  [[nodiscard]] std::uint32_t remember(const Ask::Image& image, const PrefixHash& parent, CacheContent content);
  void remember_kv(std::span<Ask::Image> images, const PrefixHash& before);
  void forget_states(std::span<const Ask::Image> images);

  MediumSet usable_states_;  ///< media whose states are of use: with TierSetup::states_apart the device, too
  std::int64_t grid_;        ///< where states can be, in tokens
  std::vector<Ask> asks_;    ///< by request
  std::size_t forgotten_finds_max_;
  std::size_t forgotten_finds_ = 0;  ///< that are not answered yet
};

}  // namespace stateport::detail
