// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

/// Reports of a cache about prompts, to a policy that learns (LearningPolicy). Plain data. A position in a prompt is
/// counted in whole blocks; the cache chooses the size of a block.
namespace stateport {

/// Names a position of a prompt: a hash of all tokens up to there.
using PositionKey = std::uint64_t;

/// The engine's knowledge about the future of a prompt, which the cache cannot learn from its past. hix, the learned
/// hazard index, uses it: it changes the expected rate of later uses of the end of this prompt. Of all orders, a
/// RequestCache with sessions (CacheSessions) uses `session` and `last_turn`.
///
/// last_turn, tool_call_pending and factor each multiply that rate. Their product is limited to [1/16, 16] and rounded
/// to a power of sqrt(2).
struct ReuseHint {
  bool last_turn = false;          ///< no further prompt of the conversation is expected: times 1/8
  bool tool_call_pending = false;  ///< the next prompt follows as soon as a tool answers: times 4
  /// In (0, 1): the engine's estimate of the probability that a later prompt continues this one; 0: there is none. Its
  /// weight is learned from earlier prompts with similar estimates: an estimate need not be calibrated, and a useless
  /// one has no effect after some tens of prompts.
  float continues = 0;
  double factor = 1;  ///< > 0: times this, for anything else that the engine knows
  /// The engine expects no use for this many seconds; >= 0. Until then the rank of the end is the rank that it will
  /// have at that time, lowered because memory is held while waiting. After that time the hint has no effect. 1 +
  /// seconds is rounded down to a power of the cube root of 2.
  double expected_idle_s = 0;
  /// Number of the conversation; 0: unknown. Its next prompt is expected to extend this one. If that prompt does not
  /// (the history was edited or summarised), this end is not expected to be used again: times 1/8 from then on. A table
  /// holds about 2,048 sessions: a session that is seen later may replace one whose hash collides with it.
  std::uint64_t session = 0;
  friend constexpr bool operator==(const ReuseHint&, const ReuseHint&) noexcept = default;
};

/// A policy's knowledge of a prompt when a request looked it up. The caller stores it with the request and passes it
/// back with every prefix that the request keeps; without it the policy takes the prompt for a new one. Only the policy
/// reads the members.
struct PromptPast {
  std::optional<double> looked_up_s;  ///< none: not looked up
  std::int32_t known_blocks = 0;      ///< depth of the deepest position that was known
  std::uint8_t generation = 0;        ///< how often the chain that the prompt extends was extended
  bool repeat = false;                ///< all of the prompt was known
};

/// The prompt of a request. The engine fills in the members that a cache cannot find itself (see PrefixInsert::prompt
/// and SlotAllocator::note_served). The cache fills in `keys`, `blocks` and `forks` for the policy.
struct PromptFacts {
  /// keys[i] names the position after i + 1 blocks. The last positions may be missing: those that the forward cannot
  /// continue from, and those that the policy cannot know.
  std::span<const PositionKey> keys;
  std::int32_t blocks = 0;          ///< of all of the request that is known, >= keys.size()
  std::int32_t usable_blocks = 0;   ///< the forward needs a token: (tokens of the prompt - 1) / block size
  std::int32_t matched_blocks = 0;  ///< whose KV was cached before: a state there is at a branch point
  std::int32_t hit_blocks = 0;      ///< the request continued from the state after these; 0: from none
  /// Depths of the cached prefix, ascending, after which two or more cached prompts continue it in different ways.
  std::span<const std::int32_t> forks;
  std::int64_t tokens = 0;  ///< expected length of the request, prompt and output; 0: unknown
  PromptPast past;          ///< of the request's lookup. Without looked_up_s ages count from now
  ReuseHint hint;           ///< about the end of the request
};

/// Why a prefix is kept.
enum class KeptAt : std::uint8_t {
  end,     ///< the request ends here
  branch,  ///< another prompt had the same beginning
  rung     ///< somewhere before the end
};

/// A prefix of a request that the cache keeps. From now on it is candidate number `index`.
struct KeptFacts {
  std::uint32_t index = 0;
  bool has_state = false;
  PositionKey key = 0;            ///< of the last whole block
  std::int32_t depth_blocks = 0;  ///< <= prompt.blocks; 0: the prefix has no whole block, and no key
  KeptAt at = KeptAt::end;
  PromptFacts prompt;  ///< its past, its hint and the number of its blocks
};

}  // namespace stateport
