// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/completion.hpp>
#include <stateport/tiers/host_tier.hpp>

#include "move/lower_tier.hpp"
#include "move/transfer_operations.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::tiers {

class LowerQueue;

/// Hears how the operations of a LowerQueue go on.
class LowerQueueUser {
 public:
  virtual void end(std::uint32_t operation, TransferStatus status) = 0;
  /// A read is done.
  virtual void arrive(const Stream& stream, LowerQueue& lower, std::uint32_t operation, std::int32_t encoding) = 0;

 protected:
  ~LowerQueueUser() = default;
};

/// A tier below host memory, and the operations that wait for it or are with it. A drop waits for the operations before
/// it that still need its image, and for room in the tier's queue.
class LowerQueue {
 public:
  struct Options {
    LowerTier* tier = nullptr;    ///< nullptr: there is none
    HostTier* staging = nullptr;  ///< where its images wait
    bool objects = false;         ///< its images are sets of objects; all its requests share one queue
    std::size_t transfers_max = 4096;
    /// Of KV blocks that are written together: many enough that the calls around them weigh little, few enough to be
    /// freed soon.
    std::size_t kv_bytes_together = std::size_t{16} << 20;
  };
  LowerQueue(Medium medium, const Options& options, TransferOperations& operations);

  [[nodiscard]] bool is_here() const noexcept { return options_.tier != nullptr; }
  [[nodiscard]] Medium medium() const noexcept { return medium_; }
  [[nodiscard]] bool objects() const noexcept { return options_.objects; }
  [[nodiscard]] HostTier& staging() const noexcept { return *options_.staging; }
  /// Operations that were begun and not freed; finds are not counted.
  [[nodiscard]] std::size_t operations() const noexcept { return counted_; }
  [[nodiscard]] bool full() const noexcept { return counted_ >= options_.transfers_max; }
  [[nodiscard]] bool reads_wait() const noexcept { return !reads_.queue.empty(); }
  [[nodiscard]] std::size_t late_drops() const noexcept { return late_drops_.size(); }
  /// Makes room for this number of operations in all.
  void reserve(std::size_t most);

  void count() noexcept { ++counted_; }
  void discount() noexcept { --counted_; }
  void push_write(std::uint32_t operation) noexcept;
  void push_read(std::uint32_t operation) noexcept;
  void push_find(std::uint32_t operation) noexcept;
  /// Forgets an image behind the operations with numbers below `number`.
  void drop(const ImageKey& image, std::uint64_t number) noexcept;
  /// The same, without a look at operations.
  void drop_now(const ImageKey& image, std::uint64_t number) noexcept;
  /// For an operation that writes the image again. Whether there was a late drop of it.
  bool take_back_drop(const ImageKey& image) noexcept;

  /// Gives requests to the tier.
  void feed(LowerQueueUser& user);
  /// Takes the answers of the tier.
  void poll(const Stream& stream, LowerQueueUser& user);

  /// Throws as StateTiers::check_invariants. Returns how many operations wait.
  std::size_t check_invariants() const;

 private:
  static constexpr std::uint32_t none = TransferOperation::none;
  using Phase = TransferOperation::Phase;
  using Queue = TransferOperations::Queue;

  /// Operations of one kind that wait, first in, first out.
  struct Waiting {
    Queue queue;
    std::size_t under_way = 0;  ///< requests that the tier has
  };
  struct LateDrop {
    ImageKey image;
    std::uint64_t number = 0;
  };

  /// Whether a request that was refused may find room later: one that ends may make it.
  [[nodiscard]] bool may_wait(const Waiting& kind) const noexcept {
    return (options_.objects ? writes_.under_way + reads_.under_way + finds_.under_way : kind.under_way) > 0;
  }
  void drop_late() noexcept;
  void feed_finds(LowerQueueUser& user);
  void feed_writes(LowerQueueUser& user);
  void feed_reads(LowerQueueUser& user);
  /// Gathers the next write: one state, or KV blocks that wait behind each other.
  void gather(std::size_t images_max);
  void note_write() noexcept;
  void take(const Stream& stream, LowerQueueUser& user, const Completion& completion);
  /// False: there was no memory for it, or no room in a queue.
  [[nodiscard]] bool try_remove(const ImageKey& image) noexcept;
  /// Whether an operation that began earlier has yet to ask the tier for the image.
  [[nodiscard]] bool needed(const ImageKey& image, std::uint64_t before) const noexcept;

  Medium medium_;
  Options options_;
  TransferOperations& operations_;
  Waiting writes_;
  Waiting reads_;
  Waiting finds_;
  std::size_t counted_ = 0;
  std::vector<LateDrop> late_drops_;
  std::vector<LowerTier::Image> together_;  ///< of gather()
  std::vector<Completion> completions_;
};

}  // namespace stateport::tiers
