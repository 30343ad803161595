// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include <stateport/core/evict/checkpoint_nodes.hpp>
#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/model/compute_cost.hpp>
#include <stateport/core/pool/budget.hpp>

namespace stateport {

/// What a policy is told about a request, after its prompt was looked up and before anything is added for it.
struct RequestFacts {
  double now_s = 0;                   ///< the caller's clock; never goes back
  std::span<const PositionKey> keys;  ///< of the ends of the full blocks of the prompt; valid until finished()
  std::int32_t usable_blocks = 0;     ///< the forward needs a token: (tokens - 1) / block size
  std::int32_t matched_blocks = 0;    ///< whose KV is cached
  ReuseHint hint;
};

/// Decides which state a cache under one Budget gives up next: a leaf goes with the KV of its segment, of any other
/// node the state alone goes. Told of every change; asked for a victim while the budget is exceeded.
///
///     start ─► matched* ─► hit? ─► (split | stated)* ─► served ─► (victim ─► (removed | unstated | merged)*)* ─►
///     finished
///
/// A policy reads the tree's shape from `nodes` and keeps what else it needs by node index. Not concurrent; the same
/// calls give the same answers.
class BudgetPolicy {
 public:
  using Index = CheckpointNodes::Index;

  virtual ~BudgetPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  virtual void start(const CheckpointNodes& nodes, const RequestFacts& request) = 0;
  /// The prompt begins with all of the node's path, or with a part of its segment.
  virtual void matched(const CheckpointNodes& nodes, Index node) = 0;
  /// The request continues from this node's state.
  virtual void hit(const CheckpointNodes& nodes, Index node) = 0;
  /// `upper` was cut off the front of `lower`, and has no state yet.
  virtual void split(const CheckpointNodes& nodes, Index upper, Index lower) = 0;
  /// The node (often a new one) got a state.
  virtual void stated(const CheckpointNodes& nodes, Index node) = 0;
  /// All was added; the prompt ends in `end`, or in none if it has no full block.
  virtual void served(const CheckpointNodes& nodes, Index end) = 0;

  /// A node with a state, or none if all that is left is needed.
  [[nodiscard]] virtual std::optional<Index> victim(const CheckpointNodes& nodes) = 0;
  /// The node has lost its state and nothing else.
  virtual void unstated(const CheckpointNodes& nodes, Index node) = 0;
  /// A node without a state becomes part of its only child.
  virtual void merged(const CheckpointNodes& nodes, Index node, Index child) = 0;
  /// A leaf is going to be removed, with its state if it has one.
  virtual void removed(const CheckpointNodes& nodes, Index node) = 0;
  virtual void finished(const CheckpointNodes& nodes) = 0;

  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// Throws std::logic_error naming the first violation.
  virtual void check_invariants(const CheckpointNodes& nodes) const = 0;
};

/// Least recently used leaf first; every node that a prompt matched, whole or in part, counts as used. Spares the path
/// of the request being served.
[[nodiscard]] std::unique_ptr<BudgetPolicy> make_node_lru(std::size_t reserve_nodes = 1024);

/// Greedy dual size frequency: the node with at most one child and the smallest clock + uses · (cost to compute its
/// segment) / (bytes of it) goes; the clock is the value of the last victim. Spares the path of the request being
/// served.
[[nodiscard]] std::unique_ptr<BudgetPolicy> make_gdsf(const Budget& budget, const ComputeCost& cost,
                                                      std::size_t reserve_nodes = 1024);

struct HixOptions {
  /// Positions whose history is remembered, cached or not. 48 bytes each.
  std::size_t positions = 16384;
  /// Candidates drawn for a victim, beside the best left over from before; 0: all are compared. That gains
  /// at most 0.2 points of the hit rate on recorded traces.
  std::int32_t samples = 24;
  std::uint64_t seed = 1;  ///< of the draws
  ComputeCost benefit;     ///< what a hit saves
  std::size_t reserve_nodes = 1024;
};

/// The learned hazard index: see HazardModel. The node with the smallest (best hits per second) · (cost saved by its
/// state) / (bytes) goes. The request just served is not spared. Throws InvalidArgument for positions < 1 or
/// samples < 0; start() for a hint that check_hint refuses, and then has changed nothing.
[[nodiscard]] std::unique_ptr<BudgetPolicy> make_hix(const Budget& budget, const HixOptions& options = {});

}  // namespace stateport
