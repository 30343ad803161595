// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

/// What policies that learn are told of prompts. Positions of a prompt are counted in whole blocks of a cache's choice.
/// Plain data.
namespace stateport {

/// Names a position of a prompt: a hash of all tokens up to there.
using PositionKey = std::uint64_t;

/// What the caller knows of a prompt's future and history does not say: the learned hazard index then values the end of
/// this prompt differently from others of its kind. The policies that do not learn ignore it.
///
/// The multipliers are of the rate of uses, at any age: together rounded to half octaves, within 1/16 and 16.
struct ReuseHint {
  bool last_turn = false;          ///< nobody is expected to continue the prompt: 1/8
  bool tool_call_pending = false;  ///< it goes on as soon as a tool has answered: 4
  double factor = 1;               ///< > 0: for what else is known
  /// No use before so many seconds have passed; >= 0. Until then the end is worth what it will be worth then, less for
  /// the wait; afterwards the hint says nothing. Rounded down to a third of a doubling of 1 + s.
  double expected_idle_s = 0;
  /// Names a conversation whose next prompt goes on from this one; 0: unknown. If its next one does not (the history
  /// was edited or summarised), nobody returns to this end: 1/8 from then on. The 2,048 sessions seen last, less those
  /// whose hashes collide, are told apart; of the others nothing is said.
  std::uint64_t session = 0;
  friend constexpr bool operator==(const ReuseHint&, const ReuseHint&) noexcept = default;
};

/// What a policy knew of a prompt when it was looked up. The request hands it on with what it keeps of the prompt; one
/// that does not was a new prompt. Of no interest to others.
struct PromptPast {
  std::optional<double> looked_up_s;  ///< none: not looked up
  std::int32_t known_blocks = 0;      ///< depth of the deepest position that was known
  std::uint8_t generation = 0;        ///< how often the chain that the prompt extends was extended
  bool repeat = false;                ///< all of the prompt was known
};

/// The prompt of a request. Whoever hands it on fills in what it knows: the engine what a cache cannot find itself (see
/// PrefixInsert::prompt and SlotAllocator::note_served), the cache `keys` and `blocks` for the policy.
struct PromptFacts {
  /// keys[i] names the position after i + 1 blocks. Those that the forward could not continue from, or that nobody can
  /// know, may be left out at the end.
  std::span<const PositionKey> keys;
  std::int32_t blocks = 0;          ///< of all of the request that is known, >= keys.size()
  std::int32_t usable_blocks = 0;   ///< the forward needs a token: (tokens of the prompt - 1) / block size
  std::int32_t matched_blocks = 0;  ///< whose KV was cached before: a state there is at a branch point
  std::int32_t hit_blocks = 0;      ///< the request continued from the state after these; 0: from none
  std::int64_t tokens = 0;          ///< how long the request gets, as far as is known; 0: unknown
  PromptPast past;                  ///< of the request's lookup. Without looked_up_s ages count from now
  ReuseHint hint;                   ///< about the end of the request
};

/// Why a prefix is kept.
enum class KeptAt : std::uint8_t {
  end,     ///< the request ends here
  branch,  ///< another prompt had the same beginning
  rung     ///< somewhere before the end
};

/// A prefix of a request that is kept: from now on candidate `index` stands for it.
struct KeptFacts {
  std::uint32_t index = 0;
  bool has_state = false;
  PositionKey key = 0;            ///< of the last whole block
  std::int32_t depth_blocks = 0;  ///< <= prompt.blocks; 0: the prefix has no whole block, and no key
  KeptAt at = KeptAt::end;
  PromptFacts prompt;  ///< its past, its hint and the number of its blocks
};

}  // namespace stateport
