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

/// What reading the clock adds to an interval: the median of many empty ones. Up to a tenth of a short request.
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

double ReplayCounts::token_hit_rate() const noexcept {
  return ratio(hit_tokens, input_tokens);
}
double ReplayCounts::request_hit_rate() const noexcept {
  return ratio(requests_hit, requests);
}

Replayer::Replayer(const Workload& workload, ReplayCache& cache, StateMover& mover, CheckpointMode mode,
                   const std::optional<ComputeCost>& explain)
    : workload_(workload),
      cache_(cache),
      mover_(mover),
      mode_(mode),
      explain_(explain.has_value()),
      clock_read_ns_(clock_read_ns()) {
  counts_.stats.cost = explain.value_or(ComputeCost{});
  counts_.bookkeeping_ns.reserve(workload.size());
  counts_.bookkeeping_ns_per_block.reserve(workload.size());
  counts_.hashing_ns_per_block.reserve(workload.size());
  const auto longest = static_cast<std::size_t>(workload.longest_blocks());
  contents_.reserve(longest + 1);
  depths_.reserve(longest);
  checkpoints_.reserve(longest);
  placed_.reserve(longest);
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
  const auto full_blocks = static_cast<std::int32_t>(identities.size());
  name_contents(identities);
  constexpr double ms_of_second = 1000;
  const double now_s = static_cast<double>(request.arrival_ms) / ms_of_second;
  cache_.set_clock(now_s);
  cache_.set_hint(request.hint);

  const Clock::time_point t0 = Clock::now();
  cache_.prepare(identities, request.input_tokens);
  const Clock::time_point t1 = Clock::now();
  const Hit hit = cache_.begin();
  choose_depths(mode_, hit.hit_blocks, hit.matched_blocks, full_blocks, depths_);
  const Clock::time_point t2 = Clock::now();
  count_hit(request, hit);
  const auto prefixes = std::span(contents_).subspan(1);
  if (explain_)
    history_.count(prefixes, request.input_tokens, workload_.block_size_tokens(), hit, now_s, counts_.stats);
  start(hit);

  const Clock::time_point t3 = Clock::now();
  cache_.place(depths_, checkpoints_);
  const Clock::time_point t4 = Clock::now();
  placed_.clear();
  for (const Checkpoint& checkpoint : checkpoints_)
    placed_.push_back({contents_[static_cast<std::size_t>(checkpoint.depth_blocks)], checkpoint.slot});
  if (explain_) history_.add(prefixes, placed_, now_s);
  mover_.advance(contents_[static_cast<std::size_t>(hit.hit_blocks)], contents_.back(), placed_);

  const Clock::time_point t5 = Clock::now();
  cache_.finish();
  const Clock::time_point t6 = Clock::now();
  if (full_blocks == 0) return;
  constexpr std::int64_t intervals = 3;
  const std::int64_t bookkeeping =
      std::max<std::int64_t>(0, nanoseconds((t2 - t1) + (t4 - t3) + (t6 - t5)) - intervals * clock_read_ns_);
  counts_.bookkeeping_ns.push_back(bookkeeping);
  counts_.bookkeeping_ns_per_block.push_back(ratio(bookkeeping, full_blocks));
  counts_.hashing_ns_per_block.push_back(ratio(nanoseconds(t1 - t0), full_blocks));
}

void Replayer::name_contents(std::span<const BlockIdentity> identities) {
  contents_.assign(1, empty_content);
  for (const BlockIdentity identity : identities) contents_.push_back(append_block(contents_.back(), identity));
}

void Replayer::count_hit(const Request& request, const Hit& hit) {
  ++counts_.requests;
  counts_.requests_hit += hit.hit_blocks > 0;
  counts_.input_tokens += request.input_tokens;
  counts_.hit_tokens += hit.hit_blocks * workload_.block_size_tokens();
  if (hit.lost) ++counts_.lost_hits[static_cast<std::size_t>(*hit.lost)];
}

void Replayer::start(const Hit& hit) {
  const std::uint64_t wrong_words = mover_.start(hit.slot, contents_[static_cast<std::size_t>(hit.hit_blocks)]);
  if (wrong_words == 0 || !counts_.first_mismatch.empty()) return;
  counts_.first_mismatch = fmt::format(
      "request {}: what was restored from slot {} is not the state after {} blocks of its prompt ({} wrong "
      "16-byte words)",
      counts_.requests - 1, hit.slot.value(), hit.hit_blocks, wrong_words);
}

}  // namespace stateport::replay
