// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_study.hpp"

#include <stateport/core/model/error.hpp>

#include "caches/served_cache.hpp"
#include "report/figures.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace stateport::replay {
namespace {

double quotient(double part, double whole) {
  return whole == 0 ? 0 : part / whole;
}
double quotient(std::int64_t part, std::int64_t whole) {
  return quotient(static_cast<double>(part), static_cast<double>(whole));
}

void add_hit_rates(const FleetCounts& counts, std::vector<FleetFigure>& figures) {
  std::int64_t awaited = 0;
  for (const NodeCounts& node : counts.nodes) awaited += node.awaited_tokens;
  const auto rate = [&](Medium medium) {
    return quotient(counts.hit_tokens[static_cast<std::size_t>(medium)], counts.input_tokens);
  };
  figures.push_back({"token_hit_rate", quotient(counts.all_hit_tokens(), counts.input_tokens)});
  figures.push_back({"device_token_hit_rate", rate(Medium::device)});
  figures.push_back({"awaited_token_rate", quotient(awaited, counts.input_tokens)});
  figures.push_back({"host_token_hit_rate", rate(Medium::host)});
  figures.push_back({"file_token_hit_rate", rate(Medium::file)});
  figures.push_back({"remote_token_hit_rate", rate(Medium::remote)});
  figures.push_back({"request_hit_rate", quotient(counts.requests_hit, counts.requests)});
}

void add_times(const FleetCounts& counts, double tokens_per_s, std::vector<FleetFigure>& figures) {
  const auto requests = static_cast<double>(counts.requests);
  const double saved_s = static_cast<double>(counts.all_hit_tokens()) / tokens_per_s - counts.waited_s;
  figures.push_back({"first_token_p50_s", quantile(counts.first_token_s, 0.5)});
  figures.push_back({"first_token_p90_s", quantile(counts.first_token_s, 0.9)});
  figures.push_back({"first_token_p99_s", quantile(counts.first_token_s, 0.99)});
  figures.push_back({"uncached_first_token_p50_s", quantile(counts.uncached_first_token_s, 0.5)});
  figures.push_back({"uncached_first_token_p90_s", quantile(counts.uncached_first_token_s, 0.9)});
  figures.push_back({"uncached_first_token_p99_s", quantile(counts.uncached_first_token_s, 0.99)});
  figures.push_back({"saved_per_request_s", quotient(saved_s, requests)});
  figures.push_back({"waited_per_request_s", quotient(counts.waited_s, requests)});
}

void add_links(const FleetCounts& counts, std::vector<FleetFigure>& figures) {
  NodeCounts sum;
  std::int64_t most_bytes = 0;
  double most_busy_s = 0;
  std::int64_t most_requests = 0;
  for (const NodeCounts& node : counts.nodes) {
    sum.link_bytes += node.link_bytes;
    sum.link_busy_s += node.link_busy_s;
    sum.asked_images += node.asked_images;
    sum.found_images += node.found_images;
    sum.lost_images += node.lost_images;
    most_bytes = std::max(most_bytes, node.link_bytes);
    most_busy_s = std::max(most_busy_s, node.link_busy_s);
    most_requests = std::max(most_requests, node.requests);
  }
  const auto nodes = static_cast<double>(counts.nodes.size());
  figures.push_back({"link_bytes_mean", quotient(static_cast<double>(sum.link_bytes), nodes)});
  figures.push_back({"link_bytes_max", static_cast<double>(most_bytes)});
  figures.push_back({"link_busy_mean", quotient(sum.link_busy_s, nodes * counts.end_s)});
  figures.push_back({"link_busy_max", quotient(most_busy_s, counts.end_s)});
  figures.push_back({"busiest_node_load",
                     quotient(static_cast<double>(most_requests) * nodes, static_cast<double>(counts.requests))});
  figures.push_back({"asked_images_per_request", quotient(sum.asked_images, counts.requests)});
  figures.push_back({"found_images_per_request", quotient(sum.found_images, counts.requests)});
  figures.push_back({"lost_images_per_request", quotient(sum.lost_images, counts.requests)});
  figures.push_back({"failed_load_rate", quotient(counts.failed_loads, counts.requests)});
  figures.push_back({"rerouted_rate", quotient(counts.rerouted_requests, counts.requests)});
  figures.push_back({"stored_bytes_per_request", quotient(counts.remote.added_bytes, counts.requests)});
}

/// Bytes of the remote store that a node may remember: twice its share of the states and KV that all requests leave.
/// The limit bounds the memory of the simulation, and hardly changes its hits: the node asks for a forgotten image
/// again.
std::int64_t remembered_bytes(const Budget& node, const Crowd& crowd, std::int64_t nodes) {
  constexpr std::int64_t states_of_request = 5;
  constexpr std::int64_t shares = 2;
  const Workload& workload = crowd.workload;
  const auto share = [&](std::int64_t all) { return std::min(all, shares * (all / nodes + 1)); };
  const std::int64_t blocks = share(workload.distinct_blocks()) + workload.longest_blocks();
  const std::int64_t states = states_of_request * (share(static_cast<std::int64_t>(workload.size())) + 1);
  return blocks * node.block_bytes() + states * node.state_bytes;
}

/// A cache for the requests that a node has in flight, whose tokens it counts as request_cache_options() says. Those
/// that run may have KV beyond the budget.
void set_schedule(const ScheduleOptions& schedule, std::int64_t block_size_tokens, RequestCacheOptions& cache) {
  const auto seen = [&](std::int64_t tokens) {
    return (tokens * tokens_per_block + block_size_tokens - 1) / block_size_tokens;
  };
  const std::int64_t longest = (cache.max_request_tokens + tokens_per_block - 1) / tokens_per_block * tokens_per_block;
  cache.max_requests = schedule.concurrency;
  cache.kv_tokens += (schedule.concurrency - 1) * longest;
  cache.share_running = schedule.share_running;
  cache.share_running.least_tokens = seen(schedule.share_running.least_tokens);
}

/// Means of the samples so far, and the sums for their errors.
class Means {
 public:
  void add(const std::vector<FleetFigure>& figures) {
    ++samples_;
    sums_.resize(figures.size(), 0);
    squares_.resize(figures.size(), 0);
    if (samples_ == 1) first_ = figures;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const double off = figures[i].value - first_[i].value;  // so that little is lost in the difference of large sums
      sums_[i] += off;
      squares_[i] += off * off;
    }
  }
  [[nodiscard]] std::vector<FleetFigure> take() const {
    std::vector<FleetFigure> figures = first_;
    const double n = samples_;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const double mean_off = sums_[i] / n;
      figures[i].value += mean_off;
      if (samples_ > 1) figures[i].error = std::sqrt(std::max(squares_[i] / n - mean_off * mean_off, 0.0) / (n - 1));
    }
    return figures;
  }

 private:
  std::int32_t samples_ = 0;
  std::vector<FleetFigure> first_;
  std::vector<double> sums_;
  std::vector<double> squares_;
};

}  // namespace

const FleetFigure& figure(const std::vector<FleetFigure>& figures, const char* name) {
  const auto found = std::ranges::find(figures, std::string_view(name),
                                       [](const FleetFigure& each) { return std::string_view(each.name); });
  require_invariant(found != figures.end(), "FleetFigure", name);
  return *found;
}

std::vector<FleetFigure> figures_of(const FleetCounts& counts, double tokens_per_s) {
  std::vector<FleetFigure> figures;
  add_hit_rates(counts, figures);
  add_times(counts, tokens_per_s, figures);
  add_links(counts, figures);
  return figures;
}

FleetOptions fleet_options(const FleetQuestion& question, const Crowd& crowd, Route route) {
  const std::size_t nodes = question.is_sampled() ? question.sample_nodes : question.nodes;
  const double part = static_cast<double>(nodes) / static_cast<double>(question.nodes);
  const std::int64_t remote_bytes = std::llround(static_cast<double>(question.remote_bytes) * part);
  Budget node = question.node;
  node.remote_bytes = std::min(remote_bytes, remembered_bytes(node, crowd, static_cast<std::int64_t>(nodes)));
  node.write_through = remote_bytes > 0 && !question.write_back;
  const auto cache = budget_cache_options(question.policy, node, question.cost, crowd.workload, route == Route::prefix);
  RequestCacheOptions served = request_cache_options(cache);
  set_schedule(question.schedule, node.block_size_tokens, served);
  return {.node = {.cache = served,
                   .block_size_tokens = node.block_size_tokens,
                   .state_bytes = node.state_bytes,
                   .kv_bytes = node.block_bytes(),
                   .speeds = node.speeds,
                   .keeps_files = question.mean_life_s > 0 && node.file_bytes > 0,
                   .schedule = question.schedule},
          .nodes = nodes,
          .route = route,
          .imbalance_tokens = question.imbalance_tokens,
          .event_delay_s = question.event_delay_s,
          .remote_bytes = remote_bytes,
          .mean_life_s = question.mean_life_s,
          .down_s = question.down_s,
          .seed = question.seed};
}

std::vector<FleetAnswer> ask_fleet(const Workload& workload, const FleetQuestion& question,
                                   const std::function<bool()>& keep_going) {
  require(question.samples >= 1, "samples", question.samples, "at least 1");
  const Conversations conversations = find_conversations(workload);
  std::vector<FleetAnswer> answers;
  for (const Route route : question.routes) answers.push_back({.route = route, .figures = {}, .counts = {}});
  std::vector<Means> means(answers.size());
  const std::int32_t samples = question.is_sampled() ? question.samples : 1;
  const double part =
      question.is_sampled() ? static_cast<double>(question.sample_nodes) / static_cast<double>(question.nodes) : 1;
  for (std::int32_t sample = 0; sample < samples; ++sample) {
    FleetQuestion asked = question;
    asked.seed = question.seed + static_cast<std::uint64_t>(sample);
    const Crowd crowd = make_crowd(workload, conversations, {.load = question.load, .part = part, .seed = asked.seed});
    for (std::size_t i = 0; i < answers.size(); ++i) {
      Fleet fleet(crowd, fleet_options(asked, crowd, answers[i].route));
      bool going = true;
      fleet.run([&](std::int64_t) { return going = keep_going(); });
      if (!going) return {};
      fleet.check_invariants();
      FleetCounts counts = fleet.counts();
      means[i].add(figures_of(counts, question.node.speeds.tokens_per_s));
      if (sample == 0) answers[i].counts = std::move(counts);
    }
  }
  for (std::size_t i = 0; i < answers.size(); ++i) answers[i].figures = means[i].take();
  return answers;
}

}  // namespace stateport::replay
