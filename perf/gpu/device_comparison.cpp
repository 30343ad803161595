// SPDX-License-Identifier: Apache-2.0
#include "device_comparison.hpp"

#include <stateport/backends/device.hpp>
#include <stateport/backends/transfer.hpp>

#include "device_time.hpp"
#include "slot_workload.hpp"

#include <algorithm>
#include <utility>

namespace stateport::perf {
namespace {

SlotCopy contiguous_copy(int round) {
  const int first = round % disjoint_rounds * 2;
  return SlotCopy::whole(first, first + 1);
}

}  // namespace

bool is_dry_run() {
  return backend_info().host_reads_device_memory;
}
std::size_t limit_bytes() {
  return sized(std::size_t{1} << 30, std::size_t{1} << 16);
}

StateSpec layers_of_two_tensors(std::int32_t layers) {
  if (is_dry_run()) return StateSpec::uniform(2, {.window = 4, .dim = 1024}, {.shape = {2, 16, 16}});
  return StateSpec::uniform(layers, {.window = 4, .dim = 10240}, {.shape = {32, 128, 128}});
}

ContiguousCopy::ContiguousCopy(std::size_t bytes) : bytes_(bytes / 4096 * 4096) {
  memory_ = Buffer(resource_, 2 * disjoint_rounds * bytes_);
  const StateTensorView tensor{.spec = {.type = ElementType::int8, .shape = {static_cast<std::int64_t>(bytes_), 1, 1}},
                               .base = memory_.as<std::byte>(),
                               .slot_stride_bytes = static_cast<std::int64_t>(bytes_)};
  store_ = std::make_unique<StateStore>(StateStore::view({&tensor, 1}, 2 * disjoint_rounds));
  copier_.emplace(*store_);
  fill_randomly(*store_);
  std::vector<std::vector<WrittenRange>> written;
  for (int round = 0; round < disjoint_rounds; ++round)
    written.push_back({{.dst = destination(round), .expected = source(round), .bytes = bytes_}});
  checks_.emplace(std::move(written));
}

void ContiguousCopy::memcpy_call(const Stream& stream, int round) const {
  copy_bytes(stream, destination(round), source(round), bytes_);
}
void ContiguousCopy::kernel(const Stream& stream, int round) {
  const SlotCopy slots = contiguous_copy(round);
  copier_->copy_slots(stream, {&slots, 1});
}
std::byte* ContiguousCopy::source(int round) const {
  return store_->tensors()[0].slot_data(SlotId{contiguous_copy(round).src_slot});
}
std::byte* ContiguousCopy::destination(int round) const {
  return store_->tensors()[0].slot_data(SlotId{contiguous_copy(round).dst_slot});
}

double DeviceTimer::time_ns(const Contender& contender, int round) {
  const DeviceTime time = device_time(stream_, [&] { contender.run(round); });
  if (time.host_in_time) ++host_in_time_[contender.name];
  return time.ns;
}

double DeviceTimer::checked_time_ns(const Contender& contender, int round, RoundChecks& checks, const Before& before) {
  checks.prepare(stream_, round);
  if (before) before(round);
  if (!sweep_) sweep_.emplace(limit_bytes());
  sweep_->run(stream_);
  const double ns = time_ns(contender, round);
  if (!checks.hold(stream_, round)) wrong_ = contender.name;
  return ns;
}

void DeviceTimer::conclude(benchmark::State& state) const {
  for (const auto& [name, runs] : host_in_time_) state.counters[name + "_host_in_time"] = runs;
  if (!wrong_.empty()) state.SkipWithError((wrong_ + ": a destination holds other bytes than it should").c_str());
}

void report_limited(benchmark::State& state, const Stream& stream, std::vector<Contender> contenders, double bytes,
                    RoundChecks& checks, ContiguousCopy& limit, const DeviceTimer::Before& before) {
  const std::string big_memcpy = "big_memcpy", contiguous = "contiguous";
  contenders.push_back({big_memcpy, [&](int round) { limit.memcpy_call(stream, round); }});
  contenders.push_back({contiguous, [&](int round) { limit.kernel(stream, round); }});
  DeviceTimer timer(stream);
  const int rounds = sized(31, 2);
  const Comparison result = report(state, contenders, bytes, rounds, [&](const Contender& contender, int round) {
    if (contender.name == big_memcpy || contender.name == contiguous)
      return timer.checked_time_ns(contender, round, limit.checks());
    return timer.checked_time_ns(contender, round, checks, before);
  });
  timer.conclude(state);
  const std::size_t last = result.timings.size() - 1;
  const double limit_ns = std::min(result.timings[last].median_ns, result.timings[last - 1].median_ns);
  state.counters["limit_ns"] = limit_ns * bytes / limit.moved_bytes();
  state.counters["excess_ns"] = result.ours().median_ns - state.counters["limit_ns"];
}

void report_beside_empty(benchmark::State& state, const Stream& stream, const std::function<void()>& ours,
                         const std::function<void()>& empty) {
  const int rounds = sized(101, 2);  // they cost little
  DeviceTimer timer(stream);
  const Comparison result =
      report(state, {{"ours", [&](int) { ours(); }}, {"empty", [&](int) { empty(); }}}, 0, rounds,
             [&](const Contender& contender, int round) { return timer.time_ns(contender, round); });
  timer.conclude(state);
  state.counters["excess_ns"] = result.timings[0].median_ns - result.timings[1].median_ns;
}

}  // namespace stateport::perf
