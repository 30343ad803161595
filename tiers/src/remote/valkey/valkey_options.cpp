// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/valkey_options.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace stateport {
namespace {

constexpr std::size_t piece_bytes_min = 1024;
constexpr std::size_t piece_bytes_max = std::size_t{64} << 20;
constexpr std::size_t prefix_bytes_max = 64;
constexpr std::int32_t lanes_max = 64;
constexpr double seconds_max = 1e9;
constexpr int port_max = 65535;

bool is_text(std::string_view text) noexcept {
  return text.find('\0') == std::string_view::npos;
}

void require_url(bool ok, std::string_view rule) {
  require(ok, "url", "(not shown)", rule);
}

std::optional<int> number_of(std::string_view text) noexcept {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string without_escapes(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain.push_back(text[i]);
      continue;
    }
    unsigned value = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    require_url(digits.size() == 2 && error == std::errc{} && end == digits.data() + 2, "has an escape that is none");
    plain.push_back(static_cast<char>(value));
    i += 2;
  }
  return plain;
}

void read_address(std::string_view address, ValkeyStoreOptions& options) {
  std::string_view port;
  if (address.starts_with('[')) {
    const std::size_t end = address.find(']');
    require_url(end != std::string_view::npos, "has a bracket that is not closed");
    options.host = address.substr(1, end - 1);
    port = address.substr(end + 1);
  } else {
    const std::size_t colon = std::min(address.find(':'), address.size());
    options.host = address.substr(0, colon);
    port = address.substr(colon);
  }
  require_url(!options.host.empty(), "has no host");
  if (port.empty()) return;
  const std::optional<int> number = port.starts_with(':') ? number_of(port.substr(1)) : std::nullopt;
  require_url(number.has_value(), "has a port that is no number");
  options.port = *number;
}

}  // namespace

ValkeyStoreOptions parse_valkey_url(std::string_view url) {
  const std::size_t scheme_end = url.find("://");
  require_url(scheme_end != std::string_view::npos, "must be valkey://… or redis://…");
  const std::string_view scheme = url.substr(0, scheme_end);
  ValkeyStoreOptions options;
  const bool is_secure = scheme == "valkeys" || scheme == "rediss";
  require_url(is_secure || scheme == "valkey" || scheme == "redis", "must be valkey://… or redis://…");
  if (is_secure) options.tls.emplace();
  std::string_view rest = url.substr(scheme_end + 3);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view address = rest.substr(0, slash);
  if (const std::string_view path = rest.substr(slash); path.size() > 1) {
    const std::optional<int> database = number_of(path.substr(1));
    require_url(database.has_value(), "has a database that is no number");
    options.database = *database;
  }
  if (const std::size_t at = address.rfind('@'); at != std::string_view::npos) {
    const std::string_view who = address.substr(0, at);
    const std::size_t colon = who.find(':');
    require_url(colon != std::string_view::npos, "has a user without a password");
    options.user = without_escapes(who.substr(0, colon));
    options.password = without_escapes(who.substr(colon + 1));
    address.remove_prefix(at + 1);
  }
  read_address(address, options);
  return options;
}

namespace tiers {
namespace {

void require_seconds(std::string_view name, double seconds, bool zero_is_fine) {
  require(seconds <= seconds_max && (zero_is_fine ? seconds >= 0 : seconds >= 1e-3), name, seconds,
          "must be a number of seconds, at least a thousandth");
}

void validate_tls(const ValkeyTls& tls) {
  for (const auto& [name, text] :
       {std::pair("ca_file", &tls.ca_file), std::pair("certificate_file", &tls.certificate_file),
        std::pair("key_file", &tls.key_file), std::pair("server_name", &tls.server_name)})
    require(is_text(*text), name, text->size(), "holds a null character");
  require(tls.certificate_file.empty() == tls.key_file.empty(), "key_file", tls.key_file,
          "a certificate and its key come together");
}

}  // namespace

void validate(const ValkeyStoreOptions& options) {
  require(options.unix_socket.empty() ? !options.host.empty() : true, "host", options.host, "must not be empty");
  require(is_text(options.host), "host", options.host.size(), "holds a null character");
  require(is_text(options.unix_socket), "unix_socket", options.unix_socket.size(), "holds a null character");
  require(options.port >= 1 && options.port <= port_max, "port", options.port, "must lie in [1, 65535]");
  require(options.user.empty() || !options.password.empty(), "user", options.user, "has no password");
  require(options.database >= 0, "database", options.database, "must not be negative");
  require_seconds("connect_timeout_s", options.connect_timeout_s, false);
  require_seconds("silence_timeout_s", options.silence_timeout_s, false);
  require(options.lifetime_s == 0 || options.lifetime_s >= 1e-3, "lifetime_s", options.lifetime_s,
          "must be 0 or at least a thousandth");
  require_seconds("lifetime_s", options.lifetime_s, true);
  require(options.lanes >= 1 && options.lanes <= lanes_max, "lanes", options.lanes, "must lie in [1, 64]");
  require(options.piece_bytes >= piece_bytes_min && options.piece_bytes <= piece_bytes_max, "piece_bytes",
          options.piece_bytes, "must lie between 1 KiB and 64 MiB");
  require(!options.prefix.empty() && options.prefix.size() <= prefix_bytes_max, "prefix.size()", options.prefix.size(),
          "must lie in [1, 64]");
  for (const char letter : options.prefix)
    require(letter >= '!' && letter <= '~', "prefix", static_cast<int>(letter),
            "has a character outside of '!' to '~'");
  if (options.tls) validate_tls(*options.tls);
}

}  // namespace tiers
}  // namespace stateport
