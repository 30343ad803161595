// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"
#include "engine.hpp"
#include "movers.hpp"
#include "random_numbers.hpp"
#include "workload.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::soak {

using test::Combination;
using test::every_combination;

[[nodiscard]] std::string_view name_of(Combination index);

struct FleetOptions {
  std::uint64_t seed = 1;
  std::vector<Combination> indexes;
  double real_share = 0.1;  ///< of requests whose tiers move bytes; 0: none do, 1: all
  std::filesystem::path folder;
  Planted planted = Planted::nothing;
};

/// Two engines of one index, which serve the same conversations and share a remote tier. All that they do follows from
/// the seed, but for when the threads of real tiers work.
class World {
 public:
  World(const FleetOptions& options, Combination index, bool is_real);

  void step();
  void rest();
  void check_invariants() const;
  [[nodiscard]] Figures figures() const;
  [[nodiscard]] const FaultCounts& faults() const noexcept { return faults_; }
  [[nodiscard]] Combination index() const noexcept { return index_; }
  [[nodiscard]] bool is_real() const noexcept { return is_real_; }
  [[nodiscard]] std::string name() const;

 private:
  Combination index_;
  bool is_real_;
  test::Random random_;
  Workload workload_;
  FaultCounts faults_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

/// A world with simulated tiers for each index, and one with real ones.
class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);

  /// Serves some requests. A Violation names the world and how many requests that had served.
  void serve();
  void rest();
  void check_invariants();
  [[nodiscard]] Figures figures() const;
  [[nodiscard]] Figures figures(Combination index) const;
  [[nodiscard]] std::int64_t real_requests() const;
  [[nodiscard]] FaultCounts faults() const;
  /// In the folders of tiers.
  [[nodiscard]] std::int64_t files() const;

 private:
  template <class Call>
  void in_world(World& world, Call&& call);

  FleetOptions options_;
  std::vector<std::unique_ptr<World>> worlds_;
};

}  // namespace stateport::soak
