// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>

#include "containers/hash_index.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace stateport {

/// Learns how soon the positions of prompts are used again. Its memory of a position outlives the position's eviction,
/// so that the cache's choices do not bias it.
///
/// Time to the next use is not memoryless (a chat has a dead time, a peak and a long tail), so the hazard is learned
/// per class of position and per age: hits / exposure in buckets of a third of a doubling of 1 + age in seconds. An
/// item's index is then Gittins': the best ratio, over all horizons, of the chance of a use to the time until it.
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
  using Position = std::uint32_t;
  static constexpr Position none = UINT32_MAX;
  static constexpr int neutral_level = 8;  ///< multiplier 1; two levels are a factor of 2

  /// The facts that an index depends on, and those for the next use of the position: 16 bytes, four to a cache line.
  struct Demand {
    double used_s = 0;
    std::uint16_t session_slot = 0;  ///< in sessions_, from 1 on: of the session that will come back; 0: no hint
    std::uint8_t idle_bucket = 0;    ///< of the age before which no use is expected; 0: no hint
    std::uint8_t hazard_class = no_class;
    std::uint8_t level = neutral_level;
    std::uint8_t fraction : 4 = no_factor;  ///< factor by how much of the request was known
    std::uint8_t chance : 4 = no_factor;    ///< factor by the engine's hint about the request's future
    std::uint8_t generation : 4 = 0;        ///< saturates
    std::uint8_t uses : 4 = 0;              ///< saturates
    bool own_rate = false;                  ///< the position was hit often enough to have a rate of its own
    [[nodiscard]] bool hinted() const noexcept { return (idle_bucket | session_slot) != 0; }
    [[nodiscard]] bool known() const noexcept { return hazard_class != no_class; }
    friend bool operator==(const Demand& a, const Demand& b) noexcept {
      return std::memcmp(&a, &b, sizeof(Demand)) == 0;  // no padding, no -0
    }
  };

  explicit HazardModel(std::size_t positions);

  /// Ages count from the latest time told.
  void set_time(double now_s) noexcept;
  /// Learns from a request: the deepest of its positions that is known was used now, whether cached or not.
  [[nodiscard]] PromptPast start_request(const PromptFacts& prompt) noexcept;
  /// Counts a request. After every 50 the hazards are fitted again and older observations lose weight. That waits for
  /// the next request or time: all evictions for one request see the same hazards.
  void finish_request() noexcept;

  /// A prefix of a request was kept. Its last position is remembered: an end anew, others where they are not known.
  /// None without a whole block, or if all that could be forgotten is pinned. The session of an end's hint will not
  /// come back to where it ended before.
  Position remember(const KeptFacts& prefix) noexcept;

  /// A pinned position is not forgotten until it is unpinned as often.
  void pin(Position position) noexcept;
  void unpin(Position position) noexcept;

  /// Valid until a position is remembered.
  [[nodiscard]] const Demand& demand(Position position) const noexcept {
    return position == none ? unknown : demands_[position];
  }
  /// A hint that demand() will be asked.
  void fetch(Position position) const noexcept { detail::prefetch(&demand(position)); }
  /// Uses per second that a demand promises from now on. Not known: 0.
  [[nodiscard]] double index(const Demand& demand) const noexcept;
  /// The same of a position whose demand has an own_rate: `learned` for its class, drawn towards the rate at which this
  /// position was hit so far, the more the more often it was.
  [[nodiscard]] double with_own_rate(Position position, double learned) const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Throws std::logic_error naming the first violation, also unless the pins are those of `pinned_by`. O(positions).
  void check_invariants(std::span<const Position> pinned_by) const;

 private:
  static constexpr int kinds = 3;
  static constexpr int classes_of_kind = 6;
  static constexpr int classes = kinds * classes_of_kind;
  static constexpr int buckets = 60;
  static constexpr int buckets_of_doubling = 3;
  static constexpr double cube_root_of_2 = 1.259921049894873165;
  static constexpr double cube_root_of_4 = 1.587401051968199475;
  /// By the first bits of a mantissa. Where they do not tell, or the logarithm may be rounded up, it decides itself.
  static constexpr int third_bits = 8;
  static constexpr std::uint8_t doubtful_third = UINT8_MAX;
  static constexpr auto thirds_of_doubling = [] {
    constexpr auto place = [](double threshold) {
      return std::bit_cast<std::uint64_t>(threshold) >> (52 - third_bits) & ((1U << third_bits) - 1);
    };
    std::array<std::uint8_t, 1U << third_bits> thirds{};
    for (std::size_t at = 0; at < thirds.size(); ++at)
      thirds[at] = static_cast<std::uint8_t>((at > place(cube_root_of_2)) + (at > place(cube_root_of_4)));
    for (const std::size_t at :
         {std::size_t{place(cube_root_of_2)}, std::size_t{place(cube_root_of_4)}, thirds.size() - 1})
      thirds[at] = doubtful_third;
    return thirds;
  }();
  static constexpr int levels = 17;
  /// Of index_ and chance_, by class: one row a level. Only ends have a factor, so only they have other levels than the
  /// neutral one.
  static constexpr auto first_row = [] {
    std::array<std::uint8_t, classes> rows{};
    for (std::size_t c = 0; c < classes; ++c)
      rows[c] = static_cast<std::uint8_t>(c < classes_of_kind ? c * levels
                                                              : c + classes_of_kind * (levels - 1) - neutral_level);
    return rows;
  }();
  static constexpr std::uint8_t no_class = UINT8_MAX;
  static constexpr std::uint8_t no_factor = 15;  ///< 1
  static const Demand unknown;
  using Histogram = std::array<double, buckets>;

  static constexpr Position pinned_mark = UINT32_MAX - 1;
  static constexpr std::size_t sessions_max = 2048;

  // Facts about a position that ranking does not read.
  struct Entry {
    PositionKey key = 0;
    double accounted_s = 0;  ///< age up to which exposure was counted
    double weight = 1;
    Position newer = none;  ///< among those that may be forgotten; pinned_mark: none of them
    Position older = none;  ///< pinned: number of pins
    [[nodiscard]] bool pinned() const noexcept { return newer == pinned_mark; }
  };
  /// How much oftener than the class tells are positions hit of which something else is known. Learned, each value of
  /// it by itself.
  struct Factors {
    std::array<double, no_factor> hits{};
    std::array<double, no_factor> expected{};  ///< if the factor were 1
    double all_hits = 0;
    double all_expected = 0;
    [[nodiscard]] static double ratio(double hits, double expected) noexcept;
    [[nodiscard]] double of(std::uint8_t value) const noexcept;
    /// Relative to the mean of all values: a feature that tells nothing has 1, whatever the class has learned so far.
    [[nodiscard]] double of_relative(std::uint8_t value) const noexcept;
    void hit(std::uint8_t value, double weight) noexcept;
    void expose(std::uint8_t value, double expected_hits) noexcept;
    void decay(double kept) noexcept;
  };
  // How often a position was hit since it became known, cached or not.
  struct OwnRate {
    double hit_s = 0;  ///< the last time, or when it became known
    float span_s = 0;  ///< from then to the last time
    float hits = 0;
  };
  struct Session {
    std::uint64_t id = 0;
    double since_s = 0;  ///< has this place since then
    double used_s = 0;   ///< its last request
  };

  [[nodiscard]] static int bucket(double age_s) noexcept;
  [[nodiscard]] static constexpr std::size_t row(int hazard_class, int level) noexcept {
    return static_cast<std::size_t>(first_row[static_cast<std::size_t>(hazard_class)] + level);
  }
  [[nodiscard]] double width_s(int bucket) const noexcept {
    const auto at = static_cast<std::size_t>(bucket);
    return (bucket + 1 < buckets ? bucket_start_s_[at + 1] : bucket_end_s_) - bucket_start_s_[at];
  }
  [[nodiscard]] double compute_index(int hazard_class, int level, int from, double idle_s = 0) const noexcept;
  [[nodiscard]] double index_at(int hazard_class, int level, int from) const noexcept;
  [[nodiscard]] double hinted_index(const Demand& demand) const noexcept;
  [[nodiscard]] std::uint16_t find_session(std::uint64_t id, double now_s) noexcept;
  void account(Position position) noexcept;
  void hit(Position position) noexcept;
  void fit_if_due() noexcept;
  void fit() noexcept;
  void decay() noexcept;
  [[nodiscard]] Position find(PositionKey key) const noexcept;
  Position find_or_add(PositionKey key) noexcept;
  [[nodiscard]] static std::uint8_t class_of(Kind kind, int class_of_kind) noexcept {
    return static_cast<std::uint8_t>(static_cast<int>(kind) * classes_of_kind + class_of_kind);
  }
  void touch(Position position, const KeptFacts& prefix, Kind kind, int class_of_kind) noexcept;
  void touch_end(Position position, const KeptFacts& prefix) noexcept;
  void make_newest(Position position) noexcept;
  void leave_list(Position position) noexcept;

  std::size_t capacity_;
  Table<Entry> entries_;                                    ///< by position
  Table<Demand> demands_;                                   ///< by position
  Table<OwnRate> own_rates_;                                ///< by position
  Table<Session> sessions_ = Table<Session>(sessions_max);  ///< one that another one hashes to is forgotten
  detail::HashIndex table_{80};                             ///< position by key
  Position newest_ = none;
  Position oldest_ = none;

  double now_s_ = 0;
  double blocks_seen_ = 0;
  double requests_seen_ = 0;
  std::int64_t requests_ = 0;  ///< since the last fit

  std::array<Histogram, classes> hits_{};
  std::array<Histogram, classes> exposure_{};
  std::array<Histogram, classes> hazard_{};
  std::array<Histogram, classes> highest_from_{};  ///< of the hazards from this bucket on
  Factors fractions_;
  Factors chances_;
  Histogram bucket_start_s_{};
  double bucket_end_s_ = 0;  ///< of the last bucket
  std::array<double, levels> multiplier_{};
  // By row(); filled on demand, emptied by fit(): < 0 is empty.
  static constexpr std::size_t rows = classes_of_kind * levels + classes - classes_of_kind;
  mutable std::array<Histogram, rows> index_{};
  mutable std::array<Histogram, rows> chance_{};  ///< of a use in a whole bucket
};

inline const HazardModel::Demand HazardModel::unknown;

// Some 26 candidates are ranked for a victim: these run for each.

inline int HazardModel::bucket(double age_s) noexcept {
  // floor(3 · log2(1 + age)), from the exponent and the first bits of the mantissa.
  const double grown = 1 + std::max(age_s, 0.0);
  const auto bits = std::bit_cast<std::uint64_t>(grown);
  const std::uint8_t third = thirds_of_doubling[bits >> (52 - third_bits) & (thirds_of_doubling.size() - 1)];
  if (third == doubtful_third) [[unlikely]]
    return std::min(static_cast<int>(buckets_of_doubling * std::log2(grown)), buckets - 1);
  const int doublings = static_cast<int>(bits >> 52) - 1023;
  return std::min(doublings * buckets_of_doubling + third, buckets - 1);
}

inline double HazardModel::index_at(int hazard_class, int level, int from) const noexcept {
  double& known = index_[row(hazard_class, level)][static_cast<std::size_t>(from)];
  if (known < 0) known = compute_index(hazard_class, level, from);
  return known;
}

inline double HazardModel::index(const Demand& demand) const noexcept {
  if (!demand.known()) return 0;
  if (demand.hinted()) [[unlikely]]
    return hinted_index(demand);
  return index_at(demand.hazard_class, demand.level, bucket(now_s_ - demand.used_s));
}

}  // namespace stateport
