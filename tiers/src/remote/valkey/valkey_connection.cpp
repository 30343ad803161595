// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_connection.hpp"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <new>

namespace stateport::tiers {
namespace {

// The number of bytes that go to or from the socket at a time: half of a second-level cache.
constexpr std::size_t chunk_bytes = std::size_t{256} << 10;
/// Around a text: its length and ends of lines.
constexpr std::size_t protocol_bytes_max = 64;

timeval time_of(double seconds) noexcept {
  const double whole = std::floor(seconds);
  return {static_cast<time_t>(whole), static_cast<suseconds_t>((seconds - whole) * 1e6)};
}

redisOptions options_of(const ValkeyStoreOptions& options, const timeval& connect, const timeval& silence) noexcept {
  redisOptions wanted = {};
  if (options.unix_socket.empty()) {
    wanted.type = REDIS_CONN_TCP;
    wanted.endpoint.tcp.ip = options.host.c_str();
    wanted.endpoint.tcp.port = options.port;
  } else {
    wanted.type = REDIS_CONN_UNIX;
    wanted.endpoint.unix_socket = options.unix_socket.c_str();
  }
  wanted.connect_timeout = &connect;
  wanted.command_timeout = &silence;
  return wanted;
}

void require_ok(const ValkeyReply& reply, std::string_view command) {
  if (reply.is_status("OK")) return;
  throw ConnectionLost(fmt::format("the server answers {} with {}", command,
                                   reply.kind == ValkeyReply::Kind::error ? reply.text : "no status"));
}

}  // namespace

bool ConnectionGate::enter(int socket) {
  const std::lock_guard lock(mutex_);
  if (!closed_) socket_ = socket;
  return !closed_;
}

void ConnectionGate::leave() {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
}

void ConnectionGate::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

bool ConnectionGate::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void ValkeyConnection::Free::operator()(redisContext* context) const noexcept {
  redisFree(context);
}

ValkeyConnection::ValkeyConnection(const ValkeyStoreOptions& options, const ValkeyTlsContext* tls, ConnectionGate& gate)
    : gate_(gate), read_buffer_(chunk_bytes) {
  connect(options);
  if (!gate_.enter(context_->fd)) throw ConnectionLost("the store ends");
  try {
    if (const std::string problem = tls ? tls->secure(*context_) : ""; !problem.empty()) throw ConnectionLost(problem);
    introduce(options);
  } catch (...) {
    gate_.leave();
    throw;
  }
}

ValkeyConnection::~ValkeyConnection() {
  gate_.leave();
}

void ValkeyConnection::connect(const ValkeyStoreOptions& options) {
  const timeval connect_timeout = time_of(options.connect_timeout_s);
  const timeval silence_timeout = time_of(options.silence_timeout_s);
  const redisOptions wanted = options_of(options, connect_timeout, silence_timeout);
  context_.reset(redisConnectWithOptions(&wanted));
  if (!context_) throw std::bad_alloc();
  require_fine(context_->err == 0);
  if (options.unix_socket.empty()) require_fine(redisEnableKeepAlive(context_.get()) == REDIS_OK);
  replies_.attach(*context_->reader);
  context_->reader->maxbuf = 0;  // keep the buffer between large texts
}

void ValkeyConnection::introduce(const ValkeyStoreOptions& options) {
  if (!options.password.empty())
    require_ok(options.user.empty() ? call({"AUTH", options.password}) : call({"AUTH", options.user, options.password}),
               "AUTH");
  // Always: a server that wants a password refuses it without one.
  require_ok(call({"SELECT", fmt::format("{}", options.database)}), "SELECT");
}

void ValkeyConnection::require_fine(bool fine) const {
  if (!fine) throw ConnectionLost(context_->errstr);
}

void ValkeyConnection::append(std::string_view bytes) {
  require_fine(redisAppendFormattedCommand(context_.get(), bytes.data(), bytes.size()) == REDIS_OK);
}

void ValkeyConnection::append_word(std::string_view word) {
  append(fmt::format("${}\r\n", word.size()));
  append(word);
  append("\r\n");
}

void ValkeyConnection::send(Words words, std::span<const std::string> more_words) {
  append(fmt::format("*{}\r\n", words.size() + more_words.size()));
  for (const std::string_view word : words) append_word(word);
  for (const std::string& word : more_words) append_word(word);
}

void ValkeyConnection::send_value(Words words, std::span<const RemotePiece> value, Words more_words) {
  std::size_t bytes = 0;
  for (const RemotePiece& piece : value) bytes += piece.bytes;
  append(fmt::format("*{}\r\n", words.size() + 1 + more_words.size()));
  for (const std::string_view word : words) append_word(word);
  append(fmt::format("${}\r\n", bytes));
  std::size_t waiting_bytes = 0;
  for (const RemotePiece& piece : value)
    for (std::size_t at = 0; at < piece.bytes;) {
      const std::size_t part = std::min(piece.bytes - at, chunk_bytes - waiting_bytes);
      append({reinterpret_cast<const char*>(piece.address) + at, part});
      at += part;
      waiting_bytes += part;
      if (waiting_bytes < chunk_bytes) continue;
      flush();
      waiting_bytes = 0;
    }
  append("\r\n");
  for (const std::string_view word : more_words) append_word(word);
}

void ValkeyConnection::flush() {
  int done = 0;
  while (done == 0) require_fine(redisBufferWrite(context_.get(), &done) == REDIS_OK);
}

void ValkeyConnection::read_some() {
  const ssize_t count = context_->funcs->read(context_.get(), read_buffer_.data(), read_buffer_.size());
  require_fine(count >= 0);
  if (count > 0 && redisReaderFeed(context_->reader, read_buffer_.data(), static_cast<std::size_t>(count)) != REDIS_OK)
    throw ConnectionLost(context_->reader->errstr);
}

ValkeyReply ValkeyConnection::receive(std::span<const RemotePiece> target, std::size_t text_bytes) {
  flush();
  replies_.begin(target);
  for (const RemotePiece& piece : target) text_bytes += piece.bytes;
  const std::size_t waiting_bytes_max = std::max(text_bytes, ValkeyReplyMaker::text_bytes_max) + protocol_bytes_max;
  for (;;) {
    void* object = nullptr;
    redisReader& reader = *context_->reader;
    if (redisReaderGetReply(&reader, &object) != REDIS_OK) throw ConnectionLost(reader.errstr);
    if (object) return replies_.take();
    // A text waits here until it is whole.
    if (reader.len - reader.pos > waiting_bytes_max) throw ConnectionLost("a reply is longer than it can be");
    read_some();
  }
}

ValkeyReply ValkeyConnection::call(Words words) {
  send(words);
  return receive();
}

}  // namespace stateport::tiers
