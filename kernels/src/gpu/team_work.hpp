// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../work_queue.hpp"
#include "launch_shape.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// How the teams of one launch share out items that only the device can count: each team claims the next item in order
/// when it begins its last one. Equal shares, known beforehand, took 4 % longer on an H100: its multiprocessors do not
/// copy at the same speed, and the slower ones would end last.
namespace stateport::kernels {

/// A team's part in the work of a launch, which has at most launch_items_max items. All lanes call its functions
/// together.
class TeamWork {
 public:
  struct Shared {
    std::uint32_t next[2];
  };

  /// `queue`: nullptr for equal shares.
  KOKKOS_FUNCTION TeamWork(const Team& team, WorkQueue* queue, Shared& shared)
      : team_(team), queue_(queue), shared_(shared), item_(static_cast<std::uint32_t>(team.league_rank())) {}

  /// Calls body(i) for this team's part of the next `count` items, of which body counts from 0 on. Ends with a barrier.
  template <class Body>
  KOKKOS_INLINE_FUNCTION void take(std::uint32_t count, const Body& body) {
    const std::uint32_t end = first_ + count;
    std::uint32_t turn = 0;
    while (item_ < end) {
      const bool claims = team_.team_rank() == 0;
      const std::uint32_t next = claims ? claim() : 0;  // the answer comes while the team is at work
      body(item_ - first_);
      if (claims) shared_.next[turn] = next;
      team_.team_barrier();
      item_ = shared_.next[turn];
      turn ^= 1;
    }
    first_ = end;
    team_.team_barrier();
  }

  /// To be called once by each team of a launch, when it has taken its part of all items.
  KOKKOS_INLINE_FUNCTION void end() const {
    if (queue_ == nullptr || team_.team_rank() != 0) return;
    if (Kokkos::atomic_fetch_add(&queue_->ended, 1u) + 1 == teams()) *queue_ = {};
  }

 private:
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::uint32_t teams() const {
    return static_cast<std::uint32_t>(team_.league_size());
  }
  [[nodiscard]] KOKKOS_INLINE_FUNCTION std::uint32_t claim() const {
    if (queue_ == nullptr) return item_ + teams();
    return teams() + Kokkos::atomic_fetch_add(&queue_->claimed, 1u);
  }

  const Team& team_;
  WorkQueue* queue_;
  Shared& shared_;
  std::uint32_t item_;       ///< the one that the team does next, counted over all calls of take()
  std::uint32_t first_ = 0;  ///< of the next call of take()
};

}  // namespace stateport::kernels
