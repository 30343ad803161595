// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_options.hpp>

#include "hash/namespace_tag.hpp"
#include "serve/request_record.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// SlotLayout::tail_tokens of each prompt. If it is learned: by namespace, whether prompts leave earlier ones inside
/// their tails, or go on behind the end of earlier ones. The first lose the state at the end of the earlier prompt and
/// fall back to the state before it. The second lose, with a tail, the tokens from the state before the tail to the
/// end. A tail is used while the first would lose more tokens than the second. Two namespaces may share what is
/// learned. Nothing allocates after construction.
class TailUse {
 public:
  /// Where a prompt leaves states, in tokens.
  struct Places {
    std::int64_t before_tail = 0;
    std::int64_t usable = 0;  ///< without a tail
    std::int64_t other = 0;   ///< the deepest state before these, or the one before the tail if there is one anyway
    bool leaves_end = true;   ///< without a tail there is a state at `usable`
  };

  explicit TailUse(const RequestCacheOptions& options);

  /// The cached beginning of the prompt is known, or has changed: sets its lesson and its tail. O(1).
  void look_at(RequestRecord& prompt, const OpenedPrompt& opened) const noexcept;
  /// The tail whose worth is learned; 0: nothing is learned.
  [[nodiscard]] std::int64_t learned_tokens() const noexcept { return sets_.empty() ? 0 : default_tokens; }
  /// A prompt was computed. O(1).
  void note_computed(const RequestRecord& prompt, const Places& places) noexcept;
  /// A prompt begins to compute.
  void learn(const RequestRecord& prompt) noexcept;

 private:
  static constexpr std::int64_t default_tokens = 64;
  static constexpr std::int64_t key_tokens = 16;  ///< a prompt is found by as many tokens
  static constexpr std::size_t sets_max = 1024;
  static constexpr std::uint32_t remembered = 256;  ///< prompts that continue others, of which the sums tell

  /// A computed prompt.
  struct Seen {
    std::uint64_t key = 0;      ///< of the tokens before a multiple of grid_ before the tail; 0: none
    std::uint32_t between = 0;  ///< a hash of the tokens between both places
    std::int32_t before_tail = 0;
    std::int32_t usable = 0;  ///< INT32_MAX: without a tail there is no state, and all prompts lose it
    std::int32_t other = 0;
  };
  using Set = std::array<Seen, 4>;  ///< the newest first
  struct Sums {
    std::int64_t lost_without = 0;  ///< tokens
    std::int64_t lost_with = 0;
    std::uint32_t prompts = 0;

    void add(const TailLesson& lesson) noexcept {
      lost_without += lesson.lost_without;
      lost_with += lesson.lost_with;
      prompts += lesson.is_one;
    }
  };

  [[nodiscard]] TailLesson lesson_of(const RequestRecord& prompt, const OpenedPrompt& opened) const noexcept;
  [[nodiscard]] std::uint64_t key_of(const RequestRecord& prompt, std::int64_t tokens) const noexcept;
  [[nodiscard]] const Seen* find(const RequestRecord& prompt, std::int64_t tokens) const noexcept;

  std::int64_t fixed_;
  std::int64_t grid_;       ///< keys lie at multiples of this number of tokens
  std::int64_t reach_ = 0;  ///< tokens from a key to the end of its prompt, at most
  std::vector<Set> sets_;   ///< none: nothing is learned
  std::array<Sums, 251> sums_ = {};
};

}  // namespace stateport::detail
