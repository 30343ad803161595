// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_model.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

namespace stateport {
namespace {

// Measurements of these constants: docs/eviction-experiments.md ("Constants").

constexpr std::int64_t fit_requests = 50;    ///< between two fits
constexpr double half_life_requests = 8192;  ///< of the weight of observations
constexpr double weight_max = 8;             ///< of a hit deep in a long prompt, relative to the mean prompt
constexpr int last_turn_levels = -6;         ///< 1/8, as ReuseHint says
constexpr int tool_call_levels = 4;          ///< 4, as ReuseHint says
constexpr int left_levels = -6;              ///< 1/8: of an end that its session did not continue, as ReuseHint says
constexpr int repeat_class = 5;              ///< of ends: the prompt had been served before
constexpr int generation_max = 4;            ///< the classes of ends below that
constexpr int rung_class_max = 2;            ///< four blocks before the end, or more: CheckpointPlacement::rungs

constexpr std::uint8_t count_max = 15;  ///< of the counters of four bits

constexpr std::uint8_t saturated(int value) noexcept {
  return static_cast<std::uint8_t>(std::min<int>(value, count_max));
}

constexpr std::uint8_t class_of(HazardModel::Kind kind, int class_of_kind) noexcept {
  return static_cast<std::uint8_t>(static_cast<int>(kind) * HazardRates::classes_of_kind + class_of_kind);
}

/// Nearest to a factor, not further than all levels are apart.
int levels_of(double factor) noexcept {
  constexpr double levels_max = 16;
  return static_cast<int>(std::clamp(std::floor(2 * std::log2(factor) + 0.5), -levels_max, levels_max));
}

int levels_of(const ReuseHint& hint) noexcept {
  return levels_of(hint.factor) + (hint.last_turn ? last_turn_levels : 0) +
         (hint.tool_call_pending ? tool_call_levels : 0);
}

std::uint8_t matched_fraction(std::int64_t known, std::int64_t blocks) noexcept {
  if (known == 0) return 0;
  if (4 * known < blocks) return 1;
  if (2 * known < blocks) return 2;
  return 8 * known < 7 * blocks ? 3 : 4;
}

/// A value for each octave of the odds, from below 1/32 to above 32.
std::uint8_t octave_of_odds(double probability) noexcept {
  constexpr double octaves_max = 6;
  const double octave = std::floor(std::log2(probability / (1 - probability)));
  return static_cast<std::uint8_t>(std::clamp(octave, -octaves_max, octaves_max - 1) + octaves_max);
}

}  // namespace

HazardModel::HazardModel(std::size_t positions) : positions_(positions) {
  accounts_.reserve(positions);
  demands_.reserve(positions);
  own_rates_.reserve(positions);
}

void HazardModel::account(Position position) noexcept {
  Account& account = accounts_[position];
  const Demand& demand = demands_[position];
  const double to_s = now_s_ - demand.used_s;
  if (to_s <= account.exposed_s) return;
  const double expected = rates_.expose(demand.hazard_class, demand.level, account.weight, account.exposed_s, to_s);
  fractions_.expose(demand.fraction, expected / fractions_.of(demand.fraction));
  chances_.expose(demand.chance, expected / chances_.of_relative(demand.chance));
  account.exposed_s = to_s;
}

double HazardModel::hinted_index(const Demand& demand) const noexcept {
  int level = demand.level;
  if (demand.session_place != 0 && sessions_.went_on(demand.session_place, demand.used_s))
    level = std::max(level + left_levels, 0);
  const double age_s = now_s_ - demand.used_s;
  const double idle_s = rates_.ages().begin_s(demand.idle_bucket) - age_s;
  if (idle_s > 0) return rates_.index_after(demand.hazard_class, level, demand.idle_bucket, idle_s);
  return rates_.index(demand.hazard_class, level, age_s);
}

void HazardModel::set_time(double now_s) noexcept {
  fit_if_due();
  now_s_ = std::max(now_s_, now_s);
}

PromptPast HazardModel::start_request(const PromptFacts& prompt) noexcept {
  fit_if_due();
  PromptPast past{.looked_up_s = now_s_};
  blocks_seen_ += prompt.blocks;
  requests_seen_ += 1;
  auto depth = static_cast<std::int32_t>(prompt.keys.size());
  Position position = none;
  while (depth > 0 && (position = positions_.find(prompt.keys[static_cast<std::size_t>(depth) - 1])) == none) --depth;
  if (depth == 0) return past;

  const Demand& demand = demands_[position];
  past.known_blocks = depth;
  past.repeat = depth == prompt.blocks;
  // A prompt that shares little of its length with the chain begins a chain of its own.
  if (past.repeat)
    past.generation = demand.generation;
  else if (4 * std::int64_t{depth} >= prompt.blocks)
    past.generation = saturated(demand.generation + 1);
  hit(position);

  // Only a part of the known prompt is cached: the request falls back to a position there. If that is a fork, it
  // serves.
  if (prompt.matched_blocks >= depth) return past;
  std::int32_t fork = prompt.matched_blocks;
  while (fork > 0 && (position = positions_.find(prompt.keys[static_cast<std::size_t>(fork) - 1])) == none) --fork;
  if (fork > 0 && std::ranges::binary_search(prompt.forks, fork)) hit(position);
  return past;
}

// Not inline: this source is compiled without fused operations.
double HazardModel::with_own_rate(Position position, double learned) const noexcept {
  return own_rates_[position].combined(learned, now_s_);
}

/// A request came back here.
void HazardModel::hit(Position position) noexcept {
  account(position);
  OwnRate& own = own_rates_[position];
  own.hit(now_s_);
  Demand& demand = demands_[position];
  const double weight = accounts_[position].weight;
  rates_.hit(demand.hazard_class, now_s_ - demand.used_s, weight);
  fractions_.hit(demand.fraction, weight);
  chances_.hit(demand.chance, weight);
  const std::uint8_t uses = saturated(demand.uses + 1);
  demand = {.used_s = now_s_,
            .hazard_class = class_of(Kind::inner, std::min(uses - 1, HazardRates::classes_of_kind - 1)),
            .generation = demand.generation,
            .own_rate = own.counts()};
  demand.uses = uses & count_max;
  accounts_[position].exposed_s = 0;
  positions_.use(position);
}

void HazardModel::fit_if_due() noexcept {
  if (requests_ < fit_requests) return;
  requests_ = 0;
  for (Position position = 0; position < positions_.size(); ++position) account(position);
  rates_.fit();
  const double kept = std::pow(0.5, double{fit_requests} / half_life_requests);
  rates_.decay(kept);
  fractions_.decay(kept);
  chances_.decay(kept);
}

HazardModel::Position HazardModel::find_or_add(PositionKey key, std::uint8_t account) noexcept {
  Position position = positions_.find(key);
  if (position != none) {
    this->account(position);
    positions_.use(position);
    positions_.give(position, account);
    return position;
  }
  if (!positions_.is_full()) {
    accounts_.emplace_back();
    demands_.emplace_back();
    own_rates_.emplace_back();
    return positions_.add(key, account);
  }
  position = positions_.oldest(account);
  if (position == none) return none;
  this->account(position);
  positions_.replace(position, key, account);
  accounts_[position] = {};
  demands_[position] = {};
  own_rates_[position] = {};
  return position;
}

void HazardModel::touch(Position position, const KeptFacts& prefix, Kind kind, int class_of_kind) noexcept {
  accounts_[position] = {
      .weight =
          std::min(weight_max, prefix.depth_blocks / std::max(1.0, blocks_seen_ / std::max(1.0, requests_seen_)))};
  OwnRate& own = own_rates_[position];
  demands_[position] = {.used_s = prefix.prompt.past.looked_up_s.value_or(now_s_),
                        .hazard_class = class_of(kind, class_of_kind),
                        .own_rate = own.counts()};
  own.keep(demands_[position].used_s);
}

void HazardModel::touch_end(Position position, const KeptFacts& prefix) noexcept {
  const PromptPast& past = prefix.prompt.past;
  touch(position, prefix, Kind::end, past.repeat ? repeat_class : std::min<int>(past.generation, generation_max));
  Demand& demand = demands_[position];
  demand.fraction = matched_fraction(past.known_blocks, prefix.prompt.blocks) & count_max;
  if (const double reported = prefix.prompt.hint.continues; reported > 0)
    demand.chance = octave_of_odds(reported) & count_max;
  demand.generation = saturated(past.generation) & count_max;
  demand.idle_bucket = static_cast<std::uint8_t>(
      AgeBuckets::of(std::min(prefix.prompt.hint.expected_idle_s, rates_.ages().last_begin_s())));
  demand.session_place = sessions_.use(prefix.prompt.hint.session, demand.used_s);
  const double learned = fractions_.of(demand.fraction) * chances_.of_relative(demand.chance);
  const int level = levels_of(learned) + HazardRates::neutral_level + levels_of(prefix.prompt.hint);
  demand.level = static_cast<std::uint8_t>(std::clamp(level, 0, HazardRates::levels - 1));
}

HazardModel::Position HazardModel::remember(const KeptFacts& prefix) noexcept {
  if (prefix.depth_blocks == 0) return none;
  if (prefix.at != KeptAt::end)
    if (const Position known = positions_.find(prefix.key); known != none) return known;
  const Position position = find_or_add(prefix.key, tenants_ == nullptr ? 0 : tenants_->account_of(prefix.index));
  if (position == none) return none;
  if (prefix.at == KeptAt::end) {
    touch_end(position, prefix);
  } else if (prefix.at == KeptAt::branch) {
    touch(position, prefix, Kind::inner, 1);
    demands_[position].uses = 1;
  } else {
    const auto before_end = static_cast<std::uint32_t>(prefix.prompt.blocks - prefix.depth_blocks);
    const int rung_class = std::clamp(static_cast<int>(std::bit_width(before_end)) - 1, 0, rung_class_max);
    touch(position, prefix, Kind::rung, rung_class);
    demands_[position].uses = static_cast<std::uint8_t>(rung_class) & count_max;
  }
  return position;
}

std::size_t HazardModel::bytes() const noexcept {
  return sizeof(*this) + positions_.bytes() + accounts_.capacity() * sizeof(Account) +
         demands_.capacity() * sizeof(Demand) + own_rates_.capacity() * sizeof(OwnRate) + sessions_.bytes();
}

void HazardModel::check_invariants(std::span<const Position> pinned_by) const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "HazardModel", what); };
  positions_.check_invariants(pinned_by);
  rates_.check_invariants();
  check(accounts_.size() == positions_.size() && demands_.size() == positions_.size() &&
            own_rates_.size() == positions_.size(),
        "the tables of positions differ in length");
  for (Position position = 0; position < positions_.size(); ++position) {
    const Demand& demand = demands_[position];
    check(demand.hazard_class < HazardRates::classes && demand.level < HazardRates::levels,
          "a class or level is out of range");
    check(demand.idle_bucket < AgeBuckets::count && demand.session_place <= PromptSessions::places,
          "a hint is out of range");
    check(own_rates_[position].is_valid(), "an own rate is out of range");
    check(demand.own_rate == own_rates_[position].counts(), "an own rate counts before its time, or does not");
    check(accounts_[position].weight > 0 && accounts_[position].weight <= weight_max, "a weight is out of range");
  }
}

}  // namespace stateport
