// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/stats/cache_stats.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace stateport {
namespace {

double per_cent(double part, double whole) {
  return whole == 0 ? 0 : 100 * part / whole;
}

void add_header(std::string& text, std::string_view prefix, std::string_view metric, std::string_view type,
                std::string_view help) {
  fmt::format_to(std::back_inserter(text), "# HELP {0}_{1} {3}\n# TYPE {0}_{1} {2}\n", prefix, metric, type, help);
}

template <class Value>
void add_counter(std::string& text, std::string_view prefix, std::string_view metric, std::string_view help,
                 Value value) {
  add_header(text, prefix, metric, "counter", help);
  fmt::format_to(std::back_inserter(text), "{}_{} {}\n", prefix, metric, value);
}

template <class Member>
void add_losses(std::string& text, std::string_view prefix, std::string_view metric, std::string_view help,
                const CacheStats& stats, Member member) {
  add_header(text, prefix, metric, "counter", help);
  for (int reason = 0; reason < lost_hit_count; ++reason) {
    const auto lost = static_cast<LostHit>(reason);
    fmt::format_to(std::back_inserter(text), "{}_{}{{reason=\"{}\"}} {}\n", prefix, metric, name(lost),
                   stats.of(lost).*member);
  }
}

void add_histogram(std::string& text, std::string_view prefix, std::string_view metric, std::string_view help,
                   const AgeHistogram& ages) {
  add_header(text, prefix, metric, "histogram", help);
  std::int64_t below = 0;
  for (int bucket = 0; bucket + 1 < AgeHistogram::buckets; ++bucket) {
    below += ages.count(bucket);
    fmt::format_to(std::back_inserter(text), "{}_{}_bucket{{le=\"{}\"}} {}\n", prefix, metric,
                   AgeHistogram::upper_s(bucket), below);
  }
  fmt::format_to(std::back_inserter(text), "{0}_{1}_bucket{{le=\"+Inf\"}} {2}\n{0}_{1}_sum {3}\n{0}_{1}_count {2}\n",
                 prefix, metric, ages.total(), ages.sum_s());
}

}  // namespace

void AgeHistogram::add(double age_s) noexcept {
  const double age = std::max(age_s, 0.0);
  int bucket = 0;
  while (bucket + 1 < buckets && age >= upper_s(bucket)) ++bucket;
  ++counts_[static_cast<std::size_t>(bucket)];
  ++total_;
  sum_s_ += age;
}

double AgeHistogram::upper_s(int bucket) noexcept {
  return bucket + 1 < buckets ? std::ldexp(1.0, bucket) : std::numeric_limits<double>::infinity();
}

double AgeHistogram::quantile_s(double part) const noexcept {
  if (total_ == 0) return 0;
  std::int64_t below = 0;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    below += count(bucket);
    if (static_cast<double>(below) >= part * static_cast<double>(total_)) return upper_s(bucket);
  }
  return upper_s(buckets - 1);
}

void CacheStats::count_request(std::int64_t prompt_tokens_of_request, std::int64_t hit_tokens_of_request) noexcept {
  ++requests;
  requests_hit += hit_tokens_of_request > 0;
  prompt_tokens += prompt_tokens_of_request;
  hit_tokens += hit_tokens_of_request;
  hit_flops += cost.of(0, hit_tokens_of_request);
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
                   what, ages.total(), ages.quantile_s(0.5), ages.quantile_s(0.9));
  };
  add_ages("reuse", stats.reuse_ages);
  add_ages("eviction", stats.eviction_ages);
  return text;
}

std::string to_prometheus(const CacheStats& stats, std::string_view prefix) {
  std::string text;
  add_counter(text, prefix, "requests_total", "Requests served.", stats.requests);
  add_counter(text, prefix, "requests_hit_total", "Requests that continued from a state.", stats.requests_hit);
  add_counter(text, prefix, "prompt_tokens_total", "Tokens of all prompts.", stats.prompt_tokens);
  add_counter(text, prefix, "hit_tokens_total", "Tokens that were not computed again.", stats.hit_tokens);
  add_losses(text, prefix, "lost_requests_total", "Requests that lost a part of their prompt, by reason.", stats,
             &Loss::requests);
  add_losses(text, prefix, "lost_tokens_total", "Tokens that were computed again, by reason.", stats, &Loss::tokens);
  add_losses(text, prefix, "lost_flops_total", "FLOPs of these tokens, by reason.", stats, &Loss::flops);
  if (stats.awaited_tokens > 0)
    add_counter(text, prefix, "awaited_tokens_total", "Of the hit tokens, those that requests waited for.",
                stats.awaited_tokens);
  if (stats.forks > 0)
    add_counter(text, prefix, "forks_total", "Forks of requests, which are not among these.", stats.forks);
  if (stats.breakpoints_kept + stats.breakpoints_refused > 0) {
    add_counter(text, prefix, "breakpoints_kept_total", "Named positions of prompts that got a checkpoint.",
                stats.breakpoints_kept);
    add_counter(text, prefix, "breakpoints_refused_total", "Named positions of prompts that got no checkpoint.",
                stats.breakpoints_refused);
  }
  add_histogram(text, prefix, "reuse_age_seconds", "Time since the last use of a state that a request continued from.",
                stats.reuse_ages);
  add_histogram(text, prefix, "eviction_age_seconds", "Time since the last use of a state that was evicted.",
                stats.eviction_ages);
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
