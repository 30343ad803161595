// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/stats/cache_stats.hpp>

#include <fmt/format.h>

#include <iterator>

namespace stateport {
namespace {

double per_cent(double part, double whole) {
  return whole == 0 ? 0 : 100 * part / whole;
}

}  // namespace

void CacheStats::count_request(std::int64_t prompt_tokens_of_request, std::int64_t hit_tokens_of_request) noexcept {
  ++requests;
  requests_hit += hit_tokens_of_request > 0;
  prompt_tokens += prompt_tokens_of_request;
  hit_tokens += hit_tokens_of_request;
  hit_flops += cost.of(0, hit_tokens_of_request);
  hit_depths.add(static_cast<double>(hit_tokens_of_request));
}

void CacheStats::count_loss(LostHit reason, std::int64_t from_tokens, std::int64_t to_tokens) noexcept {
  if (to_tokens <= from_tokens) return;
  Loss& loss = lost[static_cast<std::size_t>(reason)];
  ++loss.requests;
  loss.tokens += to_tokens - from_tokens;
  loss.flops += cost.of(from_tokens, to_tokens);
}

void CacheStats::count_lookup(std::int64_t prompt_tokens_of_request, std::int64_t hit_tokens_of_request,
                              std::int64_t walked_tokens, std::optional<LostHit> reason) noexcept {
  count_request(prompt_tokens_of_request, hit_tokens_of_request);
  loss_depths.add(reason ? static_cast<double>(walked_tokens - hit_tokens_of_request) : 0);
  if (reason) count_loss(*reason, hit_tokens_of_request, walked_tokens);
  count_loss(LostHit::never_stored, walked_tokens, prompt_tokens_of_request);
}

std::string to_string(const CacheStats& stats) {
  std::string text =
      fmt::format("{} requests, {} hit; {} prompt tokens, {} hit ({:.2f} %)\n", stats.requests, stats.requests_hit,
                  stats.prompt_tokens, stats.hit_tokens,
                  per_cent(static_cast<double>(stats.hit_tokens), static_cast<double>(stats.prompt_tokens)));
  double flops = stats.hit_flops;
  for (const Loss& loss : stats.lost) flops += loss.flops;
  for (int reason = 0; reason < lost_hit_count; ++reason) {
    const auto lost = static_cast<LostHit>(reason);
    const Loss& loss = stats.of(lost);
    if (loss.requests == 0) continue;
    fmt::format_to(std::back_inserter(text),
                   "lost, {:<14} {:>9} requests {:>13} tokens {:>6.2f} % {:>6.2f} % of FLOPs\n", name(lost),
                   loss.requests, loss.tokens,
                   per_cent(static_cast<double>(loss.tokens), static_cast<double>(stats.prompt_tokens)),
                   per_cent(loss.flops, flops));
  }
  if (stats.awaited_tokens > 0)
    fmt::format_to(std::back_inserter(text), "hit after a wait for another request: {} tokens\n", stats.awaited_tokens);
  if (stats.forks > 0) fmt::format_to(std::back_inserter(text), "{} forks\n", stats.forks);
  if (stats.breakpoints_kept + stats.breakpoints_refused > 0)
    fmt::format_to(std::back_inserter(text), "breakpoints: {} kept, {} refused\n", stats.breakpoints_kept,
                   stats.breakpoints_refused);
  const auto add_ages = [&](const char* what, const AgeHistogram& ages) {
    if (ages.total() == 0) return;
    fmt::format_to(std::back_inserter(text), "age at {:<9} {:>9} states, half below {} s, nine in ten below {} s\n",
                   what, ages.total(), ages.quantile(0.5), ages.quantile(0.9));
  };
  add_ages("reuse", stats.reuse_ages);
  add_ages("eviction", stats.eviction_ages);
  return text;
}

std::string_view name(LostHit reason) noexcept {
  switch (reason) {
    case LostHit::no_checkpoint:
      return "no_checkpoint";
    case LostHit::off_grid:
      return "off_grid";
    case LostHit::evicted:
      return "evicted";
    case LostHit::too_few_tokens:
      return "too_few_tokens";
    case LostHit::locked_pool:
      return "locked_pool";
    case LostHit::evicted_kv:
      return "evicted_kv";
    case LostHit::never_stored:
      return "never_stored";
    case LostHit::tier_costs_more:
      return "tier_costs_more";
    case LostHit::tier_failed:
      return "tier_failed";
  }
  return "?";
}

}  // namespace stateport
