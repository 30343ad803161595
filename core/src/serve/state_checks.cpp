// SPDX-License-Identifier: Apache-2.0
#include "serve/state_checks.hpp"

#include "serve/request_options.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

/// Of the store that has the checkpoints of the group.
std::size_t places_of(const RequestCacheOptions& options, std::size_t group) {
  return static_cast<std::size_t>(std::max(checkpoint_slots(options, group), state_slots(options, group)));
}

}  // namespace

StateChecks::StateChecks(const RequestCacheOptions& options) {
  std::size_t all = 0;
  for (std::size_t g = 0; g < group_count(options); ++g) all += places_.emplace_back(places_of(options, g)).size();
  // One call publishes into each place at most twice, once by a load, and stores what the place had before; each
  // request reads one state of each group.
  const std::size_t most = 4 * all + 2 * index_rows(options) * group_count(options);
  usage.checks_max = static_cast<std::int64_t>(most);
  checks_.reserve(most);
  taken_.reserve(most);
  constexpr std::size_t stored_min = 1024;
  if (options.tiers.enabled()) stored_.resize(std::max(all, stored_min));
}

void StateChecks::published(std::size_t group, SlotId slot, RequestId request, const PrefixHash& prefix,
                            bool is_found) {
  Place& place = at(group, slot);
  place.content = {};
  place.is_found = false;
  if (std::cmp_equal(checks_.size(), usage.checks_max)) {
    ++usage.unchecked_states;
    return;
  }
  place.content = {.number = ++last_content_, .prefix = prefix};
  place.is_found = is_found;
  checks_.push_back({.kind = StateCheck::Kind::published,
                     .group = static_cast<std::int32_t>(group),
                     .slot = slot,
                     .content = place.content.number,
                     .request = request,
                     .pass = pass_});
}

void StateChecks::lost(std::size_t group, SlotId slot) noexcept {
  Place& place = at(group, slot);
  if (!std::exchange(place.is_found, false)) return;
  place.left = place.content;
}

/// The bytes of a checkpoint that the same list publishes are summed with it: there is nothing to compare yet.
void StateChecks::push_read(const StateCheck& check) {
  if (check.content == 0 || check.content > known_content_ || std::cmp_equal(checks_.size(), usage.checks_max)) return;
  checks_.push_back(check);
}

void StateChecks::read(std::size_t group, SlotId slot, RequestId request, std::uint64_t pass) {
  push_read({.group = static_cast<std::int32_t>(group),
             .slot = slot,
             .content = at(group, slot).content.number,
             .request = request,
             .pass = pass});
}

void StateChecks::stored(std::size_t group, SlotId slot, const PrefixHash& prefix) {
  const Place& place = at(group, slot);
  const Content& content = place.content.prefix == prefix ? place.content : place.left;
  if (content.prefix != prefix) return;
  push_read({.group = static_cast<std::int32_t>(group), .slot = slot, .content = content.number, .request = {}});
  stored_[next_stored_] = content;
  next_stored_ = (next_stored_ + 1) % stored_.size();
}

void StateChecks::clear() noexcept {
  for (std::vector<Place>& places : places_) std::ranges::fill(places, Place{});
  std::ranges::fill(stored_, Content{});
  checks_.clear();
}

/// Without checkpoints that others have replaced by now. What a transfer stores is checked all the same, and first: the
/// slot has it until the work of this answer runs, which may publish another checkpoint there.
CheckPlan StateChecks::take() {
  taken_.clear();
  for (const StateCheck& check : checks_)
    if (!check.request.valid()) taken_.push_back(check);
  for (const StateCheck& check : checks_)
    if (check.request.valid() && place_of(check).content.number == check.content) taken_.push_back(check);
  for (const StateCheck& check : taken_) ++(check.kind == StateCheck::Kind::published ? usage.published : usage.reads);
  checks_.clear();
  known_content_ = last_content_;
  return taken_;
}

bool StateChecks::is_current(const StateCheck& check) const noexcept {
  const Place& place = place_of(check);
  return place.is_found && place.content.number == check.content;
}

std::optional<PrefixHash> StateChecks::stored_prefix(std::uint64_t content) const noexcept {
  const auto found = std::ranges::find(stored_, content, &Content::number);
  if (content == 0 || found == stored_.end()) return std::nullopt;
  return found->prefix;
}

}  // namespace stateport::detail
