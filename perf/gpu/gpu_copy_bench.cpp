// SPDX-License-Identifier: Apache-2.0
// G1 to G8: do the copy kernels of a GPU run at the speed of its memory, and what does a launch cost beside its bytes?
// Peers in the same run and over the same chunks: a loop of async memcpy, the batched call, CUB, and a twin of the
// kernel without Kokkos (peers.hpp). Limit: the faster of one large memcpy and the kernel over one contiguous
// range. Times are the device's own, between events. Before each timed run its destinations are poisoned and the caches
// swept; after it every byte is compared.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "element_convert.hpp"
#include "peers.hpp"
#include "round_checks.hpp"
#include "slot_workload.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stateport::perf {
namespace {

constexpr int gpu_rounds = 31;
constexpr int disjoint_rounds = 4;  // so that a round finds nothing of itself in the caches

/// 24 layers of a 2 MiB recurrent and an 80 KiB conv tensor: 48 tensors.
StateSpec layers_of_two_tensors() {
  return StateSpec::uniform(24, {.window = 4, .dim = 10240}, {.shape = {32, 128, 128}});
}

/// Contiguous ranges of `bytes`, copied by one call.
class ContiguousCopy {
 public:
  explicit ContiguousCopy(std::size_t bytes) : bytes_(bytes / 4096 * 4096) {
    memory_ = Buffer(resource_, 2 * disjoint_rounds * bytes_);
    const StateTensorView tensor{
        .spec = {.type = ElementType::int8, .shape = {static_cast<std::int64_t>(bytes_), 1, 1}},
        .base = memory_.as<std::byte>(),
        .slot_stride_bytes = static_cast<std::int64_t>(bytes_)};
    store_ = std::make_unique<StateStore>(StateStore::view({&tensor, 1}, 2 * disjoint_rounds));
    fill_randomly(*store_);
    std::vector<std::vector<WrittenRange>> written;
    for (int round = 0; round < disjoint_rounds; ++round)
      written.push_back({{.dst = destination(round), .expected = source(round), .bytes = bytes_}});
    checks_.emplace(std::move(written));
  }
  void memcpy_call(const Stream& stream, int round) const {
    copy_bytes(stream, destination(round), source(round), bytes_);
  }
  void kernel(const Stream& stream, int round) const {
    const SlotCopy slots = copy(round);
    store_->copy(stream, {&slots, 1});
  }
  [[nodiscard]] double moved_bytes() const { return 2.0 * static_cast<double>(bytes_); }
  [[nodiscard]] RoundChecks& checks() { return *checks_; }

 private:
  static SlotCopy copy(int round) {
    const int first = round % disjoint_rounds * 2;
    return SlotCopy::whole(first, first + 1);
  }
  [[nodiscard]] std::byte* source(int round) const {
    return store_->tensors()[0].slot_data(SlotId{copy(round).src_slot});
  }
  [[nodiscard]] std::byte* destination(int round) const {
    return store_->tensors()[0].slot_data(SlotId{copy(round).dst_slot});
  }
  DeviceResource resource_;
  std::size_t bytes_;
  Buffer memory_;
  std::unique_ptr<StateStore> store_;
  std::optional<RoundChecks> checks_;
};

/// Times runs on the device and compares what each of them wrote.
class CheckedTimer {
 public:
  explicit CheckedTimer(const Stream& stream) : stream_(stream) {}

  double time_ns(const Contender& contender, int round, RoundChecks& checks) {
    checks.prepare(stream_, round);
    sweep_.run(stream_);
    const double ns = device_time_ns(stream_, [&] { contender.run(round); });
    if (!checks.hold(stream_, round)) wrong_ = contender.name;
    return ns;
  }
  /// Makes the benchmark fail when a run left other bytes than it should.
  void conclude(benchmark::State& state) const {
    if (!wrong_.empty()) state.SkipWithError((wrong_ + ": a destination holds other bytes than it should").c_str());
  }

 private:
  const Stream& stream_;
  CacheSweep sweep_;
  std::string wrong_;
};

/// A comparison in device time of ways to write what `checks` say; the two limits are added to it, scaled to `bytes` in
/// limit_ns.
void report_on(benchmark::State& state, const Stream& stream, std::vector<Contender> contenders, double bytes,
               RoundChecks& checks, ContiguousCopy& limit) {
  const std::string big_memcpy = "big_memcpy", contiguous = "contiguous";
  contenders.push_back({big_memcpy, [&](int round) { limit.memcpy_call(stream, round); }});
  contenders.push_back({contiguous, [&](int round) { limit.kernel(stream, round); }});
  CheckedTimer timer(stream);
  const Comparison result = report(state, contenders, bytes, gpu_rounds, [&](const Contender& contender, int round) {
    const bool is_limit = contender.name == big_memcpy || contender.name == contiguous;
    return timer.time_ns(contender, round, is_limit ? limit.checks() : checks);
  });
  timer.conclude(state);
  const std::size_t last = result.timings.size() - 1;
  const double limit_ns = std::min(result.timings[last].median_ns, result.timings[last - 1].median_ns);
  state.counters["limit_ns"] = limit_ns * bytes / limit.moved_bytes();
  state.counters["excess_ns"] = result.ours().median_ns - state.counters["limit_ns"];
}

std::vector<std::vector<WrittenRange>> destinations_of(const CopyWorkload& workload) {
  std::vector<std::vector<WrittenRange>> rounds;
  for (int round = 0; round < workload.rounds(); ++round) rounds.push_back(destinations(workload.chunks(round)));
  return rounds;
}

/// Rounds over `requests` slots each, from slot 0 on.
std::vector<std::vector<WrittenRange>> slots_in_rounds(const StateStore& written, const StateStore& expected,
                                                       const StateStore* before, std::int32_t requests) {
  std::vector<std::vector<WrittenRange>> rounds;
  for (std::int32_t round = 0; round < disjoint_rounds; ++round)
    rounds.push_back(slot_ranges(written, expected, before, round * requests, requests));
  return rounds;
}

/// Writes to every slot and tensor of `to` what `make` makes of the same slot and tensor of `from`, on the host.
void fill_from(const StateStore& from, const StateStore& to,
               const std::function<void(std::span<const std::byte>, std::span<std::byte>)>& make) {
  const Stream stream = Stream::default_stream();
  for (std::size_t i = 0; i < from.tensors().size(); ++i) {
    const std::size_t read_bytes = from.tensors()[i].spec.natural_bytes();
    const std::size_t written_bytes = to.tensors()[i].spec.natural_bytes();
    std::vector<std::byte> read(read_bytes), written(written_bytes);
    for (SlotId slot{0}; slot.value() < from.slots(); slot = SlotId{slot.value() + 1}) {
      copy_bytes(stream, read.data(), from.tensors()[i].slot_data(slot), read_bytes);
      stream.synchronize();
      make(read, written);
      copy_bytes(stream, to.tensors()[i].slot_data(slot), written.data(), written_bytes);
      stream.synchronize();
    }
  }
}

/// G1: `range(0)` whole states in one launch.
void copies(benchmark::State& state) {
  const Stream stream = Stream::create();
  const StateSpec spec = layers_of_two_tensors();
  const auto requests = static_cast<std::int32_t>(state.range(0));
  CopyWorkload workload(spec, requests, disjoint_rounds * 2 * static_cast<std::size_t>(requests) * spec.slot_bytes());
  std::vector<std::vector<PeerCopy>> peers;
  for (int round = 0; round < workload.rounds(); ++round) peers.push_back(peer_copies(workload.chunks(round)));
  std::vector<Contender> contenders{{"ours", [&](int round) { workload.run(round, stream); }}};
  for (std::size_t i = 0; i < peers[0].size(); ++i)
    contenders.push_back({peers[0][i].name,
                          [&, i](int round) { peers[static_cast<std::size_t>(round) % peers.size()][i].run(stream); }});
  RoundChecks checks(destinations_of(workload));
  ContiguousCopy limit(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report_on(state, stream, contenders, workload.moved_bytes(), checks, limit);
}
BENCHMARK(copies)->Name("G1")->Arg(16)->Arg(32)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// G2: one and four states, replayed from a graph. excess_ns: beyond what the bytes take at the limit.
void graph_copies(benchmark::State& state) {
  const Stream stream = Stream::create();
  CopyWorkload workload(layers_of_two_tensors(), static_cast<std::int32_t>(state.range(0)));
  workload.run(0, stream);
  std::vector<std::unique_ptr<Graph>> graphs;
  for (int round = 0; round < workload.rounds(); ++round)
    graphs.push_back(std::make_unique<Graph>(stream, [&] { workload.run(round, stream); }));
  const auto replay = [&](int round) { graphs[static_cast<std::size_t>(round) % graphs.size()]->launch(stream); };
  RoundChecks checks(destinations_of(workload));
  ContiguousCopy limit(std::size_t{1} << 30);
  report_on(state, stream, {{"ours", replay}}, workload.moved_bytes(), checks, limit);
}
BENCHMARK(graph_copies)->Name("G2")->Arg(1)->Arg(4)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// G3: a plan on the device of 512 rows without work, against an empty kernel, both from a graph.
void nothing_to_do(benchmark::State& state) {
  const Stream stream = Stream::create();
  DeviceResource resource;
  const StateStore store(resource, layers_of_two_tensors(), {.slots = 2});
  SlotCopier copier(store, store);
  const std::vector<SlotCopy> plan(512);
  Buffer device_plan(resource, plan.size() * sizeof(SlotCopy));
  copy_bytes(stream, device_plan.data(), plan.data(), plan.size() * sizeof(SlotCopy));
  const auto step = [&] { copier.copy_slots_on_device(stream, device_plan.as<SlotCopy>(), 512); };
  step();
  stream.synchronize();
  const Graph ours(stream, step);
  const Graph empty(stream, [&] { launch_empty_kernel(stream); });
  const Comparison result = report(
      state, {{"ours", [&](int) { ours.launch(stream); }}, {"empty", [&](int) { empty.launch(stream); }}}, 0, 101,
      [&](const Contender& contender, int round) { return device_time_ns(stream, [&] { contender.run(round); }); });
  state.counters["excess_ns"] = result.timings[0].median_ns - result.timings[1].median_ns;
}
BENCHMARK(nothing_to_do)->Name("G3")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// The rule of a shift by one token, element by element.
void shift_by_one(std::span<const std::byte> from, std::span<std::byte> to, const StateTensorSpec& tensor) {
  const auto window = static_cast<std::size_t>(tensor.shape[0]), dim = static_cast<std::size_t>(tensor.shape[1]);
  const bool sd = tensor.is(ConvLayout::sd);
  const auto at = [&](std::size_t token, std::size_t column) {
    return 2 * (sd ? token * dim + column : column * window + token);
  };
  for (std::size_t token = 0; token < window; ++token)
    for (std::size_t column = 0; column < dim; ++column)
      std::memcpy(&to[at(token, column)], &from[at(std::min(token + 1, window - 1), column)], 2);
}

/// G4: conv windows of 64 requests shifted by one token in place.
void shift(benchmark::State& state, ConvLayout layout) {
  constexpr std::int32_t requests = 64;
  const Stream stream = Stream::create();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(36, {.window = 6, .dim = 8192, .layout = layout}, {});
  const StoreOptions options{.slots = disjoint_rounds * requests};
  const StateStore store(resource, spec, options), before(resource, spec, options), expected(resource, spec, options);
  fill_randomly(before);
  fill_from(before, expected, [&](std::span<const std::byte> from, std::span<std::byte> to) {
    shift_by_one(from, to, spec.tensors()[0]);
  });
  SlotCopier copier(store, store);
  std::vector<SlotCopy> plan;
  for (std::int32_t slot = 0; slot < store.slots(); ++slot)
    plan.push_back({.src_slot = slot, .dst_slot = slot, .conv_shift = 1, .recurrent_src_slot = -1});
  const double bytes = 2.0 * requests * static_cast<double>(spec.slot_bytes()) * 5 / 6;
  RoundChecks checks(slots_in_rounds(store, expected, &before, requests));
  ContiguousCopy limit(static_cast<std::size_t>(bytes) / 2);
  const auto shift_round = [&](int round) {
    const auto first = static_cast<std::size_t>(round % disjoint_rounds * requests);
    copier.copy_shifted(stream, std::span(plan).subspan(first, requests));
  };
  report_on(state, stream, {{"ours", shift_round}}, bytes, checks, limit);
}
BENCHMARK_CAPTURE(shift, sd, ConvLayout::sd)->Name("G4/sd")->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(shift, ds, ConvLayout::ds)->Name("G4/ds")->UseManualTime()->Iterations(1);

void round_to_bf16(std::span<const std::byte> from, std::span<std::byte> to) {
  for (std::size_t i = 0; i < to.size() / 2; ++i) {
    float value = 0;
    std::memcpy(&value, &from[4 * i], sizeof value);
    const std::uint16_t bits = convert::fp32_to_bf16(value);
    std::memcpy(&to[2 * i], &bits, sizeof bits);
  }
}

/// G5: fp32 recurrent states to bf16 ones.
void convert(benchmark::State& state) {
  constexpr std::int32_t requests = 16;
  const Stream stream = Stream::create();
  DeviceResource resource;
  const auto spec = [](ElementType type) {
    return StateSpec::uniform(24, {}, {.shape = {32, 128, 128}, .type = type});
  };
  const StateStore fp32(resource, spec(ElementType::fp32), {.slots = disjoint_rounds * requests});
  const StateStore bf16(resource, spec(ElementType::bf16), {.slots = disjoint_rounds * requests});
  const StateStore expected(resource, spec(ElementType::bf16), {.slots = disjoint_rounds * requests});
  fill_randomly(fp32);
  fill_from(fp32, expected, round_to_bf16);
  SlotCopier copier(fp32, bf16);
  std::vector<SlotCopy> plan;
  for (std::int32_t slot = 0; slot < fp32.slots(); ++slot) plan.push_back(SlotCopy::whole(slot, slot));
  const auto convert_round = [&](int round) {
    const auto first = static_cast<std::size_t>(round % disjoint_rounds * requests);
    copier.copy_slots(stream, std::span(plan).subspan(first, requests));
  };
  const double bytes = static_cast<double>(requests) * static_cast<double>(fp32.spec().slot_bytes()) * 1.5;
  RoundChecks checks(slots_in_rounds(bf16, expected, nullptr, requests));
  ContiguousCopy limit(static_cast<std::size_t>(bytes) / 2);
  report_on(state, stream, {{"ours", convert_round}}, bytes, checks, limit);
}
BENCHMARK(convert)->Name("G5")->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// G6: the image of one state between pinned and device memory, against one async memcpy of as many bytes.
void images(benchmark::State& state, bool to_device) {
  const Stream stream = Stream::create();
  DeviceResource device;
  PinnedResource pinned;
  const StoreOptions options{.slots = disjoint_rounds, .layout = StoreLayout::slot_major};
  const StateStore on_device(device, layers_of_two_tensors(), options);
  const StateStore on_host(pinned, layers_of_two_tensors(), options);
  const StateStore& from = to_device ? on_host : on_device;
  const StateStore& to = to_device ? on_device : on_host;
  fill_randomly(from);
  SlotCopier copier(from, to);
  const std::size_t bytes = from.spec().slot_bytes();
  const auto copy = [&](int round) {
    const SlotCopy slots = SlotCopy::whole(round % disjoint_rounds, round % disjoint_rounds);
    copier.copy_slots(stream, {&slots, 1});
  };
  const auto memcpy_call = [&](int round) {
    const SlotId slot{round % disjoint_rounds};
    copy_bytes(stream, to.tensors()[0].slot_data(slot), from.tensors()[0].slot_data(slot), bytes);
  };
  std::vector<std::vector<WrittenRange>> written;
  for (SlotId slot{0}; slot.value() < disjoint_rounds; slot = SlotId{slot.value() + 1})
    written.push_back(
        {{.dst = to.tensors()[0].slot_data(slot), .expected = from.tensors()[0].slot_data(slot), .bytes = bytes}});
  RoundChecks checks(std::move(written));
  CheckedTimer timer(stream);
  report(state, {{"ours", copy}, {"memcpy", memcpy_call}}, static_cast<double>(bytes), gpu_rounds,
         [&](const Contender& contender, int round) { return timer.time_ns(contender, round, checks); });
  timer.conclude(state);
}
BENCHMARK_CAPTURE(images, to_device, true)->Name("G6/to_device")->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(images, to_host, false)->Name("G6/to_host")->UseManualTime()->Iterations(1);

/// G8: 1,000 replays of one graph, its plan in device memory changed before each; all bytes compared.
void replays(benchmark::State& state) {
  constexpr int replay_count = 1000;
  const Stream stream = Stream::create();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(2, {.window = 4, .dim = 1000}, {.shape = {4, 16, 16}});
  const StateStore store(resource, spec, {.slots = 64});
  fill_randomly(store);
  SlotCopier copier(store, store);
  Buffer plan(resource, sizeof(SlotCopy));
  const auto step = [&] { copier.copy_slots_on_device(stream, plan.as<SlotCopy>(), 1); };
  const auto slot_bytes = [&](std::int32_t slot) {
    std::vector<std::byte> all;
    for (const StateTensorView& tensor : store.tensors()) {
      std::vector<std::byte> part(tensor.spec.natural_bytes());
      copy_bytes(stream, part.data(), tensor.slot_data(SlotId{slot}), part.size());
      stream.synchronize();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  fill_bytes(stream, plan.data(), std::byte{0xFF}, sizeof(SlotCopy));  // negative slots: a step without work
  step();
  stream.synchronize();
  const Graph graph(stream, step);
  for (auto _ : state) {
    int wrong = 0;
    for (std::int32_t i = 0; i < replay_count; ++i) {
      const SlotCopy copy = SlotCopy::whole(i * 7 % 64, (i * 7 + 1 + i % 62) % 64);
      const std::vector<std::byte> expected = slot_bytes(copy.src_slot);
      copy_bytes(stream, plan.data(), &copy, sizeof copy);
      graph.launch(stream);
      wrong += slot_bytes(copy.dst_slot) != expected ? 1 : 0;
    }
    state.SetIterationTime(1e-9);
    state.counters["wrong"] = wrong;
    if (wrong > 0) state.SkipWithError("a replay left other bytes than its plan says");
  }
}
BENCHMARK(replays)->Name("G8")->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace stateport::perf
