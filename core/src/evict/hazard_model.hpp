// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"
#include "evict/hazard_rates.hpp"
#include "evict/known_positions.hpp"
#include "evict/learned_factor.hpp"
#include "evict/own_rate.hpp"
#include "evict/prompt_sessions.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace stateport {

/// Learns how soon the positions of prompts are used again. Its memory of a position outlives the position's eviction,
/// so that the cache's choices do not bias it.
///
///     KnownPositions   which positions are known, and which is forgotten next
///     HazardRates      uses per second by class of position and by age
///     LearnedFactor    how much more or less a feature of a request promises than its class
///     OwnRate          uses per second of one position that was hit often
///     PromptSessions   whether a conversation went on elsewhere
///
/// All is deterministic; nothing allocates after construction. Floating-point operations are in a fixed order: every
/// rank of a group learns the same.
class HazardModel {
 public:
  enum class Kind : std::uint8_t {
    end,    ///< where a prompt ended
    inner,  ///< where one continued or branched
    rung    ///< a few blocks before an end
  };
  using Position = KnownPositions::Position;
  static constexpr Position none = KnownPositions::none;

  /// The facts that an index depends on, and those for the next use of the position: 16 bytes, four to a cache line.
  struct Demand {
    double used_s = 0;
    std::uint16_t session_place = 0;  ///< in PromptSessions: of the session that will come back; 0: no hint
    std::uint8_t idle_bucket = 0;     ///< of the age before which no use is expected; 0: no hint
    std::uint8_t hazard_class = no_class;
    std::uint8_t level = HazardRates::neutral_level;
    std::uint8_t fraction : 4 = LearnedFactor::none;  ///< by how much of the request was known
    std::uint8_t chance : 4 = LearnedFactor::none;    ///< by the engine's hint about the request's future
    std::uint8_t generation : 4 = 0;                  ///< saturates
    std::uint8_t uses : 4 = 0;                        ///< saturates
    bool own_rate = false;                            ///< OwnRate::counts()
    [[nodiscard]] bool hinted() const noexcept { return (idle_bucket | session_place) != 0; }
    [[nodiscard]] bool known() const noexcept { return hazard_class != no_class; }
    friend bool operator==(const Demand& a, const Demand& b) noexcept {
      return std::memcmp(&a, &b, sizeof(Demand)) == 0;  // no padding, no -0
    }
  };

  explicit HazardModel(std::size_t positions);
  /// Tenants have shares of the positions. Precondition: nothing is known yet. `tenants` must outlive this.
  void set_tenants(const CandidateTenants& tenants) {
    tenants_ = &tenants;
    positions_.share(tenants);
  }

  /// Ages count from the latest time reported.
  void set_time(double now_s) noexcept;
  /// Learns from a request: the deepest of its positions that is known was used now, whether cached or not.
  [[nodiscard]] PromptPast start_request(const PromptFacts& prompt) noexcept;
  /// Counts a request. After every 50 the hazards are fitted again and older observations lose weight. That waits for
  /// the next request or time: all evictions for one request see the same hazards.
  void finish_request() noexcept { ++requests_; }

  /// A prefix of a request was kept. Its last position is remembered: an end anew, others where they are not known.
  /// None without a whole block, or if all that could be forgotten is pinned. The session of an end's hint will not
  /// come back to where it ended before.
  Position remember(const KeptFacts& prefix) noexcept;

  /// A pinned position is not forgotten until it is unpinned as often.
  void pin(Position position) noexcept { positions_.pin(position); }
  void unpin(Position position) noexcept { positions_.unpin(position); }

  /// Valid until a position is remembered.
  [[nodiscard]] const Demand& demand(Position position) const noexcept {
    return position == none ? unknown : demands_[position];
  }
  /// A hint that demand() will be asked.
  void fetch(Position position) const noexcept { detail::prefetch(&demand(position)); }
  /// Uses per second that a demand promises from now on. Not known: 0.
  [[nodiscard]] double index(const Demand& demand) const noexcept;
  /// The same of a position whose demand has an own_rate: `learned` for its class, drawn towards its own rate.
  [[nodiscard]] double with_own_rate(Position position, double learned) const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Throws std::logic_error naming the first violation, also if the pins differ from `pinned_by`. O(positions).
  void check_invariants(std::span<const Position> pinned_by) const;

 private:
  static constexpr std::uint8_t no_class = UINT8_MAX;
  static const Demand unknown;

  /// Facts about a position that ranking does not read.
  struct Account {
    double exposed_s = 0;  ///< age up to which exposure was counted
    double weight = 1;
  };

  [[nodiscard]] double hinted_index(const Demand& demand) const noexcept;
  void account(Position position) noexcept;
  void hit(Position position) noexcept;
  void fit_if_due() noexcept;
  Position find_or_add(PositionKey key, std::uint8_t account) noexcept;
  void touch(Position position, const KeptFacts& prefix, Kind kind, int class_of_kind) noexcept;
  void touch_end(Position position, const KeptFacts& prefix) noexcept;

  KnownPositions positions_;
  const CandidateTenants* tenants_ = nullptr;
  Table<Account> accounts_;   ///< by position
  Table<Demand> demands_;     ///< by position
  Table<OwnRate> own_rates_;  ///< by position
  PromptSessions sessions_;
  HazardRates rates_;
  LearnedFactor fractions_;
  LearnedFactor chances_;
  double now_s_ = 0;
  double blocks_seen_ = 0;
  double requests_seen_ = 0;
  std::int64_t requests_ = 0;  ///< since the last fit
};

inline const HazardModel::Demand HazardModel::unknown;

// Some 26 candidates are ranked for a victim: this runs for each.

inline double HazardModel::index(const Demand& demand) const noexcept {
  if (!demand.known()) return 0;
  if (demand.hinted()) [[unlikely]]
    return hinted_index(demand);
  return rates_.index(demand.hazard_class, demand.level, now_s_ - demand.used_s);
}

}  // namespace stateport
