// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/in_process_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_request.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace stateport {
namespace {

using tiers::bytes_of;

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

class InProcessLane final : public RemoteLane {
 public:
  explicit InProcessLane(std::shared_ptr<InProcessObjects> objects) : objects_(std::move(objects)) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    const auto found = [](bool is_there) { return is_there ? TransferStatus::done : TransferStatus::gone; };
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const auto& [ticket, key, pieces] = objects[i];
      if (call == RemoteCall::put) answers[i].status = objects_->put(key, pieces);
      if (call == RemoteCall::get) answers[i] = objects_->get(key, pieces);
      if (call == RemoteCall::exists) answers[i].status = found(objects_->contains(key));
      if (call == RemoteCall::remove) answers[i].status = found(objects_->erase(key));
    }
  }

 private:
  std::shared_ptr<InProcessObjects> objects_;
};

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

Completion InProcessObjects::get(std::string_view key, std::span<const RemotePiece> pieces) {
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
    : RemoteStore(options.limits), objects_(std::move(objects)), needs_registration_(options.needs_registration) {
  require(objects_ != nullptr, "objects", "null", "must be what the clients share");
  serve_in_poll(std::make_unique<InProcessLane>(objects_));
}

}  // namespace stateport
