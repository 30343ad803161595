// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include "host/ready_queue.hpp"

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace stateport::tiers {

/// A request of a RemoteStore, with copies of its caller's arguments.
struct RemoteRequest {
  enum class Kind : std::uint8_t { put, get, exists, remove };
  Kind kind = Kind::put;
  std::uint64_t ticket = 0;
  std::string key;
  std::vector<RemotePiece> pieces;  ///< without empty ones
  std::size_t bytes = 0;            ///< of all pieces
};

/// The bounded queue between a store's callers and the threads that carry requests out, and the way back. Thread-safe.
/// A call that runs out of memory throws std::bad_alloc and has changed nothing.
class RemoteRequests {
 public:
  /// Throws InvalidArgument for a limit of 0.
  explicit RemoteRequests(const RemoteQueueLimits& limits);

  /// All of the batch, or none: they do not fit.
  [[nodiscard]] bool add(RemoteRequest::Kind kind, std::span<const RemoteObject> objects);
  [[nodiscard]] bool add(RemoteRequest::Kind kind, std::span<const RemoteKey> keys);

  /// Takes the oldest request, and those of its kind that follow it directly: at most `count`, and no more than `bytes`
  /// of pieces unless the first one has more. Appends them to `taken`. False: there is none.
  bool take(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes);
  /// The same; waits for one. False: stop() was called.
  bool wait_and_take(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes);
  /// Ends a request that was taken.
  void answer(const RemoteRequest& request, TransferStatus status, std::uint64_t bytes = 0) noexcept;
  /// Hands out answers.
  std::size_t poll(std::span<RemoteCompletion> completions);

  /// Lets wait_and_take() return; requests that wait are dropped.
  void stop();

 private:
  [[nodiscard]] bool add(std::list<RemoteRequest>& requests);
  void move_front(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes);

  RemoteQueueLimits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<RemoteRequest> waiting_;
  ReadyQueue<RemoteCompletion> completions_;
  std::size_t queued_bytes_ = 0;     ///< of requests whose answer was not handed out, until they are ended
  std::size_t queued_requests_ = 0;  ///< accepted, and their answer not handed out
  bool stopping_ = false;
};

}  // namespace stateport::tiers
