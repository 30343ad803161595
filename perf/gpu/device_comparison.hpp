// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "comparison.hpp"
#include "round_checks.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Comparisons in device time, every byte checked. Before each timed run its destinations are poisoned and the caches
/// swept, after it every byte is compared.
namespace stateport::perf {

inline constexpr int disjoint_rounds = 4;  ///< so that a round finds nothing of itself in the caches

/// In an OpenMP build the benchmarks of GPUs are a dry run: host threads stand in for the device, everything is small,
/// and every byte is checked. Times mean nothing there.
[[nodiscard]] bool is_dry_run();
/// `device`, or `dry` in a dry run.
template <class T>
[[nodiscard]] T sized(T device, T dry) {
  return is_dry_run() ? dry : device;
}
/// Bytes of the contiguous copy that limits those that are small themselves.
[[nodiscard]] std::size_t limit_bytes();

/// `layers` layers of a 2 MiB recurrent and an 80 KiB conv tensor; 24: 48 tensors.
[[nodiscard]] StateSpec layers_of_two_tensors(std::int32_t layers = 24);

/// Contiguous ranges of `bytes`, copied by one call: the limit of every copy.
class ContiguousCopy {
 public:
  explicit ContiguousCopy(std::size_t bytes);
  void memcpy_call(const Stream& stream, int round) const;
  void kernel(const Stream& stream, int round);
  [[nodiscard]] double moved_bytes() const { return 2.0 * static_cast<double>(bytes_); }
  [[nodiscard]] RoundChecks& checks() { return *checks_; }

 private:
  [[nodiscard]] std::byte* source(int round) const;
  [[nodiscard]] std::byte* destination(int round) const;

  DeviceResource resource_;
  std::size_t bytes_;
  Buffer memory_;
  std::unique_ptr<StateStore> store_;
  std::optional<SlotCopier> copier_;
  std::optional<RoundChecks> checks_;
};

/// Times runs on the device, after the work of `before`, and remembers their errors.
class DeviceTimer {
 public:
  using Before = std::function<void(int round)>;

  explicit DeviceTimer(const Stream& stream) : stream_(stream) {}

  [[nodiscard]] double time_ns(const Contender& contender, int round);
  /// From cold caches, with the destinations of `checks` poisoned before and compared afterwards.
  [[nodiscard]] double checked_time_ns(const Contender& contender, int round, RoundChecks& checks,
                                       const Before& before = {});
  /// Makes the benchmark fail when a run left other bytes than it should. Counters <name>_host_in_time: runs whose
  /// time is partly the host's.
  void conclude(benchmark::State& state) const;

 private:
  Stream stream_;
  std::optional<CacheSweep> sweep_;
  std::string wrong_;
  std::map<std::string, int> host_in_time_;
};

/// Compares ways to write the ranges of `checks`, and two limits: one large memcpy, and the kernel over one contiguous
/// range. limit_ns: the time of `bytes` at the speed of the faster limit; excess_ns: our time beyond it.
void report_limited(benchmark::State& state, const Stream& stream, std::vector<Contender> contenders, double bytes,
                    RoundChecks& checks, ContiguousCopy& limit, const DeviceTimer::Before& before = {});

/// Compares a call that moves no bytes with an empty kernel. excess_ns: our time beyond it.
void report_beside_empty(benchmark::State& state, const Stream& stream, const std::function<void()>& ours,
                         const std::function<void()>& empty);

}  // namespace stateport::perf
