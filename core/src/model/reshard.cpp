// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/reshard.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace stateport {
namespace {

constexpr std::array all_bands = {ReshardBand::x, ReshardBand::b, ReshardBand::c, ReshardBand::recurrent};

/// Where a band of one rank lies: [begin, end) of the whole band, starting at `local` in the rank's own state.
struct Extent {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t local;
};

Extent extent(const ReshardRank& rank, ReshardBand band) {
  const std::int64_t heads = rank.shape.heads / rank.tp_size;
  const std::int64_t x = heads * rank.shape.head_dim;
  const std::int64_t bc = std::int64_t{rank.shape.groups / rank.tp_size} * rank.shape.state_dim;
  switch (band) {
    case ReshardBand::x:
      return {rank.tp_rank * x, (rank.tp_rank + 1) * x, 0};
    case ReshardBand::b:
      return {rank.tp_rank * bc, (rank.tp_rank + 1) * bc, x};
    case ReshardBand::c:
      return {rank.tp_rank * bc, (rank.tp_rank + 1) * bc, x + bc};
    case ReshardBand::recurrent:
      return {rank.tp_rank * heads, (rank.tp_rank + 1) * heads, 0};
  }
  return {0, 0, 0};
}

void check(const ReshardRank& rank, const ReshardShape& shape) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  require(shape.heads >= 1, "heads", shape.heads, "must be at least 1");
  require(shape.head_dim >= 1, "head_dim", shape.head_dim, "must be at least 1");
  require(shape.state_dim >= 1, "state_dim", shape.state_dim, "must be at least 1");
  require(shape.groups >= 1, "groups", shape.groups, "must be at least 1");
  // Bounded one by one: the sum of the products below then fits 64 bits.
  const std::int64_t x = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t bc = std::int64_t{shape.groups} * shape.state_dim;
  require(x <= most && bc <= most && x + 2 * bc <= most, "head_dim", shape.head_dim, "gives too many channels");
  require(rank.shape == shape, "shape", rank.global_rank, "the shape of this rank differs from the others'");
  require(rank.tp_size >= 1, "tp_size", rank.tp_size, "must be at least 1");
  require(rank.tp_rank >= 0 && rank.tp_rank < rank.tp_size, "tp_rank", rank.tp_rank, "must be below tp_size");
  require(rank.first_layer >= 0, "first_layer", rank.first_layer, "must not be negative");
  require(rank.layers >= 0 && rank.layers <= most - rank.first_layer, "layers", rank.layers, "is not a layer count");
  require(shape.heads % rank.tp_size == 0, "heads", shape.heads, "must be divisible by tp_size");
  require(shape.groups % rank.tp_size == 0, "groups", shape.groups, "must be divisible by tp_size");
}

void check_all(std::span<const ReshardRank> ranks, const ReshardShape& shape) {
  std::set<std::int32_t> seen;
  for (const ReshardRank& rank : ranks) {
    check(rank, shape);
    require(seen.insert(rank.global_rank).second, "global_rank", rank.global_rank, "is named twice");
  }
}

/// Appends the slices of one band of one layer of a destination. `sources` is ascending in rank. `missing` is what is
/// still to find, as disjoint ranges of the band.
void cover(std::span<const ReshardRank> sources, const ReshardRank& destination, ReshardBand band, std::int32_t layer,
           std::vector<ReshardSlice>& slices) {
  using Range = std::pair<std::int64_t, std::int64_t>;
  const Extent to = extent(destination, band);
  std::vector<Range> missing = {{to.begin, to.end}};
  for (const ReshardRank& source : sources) {
    if (layer < source.first_layer || layer - source.first_layer >= source.layers) continue;
    const Extent from = extent(source, band);
    std::vector<Range> left;
    for (const auto& [begin, end] : missing) {
      const std::int64_t first = std::max(begin, from.begin);
      const std::int64_t last = std::min(end, from.end);
      if (first >= last) {
        left.emplace_back(begin, end);
        continue;
      }
      const auto local = [](const Extent& side, std::int64_t at) {
        return static_cast<std::int32_t>(side.local + at - side.begin);
      };
      slices.push_back({source.global_rank, destination.global_rank, band, layer, layer - source.first_layer,
                        layer - destination.first_layer, local(from, first), local(from, last), local(to, first),
                        local(to, last)});
      if (begin < first) left.emplace_back(begin, first);
      if (last < end) left.emplace_back(last, end);
    }
    missing = std::move(left);
  }
  require(missing.empty(), "layer", layer, "has a piece that no source holds");
}

}  // namespace

std::vector<ReshardSlice> plan_reshard(std::span<const ReshardRank> sources,
                                       std::span<const ReshardRank> destinations) {
  if (destinations.empty()) return {};
  check_all(sources, destinations.front().shape);
  check_all(destinations, destinations.front().shape);
  std::vector<ReshardRank> by_rank(sources.begin(), sources.end());
  std::ranges::sort(by_rank, {}, &ReshardRank::global_rank);
  std::vector<ReshardSlice> slices;
  for (const ReshardRank& destination : destinations)
    for (const ReshardBand band : all_bands)
      for (std::int32_t layer = 0; layer < destination.layers; ++layer)
        cover(by_rank, destination, band, destination.first_layer + layer, slices);
  std::ranges::sort(slices, {}, [](const ReshardSlice& slice) {
    return std::tuple(slice.src_rank, slice.dst_rank, slice.band, slice.layer, slice.src_begin);
  });
  return slices;
}

}  // namespace stateport
