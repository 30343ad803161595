// SPDX-License-Identifier: Apache-2.0
#include "caches/replayer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

/// The time that reading the clock adds to an interval: the median of many empty ones. Up to a tenth of a short
/// request.
std::int64_t clock_read_ns() {
  std::vector<std::int64_t> empty(1001);
  for (std::int64_t& interval : empty) {
    const Clock::time_point begin = Clock::now();
    interval = nanoseconds(Clock::now() - begin);
  }
  const auto middle = empty.begin() + static_cast<std::ptrdiff_t>(empty.size() / 2);
  std::ranges::nth_element(empty, middle);
  return *middle;
}

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

double TenantCounts::token_hit_rate() const noexcept {
  return ratio(hit_tokens, input_tokens);
}

void ReplayCounts::count_tenant(const Request& request, std::int64_t reused_tokens) noexcept {
  TenantCounts& counts = tenants[static_cast<std::size_t>(request.tenant)];
  ++counts.requests;
  counts.input_tokens += request.input_tokens;
  counts.hit_tokens += reused_tokens;
}

double ReplayCounts::token_hit_rate() const noexcept {
  return ratio(hit_tokens, input_tokens);
}
double ReplayCounts::request_hit_rate() const noexcept {
  return ratio(requests_hit, requests);
}

Replayer::Replayer(const Workload& workload, ReplayCache& cache, PassMover& mover,
                   const std::optional<ComputeCost>& explain, std::int32_t history)
    : workload_(workload),
      cache_(cache),
      mover_(mover),
      explain_(explain.has_value()),
      clock_read_ns_(clock_read_ns()),
      writer_(history) {
  counts_.stats.cost = explain.value_or(ComputeCost{});
  cache_.set_mover(mover_);
  counts_.bookkeeping_ns.reserve(workload.size());
  counts_.bookkeeping_ns_per_block.reserve(workload.size());
  counts_.hashing_ns_per_block.reserve(workload.size());
}

void Replayer::run(const Continue& keep_going) {
  const Clock::time_point begin = Clock::now();
  for (std::size_t index = 0; index < workload_.size(); ++index) {
    serve(index);
    if (!keep_going(counts_.requests)) break;
  }
  counts_.stats.eviction_ages = cache_.eviction_ages();
  counts_.wall_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Replayer::serve(std::size_t index) {
  const Request& request = workload_.request(index);
  const std::span<const BlockIdentity> identities = workload_.blocks(index);
  const std::int64_t seen = tokens_seen(std::ssize(identities), request.input_tokens, workload_.block_size_tokens());
  names_ = Sequence(tokens_per_block, seen, identities, index);
  const Clock::duration hashing = cache_.prepare(request, names_);

  const Clock::time_point t0 = Clock::now();
  const Hit hit = cache_.begin();
  const PassPlan plan = cache_.plan();
  const Clock::time_point t1 = Clock::now();
  const double now_s = request.arrival_s();
  const auto prefixes = names_.boundaries().subspan(1);
  count_hit(request, hit);
  if (explain_)
    history_.count(prefixes, request.input_tokens, workload_.block_size_tokens(), hit, now_s, counts_.stats);
  if (!plan.rows.empty()) run_pass(plan, hit);

  const Clock::time_point t2 = Clock::now();
  const PassCommit commit = plan.rows.empty() ? PassCommit{} : cache_.commit();
  const Clock::time_point t3 = Clock::now();
  if (!plan.rows.empty()) mover_.after(commit);
  const Clock::time_point t4 = Clock::now();
  cache_.finish();
  const Clock::time_point t5 = Clock::now();
  if (explain_) history_.add(prefixes, cache_.stored(), now_s);
  note_times(hashing, (t1 - t0) + (t3 - t2) + (t5 - t4), identities.size());
}

void Replayer::note_times(Clock::duration hashing, Clock::duration calls, std::size_t blocks) {
  if (blocks == 0) return;
  constexpr std::int64_t intervals = 3;
  const std::int64_t bookkeeping = std::max<std::int64_t>(0, nanoseconds(calls) - intervals * clock_read_ns_);
  const auto per_block = [&](std::int64_t ns) { return ratio(ns, static_cast<std::int64_t>(blocks)); };
  counts_.bookkeeping_ns.push_back(bookkeeping);
  counts_.bookkeeping_ns_per_block.push_back(per_block(bookkeeping));
  counts_.hashing_ns_per_block.push_back(per_block(nanoseconds(hashing)));
}

void Replayer::count_hit(const Request& request, const Hit& hit) {
  ++counts_.requests;
  counts_.requests_hit += hit.hit_blocks > 0;
  counts_.input_tokens += request.input_tokens;
  const std::int64_t hit_tokens = hit.hit_blocks * workload_.block_size_tokens();
  counts_.hit_tokens += hit_tokens;
  counts_.recorded.add(request, hit_tokens);
  counts_.count_tenant(request, hit_tokens);
  if (hit.lost) ++counts_.lost_hits[static_cast<std::size_t>(*hit.lost)];
}

void Replayer::run_pass(const PassPlan& plan, const Hit& hit) {
  mover_.before(plan);
  const RowPlan& row = plan.rows.front();
  const RowState& state = row.states.front();
  if (hit.hit_blocks > 0) {
    const std::uint64_t wrong_words = mover_.check(state, writer_.window_of(names_, row.start), true);
    if (wrong_words > 0 && counts_.first_mismatch.empty())
      counts_.first_mismatch = fmt::format(
          "request {}: the restored content of slot {} is not the state after {} blocks of its prompt ({} wrong "
          "16-byte "
          "words)",
          counts_.requests - 1, state.recurrent_source().value(), hit.hit_blocks, wrong_words);
  }
  writer_.clear();
  writer_.add(row, state, 0, names_);
  mover_.forward(writer_.forward());
}

}  // namespace stateport::replay
