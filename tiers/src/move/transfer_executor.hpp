// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>
#include <stateport/tiers/transfer_times.hpp>

#include "move/copy_batch.hpp"
#include "move/copy_lane.hpp"
#include "move/lower_queue.hpp"
#include "move/transfer_operations.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::tiers {

// clang-format off
/// The work of StateTiers. An operation is a transfer that is not answered yet, or whose image is still in use:
///
///     store to host          copying ──► answered
///     store to a lower tier  copying ──► to_write ──► below ──► answered
///     copy to files          [copying ──►] to_write ──► below ──► answered
///     copy to remote         [copying ──►] copying ──► to_write ──► below ──► answered
///       from a file          to_read ──► below ──► copying ──► to_write ──► below ──► answered
///     load from below        to_read ──► below ──► answered; copying ──► its memory is free
///     find                   to_find ──► below ──► answered
///     load from host         none: it is answered when its copy is enqueued
///
///     copying   its copy is enqueued, or [in brackets] that of its image; goes on at the mark behind it. A store to
///               host publishes its image then. Copies to remote are copied into objects
///     to_write  its image is in memory, and waits for room in the queue of the lower tier
///     to_read   waits for staging memory and for room in that queue
///     to_find   waits for room in that queue
///     below     the lower tier has it
///
/// CopyBatch has the copies that are not enqueued yet, a LowerQueue the operations that wait for a lower tier.
// clang-format on
class TransferExecutor final : private LowerQueueUser {
 public:
  struct Kind {
    ImageLayout layout;
    std::int32_t slots = 0;  ///< on the device
  };
  /// A tier below host memory.
  using Below = LowerQueue::Options;
  /// `routes`: those of the lane. Tiers below must end before the host tier does.
  TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, const CopyRoutes& routes,
                   const Below& files, const Below& remote);
  TransferExecutor(const TransferExecutor&) = delete;
  TransferExecutor& operator=(const TransferExecutor&) = delete;

  /// Both throw std::bad_alloc; nothing has changed then. A transfer for which a lane or a lower tier has no memory has
  /// failed.
  void execute(const Stream& stream, TransferPlan transfers);
  /// Makes room for all that this number of further transfers, and those under way, may need.
  void reserve(std::size_t transfers);
  std::size_t poll(const Stream& stream, std::span<TransferResult> results);
  /// Operations, and results that were not polled.
  [[nodiscard]] std::size_t in_flight() const noexcept {
    return operations_.count() + results_.size() + lower_[0].late_drops() + lower_[1].late_drops();
  }
  /// Operations with files.
  [[nodiscard]] std::size_t file_transfers() const noexcept { return lower_[0].operations(); }
  [[nodiscard]] const TransferTimes& times() const noexcept { return times_; }
  void check_invariants() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Phase = TransferOperation::Phase;

  void check(const Transfer& transfer) const;
  void start(const Stream& stream, const Transfer& transfer);
  void start_store(const Stream& stream, const Transfer& transfer);
  void start_load(const Stream& stream, const Transfer& transfer);
  void start_copy(const Transfer& transfer);
  void start_drop(const Stream& stream, const Transfer& transfer);
  void start_find(const Transfer& transfer);

  void add_store(const Stream& stream, std::uint32_t operation);
  /// Copies an image that is ready to a lower tier, as it is, or as objects.
  void send_down(std::uint32_t operation);
  /// False, and answered: the header is not that of the image.
  bool add_load(const Stream& stream, const Transfer& transfer, HostImage image);
  void add_load(const Stream& stream, const Transfer& transfer, std::size_t route, std::int32_t place);
  void enqueue_batch(const Stream& stream);
  /// The image was never copied: it must not be found, and all that wait for it fail.
  void fail_copy(std::uint32_t operation);
  void mark(const Stream& stream);
  /// Enqueues copies, and gives lower tiers the requests that wait for them.
  void let_go_on(const Stream& stream);

  void finish_copy(std::uint32_t operation);
  /// The bytes of an image are there: writes its header.
  void publish(HostImage image);
  void arrive(const Stream& stream, LowerQueue& lower, std::uint32_t operation, std::int32_t encoding) override;

  /// The lower tier that a transfer is with: the one that it goes to, if both are. nullptr: none.
  [[nodiscard]] LowerQueue* lower_of(const Transfer& transfer) noexcept;
  /// Where the image of an operation lies.
  [[nodiscard]] HostTier& memory_of(const TransferOperation& operation) const noexcept;
  [[nodiscard]] std::size_t kind_of(const Transfer& transfer) const;

  [[nodiscard]] std::uint32_t make_operation(const Transfer& transfer, HostImage image);
  void free_operation(std::uint32_t operation) noexcept;
  void wait_for_mark(std::uint32_t operation) noexcept;
  /// The operation is answered with `done`.
  void note_done(const TransferOperation& operation) noexcept {
    times_.add(operation.transfer, std::chrono::duration<double>(now_ - operation.begun).count());
  }
  void answer(TransferId id, TransferStatus status) { results_.push({id, status}); }
  /// Answers an operation that pins an image, or has none, and ends it.
  void end(std::uint32_t operation, TransferStatus status) override;

  HostTier* host_;
  std::vector<Kind> kinds_;
  std::vector<std::vector<Checksum>> no_checksums_;  ///< [kinds, tensors]
  CopyLane* lane_;
  CopyRoutes routes_;
  CopyBatch batch_;
  bool unmarked_ = false;  ///< an operation or a copy has no mark behind it yet
  std::uint64_t marks_ = 0;

  TransferOperations operations_;
  std::uint64_t numbers_ = 0;
  std::array<LowerQueue, 2> lower_;  ///< files, remote
  ReadyQueue<TransferResult> results_;
  Clock::time_point now_ = {};  ///< of the call
  TransferTimes times_;
};

}  // namespace stateport::tiers
