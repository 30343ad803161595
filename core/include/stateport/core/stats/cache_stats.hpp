// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/cost.hpp>
#include <stateport/core/stats/histogram.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stateport {

/// Why a request could not use all of the KV that it matched (or, for never_stored, all of its earlier prefix).
enum class LostHit : std::uint8_t {
  no_checkpoint,   ///< KV is there, but no state was stored at a usable boundary
  off_grid,        ///< the match ends between two boundaries of the grid
  evicted,         ///< a state was stored there and has been evicted
  too_few_tokens,  ///< using it would leave fewer tokens than the forward needs
  locked_pool,     ///< no live slot could be freed
  evicted_kv,      ///< its KV was cached and has been evicted
  /// No KV of this prefix is cached: no request has computed it, or it has been evicted and the cache does not remember
  /// it.
  never_stored,
  tier_costs_more,  ///< a tier below the device has it, and computing it is faster than loading it
  tier_failed,      ///< a tier had it, and did not deliver it as it should be
};
inline constexpr int lost_hit_count = 9;

[[nodiscard]] std::string_view name(LostHit reason) noexcept;

/// Tokens that were not reused for one reason.
struct Loss {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  double flops = 0;  ///< of CacheStats::cost
  friend bool operator==(const Loss&, const Loss&) noexcept = default;
};

/// Savings of a cache, and reasons why it did not save more. Plain counters: no operation allocates; not thread-safe.
struct CacheStats {
  /// Of a forward; the default makes flops equal tokens. One that check_compute_cost refuses makes them meaningless.
  ComputeCost cost;

  std::int64_t requests = 0;
  std::int64_t requests_hit = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t hit_tokens = 0;
  double hit_flops = 0;
  std::array<Loss, lost_hit_count> lost{};  ///< by LostHit
  /// Positions of Prompt::breakpoints beyond the hit that a pass ran over.
  std::int64_t breakpoints_kept = 0;     ///< whose state is a checkpoint then
  std::int64_t breakpoints_refused = 0;  ///< the others
  std::int64_t forks = 0;                ///< that were started: they are not among the requests
  std::int64_t awaited_tokens = 0;       ///< of hit_tokens: that requests reuse because they waited (ShareRunning)
  /// Of hit_tokens: that requests loaded from tiers, by the slowest Medium of each load. The others were on the device.
  std::array<std::int64_t, 5> loaded_tokens{};
  AgeHistogram reuse_ages;     ///< of states since their last use, when a request continued from them
  AgeHistogram eviction_ages;  ///< of states since their last use, when they were evicted
  TokenHistogram hit_depths;   ///< hit tokens of each request
  /// Of each request: tokens that are computed again though their KV was cached when it was looked up.
  TokenHistogram loss_depths;

  void count_request(std::int64_t prompt_tokens_of_request, std::int64_t hit_tokens_of_request) noexcept;
  /// Tokens [from, to) of a prompt are computed again for this reason; nothing for an empty range.
  void count_loss(LostHit reason, std::int64_t from_tokens, std::int64_t to_tokens) noexcept;
  /// A request whose prompt matched KV of `walked_tokens`, of which `hit_tokens_of_request` can be used; the rest is
  /// lost for this reason, if there is one.
  void count_lookup(std::int64_t prompt_tokens_of_request, std::int64_t hit_tokens_of_request,
                    std::int64_t walked_tokens, std::optional<LostHit> reason) noexcept;

  [[nodiscard]] const Loss& of(LostHit reason) const noexcept { return lost[static_cast<std::size_t>(reason)]; }
  friend bool operator==(const CacheStats&, const CacheStats&) noexcept = default;
};

/// Lines for people.
[[nodiscard]] std::string to_string(const CacheStats& stats);
/// The text that fmt (10 or newer) prints for "{}".
[[nodiscard]] inline std::string format_as(const CacheStats& stats) {
  return to_string(stats);
}
/// The text exposition format of Prometheus: counters `prefix_…_total`, by reason where they are, and histograms of
/// seconds and of tokens. Throws InvalidArgument for a prefix that no name of a metric can begin with. to_prometheus()
/// of a RequestCache (serve/cache_metrics.hpp) has these and the contents of the cache.
[[nodiscard]] std::string to_prometheus(const CacheStats& stats, std::string_view prefix = "stateport");

}  // namespace stateport
