// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/in_process_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_requests.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace stateport {
namespace {

using tiers::RemoteRequest;
using tiers::RemoteRequests;

std::size_t bytes_of(std::span<const RemotePiece> pieces) noexcept {
  std::size_t bytes = 0;
  for (const RemotePiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

std::vector<std::byte> gather(std::span<const RemotePiece> pieces) {
  std::vector<std::byte> bytes;
  bytes.reserve(bytes_of(pieces));
  for (const RemotePiece& piece : pieces) bytes.insert(bytes.end(), piece.address, piece.address + piece.bytes);
  return bytes;
}

void scatter(std::span<const std::byte> bytes, std::span<const RemotePiece> pieces) noexcept {
  for (const RemotePiece& piece : pieces) {
    const std::size_t part = std::min(piece.bytes, bytes.size());
    if (part > 0) std::memcpy(piece.address, bytes.data(), part);
    bytes = bytes.subspan(part);
  }
}

RemoteCompletion carry_out(InProcessObjects& objects, const RemoteRequest& request) {
  switch (request.kind) {
    case RemoteRequest::Kind::put:
      return {.status = objects.put(request.key, request.pieces), .bytes = request.bytes};
    case RemoteRequest::Kind::get:
      return objects.get(request.key, request.pieces);
    case RemoteRequest::Kind::exists:
      return {.status = objects.contains(request.key) ? TransferStatus::done : TransferStatus::gone};
    case RemoteRequest::Kind::remove:
      return {.status = objects.erase(request.key) ? TransferStatus::done : TransferStatus::gone};
  }
  return {.status = TransferStatus::failed};
}

}  // namespace

std::optional<InProcessObjects::Objects::iterator> InProcessObjects::find(std::string_view key) const {
  const auto found = positions_.find(key);
  if (found == positions_.end()) return std::nullopt;
  return found->second;
}

void InProcessObjects::erase(Objects::iterator object) {
  held_bytes_ -= object->bytes.size();
  positions_.erase(object->key);
  objects_.erase(object);
}

void InProcessObjects::evict_until(std::uint64_t free_bytes) {
  while (capacity_bytes_ - held_bytes_ < free_bytes) erase(objects_.begin());
}

TransferStatus InProcessObjects::put(std::string_view key, std::span<const RemotePiece> pieces) {
  const std::size_t bytes = bytes_of(pieces);
  const std::lock_guard lock(mutex_);
  if (const auto object = find(key)) {
    objects_.splice(objects_.end(), objects_, *object);
    return TransferStatus::done;
  }
  if (bytes > capacity_bytes_) return TransferStatus::no_room;
  try {
    Objects added;
    added.push_back({std::string(key), gather(pieces)});
    positions_.emplace(added.front().key, added.begin());
    evict_until(bytes);
    objects_.splice(objects_.end(), added);
  } catch (const std::bad_alloc&) {
    return TransferStatus::no_room;
  }
  held_bytes_ += bytes;
  return TransferStatus::done;
}

RemoteCompletion InProcessObjects::get(std::string_view key, std::span<const RemotePiece> pieces) {
  const std::size_t room = bytes_of(pieces);
  const std::lock_guard lock(mutex_);
  const auto object = find(key);
  if (!object) return {.status = TransferStatus::gone};
  const std::vector<std::byte>& bytes = (*object)->bytes;
  if (bytes.size() > room) return {.status = TransferStatus::foreign_layout};
  scatter(bytes, pieces);
  objects_.splice(objects_.end(), objects_, *object);
  return {.status = TransferStatus::done, .bytes = bytes.size()};
}

bool InProcessObjects::contains(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  return find(key).has_value();
}

bool InProcessObjects::erase(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto object = find(key);
  if (object) erase(*object);
  return object.has_value();
}

std::optional<std::vector<std::byte>> InProcessObjects::read(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  const auto object = find(key);
  if (!object) return std::nullopt;
  return (*object)->bytes;
}

bool InProcessObjects::overwrite(std::string_view key, std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  const auto object = find(key);
  if (!object || bytes.size() > capacity_bytes_ - (held_bytes_ - (*object)->bytes.size())) return false;
  std::vector<std::byte> replacement(bytes.begin(), bytes.end());
  held_bytes_ += replacement.size();
  held_bytes_ -= (*object)->bytes.size();
  (*object)->bytes = std::move(replacement);
  return true;
}

std::vector<std::string> InProcessObjects::keys() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> keys;
  keys.reserve(objects_.size());
  for (const Object& object : objects_) keys.push_back(object.key);
  return keys;
}

std::uint64_t InProcessObjects::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

void InProcessObjects::check_invariants() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (auto object = objects_.begin(); object != objects_.end(); ++object) {
    bytes += object->bytes.size();
    const auto found = find(object->key);
    require_invariant(found && *found == object, "InProcessObjects", "an object is not where its key leads");
  }
  require_invariant(positions_.size() == objects_.size(), "InProcessObjects", "a key leads to no object");
  require_invariant(bytes == held_bytes_, "InProcessObjects", "the bytes are miscounted");
  require_invariant(bytes <= capacity_bytes_, "InProcessObjects", "there are more bytes than the capacity");
}

InProcessStore::InProcessStore(std::shared_ptr<InProcessObjects> objects, const InProcessStoreOptions& options)
    : objects_(std::move(objects)), options_(options), requests_(std::make_unique<RemoteRequests>(options.limits)) {
  require(objects_ != nullptr, "objects", "null", "must be what the clients share");
}

InProcessStore::~InProcessStore() = default;

bool InProcessStore::do_put(std::span<const RemoteObject> objects) {
  return requests_->add(RemoteRequest::Kind::put, objects);
}

bool InProcessStore::do_get(std::span<const RemoteObject> objects) {
  return requests_->add(RemoteRequest::Kind::get, objects);
}

bool InProcessStore::do_exists(std::span<const RemoteKey> keys) {
  return requests_->add(RemoteRequest::Kind::exists, keys);
}

bool InProcessStore::do_remove(std::span<const RemoteKey> keys) {
  return requests_->add(RemoteRequest::Kind::remove, keys);
}

std::size_t InProcessStore::do_poll(std::span<RemoteCompletion> completions) {
  std::vector<RemoteRequest> taken;
  if (!completions.empty()) requests_->take(taken, completions.size(), std::numeric_limits<std::size_t>::max());
  for (const RemoteRequest& request : taken) {
    const RemoteCompletion outcome = carry_out(*objects_, request);
    requests_->answer(request, outcome.status, outcome.bytes);
  }
  return requests_->poll(completions);
}

}  // namespace stateport
