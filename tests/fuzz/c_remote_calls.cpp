// SPDX-License-Identifier: Apache-2.0
// Stores that machines share: in memory of the process, and in functions of the caller's.
#include "c_device_world.hpp"

#include <array>
#include <atomic>

namespace stateport::fuzz {
namespace {

stateport_remote_store* pick_store(World& world) {
  return world.pick<stateport_remote_store>(Kind::remote);
}

// --- A client in functions -------------------------------------------------------------------------------------------

/// Carries its calls out as its script says, or leaves them, with a wrong size or no status. Calls must come one at a
/// time, and none after `destroy`.
struct Client {
  enum Deed : std::uint8_t { silence, fail, wrong_status, wrong_bytes, deeds };

  explicit Client(World& world) {
    for (std::uint8_t& deed : script) deed = world.input.take();
  }
  [[nodiscard]] Deed next() {
    const std::uint8_t deed = script[at++ % script.size()];
    return deed < 40 ? static_cast<Deed>(deed % deeds) : deeds;
  }

  std::array<std::uint8_t, 8> script = {};
  std::size_t at = 0;
  std::map<std::string, std::vector<std::byte>> objects;
  std::atomic<bool> busy = false;
  bool ended = false;
};

class Turn {
 public:
  explicit Turn(void* context) : client_(*static_cast<std::unique_ptr<Client>*>(context)->get()) {
    expect(!client_.busy.exchange(true), "calls of a client come one at a time");
    expect(!client_.ended, "no call comes after destroy");
  }
  ~Turn() { client_.busy = false; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  Client* operator->() const { return &client_; }
  Client& operator*() const { return client_; }

 private:
  Client& client_;
};

void answer(const Client& client, Client::Deed deed, stateport_remote_completion& to, std::int32_t status,
            std::uint64_t bytes) {
  if (deed == Client::silence) return;
  to.status = status;
  to.bytes = bytes;
  if (deed == Client::fail) to.status = STATEPORT_TRANSFER_FAILED;
  if (deed == Client::wrong_status) to.status = client.script[0] % 2 == 0 ? -1 : 77;
  if (deed == Client::wrong_bytes) to.bytes = client.script[1] % 2 == 0 ? UINT64_MAX : bytes + 1;
}

void client_put(const stateport_remote_object* objects, std::size_t count, stateport_remote_completion* answers,
                void* context) {
  const Turn client(context);
  const Client::Deed deed = client->next();
  for (std::size_t i = 0; i < count; ++i) {
    const stateport_remote_object& object = objects[i];
    std::vector<std::byte> bytes;
    for (const stateport_remote_piece& piece : std::span(object.pieces, object.piece_count))
      bytes.insert(bytes.end(), static_cast<std::byte*>(piece.address),
                   static_cast<std::byte*>(piece.address) + piece.bytes);
    const std::uint64_t size = bytes.size();
    client->objects.try_emplace(std::string(object.key, object.key_bytes), std::move(bytes));
    answer(*client, deed, answers[i], STATEPORT_TRANSFER_DONE, size);
  }
}

void client_get(const stateport_remote_object* objects, std::size_t count, stateport_remote_completion* answers,
                void* context) {
  const Turn client(context);
  const Client::Deed deed = client->next();
  for (std::size_t i = 0; i < count; ++i) {
    const stateport_remote_object& object = objects[i];
    const auto found = client->objects.find(std::string(object.key, object.key_bytes));
    if (found == client->objects.end()) {
      answer(*client, deed, answers[i], STATEPORT_TRANSFER_GONE, 0);
      continue;
    }
    std::span<const std::byte> bytes = found->second;
    for (const stateport_remote_piece& piece : std::span(object.pieces, object.piece_count)) {
      const std::size_t part = std::min(piece.bytes, bytes.size());
      if (part > 0) std::memcpy(piece.address, bytes.data(), part);
      bytes = bytes.subspan(part);
    }
    answer(*client, deed, answers[i], bytes.empty() ? STATEPORT_TRANSFER_DONE : STATEPORT_TRANSFER_FOREIGN_LAYOUT,
           found->second.size());
  }
}

template <bool removes>
void client_keys(const stateport_remote_key* keys, std::size_t count, stateport_remote_completion* answers,
                 void* context) {
  const Turn client(context);
  const Client::Deed deed = client->next();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name(keys[i].key, keys[i].key_bytes);
    const bool found = removes ? client->objects.erase(name) > 0 : client->objects.contains(name);
    answer(*client, deed, answers[i], found ? STATEPORT_TRANSFER_DONE : STATEPORT_TRANSFER_GONE, 0);
  }
}

std::int32_t client_memory(void*, std::size_t, void* context) {
  const Turn client(context);
  return client->next() == Client::fail ? 1 : 0;
}

void client_destroy(void* context) {
  const Turn client(context);
  client->ended = true;
}

}  // namespace

void make_client(DeviceWorld& world) {
  stateport_remote_callbacks callbacks = {};
  callbacks.context = world.own(std::make_unique<Client>(world));
  callbacks.needs_registration = world.flag();
  callbacks.register_memory = world.maybe(&client_memory);
  callbacks.unregister_memory = world.maybe(&client_memory);
  callbacks.put = world.input.chance(2) ? nullptr : &client_put;
  callbacks.get = world.input.chance(2) ? nullptr : &client_get;
  callbacks.exists = world.input.chance(2) ? nullptr : &client_keys<false>;
  callbacks.remove = world.input.chance(2) ? nullptr : &client_keys<true>;
  callbacks.destroy = world.maybe(&client_destroy);
  const auto* const given = world.given(callbacks);
  world.make<stateport_remote_store>(
      Kind::remote, [&](stateport_remote_store** out) { return stateport_remote_store_callbacks(given, out); });
}

namespace {

// --- Stores ----------------------------------------------------------------------------------------------------------

/// Small enough that every accepted request has memory for its bytes.
std::uint64_t queue(World& world) {
  return world.input.chance(64) ? world.input.take<std::uint16_t>() : 0;
}

void objects_create(DeviceWorld& world) {
  const auto bytes = world.input.chance(200) ? std::uint64_t{1} << 16 : static_cast<std::uint64_t>(world.wide_number());
  world.make<stateport_remote_objects>(
      Kind::objects, [&](stateport_remote_objects** out) { return stateport_remote_objects_create(bytes, out); });
}

void in_process_create(DeviceWorld& world) {
  auto* const objects = world.pick<stateport_remote_objects>(Kind::objects);
  const stateport_remote_limits limits = {.size = 0, .queue_bytes = queue(world), .queue_requests = queue(world)};
  const auto* const given = world.input.chance(128) ? nullptr : world.given(limits);
  const std::int32_t needs_registration = world.flag();
  world.make<stateport_remote_store>(Kind::remote, [&](stateport_remote_store** out) {
    return stateport_remote_store_in_process(objects, given, needs_registration, out);
  });
}

/// Texts of options.
const char* word(World& world) {
  constexpr const char* words[] = {nullptr, "", "valkey://127.0.0.1:1", "a b", "0", "//:@", "stateport"};
  return words[world.input.chance(128) ? 0 : world.input.below(7)];
}

/// A server that is not there, and options that are wrong.
void server_create(DeviceWorld& world) {
  if (world.input.chance(64)) {
    stateport_mooncake_options options = {};
    options.master = word(world);
    options.protocol = word(world);
    options.lanes = -1 - static_cast<std::int32_t>(world.input.below(3));  // never one that connects
    const auto* const given = world.given(options, sizeof options);
    return world.make<stateport_remote_store>(
        Kind::remote, [&](stateport_remote_store** out) { return stateport_remote_store_mooncake(given, out); });
  }
  stateport_valkey_options options = {};
  options.url = word(world);
  options.unix_socket = "/dev/null/no-server";
  options.port = world.input.chance(64) ? world.number() : 0;
  options.database = world.input.chance(64) ? world.number() : 0;
  options.user = word(world);
  options.password = word(world);
  options.tls = world.input.chance(4) ? 1 : 0;  // reads the certificates of the system
  options.ca_file = word(world);
  options.server_name = word(world);
  options.lanes = world.input.chance(64) ? world.number() % 8 : 1;
  options.connect_timeout_s = world.input.chance(64) ? world.real() : 0;
  options.silence_timeout_s = world.input.chance(64) ? world.real() : 0;
  options.piece_bytes = world.input.chance(64) ? static_cast<std::uint64_t>(world.wide_number()) : 0;
  options.lifetime_s = world.input.chance(64) ? world.real() : 0;
  options.prefix = word(world);
  const auto* const given = world.given(options, sizeof options);
  world.make<stateport_remote_store>(
      Kind::remote, [&](stateport_remote_store** out) { return stateport_remote_store_valkey(given, out); });
}

// --- Requests --------------------------------------------------------------------------------------------------------

const char* name(World& world, std::size_t& bytes) {
  if (world.input.chance(12)) return static_cast<const char*>(world.text(bytes));
  bytes = 2;
  constexpr const char* names[] = {"k0", "k1", "k2", "k3"};
  return names[world.input.below(4)];
}

stateport_remote_object object(DeviceWorld& world) {
  stateport_remote_object result = {};
  result.ticket = static_cast<std::uint64_t>(world.wide_number());
  result.key = name(world, result.key_bytes);
  result.piece_count = world.input.chance(240) ? 1 + world.input.below(2) : 0;
  auto* const pieces = world.room<stateport_remote_piece>(result.piece_count);
  for (std::size_t i = 0; i < result.piece_count; ++i) {
    const std::size_t bytes = world.input.below(80);
    pieces[i] = {world.lasting(bytes, std::byte{world.input.take()}), bytes};
    if (world.input.chance(4)) pieces[i] = {nullptr, world.strange_count()};
    if (world.input.chance(4)) pieces[i].bytes = SIZE_MAX - world.input.below(2) * (SIZE_MAX / 2);
  }
  result.pieces = pieces;
  if (world.input.chance(4)) result.pieces = nullptr;
  return result;
}

void transfer(DeviceWorld& world) {
  auto* const store = pick_store(world);
  std::size_t count = world.input.below(3);
  auto* const objects = world.room<stateport_remote_object>(count);
  for (std::size_t i = 0; i < count; ++i) objects[i] = object(world);
  const auto* const given = world.maybe(objects);
  if (given == nullptr && count > 0) count = world.strange_count();
  const bool puts = world.input.chance(144);
  const stateport_status status =
      puts ? stateport_remote_store_put(store, given, count) : stateport_remote_store_get(store, given, count);
  world.judge(status);
}

void ask(DeviceWorld& world) {
  auto* const store = pick_store(world);
  std::size_t count = world.input.below(3);
  auto* const keys = world.room<stateport_remote_key>(count);
  for (std::size_t i = 0; i < count; ++i) {
    keys[i].ticket = static_cast<std::uint64_t>(world.wide_number());
    keys[i].key = name(world, keys[i].key_bytes);
  }
  const auto* const given = world.maybe(keys);
  if (given == nullptr && count > 0) count = world.strange_count();
  world.judge(world.input.chance(160) ? stateport_remote_store_exists(store, given, count)
                                      : stateport_remote_store_remove(store, given, count));
}

void poll(DeviceWorld& world) {
  auto* const store = pick_store(world);
  std::size_t capacity = 0;
  auto* const out = answers<stateport_remote_completion>(world, capacity, world.input.chance(16) ? 200 : 5);
  world.judge(stateport_remote_store_poll(store, out, capacity, world.value<std::size_t>()));
}

void registered(DeviceWorld& world) {
  auto* const store = pick_store(world);
  std::size_t bytes = world.input.below(80);
  void* memory = world.maybe(world.lasting(bytes));
  if (memory == nullptr && bytes > 0) bytes = world.strange_count();
  stateport_status status = stateport_remote_store_register(store, memory, bytes);
  if (status == STATEPORT_OK && world.input.chance(128))
    status = stateport_remote_store_unregister(store, memory, world.input.chance(16) ? bytes + 1 : bytes);
  world.judge(status);
}

void describe(DeviceWorld& world) {
  auto* const store = pick_store(world);
  world.judge(world.input.chance(192)
                  ? stateport_remote_store_describe(store, world.result<stateport_remote_store_info>())
                  : stateport_remote_store_describe_valkey(store, world.result<stateport_valkey_info>()));
}

constexpr DeviceCall calls[] = {objects_create,
                                objects_create,
                                destroy<stateport_remote_objects, Kind::objects, stateport_remote_objects_destroy>,
                                in_process_create,
                                in_process_create,
                                make_client,
                                server_create,
                                destroy<stateport_remote_store, Kind::remote, stateport_remote_store_destroy>,
                                transfer,
                                transfer,
                                transfer,
                                ask,
                                poll,
                                poll,
                                registered,
                                describe};

}  // namespace

Family remote_family() {
  static constexpr DeviceCall begin[] = {objects_create, in_process_create, make_client};
  return {begin, calls};
}

}  // namespace stateport::fuzz
