// SPDX-License-Identifier: Apache-2.0
// A remote store in functions of the caller's.
#include <stateport/core/model/error.hpp>

#include "remote_store_object.hpp"

#include <algorithm>

namespace stateport::c {
namespace {

std::vector<stateport_remote_key> to_c(std::span<const RemoteKey> keys) {
  std::vector<stateport_remote_key> named;
  named.reserve(keys.size());
  for (const RemoteKey& key : keys) named.push_back({key.ticket, key.key.data(), key.key.size()});
  return named;
}

/// Objects, and the pieces that they point to.
struct ObjectsOfC {
  explicit ObjectsOfC(std::span<const RemoteObject> given) : pieces(given.size()) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      for (const RemotePiece& piece : given[i].pieces)
        if (piece.bytes > 0) pieces[i].push_back({piece.address, piece.bytes});
      objects.push_back(
          {given[i].ticket, given[i].key.data(), given[i].key.size(), pieces[i].data(), pieces[i].size()});
    }
  }
  std::vector<std::vector<stateport_remote_piece>> pieces;
  std::vector<stateport_remote_object> objects;
};

TransferStatus status_of(std::int32_t status) noexcept {
  const bool is_one = status >= 0 && status < transfer_status_count;
  return is_one ? static_cast<TransferStatus>(status) : TransferStatus::failed;
}

}  // namespace

// An exception of a callback would leave its language's frames half done: the program ends instead.
template <class Call>
auto CallbackStore::call(Call&& call) noexcept {
  const std::lock_guard turn(turn_);
  const Callback callback(object_);
  return call();
}

CallbackStore::~CallbackStore() {
  if (callbacks_.destroy != nullptr) callbacks_.destroy(callbacks_.context);
}

void CallbackStore::do_register(std::span<std::byte> memory) {
  if (callbacks_.register_memory == nullptr) return;
  const auto problem =
      call([&] { return callbacks_.register_memory(memory.data(), memory.size(), callbacks_.context); });
  if (problem != 0) throw BackendError("register_memory", "the store's client refuses");
}

void CallbackStore::do_unregister(std::span<std::byte> memory) {
  if (callbacks_.unregister_memory == nullptr) return;
  const auto problem =
      call([&] { return callbacks_.unregister_memory(memory.data(), memory.size(), callbacks_.context); });
  if (problem != 0) throw BackendError("unregister_memory", "the store's client refuses");
}

bool CallbackStore::do_put(std::span<const RemoteObject> objects) {
  const ObjectsOfC given(objects);
  return call([&] { return callbacks_.put(given.objects.data(), given.objects.size(), callbacks_.context); }) != 0;
}

bool CallbackStore::do_get(std::span<const RemoteObject> objects) {
  const ObjectsOfC given(objects);
  return call([&] { return callbacks_.get(given.objects.data(), given.objects.size(), callbacks_.context); }) != 0;
}

bool CallbackStore::do_exists(std::span<const RemoteKey> keys) {
  const std::vector<stateport_remote_key> given = to_c(keys);
  return call([&] { return callbacks_.exists(given.data(), given.size(), callbacks_.context); }) != 0;
}

bool CallbackStore::do_remove(std::span<const RemoteKey> keys) {
  const std::vector<stateport_remote_key> given = to_c(keys);
  return call([&] { return callbacks_.remove(given.data(), given.size(), callbacks_.context); }) != 0;
}

std::size_t CallbackStore::do_poll(std::span<RemoteCompletion> completions) {
  std::vector<stateport_remote_completion> room(completions.size());
  const std::size_t told = call([&] { return callbacks_.poll(room.data(), room.size(), callbacks_.context); });
  const std::size_t count = std::min(told, room.size());
  for (std::size_t i = 0; i < count; ++i) completions[i] = {room[i].ticket, status_of(room[i].status), room[i].bytes};
  return count;
}

}  // namespace stateport::c
