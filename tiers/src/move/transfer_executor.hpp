// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>

#include "move/copy_lane.hpp"
#include "move/lower_tier.hpp"
#include "move/transfer_operations.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::tiers {

/// The work of StateTiers. An operation is a transfer that is not answered yet, or whose image is still in use. Files
/// and the remote tier are lower tiers:
///
///     store to host         copying (its copy is enqueued). At its mark the image is published, and answered
///     store to a lower tier copying into staging, to_write, below, answered
///     copy to files         copying (the image may be on its way yet), to_write, below, answered
///     copy to remote        as to files, but from a file first to_read; then copying into staging, as objects
///     load from host        no operation: answered when the copy is enqueued
///     load from below       to_read (waits for staging memory), below; then the copy is enqueued and answered,
///                           copying until the staging memory is free again
///     find                  below, answered
///
/// Copies gather until something needs them to be enqueued: all stores of the batch go first, then all loads, each
/// route in one launch. A transfer for which this order would be wrong enqueues the batch before it: one whose slot of
/// the device a load of the batch writes, and a drop of an image that the batch copies.
class TransferExecutor {
 public:
  struct Kind {
    ImageLayout layout;
    std::int32_t slots = 0;  ///< on the device
  };
  /// A tier below host memory; `tier` nullptr: there is none.
  struct Below {
    LowerTier* tier = nullptr;
    HostTier* staging = nullptr;  ///< where its images wait
    bool objects = false;         ///< its images are sets of objects
    std::size_t transfers_max = 4096;
    /// Of KV blocks that are written together: many enough that the calls around them weigh little, few enough to be
    /// freed soon.
    std::size_t kv_bytes_together = std::size_t{16} << 20;
  };
  /// `routes`: those of the lane. Tiers below must end before the host tier does.
  TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, const CopyRoutes& routes,
                   const Below& files, const Below& remote);
  TransferExecutor(const TransferExecutor&) = delete;
  TransferExecutor& operator=(const TransferExecutor&) = delete;

  /// Both throw std::bad_alloc; nothing has changed then. A transfer for which a lane or a lower tier has no memory has
  /// failed.
  void execute(const Stream& stream, TransferPlan plan);
  /// Makes room for all that this number of further transfers, and those under way, may need.
  void reserve(std::size_t transfers);
  std::size_t poll(const Stream& stream, std::span<TransferResult> results);
  /// Operations, and results that were not polled.
  [[nodiscard]] std::size_t in_flight() const noexcept {
    return operations_.count() + results_.size() - results_read_ + lower_[0].late_drops.size() +
           lower_[1].late_drops.size();
  }
  /// Operations with files.
  [[nodiscard]] std::size_t file_transfers() const noexcept { return lower_[0].operations; }
  void check_invariants() const;

 private:
  static constexpr std::uint32_t none = TransferOperation::none;
  using Phase = TransferOperation::Phase;
  using Queue = TransferOperations::Queue;

  /// The copies of one route that are not enqueued yet, and whose they are: operations of stores, numbers of loads.
  struct Copies {
    std::vector<SlotCopy> plan;
    std::vector<std::uint32_t> operations;
    std::vector<TransferId> loads;
  };
  /// A drop of an image that an earlier operation still needs.
  struct LateDrop {
    ImageKey image;
    std::uint64_t number = 0;
  };
  struct Lower : Below {
    Queue to_write;
    Queue to_read;
    std::size_t operations = 0;  ///< finds are not counted
    std::size_t writes = 0;      ///< requests that it has
    std::size_t reads = 0;
    std::vector<LateDrop> late_drops;
    [[nodiscard]] bool full() const noexcept { return operations >= transfers_max; }
    /// For an operation that writes the image again. Whether there was a late drop of it.
    bool take_back_drop(const ImageKey& image) {
      return std::erase_if(late_drops, [&](const LateDrop& drop) { return drop.image == image; }) > 0;
    }
  };

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
  void note_in_batch(HostImage image);
  /// Enqueues the batch when one of its copies must come before the next one.
  void separate(const Stream& stream, std::size_t kind, std::int32_t slot);
  void enqueue_batch(const Stream& stream);
  void enqueue(const Stream& stream, std::size_t route);
  /// The image was never copied: it must not be found, and all that wait for it fail.
  void fail_copy(std::uint32_t operation);
  void mark(const Stream& stream);
  /// Enqueues copies, and gives lower tiers the requests that wait for them.
  void let_go_on(const Stream& stream);

  void finish_copy(std::uint32_t operation);
  /// The bytes of an image are there: writes its header.
  void publish(HostImage image);
  void finish_below(const Stream& stream, Lower& lower);
  void finish_read(const Stream& stream, Lower& lower, const Completion& completion);
  void feed_writes(Lower& lower);
  void feed_reads(Lower& lower);
  /// Gathers the next write: one state, or KV blocks that wait behind each other.
  void gather(Lower& lower, std::size_t images_max);
  void drop_late(Lower& lower);
  /// Whether an operation that began earlier has yet to ask the lower tier for the image.
  [[nodiscard]] bool needed(const Lower& lower, const ImageKey& image, std::uint64_t before) const noexcept;

  /// Where the image of an operation lies.
  [[nodiscard]] HostTier& memory_of(const TransferOperation& operation) noexcept;

  [[nodiscard]] std::uint32_t make_operation(const Transfer& transfer, HostImage image);
  void free_operation(std::uint32_t operation) noexcept;
  void wait_for_mark(std::uint32_t operation) noexcept;
  void answer(TransferId id, TransferStatus status) { results_.push_back({id, status}); }
  /// Answers an operation that pins an image, or has none, and ends it.
  void end(std::uint32_t operation, TransferStatus status);

  HostTier* host_;
  std::vector<Kind> kinds_;
  std::vector<std::vector<Checksum>> no_checksums_;  ///< [kinds, tensors]
  CopyLane* lane_;
  CopyRoutes routes_;

  std::vector<Copies> copies_;                       ///< [routes]
  std::vector<std::vector<std::uint64_t>> written_;  ///< [kinds, slots] the batch in which a load last wrote the slot
  std::vector<bool> refused_;                        ///< [kinds] stores of this batch, that its loads may read
  std::vector<std::uint64_t> image_batch_;           ///< [image index] the batch that last copied it
  std::uint64_t batch_ = 1;                          ///< the number of the one that gathers
  bool gathers_ = false;                             ///< it has a copy
  bool unmarked_ = false;                            ///< an operation or a copy has no mark behind it yet
  std::uint64_t marks_ = 0;

  TransferOperations operations_;
  std::uint64_t numbers_ = 0;
  Queue copying_;                           ///< marks do not decrease
  std::array<Lower, 2> lower_;              ///< files, remote
  std::vector<LowerTier::Image> together_;  ///< of gather()
  std::vector<Completion> completions_;
  std::vector<TransferResult> results_;
  std::size_t results_read_ = 0;
};

}  // namespace stateport::tiers
