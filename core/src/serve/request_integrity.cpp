// SPDX-License-Identifier: Apache-2.0
#include "serve/request_integrity.hpp"

#include <stateport/core/model/error.hpp>

#include <utility>

namespace stateport::detail {
namespace {

/// States that the index loses meanwhile are not evicted, and no tier stores or keeps them.
class Withdrawing {
 public:
  explicit Withdrawing(RequestBook& book) : book_(book) { set(true); }
  ~Withdrawing() { set(false); }
  Withdrawing(const Withdrawing&) = delete;
  Withdrawing& operator=(const Withdrawing&) = delete;

 private:
  void set(bool withdraws) noexcept {
    book_.forgetting = withdraws;
    book_.news.set_withdrawing(withdraws);
  }
  RequestBook& book_;
};

}  // namespace

std::int32_t RequestIntegrity::withdraw(std::span<const StateFault> faults) {
  for (const StateFault& fault : faults) {
    require(fault.kind >= StateFault::Kind::changed && fault.kind <= StateFault::Kind::not_finite, "faults.kind",
            static_cast<int>(fault.kind), "is not a kind of fault");
    require(fault.check.group >= 0 && std::cmp_less(fault.check.group, checks_.groups()), "faults.check.group",
            fault.check.group, "is out of range");
    const std::size_t slots = checks_.slots(static_cast<std::size_t>(fault.check.group));
    require(fault.check.slot.valid() && fault.check.slot.index() < slots, "faults.check.slot", fault.check.slot,
            "is out of range");
  }
  // A pin that ends may evict, and so may take the checkpoint itself.
  for (const StateFault& fault : faults)
    if (prefixes_ != nullptr && checks_.is_current(fault.check))
      prefixes_->end_pins_of(static_cast<std::size_t>(fault.check.group), fault.check.slot);
  std::int32_t withdrawn = 0;
  {
    const Withdrawing withdrawing(book_);
    for (const StateFault& fault : faults) {
      ++checks_.usage.faults[static_cast<std::size_t>(fault.kind)];
      if (checks_.is_current(fault.check)) {
        const auto group = static_cast<std::size_t>(fault.check.group);
        index_.withdraw(group, fault.check.slot);
        checks_.lost(group, fault.check.slot);
        ++withdrawn;
      } else if (const auto prefix = checks_.stored_prefix(fault.check.content); prefix && tiers_ != nullptr) {
        tiers_->index().withdraw_state(*prefix);
      }
    }
  }
  checks_.usage.withdrawn_states += withdrawn;
  if (tiers_ != nullptr) tiers_->end_call();
  return withdrawn;
}

}  // namespace stateport::detail
