// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include "host/ready_queue.hpp"
#include "remote/remote_request.hpp"

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace stateport::tiers {

/// The requests of a RemoteStore: a bounded queue, the lanes that carry them out, and the way back. Thread-safe.
///
///              take: all parts are taken        the last part is noted
///     waiting ──────────────────────────► running ──────────────────► answers ──► poll
///        ▲                                   │
///        └───────────────────────────────────┘ anew
///
/// A lane needs no memory to go on.
class RemoteRequests {
 public:
  using Batch = std::list<std::unique_ptr<RemoteRequest>>;

  /// Throws InvalidArgument for a limit of 0.
  explicit RemoteRequests(const RemoteQueueLimits& limits);
  RemoteRequests(const RemoteRequests&) = delete;
  RemoteRequests& operator=(const RemoteRequests&) = delete;
  ~RemoteRequests() { stop(); }

  /// As RemoteStore::serve and serve_in_poll.
  void serve(std::vector<std::unique_ptr<RemoteLane>> lanes, std::size_t batch_bytes);
  void serve_in_poll(std::unique_ptr<RemoteLane> lane);

  /// All of the batch, or none: they do not fit. Throws std::bad_alloc; nothing has changed then.
  [[nodiscard]] bool add(Batch& batch);
  std::size_t poll(std::span<Completion> completions);
  /// Forgets all requests, as if they had failed, and answers that were not polled. Waits for the parts that lanes
  /// have.
  void give_up() noexcept;
  /// As RemoteStore::stop.
  void stop() noexcept;

  [[nodiscard]] const RemoteQueueLimits& limits() const noexcept { return limits_; }
  [[nodiscard]] RemoteStoreStatistics statistics() const;

 private:
  struct Part {
    RemoteRequest* request = nullptr;
    std::size_t number = 0;
  };
  /// A lane, the parts that it has, and room for whatever a call of it needs.
  struct Worker {
    explicit Worker(std::unique_ptr<RemoteLane> its);

    std::unique_ptr<RemoteLane> lane;
    std::vector<Part> parts;
    std::vector<std::string> names;
    std::vector<RemotePiece> pieces;
    std::vector<RemoteObject> objects;
    std::vector<Completion> answers;
    std::thread thread;
  };

  void run(Worker& worker);
  /// With the lock held. False: no request waits.
  bool take(Worker& worker);
  void carry_out(Worker& worker) noexcept;
  /// False: there is no memory for it.
  [[nodiscard]] static bool prepare(Worker& worker, const Part& part) noexcept;
  static void ask(RemoteLane& lane, RemoteCall call, std::span<const RemoteObject> objects,
                  std::span<Completion> answers) noexcept;
  static void verify(Worker& worker, std::size_t at) noexcept;
  void note(std::span<const Part> parts, std::span<const Completion> answers) noexcept;
  // With the lock held:
  void end(RemoteRequest& request) noexcept;
  void drop_waiting() noexcept;
  void count(TransferStatus status) noexcept { ++statistics_.answers[static_cast<std::size_t>(status)]; }

  RemoteQueueLimits limits_;
  std::size_t batch_bytes_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::mutex poll_mutex_;  ///< of the worker without a thread
  std::unique_ptr<Worker> in_poll_;

  mutable std::mutex mutex_;  ///< of all that follows; held for no call of a lane
  std::condition_variable changed_;
  Batch waiting_;
  Batch running_;
  ReadyQueue<Completion> completions_;
  std::size_t queued_bytes_ = 0;  ///< of requests that were not ended
  std::size_t queued_parts_ = 0;  ///< of requests that were not ended; those whose answer was not polled count 1
  RemoteStoreStatistics statistics_;
  bool giving_up_ = false;
  bool stopping_ = false;
};

}  // namespace stateport::tiers
