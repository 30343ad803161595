// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_store.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stateport::tiers {

/// A request to a RemoteTier.
struct RemoteJob {
  enum class Kind : std::uint8_t { write, read, find, remove };
  Kind kind = Kind::write;
  TransferId id = 0;
  ImageKey key;
  std::span<const ObjectSet> sets;  ///< of its content and group
  std::span<std::byte> memory;
  std::chrono::steady_clock::time_point accepted = {};
};

/// The work of the thread of a RemoteTier: one sequence of calls, without threads or locks.
///
///     write   seal ──► put_from all objects ──► ended
///     read    get_into all objects of an encoding ──► check ──► ended
///                 └── gone: the next encoding           └── not what it should be: removed from the store
///     find    exists, all objects of all encodings ──► ended
///     remove  remove, all objects of all encodings ──► ended
///
/// A job that the store refuses with an exception has failed, and so has one for which memory runs out. A job that the
/// store refuses for a full queue waits, first in, first out, until a request is answered.
class RemoteJobs {
 public:
  struct Ended {
    RemoteJob job;
    TransferStatus status = TransferStatus::done;
    std::int32_t encoding = 0;
    std::uint64_t bytes = 0;
    std::uint64_t removed_objects = 0;
  };

  explicit RemoteJobs(RemoteStore& store);

  /// Makes room for this number of jobs, and for all ends in `ended`, to which nothing else may be added: no job is
  /// lost then if memory runs out.
  void reserve(std::size_t jobs, std::vector<Ended>& ended);
  /// Computes the checksums of a write. Precondition: reserve().
  void add(const RemoteJob& job, std::vector<Ended>& ended);
  /// Gives waiting jobs to the store, and takes answers. Ended jobs are appended to `ended`.
  void advance(std::vector<Ended>& ended);
  /// Forgets the jobs that the store has not begun.
  void give_up() noexcept;
  /// Parts that the store has and that are not answered.
  [[nodiscard]] std::size_t in_store() const noexcept { return in_store_; }
  [[nodiscard]] bool idle() const noexcept { return in_store_ == 0 && first_waiting_ == none; }

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  struct Running {
    RemoteJob job;
    std::uint32_t next = none;          ///< that waits
    std::int32_t encoding = 0;          ///< read: that is tried
    std::size_t left = 0;               ///< parts that are not answered
    std::vector<bool> waits;            ///< which these are
    std::vector<TransferStatus> parts;  ///< by object; of finds and removes by encoding and object
    std::vector<std::uint64_t> bytes;   ///< of parts that were got
  };

  void start(const RemoteJob& job) noexcept;
  void wait(std::uint32_t number) noexcept;
  std::uint32_t stop_waiting() noexcept;
  void submit_waiting(std::vector<Ended>& ended);
  /// Gives the first of those that wait to the store; finds and removes with those like it behind it. False: the
  /// store's queue is full.
  [[nodiscard]] bool submit_first();
  [[nodiscard]] bool submit_objects(std::uint32_t number);
  [[nodiscard]] bool submit_keys(std::size_t jobs);
  /// Jobs like the first one, whose keys go in one batch.
  [[nodiscard]] std::size_t jobs_together() const;
  /// The store has all parts of the job.
  static void wait_for_answers(Running& running) noexcept;
  void take_answers(std::vector<Ended>& ended);
  void finish(std::uint32_t number, std::vector<Ended>& ended);
  void finish_read(std::uint32_t number, std::vector<Ended>& ended);
  void end(std::uint32_t number, const Ended& how, std::vector<Ended>& ended);

  RemoteStore& store_;
  std::vector<Running> running_;
  std::vector<std::uint32_t> free_;
  std::uint32_t first_waiting_ = none;
  std::uint32_t last_waiting_ = none;
  std::size_t in_store_ = 0;
  bool full_ = false;  ///< the store refused the first that waits, and has answered nothing since
  // Reused by every call.
  std::vector<std::string> names_;
  std::vector<RemotePiece> pieces_;
  std::vector<RemoteObject> objects_;
  std::vector<RemoteKey> keys_;
  std::vector<RemoteCompletion> completions_;
};

}  // namespace stateport::tiers
