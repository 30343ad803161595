// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cache.hpp"
#include "schedule.hpp"

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace stateport::engine {

/// A flag of a Draw.
struct Feature {
  std::string_view name;
  bool Draw::*flag;
  std::string_view help;
  bool in_slots = false;  ///< it has no effect in other caches
};

inline constexpr std::array features = {
    Feature{"overlap", &Draw::overlap, "plan a batch before the one before it is read back"},
    Feature{"tiers", &Draw::tiers, "keep states and KV on the host and in files, too"},
    Feature{"tenants", &Draw::tenants, "serve two tenants, whose memory is scrubbed"},
    Feature{"held", &Draw::held, "pin and prefetch prefixes and close sessions while requests run"},
    Feature{"weights", &Draw::weights, "change weights while requests run, of all or (with --tenants) of one"},
    Feature{"named", &Draw::named, "name positions of prompts, and leave states before their tails"},
    Feature{"bursts", &Draw::bursts, "serve requests that come at once and wait for each other's prefixes"},
    Feature{"forks", &Draw::forks, "serve requests that go on from what others have computed"},
    Feature{"integrity", &Draw::integrity, "check checkpoints"},
    Feature{"damage", &Draw::damage, "check checkpoints, and write to some"},
    Feature{"trees", &Draw::trees, "draft trees of tokens, in caches with slots", true},
    Feature{"arena", &Draw::arena, "move memory between KV and states, in caches with slots", true}};

/// A cache and the features of a schedule for it.
struct Mixture {
  std::string_view cache;
  Draw draw;
};
/// Every cache that keeps something is as likely as the others, and of the features that have an effect in it each is
/// in every second mixture; `integrity` is where `damage` is, too.
[[nodiscard]] Mixture draw_mixture(std::uint64_t seed);

/// How many schedules had each feature, and each pair of features.
class FeatureCounts {
 public:
  void add(const Draw& draw);
  [[nodiscard]] std::int64_t of(std::size_t a, std::size_t b) const { return schedules_[a][b]; }
  /// The fewest schedules that a pair of different features had.
  [[nodiscard]] std::int64_t least_pair() const;
  /// The table of pairs, with the features themselves on its diagonal, and the pair with the fewest schedules.
  friend std::ostream& operator<<(std::ostream& out, const FeatureCounts& counts);

 private:
  std::array<std::array<std::int64_t, features.size()>, features.size()> schedules_ = {};
};

}  // namespace stateport::engine
