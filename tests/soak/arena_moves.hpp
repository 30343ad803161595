// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "mark_world.hpp"
#include "random_numbers.hpp"

#include <cstdint>
#include <vector>

namespace stateport::soak {

/// The physical memory of an arena. Its moves end late and in any order, and the system refuses some. The content of
/// memory that is unmapped is lost. Throws Violation if more is mapped than the arena may have.
class ArenaMoves {
 public:
  /// The cache, with an arena, and the world must outlive it.
  ArenaMoves(RequestCache& cache, MarkWorld& world);

  /// Carries out the copies of an answer, and begins its moves.
  void take(const MemoryPlan& plan);
  /// Some moves end.
  void step(test::Random& random);

 private:
  void end(const MemoryMove& move, bool done);

  ArenaOptions options_;
  CacheArena& arena_;
  MarkWorld& world_;
  std::int64_t mapped_bytes_ = 0;
  std::vector<MemoryMove> under_way_;
};

}  // namespace stateport::soak
