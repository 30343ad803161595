// SPDX-License-Identifier: Apache-2.0
// Greedy dual size frequency (Cherkasova, 1998): the cost of computing a node's segment stands for the cost of a miss;
// of a block, the cost of computing its state from the state before.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include "containers/table.hpp"
#include "evict/eviction_policies.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

namespace stateport {
namespace {

class GdsfEviction final : public LearningPolicy {
 public:
  GdsfEviction(const ComputeCost& benefit, const MemoryCost& memory) : benefit_(benefit), memory_(memory) {}

  std::string_view name() const noexcept override { return "gdsf"; }
  /// A key shrinks when a fork loses all but one of its continuations.
  VictimTraits traits() const noexcept override { return {.key_may_shrink = true, .ranks_states = true}; }
  /// The states of forks go last: more than one segment is computed from them.
  VictimKey key(const VictimFacts& facts) const noexcept override {
    if (!facts.has_state) return VictimKey::from(0, facts.used_tick);
    return VictimKey::from(facts.children > 1 ? std::numeric_limits<double>::infinity() : value(facts),
                           facts.used_tick);
  }

  void reserve(std::size_t indices) override { entries_.reserve(indices); }
  void used(std::uint32_t index) noexcept override {
    Entry& entry = this->entry(index);
    ++entry.uses;
    entry.clock = clock_;
    entry.value = unranked;
  }
  void kept(const KeptFacts& prefix) noexcept override {
    if (prefix.has_state && entry(prefix.index).uses == 0) used(prefix.index);
  }
  void measured(const VictimFacts& facts) noexcept override {
    Entry& entry = this->entry(facts.index);
    if (entry.value == unranked) entry.value = value(facts);
  }
  /// A state that comes back is a new one.
  void lost_state(std::uint32_t index) noexcept override { entry(index) = {}; }
  void removed(std::uint32_t index, std::uint32_t /*heir*/) noexcept override { entry(index) = {}; }
  void chosen(const VictimFacts& victim) noexcept override {
    if (victim.has_state && victim.children <= 1) clock_ = std::max(clock_, value(victim));
  }
  void cleared() noexcept override {
    entries_.clear();
    clock_ = 0;
  }

  std::size_t bytes() const noexcept override { return entries_.size() * sizeof(Entry); }
  void check_invariants() const override {
    for (const Entry& entry : entries_)
      require_invariant(entry.clock >= 0 && entry.clock <= clock_, "gdsf", "a use is later than the clock");
  }

 private:
  static constexpr double unranked = -1;
  struct Entry {
    double clock = 0;         ///< at the last use
    double value = unranked;  ///< of a node, since its last use
    std::uint32_t uses = 0;
  };

  [[nodiscard]] Entry& entry(std::uint32_t index) {
    if (index >= entries_.size()) entries_.resize(std::size_t{index} + 1);
    return entries_[index];
  }
  [[nodiscard]] double value(const VictimFacts& facts) const noexcept {
    if (facts.index >= entries_.size()) return 0;
    const Entry& entry = entries_[facts.index];
    // The value of a node is fixed by its last use, whatever becomes of its segment.
    if (facts.segment_tokens > 0 && entry.value != unranked) return entry.value;
    const std::int64_t segment = facts.segment_tokens;
    const std::int64_t from = segment > 0 ? facts.end_tokens - segment : facts.fallback_tokens;
    const auto bytes = static_cast<double>(memory_.of(segment, 1));
    return entry.clock + entry.uses * benefit_.of(from, facts.end_tokens) / bytes;
  }

  ComputeCost benefit_;
  MemoryCost memory_;
  Table<Entry> entries_;  ///< by candidate
  double clock_ = 0;      ///< value of the last victim
};

}  // namespace

std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options, const MemoryCost& memory) {
  check_memory_cost(memory);
  return std::make_shared<GdsfEviction>(options.benefit, memory);
}

}  // namespace stateport
