// SPDX-License-Identifier: Apache-2.0
#include "evict/hazard_model.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

namespace stateport {
namespace {

constexpr std::int64_t fit_requests = 50;    // between two fits
constexpr double half_life_requests = 8192;  // of the weight of observations
constexpr double class_strength = 8;         // how many hits the pooled hazard counts for in a class
constexpr double factor_strength = 10;       // the same for the factor 1
constexpr double pooled_strength = 1;        // the same for the prior
constexpr double prior_hazard_per_s = 0.03;  // of ends
constexpr double other_prior = 0.1;          // of branch points and rungs, relative to it
constexpr double least_hazard_per_s = 1e-9;
constexpr double negligible_hazard = 1e-12;
constexpr double negligible_survival = 1e-4;
constexpr double rounding_margin = 1 + 1e-9;
constexpr double weight_max = 8;      // of a hit deep in a long prompt, relative to the mean prompt
constexpr int last_turn_levels = -6;  // 1/8
constexpr int tool_call_levels = 4;   // 4
constexpr int left_levels = -6;       // 1/8: of an end that its session did not continue
constexpr int repeat_class = 5;       // of ends: the prompt had been served before
constexpr int generation_max = 4;
constexpr float own_rate_hits = 3;           // from this number on a position has a rate of its own
constexpr float own_rate_strength = 8;       // how many hits the class counts for in it
constexpr double own_rate_start_s = 30;      // added to the time that it was known
constexpr double own_rate_wait_factor = 2;   // of the time since its last hit, which may be the begin of a long one
constexpr float own_rate_hits_max = 65'536;  // then it forgets one half
constexpr int rung_class_max = 2;            // four blocks before the end, or more

constexpr std::uint8_t count_max = 15;  // of the counters of four bits

constexpr std::uint8_t saturated(int value) noexcept {
  return static_cast<std::uint8_t>(std::min<int>(value, count_max));
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

double chance_within(double hazard_per_s, double width_s) noexcept {
  return 1 - std::exp(-hazard_per_s * width_s);
}

/// Expected time in a bucket for an item that is used in it with this chance.
double expected_wait_s(double chance, double hazard_per_s, double width_s) noexcept {
  return hazard_per_s > negligible_hazard ? chance / hazard_per_s : width_s;
}

std::uint32_t hash(PositionKey key) noexcept {
  return static_cast<std::uint32_t>(((key ^ (key >> 32)) * 0x9E3779B97F4A7C15U) >> 32);
}

}  // namespace

HazardModel::HazardModel(std::size_t positions) : capacity_(positions) {
  entries_.reserve(positions);
  demands_.reserve(positions);
  own_rates_.reserve(positions);
  table_.reserve(positions);
  for (int b = 0; b < buckets; ++b)
    bucket_start_s_[static_cast<std::size_t>(b)] = std::pow(2.0, b / double{buckets_of_doubling}) - 1;
  bucket_end_s_ = std::pow(2.0, buckets / double{buckets_of_doubling}) - 1;
  for (int level = 0; level < levels; ++level)
    multiplier_[static_cast<std::size_t>(level)] = std::pow(2.0, (level - neutral_level) / 2.0);
  fit();
}

double HazardModel::Factors::of(std::uint8_t value) const noexcept {
  return value == no_factor ? 1 : ratio(hits[value], expected[value]);
}

double HazardModel::Factors::of_relative(std::uint8_t value) const noexcept {
  return value == no_factor ? 1 : ratio(hits[value], expected[value]) / ratio(all_hits, all_expected);
}

double HazardModel::Factors::ratio(double hits, double expected) noexcept {
  return (hits + factor_strength) / (expected + factor_strength);
}

void HazardModel::Factors::hit(std::uint8_t value, double weight) noexcept {
  if (value == no_factor) return;
  hits[value] += weight;
  all_hits += weight;
}

/// Adds hits that were expected of it as it is.
void HazardModel::Factors::expose(std::uint8_t value, double expected_hits) noexcept {
  if (value == no_factor) return;
  expected[value] += expected_hits;
  all_expected += expected_hits;
}

void HazardModel::Factors::decay(double kept) noexcept {
  for (double& value : hits) value *= kept;
  for (double& value : expected) value *= kept;
  all_hits *= kept;
  all_expected *= kept;
}

void HazardModel::account(Position position) noexcept {
  Entry& entry = entries_[position];
  const Demand& demand = demands_[position];
  const double from_s = entry.accounted_s;
  const double to_s = now_s_ - demand.used_s;
  if (to_s <= from_s) return;
  const double multiplier = multiplier_[demand.level];
  Histogram& exposure = exposure_[demand.hazard_class];
  const Histogram& hazard = hazard_[demand.hazard_class];
  const auto first = static_cast<std::size_t>(bucket(from_s));
  const auto last = static_cast<std::size_t>(bucket(to_s));
  double expected_hits = 0;
  for (std::size_t b = first; b <= last; ++b) {
    const double low = std::max(from_s, bucket_start_s_[b]);
    const double high = b == buckets - 1 ? to_s : std::min(to_s, bucket_start_s_[b + 1]);
    if (high <= low) continue;
    exposure[b] += (high - low) * multiplier * entry.weight;
    expected_hits += (high - low) * hazard[b];
  }
  const double expected = expected_hits * (multiplier * entry.weight);
  fractions_.expose(demand.fraction, expected / fractions_.of(demand.fraction));
  chances_.expose(demand.chance, expected / chances_.of_relative(demand.chance));
  entry.accounted_s = to_s;
}

void HazardModel::fit() noexcept {
  for (Position position = 0; position < entries_.size(); ++position) account(position);
  const double fall = std::pow(2.0, -1.0 / buckets_of_doubling);
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    const std::size_t begin = kind * classes_of_kind;
    const std::size_t end = begin + classes_of_kind;
    // An age that was never seen inherits a hazard that falls as 1 / age.
    double prior = (kind == 0 ? 1.0 : other_prior) * prior_hazard_per_s;
    for (std::size_t b = 0; b < buckets; ++b) {
      double hits = 0;
      double exposure = 0;
      for (std::size_t c = begin; c < end; ++c) hits += hits_[c][b];
      for (std::size_t c = begin; c < end; ++c) exposure += exposure_[c][b];
      const double pooled = (hits + pooled_strength) / (exposure + pooled_strength / prior);
      for (std::size_t c = begin; c < end; ++c)
        hazard_[c][b] =
            (hits_[c][b] + class_strength) / (exposure_[c][b] + class_strength / std::max(pooled, least_hazard_per_s));
      prior = pooled * fall;
    }
  }
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t b = buckets; b-- > 0;)
      highest_from_[c][b] = b + 1 < buckets ? std::max(hazard_[c][b], highest_from_[c][b + 1]) : hazard_[c][b];
  for (Histogram& indices : index_) indices.fill(-1);
  for (Histogram& chances : chance_) chances.fill(-1);
}

void HazardModel::decay() noexcept {
  const double kept = std::pow(0.5, double{fit_requests} / half_life_requests);
  for (auto* table : {&hits_, &exposure_})
    for (Histogram& of_class : *table)
      for (double& value : of_class) value *= kept;
  fractions_.decay(kept);
  chances_.decay(kept);
}

/// Of an item that waits for the begin of the bucket `from` for so long, and is not used meanwhile.
double HazardModel::compute_index(int hazard_class, int level, int from, double idle_s) const noexcept {
  const Histogram& hazards = hazard_[static_cast<std::size_t>(hazard_class)];
  const Histogram& highest = highest_from_[static_cast<std::size_t>(hazard_class)];
  const double multiplier = multiplier_[static_cast<std::size_t>(level)];
  Histogram& chances = chance_[row(hazard_class, level)];
  double survival = 1;
  double used = 0;            // chance of a use within the horizon
  double waiting_s = idle_s;  // expected time until then
  double best = 0;
  const auto extend = [&](double chance, double hazard, double bucket_s) {
    used += survival * chance;
    waiting_s += survival * expected_wait_s(chance, hazard, bucket_s);
    survival *= 1 - chance;
    best = std::max(best, used / waiting_s);
  };
  // Of the bucket that it is in, an item has half before it.
  const double half_s = width_s(from) * 0.5;
  const double first_hazard = hazards[static_cast<std::size_t>(from)] * multiplier;
  extend(chance_within(first_hazard, half_s), first_hazard, half_s);
  for (int b = from + 1; b < buckets && survival >= negligible_survival; ++b) {
    const auto at = static_cast<std::size_t>(b);
    // A longer horizon has a mean of this ratio and of hazards to come: if those are all lower, the best is found.
    if (highest[at] * multiplier * rounding_margin < best) break;
    const double hazard = hazards[at] * multiplier;
    if (chances[at] < 0) chances[at] = chance_within(hazard, width_s(b));
    extend(chances[at], hazard, width_s(b));
  }
  return best;
}

double HazardModel::hinted_index(const Demand& demand) const noexcept {
  int level = demand.level;
  if (demand.session_slot != 0) {
    // The place may have gone to another session since: then nothing is known.
    const Session& session = sessions_[demand.session_slot - std::size_t{1}];
    const bool left = session.since_s <= demand.used_s && demand.used_s < session.used_s;
    if (left) level = std::max(level + left_levels, 0);
  }
  const double age_s = now_s_ - demand.used_s;
  const double idle_s = bucket_start_s_[demand.idle_bucket] - age_s;
  if (idle_s > 0) return compute_index(demand.hazard_class, level, demand.idle_bucket, idle_s);
  return index_at(demand.hazard_class, level, bucket(age_s));
}

/// The place of a session that has a request now, from 1 on; 0 for none.
std::uint16_t HazardModel::find_session(std::uint64_t id, double now_s) noexcept {
  if (id == 0) return 0;
  const std::size_t place = hash(id) % sessions_max;
  Session& session = sessions_[place];
  if (session.id != id) session = {.id = id, .since_s = now_s, .used_s = now_s};
  session.used_s = std::max(session.used_s, now_s);
  return static_cast<std::uint16_t>(place + 1);
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
  while (depth > 0 && (position = find(prompt.keys[static_cast<std::size_t>(depth) - 1])) == none) --depth;
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
  while (fork > 0 && (position = find(prompt.keys[static_cast<std::size_t>(fork) - 1])) == none) --fork;
  if (fork > 0 && std::ranges::binary_search(prompt.forks, fork)) hit(position);
  return past;
}

/// A request came back here.
void HazardModel::hit(Position position) noexcept {
  account(position);
  OwnRate& own = own_rates_[position];
  own.span_s += static_cast<float>(std::max(now_s_ - own.hit_s, 0.0));
  own.hit_s = std::max(own.hit_s, now_s_);
  if (++own.hits >= own_rate_hits_max) {
    own.hits /= 2;
    own.span_s /= 2;
  }
  Demand& demand = demands_[position];
  const double weight = entries_[position].weight;
  hits_[demand.hazard_class][static_cast<std::size_t>(bucket(now_s_ - demand.used_s))] += weight;
  fractions_.hit(demand.fraction, weight);
  chances_.hit(demand.chance, weight);
  const std::uint8_t uses = saturated(demand.uses + 1);
  demand = {.used_s = now_s_,
            .hazard_class = class_of(Kind::inner, std::min(uses - 1, classes_of_kind - 1)),
            .generation = demand.generation,
            .own_rate = own.hits >= own_rate_hits};
  demand.uses = uses & count_max;
  entries_[position].accounted_s = 0;
  make_newest(position);
}

double HazardModel::with_own_rate(Position position, double learned) const noexcept {
  const OwnRate& own = own_rates_[position];
  const double known_s = own.span_s + own_rate_wait_factor * (now_s_ - own.hit_s) + own_rate_start_s;
  const double trust = own.hits / (own.hits + own_rate_strength);
  return std::pow(learned, 1 - trust) * std::pow(own.hits / known_s, trust);
}

void HazardModel::finish_request() noexcept {
  ++requests_;
}

void HazardModel::fit_if_due() noexcept {
  if (requests_ < fit_requests) return;
  requests_ = 0;
  fit();
  decay();
}

HazardModel::Position HazardModel::find(PositionKey key) const noexcept {
  return table_.find(hash(key), [&](Position position) { return entries_[position].key == key; });
}

HazardModel::Position HazardModel::find_or_add(PositionKey key) noexcept {
  Position position = find(key);
  if (position != none) {
    account(position);
    make_newest(position);
    return position;
  }
  if (entries_.size() < capacity_) {
    position = static_cast<Position>(entries_.size());
    entries_.emplace_back();
    demands_.emplace_back();
    own_rates_.emplace_back();
  } else {
    position = oldest_;
    if (position == none) return none;
    account(position);
    leave_list(position);
    table_.erase(hash(entries_[position].key), position);
    entries_[position] = {};
    demands_[position] = {};
    own_rates_[position] = {};
  }
  entries_[position].key = key;
  table_.insert(hash(key), position);
  make_newest(position);
  return position;
}

void HazardModel::touch(Position position, const KeptFacts& prefix, Kind kind, int class_of_kind) noexcept {
  Entry& entry = entries_[position];
  entry.accounted_s = 0;
  entry.weight =
      std::min(weight_max, prefix.depth_blocks / std::max(1.0, blocks_seen_ / std::max(1.0, requests_seen_)));
  OwnRate& own = own_rates_[position];
  demands_[position] = {.used_s = prefix.prompt.past.looked_up_s.value_or(now_s_),
                        .hazard_class = class_of(kind, class_of_kind),
                        .own_rate = own.hits >= own_rate_hits};
  if (own.hits == 0) own.hit_s = std::max(own.hit_s, demands_[position].used_s);
}

void HazardModel::touch_end(Position position, const KeptFacts& prefix) noexcept {
  const PromptPast& past = prefix.prompt.past;
  touch(position, prefix, Kind::end, past.repeat ? repeat_class : std::min<int>(past.generation, generation_max));
  Demand& demand = demands_[position];
  demand.fraction = matched_fraction(past.known_blocks, prefix.prompt.blocks) & count_max;
  if (const double told = prefix.prompt.hint.continues; told > 0) demand.chance = octave_of_odds(told) & count_max;
  demand.generation = saturated(past.generation) & count_max;
  demand.idle_bucket =
      static_cast<std::uint8_t>(bucket(std::min(prefix.prompt.hint.expected_idle_s, bucket_start_s_.back())));
  demand.session_slot = find_session(prefix.prompt.hint.session, demand.used_s);
  const double learned = fractions_.of(demand.fraction) * chances_.of_relative(demand.chance);
  const int level = levels_of(learned) + neutral_level + levels_of(prefix.prompt.hint);
  demand.level = static_cast<std::uint8_t>(std::clamp(level, 0, levels - 1));
}

HazardModel::Position HazardModel::remember(const KeptFacts& prefix) noexcept {
  if (prefix.depth_blocks == 0) return none;
  if (prefix.at != KeptAt::end)
    if (const Position known = find(prefix.key); known != none) return known;
  const Position position = find_or_add(prefix.key);
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

void HazardModel::pin(Position position) noexcept {
  Entry& entry = entries_[position];
  if (!entry.pinned()) {
    leave_list(position);
    entry.newer = pinned_mark;
    entry.older = 0;
  }
  ++entry.older;
}

void HazardModel::unpin(Position position) noexcept {
  Entry& entry = entries_[position];
  STATEPORT_ASSERT(entry.pinned() && entry.older > 0);
  if (--entry.older > 0) return;
  entry.newer = entry.older = none;
  make_newest(position);
}

void HazardModel::make_newest(Position position) noexcept {
  Entry& entry = entries_[position];
  if (entry.pinned() || newest_ == position) return;
  leave_list(position);
  entry.older = newest_;
  if (newest_ != none) entries_[newest_].newer = position;
  newest_ = position;
  if (oldest_ == none) oldest_ = position;
}

void HazardModel::leave_list(Position position) noexcept {
  Entry& entry = entries_[position];
  if (entry.newer != none) entries_[entry.newer].older = entry.older;
  if (entry.older != none) entries_[entry.older].newer = entry.newer;
  if (newest_ == position) newest_ = entry.older;
  if (oldest_ == position) oldest_ = entry.newer;
  entry.newer = entry.older = none;
}

std::size_t HazardModel::bytes() const noexcept {
  return sizeof(*this) + entries_.capacity() * sizeof(Entry) + demands_.capacity() * sizeof(Demand) +
         own_rates_.capacity() * sizeof(OwnRate) + sessions_.capacity() * sizeof(Session) + table_.bytes();
}

void HazardModel::check_invariants(std::span<const Position> pinned_by) const {
  const auto check = [](bool ok, const char* what) { require_invariant(ok, "HazardModel", what); };
  check(entries_.size() <= capacity_, "more positions than there is room for");
  std::vector<std::uint32_t> pins(entries_.size(), 0);
  for (const Position position : pinned_by) {
    check(position < entries_.size(), "a position is pinned that is not there");
    ++pins[position];
  }
  std::size_t pinned = 0;
  for (Position position = 0; position < entries_.size(); ++position) {
    const Entry& entry = entries_[position];
    check(find(entry.key) == position, "a position is not found by its key");
    const Demand& demand = demands_[position];
    check(demand.hazard_class < classes && demand.level < levels, "a class or level is out of range");
    check(demand.idle_bucket < buckets && demand.session_slot <= sessions_max, "a hint is out of range");
    const OwnRate& own = own_rates_[position];
    check(own.hits >= 0 && own.hits < own_rate_hits_max && own.span_s >= 0, "an own rate is out of range");
    check(demand.own_rate == (own.hits >= own_rate_hits), "an own rate counts before its time, or does not");
    check(entry.weight > 0 && entry.weight <= weight_max, "a weight is out of range");
    check((entry.pinned() ? entry.older : 0) == pins[position], "a position has other pins than candidates");
    pinned += entry.pinned();
  }
  check(demands_.size() == entries_.size() && own_rates_.size() == entries_.size(),
        "the tables of positions differ in length");
  check(table_.count() == entries_.size(), "the table has another number of positions");
  table_.check_invariants([this](Position position) { return hash(entries_[position].key); });
  std::size_t listed = 0;
  Position newer = none;
  for (Position position = newest_; position != none && listed <= entries_.size();
       position = entries_[position].older) {
    check(entries_[position].newer == newer && !entries_[position].pinned(), "the list of ages is broken");
    newer = position;
    ++listed;
  }
  check(oldest_ == newer && listed + pinned == entries_.size(), "a position is neither pinned nor in the list of ages");
  for (std::size_t c = 0; c < classes; ++c)
    for (std::size_t b = 0; b < buckets; ++b)
      check(hits_[c][b] >= 0 && exposure_[c][b] >= 0 && hazard_[c][b] > 0, "a histogram is negative");
}

}  // namespace stateport
