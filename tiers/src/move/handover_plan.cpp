// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/handover.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace stateport {
namespace {

/// The grid that cuts at every border of a rank's share, and nowhere else if that can be.
class GridFinder {
 public:
  explicit GridFinder(const ModelLayout& layout) : layout_(layout) {}

  void add(std::span<const ReshardRank> ranks) {
    std::set<std::int32_t> seen;
    for (const ReshardRank& rank : ranks) {
      require(seen.insert(rank.global_rank).second, "global_rank", rank.global_rank, "is named twice");
      const ModelShard shard = layout_.resolve(rank.shard);
      groups_ = std::lcm(groups_, std::int64_t{shard.head_groups});
      require(groups_ <= INT32_MAX, "shard.head_groups", shard.head_groups, "has no common multiple with the others'");
      layers_ = std::gcd(layers_, shard.layer_begin);
      if (shard.layer_end < layout_.layers()) layers_ = std::gcd(layers_, shard.layer_end);
    }
  }
  [[nodiscard]] ObjectGrid grid() const noexcept {
    return {.head_groups = static_cast<std::int32_t>(groups_), .layers_per_object = layers_};
  }

 private:
  const ModelLayout& layout_;
  std::int64_t groups_ = 1;
  std::int32_t layers_ = 0;  ///< 0: no border but the first and the last
};

/// Which part of the model an object is, within one grid.
using ObjectPlace = std::pair<std::int32_t, std::int32_t>;  // layer_begin, head_group
ObjectPlace place_of(const ObjectSet& set, std::size_t object) {
  return {set.shard(object).layer_begin, set.shard(object).head_group};
}

struct Held {
  std::int32_t rank;
  std::uint64_t offset;
};

std::map<ObjectPlace, Held> held_by(const ModelLayout& layout, std::span<const ReshardRank> sources,
                                    const ObjectSetOptions& options) {
  std::vector<ReshardRank> by_rank(sources.begin(), sources.end());
  std::ranges::sort(by_rank, {}, &ReshardRank::global_rank);
  std::map<ObjectPlace, Held> held;
  for (const ReshardRank& source : by_rank) {
    const ObjectSet set(layout, source.shard, options);
    for (std::size_t object = 0; object < set.size(); ++object)
      held.emplace(place_of(set, object), Held{source.global_rank, set.offset(object)});
  }
  return held;
}

}  // namespace

HandoverPlan plan_handover(const ModelLayout& layout, std::span<const ReshardRank> sources,
                           std::span<const ReshardRank> destinations, const ObjectSetOptions& options) {
  GridFinder finder(layout);
  finder.add(sources);
  finder.add(destinations);
  HandoverPlan plan{.grid = finder.grid()};
  ObjectSetOptions cut = options;
  cut.grid = plan.grid;
  const std::map<ObjectPlace, Held> held = held_by(layout, sources, cut);
  for (const ReshardRank& destination : destinations) {
    const ObjectSet set(layout, destination.shard, cut);
    for (std::size_t object = 0; object < set.size(); ++object) {
      const auto source = held.find(place_of(set, object));
      require(source != held.end(), "sources", set.shard(object).layer_begin,
              "none of them has an object that begins with this layer");
      plan.ranges.push_back({.src_rank = source->second.rank,
                             .dst_rank = destination.global_rank,
                             .src_offset = source->second.offset,
                             .dst_offset = set.offset(object),
                             .bytes = set.layout(object).image_bytes()});
    }
  }
  return plan;
}

}  // namespace stateport
