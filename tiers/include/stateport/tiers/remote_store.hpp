// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/tiers/completion.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace stateport {

namespace tiers {
class RemoteRequests;
}

/// A part of an object in the memory of the host. May have no bytes.
struct RemotePiece {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
};

/// A value to put: the bytes of its pieces, one behind the other. Or where one that is got goes. `ticket`: any number
/// of the caller's, by which the answer names the request.
struct RemoteObject {
  std::uint64_t ticket = 0;
  std::string_view key;
  std::span<const RemotePiece> pieces;
};

/// A key to look for or to remove. `ticket`: as of a RemoteObject.
struct RemoteKey {
  std::uint64_t ticket = 0;
  std::string_view key;
};

/// The largest sums over requests that are accepted and not answered.
struct RemoteQueueLimits {
  std::size_t queue_bytes = std::size_t{1} << 30;  ///< of all pieces
  std::size_t queue_requests =
      65536;  ///< a RemoteTier's request counts once for each object and encoding that it asks for
};

struct RemoteStoreStatistics {
  std::uint64_t accepted_requests = 0;
  std::uint64_t refused_requests = 0;  ///< the queue was full
  /// Answered requests, indexed by TransferStatus.
  std::array<std::uint64_t, transfer_status_count> answers = {};
};

enum class RemoteCall : std::uint8_t { put, get, exists, remove };

/// A connection to a store, whose calls wait for the network. One thread uses it.
class RemoteLane {
 public:
  RemoteLane() = default;
  RemoteLane(const RemoteLane&) = delete;
  RemoteLane& operator=(const RemoteLane&) = delete;
  virtual ~RemoteLane() = default;

  /// Carries out one call for 1 to 64 objects. Sets answers[i].status to an answer that RemoteStore allows for the
  /// call; after a get that is done, answers[i].bytes, too. Answers that it does not set, also because of an exception,
  /// are `failed`. Arguments were checked. Pieces have bytes; exists and remove have none. A zero follows each key.
  /// Must not destroy the store or a tier over it.
  virtual void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) = 0;
  /// Makes a call under way, and those behind it, return soon. Another thread calls it.
  virtual void interrupt() noexcept {}
};

/// A store that many machines share: values of bytes under keys. A client of an existing store derives from it, and
/// gives it lanes.
///
/// Nothing is decided here. The store has its own capacity and its own eviction, so an object may vanish at any time.
/// Other clients put and remove objects too. The reader verifies the content of a key.
///
/// Keys are 1 to 1,024 characters from '!' to '~' of ASCII: every store takes these.
///
/// Requests come in batches. A batch is accepted as a whole, or refused as a whole because a bounded queue is full.
/// Every accepted request is answered by poll() exactly once, in any order. Requests are not ordered among each other:
/// a get behind a put of the same key may be answered `gone`, until the put is answered. Tickets may be used again.
///
/// Memory. Keys and lists of pieces are copied by the call. The bytes of pieces must stay as they are (put), or may
/// hold anything (get), until the answer. A store that needs_registration() moves only bytes of registered memory.
///
/// No call waits for the network but construction, destruction and registrations of memory: requests wait in one queue,
/// from which each lane takes them on a thread of its own. Destruction gives up requests that were not answered: each
/// of them may have been carried out or not. It returns when the caller's memory is not touched any more.
///
/// Thread-safe: any thread may call anything at any time. Which exceptions are thrown is the same for all stores; a
/// batch that throws begins nothing. A call without memory throws std::bad_alloc; a request for which its lane has none
/// is answered `failed`.
class RemoteStore {
 public:
  static constexpr std::size_t key_bytes_max = 1024;

  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;
  virtual ~RemoteStore();

  /// Makes memory known to the store, for the network's hardware. Slow: call it at the start. It may wait for a call of
  /// a lane, and other calls wait for it. Throws InvalidArgument for no bytes, and for memory that was registered
  /// already, wholly or in part; BackendError if the store fails.
  void register_memory(std::span<std::byte> memory);
  /// `memory` as it was registered; no request that is not answered may use it. Throws InvalidArgument for other
  /// memory.
  void unregister_memory(std::span<std::byte> memory);
  /// Whether the pieces of puts and gets must lie in registered memory, each in one registration.
  [[nodiscard]] virtual bool needs_registration() const noexcept { return false; }

  /// Stores objects. Answers: done (readers may be sent there: it was stored, or was there already, which is then left
  /// as it is), no_room, failed. False, and counted: the queue is full. Throws InvalidArgument: a key that is none, an
  /// object without bytes, a piece at null that has bytes, a piece outside of registered memory where that is needed.
  [[nodiscard]] bool put_from(std::span<const RemoteObject> objects);
  /// Reads objects. Answers: done (the first `bytes` bytes of the pieces are the object, the others hold anything),
  /// gone, damaged (the store lost a part of it), foreign_layout (it is larger than the pieces), failed. After another
  /// answer than done the pieces hold anything. Otherwise as put_from.
  [[nodiscard]] bool get_into(std::span<const RemoteObject> objects);
  /// Answers: done (it is there), gone, failed. Otherwise as put_from.
  [[nodiscard]] bool exists(std::span<const RemoteKey> keys);
  /// Answers: done (it was there, and is not any more), gone, failed. A get that has begun may still be answered done.
  /// Otherwise as put_from.
  [[nodiscard]] bool remove(std::span<const RemoteKey> keys);

  /// Takes answers, at most as many as `completions` has room for. Returns how many.
  std::size_t poll(std::span<Completion> completions);

  [[nodiscard]] const RemoteQueueLimits& limits() const noexcept;
  [[nodiscard]] RemoteStoreStatistics statistics() const;

 protected:
  /// Throws InvalidArgument for a limit of 0.
  explicit RemoteStore(const RemoteQueueLimits& limits = {});

  /// Starts a thread for each lane, with all signals blocked: those of the engine are the engine's. A lane takes
  /// requests of one kind together, with at most `batch_bytes` of pieces unless the first one has more. Throws
  /// BackendError if a thread cannot be started.
  void serve(std::vector<std::unique_ptr<RemoteLane>> lanes, std::size_t batch_bytes);
  /// In place of serve(): poll() carries requests out, in their order, until `completions` is full.
  void serve_in_poll(std::unique_ptr<RemoteLane> lane);
  /// Gives requests up, and ends lanes and their threads. For destructors of clients whose lanes use their members.
  void stop() noexcept;

 private:
  friend class RemoteTier;

  virtual void do_register(std::span<std::byte> /*memory*/) {}
  virtual void do_unregister(std::span<std::byte> /*memory*/) {}

  void require_objects(std::span<const RemoteObject> objects) const;
  /// Of memory for one piece: InvalidArgument, if it has to be registered and is not.
  void require_registered(std::span<const std::byte> memory) const;
  [[nodiscard]] bool is_registered(std::span<const std::byte> memory) const;

  mutable std::mutex mutex_;                      ///< of `registered_`; held while do_register and do_unregister run
  std::vector<std::span<std::byte>> registered_;  ///< by address
  std::unique_ptr<tiers::RemoteRequests> requests_;
};

}  // namespace stateport
