// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet.hpp"

#include <stateport/core/model/error.hpp>

#include "caches/cache.hpp"
#include "workload/sequence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace stateport::replay {
namespace {

double longest_prompt_tokens(const Workload& workload) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < workload.size(); ++i) longest = std::max(longest, workload.request(i).input_tokens);
  return static_cast<double>(longest);
}

FleetOptions validated(const FleetOptions& options, const Crowd& crowd) {
  const auto require_time = [](const char* name, double value) {
    require(std::isfinite(value) && value >= 0, name, fmt::format("{}", value), "must be finite and not negative");
  };
  require(options.nodes >= 1 && options.nodes <= std::numeric_limits<std::int32_t>::max(), "nodes",
          static_cast<std::int64_t>(options.nodes), "1 to 2^31 - 1");
  require(options.imbalance_tokens >= 0, "imbalance_tokens", options.imbalance_tokens, "must not be negative");
  require(options.remote_bytes >= 0, "remote_bytes", options.remote_bytes, "must not be negative");
  require_time("event_delay_s", options.event_delay_s);
  require_time("mean_life_s", options.mean_life_s);
  require_time("down_s", options.down_s);
  check_tier_speeds(options.node.speeds, "speeds");
  require(options.node.speeds.tokens_per_s > 0, "speeds.tokens_per_s",
          fmt::format("{}", options.node.speeds.tokens_per_s), "must be more than 0");
  const double longest_s = longest_prompt_tokens(crowd.workload) / options.node.speeds.tokens_per_s;
  require(options.mean_life_s == 0 || options.mean_life_s >= longest_s, "mean_life_s",
          fmt::format("{}", options.mean_life_s),
          fmt::format("computing the longest prompt takes {} s, which few nodes would live", longest_s));
  require(options.node.block_size_tokens == crowd.workload.block_size_tokens(), "node.block_size_tokens",
          options.node.block_size_tokens, "must be that of the workload");
  const ScheduleOptions& schedule = options.node.schedule;
  require(schedule.concurrency >= 1 && schedule.concurrency == options.node.cache.max_requests,
          "node.schedule.concurrency", schedule.concurrency, "at least 1, and max_requests of the cache");
  require(schedule.concurrency == 1 || schedule.step_tokens_max >= options.node.block_size_tokens,
          "node.schedule.step_tokens_max", schedule.step_tokens_max, "must be at least a block");
  require(options.route != Route::prefix || options.node.cache.events, "route", name(options.route),
          "needs caches with events");
  return options;
}

}  // namespace

std::int64_t FleetCounts::all_hit_tokens() const noexcept {
  return std::accumulate(hit_tokens.begin(), hit_tokens.end(), std::int64_t{0});
}

Fleet::Fleet(const Crowd& crowd, const FleetOptions& options)
    : crowd_(crowd),
      options_(validated(options, crowd)),
      remote_(options.remote_bytes),
      router_(make_router(options.route, options.nodes, options.imbalance_tokens)),
      random_(options.seed),
      loads_(options.nodes),
      nodes_up_(options.nodes),
      sent_(crowd.workload.size()),
      uncached_free_s_(options.nodes, 0),
      hasher_({.kind = options.node.cache.hash, .block_size_tokens = tokens_per_block}) {
  for (std::uint32_t node = 0; node < options.nodes; ++node) {
    nodes_.push_back(std::make_unique<FleetNode>(options_.node, crowd_, node, clock_, remote_));
    set_failure(0, node);
  }
}

void Fleet::run(const Continue& keep_going) {
  const std::size_t requests = crowd_.workload.size();
  std::size_t next = 0;
  while (std::cmp_less(counts_.requests, requests)) {
    const double arrival_s =
        next < requests ? crowd_.workload.request(next).arrival_s() : std::numeric_limits<double>::infinity();
    const std::int64_t served_before = counts_.requests;
    if (!clock_.empty() && clock_.next_s() <= arrival_s)
      happen(clock_.pop());
    else
      arrive(next++);
    if (counts_.requests > served_before && !keep_going(counts_.requests)) return;
  }
}

void Fleet::arrive(std::size_t request) {
  send(crowd_.workload.request(request).arrival_s(), request);
  const Request& wanted = crowd_.workload.request(request);
  double& free_s = uncached_free_s_[sent_[request].node];
  free_s = std::max(free_s, wanted.arrival_s()) +
           static_cast<double>(wanted.input_tokens) / options_.node.speeds.tokens_per_s;
  counts_.uncached_first_token_s.push_back(free_s - wanted.arrival_s());
}

void Fleet::send(double now_s, std::size_t request) {
  if (nodes_up_ == 0) return stranded_.push_back(request);
  RoutedPrompt prompt{.conversation = crowd_.conversations[request], .prefixes = {}};
  if (router_->hears_events()) {
    tell_news(now_s);
    name_prefixes(request);
    prompt.prefixes = hashes_.prefixes;
  }
  const RoutePick pick = router_->pick(prompt, loads_);
  const auto node = static_cast<std::uint32_t>(pick.node);
  const std::int64_t expected =
      crowd_.workload.request(request).input_tokens - pick.hit_blocks * options_.node.block_size_tokens;
  sent_[request] = {.node = node, .tokens = expected};
  loads_[node].waiting_tokens += expected;
  nodes_[node]->add(now_s, request);
  collect_news(now_s, node);
}

/// Those of all blocks before the last token, which must be computed.
void Fleet::name_prefixes(std::size_t request) {
  const std::span<const BlockIdentity> identities = crowd_.workload.blocks(request);
  const std::int64_t seen = tokens_seen(std::ssize(identities), crowd_.workload.request(request).input_tokens,
                                        options_.node.block_size_tokens);
  const Sequence names(tokens_per_block, seen, identities, request);
  tokens_.clear();
  for (std::int64_t at = 0; at + 1 < seen; ++at) tokens_.push_back(names.token(at));
  hasher_.hash_prompt(tokens_, {}, hashes_);
}

void Fleet::happen(const FleetEvent& event) {
  FleetNode& node = *nodes_[event.node];
  if (event.life != node.life()) return;
  switch (event.kind) {
    case FleetEvent::Kind::transfer_ended:
      node.transfer_ended(event.at_s, event.transfer);
      break;
    case FleetEvent::Kind::pass_ended:
      for (const ServedPrompt& prompt : node.pass_ended(event.at_s)) served(event.node, prompt, event.at_s);
      break;
    case FleetEvent::Kind::node_fails:
      return fail(event.at_s, event.node);
    case FleetEvent::Kind::node_returns:
      come_back(event.at_s, event.node);
      break;
  }
  collect_news(event.at_s, event.node);
}

void Fleet::served(std::uint32_t node, const ServedPrompt& prompt, double now_s) {
  const Request& request = crowd_.workload.request(prompt.request);
  loads_[node].waiting_tokens -= sent_[prompt.request].tokens;
  ++counts_.requests;
  counts_.requests_hit += prompt.hit_tokens() > 0;
  counts_.input_tokens += request.input_tokens;
  counts_.hit_tokens[static_cast<std::size_t>(Medium::device)] += prompt.device_hit_tokens;
  counts_.hit_tokens[static_cast<std::size_t>(prompt.medium)] += prompt.loaded_tokens;
  if (prompt.lost) ++counts_.lost_hits[static_cast<std::size_t>(*prompt.lost)];
  counts_.failed_loads += prompt.load_failed;
  counts_.waited_s += prompt.waited_s;
  counts_.end_s = now_s;
  counts_.first_token_s.push_back(now_s - request.arrival_s());
}

void Fleet::fail(double now_s, std::uint32_t node) {
  const std::vector<std::size_t> unserved = nodes_[node]->fail();
  loads_[node] = {.up = false};
  --nodes_up_;
  router_->forget(node);
  clock_.set({.at_s = now_s + options_.down_s,
              .kind = FleetEvent::Kind::node_returns,
              .node = node,
              .life = nodes_[node]->life()});
  counts_.rerouted_requests += std::ssize(unserved);
  for (const std::size_t request : unserved) send(now_s, request);
}

void Fleet::come_back(double now_s, std::uint32_t node) {
  nodes_[node]->restart(now_s);
  loads_[node] = {};
  ++nodes_up_;
  set_failure(now_s, node);
  for (const std::size_t request : std::exchange(stranded_, {})) send(now_s, request);
}

void Fleet::set_failure(double now_s, std::uint32_t node) {
  if (options_.mean_life_s <= 0) return;
  const double uniform = std::ldexp(static_cast<double>((random_() >> 11) + 1), -53);  // in (0, 1]
  clock_.set({.at_s = now_s - options_.mean_life_s * std::log(uniform),
              .kind = FleetEvent::Kind::node_fails,
              .node = node,
              .life = nodes_[node]->life()});
}

void Fleet::collect_news(double now_s, std::uint32_t node) {
  if (!router_->hears_events()) return;
  events_.clear();
  nodes_[node]->take_events(events_);
  for (const CacheEvent& event : events_)
    news_.push_back(
        {.at_s = now_s + options_.event_delay_s, .node = node, .life = nodes_[node]->life(), .event = event});
}

void Fleet::tell_news(double now_s) {
  for (; !news_.empty() && news_.front().at_s <= now_s; news_.pop_front())
    if (nodes_[news_.front().node]->life() == news_.front().life)
      router_->hear(news_.front().node, news_.front().event);
}

FleetCounts Fleet::counts() const {
  FleetCounts counts = counts_;
  for (const auto& node : nodes_) counts.nodes.push_back(node->counts());
  counts.remote = remote_.counts();
  counts.remote_resident_bytes = remote_.bytes();
  return counts;
}

void Fleet::check_invariants() const {
  for (const auto& node : nodes_) node->check_invariants();
  remote_.check_invariants();
  std::int64_t stored = 0;
  for (const auto& node : nodes_) stored += node->counts().stored_bytes;
  require_invariant(stored == remote_.counts().added_bytes, "Fleet", "bytes in the remote store that no node stored");
  if (std::cmp_less(counts_.requests, crowd_.workload.size())) return;
  require_invariant(std::ranges::all_of(loads_, [](const NodeLoad& load) { return load.waiting_tokens == 0; }), "Fleet",
                    "something waits after all was served");
}

}  // namespace stateport::replay
