// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>

#include "copy_lane.hpp"
#include "image_files.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::tiers {

/// What StateTiers does. An operation is a transfer that is not answered yet, or whose image is still in use:
///
///     store to host   copying: its copy is enqueued. At its mark the image is published, and the transfer answered
///     store to file   copying into staging, to_write, in_file, answered
///     copy to file    copying: the image may be on its way yet; to_write, in_file, answered
///     load from host  no operation: answered when the copy is enqueued
///     load from file  to_read: waits for staging memory; in_file, then the copy is enqueued and the transfer answered;
///                     copying, until staging memory is free again
///
/// Copies gather until something needs them to be enqueued: all stores of the batch go first, then all loads, each kind
/// in one launch. A transfer for which this order would be wrong enqueues the batch before it: one whose slot of the
/// device a load of the batch writes, and a drop of an image that the batch copies.
class TransferExecutor {
 public:
  struct Kind {
    ImageLayout layout;
    std::int32_t slots = 0;  ///< on the device
  };
  struct Limits {
    std::size_t file_transfers_max = 4096;
    /// Of a file of KV blocks: large enough that the calls around it weigh little, small enough to be freed soon.
    std::size_t kv_file_bytes_max = std::size_t{16} << 20;
  };
  /// `files` may be nullptr; they must end before the host tier does.
  TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, ImageFiles* files, const Limits& limits);
  TransferExecutor(const TransferExecutor&) = delete;
  TransferExecutor& operator=(const TransferExecutor&) = delete;

  void execute(const Stream& stream, TransferPlan plan);
  std::size_t poll(const Stream& stream, std::span<TransferResult> results);
  /// Operations, and results that were not polled.
  [[nodiscard]] std::size_t in_flight() const noexcept {
    return operation_count_ + results_.size() - results_read_ + late_drops_.size();
  }
  /// Operations with files.
  [[nodiscard]] std::size_t file_transfers() const noexcept { return file_operations_; }
  void check_invariants() const;

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  enum class Phase : std::uint8_t { unused, copying, to_write, to_read, in_file };

  struct Operation {
    Transfer transfer;
    HostImage image;
    std::uint64_t number = 0;  ///< in the order in which they began
    std::uint64_t mark = 0;    ///< of the copying phase
    Phase phase = Phase::unused;
    bool failed = false;          ///< the copy that it waits for was never enqueued
    bool drop_if_failed = false;  ///< took back a drop
    std::uint32_t next = none;    ///< in its queue, in the free list, or in its file
  };
  /// First in, first out, linked through Operation::next.
  struct Queue {
    std::uint32_t head = none;
    std::uint32_t tail = none;
  };
  /// The copies of one kind that are not enqueued yet.
  struct Batch {
    std::vector<SlotCopy> stores;
    std::vector<std::uint32_t> store_operations;
    std::vector<SlotCopy> loads;
    std::vector<TransferId> load_ids;
    bool refused = false;                ///< its stores were not enqueued; loads may read what they were to write
    std::vector<std::uint64_t> written;  ///< [slots] the batch in which a load last wrote the slot
  };
  /// A drop of a file that an earlier operation still needs.
  struct LateDrop {
    ImageKey image;
    std::uint64_t number = 0;
  };

  void check(const Transfer& transfer) const;
  void start(const Stream& stream, const Transfer& transfer);
  void start_store(const Stream& stream, const Transfer& transfer);
  void start_load(const Stream& stream, const Transfer& transfer);
  void start_copy(const Transfer& transfer);
  void start_drop(const Stream& stream, const Transfer& transfer);

  void add_store(const Stream& stream, std::uint32_t operation);
  /// False, and answered: the header is not that of the image.
  bool add_load(const Stream& stream, const Transfer& transfer, HostImage image);
  /// Enqueues the batch when a copy that it holds must come before what comes next.
  void separate(const Stream& stream, std::size_t kind, std::int32_t slot);
  void enqueue_batch(const Stream& stream);
  void enqueue_stores(const Stream& stream, std::size_t kind);
  void enqueue_loads(const Stream& stream, std::size_t kind);
  /// The image was never copied: nobody may find it, and all that wait for it fail.
  void fail_store(std::uint32_t operation);
  void mark(const Stream& stream);

  void finish_copies();
  void finish_copy(std::uint32_t operation);
  /// The bytes of an image are there: writes its header.
  void publish(HostImage image);
  void finish_files(const Stream& stream);
  void finish_read(const Stream& stream, std::uint32_t operation, TransferStatus status);
  void feed_writes();
  void feed_reads();
  /// Gathers what goes into the next file: one state, or KV blocks that wait behind each other.
  void gather_file(std::size_t images_max);
  void drop_late();
  /// Whether an operation that began earlier has yet to ask the files for the image.
  [[nodiscard]] bool needed(const ImageKey& image, std::uint64_t before) const noexcept;
  /// For an operation that writes the image again. Whether there was a late drop of it.
  bool take_back_drop(const ImageKey& image);
  [[nodiscard]] bool files_full() const noexcept { return file_operations_ >= limits_.file_transfers_max; }

  [[nodiscard]] std::uint32_t make_operation(const Transfer& transfer, HostImage image);
  void free_operation(std::uint32_t operation) noexcept;
  void push(Queue& queue, std::uint32_t operation, Phase phase) noexcept;
  std::uint32_t pop(Queue& queue) noexcept;
  void wait_for_mark(std::uint32_t operation) noexcept;
  void answer(TransferId id, TransferStatus status) { results_.push_back({id, status}); }
  /// Answers an operation that pins an image, or has none, and ends it.
  void end(std::uint32_t operation, TransferStatus status);

  HostTier* host_;
  std::vector<Kind> kinds_;
  std::vector<std::vector<Checksum>> no_checksums_;  ///< [kinds, tensors]
  CopyLane* lane_;
  ImageFiles* files_;
  Limits limits_;

  std::vector<Batch> batches_;              ///< [kinds]
  std::vector<std::uint64_t> image_batch_;  ///< [image index] the batch that last copied it
  std::uint64_t batch_ = 1;                 ///< the number of the one that gathers
  bool gathers_ = false;                    ///< it has a copy
  bool unmarked_ = false;                   ///< an operation waits for a mark that is not made
  std::uint64_t marks_ = 0;

  std::vector<Operation> operations_;
  std::uint32_t free_operation_ = none;
  std::size_t operation_count_ = 0;
  std::size_t file_operations_ = 0;
  std::size_t writes_in_file_ = 0;  ///< requests
  std::size_t reads_in_file_ = 0;
  std::uint64_t numbers_ = 0;
  Queue copying_;  ///< marks do not decrease
  Queue to_write_;
  Queue to_read_;
  std::vector<LateDrop> late_drops_;
  std::vector<ImageFiles::Image> file_;  ///< of gather_file()
  std::vector<ImageFiles::Completion> completions_;
  std::vector<TransferResult> results_;
  std::size_t results_read_ = 0;
};

}  // namespace stateport::tiers
