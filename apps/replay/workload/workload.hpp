// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// A number that stands for the tokens of one block. Equal identities after equal prefixes mean equal tokens.
using BlockIdentity = std::uint64_t;

/// Whose a request is: see add_flood().
enum class Tenant : std::uint8_t { none, quiet, flood };
inline constexpr std::size_t tenant_count = 3;

/// One request of a workload: prompt (input) and the tokens that were generated (output, never cached).
struct Request {
  std::int64_t arrival_ms = 0;
  std::int64_t input_tokens = 1;
  std::int64_t output_tokens = 0;
  std::int64_t session = -1;  ///< -1: unknown
  ReuseHint hint;             ///< hint that the index receives
  /// The next prompt of the session shares these tokens with this one and no more: not its end, nor its answer. 0: not
  /// known.
  std::int64_t left_at_tokens = 0;
  std::int64_t recorded_hit_tokens = -1;  ///< reused by the engine in life; -1: unknown
  Tenant tenant = Tenant::none;

  [[nodiscard]] double arrival_s() const noexcept { return static_cast<double>(arrival_ms) / 1000; }
};

/// Facts about a prompt's future that a serving system may know. Here it comes from the workload itself.
struct HintKinds {
  bool last_turns = false;  ///< no later prompt goes beyond its whole blocks
  bool tool_calls = false;  ///< one does within 20 s
  bool idle_times = false;  ///< half of the time until one does
  bool sessions = false;    ///< where the workload names them
  /// > 0: a probability that the prompt is continued, of a classifier whose ROC curve has this area.
  double continues_auc = 0;

  [[nodiscard]] bool any() const noexcept {
    return last_turns || tool_calls || idle_times || sessions || continues_auc > 0;
  }
};

/// The requests of a replay in the order of service, each with the identities of its full blocks, floor(input_tokens /
/// block_size_tokens) of them.
class Workload {
 public:
  /// Throws InvalidArgument for block_size_tokens < 1.
  explicit Workload(std::int64_t block_size_tokens);

  /// Appends one request. Throws InvalidArgument, nothing changed: input_tokens < 1, a negative arrival or output, or
  /// fewer identities than the prompt has full blocks. Further identities (a partial last block) are not kept.
  void add(const Request& request, std::span<const BlockIdentity> identities);

  /// A workload of the first requests, at most all.
  [[nodiscard]] Workload first(std::size_t requests) const;

  /// Gives every request the hints of these kinds, and no others.
  void give_hints(const HintKinds& kinds);

  [[nodiscard]] std::int64_t block_size_tokens() const noexcept { return block_size_tokens_; }
  [[nodiscard]] std::size_t size() const noexcept { return requests_.size(); }
  [[nodiscard]] const Request& request(std::size_t index) const noexcept { return requests_[index]; }
  [[nodiscard]] std::span<const BlockIdentity> blocks(std::size_t index) const noexcept {
    return std::span(identities_).subspan(ends_[index], ends_[index + 1] - ends_[index]);
  }
  [[nodiscard]] std::int64_t total_blocks() const noexcept { return static_cast<std::int64_t>(identities_.size()); }
  /// Full blocks of the longest prompt.
  [[nodiscard]] std::int64_t longest_blocks() const noexcept { return longest_blocks_; }
  /// Number of different full blocks: a cache of this size never evicts. O(total_blocks).
  [[nodiscard]] std::int64_t distinct_blocks() const;

 private:
  void tell_chances(const std::vector<bool>& continued, double auc);

  std::int64_t block_size_tokens_;
  std::int64_t longest_blocks_ = 0;
  std::vector<Request> requests_;
  std::vector<BlockIdentity> identities_;
  std::vector<std::size_t> ends_ = {0};  ///< request i owns identities_[ends_[i], ends_[i + 1])
};

/// A bijective 64-bit mixer (the finaliser of SplitMix64): small input differences spread over all bits.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace stateport::replay
