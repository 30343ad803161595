// SPDX-License-Identifier: Apache-2.0
// Greedy dual size frequency (Cherkasova, 1998) on nodes: what a node's segment costs to compute stands for the cost
// of a miss.
#include <algorithm>

#include <stateport/core/evict/budget_policy.hpp>

#include "evict/node_recency.hpp"

namespace stateport {
namespace {

class Gdsf final : public BudgetPolicy {
 public:
  Gdsf(const Budget& budget, const ComputeCost& cost, std::size_t reserve_nodes)
      : budget_(budget), cost_(cost), heap_(reserve_nodes) {}

  std::string_view name() const noexcept override { return "gdsf"; }

  void start(const CheckpointNodes&, const RequestFacts& request) override {
    heap_.start_request();
    matched_blocks_ = request.matched_blocks;
  }
  void matched(const CheckpointNodes& nodes, Index node) override {
    if (nodes[node].end_blocks <= matched_blocks_) heap_.spare(node);
  }
  void hit(const CheckpointNodes& nodes, Index node) override {
    ++heap_[node].uses;
    heap_[node].value = clock_ + heap_[node].uses * worth_per_byte(nodes, node);
    heap_.update(node);
  }
  void split(const CheckpointNodes& nodes, Index upper, Index) override { create(nodes, upper); }
  void stated(const CheckpointNodes& nodes, Index node) override {
    if (nodes[node].is_leaf()) create(nodes, node);
  }
  void served(const CheckpointNodes&, Index) override {}

  std::optional<Index> victim(const CheckpointNodes& nodes) override {
    const auto least = heap_.top([&](Index node) { return nodes[node].children <= 1 && nodes[node].has_state; });
    if (least) clock_ = heap_[*least].value;
    return least;
  }
  void unstated(const CheckpointNodes&, Index) override {}
  void merged(const CheckpointNodes&, Index node, Index) override { heap_.erase(node); }
  void removed(const CheckpointNodes& nodes, Index node) override {
    heap_.erase(node);
    const Index parent = nodes[node].parent;
    if (parent != CheckpointNodes::root && nodes[parent].children <= 2) heap_.push(parent);
  }
  void finished(const CheckpointNodes&) override { heap_.finish_request(); }

  std::size_t bytes() const noexcept override { return heap_.bytes(); }
  void check_invariants(const CheckpointNodes&) const override { heap_.check_invariants(); }

 private:
  void create(const CheckpointNodes& nodes, Index node) {
    heap_.create(node).value = clock_ + worth_per_byte(nodes, node);
  }
  [[nodiscard]] double worth_per_byte(const CheckpointNodes& nodes, Index node) const noexcept {
    const CheckpointNodes::Node& entry = nodes[node];
    const double cost =
        cost_.of(entry.begin_blocks * budget_.block_size_tokens, entry.end_blocks * budget_.block_size_tokens);
    return cost / static_cast<double>(budget_.used_bytes(entry.blocks(), 1));
  }

  Budget budget_;
  ComputeCost cost_;
  NodeHeap<double> heap_;
  double clock_ = 0;  ///< value of the last victim
  std::int32_t matched_blocks_ = 0;
};

}  // namespace

std::unique_ptr<BudgetPolicy> make_gdsf(const Budget& budget, const ComputeCost& cost, std::size_t reserve_nodes) {
  check_budget(budget);
  return std::make_unique<Gdsf>(budget, cost, reserve_nodes);
}

}  // namespace stateport
