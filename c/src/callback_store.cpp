// SPDX-License-Identifier: Apache-2.0
// A remote store in functions of the caller's.
#include <stateport/core/model/error.hpp>

#include "remote_store_object.hpp"

#include <memory>
#include <vector>

namespace stateport::c {
namespace {

/// Of pieces that share a call.
constexpr std::size_t batch_bytes = std::size_t{256} << 20;

std::vector<stateport_remote_key> keys_of(std::span<const RemoteObject> given) {
  std::vector<stateport_remote_key> keys;
  keys.reserve(given.size());
  for (const RemoteObject& object : given) keys.push_back({object.ticket, object.key.data(), object.key.size()});
  return keys;
}

/// Objects, and the pieces that they point to.
struct ObjectsOfC {
  explicit ObjectsOfC(std::span<const RemoteObject> given) : pieces(given.size()) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      for (const RemotePiece& piece : given[i].pieces) pieces[i].push_back({piece.address, piece.bytes});
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

class CallbackStore::Lane final : public RemoteLane {
 public:
  explicit Lane(CallbackStore& store) : store_(store) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    const stateport_remote_callbacks& client = store_.callbacks_;
    std::vector<stateport_remote_completion> room;
    room.reserve(objects.size());
    for (const RemoteObject& object : objects) room.push_back({object.ticket, STATEPORT_TRANSFER_FAILED, 0, 0});
    if (call == RemoteCall::put || call == RemoteCall::get) {
      const ObjectsOfC given(objects);
      const auto function = call == RemoteCall::put ? client.put : client.get;
      store_.call([&] { function(given.objects.data(), given.objects.size(), room.data(), client.context); });
    } else {
      const std::vector<stateport_remote_key> given = keys_of(objects);
      const auto function = call == RemoteCall::exists ? client.exists : client.remove;
      store_.call([&] { function(given.data(), given.size(), room.data(), client.context); });
    }
    for (std::size_t i = 0; i < room.size(); ++i) {
      answers[i].status = status_of(room[i].status);
      answers[i].bytes = room[i].bytes;
    }
  }

 private:
  CallbackStore& store_;
};

CallbackStore::CallbackStore(Object& object, const stateport_remote_callbacks& callbacks,
                             const RemoteQueueLimits& limits)
    : RemoteStore(limits), object_(object), callbacks_(callbacks) {
  std::vector<std::unique_ptr<RemoteLane>> lanes;
  lanes.push_back(std::make_unique<Lane>(*this));
  serve(std::move(lanes), batch_bytes);
}

CallbackStore::~CallbackStore() {
  stop();
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

}  // namespace stateport::c
