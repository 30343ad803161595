// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/host_tier.hpp>

#include "containers/reserve_amortised.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stateport::tiers {

class LowerQueue;

/// A transfer of a TransferExecutor that is not answered yet, or whose image is still in use.
struct TransferOperation {
  static constexpr std::uint32_t none = UINT32_MAX;
  enum class Phase : std::uint8_t { unused, copying, to_write, to_read, to_find, below };

  Transfer transfer;
  LowerQueue* lower = nullptr;  ///< of the tier that it goes to, else that it is from; nullptr for neither
  HostImage image;
  HostImage source;          ///< of host memory, while it is copied into objects
  std::uint64_t number = 0;  ///< in the order in which they began
  std::uint64_t mark = 0;    ///< of the copying phase
  std::chrono::steady_clock::time_point begun = {};
  Phase phase = Phase::unused;
  bool failed = false;          ///< the copy that it waits for was never enqueued
  bool drop_if_failed = false;  ///< took back a drop
  std::uint32_t next = none;    ///< in its queue, in the free list, or among those written together

  /// Among the operations of the lower tier. Finds keep no memory, and are not bounded by it.
  [[nodiscard]] bool is_counted() const noexcept { return lower != nullptr && transfer.kind != Transfer::Kind::find; }
};

/// Operations by number, and queues of them, linked through TransferOperation::next.
class TransferOperations {
 public:
  static constexpr std::uint32_t none = TransferOperation::none;
  /// First in, first out.
  struct Queue {
    std::uint32_t head = none;
    std::uint32_t tail = none;
    [[nodiscard]] bool empty() const noexcept { return head == none; }
  };

  Queue copying;  ///< those of that phase; marks do not decrease

  [[nodiscard]] TransferOperation& operator[](std::uint32_t number) noexcept { return operations_[number]; }
  [[nodiscard]] const TransferOperation& operator[](std::uint32_t number) const noexcept { return operations_[number]; }
  /// Those in use, and places of those that were.
  [[nodiscard]] const std::vector<TransferOperation>& all() const noexcept { return operations_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  /// Makes room for `count` operations in all.
  void reserve(std::size_t count) { detail::reserve_amortised(operations_, count); }
  /// Precondition: reserve().
  [[nodiscard]] std::uint32_t make(const TransferOperation& operation) noexcept {
    std::uint32_t number = free_;
    if (number == none) {
      number = static_cast<std::uint32_t>(operations_.size());
      operations_.emplace_back();
    } else {
      free_ = operations_[number].next;
    }
    operations_[number] = operation;
    ++count_;
    return number;
  }
  void free(std::uint32_t number) noexcept {
    --count_;
    operations_[number].phase = TransferOperation::Phase::unused;
    operations_[number].next = free_;
    free_ = number;
  }

  void push(Queue& queue, std::uint32_t number, TransferOperation::Phase phase) noexcept {
    operations_[number].phase = phase;
    operations_[number].next = none;
    if (queue.empty())
      queue.head = number;
    else
      operations_[queue.tail].next = number;
    queue.tail = number;
  }
  std::uint32_t pop(Queue& queue) noexcept {
    const std::uint32_t number = queue.head;
    queue.head = std::exchange(operations_[number].next, none);
    if (queue.empty()) queue.tail = none;
    return number;
  }

  /// Throws as StateTiers::check_invariants. Returns the length of the queue.
  std::size_t check_queue(const Queue& queue, TransferOperation::Phase phase) const {
    std::size_t length = 0;
    std::uint64_t mark = 0;
    for (std::uint32_t at = queue.head; at != none; at = operations_[at].next, ++length) {
      const TransferOperation& operation = operations_[at];
      require_invariant(operation.phase == phase, "StateTiers", "an operation is in a wrong queue");
      const bool is_in_order = phase != TransferOperation::Phase::copying || operation.mark >= mark;
      require_invariant(is_in_order, "StateTiers", "marks are out of order");
      mark = operation.mark;
      require_invariant((operation.next == none) == (queue.tail == at), "StateTiers", "a queue has a wrong end");
    }
    return length;
  }

 private:
  std::vector<TransferOperation> operations_;
  std::uint32_t free_ = none;
  std::size_t count_ = 0;
};

}  // namespace stateport::tiers
