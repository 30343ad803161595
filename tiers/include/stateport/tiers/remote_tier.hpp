// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {

struct RemoteTierOptions {
  /// Of sets whose write was accepted and not yet answered; as much again for reads. Keep it below the store's own
  /// limit: a request that the store refuses waits until another is answered.
  std::size_t queue_bytes = std::size_t{256} << 20;
  /// Finds that were accepted and not yet answered.
  std::size_t finds_max = 65536;
};

/// The answer to a request.
struct RemoteTierCompletion {
  TransferId id = 0;
  TransferStatus status = TransferStatus::done;
  std::int32_t encoding = 0;  ///< of a read that is done: which of the sets for this content and group lies there
  std::uint64_t bytes = 0;    ///< put or got; 0 unless done, and of finds
  double seconds = 0;         ///< from the moment at which it was accepted
};

struct RemoteTierStatistics {
  std::uint64_t write_queue_bytes = 0;
  std::uint64_t read_queue_bytes = 0;
  std::uint64_t refused_writes = 0;  ///< requests that were not accepted: the queue was full
  std::uint64_t refused_reads = 0;
  std::uint64_t refused_finds = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t removed_objects = 0;  ///< whose content did not fit their name; removed from the store
  double write_seconds = 0;           ///< sums of RemoteTierCompletion::seconds of requests that are done
  double read_seconds = 0;
  /// Accepted requests by their answer, indexed by TransferStatus.
  std::array<std::uint64_t, transfer_status_count> write_answers = {};
  std::array<std::uint64_t, transfer_status_count> read_answers = {};
  std::array<std::uint64_t, transfer_status_count> find_answers = {};
};

/// Checkpoints in a store that many machines share, as sets of objects that do not depend on the topology of who wrote
/// them. Nothing is decided here; capacity and eviction are the store's own.
///
/// Requests are carried out by one thread of the tier, which computes and verifies checksums, and answered by poll().
/// No call waits for the store but wait_idle and the destructor. Any thread may call anything at any time.
///
/// Verified. A read is answered `done` when all objects of the set were there and header, key and all checksums of each
/// fit. The header decides, never the name alone. Objects whose content does not fit their name are removed from the
/// store, so that they can be written again.
///
/// Several encodings. Objects of other element types have other names. A write is in the first encoding; a read takes
/// the first of which all objects are there.
class RemoteTier {
 public:
  /// `store` must outlive the tier, and is used by no one else while it exists. `sets`: the contents that the tier may
  /// hold, for each content and group one set or more, those of further encodings behind the first. Throws
  /// InvalidArgument: no set, queue_bytes less than a set, finds_max 0. InvalidState while the store has requests that
  /// were not answered. BackendError if the thread cannot be started.
  RemoteTier(RemoteStore& store, std::vector<ObjectSet> sets, const RemoteTierOptions& options = {});
  RemoteTier(RemoteTier&&) noexcept;
  RemoteTier& operator=(RemoteTier&&) noexcept;
  /// Requests that the store has not begun are given up. Waits for those that it has: they use the caller's memory.
  ~RemoteTier();

  /// The sets for a content and group, in the order of encodings; empty if the tier holds no such keys.
  [[nodiscard]] std::span<const ObjectSet> sets(CacheContent content, std::int32_t group) const noexcept;
  /// Bytes of memory for a read: those of the largest encoding. Throws InvalidArgument for a key that no set has.
  [[nodiscard]] std::size_t bytes(const ImageKey& key) const;

  /// Seals the objects of the first encoding in `set`, its bytes(), and stores them. The memory is left alone until the
  /// answer. False, and counted: the queue is full; there is no answer then. Answers: done, no_room, failed (also for
  /// memory that is not registered with a store that needs it). After another answer than done, some objects may be
  /// there. Throws InvalidArgument: a key that no set has, negative tokens, memory of another size.
  [[nodiscard]] bool write(TransferId id, const ImageKey& key, std::span<std::byte> set);
  /// Reads all objects of a key into `set`, bytes(key) bytes, which are undefined until the answer `done`. Answers:
  /// done, gone (one or more are not there), damaged, foreign_layout, wrong_position, failed. Otherwise as write.
  [[nodiscard]] bool read(TransferId id, const ImageKey& key, std::span<std::byte> set);
  /// Asks whether all objects of a key are there, in any encoding. Answers: done, gone, failed. Otherwise as write.
  [[nodiscard]] bool find(TransferId id, const ImageKey& key);
  /// Removes the objects of a key, in every encoding, from the store; for everybody. Not answered. Throws as write.
  void remove(const ImageKey& key);

  /// Takes answers, in the order in which requests ended. Returns how many were written to `completions`.
  std::size_t poll(std::span<RemoteTierCompletion> completions);
  /// Waits until every request has an answer and every removal is done.
  void wait_idle() const;

  [[nodiscard]] RemoteTierStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
