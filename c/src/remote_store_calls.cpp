// SPDX-License-Identifier: Apache-2.0
// Stores that machines share.
#include <stateport/c/remote_store.h>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/mooncake_store.hpp>
#include <stateport/tiers/valkey_store.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "remote_store_object.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(sizeof(stateport_remote_piece) == 16 && sizeof(stateport_remote_object) == 40 &&
              sizeof(stateport_remote_key) == 24 && sizeof(stateport_remote_completion) == 24);
static_assert(std::size(stateport_remote_store_info{}.answers) == transfer_status_count);

constexpr std::size_t remote_answers_at_once = 64;

struct ObjectsObject final : Object {
  static constexpr Kind kind = Kind::remote_objects;
  explicit ObjectsObject(std::uint64_t capacity_bytes)
      : Object(kind), objects(std::make_shared<InProcessObjects>(capacity_bytes)) {}

  std::shared_ptr<InProcessObjects> objects;
};

using HeldStore = Held<RemoteStoreObject>;

/// A store that is the caller's alone.
class OwnStore {
 public:
  explicit OwnStore(stateport_remote_store* store) : held_(store, "store") {
    require_state(!held_->used_by_tiers, "store", "is used by state tiers, which take its answers");
  }
  RemoteStore* operator->() const noexcept { return held_->store.get(); }

 private:
  HeldStore held_;
};

RemoteQueueLimits limits_of(std::uint64_t queue_bytes, std::uint64_t queue_requests) {
  RemoteQueueLimits limits;
  if (queue_bytes != 0) limits.queue_bytes = queue_bytes;
  if (queue_requests != 0) limits.queue_requests = queue_requests;
  return limits;
}

void set_text(std::string& to, const char* given) {
  if (given != nullptr) to = given;
}

void read_tls(const stateport_valkey_options& given, ValkeyStoreOptions& options) {
  if (given.tls != 0 && !options.tls) options.tls.emplace();
  const std::array texts = {given.ca_file, given.certificate_file, given.key_file, given.server_name};
  const bool has_text = std::ranges::any_of(texts, [](const char* text) { return text != nullptr; });
  require(!has_text || options.tls, "tls", given.tls, "files and names for TLS are set without it");
  if (!options.tls) return;
  set_text(options.tls->ca_file, given.ca_file);
  set_text(options.tls->certificate_file, given.certificate_file);
  set_text(options.tls->key_file, given.key_file);
  set_text(options.tls->server_name, given.server_name);
}

ValkeyStoreOptions read_valkey(const stateport_valkey_options* from) {
  const auto given = read_struct<stateport_valkey_options>(from, "options");
  ValkeyStoreOptions options;
  if (given.url != nullptr) options = parse_valkey_url(given.url);
  set_text(options.host, given.host);
  set_text(options.unix_socket, given.unix_socket);
  set_text(options.user, given.user);
  set_text(options.password, given.password);
  set_text(options.prefix, given.prefix);
  if (given.port != 0) options.port = given.port;
  if (given.database != 0) options.database = given.database;
  if (given.lanes != 0) options.lanes = given.lanes;
  if (given.connect_timeout_s != 0) options.connect_timeout_s = given.connect_timeout_s;
  if (given.silence_timeout_s != 0) options.silence_timeout_s = given.silence_timeout_s;
  if (given.piece_bytes != 0) options.piece_bytes = given.piece_bytes;
  options.lifetime_s = given.lifetime_s;
  options.limits = limits_of(given.queue_bytes, given.queue_requests);
  read_tls(given, options);
  return options;
}

MooncakeStoreOptions read_mooncake(const stateport_mooncake_options* from) {
  const auto given = read_struct<stateport_mooncake_options>(from, "options");
  MooncakeStoreOptions options;
  set_text(options.local_hostname, given.local_hostname);
  set_text(options.metadata_server, given.metadata_server);
  set_text(options.master, given.master);
  set_text(options.protocol, given.protocol);
  set_text(options.devices, given.devices);
  options.segment_bytes = given.segment_bytes;
  if (given.buffer_bytes != 0) options.buffer_bytes = given.buffer_bytes;
  if (given.replicas != 0) options.replicas = given.replicas;
  if (given.lanes != 0) options.lanes = given.lanes;
  options.limits = limits_of(given.queue_bytes, given.queue_requests);
  return options;
}

stateport_remote_callbacks read_callbacks(const stateport_remote_callbacks* from) {
  const auto given = read_struct<stateport_remote_callbacks>(from, "callbacks");
  const auto is_there = [](const char* name, const auto function) {
    require(function != nullptr, name, "null", "must be a function");
  };
  is_there("put", given.put);
  is_there("get", given.get);
  is_there("exists", given.exists);
  is_there("remove", given.remove);
  return given;
}

/// A store without callbacks.
template <class Store, class... Arguments>
std::shared_ptr<RemoteStoreObject> make_store(const Arguments&... arguments) {
  return std::make_shared<RemoteStoreObject>([&](Object&) { return std::make_unique<Store>(arguments...); });
}

std::string_view read_key(const char* key, std::size_t bytes) {
  const auto text = array(key, bytes, "key");
  return {text.data(), text.size()};
}

/// Arguments of a batch.
class Objects {
 public:
  Objects(const stateport_remote_object* given, std::size_t count) {
    for (const stateport_remote_object& object : array(given, count, "objects")) {
      std::vector<RemotePiece>& pieces = pieces_.emplace_back();
      for (const stateport_remote_piece& piece : array(object.pieces, object.piece_count, "pieces"))
        pieces.push_back({static_cast<std::byte*>(piece.address), piece.bytes});
      objects_.push_back({object.ticket, read_key(object.key, object.key_bytes), {}});
    }
    for (std::size_t i = 0; i < objects_.size(); ++i) objects_[i].pieces = pieces_[i];
  }
  [[nodiscard]] std::span<const RemoteObject> get() const noexcept { return objects_; }

 private:
  std::vector<std::vector<RemotePiece>> pieces_;
  std::vector<RemoteObject> objects_;
};

std::vector<RemoteKey> read_keys(const stateport_remote_key* given, std::size_t count) {
  std::vector<RemoteKey> keys;
  for (const stateport_remote_key& key : array(given, count, "keys"))
    keys.push_back({key.ticket, read_key(key.key, key.key_bytes)});
  return keys;
}

void require_accepted(bool accepted, std::size_t count) {
  if (!accepted) throw NoCapacity("room in the queue of requests", static_cast<std::int64_t>(count), 0);
}

stateport_remote_store_info describe(const RemoteStore& store) {
  const RemoteStoreStatistics done = store.statistics();
  stateport_remote_store_info info = {.size = 0,
                                      .needs_registration = store.needs_registration() ? 1 : 0,
                                      .accepted_requests = done.accepted_requests,
                                      .refused_requests = done.refused_requests,
                                      .answers = {}};
  std::ranges::copy(done.answers, info.answers);
  return info;
}

stateport_valkey_info describe_valkey(const RemoteStore& store) {
  const auto* valkey = dynamic_cast<const ValkeyStore*>(&store);
  require(valkey != nullptr, "store", "another store", "must be one of Valkey");
  const ValkeyStoreStatistics done = valkey->valkey_statistics();
  stateport_valkey_info info = {.size = 0,
                                .connections = done.connections,
                                .failed_attempts = done.failed_attempts,
                                .lost_connections = done.lost_connections,
                                .damaged_objects = done.damaged_objects,
                                .last_error = {}};
  std::memcpy(info.last_error, done.last_error.data(), std::min(done.last_error.size(), sizeof info.last_error - 1));
  return info;
}

}  // namespace

stateport_status stateport_remote_objects_create(uint64_t capacity_bytes, stateport_remote_objects** out) {
  return guarded([&] { create(out, [&] { return std::make_shared<ObjectsObject>(capacity_bytes); }); });
}

stateport_status stateport_remote_objects_destroy(stateport_remote_objects* objects) {
  return guarded([&] { destroy<ObjectsObject>(objects, "objects"); });
}

stateport_status stateport_remote_store_in_process(stateport_remote_objects* objects,
                                                   const stateport_remote_limits* limits, int32_t needs_registration,
                                                   stateport_remote_store** out) {
  return guarded([&] {
    const auto given = read_optional_struct(limits, "limits");
    const auto shared = find<ObjectsObject>(objects, "objects")->objects;
    create(out, [&] {
      return make_store<InProcessStore>(
          shared, InProcessStoreOptions{.limits = limits_of(given.queue_bytes, given.queue_requests),
                                        .needs_registration = needs_registration != 0});
    });
  });
}

stateport_status stateport_remote_store_valkey(const stateport_valkey_options* options, stateport_remote_store** out) {
  return guarded([&] { create(out, [&] { return make_store<ValkeyStore>(read_valkey(options)); }); });
}

stateport_status stateport_remote_store_mooncake(const stateport_mooncake_options* options,
                                                 stateport_remote_store** out) {
  return guarded([&] { create(out, [&] { return make_store<MooncakeStore>(read_mooncake(options)); }); });
}

stateport_status stateport_remote_store_callbacks(const stateport_remote_callbacks* callbacks,
                                                  stateport_remote_store** out) {
  return guarded([&] {
    create(out, [&] {
      const stateport_remote_callbacks given = read_callbacks(callbacks);
      return std::make_shared<RemoteStoreObject>([&](Object& object) {
        return std::make_unique<CallbackStore>(object, given, limits_of(given.queue_bytes, given.queue_requests));
      });
    });
  });
}

stateport_status stateport_remote_store_destroy(stateport_remote_store* store) {
  return guarded([&] { destroy<RemoteStoreObject>(store, "store"); });
}

stateport_status stateport_remote_store_register(stateport_remote_store* store, void* memory, size_t bytes) {
  return guarded([&] {
    const OwnStore own(store);
    own->register_memory(array(static_cast<std::byte*>(memory), bytes, "memory"));
  });
}

stateport_status stateport_remote_store_unregister(stateport_remote_store* store, void* memory, size_t bytes) {
  return guarded([&] {
    const OwnStore own(store);
    own->unregister_memory(array(static_cast<std::byte*>(memory), bytes, "memory"));
  });
}

stateport_status stateport_remote_store_put(stateport_remote_store* store, const stateport_remote_object* objects,
                                            size_t count) {
  return guarded([&] {
    const OwnStore own(store);
    require_accepted(own->put_from(Objects(objects, count).get()), count);
  });
}

stateport_status stateport_remote_store_get(stateport_remote_store* store, const stateport_remote_object* objects,
                                            size_t count) {
  return guarded([&] {
    const OwnStore own(store);
    require_accepted(own->get_into(Objects(objects, count).get()), count);
  });
}

stateport_status stateport_remote_store_exists(stateport_remote_store* store, const stateport_remote_key* keys,
                                               size_t count) {
  return guarded([&] {
    const OwnStore own(store);
    require_accepted(own->exists(read_keys(keys, count)), count);
  });
}

stateport_status stateport_remote_store_remove(stateport_remote_store* store, const stateport_remote_key* keys,
                                               size_t count) {
  return guarded([&] {
    const OwnStore own(store);
    require_accepted(own->remove(read_keys(keys, count)), count);
  });
}

stateport_status stateport_remote_store_poll(stateport_remote_store* store, stateport_remote_completion* out,
                                             size_t capacity, size_t* count) {
  return guarded([&] {
    const OwnStore own(store);
    const auto room = array(out, capacity, "out");
    std::size_t& reported = checked(count, "count");
    std::array<Completion, remote_answers_at_once> answers;
    std::size_t taken = 0;
    std::size_t got = 0;
    do {
      try {
        got = own->poll(std::span(answers).first(std::min(answers.size(), room.size() - taken)));
      } catch (const std::bad_alloc&) {
        if (taken == 0) throw;
        break;  // the others come with the next call
      }
      for (const Completion& answer : std::span(answers).first(got))
        room[taken++] = {answer.ticket, static_cast<std::int32_t>(answer.status), 0, answer.bytes};
    } while (got > 0 && taken < room.size());
    reported = taken;
  });
}

stateport_status stateport_remote_store_describe(stateport_remote_store* store, stateport_remote_store_info* out) {
  return guarded([&] {
    const HeldStore held(store, "store");
    Out(out, "out").write(describe(*held->store));
  });
}

stateport_status stateport_remote_store_describe_valkey(stateport_remote_store* store, stateport_valkey_info* out) {
  return guarded([&] {
    const HeldStore held(store, "store");
    const Out result(out, "out");
    result.write(describe_valkey(*held->store));
  });
}
