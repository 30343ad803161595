// SPDX-License-Identifier: Apache-2.0
// T1, T3: the speed of images between the device and host memory as a share of one large copy, and the cost of a
// look-up. T1's peer in the same run: one memcpy of as many bytes on the same threads. A round is a whole plan with its
// bookkeeping and its answers; rounds rotate over slots and images.
#include <stateport/tiers/state_tiers.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/core/model/models.hpp>

#include "comparison.hpp"
#include "containers/flat_map.hpp"
#include "slot_workload.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

namespace stateport::perf {
namespace {

using Space = Kokkos::DefaultExecutionSpace;

void require_true(bool ok, const char* otherwise) {
  if (!ok) throw std::runtime_error(otherwise);
}

/// Two ranges of memory, each of which a round copies a part of to the other.
class LargeCopy {
 public:
  explicit LargeCopy(std::size_t bytes) : bytes_(bytes), parts_(pool_bytes / 2 / bytes) {
    memory_ = Buffer(resource_, 2 * parts_ * bytes_);
    std::memset(memory_.data(), 0x3C, memory_.size_bytes());
  }
  void memcpy_by_threads(int round) {
    const auto threads = static_cast<std::size_t>(Space().concurrency());
    std::byte* const from = memory_.as<std::byte>() + static_cast<std::size_t>(round) % parts_ * bytes_;
    std::byte* const to = from + parts_ * bytes_;
    const std::size_t share = bytes_ / threads;
    Kokkos::parallel_for("large_memcpy", Kokkos::RangePolicy<Space>(0, static_cast<int>(threads)), [=](int thread) {
      const std::size_t begin = static_cast<std::size_t>(thread) * share;
      std::memcpy(to + begin, from + begin, share);
    });
  }

 private:
  HostResource resource_;
  std::size_t bytes_;
  std::size_t parts_;
  Buffer memory_;
};

/// A store of random data with tiers that hold as many images. Rounds rotate over slots and images.
class TierWorkload {
 public:
  TierWorkload(const StateSpec& spec, CacheContent content, std::int32_t images_of_a_round)
      : content_(content),
        images_(images_of_a_round),
        slots_(slots_in_pool(spec) / 2 / images_ * images_),
        store_(resource_, spec, {.slots = slots_}),
        tiers_(host_, options()),
        plan_(static_cast<std::size_t>(2 * images_)),
        results_(static_cast<std::size_t>(2 * images_)) {
    require_true(slots_ >= 4 * images_, "the memory holds too few rounds");
    fill_randomly(store_);
    for (int round = 0; round < slots_ / images_; ++round) store(round);
  }

  /// Drops the images of the round, and stores them anew.
  void store(int round) {
    for (std::int32_t i = 0; i < images_; ++i) {
      const std::int32_t slot = (round * images_ + i) % slots_;
      plan_[static_cast<std::size_t>(i)] = {
          .kind = Transfer::Kind::drop, .image = key(slot), .from = Medium::host, .to = Medium::host};
      plan_[static_cast<std::size_t>(images_ + i)] = {
          .id = 1, .kind = Transfer::Kind::store, .image = key(slot), .place = slot};
    }
    run(plan_);
  }
  void load(int round) {
    for (std::int32_t i = 0; i < images_; ++i) {
      const std::int32_t slot = (round * images_ + i) % slots_;
      plan_[static_cast<std::size_t>(i)] = {.id = 1,
                                            .kind = Transfer::Kind::load,
                                            .image = key(slot),
                                            .from = Medium::host,
                                            .to = Medium::device,
                                            .place = slot};
    }
    run({plan_.data(), static_cast<std::size_t>(images_)});
  }
  [[nodiscard]] std::size_t copied_bytes() const {
    return static_cast<std::size_t>(images_) * store_.spec().slot_bytes();
  }

 private:
  [[nodiscard]] ImageKey key(std::int32_t slot) const {
    return {
        .prefix = {{static_cast<std::uint64_t>(slot) * 0x9E3779B97F4A7C15, 1}}, .tokens = slot, .content = content_};
  }
  StateTiersOptions options() {
    StateTiersOptions result{.host_budget_bytes = 0};
    const ImageLayout layout(store_.spec(), {.content = content_});
    result.host_budget_bytes = static_cast<std::size_t>(slots_) * layout.image_bytes();
    if (content_ == CacheContent::state)
      result.states = {&store_};
    else
      result.kv = &store_;
    return result;
  }
  void run(std::span<const Transfer> plan) {
    const Stream stream = Stream::default_stream();
    tiers_.execute(stream, plan);
    const std::size_t count = tiers_.poll(stream, results_);
    require_true(count == static_cast<std::size_t>(images_) && tiers_.in_flight() == 0, "a transfer was not answered");
    for (std::size_t i = 0; i < count; ++i)
      require_true(results_[i].status == TransferStatus::done, "a transfer was refused");
  }

  CacheContent content_;
  std::int32_t images_;
  std::int32_t slots_;
  DeviceResource resource_;
  HostResource host_;
  StateStore store_;
  StateTiers tiers_;
  std::vector<Transfer> plan_;
  std::vector<TransferResult> results_;
};

/// T1: `images` of a plan, both ways. Goal: >= 0.95 of the memcpy.
void images(benchmark::State& state, TierWorkload& workload, bool to_device) {
  LargeCopy large(workload.copied_bytes());
  report(state,
         {{"ours", [&](int round) { to_device ? workload.load(round) : workload.store(round); }},
          {"memcpy", [&](int round) { large.memcpy_by_threads(round); }}},
         2 * static_cast<double>(workload.copied_bytes()));
}

void states(benchmark::State& state, bool to_device) {
  TierWorkload workload(models::find("qwen3.5-9b"), CacheContent::state, 4);
  images(state, workload, to_device);
}
BENCHMARK_CAPTURE(states, to_host, false)->Name("T1/states/to_host")->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(states, to_device, true)->Name("T1/states/to_device")->UseManualTime()->Iterations(1);

/// 256 blocks of 16 tokens of 8 layers with 2 KV heads of 256 in bf16: 256 KiB each.
void blocks(benchmark::State& state, bool to_device) {
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t layer = 0; layer < 8; ++layer)
    for (int kv = 0; kv < 2; ++kv)
      tensors.push_back({.layer = layer, .type = ElementType::bf16, .shape = {16, 2, 256}});
  TierWorkload workload(StateSpec(std::move(tensors)), CacheContent::kv_block, 256);
  images(state, workload, to_device);
}
BENCHMARK_CAPTURE(blocks, to_host, false)->Name("T1/blocks/to_host")->UseManualTime()->Iterations(1);
BENCHMARK_CAPTURE(blocks, to_device, true)->Name("T1/blocks/to_device")->UseManualTime()->Iterations(1);

struct PrefixHashing {
  std::size_t operator()(const PrefixHash& prefix) const noexcept { return prefix.words[0]; }
};

/// T3: 1,000 keys, half of which are among the `range(0)` images: the first half, as of a prompt whose beginning is
/// there, or (`range(1)`) any. Goal for prompts: <= 20 us. Peer: one hash map.
void lookup(benchmark::State& state) {
  constexpr std::size_t keys_of_a_round = 1000;
  constexpr std::size_t image_bytes = 8192;
  const auto count = static_cast<std::size_t>(state.range(0));
  HostResource memory;
  HostTier tier(memory, {.budget_bytes = count * image_bytes, .kv_image_bytes = image_bytes});
  FlatMap<PrefixHash, std::uint32_t, PrefixHashing> map;
  std::mt19937_64 random(1);
  std::vector<ImageKey> keys(2 * count);
  for (ImageKey& key : keys) key = {.prefix = {{random(), random()}}, .tokens = 16, .content = CacheContent::kv_block};
  for (std::size_t i = 0; i < count; ++i) {
    require_true(tier.reserve(keys[i]).has_value(), "the tier is full");
    map[keys[i].prefix] = static_cast<std::uint32_t>(i);
  }
  std::vector<ImageKey> asked(keys_of_a_round * 64);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const bool held = state.range(1) != 0 ? random() % 2 == 0 : i % keys_of_a_round < keys_of_a_round / 2;
    asked[i] = keys[random() % count + (held ? 0 : count)];
  }
  const auto keys_of = [&](int round) {
    return std::span(asked).subspan(static_cast<std::size_t>(round) % 64 * keys_of_a_round, keys_of_a_round);
  };
  std::vector<HostImage> images(keys_of_a_round);
  report(state,
         {{"ours", [&](int round) { benchmark::DoNotOptimize(tier.lookup(keys_of(round), images)); }},
          {"map",
           [&](int round) {
             std::int64_t found = 0;
             for (const ImageKey& key : keys_of(round)) found += map.find(key.prefix) != map.end();
             benchmark::DoNotOptimize(found);
           }}},
         0, 201);
}
BENCHMARK(lookup)
    ->Name("T3/lookup")
    ->ArgNames({"images", "mixed"})
    ->ArgsProduct({{10'000, 1'000'000}, {0, 1}})
    ->UseManualTime()
    ->Iterations(1);

}  // namespace
}  // namespace stateport::perf
