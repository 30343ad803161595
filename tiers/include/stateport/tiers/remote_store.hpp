// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace stateport {

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

struct RemoteKey {
  std::uint64_t ticket = 0;
  std::string_view key;
};

/// The answer to a request.
struct RemoteCompletion {
  std::uint64_t ticket = 0;
  TransferStatus status = TransferStatus::done;
  std::uint64_t bytes = 0;  ///< of an object that was put or got: its size. 0 unless done
  friend constexpr bool operator==(const RemoteCompletion&, const RemoteCompletion&) noexcept = default;
};

/// How much may be accepted and not answered.
struct RemoteQueueLimits {
  std::size_t queue_bytes = std::size_t{1} << 30;  ///< of all pieces
  std::size_t queue_requests = 65536;
};

struct RemoteStoreStatistics {
  std::uint64_t accepted_requests = 0;
  std::uint64_t refused_requests = 0;  ///< the queue was full
  /// Answered requests, indexed by TransferStatus.
  std::array<std::uint64_t, transfer_status_count> answers = {};
};

/// A store that many machines share: values of bytes under keys. A client of an existing store derives from it.
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
/// No call waits for the network but construction and destruction. Destruction gives up requests that were not
/// answered: each of them may have been carried out or not. It returns when the caller's memory is not touched any
/// more.
///
/// Thread-safe: any thread may call anything at any time. Which exceptions are thrown is the same for all stores; a
/// batch that throws begins nothing.
class RemoteStore {
 public:
  static constexpr std::size_t key_bytes_max = 1024;

  RemoteStore() = default;
  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;
  virtual ~RemoteStore() = default;

  /// Makes memory known to the store, for the network's hardware. Slow: call it at the start. Throws InvalidArgument
  /// for no bytes, and for memory that was registered already, wholly or in part; BackendError if the store fails.
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

  /// Takes answers, at most as many as `completions` has room for. Returns how many. Makes requests under way go on.
  std::size_t poll(std::span<RemoteCompletion> completions);

  [[nodiscard]] RemoteStoreStatistics statistics() const;

 private:
  // Functions that a client implements. Arguments are valid; batches are not empty. False: the queue is full.
  virtual void do_register(std::span<std::byte> /*memory*/) {}
  virtual void do_unregister(std::span<std::byte> /*memory*/) {}
  [[nodiscard]] virtual bool do_put(std::span<const RemoteObject> objects) = 0;
  [[nodiscard]] virtual bool do_get(std::span<const RemoteObject> objects) = 0;
  [[nodiscard]] virtual bool do_exists(std::span<const RemoteKey> keys) = 0;
  [[nodiscard]] virtual bool do_remove(std::span<const RemoteKey> keys) = 0;
  /// May throw a passing failure, as std::bad_alloc, if it has taken nothing: it is asked again until every answer was
  /// given. A status that is no TransferStatus counts as failed, and a count above completions.size() as
  /// completions.size().
  virtual std::size_t do_poll(std::span<RemoteCompletion> completions) = 0;

  void require_objects(std::span<const RemoteObject> objects) const;
  [[nodiscard]] bool is_registered(std::span<const std::byte> memory) const;
  [[nodiscard]] bool counted(bool accepted, std::size_t requests);

  mutable std::mutex mutex_;  ///< of the members below; not held while a client's function runs, but do_(un)register
  std::vector<std::span<std::byte>> registered_;  ///< by address
  RemoteStoreStatistics statistics_;
};

}  // namespace stateport
