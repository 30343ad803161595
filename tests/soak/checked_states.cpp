// SPDX-License-Identifier: Apache-2.0
#include "checked_states.hpp"

#include "violation.hpp"

#include <algorithm>
#include <cstddef>

namespace stateport::soak {

CheckedStates::CheckedStates(RequestCache& cache, MarkWorld& world) : cache_(cache), world_(world) {
  for (std::size_t g = 0; g < group_count(cache.options()); ++g)
    published_.emplace_back(
        static_cast<std::size_t>(std::max(checkpoint_slots(cache.options(), g), state_slots(cache.options(), g))));
}

/// What a transfer stores may be overwritten by other work of the answer.
void CheckedStates::begin() {
  const CheckPlan checks = cache_.integrity()->take();
  begun_.assign(checks.begin(), checks.end());
  for (const StateCheck& begun : begun_)
    if (!begun.request.valid()) check(begun);
}

void CheckedStates::end() {
  for (const StateCheck& begun : begun_)
    if (begun.request.valid()) check(begun);
  begun_.clear();
  must(cache_.integrity()->usage().unchecked_states == 0, "a checkpoint stays without checks");
}

void CheckedStates::check(const StateCheck& check) {
  const auto group = static_cast<std::size_t>(check.group);
  Published& published = published_.at(group).at(check.slot.index());
  const StateMark& state = world_.checkpoint(group, check.slot.value());
  if (check.kind == StateCheck::Kind::published) {
    published = {.check = check, .state = state};
    return;
  }
  must(published.check.content == check.content, "a check of a checkpoint that is not in its slot");
  must(published.state == state, "a checkpoint changed after it was published");
}

const CheckedStates::Published& CheckedStates::pick(test::Random& random) const {
  const auto& group = published_[static_cast<std::size_t>(random.between(0, std::ssize(published_) - 1))];
  return group[static_cast<std::size_t>(random.between(0, std::ssize(group) - 1))];
}

void CheckedStates::write_to_some(test::Random& random) {
  const auto& [check, published] = pick(random);
  if (check.content == 0) return;
  StateMark& state = world_.checkpoint(static_cast<std::size_t>(check.group), check.slot.value());
  if (state == published) ++state.recurrent;
}

void CheckedStates::withdraw_some(test::Random& random) {
  const StateCheck check = pick(random).check;
  if (check.content == 0) return;
  const StateFault fault{.check = check};
  static_cast<void>(cache_.integrity()->withdraw({&fault, 1}));
}

}  // namespace stateport::soak
