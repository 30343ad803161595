// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>

namespace stateport::tiers {

/// A request in the queue of a RemoteStore. It has parts, each of them an object: lanes take parts, so that several
/// carry out one request. The lane that has a part calls object(), seal() and verify(); without memory they throw
/// std::bad_alloc, and the part has failed. note() and finish() are called one at a time.
class RemoteRequest {
 public:
  /// What counts against the limits of the queue: a number of parts, and of bytes.
  struct Cost {
    std::size_t parts = 1;
    std::size_t bytes = 0;
  };

  RemoteRequest(RemoteCall call, std::uint64_t ticket, std::size_t parts, const Cost& cost) noexcept
      : call_(call), ticket_(ticket), parts_(parts), cost_(cost) {}
  RemoteRequest(const RemoteRequest&) = delete;
  RemoteRequest& operator=(const RemoteRequest&) = delete;
  virtual ~RemoteRequest() = default;

  [[nodiscard]] RemoteCall call() const noexcept { return call_; }
  [[nodiscard]] std::uint64_t ticket() const noexcept { return ticket_; }

  /// `name` and `piece`: memory that the object may point to.
  [[nodiscard]] virtual RemoteObject object(std::size_t part, std::string& name, RemotePiece& piece) const = 0;
  /// Of the pieces that are put or got.
  [[nodiscard]] virtual std::size_t bytes(std::size_t part) const noexcept = 0;
  /// Before a put.
  virtual void seal(std::size_t /*part*/) const {}
  /// How a get of `bytes` bytes that is done is answered.
  [[nodiscard]] virtual TransferStatus verify(std::size_t /*part*/, std::uint64_t /*bytes*/) {
    return TransferStatus::done;
  }
  /// Whether an object that was got with this answer is removed from the store.
  [[nodiscard]] virtual bool removes(TransferStatus /*status*/) const noexcept { return false; }

  virtual void note(std::size_t part, const Completion& how) noexcept = 0;
  enum class End : std::uint8_t { answered, silent, anew };
  /// All parts were noted. Fills in the answer. `anew`: as many parts as before are carried out once more.
  [[nodiscard]] virtual End finish(Completion& answer) noexcept = 0;

 protected:
  /// For finish(): what is carried out anew is another call.
  void set_call(RemoteCall call) noexcept { call_ = call; }

 private:
  friend class RemoteRequests;

  RemoteCall call_;
  std::uint64_t ticket_;
  std::size_t parts_;
  Cost cost_;
  // Of the queue:
  std::size_t taken_ = 0;     ///< parts that lanes have taken
  std::size_t answered_ = 0;  ///< parts that were noted
  std::list<std::unique_ptr<RemoteRequest>>::iterator self_;
};

[[nodiscard]] inline std::size_t bytes_of(std::span<const RemotePiece> pieces) noexcept {
  std::size_t bytes = 0;
  for (const RemotePiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace stateport::tiers
