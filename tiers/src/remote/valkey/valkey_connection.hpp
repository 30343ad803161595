// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/valkey_options.hpp>

#include "remote/valkey/valkey_reply.hpp"
#include "remote/valkey/valkey_tls.hpp"

#include <cstddef>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct redisContext;

namespace stateport::tiers {

/// A connection cannot be made, or cannot be used any more. The text holds no secret.
class ConnectionLost : public std::exception {
 public:
  explicit ConnectionLost(std::string why) : why_(std::move(why)) {}
  [[nodiscard]] const char* what() const noexcept override { return why_.c_str(); }

 private:
  std::string why_;
};

/// Lets another thread end the connection that a thread waits for. Thread-safe.
class ConnectionGate {
 public:
  /// False: the gate is closed.
  [[nodiscard]] bool enter(int socket);
  void leave();
  /// Ends the connection that is here, and lets none in any more.
  void close();
  [[nodiscard]] bool is_closed() const;

 private:
  mutable std::mutex mutex_;
  int socket_ = -1;
  bool closed_ = false;
};

/// A connection to a Valkey server, used by one thread. Commands go out in order, and their replies come in that order.
/// Every call throws ConnectionLost when the server is silent for too long, ends the connection or breaks the protocol.
class ValkeyConnection {
 public:
  /// Connects, authenticates and selects the database. `tls` may be nullptr.
  ValkeyConnection(const ValkeyStoreOptions& options, const ValkeyTlsContext* tls, ConnectionGate& gate);
  ValkeyConnection(const ValkeyConnection&) = delete;
  ValkeyConnection& operator=(const ValkeyConnection&) = delete;
  ~ValkeyConnection();

  using Words = std::initializer_list<std::string_view>;

  /// Sends a command, at the latest when receive() is called.
  void send(Words words, std::span<const std::string> more_words = {});
  /// Sends a command that has the bytes of `value` between its words.
  void send_value(Words words, std::span<const RemotePiece> value, Words more_words);
  /// The next reply. A text that is as long as `target` is written there. A text may have `text_bytes` or those of the
  /// target; a longer one ends the connection.
  [[nodiscard]] ValkeyReply receive(std::span<const RemotePiece> target = {}, std::size_t text_bytes = 0);
  /// Sends, and receives.
  [[nodiscard]] ValkeyReply call(Words words);

 private:
  struct Free {
    void operator()(redisContext* context) const noexcept;
  };

  void connect(const ValkeyStoreOptions& options);
  void introduce(const ValkeyStoreOptions& options);
  void append(std::string_view bytes);
  void append_word(std::string_view word);
  void flush();
  void read_some();
  void require_fine(bool fine) const;

  ConnectionGate& gate_;
  ValkeyReplyMaker replies_;
  std::vector<char> read_buffer_;
  std::unique_ptr<redisContext, Free> context_;
};

}  // namespace stateport::tiers
