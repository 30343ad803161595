// SPDX-License-Identifier: Apache-2.0
// The learned hazard index. The rules are in HazardModel, HazardWorth and rank().
#include <algorithm>
#include <limits>
#include <string_view>

#include <stateport/core/evict/budget_policy.hpp>
#include <stateport/core/evict/eviction_policy.hpp>
#include "evict/victim_draw.hpp"
#include <stateport/core/model/error.hpp>

#include "evict/hazard_worth.hpp"

namespace stateport {
namespace {

class Hix final : public BudgetPolicy {
 public:
  Hix(const Budget& budget, const HixOptions& options)
      : budget_(budget),
        options_(options),
        worth_(options.positions),
        draw_(std::max(options.samples, 1), options.seed) {
    worth_.reserve(options.reserve_nodes + 1);
    draw_.reserve(options.reserve_nodes + 1);
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
  void unstated(const CheckpointNodes&, Index node) override {
    draw_.erase(node);
    worth_.lose_state(node);
  }
  void merged(const CheckpointNodes&, Index node, Index) override { worth_.clear(node); }
  void removed(const CheckpointNodes& nodes, Index node) override;
  void finished(const CheckpointNodes&) override {
    request_.keys = {};
    worth_.model().finish_request();
  }

  std::size_t bytes() const noexcept override { return worth_.bytes() + draw_.bytes(); }
  void check_invariants(const CheckpointNodes& nodes) const override;

 private:
  [[nodiscard]] std::int32_t blocks() const noexcept { return static_cast<std::int32_t>(request_.keys.size()); }
  void keep(const CheckpointNodes& nodes, Index node, std::int32_t depth, KeptAt at);
  [[nodiscard]] double benefit(std::int32_t from_blocks, std::int32_t to_blocks) const noexcept {
    return options_.benefit.of(from_blocks * budget_.block_size_tokens, to_blocks * budget_.block_size_tokens);
  }
  [[nodiscard]] double rank(const CheckpointNodes& nodes, Index node) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_all(const CheckpointNodes& nodes) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_drawn(const CheckpointNodes& nodes);

  Budget budget_;
  HixOptions options_;
  HazardWorth worth_;
  RequestFacts request_;  ///< being served
  PromptPast past_;
  VictimDraw<double> draw_;  ///< nodes with a state
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
  draw_.push(node);
  const std::int32_t depth = nodes[node].end_blocks;
  if (depth < blocks())  // else served() tells of it
    keep(nodes, node, depth, depth <= request_.matched_blocks ? KeptAt::branch : KeptAt::rung);
}

void Hix::served(const CheckpointNodes& nodes, Index end) {
  if (end != CheckpointNodes::none && blocks() > 0) keep(nodes, end, blocks(), KeptAt::end);
}

void Hix::removed(const CheckpointNodes& nodes, Index node) {
  draw_.erase(node);
  const Index parent = nodes[node].parent;
  const bool inherits = parent != CheckpointNodes::root && nodes[parent].children == 1 && nodes[parent].has_state;
  worth_.remove(node, inherits ? parent : HazardWorth::no_heir);
}

double Hix::rank(const CheckpointNodes& nodes, Index node) const noexcept {
  const CheckpointNodes::Node& entry = nodes[node];
  const double hits_per_s = worth_.hits_per_s(node, entry.is_leaf());
  const auto per_byte = [&](Index from, std::int32_t kv_blocks) {
    return hits_per_s * benefit(nodes.ancestor_state_blocks(from), entry.end_blocks) /
           static_cast<double>(budget_.used_bytes(kv_blocks, 1));
  };
  if (!entry.is_leaf()) return per_byte(node, 0);
  // What only this leaf needs goes with it sooner or later: the better of both counts.
  const Index top = nodes.chain_top(node);
  const double alone = per_byte(node, entry.blocks());
  return top == node ? alone : std::max(alone, per_byte(top, entry.end_blocks - nodes[top].begin_blocks));
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

std::optional<Hix::Index> Hix::least_of_drawn(const CheckpointNodes& nodes) {
  const auto fetch = [&](Index node, int step) {
    if (step == 0) {
      nodes.fetch(node);
      worth_.fetch(node);
    } else {
      nodes.fetch(nodes[node].parent);
      worth_.fetch_demand(node);
    }
  };
  return draw_.draw([](Index) { return true; }, [&](Index node) { return rank(nodes, node); }, fetch);
}

void Hix::check_invariants(const CheckpointNodes& nodes) const {
  worth_.check_invariants();
  draw_.check_invariants();
  for (const Index node : nodes.live()) {
    require_invariant(nodes[node].has_state || !worth_.known(node), "Hix", "a node without a state pins a position");
    require_invariant(nodes[node].has_state == draw_.contains(node), "Hix",
                      "the candidates are not the nodes with a state");
  }
  require_invariant(draw_.size() == static_cast<std::size_t>(nodes.states()), "Hix", "a removed node is a candidate");
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
