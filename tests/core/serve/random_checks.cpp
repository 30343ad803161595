// SPDX-License-Identifier: Apache-2.0
#include "random_engine.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace stateport::test {

std::optional<StateFault::Kind> RandomEngine::Checks::fault_of(const StateCheck& check) const {
  const auto known = published_.find({check.group, check.slot});
  if (known == published_.end() || known->second.check.content != check.content) return StateFault::Kind::other_state;
  const bool same = known->second.state == world_.checkpoint(static_cast<std::size_t>(check.group), check.slot);
  return same ? std::nullopt : std::optional(StateFault::Kind::changed);
}

/// A fault is one of a checkpoint that was damaged.
void RandomEngine::Checks::check(const StateCheck& check) {
  if (check.kind == StateCheck::Kind::published) {
    const StateWorld::Slot& state = world_.checkpoint(static_cast<std::size_t>(check.group), check.slot);
    published_[{check.group, check.slot}] = {check, state};
    loaded_.erase({check.group, check.slot});
    return;
  }
  ++engine_.checks;
  const std::optional<StateFault::Kind> kind = fault_of(check);
  if (!kind) return;
  REQUIRE(*kind == StateFault::Kind::changed);
  REQUIRE(damaged_.contains(check.content));
  faults_.push_back({.kind = *kind, .check = check});
  if (check.request.valid()) readers_.insert(check.request);
}

void RandomEngine::Checks::begin() {
  if (engine_.cache_->integrity() == nullptr) return;
  const CheckPlan plan = engine_.cache_->integrity()->take();
  begun_.assign(plan.begin(), plan.end());
  for (const StateCheck& begun : begun_)
    if (!begun.request.valid()) check(begun);
}

void RandomEngine::Checks::end() {
  for (const StateCheck& begun : std::exchange(begun_, {}))
    if (begun.request.valid()) check(begun);
  if (faults_.empty()) return;
  engine_.faults += std::ssize(faults_);
  CacheIntegrity& integrity = *engine_.cache_->integrity();
  for (const StateFault& fault : faults_) {
    if (integrity.withdraw({&fault, 1}) == 0) continue;
    ++engine_.withdrawn;
    engine_.prefixes_->withdraw(published_.at({fault.check.group, fault.check.slot}).state.recurrent.value());
  }
  REQUIRE(integrity.withdraw(faults_) == 0);
  faults_.clear();
}

void RandomEngine::Checks::end_readers() {
  if (readers_.empty()) return;
  engine_.cancel();
  for (const RequestId reader : std::exchange(readers_, {})) engine_.end(reader);
}

/// In columns a running request works in blocks that are published already. A request that has ended may be kept for
/// its forks, with its slot.
bool RandomEngine::Checks::is_worked_in(const StateCheck& check) const {
  if (has_separate_checkpoints(engine_.options_)) return false;
  if (std::cmp_not_equal(engine_.cache_->running_requests(), engine_.running_.size())) return true;
  return std::ranges::any_of(engine_.running_, [&](const auto& running) {
    const auto& [id, live] = running;
    if (!live.begun && !live.is_fork && in_columns(engine_.options_)) return false;
    const auto slots = engine_.cache_->state(id, static_cast<std::size_t>(check.group)).slots;
    return std::ranges::find(slots, check.slot.value()) != slots.end();
  });
}

void RandomEngine::Checks::damage() {
  if (published_.empty()) return;
  const auto at = std::next(published_.begin(), engine_.random_.between(0, std::ssize(published_) - 1));
  const StateCheck& check = at->second.check;
  if (loaded_.contains(at->first)) return;  // its checkpoint is not published yet
  if (fault_of(check) || is_worked_in(check)) return;
  StateWorld::Slot& state = world_.checkpoint(static_cast<std::size_t>(check.group), check.slot);
  for (std::optional<Tokens>* part : {&state.inputs, &state.recurrent})
    if (*part && !(*part)->empty()) (*part)->front() = -1;
  damaged_.insert(check.content);
  ++engine_.damaged;
}

bool RandomEngine::Checks::has_intact_hit(RequestId id) const {
  for (std::size_t g = 0; engine_.running_.at(id).reused_tokens > 0 && g < group_count(engine_.options_); ++g) {
    const SlotId slot = engine_.cache_->places(id, g).state;
    const auto known = published_.find({static_cast<std::int32_t>(g), slot});
    if (known != published_.end() && damaged_.contains(known->second.check.content)) return false;
  }
  return true;
}

}  // namespace stateport::test
