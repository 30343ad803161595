// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/valkey_store.hpp>

#include <stateport/core/model/error.hpp>

#include "random.hpp"
#include "remote/remote_store_conformance.hpp"
#include "remote/valkey/valkey_manifest.hpp"
#include "valkey_server.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stateport {
namespace {

using namespace test;

constexpr TransferStatus done = TransferStatus::done;
constexpr TransferStatus gone = TransferStatus::gone;
constexpr TransferStatus damaged = TransferStatus::damaged;
constexpr TransferStatus failed = TransferStatus::failed;
constexpr std::size_t kib = 1024;
constexpr std::size_t mib = kib * kib;

MakeStore clients_of(const ValkeyStoreOptions& options) {
  return [options](const RemoteQueueLimits& limits) -> std::unique_ptr<RemoteStore> {
    ValkeyStoreOptions wanted = options;
    wanted.limits = limits;
    return std::make_unique<ValkeyStore>(wanted);
  };
}

/// What a constructor throws says; never the password.
std::string refusal_of(const ValkeyStoreOptions& options) {
  std::string text;
  try {
    const ValkeyStore store(options);
    FAIL("not refused");
  } catch (const BackendError& problem) {
    text = problem.what();
  } catch (const InvalidArgument& problem) {
    text = problem.what();
  }
  if (!options.password.empty()) CHECK(text.find(options.password) == std::string::npos);
  return text;
}

/// The server still carries out what a store had sent before it ended.
void wait_for_the_last_client(const ValkeyServer& server) {
  while (server.command({"INFO", "clients"}).find("connected_clients:1\r") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// What is left expires: pieces of puts that were given up.
void leaves_nothing_that_stays(const ValkeyServer& server) {
  wait_for_the_last_client(server);
  {
    ValkeyStore store(server.client());
    static_cast<void>(remove(store, "conformance/left2"));  // a put that was given up, and yet carried out
  }
  CHECK(server.keys("stateport:o:*").empty());
  for (const std::string& name : server.keys()) CHECK(std::stoll(server.command({"PTTL", name})) > 0);
}

/// The number in the names of an object's pieces, as the server shows it.
std::string piece_name(const ValkeyServer& server, int piece) {
  const std::vector<std::string> names = server.keys("stateport:p:*:" + std::to_string(piece));
  REQUIRE(names.size() == 1);
  return names.front();
}

/// Until the server is reached again.
TransferStatus put_again(RemoteStore& store, std::string_view key, const std::vector<std::byte>& bytes) {
  for (;;) {
    const TransferStatus status = put(store, key, bytes);
    if (status != failed) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_CASE("a Valkey store conforms") {
  const ValkeyServer server;
  conforms(clients_of(server.client()));
  leaves_nothing_that_stays(server);
}

TEST_CASE("a Valkey store conforms with TLS") {
  if (!ValkeyStore::has_tls()) return;
  const ValkeyServer server({.tls = true});
  conforms(clients_of(server.client()));
  leaves_nothing_that_stays(server);
}

TEST_CASE("a Valkey store behaves like a map") {
  const ValkeyServer server;
  for_each_seed(40, [&](Random& random, std::uint64_t) {
    ValkeyStoreOptions options = server.client();
    options.piece_bytes = static_cast<std::size_t>(random.between(1024, 5000));
    options.lanes = random.between32(1, 4);
    behaves_like_a_map(clients_of(options), random, 40);
    CHECK(server.command({"DBSIZE"}) == "0");
  });
}

TEST_CASE("a Valkey store uses a socket of the file system, a database and a user") {
  const ValkeyServer server;
  server.command({"ACL", "SETUSER", "engine", "on", ">engine's own", "~cache:*", "+@all"});
  ValkeyStoreOptions options = server.client();
  options.unix_socket = server.file("socket");
  options.host.clear();
  options.user = "engine";
  options.password = "engine's own";
  options.database = 3;
  options.prefix = "cache";
  ValkeyStore store(options);
  CHECK(put(store, "a", bytes_of_seed(1, 100)) == done);
  CHECK(server.command({"DBSIZE"}) == "0");
  CHECK(server.command({"INFO", "keyspace"}).find("db3:keys=2") != std::string::npos);
  options.prefix = "elsewhere";
  ValkeyStore other(options);
  CHECK(put(other, "a", bytes_of_seed(1, 100)) == failed);
  CHECK(other.valkey_statistics().last_error == "the server refuses a command: NOPERM");
}

TEST_CASE("a wrong password is refused without naming it") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.password = "hunter2";
  CHECK(refusal_of(options).find("WRONGPASS") != std::string::npos);
  options.user = "somebody";
  CHECK(refusal_of(options).find("WRONGPASS") != std::string::npos);
  options.user.clear();
  options.password.clear();
  CHECK(refusal_of(options).find("NOAUTH") != std::string::npos);
  options = server.client();
  options.database = 99;
  CHECK(refusal_of(options).find("SELECT") != std::string::npos);
}

TEST_CASE("a server whose certificate does not fit is refused") {
  if (!ValkeyStore::has_tls()) return;
  const ValkeyServer server({.tls = true});
  const ValkeyServer stranger({.tls = true});
  ValkeyStoreOptions options = server.client();
  { const ValkeyStore fits(options); }
  options.tls->server_name = "store.test";
  { const ValkeyStore fits(options); }
  options.tls->server_name = "another.test";
  CHECK(refusal_of(options).find("certificate verify failed") != std::string::npos);
  options.tls->server_name = "127.0.0.2";
  CHECK(refusal_of(options).find("certificate verify failed") != std::string::npos);
  options.tls->server_name.clear();
  options.tls->ca_file = stranger.file("cert.pem");
  CHECK(refusal_of(options).find("certificate verify failed") != std::string::npos);
  options.tls->ca_file = server.file("nothing");
  CHECK(refusal_of(options).find("ca_file") != std::string::npos);
  options.tls = ValkeyTls{.ca_file = server.file("cert.pem"),
                          .certificate_file = server.file("cert.pem"),
                          .key_file = stranger.file("key.pem")};
  CHECK(refusal_of(options).find("key_file") != std::string::npos);
  options.tls.reset();
  CHECK_FALSE(refusal_of(options).empty());
}

TEST_CASE("an object that lost a piece is damaged, and can be put again") {
  const ValkeyServer server;
  ValkeyStore store(server.client());
  const std::vector<std::byte> written = bytes_of_seed(1, 200 * kib);  // 4 pieces
  std::vector<std::byte> read(written.size());
  const std::vector<std::vector<std::string>> losses = {
      {"DEL"}, {"APPEND", "x"}, {"SET", ""}, {"SETRANGE", "70000", "x"}, {"LPUSH", "x"}};
  std::uint64_t damages = 0;
  for (const std::vector<std::string>& loss : losses)
    for (int piece = 0; piece < 4; ++piece) {
      CAPTURE(loss.front());
      CAPTURE(piece);
      REQUIRE(put(store, "a", written) == done);
      const std::string name = piece_name(server, piece);
      if (loss.front() == "LPUSH") server.command({"DEL", name});
      std::vector<std::string> words = loss;
      words.insert(words.begin() + 1, name);
      server.command(words);
      if (loss.front() == "DEL") CHECK(exists(store, "a") == gone);
      CHECK(get(store, "a", read).status == damaged);
      CHECK(store.valkey_statistics().damaged_objects == ++damages);
      CHECK(get(store, "a", read).status == gone);
      CHECK(server.command({"DBSIZE"}) == "0");
      // A put that finds the damage mends it.
      REQUIRE(put(store, "a", written) == done);
      if (loss.front() != "DEL") {
        CHECK(remove(store, "a") == done);
        continue;
      }
      server.command({"DEL", piece_name(server, piece)});
      CHECK(put(store, "a", written) == done);
      CHECK(store.valkey_statistics().damaged_objects == ++damages);
      CHECK(get(store, "a", read).status == done);
      CHECK(read == written);
      CHECK(remove(store, "a") == done);
      CHECK(server.command({"DBSIZE"}) == "0");
    }
}

TEST_CASE("a key that holds no manifest of its own is damaged, and can be put again") {
  const ValkeyServer server;
  ValkeyStore store(server.client());
  const std::vector<std::byte> written = bytes_of_seed(1, 100 * kib);
  std::vector<std::byte> read(written.size());
  REQUIRE(put(store, "other", written) == done);
  const std::vector<std::vector<std::string>> values = {{"SET", "stateport:o:a", "junk"},
                                                        {"SET", "stateport:o:a", ""},
                                                        {"SET", "stateport:o:a", std::string(100000, 'x')},
                                                        {"LPUSH", "stateport:o:a", "x"},
                                                        {"COPY", "stateport:o:other", "stateport:o:a"}};
  for (const std::vector<std::string>& value : values) {
    server.command(value);
    CHECK(exists(store, "a") == gone);
    CHECK(get(store, "a", read).status == damaged);
    CHECK(get(store, "a", read).status == gone);
    server.command(value);
    CHECK(put(store, "a", written) == done);
    CHECK(get(store, "a", read).status == done);
    CHECK(remove(store, "a") == done);
    server.command(value);
    CHECK(remove(store, "a") == done);
    CHECK(exists(store, "a") == gone);
  }
  CHECK(get(store, "other", read).status == done);
}

TEST_CASE("a server that is full answers no_room and keeps nothing of the object") {
  const ValkeyServer server({.more = {"--maxmemory", "12mb", "--maxmemory-policy", "noeviction"}});
  ValkeyStore store(server.client());
  CHECK(put(store, "large", bytes_of_seed(1, 24 * mib)) == TransferStatus::no_room);
  CHECK(store.valkey_statistics().last_error == "the server refuses a command: OOM");
  CHECK(server.keys().empty());
  CHECK(put(store, "small", bytes_of_seed(1, 100 * kib)) == done);
}

TEST_CASE("a server that evicts never gives a wrong object") {
  const ValkeyServer server({.more = {"--maxmemory", "12mb", "--maxmemory-policy", "allkeys-random"}});
  ValkeyStore store(server.client());
  int whole = 0;
  int lost = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::vector<std::byte> written = bytes_of_seed(i % 20, mib);
    const std::string key = "k" + std::to_string(i % 20);
    std::vector<std::byte> read(mib);
    const TransferStatus stored = put(store, key, written);
    CHECK((stored == done || stored == TransferStatus::no_room));
    const Completion got = get(store, key, read);
    CHECK((got.status == done || got.status == gone || got.status == damaged));
    if (got.status == done) CHECK(read == written);
    ++(got.status == done ? whole : lost);
  }
  CHECK(whole > 0);
  CHECK((lost > 0 || store.valkey_statistics().damaged_objects > 0));
}

TEST_CASE("objects with a lifetime expire, before their pieces") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.lifetime_s = 1000;
  ValkeyStore store(options);
  CHECK(put(store, "a", bytes_of_seed(1, 150 * kib)) == done);
  const long long manifest_ms = std::stoll(server.command({"PTTL", "stateport:o:a"}));
  CHECK(manifest_ms > 0);
  CHECK(manifest_ms <= 1000000);
  for (const std::string& piece : server.keys("stateport:p:*"))
    CHECK(std::stoll(server.command({"PTTL", piece})) > manifest_ms + 50000);
  options.lifetime_s = 0.001;
  ValkeyStore brief(options);
  CHECK(put(brief, "b", bytes_of_seed(1, 10)) == done);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(exists(brief, "b") == gone);
}

TEST_CASE("what is committed stays, and what is not expires") {
  const ValkeyServer server;
  std::vector<std::byte> memory = bytes_of_seed(1, 16 * mib);
  const RemotePiece piece{memory.data(), memory.size()};
  std::size_t left = 0;
  for (int i = 0; i < 20; ++i) {
    const std::string key = "k" + std::to_string(i);
    const RemoteObject object{1, key, {&piece, 1}};
    {
      ValkeyStore store(server.client());
      REQUIRE(store.put_from({&object, 1}));
      std::this_thread::sleep_for(std::chrono::milliseconds(i));
    }
    wait_for_the_last_client(server);
    const bool is_committed = server.command({"EXISTS", "stateport:o:" + key}) == "1";
    for (const std::string& name : server.keys("stateport:p:*")) {
      const long long ms = std::stoll(server.command({"PTTL", name}));
      CHECK((is_committed ? ms == -1 : ms > 0));
      left += is_committed ? 0U : 1U;
    }
    server.command({"FLUSHALL"});
  }
  CHECK(left > 0);  // else no put was given up in its middle
}

TEST_CASE("a connection that the server closed is made again without a failure") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.lanes = 1;
  ValkeyStore store(options);
  const std::vector<std::byte> written = bytes_of_seed(1, 3 * mib);
  std::vector<std::byte> read(written.size());
  CHECK(put(store, "a", written) == done);
  for (int i = 0; i < 10; ++i) {
    server.command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
    CHECK(get(store, "a", read).status == done);
    CHECK(read == written);
    server.command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
    CHECK(put(store, "b" + std::to_string(i), written) == done);
  }
  const ValkeyStoreStatistics statistics = store.valkey_statistics();
  CHECK(statistics.connections == 21);
  CHECK(statistics.lost_connections == 20);
  CHECK(statistics.failed_attempts == 0);
}

TEST_CASE("while the server is away requests fail, and afterwards they work") {
  ValkeyServer server;
  ValkeyStore store(server.client());
  const std::vector<std::byte> written = bytes_of_seed(1, 100 * kib);
  std::vector<std::byte> read(written.size());
  CHECK(put(store, "a", written) == done);
  server.kill();
  for (int i = 0; i < 5; ++i) {
    CHECK(put(store, "b", written) == failed);
    CHECK(get(store, "a", read).status == failed);
    CHECK(exists(store, "a") == failed);
    CHECK(remove(store, "a") == failed);
  }
  CHECK(store.valkey_statistics().failed_attempts > 0);
  CHECK_FALSE(store.valkey_statistics().last_error.empty());
  server.start();
  CHECK(put_again(store, "a", written) == done);
  CHECK(get(store, "a", read).status == done);
  CHECK(read == written);
}

TEST_CASE("a server that is killed in the middle of a put has no damaged object afterwards") {
  for_each_seed(12, [](Random& random, std::uint64_t) {
    ValkeyServer server({.keeps_data = true});
    ValkeyStoreOptions options = server.client();
    options.lanes = 3;
    ValkeyStore store(options);
    constexpr std::size_t count = 6;
    std::vector<std::vector<std::byte>> memory;
    std::vector<RemotePiece> pieces;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) {
      memory.push_back(bytes_of_seed(random.bits(), static_cast<std::size_t>(random.between(1, 6)) * mib));
      keys.push_back("k" + std::to_string(i));
    }
    for (std::vector<std::byte>& bytes : memory) pieces.push_back({bytes.data(), bytes.size()});
    std::vector<RemoteObject> objects;
    for (std::size_t i = 0; i < count; ++i) objects.push_back({i, keys[i], {&pieces[i], 1}});
    REQUIRE(store.put_from(objects));
    std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 60000)));
    server.kill();
    const std::vector<Completion> answers = answers_of(store, count);
    server.start();
    CHECK(put_again(store, "after", memory[0]) == done);
    ValkeyStore reader(server.client());
    for (std::size_t i = 0; i < count; ++i) {
      CHECK((answers[i].status == done || answers[i].status == failed));
      std::vector<std::byte> read(memory[i].size());
      const TransferStatus got = get(reader, keys[i], read).status;
      // What was acknowledged is there. What was not is whole or gone.
      if (answers[i].status == done) CHECK(got == done);
      CHECK((got == done || got == gone));
      if (got == done) CHECK(read == memory[i]);
    }
  });
}

TEST_CASE("a server that is silent for too long fails its requests") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.silence_timeout_s = 0.1;
  ValkeyStore store(options);
  server.stop_running();
  CHECK(exists(store, "a") == failed);
  CHECK(put(store, "a", bytes_of_seed(1, 20 * mib)) == failed);
  server.go_on();
  CHECK(put_again(store, "a", bytes_of_seed(1, 100)) == done);
}

TEST_CASE("destruction does not wait for a silent server") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.silence_timeout_s = 1e6;
  std::vector<std::byte> memory(20 * mib);
  {
    ValkeyStore store(options);
    server.stop_running();
    const RemotePiece piece{memory.data(), memory.size()};
    const std::array<RemoteObject, 2> objects = {{{1, "a", {&piece, 1}}, {2, "b", {&piece, 1}}}};
    REQUIRE(store.put_from(objects));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  server.go_on();
}

TEST_CASE("a server that cannot be reached is refused") {
  ValkeyStoreOptions options;
  {
    const ValkeyServer server;
    options = server.client();
  }
  CHECK(refusal_of(options).find("refused") != std::string::npos);
  options.unix_socket = "/no/such/socket";
  CHECK(refusal_of(options).find("No such file") != std::string::npos);
}

TEST_CASE("the largest number of pieces is kept to") {
  const ValkeyServer server;
  ValkeyStoreOptions options = server.client();
  options.piece_bytes = kib;
  ValkeyStore store(options);
  const std::vector<std::byte> written = bytes_of_seed(1, tiers::ValkeyManifest::pieces_max * kib + 1);
  std::vector<std::byte> read(written.size());
  CHECK(put(store, "a", written) == done);
  CHECK(get(store, "a", read).status == done);
  CHECK(read == written);
  CHECK(server.keys("stateport:p:*").size() <= tiers::ValkeyManifest::pieces_max);
  CHECK(remove(store, "a") == done);
  CHECK(server.command({"DBSIZE"}) == "0");
}

}  // namespace
}  // namespace stateport
