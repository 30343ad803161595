// SPDX-License-Identifier: Apache-2.0
// Does a state move between groups of ranks of other sizes at the speed of the memory? Four ranks to two, one launch
// for all pieces of all tensors. Limit in the same run: a memcpy of as many bytes, tensor by tensor, same threads.
#include <stateport/kernels/resharder.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

namespace stateport::perf {
namespace {

constexpr const char* model = "qwen3-next-80b-a3b";
constexpr std::int32_t slots = 8;  // a round moves one: 79 MB

/// The stores of the ranks of one group.
class Ranks {
 public:
  Ranks(MemoryResource& resource, const ModelLayout& layout, std::int32_t ranks) {
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const ModelShard shard{.layer_end = layout.layers(), .head_group = rank, .head_groups = ranks};
      stores_.emplace_back(resource, layout.spec_of(shard), StoreOptions{.slots = slots});
      shards.push_back({.store = &stores_.back(), .shard = shard});
      fill_randomly(stores_.back());
    }
  }
  [[nodiscard]] const std::deque<StateStore>& stores() const { return stores_; }

  std::vector<ShardStore> shards;

 private:
  std::deque<StateStore> stores_;
};

class Workload {
 public:
  Workload(ConvLayout from, ConvLayout to)
      : layout_(models::layout(model, {.conv_layout = from})),
        sources_(resource_, layout_, 4),
        destinations_(resource_, models::layout(model, {.conv_layout = to}), 2),
        resharder_(layout_, sources_.shards, destinations_.shards),
        back_(layout_, destinations_.shards, sources_.shards) {}

  void reshard(int round) { move(resharder_, round); }
  /// Tensor by tensor of the destinations, from as many bytes of a source.
  void copy(int round) const {
    std::vector<Chunk> chunks;
    const SlotId slot{round % slots};
    std::size_t rank = 0;
    for (const StateStore& store : destinations_.stores()) {
      for (std::size_t i = 0; i < store.tensors().size(); ++i) {
        std::byte* to = store.tensors()[i].slot_data(slot);
        for (std::size_t half = 0; half < 2; ++half) {
          const StateTensorView& source = sources_.stores()[2 * rank + half].tensors()[i];
          chunks.push_back({.dst = to, .src = source.slot_data(slot), .bytes = source.spec.natural_bytes()});
          to += source.spec.natural_bytes();
        }
      }
      ++rank;
    }
    const int count = static_cast<int>(chunks.size());
    Kokkos::parallel_for("memcpy", Kokkos::RangePolicy<Kokkos::DefaultExecutionSpace>(0, count), [&](int i) {
      const Chunk& chunk = chunks[static_cast<std::size_t>(i)];
      std::memcpy(chunk.dst, chunk.src, chunk.bytes);
    });
  }
  /// Whether the bytes are unchanged after a copy to the destinations and back.
  [[nodiscard]] bool moves_exactly() {
    std::vector<std::vector<std::byte>> before;
    for_each_source([&](std::byte* data, std::size_t bytes) {
      before.emplace_back(data, data + bytes);
      return true;
    });
    move(resharder_, 0);
    for_each_source([](std::byte* data, std::size_t bytes) { return std::memset(data, 0xA5, bytes) != nullptr; });
    move(back_, 0);
    std::size_t at = 0;
    return for_each_source(
        [&](std::byte* data, std::size_t bytes) { return std::memcmp(data, before[at++].data(), bytes) == 0; });
  }
  [[nodiscard]] double moved_bytes() const { return 2.0 * static_cast<double>(layout_.whole().slot_bytes()); }

 private:
  static void move(Resharder& resharder, int round) {
    const SlotCopy copy = SlotCopy::whole(round % slots, round % slots);
    resharder.copy_slots(Stream::default_stream(), {&copy, 1});
    Stream::default_stream().synchronize();
  }
  /// Of slot 0; false if it was false for one of the tensors.
  template <class Body>
  bool for_each_source(const Body& body) const {
    bool all = true;
    for (const StateStore& store : sources_.stores())
      for (const StateTensorView& tensor : store.tensors())
        all &= body(tensor.slot_data(SlotId{0}), tensor.spec.natural_bytes());
    return all;
  }

  DeviceResource resource_;
  ModelLayout layout_;
  Ranks sources_;
  Ranks destinations_;
  Resharder resharder_;
  Resharder back_;
};

void four_to_two(benchmark::State& state, ConvLayout from, ConvLayout to) {
  Workload workload(from, to);
  report(state,
         {{"ours", [&](int round) { workload.reshard(round); }}, {"memcpy", [&](int round) { workload.copy(round); }}},
         workload.moved_bytes());
  if (!workload.moves_exactly()) state.SkipWithError("bytes that were moved there and back differ");
}
BENCHMARK_CAPTURE(four_to_two, sd_to_sd, ConvLayout::sd, ConvLayout::sd)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(four_to_two, sd_to_ds, ConvLayout::sd, ConvLayout::ds)
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stateport::perf
