// SPDX-License-Identifier: Apache-2.0
// The learned hazard index. The rules are in HazardModel, HazardWorth and rank().
#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <stateport/core/budget_policy.hpp>
#include <stateport/core/error.hpp>
#include <stateport/core/eviction_policy.hpp>

#include "hazard_worth.hpp"

namespace stateport {
namespace {

/// How many of the candidates that lost a draw stand in the next one.
constexpr std::size_t leftovers_max = 8;

class Hix final : public BudgetPolicy {
 public:
  Hix(const Budget& budget, const HixOptions& options)
      : budget_(budget), options_(options), worth_(options.positions), random_(options.seed) {
    worth_.reserve(options.reserve_nodes + 1);
    last_draw_.reserve(options.reserve_nodes + 1);
    drawn_.reserve(static_cast<std::size_t>(options.samples) + leftovers_max);
  }

  std::string_view name() const noexcept override { return "hix"; }

  void start(const CheckpointNodes&, const RequestFacts& request) override {
    check_hint(request.hint);
    request_ = request;
    HazardModel& model = worth_.model();
    model.set_time(request.now_s);
    const auto usable = static_cast<std::size_t>(std::clamp(request.usable_blocks, 0, blocks()));
    past_ = model.start_request({.keys = request.keys.first(usable), .blocks = blocks()});
  }
  void matched(const CheckpointNodes&, Index) override {}
  void hit(const CheckpointNodes&, Index) override {}
  void split(const CheckpointNodes&, Index upper, Index) override { worth_.clear(upper); }
  void stated(const CheckpointNodes& nodes, Index node) override;
  void served(const CheckpointNodes& nodes, Index end) override;

  std::optional<Index> victim(const CheckpointNodes& nodes) override {
    return options_.samples == 0 ? least_of_all(nodes) : least_of_drawn(nodes);
  }
  void unstated(const CheckpointNodes&, Index node) override { worth_.lose_state(node); }
  void merged(const CheckpointNodes&, Index node, Index) override { worth_.clear(node); }
  void removed(const CheckpointNodes& nodes, Index node) override;
  void finished(const CheckpointNodes&) override {
    request_.keys = {};
    worth_.model().finish_request();
  }

  std::size_t bytes() const noexcept override {
    return worth_.bytes() + last_draw_.capacity() * sizeof(std::uint32_t) + drawn_.capacity() * sizeof(Ranked);
  }
  void check_invariants(const CheckpointNodes& nodes) const override;

 private:
  struct Ranked {
    double rank;
    Index node;
    friend bool operator<(const Ranked& a, const Ranked& b) noexcept {
      return a.rank != b.rank ? a.rank < b.rank : a.node < b.node;
    }
  };

  [[nodiscard]] std::int32_t blocks() const noexcept { return static_cast<std::int32_t>(request_.keys.size()); }
  void keep(const CheckpointNodes& nodes, Index node, std::int32_t depth, KeptAt at);
  [[nodiscard]] double benefit(std::int32_t from_blocks, std::int32_t to_blocks) const noexcept {
    return options_.benefit.of(from_blocks * budget_.block_size_tokens, to_blocks * budget_.block_size_tokens);
  }
  [[nodiscard]] double rank(const CheckpointNodes& nodes, Index node) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_all(const CheckpointNodes& nodes) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_drawn(const CheckpointNodes& nodes);
  void draw(const CheckpointNodes& nodes, Index node);

  Budget budget_;
  HixOptions options_;
  HazardWorth worth_;
  RequestFacts request_;  ///< being served
  PromptPast past_;
  std::uint64_t random_;
  Table<std::uint32_t> last_draw_;  ///< by node: number of the last draw that it was in
  std::uint32_t draw_ = 0;
  std::vector<Ranked> drawn_;
  std::array<Index, leftovers_max> leftovers_{};
  std::size_t leftover_count_ = 0;
};

void Hix::keep(const CheckpointNodes& nodes, Index node, std::int32_t depth, KeptAt at) {
  worth_.keep({.index = node,
               .has_state = nodes[node].has_state,
               .key = request_.keys[static_cast<std::size_t>(depth) - 1],
               .depth_blocks = depth,
               .prompt_blocks = blocks(),
               .at = at,
               .past = past_,
               .hint = request_.hint});
}

void Hix::stated(const CheckpointNodes& nodes, Index node) {
  const std::int32_t depth = nodes[node].end_blocks;
  if (depth < blocks())  // else served() tells of it
    keep(nodes, node, depth, depth <= request_.matched_blocks ? KeptAt::branch : KeptAt::rung);
}

void Hix::served(const CheckpointNodes& nodes, Index end) {
  if (end != CheckpointNodes::none && blocks() > 0) keep(nodes, end, blocks(), KeptAt::end);
}

void Hix::removed(const CheckpointNodes& nodes, Index node) {
  const Index parent = nodes[node].parent;
  const bool inherits = parent != CheckpointNodes::root && nodes[parent].children == 1 && nodes[parent].has_state;
  worth_.remove(node, inherits ? parent : HazardWorth::no_heir);
}

double Hix::rank(const CheckpointNodes& nodes, Index node) const noexcept {
  const CheckpointNodes::Node& entry = nodes[node];
  const double hits_per_s = worth_.hits_per_s(node, entry.is_leaf());
  const auto state_bytes = static_cast<double>(budget_.state_bytes);
  if (!entry.is_leaf()) return hits_per_s * benefit(nodes.ancestor_state_blocks(node), entry.end_blocks) / state_bytes;

  // What only this leaf needs goes with it sooner or later: the best of the chain above counts.
  double best = 0;
  for (Index top = node;; top = nodes[top].parent) {
    const auto kv_bytes = (entry.end_blocks - nodes[top].begin_blocks) * budget_.block_bytes();
    best = std::max(best, hits_per_s * benefit(nodes.ancestor_state_blocks(top), entry.end_blocks) /
                              static_cast<double>(budget_.state_bytes + kv_bytes));
    const Index parent = nodes[top].parent;
    if (parent == CheckpointNodes::root || nodes[parent].children != 1) return best;
  }
}

std::optional<Hix::Index> Hix::least_of_all(const CheckpointNodes& nodes) const noexcept {
  std::optional<Index> least;
  double least_rank = std::numeric_limits<double>::infinity();
  for (const Index node : nodes.live()) {
    if (!nodes[node].has_state) continue;
    const double ranked = rank(nodes, node);
    if (ranked < least_rank) {
      least_rank = ranked;
      least = node;
    }
  }
  return least;
}

void Hix::draw(const CheckpointNodes& nodes, Index node) {
  if (!nodes.contains(node) || !nodes[node].has_state) return;
  if (node >= last_draw_.size()) last_draw_.resize(std::size_t{node} + 1);
  if (std::exchange(last_draw_[node], draw_) == draw_) return;
  drawn_.push_back({rank(nodes, node), node});
}

std::optional<Hix::Index> Hix::least_of_drawn(const CheckpointNodes& nodes) {
  const auto live = nodes.live();
  if (live.size() <= static_cast<std::size_t>(options_.samples)) return least_of_all(nodes);
  drawn_.clear();
  ++draw_;
  for (std::size_t i = 0; i < leftover_count_; ++i) draw(nodes, leftovers_[i]);
  for (std::int32_t i = 0; i < options_.samples; ++i) {
    random_ += 0x9E3779B97F4A7C15U;  // SplitMix64
    std::uint64_t bits = (random_ ^ (random_ >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    const auto place = static_cast<std::size_t>(((bits >> 32) * live.size()) >> 32);
    draw(nodes, live[place]);
  }
  leftover_count_ = 0;
  if (drawn_.empty()) return least_of_all(nodes);
  // The victim and the best of the rest, in no order: O(drawn).
  const std::size_t kept = std::min(drawn_.size(), leftovers_max + 1);
  std::nth_element(drawn_.begin(), drawn_.begin() + static_cast<std::ptrdiff_t>(kept - 1), drawn_.end());
  const auto best = std::span(drawn_).first(kept);
  const Index least = std::min_element(best.begin(), best.end())->node;
  for (const Ranked& candidate : best)
    if (candidate.node != least) leftovers_[leftover_count_++] = candidate.node;
  return least;
}

void Hix::check_invariants(const CheckpointNodes& nodes) const {
  worth_.check_invariants();
  for (const Index node : nodes.live())
    require_invariant(nodes[node].has_state || !worth_.known(node), "Hix", "a node without a state pins a position");
}

}  // namespace

std::unique_ptr<BudgetPolicy> make_hix(const Budget& budget, const HixOptions& options) {
  check_budget(budget);
  require(options.positions >= 1 && options.positions < UINT32_MAX, "positions",
          static_cast<std::int64_t>(options.positions), "must be at least 1, and 32-bit");
  require(options.samples >= 0, "samples", options.samples, "must not be negative");
  return std::make_unique<Hix>(budget, options);
}

}  // namespace stateport
