// SPDX-License-Identifier: Apache-2.0
// The learned hazard index. The rules are in HazardModel and in rank().
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <stateport/core/budget_policy.hpp>
#include <stateport/core/error.hpp>
#include <stateport/core/eviction_policy.hpp>

#include "hazard_model.hpp"

namespace stateport {
namespace {

/// How many of the candidates that lost a draw stand in the next one.
constexpr std::size_t leftovers_max = 16;

class Hix final : public BudgetPolicy {
 public:
  Hix(const Budget& budget, const HixOptions& options)
      : budget_(budget), options_(options), model_(options.positions), random_(options.seed) {
    worth_.reserve(options.reserve_nodes + 1);
    drawn_.reserve(static_cast<std::size_t>(options.samples) + leftovers_max);
  }

  std::string_view name() const noexcept override { return "hix"; }

  void start(const CheckpointNodes&, const RequestFacts& request) override {
    check_hint(request.hint);
    blocks_ = static_cast<std::int32_t>(request.keys.size());
    matched_blocks_ = request.matched_blocks;
    model_.start_request(request.now_s, request.keys, request.usable_blocks, request.hint);
  }
  void matched(const CheckpointNodes&, Index) override {}
  void hit(const CheckpointNodes&, Index) override {}
  void split(const CheckpointNodes&, Index upper, Index) override { worth(upper) = {}; }
  void stated(const CheckpointNodes& nodes, Index node) override;
  void served(const CheckpointNodes& nodes, Index end) override;

  std::optional<Index> victim(const CheckpointNodes& nodes) override {
    return options_.samples == 0 ? least_of_all(nodes) : least_of_drawn(nodes);
  }
  void unstated(const CheckpointNodes&, Index node) override { forget_position(node); }
  void merged(const CheckpointNodes&, Index node, Index) override { worth_[node] = {}; }
  void removed(const CheckpointNodes& nodes, Index node) override;
  void finished(const CheckpointNodes&) override { model_.finish_request(); }

  std::size_t bytes() const noexcept override {
    return model_.bytes() + worth_.capacity() * sizeof(Worth) + drawn_.capacity() * sizeof(Ranked);
  }
  void check_invariants(const CheckpointNodes& nodes) const override;

 private:
  struct Worth {
    HazardModel::Position position = HazardModel::none;  ///< of the node's end, pinned; none: unknown
    std::uint32_t drawn = 0;                             ///< number of the last draw
    HazardModel::Demand inherited;                       ///< of what will hit here now, though it ended elsewhere
  };
  struct Ranked {
    double rank;
    Index node;
    friend bool operator<(const Ranked& a, const Ranked& b) noexcept {
      return a.rank != b.rank ? a.rank < b.rank : a.node < b.node;
    }
  };

  [[nodiscard]] Worth& worth(Index node) {
    if (node >= worth_.size()) worth_.resize(node + 1);
    return worth_[node];
  }
  void keep_position(Index node, HazardModel::Position position) {
    worth(node).position = position;
    model_.pin(position);
  }
  void forget_position(Index node) {
    model_.unpin(worth_[node].position);
    worth_[node].position = HazardModel::none;
  }
  [[nodiscard]] double benefit(std::int32_t from_blocks, std::int32_t to_blocks) const noexcept {
    return options_.benefit.of(from_blocks * budget_.block_size_tokens, to_blocks * budget_.block_size_tokens);
  }
  [[nodiscard]] double rank(const CheckpointNodes& nodes, Index node) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_all(const CheckpointNodes& nodes) const noexcept;
  [[nodiscard]] std::optional<Index> least_of_drawn(const CheckpointNodes& nodes);
  void draw(const CheckpointNodes& nodes, Index node);

  Budget budget_;
  HixOptions options_;
  HazardModel model_;
  Table<Worth> worth_;  ///< by node
  std::int32_t blocks_ = 0;
  std::int32_t matched_blocks_ = 0;
  std::uint64_t random_;
  std::uint32_t draw_ = 0;
  std::vector<Ranked> drawn_;
  std::array<Index, leftovers_max> leftovers_{};
  std::size_t leftover_count_ = 0;
};

void Hix::stated(const CheckpointNodes& nodes, Index node) {
  const std::int32_t depth = nodes[node].end_blocks;
  worth(node).position = HazardModel::none;
  if (depth == blocks_) return;  // served() knows it
  if (depth <= matched_blocks_) return keep_position(node, model_.remember_branch(depth));
  const auto before_end = static_cast<std::uint32_t>(blocks_ - depth);
  const int rung_class = std::min(static_cast<int>(std::bit_width(before_end)) - 1, 2);
  keep_position(node, model_.remember_rung(depth, rung_class));
}

void Hix::served(const CheckpointNodes& nodes, Index end) {
  const HazardModel::Position position = model_.remember_end();
  if (end == CheckpointNodes::none || position == HazardModel::none) return;
  worth(end).inherited = model_.demand(position);
  if (nodes[end].has_state) keep_position(end, position);
}

void Hix::removed(const CheckpointNodes& nodes, Index node) {
  forget_position(node);
  const HazardModel::Demand lost = std::exchange(worth_[node], {}).inherited;
  const Index parent = nodes[node].parent;
  if (parent == CheckpointNodes::root || nodes[parent].children > 1 || !nodes[parent].has_state) return;
  // The parent becomes a leaf: whoever would have continued from the child will hit here.
  HazardModel::Demand& heir = worth_[parent].inherited;
  if (lost.known() && (!heir.known() || lost.used_s > heir.used_s)) heir = lost;
}

double Hix::rank(const CheckpointNodes& nodes, Index node) const noexcept {
  const CheckpointNodes::Node& entry = nodes[node];
  const HazardModel::Demand own = model_.demand(worth_[node].position);
  double hits_per_s = model_.index(own);
  const auto state_bytes = static_cast<double>(budget_.state_bytes);
  if (!entry.is_leaf()) return hits_per_s * benefit(nodes.ancestor_state_blocks(node), entry.end_blocks) / state_bytes;

  if (worth_[node].inherited != own) hits_per_s = std::max(hits_per_s, model_.index(worth_[node].inherited));
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
  if (!nodes.contains(node) || !nodes[node].has_state || worth_[node].drawn == draw_) return;
  worth_[node].drawn = draw_;
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
  model_.check_invariants();
  for (const Index node : nodes.live()) {
    if (node == CheckpointNodes::root) continue;
    require_invariant(node < worth_.size(), "Hix", "a node is unknown");
    require_invariant(nodes[node].has_state || worth_[node].position == HazardModel::none, "Hix",
                      "a node without a state pins a position");
  }
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
