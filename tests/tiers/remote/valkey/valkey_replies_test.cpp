// SPDX-License-Identifier: Apache-2.0
// A server that answers anything: what it says is untrusted.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/valkey_store.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "remote/lane_store.hpp"
#include "remote/remote_store_conformance.hpp"
#include "remote/valkey/valkey_lane.hpp"
#include "remote/valkey/valkey_manifest.hpp"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;

/// Answers each command by what a function says of its name. A reply that ends with `forever` is sent again and again.
class PretendedServer {
 public:
  using Answer = std::function<std::string(const std::string& name, const std::string& first_word)>;
  static constexpr std::string_view forever = "(forever)";

  explicit PretendedServer(Answer answer) : answer_(std::move(answer)), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, bytes) != 0 || ::listen(socket_, 8) != 0 || ::getsockname(socket_, any, &bytes) != 0)
      throw std::runtime_error("no socket");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  PretendedServer(const PretendedServer&) = delete;
  PretendedServer& operator=(const PretendedServer&) = delete;
  ~PretendedServer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  [[nodiscard]] ValkeyStoreOptions client() const {
    return {.port = port_, .password = "hunter2", .lanes = 1, .piece_bytes = std::size_t{64} << 10};
  }
  /// By replies that have no end.
  [[nodiscard]] std::size_t sent_bytes() const { return sent_bytes_; }

 private:
  /// One connection at a time: a store with one lane has no more.
  void serve() {
    for (int client = ::accept(socket_, nullptr, nullptr); client >= 0; client = ::accept(socket_, nullptr, nullptr)) {
      read_.clear();
      at_ = 0;
      std::vector<std::string> words;
      while (read_command(client, words) && send_answer(client, words)) {
      }
      ::close(client);
    }
  }
  bool send_answer(int client, const std::vector<std::string>& words) {
    std::string reply = answer_(words.at(0), words.size() > 1 ? words[1] : "");
    const bool repeats = reply.ends_with(forever);
    if (repeats) reply.resize(reply.size() - forever.size());
    do {
      if (reply.empty() || ::send(client, reply.data(), reply.size(), MSG_NOSIGNAL) < 0) return false;
      if (repeats) sent_bytes_ += reply.size();
    } while (repeats);
    return true;
  }
  bool read_line(int client, std::string& line) {
    std::size_t end = 0;
    while ((end = read_.find("\r\n", at_)) == std::string::npos)
      if (!read_more(client)) return false;
    line = read_.substr(at_, end - at_);
    at_ = end + 2;
    return true;
  }
  bool read_more(int client) {
    read_.erase(0, std::exchange(at_, 0));
    std::string bytes(65536, '\0');
    const ssize_t count = ::recv(client, bytes.data(), bytes.size(), 0);
    if (count > 0) read_.append(bytes, 0, static_cast<std::size_t>(count));
    return count > 0;
  }
  bool read_command(int client, std::vector<std::string>& words) {
    words.clear();
    std::string line;
    if (!read_line(client, line)) return false;
    for (int left = std::stoi(line.substr(1)); left > 0; --left) {
      if (!read_line(client, line)) return false;
      const auto bytes = static_cast<std::size_t>(std::stoul(line.substr(1)));
      while (read_.size() - at_ < bytes + 2)
        if (!read_more(client)) return false;
      words.push_back(read_.substr(at_, bytes));
      at_ += bytes + 2;
    }
    return true;
  }

  Answer answer_;
  int socket_;
  int port_ = 0;
  std::string read_;
  std::size_t at_ = 0;  ///< in `read_`: what comes next
  std::atomic<std::size_t> sent_bytes_ = 0;
  std::thread thread_;
};

/// Lets a store connect, and gives `reply` to everything else.
PretendedServer::Answer after_introduction(const std::string& reply) {
  return [reply](const std::string& name, const std::string&) -> std::string {
    return name == "AUTH" || name == "SELECT" ? "+OK\r\n" : reply;
  };
}

std::string text_reply(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

/// Every request has an answer, and none is `done` by a get.
void ask_everything(const ValkeyStoreOptions& options) {
  ValkeyStore store(options);
  std::vector<std::byte> memory(200000);
  CHECK(get(store, "a", memory).status != TransferStatus::done);
  static_cast<void>(put(store, "a", memory));
  static_cast<void>(exists(store, "a"));
  static_cast<void>(remove(store, "a"));
  CHECK(get(store, "a", memory).status != TransferStatus::done);
  CHECK(store.valkey_statistics().last_error.find("hunter2") == std::string::npos);
}

/// A lane of which the thread has no memory from its first call on: for one allocation, or for all.
class ShortLane final : public RemoteLane {
 public:
  ShortLane(const ValkeyStoreOptions& options, std::uint64_t n, bool and_later, std::atomic<std::uint64_t>& made)
      : lane_(options, nullptr, counts_), n_(n), and_later_(and_later), made_(made) {}

  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    if (before_ == 0) {
      before_ = heap_allocations() + 1;
      fail_heap_allocation(n_, and_later_);
    }
    lane_.carry_out(call, objects, answers);
    made_ = heap_allocations() + 1 - before_;
  }
  void interrupt() noexcept override { lane_.interrupt(); }

 private:
  tiers::ValkeyCounts counts_;
  tiers::ValkeyLane lane_;
  std::uint64_t n_;
  bool and_later_;
  std::atomic<std::uint64_t>& made_;
  std::uint64_t before_ = 0;
};

/// What a lane does in a thread whose n-th allocation fails, or all from then on. Returns whether it made fewer.
bool runs_without_memory(const ValkeyStoreOptions& options, std::uint64_t n, bool and_later) {
  std::array<std::byte, 64> memory = {};
  const RemotePiece piece{.address = memory.data(), .bytes = memory.size()};
  const RemoteObject object{.ticket = 1, .key = "an-object", .pieces = {&piece, 1}};
  const std::array keys = {RemoteKey{.ticket = 2, .key = "an-object"}, RemoteKey{.ticket = 3, .key = "another-one"}};
  std::atomic<std::uint64_t> made = 0;
  LaneStore store(std::make_unique<ShortLane>(options, n, and_later, made));
  REQUIRE(store.put_from({&object, 1}));
  REQUIRE(store.get_into({&object, 1}));
  REQUIRE(store.exists(keys));
  REQUIRE(store.remove(keys));
  constexpr std::size_t asked = 6;
  std::size_t answered = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (answered < asked && std::chrono::steady_clock::now() < end) {
    std::array<Completion, asked> answers;
    answered += store.poll(answers);
    std::this_thread::yield();
  }
  CHECK(answered == asked);
  return made < n;
}

/// At each of its allocations.
void runs_without_memory(const ValkeyStoreOptions& options) {
  for (const bool and_later : {false, true}) {
    CAPTURE(and_later);
    std::uint64_t n = 1;
    while (!runs_without_memory(options, n, and_later)) ++n;
    CHECK(n > 2);
  }
}

TEST_CASE("a lane that runs out of memory answers every request") {
  const std::string error = "-ERR a text for which no string has room in itself\r\n";
  for (const std::string& reply : {std::string(), error, std::string(":1\r\n"), std::string("$-1\r\n")}) {
    CAPTURE(reply);
    const PretendedServer server(after_introduction(reply));
    runs_without_memory(server.client());
  }
  const ValkeyStoreOptions gone = PretendedServer(after_introduction("")).client();
  runs_without_memory(gone);
}

TEST_CASE("replies of any type are no objects") {
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += "*1\r\n";
  const std::vector<std::string> replies = {
      "+OK\r\n",
      "+\r\n",
      ":1\r\n",
      ":-1\r\n",
      ":99999999999999999999999\r\n",
      "$-1\r\n",
      "$-2\r\n",
      "$0\r\n\r\n",
      "$5\r\nhello\r\n",
      "$99999999999999999999\r\n",
      "*0\r\n",
      "*-1\r\n",
      "*-7\r\n",
      "*2\r\n:1\r\n+OK\r\n",
      "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
      "*1\r\n*1\r\n$1\r\nx\r\n",
      "*99999999\r\n:1\r\n",
      nested + ":1\r\n",
      "-ERR hunter2\r\n",
      "-hunter2\r\n",
      "-\r\n",
      "-OOM hunter2\r\n",
      "-WRONGTYPE hunter2\r\n",
      "-LOADING\r\n",
      "_\r\n",
      "#t\r\n",
      ",1.5\r\n",
      "(123456789012345678901234567890\r\n",
      "=7\r\ntxt:abc\r\n",
      "%1\r\n+a\r\n+b\r\n",
      "~1\r\n+a\r\n",
      ">1\r\n+a\r\n",
      "|1\r\n+a\r\n+b\r\n+c\r\n",
      "hunter2\r\n",
      std::string(1, '\0') + "\r\n",
      "",
  };
  for (const std::string& reply : replies) {
    CAPTURE(reply);
    const PretendedServer server(after_introduction(reply));
    ValkeyStoreOptions options = server.client();
    options.silence_timeout_s = 0.05;  // some replies are not whole
    ask_everything(options);
  }
}

TEST_CASE("replies without an end are given up before they fill the memory") {
  constexpr std::size_t enough = std::size_t{400} << 20;
  const std::string many(1 << 16, 'x');
  std::string arrays;
  for (int i = 0; i < 10000; ++i) arrays += "*2\r\n";
  for (const std::string& reply : {many, "$9000000000\r\n" + many, "*100000000000\r\n" + many, arrays,
                                   std::string("*199999\r\n$10\r\n0123456789\r\n")}) {
    const PretendedServer server(after_introduction(reply + std::string(PretendedServer::forever)));
    ValkeyStore store(server.client());
    std::vector<std::byte> memory(1000);
    CHECK(get(store, "a", memory).status == TransferStatus::failed);
    CHECK(server.sent_bytes() < enough);
  }
}

TEST_CASE("an object within five arrays ends the connection") {
  for (const std::size_t arrays : {std::size_t{4}, std::size_t{5}}) {
    std::string reply;
    for (std::size_t i = 0; i < arrays; ++i) reply += "*1\r\n";
    const PretendedServer server(after_introduction(reply + ":1\r\n"));
    ValkeyStore store(server.client());
    static_cast<void>(exists(store, "a"));
    CHECK((store.valkey_statistics().lost_connections > 0) == (arrays > 4));
  }
}

TEST_CASE("a manifest may name any pieces") {
  const tiers::ValkeyManifest most{.object_bytes = tiers::ValkeyManifest::pieces_max * (std::uint64_t{64} << 20),
                                   .piece_bytes = std::uint64_t{64} << 20};
  const tiers::ValkeyManifest small{.object_bytes = 65536, .piece_bytes = 1};
  for (const tiers::ValkeyManifest& manifest : {most, small}) {
    const PretendedServer server([&](const std::string& name, const std::string& word) -> std::string {
      if (name == "AUTH" || name == "SELECT" || name == "WATCH") return "+OK\r\n";
      if (name == "GET" && word == "stateport:o:a") return text_reply(tiers::encode_manifest(manifest, "a"));
      return "$-1\r\n";
    });
    ask_everything(server.client());
  }
}

TEST_CASE("no text shows the password that the server sends back") {
  for (const std::string& reply :
       std::vector<std::string>{"-ERR unknown command 'AUTH', with args beginning with: 'hunter2'\r\n", "-hunter2\r\n",
                                "+hunter2\r\n", "$7\r\nhunter2\r\n", "*1\r\n$7\r\nhunter2\r\n", "hunter2\r\n", ""}) {
    CAPTURE(reply);
    const PretendedServer server([&](const std::string&, const std::string&) { return reply; });
    try {
      const ValkeyStore store(server.client());
      FAIL("not refused");
    } catch (const BackendError& problem) {
      CHECK(std::string(problem.what()).find("hunter2") == std::string::npos);
    }
  }
}

TEST_CASE("any bytes are survived") {
  for_each_seed(300, [](Random& random, std::uint64_t) {
    static constexpr std::string_view letters = "*$+-:_#,(=%~>|0123456789\r\n\r\n\r\nx";
    std::uint64_t state = random.bits();
    const PretendedServer server([state](const std::string& name, const std::string&) mutable -> std::string {
      if (name == "AUTH" || name == "SELECT") return "+OK\r\n";
      Random letter_of(state++);
      std::string reply;
      for (std::int64_t left = letter_of.between(1, 60); left > 0; --left)
        reply.push_back(letters[static_cast<std::size_t>(letter_of.between(0, std::ssize(letters) - 1))]);
      return reply;
    });
    ValkeyStoreOptions options = server.client();
    options.silence_timeout_s = 0.002;
    try {
      ask_everything(options);
    } catch (const BackendError&) {
      // The machine was so slow that the first connection was given up.
    }
  });
}

}  // namespace
}  // namespace stateport
