// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/remote_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_requests.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace stateport {
namespace {

/// Addresses of different arrays, which < does not order.
bool before(const std::byte* a, const std::byte* b) noexcept {
  return std::less<>{}(a, b);
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}

void require_key(std::string_view key) {
  require(!key.empty() && key.size() <= RemoteStore::key_bytes_max, "key.size()", key.size(), "must be 1 to 1024");
  for (const char letter : key)
    require(letter >= '!' && letter <= '~', "key", static_cast<int>(letter), "has a character outside of '!' to '~'");
}

/// One object of a caller's, with copies of its arguments.
class ObjectRequest final : public tiers::RemoteRequest {
 public:
  ObjectRequest(RemoteCall call, const RemoteObject& object)
      : RemoteRequest(call, object.ticket, 1, {.bytes = tiers::bytes_of(object.pieces)}), key_(object.key) {
    std::ranges::copy_if(object.pieces, std::back_inserter(pieces_),
                         [](const RemotePiece& piece) { return piece.bytes > 0; });
  }

  [[nodiscard]] RemoteObject object(std::size_t, std::string&, RemotePiece&) const override {
    return {.ticket = ticket(), .key = key_, .pieces = pieces_};
  }
  [[nodiscard]] std::size_t bytes(std::size_t) const noexcept override { return tiers::bytes_of(pieces_); }
  void note(std::size_t, const Completion& how) noexcept override { how_ = how; }
  [[nodiscard]] End finish(Completion& answer) noexcept override {
    answer.status = how_.status;
    answer.bytes = how_.bytes;
    return End::answered;
  }

 private:
  std::string key_;
  std::vector<RemotePiece> pieces_;  ///< without empty ones
  Completion how_;
};

/// Adds a request for each of the objects or keys.
template <class Object>
bool add(tiers::RemoteRequests& requests, RemoteCall call, std::span<const Object> objects) {
  tiers::RemoteRequests::Batch batch;
  for (const Object& object : objects) {
    RemoteObject given{.ticket = object.ticket, .key = object.key};
    if constexpr (requires { object.pieces; }) given.pieces = object.pieces;
    batch.push_back(std::make_unique<ObjectRequest>(call, given));
  }
  return requests.add(batch);
}

}  // namespace

RemoteStore::RemoteStore(const RemoteQueueLimits& limits)
    : requests_(std::make_unique<tiers::RemoteRequests>(limits)) {}

RemoteStore::~RemoteStore() = default;

void RemoteStore::serve(std::vector<std::unique_ptr<RemoteLane>> lanes, std::size_t batch_bytes) {
  requests_->serve(std::move(lanes), batch_bytes);
}

void RemoteStore::serve_in_poll(std::unique_ptr<RemoteLane> lane) {
  requests_->serve_in_poll(std::move(lane));
}

void RemoteStore::stop() noexcept {
  requests_->stop();
}

void RemoteStore::register_memory(std::span<std::byte> memory) {
  require(!memory.empty(), "memory.size()", memory.size(), "must not be empty");
  const std::lock_guard lock(mutex_);
  const auto same = [&](std::span<std::byte> other) { return overlap(memory, other); };
  require(std::ranges::none_of(registered_, same), "memory.size()", memory.size(), "overlaps registered memory");
  registered_.reserve(registered_.size() + 1);
  do_register(memory);
  const auto at = std::ranges::upper_bound(registered_, memory.data(), before, &std::span<std::byte>::data);
  registered_.insert(at, memory);
}

void RemoteStore::unregister_memory(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(registered_, [&](std::span<std::byte> other) {
    return other.data() == memory.data() && other.size() == memory.size();
  });
  require(found != registered_.end(), "memory.size()", memory.size(), "was not registered like this");
  do_unregister(memory);
  registered_.erase(found);
}

bool RemoteStore::is_registered(std::span<const std::byte> memory) const {
  const auto after = std::ranges::upper_bound(registered_, memory.data(), before, &std::span<std::byte>::data);
  if (after == registered_.begin()) return false;
  const std::span<std::byte> region = *std::prev(after);
  const auto offset = static_cast<std::size_t>(memory.data() - region.data());
  return offset <= region.size() && memory.size() <= region.size() - offset;
}

void RemoteStore::require_registered(std::span<const std::byte> memory) const {
  if (!needs_registration()) return;
  const std::lock_guard lock(mutex_);
  require(is_registered(memory), "set.size()", memory.size(), "lies outside of registered memory");
}

void RemoteStore::require_objects(std::span<const RemoteObject> objects) const {
  const std::lock_guard lock(mutex_);
  for (const RemoteObject& object : objects) {
    require_key(object.key);
    std::size_t bytes = 0;
    for (const RemotePiece& piece : object.pieces) {
      if (piece.bytes == 0) continue;
      require(piece.address != nullptr, "piece.address", 0, "must not be null");
      require(piece.bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - bytes,
              "piece.bytes", piece.bytes, "is more than memory has");
      require(!needs_registration() || is_registered({piece.address, piece.bytes}), "piece.bytes", piece.bytes,
              "lies outside of registered memory");
      bytes += piece.bytes;
    }
    require(bytes > 0, "pieces", bytes, "must have bytes");
  }
}

bool RemoteStore::put_from(std::span<const RemoteObject> objects) {
  require_objects(objects);
  return add(*requests_, RemoteCall::put, objects);
}

bool RemoteStore::get_into(std::span<const RemoteObject> objects) {
  require_objects(objects);
  return add(*requests_, RemoteCall::get, objects);
}

bool RemoteStore::exists(std::span<const RemoteKey> keys) {
  for (const RemoteKey& key : keys) require_key(key.key);
  return add(*requests_, RemoteCall::exists, keys);
}

bool RemoteStore::remove(std::span<const RemoteKey> keys) {
  for (const RemoteKey& key : keys) require_key(key.key);
  return add(*requests_, RemoteCall::remove, keys);
}

std::size_t RemoteStore::poll(std::span<Completion> completions) {
  return requests_->poll(completions);
}

const RemoteQueueLimits& RemoteStore::limits() const noexcept {
  return requests_->limits();
}

RemoteStoreStatistics RemoteStore::statistics() const {
  return requests_->statistics();
}

}  // namespace stateport
