// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_tree.hpp>

#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

namespace stateport::test {

/// The prefix tree, slow and plain: nodes in a list, every search a scan, every rule spelled out where it applies.
/// Slots are numbers taken from a queue; a slot's state is the namespace and the tokens that it has seen.
class PrefixModel {
 public:
  struct Config {
    std::size_t page = 1;
    std::int64_t grid = 1;
    int slots = 0;
    int cap = -1;
    EvictionOrder order = EvictionOrder::lru;
  };
  struct State {
    int name_space = 0;
    std::vector<Token> tokens;
    bool operator==(const State&) const = default;
  };
  struct Node {
    int parent = 0;
    int name_space = 0;
    std::vector<Token> tokens;
    std::vector<KvIndex> kv;
    int slot = -1;
    int full_lock = 0;
    int state_lock = 0;
    std::uint64_t tick = 0;
    std::uint64_t state_tick = 0;
    std::uint64_t created = 0;
    std::int64_t hits = 0;
    std::int32_t priority = 0;
    bool alive = true;
  };
  struct Match {
    int node = 0;
    std::int64_t tokens = 0;
    std::vector<KvIndex> kv;
    int slot = -1;
    std::optional<std::int64_t> branching;
    int live_slot = -1;
    bool operator==(const Match&) const = default;
  };
  struct Out {
    std::vector<KvIndex> kv;
    std::vector<int> slots;
  };
  struct Lock {
    int node = 0;
  };
  struct Sizes {
    std::int64_t evictable_tokens = 0, protected_tokens = 0, evictable_states = 0, protected_states = 0;
  };

  explicit PrefixModel(const Config& config);

  Match match(const std::vector<Token>& key, int name_space);
  Match match_with_live_slot(const std::vector<Token>& key, int name_space, Out& out);
  /// {prefix tokens, state exists, end node}
  std::tuple<std::int64_t, bool, int> insert(const std::vector<Token>& key, const std::vector<KvIndex>& kv, int slot,
                                             int name_space, std::size_t prev, std::int32_t priority, bool chunked,
                                             Out& out);
  std::pair<std::int64_t, std::int64_t> evict(std::int64_t tokens, std::int64_t states, Out& out);
  void forget(int name_space, Out& out);
  void touch(int node);
  Lock lock(int node);
  void unlock(const Lock& lock);
  void reset();

  std::optional<int> take_slot();
  void free_slot(int slot) { free_slots.push_back(slot); }

  [[nodiscard]] const Node& node(int index) const { return nodes[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::vector<int> live() const;
  [[nodiscard]] int children(int node) const;
  [[nodiscard]] std::vector<Token> path(int node) const;
  [[nodiscard]] Sizes sizes() const;
  [[nodiscard]] std::optional<int> next_leaf() const;
  [[nodiscard]] std::optional<int> next_state() const;

  std::deque<int> free_slots;
  std::vector<State> states;  ///< by slot

 private:
  struct Walk {
    std::vector<int> nodes;  ///< walked to their end
    int cut = 0;             ///< cut after cut_tokens, or the root
    std::size_t cut_tokens = 0;
    std::size_t tokens = 0;
  };
  [[nodiscard]] Walk walk(const std::vector<Token>& key, int name_space) const;
  int split(int node, std::size_t tokens);
  void remove(int node, Out& out);
  void drop_state(int node, Out& out);
  [[nodiscard]] std::pair<std::int64_t, std::uint64_t> key_of(const Node& node) const;
  Node& at(int index) { return nodes[static_cast<std::size_t>(index)]; }

  Config config;
  std::vector<Node> nodes;  ///< never reused; 0 is the root
  std::uint64_t clock = 0;
};

}  // namespace stateport::test
