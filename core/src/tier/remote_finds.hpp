// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tier/admission.hpp"
#include "tier/load_time.hpp"
#include "tier/residency.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// A prompt, and how far a request can get with the contents that are known.
struct PromptReach {
  std::span<const PrefixHash> prefixes;  ///< of its whole blocks
  std::int64_t device_tokens = 0;        ///< the device's own hit
  std::int64_t walked_tokens = 0;        ///< whose KV is on the device or below
  std::int64_t usable_tokens = 0;        ///< no state behind these is of use
  double saved_s = 0;                    ///< by the best load that is known
};

/// Asks the remote tier for a request, in two rounds: for states beyond all that are known below the device, and then
/// for KV up to the deepest state. Where the engine keeps KV, the first round asks for no state behind that KV. The
/// second round names no more finds than the load would name loads. No round asks for images whose load could not be
/// worth it by the speeds that are known.
///
/// When the last answer of a round is there, the images that were found are remembered: states from the shortest prefix
/// on, KV up to the first gap. A state behind a gap is forgotten: the next request asks again.
///
/// A request that ends while it waits for answers is forgotten at once, and so are its answers when they come. While
/// more of those are missing than all requests together ask for in one round at most, nothing is asked.
///
/// ask_states() and ask_kv() are O(blocks), the last answer O(images asked for), besides the evictions that it causes.
class RemoteFinds {
 public:
  RemoteFinds(const TierSetup& setup, Residency& contents, Admission& admission, TierTransfers& transfers,
              const LoadTime& times);

  /// Each names finds for the request. False: there is nothing to ask for.
  [[nodiscard]] bool ask_states(RequestId request, const PromptReach& prompt);
  [[nodiscard]] bool ask_kv(RequestId request, const PromptReach& prompt);
  /// The request ends while it waits for answers.
  void forget(RequestId request) noexcept;
  /// The request that waits, if it does, has a name that nobody will ask for: its answers are not remembered.
  void discard(RequestId request) noexcept { asks_[request.index()].is_forgotten = true; }
  /// A find ended. True: it was the last one of a request that waits.
  [[nodiscard]] bool answered(const UnderWay& find, TransferStatus status);
  /// The number of finds that are not answered yet.
  [[nodiscard]] std::size_t unanswered() const noexcept;

 private:
  struct Ask {
    struct Image {
      PrefixHash prefix;
      std::int64_t tokens = 0;
      std::uint32_t node = TierNode::none;  ///< KV that is there, with all blocks before it
      bool known = false;                   ///< is not asked for
      std::uint8_t found = 0;               ///< of its groups
    };
    RequestId request;  ///< none: it ended while it waited
    CacheContent content = CacheContent::state;
    std::vector<Image> images;  ///< states: from the longest prefix on; KV: all blocks of a range, from the first on
    PrefixHash before;          ///< KV: of the block before the first; zero: there is none
    std::int64_t left = 0;      ///< finds; 0: nothing is asked
    bool is_forgotten = false;
  };

  [[nodiscard]] bool may_ask() const noexcept;
  [[nodiscard]] std::int64_t usable_reach(const PromptReach& prompt) const noexcept;
  [[nodiscard]] bool may_be_worth(const PromptReach& prompt, std::int64_t tokens,
                                  const MediumBytes& bytes) const noexcept;
  [[nodiscard]] Ask& new_ask(RequestId request, CacheContent content) noexcept;
  [[nodiscard]] bool begin_ask(RequestId request);
  /// Whether the request that asked still waits for the answer.
  [[nodiscard]] bool is_awaited(const UnderWay& find) const noexcept {
    return asks_[find.request.index()].request == find.request;
  }
  [[nodiscard]] bool is_kv_below(const PrefixHash& prefix) const noexcept;
  [[nodiscard]] std::uint32_t remember(const Ask::Image& image, const PrefixHash& parent, CacheContent content);
  void remember_kv(std::span<Ask::Image> images, const PrefixHash& before);
  void forget_states(std::span<const Ask::Image> images);

  Residency& contents_;
  TierLevels& levels_;
  TierNodes& nodes_;
  Admission& admission_;
  TierTransfers& transfers_;
  const LoadTime& times_;
  std::int64_t block_size_;
  std::size_t groups_;
  std::int64_t grid_;      ///< where states can be, in tokens
  std::size_t max_finds_;  ///< of a request, for states
  std::vector<Ask> asks_;  ///< by request
  std::size_t forgotten_max_;
  std::size_t forgotten_ = 0;  ///< finds of requests that ended, not answered yet
};

}  // namespace stateport::detail
