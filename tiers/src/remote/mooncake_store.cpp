// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/mooncake_store.hpp>

#include <stateport/core/model/error.hpp>

#include "remote/remote_requests.hpp"

#include <fmt/format.h>
#include <store_c.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <list>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using tiers::RemoteRequest;
using tiers::RemoteRequests;

/// Requests that share a call of the client, and how many bytes of pieces they have together.
constexpr std::size_t batch_requests = 64;
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

struct FreeClient {
  void operator()(void* client) const noexcept { mooncake_store_destroy(client); }
};
using Client = std::unique_ptr<void, FreeClient>;

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

}  // namespace

class MooncakeStore::Impl {
 public:
  explicit Impl(const MooncakeStoreOptions& options)
      : options_((tiers::validate(options), options)), requests_(options.limits), client_(mooncake_store_create()) {
    if (!client_) throw BackendError("mooncake_store_create", "no client");
    const int code = mooncake_store_setup(
        client_.get(), options_.local_hostname.c_str(), options_.metadata_server.c_str(), options_.segment_bytes,
        options_.buffer_bytes, options_.protocol.c_str(), options_.devices.c_str(), options_.master.c_str());
    if (code != 0) throw BackendError("mooncake_store_setup", fmt::format("code {}", code));
    try {
      for (std::int32_t i = 0; i < options_.lanes; ++i) {
        Lane& lane = lanes_.emplace_back(client_.get());
        lane.thread = std::thread([this, &lane] { run(lane); });
      }
    } catch (const std::system_error& error) {
      stop();
      throw BackendError("start of a thread", error.what());
    } catch (...) {
      stop();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(); }

  [[nodiscard]] RemoteRequests& requests() noexcept { return requests_; }
  [[nodiscard]] mooncake_store_t client() const noexcept { return client_.get(); }

 private:
  /// Where the bytes of a batch are for the client.
  struct Batch {
    std::vector<const char*> keys;
    std::vector<void*> buffers;
    std::vector<std::size_t> sizes;
  };
  /// A thread, and the room that it needs to go on when memory runs out: a request without memory has failed.
  struct Lane {
    explicit Lane(mooncake_store_t client) : staging(client) {
      taken.reserve(batch_requests);
      outcomes.reserve(batch_requests);
    }
    Staging staging;
    std::vector<RemoteRequest> taken;
    std::vector<RemoteCompletion> outcomes;
    std::thread thread;
  };

  void stop() noexcept {
    requests_.stop();
    for (Lane& lane : lanes_)
      if (lane.thread.joinable()) lane.thread.join();
    lanes_.clear();
  }

  void run(Lane& lane) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // the engine's signals are the engine's
    while (requests_.wait_and_take(lane.taken, batch_requests, batch_bytes)) {
      lane.outcomes.assign(lane.taken.size(), {.status = TransferStatus::failed});
      carry_out(lane.taken, lane.staging, lane.outcomes);
      lane.taken.clear();
    }
  }

  void carry_out(std::span<const RemoteRequest> requests, Staging& staging,
                 std::span<RemoteCompletion> outcomes) noexcept {
    try {
      switch (requests.front().kind) {
        case RemoteRequest::Kind::put:
          put(requests, staging, outcomes);
          break;
        case RemoteRequest::Kind::get:
          get(requests, staging, outcomes);
          break;
        case RemoteRequest::Kind::exists:
          ask(requests, outcomes);
          break;
        case RemoteRequest::Kind::remove:
          for (std::size_t i = 0; i < requests.size(); ++i)
            outcomes[i].status = status_of(mooncake_store_remove(client_.get(), requests[i].key.c_str(), 1));
          break;
      }
    } catch (const std::exception&) {
      // Those without an outcome have failed.
    }
    for (std::size_t i = 0; i < requests.size(); ++i)
      requests_.answer(requests[i], outcomes[i].status, outcomes[i].bytes);
  }

  /// Objects that lie apart go to the staging memory, one behind the other. Empty: there is no room for them.
  [[nodiscard]] static Batch places(std::span<const RemoteRequest> requests, Staging& staging) {
    Batch batch;
    std::size_t apart = 0;
    for (const RemoteRequest& request : requests) apart += is_contiguous(request.pieces) ? 0 : request.bytes;
    std::span<std::byte> room = apart > 0 ? staging.room(apart) : std::span<std::byte>();
    if (room.size() < apart) return {};
    for (const RemoteRequest& request : requests) {
      const bool direct = is_contiguous(request.pieces);
      batch.keys.push_back(request.key.c_str());
      batch.buffers.push_back(direct ? request.pieces.front().address : room.data());
      batch.sizes.push_back(request.bytes);
      if (!direct) room = room.subspan(request.bytes);
    }
    return batch;
  }

  void put(std::span<const RemoteRequest> requests, Staging& staging, std::span<RemoteCompletion> outcomes) const {
    Batch batch = places(requests, staging);
    if (batch.keys.empty()) return;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (is_contiguous(requests[i].pieces)) continue;
      auto* to = static_cast<std::byte*>(batch.buffers[i]);
      for (const RemotePiece& piece : requests[i].pieces) {
        std::memcpy(to, piece.address, piece.bytes);
        to += piece.bytes;
      }
    }
    mooncake_replicate_config_t config = {};
    config.replica_num = options_.replicas;
    std::vector<int> codes(requests.size(), -1);
    if (mooncake_store_batch_put_from(client_.get(), batch.keys.data(), batch.buffers.data(), batch.sizes.data(),
                                      requests.size(), &config, codes.data()) != 0)
      return;
    for (std::size_t i = 0; i < requests.size(); ++i)
      outcomes[i] = {.status = status_of(codes[i]), .bytes = requests[i].bytes};
  }

  void get(std::span<const RemoteRequest> requests, Staging& staging, std::span<RemoteCompletion> outcomes) const {
    Batch batch = places(requests, staging);
    if (batch.keys.empty()) return;
    std::vector<std::int64_t> codes(requests.size(), -1);
    if (mooncake_store_batch_get_into(client_.get(), batch.keys.data(), batch.buffers.data(), batch.sizes.data(),
                                      requests.size(), codes.data()) != 0)
      return;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      outcomes[i] = outcome_of_get(requests[i], codes[i]);
      if (outcomes[i].status != TransferStatus::done || is_contiguous(requests[i].pieces)) continue;
      scatter({static_cast<const std::byte*>(batch.buffers[i]), outcomes[i].bytes}, requests[i].pieces);
    }
  }

  [[nodiscard]] RemoteCompletion outcome_of_get(const RemoteRequest& request, std::int64_t code) const {
    if (code > 0 && std::cmp_less_equal(code, request.bytes))
      return {.status = TransferStatus::done, .bytes = static_cast<std::uint64_t>(code)};
    if (code >= 0) return {.status = TransferStatus::failed};
    const bool too_small = code == invalid_params &&
                           std::cmp_greater(mooncake_store_get_size(client_.get(), request.key.c_str()), request.bytes);
    return {.status = too_small ? TransferStatus::foreign_layout : status_of(code)};
  }

  static void scatter(std::span<const std::byte> bytes, std::span<const RemotePiece> pieces) noexcept {
    for (const RemotePiece& piece : pieces) {
      const std::size_t part = std::min(piece.bytes, bytes.size());
      std::memcpy(piece.address, bytes.data(), part);
      bytes = bytes.subspan(part);
    }
  }

  void ask(std::span<const RemoteRequest> requests, std::span<RemoteCompletion> outcomes) const {
    std::vector<const char*> keys;
    for (const RemoteRequest& request : requests) keys.push_back(request.key.c_str());
    std::vector<int> codes(requests.size(), -1);
    if (mooncake_store_batch_is_exist(client_.get(), keys.data(), keys.size(), codes.data()) != 0) return;
    for (std::size_t i = 0; i < requests.size(); ++i)
      outcomes[i].status = codes[i] == 1   ? TransferStatus::done
                           : codes[i] == 0 ? TransferStatus::gone
                                           : TransferStatus::failed;
  }

  MooncakeStoreOptions options_;
  RemoteRequests requests_;
  Client client_;
  std::list<Lane> lanes_;
};

bool MooncakeStore::is_built() noexcept {
  return true;
}

MooncakeStore::MooncakeStore(const MooncakeStoreOptions& options) : impl_(std::make_unique<Impl>(options)) {}

MooncakeStore::~MooncakeStore() = default;

void MooncakeStore::do_register(std::span<std::byte> memory) {
  const int code = mooncake_store_register_buffer(impl_->client(), memory.data(), memory.size());
  if (code != 0) throw BackendError("mooncake_store_register_buffer", fmt::format("code {}", code));
}

void MooncakeStore::do_unregister(std::span<std::byte> memory) {
  const int code = mooncake_store_unregister_buffer(impl_->client(), memory.data());
  if (code != 0) throw BackendError("mooncake_store_unregister_buffer", fmt::format("code {}", code));
}

bool MooncakeStore::do_put(std::span<const RemoteObject> objects) {
  return impl_->requests().add(RemoteRequest::Kind::put, objects);
}

bool MooncakeStore::do_get(std::span<const RemoteObject> objects) {
  return impl_->requests().add(RemoteRequest::Kind::get, objects);
}

bool MooncakeStore::do_exists(std::span<const RemoteKey> keys) {
  return impl_->requests().add(RemoteRequest::Kind::exists, keys);
}

bool MooncakeStore::do_remove(std::span<const RemoteKey> keys) {
  return impl_->requests().add(RemoteRequest::Kind::remove, keys);
}

std::size_t MooncakeStore::do_poll(std::span<RemoteCompletion> completions) {
  return impl_->requests().poll(completions);
}

}  // namespace stateport
