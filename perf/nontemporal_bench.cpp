// SPDX-License-Identifier: Apache-2.0
// From which length of a piece, and how many bytes of a launch, do stores that bypass the caches pay? The calibration
// of nontemporal_bytes_min (kernels/src/openmp/stream_copy.hpp): scattered pieces copied by all threads, and in the
// worst case for bypassing, all that was written is read again at once. Peer: memcpy of the same pieces.
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>

#include "comparison.hpp"

#include <Kokkos_Core.hpp>
#include <benchmark/benchmark.h>
#include <openmp/stream_copy.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace stateport::perf {
namespace {

using Space = Kokkos::DefaultExecutionSpace;

constexpr std::size_t pool_bytes = std::size_t{256} << 20;

/// Pieces at random places of a pool, others at each run, copied to the same places of another pool.
class ScatteredPieces {
 public:
  ScatteredPieces(std::size_t launch_bytes, std::size_t piece_bytes)
      : piece_bytes_(piece_bytes), pieces_(launch_bytes / piece_bytes), places_(pool_bytes / piece_bytes) {
    std::memset(src_.data(), 0x5A, pool_bytes);
    std::memset(dst_.data(), 0, pool_bytes);
    std::iota(places_.begin(), places_.end(), std::size_t{0});
    std::ranges::shuffle(places_, std::mt19937_64(piece_bytes));
  }

  /// copy(dst, src, bytes) for every piece; finish() on each thread after its last one.
  template <class Copy, class Finish>
  void run(bool read_again, const Copy& copy, const Finish& finish) {
    const int threads = Space().concurrency();
    first_ += pieces_;
    Kokkos::parallel_for("scattered_pieces", Kokkos::RangePolicy<Space>(0, threads), [&](int thread) {
      const auto share = [&](int of) {
        return pieces_ * static_cast<std::size_t>(of) / static_cast<std::size_t>(threads);
      };
      for (std::size_t i = share(thread); i < share(thread + 1); ++i)
        copy(dst_.as<std::byte>() + place(first_ + i), src_.as<std::byte>() + place(first_ + i), piece_bytes_);
      finish();
      if (!read_again) return;
      std::uint64_t sum = 0;
      for (std::size_t i = share(thread); i < share(thread + 1); ++i) {
        const auto* const words = reinterpret_cast<const std::uint64_t*>(dst_.as<std::byte>() + place(first_ + i));
        sum = std::accumulate(words, words + piece_bytes_ / sizeof(std::uint64_t), sum);
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  /// Whether the copies of the last run are there; they are gone afterwards.
  [[nodiscard]] bool take_copies() {
    bool exact = true;
    for (std::size_t i = 0; i < pieces_; ++i) {
      const std::size_t at = place(first_ + i);
      exact = exact && std::memcmp(dst_.as<std::byte>() + at, src_.as<std::byte>() + at, piece_bytes_) == 0;
      std::memset(dst_.as<std::byte>() + at, 0, piece_bytes_);
    }
    return exact;
  }

 private:
  [[nodiscard]] std::size_t place(std::size_t piece) const { return places_[piece % places_.size()] * piece_bytes_; }

  DeviceResource resource_;
  Buffer src_{resource_, pool_bytes};
  Buffer dst_{resource_, pool_bytes};
  std::size_t piece_bytes_;
  std::size_t pieces_;     ///< of a run
  std::size_t first_ = 0;  ///< of the last run
  std::vector<std::size_t> places_;
};

/// Arguments: MiB of a launch, bytes of a piece, whether all is read again.
void bypass(benchmark::State& state) {
  ScatteredPieces pieces(static_cast<std::size_t>(state.range(0)) << 20, static_cast<std::size_t>(state.range(1)));
  const bool read_again = state.range(2) != 0;
  bool exact = true;
  const auto timed = [&](const Contender& contender, int round) {
    const double ns = wall_time_ns(contender, round);
    exact = pieces.take_copies() && exact;
    return ns;
  };
  const auto nontemporal = [&](int) { pieces.run(read_again, &kernels::stream_piece, &kernels::finish_stream_copies); };
  const auto through_caches = [&](int) {
    pieces.run(
        read_again, [](std::byte* dst, const std::byte* src, std::size_t bytes) { std::memcpy(dst, src, bytes); },
        [] {});
  };
  report(state, {{"bypass", nontemporal}, {"memcpy", through_caches}}, 0, 15, timed);
  if (!exact) state.SkipWithError("a destination differs from its source");
}
BENCHMARK(bypass)
    ->ArgNames({"MiB", "piece", "read_again"})
    ->ArgsProduct({{1, 4, 32}, {512, 2048, 16384, 131072}, {0, 1}})
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace stateport::perf
