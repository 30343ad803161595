// SPDX-License-Identifier: Apache-2.0
// Options of the remote stores: a URL of Valkey, and structs with any text and number.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/mooncake_store.hpp>
#include <stateport/tiers/valkey_options.hpp>

#include "byte_source.hpp"

#include <string>
#include <string_view>

namespace stateport::tiers {
void validate(const MooncakeStoreOptions& options);
}

using namespace stateport;

namespace {

constexpr std::string_view secret = "\1hunter2\1";

/// Whether `call` was refused, with a text that does not show the secret.
template <class Call>
bool refused(Call&& call) {
  try {
    call();
    return false;
  } catch (const InvalidArgument& problem) {
    fuzz::expect(std::string_view(problem.what()).find(secret) == std::string_view::npos, "no text shows a secret");
    return true;
  }
}

/// What passed is what a client can use.
void check_valid(const ValkeyStoreOptions& options) {
  fuzz::expect(options.port >= 1 && options.port <= 65535 && options.database >= 0, "numbers of a client");
  fuzz::expect(options.host.find('\0') == std::string::npos, "text of a client");
  fuzz::expect(!options.prefix.empty() && options.lanes >= 1, "a prefix and lanes");
}

void read_url(const std::string& url) {
  ValkeyStoreOptions options;
  try {
    options = parse_valkey_url(url);
  } catch (const InvalidArgument& problem) {
    fuzz::expect(std::string_view(problem.what()).starts_with("url = (not shown)"), "a URL may hold a secret");
    return;
  }
  if (!options.password.empty()) options.password = secret;
  if (!refused([&] { tiers::validate(options); })) check_valid(options);
}

void read_structs(fuzz::ByteSource& source) {
  ValkeyStoreOptions valkey;
  valkey.host = source.take_text(source.below(20));
  valkey.unix_socket = source.take_text(source.below(4));
  valkey.port = source.take<int>();
  valkey.user = source.take_text(source.below(4));
  if (source.chance(128)) valkey.password = secret;
  valkey.prefix = source.take_text(source.below(70));
  valkey.database = source.take<int>();
  valkey.connect_timeout_s = source.take<double>();
  valkey.silence_timeout_s = source.take<double>();
  valkey.lifetime_s = source.take<double>();
  valkey.lanes = source.take<std::int32_t>();
  valkey.piece_bytes = source.take<std::uint64_t>();
  if (!refused([&] { tiers::validate(valkey); })) check_valid(valkey);
  MooncakeStoreOptions mooncake;
  mooncake.local_hostname = source.take_text(source.below(4));
  mooncake.devices = source.take_text(source.below(4));
  mooncake.replicas = source.take<std::uint64_t>();
  mooncake.lanes = source.take<std::int32_t>();
  static_cast<void>(refused([&] { tiers::validate(mooncake); }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::ByteSource source(data, size);
  if (source.take() % 2 == 0) {
    read_url(source.rest());
  } else {
    read_structs(source);
  }
  return 0;
}
