// SPDX-License-Identifier: Apache-2.0
// Greedy dual size frequency (Cherkasova, 1998): the cost of computing a node's segment stands for the cost of a miss;
// of a block, the cost of computing its state from the state before. Where tenants have shares, the candidates of a
// tenant age by the clock of its own victims: the victims of others do not make its floor old. Those of several tenants
// are compared by the clock of all victims.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "containers/table.hpp"
#include "evict/eviction_policies.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
    return key_of(facts, tenants_ == nullptr ? clock_at_use(facts) : own_clock_at_use(facts));
  }
  VictimKey key_among_tenants(const VictimFacts& facts) const noexcept override {
    return key_of(facts, clock_at_use(facts));
  }

  void set_tenants(const CandidateTenants& tenants) override {
    tenants_ = &tenants;
    clocks_.resize(tenants.accounts());
  }
  void reserve(std::size_t indices) override {
    entries_.reserve(indices);
    if (tenants_ != nullptr) own_clocks_.reserve(indices);
  }
  void used(std::uint32_t index) noexcept override {
    Entry& entry = this->entry(index);
    ++entry.uses;
    entry.clock = clock_;
    entry.worth = unranked;
    if (tenants_ != nullptr) own_clocks_[index] = clock_of(index);
  }
  void kept(const KeptFacts& prefix) noexcept override {
    if (prefix.has_state && entry(prefix.index).uses == 0) used(prefix.index);
  }
  void measured(const VictimFacts& facts) noexcept override {
    Entry& entry = this->entry(facts.index);
    if (entry.worth == unranked) entry.worth = worth(facts);
  }
  /// A state that comes back is a new one.
  void lost_state(std::uint32_t index) noexcept override { forget(index); }
  void removed(std::uint32_t index, std::uint32_t /*heir*/) noexcept override { forget(index); }
  void chosen(const VictimFacts& victim) noexcept override {
    if (!victim.has_state || victim.children > 1) return;
    const double worth = this->worth(victim);
    clock_ = std::max(clock_, clock_at_use(victim) + worth);
    if (tenants_ == nullptr) return;
    double& clock = clock_of(victim.index);
    clock = std::max(clock, own_clock_at_use(victim) + worth);
  }
  void cleared() noexcept override {
    entries_.clear();
    own_clocks_.clear();
    clock_ = 0;
    std::ranges::fill(clocks_, 0);
  }

  std::size_t bytes() const noexcept override {
    return entries_.size() * sizeof(Entry) + own_clocks_.size() * sizeof(double);
  }
  void check_invariants() const override {
    const auto check = [](bool ok, const char* what) { require_invariant(ok, "gdsf", what); };
    for (const Entry& entry : entries_)
      check(entry.clock >= 0 && entry.clock <= clock_, "a use is later than the clock");
    check(tenants_ == nullptr || own_clocks_.size() == entries_.size(), "the tables of candidates differ in length");
    for (std::size_t index = 0; index < own_clocks_.size(); ++index)
      check(own_clocks_[index] <= entries_[index].clock, "the clock of a tenant is before that of all");
  }

 private:
  static constexpr double unranked = -1;
  struct Entry {
    double clock = 0;         ///< at the last use
    double worth = unranked;  ///< of a node, since its last use
    std::uint32_t uses = 0;
  };

  [[nodiscard]] Entry& entry(std::uint32_t index) {
    if (index >= entries_.size()) {
      entries_.resize(std::size_t{index} + 1);
      if (tenants_ != nullptr) own_clocks_.resize(entries_.size());
    }
    return entries_[index];
  }
  void forget(std::uint32_t index) {
    entry(index) = {};
    if (tenants_ != nullptr) own_clocks_[index] = 0;
  }
  /// The clock of the candidate's tenant. When tenants get other accounts, all clocks go on from the clock of all.
  [[nodiscard]] double& clock_of(std::uint32_t index) noexcept {
    if (changes_ != tenants_->changes()) {
      changes_ = tenants_->changes();
      std::ranges::fill(clocks_, clock_);
      for (std::size_t i = 0; i < own_clocks_.size(); ++i) own_clocks_[i] = entries_[i].clock;
    }
    const std::uint8_t account = tenants_->account_of(index);
    STATEPORT_ASSERT(account < clocks_.size());
    return clocks_[account];
  }
  [[nodiscard]] double clock_at_use(const VictimFacts& facts) const noexcept {
    return facts.index < entries_.size() ? entries_[facts.index].clock : 0;
  }
  [[nodiscard]] double own_clock_at_use(const VictimFacts& facts) const noexcept {
    return facts.index < own_clocks_.size() ? own_clocks_[facts.index] : 0;
  }
  [[nodiscard]] VictimKey key_of(const VictimFacts& facts, double clock) const noexcept {
    if (!facts.has_state) return VictimKey::from(0, facts.used_tick);
    return VictimKey::from(facts.children > 1 ? std::numeric_limits<double>::infinity() : clock + worth(facts),
                           facts.used_tick);
  }
  /// Uses · cost to compute / bytes.
  [[nodiscard]] double worth(const VictimFacts& facts) const noexcept {
    if (facts.index >= entries_.size()) return 0;
    const Entry& entry = entries_[facts.index];
    // The worth of a node is fixed by its last use, whatever becomes of its segment.
    if (facts.segment_tokens > 0 && entry.worth != unranked) return entry.worth;
    const std::int64_t segment = facts.segment_tokens;
    const std::int64_t from = segment > 0 ? facts.end_tokens - segment : facts.fallback_tokens;
    const auto bytes = static_cast<double>(memory_.of(segment, 1));
    return entry.uses * benefit_.of(from, facts.end_tokens) / bytes;
  }

  ComputeCost benefit_;
  MemoryCost memory_;
  Table<Entry> entries_;  ///< by candidate
  double clock_ = 0;      ///< value of the last victim
  // Where tenants have shares.
  const CandidateTenants* tenants_ = nullptr;
  std::uint64_t changes_ = 0;   ///< of accounts that the clocks follow
  std::vector<double> clocks_;  ///< by account: value of its last victim
  Table<double> own_clocks_;    ///< by candidate: the clock of its tenant at the last use
};

}  // namespace

std::shared_ptr<EvictionPolicy> make_gdsf_eviction(const EvictionOptions& options, const MemoryCost& memory) {
  check_memory_cost(memory);
  return std::make_shared<GdsfEviction>(options.benefit, memory);
}

}  // namespace stateport
