// SPDX-License-Identifier: Apache-2.0
// Options of the remote stores: a URL of Valkey, and structs with any text and number.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/mooncake_store.hpp>
#include <stateport/tiers/valkey_options.hpp>

#include "byte_source.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace stateport::tiers {
void validate(const MooncakeStoreOptions& options);
}

using namespace stateport;

namespace {

/// The secret alone contains the mark. A fuzzer learns every text with which its input is compared, so it could copy a
/// secret without a mark.
constexpr char mark = '~';
constexpr std::string_view secret = "\1hunter~2\1";

std::string without_mark(std::string text) {
  std::ranges::replace(text, mark, '-');
  return text;
}

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

/// A client can use every valid option.
void check_valid(const ValkeyStoreOptions& options) {
  fuzz::expect(options.port >= 1 && options.port <= 65535 && options.database >= 0, "numbers of a client");
  fuzz::expect(options.host.find('\0') == std::string::npos, "text of a client");
  fuzz::expect(!options.prefix.empty() && options.lanes >= 1 && options.piece_bytes >= 1, "a prefix, lanes, pieces");
  for (const double seconds : {options.connect_timeout_s, options.silence_timeout_s, options.lifetime_s})
    fuzz::expect(seconds >= 0 && seconds <= 1e9, "times");
}

void read_url(const std::string& url) {
  ValkeyStoreOptions options;
  try {
    options = parse_valkey_url(url);
  } catch (const InvalidArgument& problem) {
    fuzz::expect(std::string_view(problem.what()).starts_with("url = (not shown)"), "a URL may hold a secret");
    return;
  }
  options.host = without_mark(options.host);
  options.user = without_mark(options.user);
  if (!options.password.empty()) options.password = secret;
  if (!refused([&] { tiers::validate(options); })) check_valid(options);
}

/// Options that are fine, but for some.
void read_structs(fuzz::ByteSource& source) {
  ValkeyStoreOptions valkey;
  MooncakeStoreOptions mooncake;
  const auto text = [&] { return without_mark(source.take_text(source.below(70))); };
  for (std::uint32_t changes = source.below(4); changes > 0; --changes) {
    switch (source.below(16)) {
      case 0:
        valkey.host = text();
        break;
      case 1:
        valkey.unix_socket = text();
        break;
      case 2:
        valkey.port = source.take<int>();
        break;
      case 3:
        valkey.user = text();
        break;
      case 4:
        valkey.password = secret;
        break;
      case 5:
        valkey.prefix = text();
        break;
      case 6:
        valkey.database = source.take<int>();
        break;
      case 7:
        valkey.connect_timeout_s = source.take<double>();
        break;
      case 8:
        valkey.silence_timeout_s = source.take<double>();
        break;
      case 9:
        valkey.lifetime_s = source.take<double>();
        break;
      case 10:
        valkey.lanes = source.take<std::int32_t>();
        break;
      case 11:
        valkey.piece_bytes = source.take<std::uint64_t>();
        break;
      case 12:
        valkey.tls = ValkeyTls{.ca_file = text(), .certificate_file = text(), .key_file = text()};
        break;
      case 13:
        mooncake.local_hostname = text();
        break;
      case 14:
        mooncake.replicas = source.take<std::uint64_t>();
        break;
      default:
        mooncake.lanes = source.take<std::int32_t>();
    }
  }
  if (!refused([&] { tiers::validate(valkey); })) check_valid(valkey);
  if (refused([&] { tiers::validate(mooncake); })) return;
  fuzz::expect(!mooncake.local_hostname.empty() && mooncake.replicas >= 1 && mooncake.lanes >= 1,
               "a client of Mooncake");
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
