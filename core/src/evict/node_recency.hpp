// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "containers/table.hpp"
#include <stateport/core/evict/budget_policy.hpp>
#include "evict/victim_heap.hpp"

namespace stateport {

/// What node LRU and GDSF share: a heap of candidates by (value, creation), and which nodes belong to the request
/// being served, whose path is spared.
template <class Value>
class NodeHeap {
 public:
  using Index = CheckpointNodes::Index;

  struct Entry {
    Value value = {};
    std::uint64_t created = 0;  ///< ties: older first
    std::uint64_t request = 0;  ///< that last had the node on its path
    std::uint32_t uses = 0;
  };

  explicit NodeHeap(std::size_t reserve_nodes) : heap_(reserve_nodes + 1) { entries_.reserve(reserve_nodes + 1); }

  void start_request() noexcept {
    ++request_;
    path_.clear();
  }
  [[nodiscard]] std::uint64_t request() const noexcept { return request_; }
  [[nodiscard]] Entry& operator[](Index node) noexcept { return entries_[node]; }

  /// A new node, on the path of the request.
  Entry& create(Index node) {
    if (node >= entries_.size()) {
      entries_.resize(node + 1);
      heap_.reserve(entries_.capacity());
    }
    entries_[node] = {.created = ++created_, .uses = 1};
    spare(node);
    return entries_[node];
  }
  void spare(Index node) {
    entries_[node].request = request_;
    path_.push_back(node);
  }

  void push(Index node) { heap_.push(node, key(node)); }
  /// The value may have become smaller.
  void update(Index node) {
    if (heap_.contains(node)) heap_.update(node, key(node));
  }
  void erase(Index node) { heap_.erase(node); }
  /// The path of the request may be evicted from now on.
  void finish_request() {
    for (const Index node : path_) push(node);
    ++request_;
  }

  template <class Candidate>
  [[nodiscard]] std::optional<Index> top(Candidate&& candidate) {
    return heap_.top([&](Index node) { return entries_[node].request != request_ && candidate(node); },
                     [&](Index node) { return key(node); });
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    constexpr std::size_t heap_bytes = sizeof(Key) + 2 * sizeof(std::uint64_t);
    return entries_.capacity() * (sizeof(Entry) + heap_bytes);
  }
  void check_invariants() const { heap_.check_invariants(); }

 private:
  struct Key {
    Value value;
    std::uint64_t created;
    friend bool operator<(const Key& a, const Key& b) noexcept {
      return a.value != b.value ? a.value < b.value : a.created < b.created;
    }
  };
  [[nodiscard]] Key key(Index node) const noexcept { return {entries_[node].value, entries_[node].created}; }

  Table<Entry> entries_;  ///< by node
  VictimHeap<Key> heap_;
  std::vector<Index> path_;
  std::uint64_t request_ = 1;
  std::uint64_t created_ = 0;
};

}  // namespace stateport
