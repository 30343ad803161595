// SPDX-License-Identifier: Apache-2.0
// G1, G2, G4 to G7: do the copy kernels of a GPU run at the speed of its memory? Peers in the same run and over the
// same chunks: a loop of async memcpy, the batched call, CUB, and a twin of the kernel without Kokkos (peers.hpp).
// Limit: the faster of one large memcpy and the kernel over one contiguous range. For the cost of steps beside bytes
// see gpu_step_bench.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "device_comparison.hpp"
#include "device_graph.hpp"
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

/// Passes each slot and tensor of `from` through `make` on the host and writes the result to the same place of `to`.
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
  report_limited(state, stream, contenders, workload.moved_bytes(), checks, limit);
}
BENCHMARK(copies)->Name("G1")->Arg(16)->Arg(32)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// G2: one and four states, replayed from a graph, against one memcpy of as many bytes.
void graph_copies(benchmark::State& state) {
  const Stream stream = Stream::create();
  const StateSpec spec = layers_of_two_tensors();
  const auto requests = static_cast<std::int32_t>(state.range(0));
  CopyWorkload workload(spec, requests, disjoint_rounds * 2 * static_cast<std::size_t>(requests) * spec.slot_bytes());
  workload.run(0, stream);
  std::vector<std::unique_ptr<test::DeviceGraph>> graphs;
  for (int round = 0; round < workload.rounds(); ++round)
    graphs.push_back(std::make_unique<test::DeviceGraph>(stream, [&, round] { workload.run(round, stream); }));
  const auto replay = [&](int round) { graphs[static_cast<std::size_t>(round) % graphs.size()]->launch(stream); };
  RoundChecks checks(destinations_of(workload));
  ContiguousCopy limit(static_cast<std::size_t>(workload.moved_bytes()) / 2);
  report_limited(state, stream, {{"ours", replay}}, workload.moved_bytes(), checks, limit);
}
BENCHMARK(graph_copies)->Name("G2")->Arg(1)->Arg(4)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);

/// The rule of a shift, token by token and column by column.
void shift_window(std::span<const std::byte> from, std::span<std::byte> to, const StateTensorSpec& tensor,
                  std::size_t shift) {
  const auto window = static_cast<std::size_t>(tensor.shape[0]), dim = static_cast<std::size_t>(tensor.shape[1]);
  const bool sd = tensor.is(ConvLayout::sd);
  const auto at = [&](std::size_t token, std::size_t column) {
    return 2 * (sd ? token * dim + column : column * window + token);
  };
  for (std::size_t token = 0; token < window; ++token)
    for (std::size_t column = 0; column < dim; ++column)
      std::memcpy(&to[at(token, column)], &from[at(token + shift < window ? token + shift : token, column)], 2);
}

/// Bytes that the memory moves at least for one slot: a tensor's kept tokens are whole rows in sd, read and written. In
/// ds they lie among the others of their channel, closer than the memory's 32-byte sectors: it moves whole windows.
double shifted_bytes(const StateSpec& spec, std::int64_t window, std::int64_t shift, ConvLayout layout) {
  const double kept = layout == ConvLayout::sd ? static_cast<double>(window - shift) / static_cast<double>(window) : 1;
  return 2 * static_cast<double>(spec.slot_bytes()) * kept;
}

/// G4: conv windows of `range(0)` tokens of 64 requests, shifted in place by `range(1)`.
void shift(benchmark::State& state, ConvLayout layout) {
  const auto requests = sized<std::int32_t>(64, 3);
  const std::int64_t window = state.range(0), tokens = state.range(1);
  const Stream stream = Stream::create();
  DeviceResource resource;
  const auto dim = sized<std::int64_t>(8192, 1024);
  const StateSpec spec = StateSpec::uniform(sized(36, 2), {.window = window, .dim = dim, .layout = layout}, {});
  const StoreOptions options{.slots = disjoint_rounds * requests};
  const StateStore store(resource, spec, options), before(resource, spec, options), expected(resource, spec, options);
  fill_randomly(before);
  fill_from(before, expected, [&](std::span<const std::byte> from, std::span<std::byte> to) {
    shift_window(from, to, spec.tensors()[0], static_cast<std::size_t>(tokens));
  });
  SlotCopier copier(store, store);
  std::vector<SlotCopy> plan;
  for (std::int32_t slot = 0; slot < store.slots(); ++slot)
    plan.push_back({.src_slot = slot,
                    .dst_slot = slot,
                    .conv_shift = static_cast<std::int32_t>(tokens),
                    .recurrent_src_slot = -1});
  const double bytes = requests * shifted_bytes(spec, window, tokens, layout);
  RoundChecks checks(slots_in_rounds(store, expected, &before, requests));
  ContiguousCopy limit(static_cast<std::size_t>(bytes) / 2);
  const auto shift_round = [&](int round) {
    const auto first = static_cast<std::size_t>(round % disjoint_rounds * requests);
    copier.copy_shifted(stream, std::span(plan).subspan(first, static_cast<std::size_t>(requests)));
  };
  report_limited(state, stream, {{"ours", shift_round}}, bytes, checks, limit);
}
void windows_and_shifts(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"window", "shift"})->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
  for (const std::int64_t window : {3, 4, 6})
    for (std::int64_t shift = 1; shift < std::min<std::int64_t>(window, 4); ++shift) benchmark->Args({window, shift});
}
BENCHMARK_CAPTURE(shift, sd, ConvLayout::sd)->Name("G4/sd")->Apply(windows_and_shifts);
BENCHMARK_CAPTURE(shift, ds, ConvLayout::ds)->Name("G4/ds")->Apply(windows_and_shifts);

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
  const auto requests = sized<std::int32_t>(16, 3);
  const Stream stream = Stream::create();
  DeviceResource resource;
  const auto spec = [](ElementType type) {
    return StateSpec::uniform(sized(24, 2), {}, {.shape = {sized<std::int64_t>(32, 1), 128, 128}, .type = type});
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
    copier.copy_slots(stream, std::span(plan).subspan(first, static_cast<std::size_t>(requests)));
  };
  const double bytes = static_cast<double>(requests) * static_cast<double>(fp32.spec().slot_bytes()) * 1.5;
  RoundChecks checks(slots_in_rounds(bf16, expected, nullptr, requests));
  ContiguousCopy limit(static_cast<std::size_t>(bytes) / 2);
  report_limited(state, stream, {{"ours", convert_round}}, bytes, checks, limit);
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
  DeviceTimer timer(stream);
  report(state, {{"ours", copy}, {"memcpy", memcpy_call}}, static_cast<double>(bytes), sized(31, 2),
         [&](const Contender& contender, int round) { return timer.checked_time_ns(contender, round, checks); });
  timer.conclude(state);
}
BENCHMARK_CAPTURE(images, to_device, true)->Name("G6/to_device")->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(images, to_host, false)->Name("G6/to_host")->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace stateport::perf
