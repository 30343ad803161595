// SPDX-License-Identifier: Apache-2.0
// The learned hazard index for caches that have their own shape: they give facts, HazardCandidates gives expected hits.
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include "evict/eviction_policies.hpp"
#include "evict/hazard_candidates.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

namespace stateport {
namespace {

class HixEviction final : public LearningPolicy {
 public:
  HixEviction(const EvictionOptions& options, const MemoryCost& memory)
      : options_(options), memory_(memory), worth_(options.positions) {}

  std::string_view name() const noexcept override { return "hix"; }
  VictimTraits traits() const noexcept override {
    const std::int32_t all = std::numeric_limits<std::int32_t>::max();
    return {.draws = options_.samples < 0 ? all : options_.samples};
  }
  bool observes_prompts() const noexcept override { return true; }
  bool has_no_expected_hits(std::uint32_t index) const noexcept override { return !worth_.promises_hits(index); }
  void fetch(std::uint32_t index) const noexcept override { worth_.fetch(index); }
  VictimKey key(const VictimFacts& facts) const noexcept override {
    const double worth = facts.has_state ? rank(facts) : 0;
    // Equal ranks are of one class and nearly one age. The one that was used last is evicted first: it has the longest
    // to wait yet.
    return VictimKey::from(worth, worth > 0 ? ~facts.used_tick : facts.used_tick);
  }

  void set_tenants(const CandidateTenants& tenants) override { worth_.model().set_tenants(tenants); }
  void reserve(std::size_t indices) override { worth_.reserve(indices); }
  void set_time(double now_s) noexcept override { worth_.model().set_time(now_s); }
  PromptPast looked_up(const PromptFacts& prompt) noexcept override { return worth_.model().start_request(prompt); }
  void kept(const KeptFacts& prefix) noexcept override {
    worth_.keep(prefix);
    if (prefix.at == KeptAt::end) worth_.model().finish_request();
  }
  void lost_state(std::uint32_t index) noexcept override { worth_.lose_state(index); }
  void removed(std::uint32_t index, std::uint32_t heir) noexcept override { worth_.remove(index, heir); }
  void cleared() noexcept override { worth_.clear_all(); }

  std::size_t bytes() const noexcept override { return worth_.bytes(); }
  void check_invariants() const override { worth_.check_invariants(); }

 private:
  /// The worth of all that is evicted with a candidate: the state and `kv_tokens`, after which requests fall back to
  /// `fallback_tokens`.
  [[nodiscard]] double saved_per_byte(const VictimFacts& facts, std::int64_t kv_tokens,
                                      std::int64_t fallback_tokens) const noexcept {
    return options_.benefit.of(fallback_tokens, facts.end_tokens) / static_cast<double>(memory_.of(kv_tokens, 1));
  }
  [[nodiscard]] double rank(const VictimFacts& facts) const noexcept {
    const bool leaf = facts.chain_tokens > 0;
    const double hits_per_s = worth_.hits_per_s(facts.index, leaf);
    if (hits_per_s == 0) return 0;
    double saved = saved_per_byte(facts, facts.tokens, facts.fallback_tokens);
    // KV that only this leaf needs is evicted with it sooner or later: the better of both counts, if they differ.
    const bool same = facts.chain_tokens == facts.tokens && facts.chain_fallback_tokens == facts.fallback_tokens;
    if (facts.tokens > 0 && leaf && !same)
      saved = std::max(saved, saved_per_byte(facts, facts.chain_tokens, facts.chain_fallback_tokens));
    return hits_per_s * saved;
  }

  EvictionOptions options_;
  MemoryCost memory_;
  HazardCandidates worth_;
};

}  // namespace

std::shared_ptr<EvictionPolicy> make_hix_eviction(const EvictionOptions& options, const MemoryCost& memory) {
  check_memory_cost(memory);
  require(options.positions >= 1 && options.positions < UINT32_MAX, "positions",
          static_cast<std::int64_t>(options.positions), "must be at least 1, and 32-bit");
  require(options.samples == -1 || options.samples >= 1, "samples", options.samples,
          "must be at least 1, or -1 for all");
  return std::make_shared<HixEviction>(options, memory);
}

}  // namespace stateport
