// SPDX-License-Identifier: Apache-2.0
// Greedy dual size frequency (Cherkasova, 1998): what it costs to compute a leaf's segment stands for the cost of a
// miss; where a state goes alone, what it costs to compute it from the state before.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "containers/table.hpp"
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include "evict/eviction_policies.hpp"

namespace stateport {
namespace {

class GdsfEviction final : public LearningPolicy {
 public:
  GdsfEviction(const ComputeCost& benefit, const MemoryCost& memory) : benefit_(benefit), memory_(memory) {}

  std::string_view name() const noexcept override { return "gdsf"; }
  /// A key shrinks when a segment is split, or loses its state.
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true}; }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    return VictimKey::from(facts.has_state ? value(facts) : 0, facts.used_tick);
  }

  void reserve(std::size_t indices) override { entries_.reserve(indices); }
  void used(std::uint32_t index) noexcept override {
    Entry& entry = this->entry(index);
    ++entry.uses;
    entry.clock = clock_;
  }
  void kept(const KeptFacts& prefix) noexcept override {
    if (prefix.has_state && entry(prefix.index).uses == 0) used(prefix.index);
  }
  void removed(std::uint32_t index, std::uint32_t /*heir*/) noexcept override { entry(index) = {}; }
  void chosen(const VictimFacts& victim) noexcept override {
    if (victim.has_state) clock_ = std::max(clock_, value(victim));
  }
  void cleared() noexcept override {
    entries_.clear();
    clock_ = 0;
  }

  std::size_t bytes() const noexcept override { return entries_.capacity() * sizeof(Entry); }
  void check_invariants() const override {
    for (const Entry& entry : entries_)
      require_invariant(entry.clock >= 0 && entry.clock <= clock_, "gdsf", "a use is later than the clock");
  }

 private:
  struct Entry {
    double clock = 0;  ///< at the last use
    std::uint32_t uses = 0;
  };

  [[nodiscard]] Entry& entry(std::uint32_t index) {
    if (index >= entries_.size()) entries_.resize(std::size_t{index} + 1);
    return entries_[index];
  }
  [[nodiscard]] double value(const VictimFacts& facts) const noexcept {
    if (facts.index >= entries_.size()) return 0;
    // Of the segment alone: what an eviction would free beside it changes without a word.
    const std::int64_t segment = facts.segment_tokens;
    const std::int64_t from = segment > 0 ? facts.end_tokens - segment : facts.fallback_tokens;
    const auto bytes = static_cast<double>(memory_.of(segment, 1));
    const Entry& entry = entries_[facts.index];
    return entry.clock + entry.uses * benefit_.of(from, facts.end_tokens) / bytes;
  }

  ComputeCost benefit_;
  MemoryCost memory_;
  Table<Entry> entries_;  ///< by candidate
  double clock_ = 0;      ///< value of the last victim
};

}  // namespace

void check_benefit(const ComputeCost& benefit) {
  const auto check = [](double cost, std::string_view argument) {
    if (!(std::isfinite(cost) && cost >= 0))
      require(false, argument, std::string_view(std::to_string(cost)), "must be finite and not negative");
  };
  check(benefit.linear, "benefit.linear");
  check(benefit.quadratic, "benefit.quadratic");
}

std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options, const MemoryCost& memory) {
  check_memory_cost(memory);
  check_benefit(options.benefit);
  return std::make_shared<GdsfEviction>(options.benefit, memory);
}

}  // namespace stateport
