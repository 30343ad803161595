// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/evict/budget_policy.hpp>

#include "evict/node_recency.hpp"

namespace stateport {
namespace {

class NodeLru final : public BudgetPolicy {
 public:
  explicit NodeLru(std::size_t reserve_nodes) : heap_(reserve_nodes) {}

  std::string_view name() const noexcept override { return "node-lru"; }

  void start(const CheckpointNodes&, const RequestFacts& request) override {
    heap_.start_request();
    matched_blocks_ = request.matched_blocks;
  }
  void matched(const CheckpointNodes& nodes, Index node) override {
    heap_[node].value = heap_.request();
    if (nodes[node].end_blocks <= matched_blocks_) heap_.spare(node);
  }
  void hit(const CheckpointNodes&, Index) override {}
  void split(const CheckpointNodes&, Index upper, Index) override { heap_.create(upper).value = heap_.request(); }
  void stated(const CheckpointNodes& nodes, Index node) override {
    if (nodes[node].is_leaf()) heap_.create(node).value = heap_.request();
  }
  void served(const CheckpointNodes&, Index) override {}

  std::optional<Index> victim(const CheckpointNodes& nodes) override {
    return heap_.top([&](Index node) { return nodes[node].is_leaf(); });
  }
  void unstated(const CheckpointNodes&, Index) override {}
  void merged(const CheckpointNodes&, Index node, Index) override { heap_.erase(node); }
  void removed(const CheckpointNodes& nodes, Index node) override {
    heap_.erase(node);
    const Index parent = nodes[node].parent;
    if (parent != CheckpointNodes::root && nodes[parent].children == 1) heap_.push(parent);
  }
  void finished(const CheckpointNodes&) override { heap_.finish_request(); }

  std::size_t bytes() const noexcept override { return heap_.bytes(); }
  void check_invariants(const CheckpointNodes&) const override { heap_.check_invariants(); }

 private:
  NodeHeap<std::uint64_t> heap_;
  std::int32_t matched_blocks_ = 0;
};

}  // namespace

std::unique_ptr<BudgetPolicy> make_node_lru(std::size_t reserve_nodes) {
  return std::make_unique<NodeLru>(reserve_nodes);
}

}  // namespace stateport
