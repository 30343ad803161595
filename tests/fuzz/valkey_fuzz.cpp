// SPDX-License-Identifier: Apache-2.0
// A store's conversation with a Valkey server that answers anything. Byte 0 chooses the call, bytes 1 and 2 how many
// bytes come at a time; the rest is the server's reply. A marker in it stands for a manifest with a right checksum.
#include <stateport/tiers/valkey_options.hpp>

#include "byte_source.hpp"
#include "fuzz_memory.hpp"
#include "remote/valkey/valkey_connection.hpp"
#include "remote/valkey/valkey_manifest.hpp"
#include "remote/valkey/valkey_objects.hpp"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <hiredis/sds.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

using namespace stateport;
using namespace stateport::tiers;

namespace {

constexpr std::string_view key = "a";
/// Of the read buffer of a connection.
constexpr std::size_t buffer_bytes = std::size_t{256} << 10;

/// The server's reply: the bytes that were sent, and those still to come.
struct Server {
  std::string text;
  std::size_t at = 0;
  std::size_t chunk = 1;
} server;

ssize_t say(redisContext*, char* bytes, std::size_t room) {
  const std::size_t count = std::min({server.text.size() - server.at, room, server.chunk});
  if (count == 0) return -1;
  server.text.copy(bytes, count, server.at);
  server.at += count;
  return static_cast<ssize_t>(count);
}
ssize_t hear(redisContext* context) {
  return static_cast<ssize_t>(sdslen(context->obuf));
}
void close_nothing(redisContext*) {}

/// `{object bytes, piece bytes}` of 4 bytes each behind a marker become a manifest that no server would notice.
std::string with_manifests(std::string text) {
  static constexpr std::string_view marker = "@M";
  constexpr std::size_t sizes = 8;
  for (std::size_t at = 0; (at = text.find(marker, at)) != std::string::npos;) {
    const std::string given = text.substr(at + marker.size(), sizes);
    fuzz::ByteSource source(reinterpret_cast<const std::uint8_t*>(given.data()), given.size());
    const ValkeyManifest manifest{
        .object_bytes = source.take<std::uint32_t>(), .piece_bytes = source.take<std::uint32_t>(), .number = {1, 2}};
    const std::string bytes = "$56\r\n" + encode_manifest(manifest, key) + "\r\n";
    text.replace(at, marker.size() + given.size(), bytes);
    at += bytes.size();
  }
  return text;
}

/// Calls one operation of the store and checks the rules that hold for any answer.
void ask(std::uint8_t choice, ValkeyObjects& objects) {
  std::array<std::byte, 300> memory = {};
  const std::array pieces = {RemotePiece{memory.data(), 100}, RemotePiece{memory.data() + 150, 100}};
  const std::array asked = {RemoteObject{.key = key}, RemoteObject{.key = "b"}};
  switch (choice % 4) {
    case 0: {
      const ValkeyOutcome outcome = objects.get(key, pieces, 200);
      fuzz::expect(outcome.status != TransferStatus::done || outcome.bytes <= 200, "an object that fits");
      break;
    }
    case 1:
      static_cast<void>(objects.put(key, pieces, 200));
      break;
    case 2:
      fuzz::expect(objects.exist(asked).size() == asked.size(), "an answer for each question");
      break;
    default:
      static_cast<void>(objects.remove(key));
  }
  for (std::size_t i = 0; i < memory.size(); ++i)
    fuzz::expect(i < 100 || (i >= 150 && i < 250) || memory[i] == std::byte{0}, "nothing is written beside the pieces");
}

}  // namespace

// In place of hiredis' own, by the linker's option --wrap: a context over the text of the server.
extern "C" redisContext* __real_redisConnectWithOptions(const redisOptions* options);
extern "C" redisContext* __wrap_redisConnectWithOptions(const redisOptions*) {
  static redisContextFuncs functions = [] {
    redisContextFuncs result = {};
    result.close = close_nothing;
    result.read = say;
    result.write = hear;
    return result;
  }();
  static const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  redisOptions wanted = {};
  wanted.type = REDIS_CONN_USERFD;
  wanted.endpoint.fd = nothing;
  redisContext* context = __real_redisConnectWithOptions(&wanted);
  if (context) context->funcs = &functions;
  return context;
}
extern "C" int __wrap_redisEnableKeepAlive(redisContext*) {
  return REDIS_OK;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::keep_buffer_of(buffer_bytes);
  fuzz::ByteSource source(data, size);
  const std::uint8_t choice = source.take();
  const std::size_t chunk = source.take<std::uint16_t>();
  const std::string said = with_manifests(source.rest());
  static_cast<void>(parse_manifest(said, key));
  server = {.text = (choice >= 128 ? "+OK\r\n" : "+OK\r\n+OK\r\n") + said, .at = 0, .chunk = chunk + 1};
  ValkeyStoreOptions options{.password = choice >= 128 ? "" : "secret", .lanes = 1, .piece_bytes = 1024};
  if (choice % 8 >= 4) options.lifetime_s = 10;
  ConnectionGate gate;
  try {
    ValkeyConnection connection(options, nullptr, gate);
    ValkeyObjects objects(options, connection);
    while (server.at < server.text.size()) ask(choice, objects);
  } catch (const ConnectionLost&) {
    // The text ended, or broke the protocol.
  }
  return 0;
}
