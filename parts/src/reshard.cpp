// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/reshard.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace stateport {
namespace {

/// A rank with the tensors of the model that it has.
struct Holder {
  std::int32_t rank;
  ModelShard shard;
  ModelLayout::TensorRange tensors;

  [[nodiscard]] bool has(std::size_t tensor) const noexcept { return tensor >= tensors.first && tensor < tensors.end; }
  [[nodiscard]] std::int32_t number(std::size_t tensor) const noexcept {
    return static_cast<std::int32_t>(tensor - tensors.first);
  }
};

std::vector<Holder> holders_of(const ModelLayout& layout, std::span<const ReshardRank> ranks) {
  std::set<std::int32_t> seen;
  std::vector<Holder> holders;
  for (const ReshardRank& rank : ranks) {
    require(seen.insert(rank.global_rank).second, "global_rank", rank.global_rank, "is named twice");
    holders.push_back({rank.global_rank, layout.resolve(rank.shard), layout.tensors_of(rank.shard)});
  }
  return holders;
}

/// Appends the slices of one band of one tensor of a destination. `sources` is ascending in rank. `missing` is the part
/// still to find, as disjoint ranges of the band.
void cover(const ModelLayout& layout, std::span<const Holder> sources, const Holder& destination, std::size_t tensor,
           std::size_t band, std::vector<ReshardSlice>& slices) {
  using Range = std::pair<std::int64_t, std::int64_t>;
  const BandShare to = layout.share(destination.shard, tensor, band);
  std::vector<Range> missing = {{to.begin, to.end}};
  for (const Holder& source : sources) {
    if (!source.has(tensor)) continue;
    const BandShare from = layout.share(source.shard, tensor, band);
    std::vector<Range> left;
    for (const auto& [begin, end] : missing) {
      const std::int64_t first = std::max(begin, from.begin);
      const std::int64_t last = std::min(end, from.end);
      if (first >= last) {
        left.emplace_back(begin, end);
        continue;
      }
      const auto local = [](const BandShare& side, std::int64_t at) { return side.local + at - side.begin; };
      slices.push_back({.src_rank = source.rank,
                        .dst_rank = destination.rank,
                        .tensor = static_cast<std::int32_t>(tensor),
                        .band = static_cast<std::int32_t>(band),
                        .src_tensor = source.number(tensor),
                        .dst_tensor = destination.number(tensor),
                        .src_begin = local(from, first),
                        .src_end = local(from, last),
                        .dst_begin = local(to, first),
                        .dst_end = local(to, last)});
      if (begin < first) left.emplace_back(begin, first);
      if (last < end) left.emplace_back(last, end);
    }
    missing = std::move(left);
  }
  require(missing.empty(), "layer", layout.whole().tensors()[tensor].layer, "has a piece that no source holds");
}

}  // namespace

std::vector<ReshardSlice> plan_reshard(const ModelLayout& layout, std::span<const ReshardRank> sources,
                                       std::span<const ReshardRank> destinations) {
  std::vector<Holder> from = holders_of(layout, sources);
  std::ranges::sort(from, {}, &Holder::rank);
  std::vector<ReshardSlice> slices;
  for (const Holder& destination : holders_of(layout, destinations))
    for (std::size_t tensor = destination.tensors.first; tensor < destination.tensors.end; ++tensor)
      for (std::size_t band = 0; band < layout.splits()[tensor].bands.size(); ++band)
        cover(layout, from, destination, tensor, band, slices);
  std::ranges::sort(slices, {}, [&](const ReshardSlice& slice) {
    const StateKind kind = layout.whole().tensors()[static_cast<std::size_t>(slice.tensor)].kind;
    return std::tuple(slice.src_rank, slice.dst_rank, kind, slice.band, slice.tensor, slice.src_begin);
  });
  return slices;
}

}  // namespace stateport
