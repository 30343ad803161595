// SPDX-License-Identifier: Apache-2.0
#include "stats/stats_text.hpp"

#include <cstdint>
#include <utility>

namespace stateport {
namespace {

template <class Member>
void add_losses(detail::PrometheusText& text, std::string_view metric, std::string_view help, const CacheStats& stats,
                Member member) {
  text.begin_counter(metric, help);
  for (int reason = 0; reason < lost_hit_count; ++reason) {
    const auto lost = static_cast<LostHit>(reason);
    text.add(stats.of(lost).*member, {{"reason", name(lost)}});
  }
}

}  // namespace

std::string to_prometheus(const CacheStats& stats, std::string_view prefix) {
  detail::PrometheusText text(prefix);
  add_stats(text, stats);
  return std::move(text).take();
}

void detail::add_stats(PrometheusText& text, const CacheStats& stats) {
  const auto add_counter = [&](std::string_view metric, std::string_view help, std::int64_t value) {
    text.begin_counter(metric, help);
    text.add(value);
  };
  add_counter("requests_total", "Requests served.", stats.requests);
  add_counter("requests_hit_total", "Requests that continued from a state.", stats.requests_hit);
  add_counter("prompt_tokens_total", "Tokens of all prompts.", stats.prompt_tokens);
  add_counter("hit_tokens_total", "Tokens that were not computed again.", stats.hit_tokens);
  add_losses(text, "lost_requests_total", "Requests that lost a part of their prompt, by reason.", stats,
             &Loss::requests);
  add_losses(text, "lost_tokens_total", "Tokens that were computed again, by reason.", stats, &Loss::tokens);
  add_losses(text, "lost_flops_total", "FLOPs of these tokens, by reason.", stats, &Loss::flops);
  if (stats.awaited_tokens > 0)
    add_counter("awaited_tokens_total", "Of the hit tokens, those that requests waited for.", stats.awaited_tokens);
  if (stats.forks > 0) add_counter("forks_total", "Forks of requests, which are not among these.", stats.forks);
  if (stats.breakpoints_kept + stats.breakpoints_refused > 0) {
    add_counter("breakpoints_kept_total", "Named positions of prompts that got a checkpoint.", stats.breakpoints_kept);
    add_counter("breakpoints_refused_total", "Named positions of prompts that got no checkpoint.",
                stats.breakpoints_refused);
  }
  text.begin_histogram("request_hit_tokens", "Hit tokens of each request.");
  text.add(stats.hit_depths);
  text.begin_histogram("request_lost_tokens", "Tokens of cached KV that each request computed again.");
  text.add(stats.loss_depths);
  text.begin_histogram("reuse_age_seconds", "Time since the last use of a state that a request continued from.");
  text.add(stats.reuse_ages);
  text.begin_histogram("eviction_age_seconds", "Time since the last use of a state that was evicted.");
  text.add(stats.eviction_ages);
}

}  // namespace stateport
