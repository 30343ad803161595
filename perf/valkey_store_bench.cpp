// SPDX-License-Identifier: Apache-2.0
// How much of hiredis' speed is left to objects that are committed as a whole and land in the caller's memory? One
// object of 64 MiB at a time over loopback, put and got by a ValkeyStore with one connection. Peers in the same run:
// the plain client's SET and GET of one value of 64 MiB, whose GET leaves the bytes in memory of its own; that GET with
// the copy to the caller's memory behind it.
//
// It starts a server of its own (valkey-server or redis-server from PATH; STATEPORT_VALKEY_SERVER names another).
#include <stateport/tiers/valkey_store.hpp>

#include "comparison.hpp"
#include "valkey_server.hpp"

#include <benchmark/benchmark.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t object_bytes = std::size_t{64} << 20;
constexpr int rounds = 31;

void require_true(bool ok) {
  if (!ok) throw std::runtime_error("the store refuses a request");
}

ValkeyStoreOptions options_of(const test::ValkeyServer& server, std::size_t piece_bytes) {
  ValkeyStoreOptions options = server.client();
  options.lanes = 1;
  options.piece_bytes = piece_bytes;
  return options;
}

class Bench {
 public:
  explicit Bench(std::size_t piece_bytes)
      : piece_bytes_(piece_bytes),
        store_(options_of(server_, piece_bytes)),
        plain_(redisConnect("127.0.0.1", server_.client().port), &redisFree),
        memory_(object_bytes),
        copy_(object_bytes) {
    std::uint64_t word = 1;
    for (std::byte& byte : memory_) byte = static_cast<std::byte>((word = word * 6364136223846793005ULL + 1) >> 56);
    require_true(plain_ && plain_->err == 0);
    command("AUTH %s", server_.client().password.c_str());
  }

  void put() {
    const RemotePiece piece{memory_.data(), memory_.size()};
    const RemoteObject object{1, "object", {&piece, 1}};
    require_true(store_.put_from({&object, 1}));
    take_one();
  }
  void get() {
    const RemotePiece piece{copy_.data(), copy_.size()};
    const RemoteObject object{1, "object", {&piece, 1}};
    require_true(store_.get_into({&object, 1}));
    take_one();
  }
  void remove() {
    const RemoteKey key{1, "object"};
    require_true(store_.remove({&key, 1}));
    take_one();
  }
  void plain_put() { command("SET plain %b", memory_.data(), memory_.size()); }
  void plain_remove() { command("DEL plain"); }
  void plain_put_pieces() {
    for (std::size_t at = 0; at < object_bytes; at += piece_bytes_)
      command("SET plain:%d %b", static_cast<int>(at / piece_bytes_), memory_.data() + at, piece_bytes_);
  }
  void plain_remove_pieces() {
    for (std::size_t at = 0; at < object_bytes; at += piece_bytes_)
      command("DEL plain:%d", static_cast<int>(at / piece_bytes_));
  }
  void plain_get(bool copies) {
    void* answer = redisCommand(plain_.get(), "GET plain");
    take_text(answer, object_bytes, copies ? copy_.data() : nullptr);
  }
  void plain_get_pieces() {
    for (std::size_t at = 0; at < object_bytes; at += piece_bytes_)
      take_text(redisCommand(plain_.get(), "GET plain:%d", static_cast<int>(at / piece_bytes_)), piece_bytes_,
                copy_.data() + at);
  }

 private:
  static void take_text(void* answer, std::size_t bytes, std::byte* copy) {
    auto* reply = static_cast<redisReply*>(answer);
    require_true(reply && reply->type == REDIS_REPLY_STRING && reply->len == bytes);
    if (copy) std::memcpy(copy, reply->str, bytes);
    freeReplyObject(answer);
  }
  template <class... Arguments>
  void command(const char* format, Arguments... arguments) {
    void* answer = redisCommand(plain_.get(), format, arguments...);
    auto* reply = static_cast<redisReply*>(answer);
    require_true(reply && reply->type != REDIS_REPLY_ERROR);
    freeReplyObject(answer);
  }
  void take_one() {
    Completion answer;
    while (store_.poll({&answer, 1}) == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
    require_true(answer.status == TransferStatus::done);
  }

  std::size_t piece_bytes_;
  test::ValkeyServer server_;
  ValkeyStore store_;
  std::unique_ptr<redisContext, decltype(&redisFree)> plain_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> copy_;
};

/// There is a server.
bool has_server(benchmark::State& state) {
  const bool has = !test::ValkeyServer::program().empty();
  if (!has) state.SkipWithMessage("neither valkey-server nor redis-server is here");
  return has;
}

/// Argument: bytes of a piece, in MiB.
void put_object(benchmark::State& state) {
  if (!has_server(state)) return;
  Bench bench(static_cast<std::size_t>(state.range(0)) << 20);
  // Removing an object is no part of putting it.
  const Timer timer = [&bench](const Contender& contender, int round) {
    const double time_ns = wall_time_ns(contender, round);
    if (contender.name == "ours") bench.remove();
    if (contender.name == "plain_set") bench.plain_remove();
    if (contender.name == "plain_set_of_pieces") bench.plain_remove_pieces();
    return time_ns;
  };
  report(state,
         {{"ours", [&](int) { bench.put(); }},
          {"plain_set", [&](int) { bench.plain_put(); }},
          {"plain_set_of_pieces", [&](int) { bench.plain_put_pieces(); }}},
         object_bytes, rounds, timer);
}

void get_object(benchmark::State& state) {
  if (!has_server(state)) return;
  Bench bench(static_cast<std::size_t>(state.range(0)) << 20);
  bench.put();
  bench.plain_put();
  bench.plain_put_pieces();
  report(state,
         {{"ours", [&](int) { bench.get(); }},
          {"plain_get", [&](int) { bench.plain_get(false); }},
          {"plain_get_and_copy", [&](int) { bench.plain_get(true); }},
          {"plain_get_and_copy_of_pieces", [&](int) { bench.plain_get_pieces(); }}},
         object_bytes, rounds);
}

BENCHMARK(put_object)->Arg(1)->Arg(4)->Arg(16)->Arg(64)->Iterations(1)->UseManualTime();
BENCHMARK(get_object)->Arg(1)->Arg(4)->Arg(16)->Arg(64)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
