// SPDX-License-Identifier: Apache-2.0
// The cost of a move of memory between KV and states on the host: the calls of the system, and the pages that come with
// the first use of memory, which a pass pays for, in granules of 2 MiB, which have huge pages. Extents are those
// of Qwen3-Next-80B-A3B with 2 MiB of each tensor, as a GPU has them: 48 MiB are 2,048 tokens of KV, and 72 MiB are one
// state. Memory is written by one thread. Medians.
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/core/model/models.hpp>
#include <stateport/kernels/elastic_store.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::int32_t block_tokens = 16;
constexpr std::int32_t kv_extents = 3;  ///< as many bytes as two states
constexpr std::int32_t state_extents = 2;

/// K and V of 12 layers, 2 heads of 256 bf16 each.
StateSpec kv_spec() {
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t i = 0; i < 24; ++i)
    tensors.push_back({.layer = i / 2, .type = ElementType::bf16, .shape = {block_tokens, 2, 256}});
  return StateSpec(std::move(tensors));
}

StateSpec states_spec() {
  return models::find("qwen3-next-80b-a3b", {.recurrent_type = ElementType::fp32});
}

/// Calls `use(memory, bytes)` for the memory of an extent in every tensor that moves.
template <class Use>
void for_each_part(const ElasticStore& store, std::int32_t extent, Use&& use) {
  const auto slots = static_cast<std::size_t>(store.extent().count);
  for (const StateTensorView& tensor : store.store().tensors())
    if (tensor.spec.kind == StateKind::recurrent)
      use(tensor.slot_data(SlotId{extent * store.extent().count}), slots * tensor.spec.natural_bytes());
}

class Moves {
 public:
  static constexpr std::array names = {"map_kv_us",    "unmap_kv_us", "map_states_us", "unmap_states_us",
                                       "first_use_us", "use_us",      "copy_us"};
  using Times = std::array<double, names.size()>;

  Moves()
      : kv_(resource_, kv_spec(), {.slots = kv_extents * 128}),
        states_(resource_, states_spec(), {.slots = state_extents}) {}

  [[nodiscard]] bool fits() const {
    return kv_.extents() == kv_extents && states_.extents() == state_extents && kv_.extent().bytes == 48 * mib &&
           states_.extent().bytes == 72 * mib;
  }

  /// Times of one extent's calls; of MiB of memory that are used, copied.
  Times round() {
    Times times = {};
    double used_mib = 0;
    const auto use_all = [&](const ElasticStore& store) {
      for (const std::size_t at : {4U, 5U})
        for (std::int32_t extent = 0; extent < store.extents(); ++extent)
          times[at] += time_us([&] { fill(store, extent); });
      used_mib += static_cast<double>(store.extents() * store.extent().bytes) / mib;
    };
    times[0] = time_us([&] { map(kv_); }) / kv_extents;
    use_all(kv_);
    times[6] = time_us([&] { copy(); }) / 48;
    times[1] = time_us([&] { unmap(kv_); }) / kv_extents;
    times[2] = time_us([&] { map(states_); }) / state_extents;
    use_all(states_);
    times[3] = time_us([&] { unmap(states_); }) / state_extents;
    times[4] /= used_mib;
    times[5] /= used_mib;
    return times;
  }

 private:
  static void map(ElasticStore& store) {
    for (std::int32_t extent = 0; extent < store.extents(); ++extent)
      if (!store.map(extent)) std::abort();
  }
  static void unmap(ElasticStore& store) {
    for (std::int32_t extent = 0; extent < store.extents(); ++extent) store.unmap(extent);
  }
  void fill(const ElasticStore& store, std::int32_t extent) {
    ++value_;
    for_each_part(store, extent, [&](std::byte* memory, std::size_t bytes) { std::memset(memory, value_, bytes); });
  }
  /// The KV of one extent to another.
  void copy() {
    std::vector<std::byte*> targets;
    for_each_part(kv_, 1, [&](std::byte* memory, std::size_t) { targets.push_back(memory); });
    auto target = targets.begin();
    for_each_part(kv_, 0, [&](std::byte* memory, std::size_t bytes) { std::memcpy(*target++, memory, bytes); });
  }

  ElasticResource resource_{{.limit_bytes = 256 * mib, .granularity_bytes = 2 * mib}};
  ElasticStore kv_;
  ElasticStore states_;
  int value_ = 0;
};

void move_memory(benchmark::State& state) {
  const int count = rounds_to_run(31);
  Moves moves;
  if (!moves.fits()) return state.SkipWithError("extents have other sizes");
  std::array<std::vector<double>, Moves::names.size()> times;
  for ([[maybe_unused]] const auto iteration : state) {
    for (int round = 0; round < count; ++round) {
      const Moves::Times measured = moves.round();
      for (std::size_t i = 0; i < times.size(); ++i) times[i].push_back(measured[i]);
    }
    state.SetIterationTime(median(times[0]) * 1e-6);
  }
  // Of one extent the calls, and of one MiB the first use, the next use, and a copy.
  for (std::size_t i = 0; i < times.size(); ++i) state.counters[Moves::names[i]] = median(times[i]);
}
BENCHMARK(move_memory)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf
