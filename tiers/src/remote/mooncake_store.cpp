// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/mooncake_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_request.hpp"

#include <fmt/format.h>
#include <store_c.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using tiers::bytes_of;

/// Of pieces that share a call of the client.
constexpr std::size_t batch_bytes = std::size_t{256} << 20;

// Answers of the client: mooncake-store/include/types.h.
constexpr std::int64_t no_available_handle = -200;
constexpr std::int64_t invalid_params = -600;
constexpr std::int64_t replica_is_not_ready = -703;
constexpr std::int64_t object_not_found = -704;
constexpr std::int64_t object_already_exists = -705;
constexpr std::int64_t replica_not_found = -710;
constexpr std::int64_t replica_is_gone = -712;
constexpr std::int64_t checksum_mismatch = -801;
constexpr std::int64_t tenant_quota_exceeded = -1700;

TransferStatus status_of(std::int64_t code) noexcept {
  switch (code) {
    case 0:
    case object_already_exists:
      return TransferStatus::done;
    case no_available_handle:
    case tenant_quota_exceeded:
      return TransferStatus::no_room;
    case replica_is_not_ready:
    case object_not_found:
    case replica_not_found:
    case replica_is_gone:
      return TransferStatus::gone;
    case checksum_mismatch:
      return TransferStatus::damaged;
    default:
      return TransferStatus::failed;
  }
}

/// Memory of a lane for objects whose pieces lie apart, known to the client.
class Staging {
 public:
  explicit Staging(mooncake_store_t client) noexcept : client_(client) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { forget(); }

  /// At least this number of bytes; the old content is gone. Empty: the client does not take them.
  [[nodiscard]] std::span<std::byte> room(std::size_t bytes) {
    if (memory_.size() >= bytes) return memory_;
    forget();
    memory_ = std::vector<std::byte>(bytes);
    if (mooncake_store_register_buffer(client_, memory_.data(), memory_.size()) != 0) memory_.clear();
    return memory_;
  }

 private:
  void forget() noexcept {
    if (!memory_.empty()) mooncake_store_unregister_buffer(client_, memory_.data());
    memory_.clear();
  }

  mooncake_store_t client_;
  std::vector<std::byte> memory_;
};

/// Whether the pieces lie one behind the other.
bool is_contiguous(std::span<const RemotePiece> pieces) noexcept {
  for (std::size_t i = 1; i < pieces.size(); ++i)
    if (pieces[i - 1].address + pieces[i - 1].bytes != pieces[i].address) return false;
  return true;
}

class MooncakeLane final : public RemoteLane {
 public:
  MooncakeLane(mooncake_store_t client, std::size_t replicas)
      : client_(client), replicas_(replicas), staging_(client) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    switch (call) {
      case RemoteCall::put:
        return put(objects, answers);
      case RemoteCall::get:
        return get(objects, answers);
      case RemoteCall::exists:
        return ask(objects, answers);
      case RemoteCall::remove:
        for (std::size_t i = 0; i < objects.size(); ++i)
          answers[i].status = status_of(mooncake_store_remove(client_, objects[i].key.data(), 1));
    }
  }

 private:
  /// Where the bytes of a batch are for the client.
  struct Batch {
    std::vector<const char*> keys;
    std::vector<void*> buffers;
    std::vector<std::size_t> sizes;
  };
  /// Objects that lie apart go to the staging memory, one behind the other. Empty: there is no room for them.
  [[nodiscard]] Batch places(std::span<const RemoteObject> objects) {
    Batch batch;
    std::size_t apart = 0;
    for (const RemoteObject& object : objects) apart += is_contiguous(object.pieces) ? 0 : bytes_of(object.pieces);
    std::span<std::byte> room = apart > 0 ? staging_.room(apart) : std::span<std::byte>();
    if (room.size() < apart) return {};
    for (const auto& [ticket, key, pieces] : objects) {
      const bool direct = is_contiguous(pieces);
      batch.keys.push_back(key.data());
      batch.buffers.push_back(direct ? pieces.front().address : room.data());
      batch.sizes.push_back(bytes_of(pieces));
      if (!direct) room = room.subspan(batch.sizes.back());
    }
    return batch;
  }

  void put(std::span<const RemoteObject> objects, std::span<Completion> answers) {
    Batch batch = places(objects);
    if (batch.keys.empty()) return;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (is_contiguous(objects[i].pieces)) continue;
      auto* to = static_cast<std::byte*>(batch.buffers[i]);
      for (const RemotePiece& piece : objects[i].pieces) {
        std::memcpy(to, piece.address, piece.bytes);
        to += piece.bytes;
      }
    }
    mooncake_replicate_config_t config = {};
    config.replica_num = replicas_;
    std::vector<int> codes(objects.size(), -1);
    if (mooncake_store_batch_put_from(client_, batch.keys.data(), batch.buffers.data(), batch.sizes.data(),
                                      objects.size(), &config, codes.data()) != 0)
      return;
    for (std::size_t i = 0; i < objects.size(); ++i) answers[i].status = status_of(codes[i]);
  }

  void get(std::span<const RemoteObject> objects, std::span<Completion> answers) {
    Batch batch = places(objects);
    if (batch.keys.empty()) return;
    std::vector<std::int64_t> codes(objects.size(), -1);
    if (mooncake_store_batch_get_into(client_, batch.keys.data(), batch.buffers.data(), batch.sizes.data(),
                                      objects.size(), codes.data()) != 0)
      return;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      answers[i] = answer_of_get(batch.keys[i], batch.sizes[i], codes[i]);
      if (answers[i].status != TransferStatus::done || is_contiguous(objects[i].pieces)) continue;
      scatter({static_cast<const std::byte*>(batch.buffers[i]), answers[i].bytes}, objects[i].pieces);
    }
  }

  [[nodiscard]] Completion answer_of_get(const char* key, std::size_t room, std::int64_t code) const {
    if (code > 0 && std::cmp_less_equal(code, room)) return {.bytes = static_cast<std::uint64_t>(code)};
    if (code >= 0) return {.status = TransferStatus::failed};
    const bool too_small = code == invalid_params && std::cmp_greater(mooncake_store_get_size(client_, key), room);
    return {.status = too_small ? TransferStatus::foreign_layout : status_of(code)};
  }

  static void scatter(std::span<const std::byte> bytes, std::span<const RemotePiece> pieces) noexcept {
    for (const RemotePiece& piece : pieces) {
      const std::size_t part = std::min(piece.bytes, bytes.size());
      std::memcpy(piece.address, bytes.data(), part);
      bytes = bytes.subspan(part);
    }
  }

  void ask(std::span<const RemoteObject> objects, std::span<Completion> answers) const {
    std::vector<const char*> keys;
    for (const RemoteObject& object : objects) keys.push_back(object.key.data());
    std::vector<int> codes(objects.size(), -1);
    if (mooncake_store_batch_is_exist(client_, keys.data(), keys.size(), codes.data()) != 0) return;
    for (std::size_t i = 0; i < objects.size(); ++i)
      answers[i].status = codes[i] == 1   ? TransferStatus::done
                          : codes[i] == 0 ? TransferStatus::gone
                                          : TransferStatus::failed;
  }

  mooncake_store_t client_;
  std::size_t replicas_;
  Staging staging_;
};

}  // namespace

class MooncakeStore::Client {
 public:
  explicit Client(const MooncakeStoreOptions& options) : client_((tiers::validate(options), mooncake_store_create())) {
    if (client_ == nullptr) throw BackendError("mooncake_store_create", "no client");
    const int code = mooncake_store_setup(client_, options.local_hostname.c_str(), options.metadata_server.c_str(),
                                          options.segment_bytes, options.buffer_bytes, options.protocol.c_str(),
                                          options.devices.c_str(), options.master.c_str());
    if (code == 0) return;
    mooncake_store_destroy(client_);
    throw BackendError("mooncake_store_setup", fmt::format("code {}", code));
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { mooncake_store_destroy(client_); }

  [[nodiscard]] mooncake_store_t get() const noexcept { return client_; }

 private:
  mooncake_store_t client_;
};

bool MooncakeStore::is_built() noexcept {
  return true;
}

MooncakeStore::MooncakeStore(const MooncakeStoreOptions& options)
    : RemoteStore(options.limits), client_(std::make_unique<Client>(options)) {
  std::vector<std::unique_ptr<RemoteLane>> lanes;
  for (std::int32_t i = 0; i < options.lanes; ++i)
    lanes.push_back(std::make_unique<MooncakeLane>(client_->get(), options.replicas));
  serve(std::move(lanes), batch_bytes);
}

MooncakeStore::~MooncakeStore() {
  stop();
}

void MooncakeStore::do_register(std::span<std::byte> memory) {
  const int code = mooncake_store_register_buffer(client_->get(), memory.data(), memory.size());
  if (code != 0) throw BackendError("mooncake_store_register_buffer", fmt::format("code {}", code));
}

void MooncakeStore::do_unregister(std::span<std::byte> memory) {
  const int code = mooncake_store_unregister_buffer(client_->get(), memory.data());
  if (code != 0) throw BackendError("mooncake_store_unregister_buffer", fmt::format("code {}", code));
}

}  // namespace stateport
