// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/valkey_store.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace stateport {
namespace {

TEST_CASE("a URL names server, user, password and database") {
  const ValkeyStoreOptions plain = parse_valkey_url("valkey://store.test");
  CHECK(plain.host == "store.test");
  CHECK(plain.port == 6379);
  CHECK(plain.user.empty());
  CHECK(plain.password.empty());
  CHECK_FALSE(plain.tls.has_value());
  const ValkeyStoreOptions all = parse_valkey_url("rediss://engine:p%40ss%3a%2F@[::1]:7000/5");
  CHECK(all.host == "::1");
  CHECK(all.port == 7000);
  CHECK(all.user == "engine");
  CHECK(all.password == "p@ss:/");
  CHECK(all.database == 5);
  CHECK(all.tls.has_value());
  const ValkeyStoreOptions password = parse_valkey_url("redis://:secret@10.0.0.1:1/");
  CHECK(password.host == "10.0.0.1");
  CHECK(password.user.empty());
  CHECK(password.password == "secret");
  CHECK(parse_valkey_url("valkeys://a:b@c@host").password == "b@c");
}

TEST_CASE("a URL that is refused is not shown: it may hold a password") {
  for (const char* url :
       {"", "hunter2", "valkey:hunter2", "http://:hunter2@host", "valkey://hunter2@host", "valkey://:hunter2@",
        "valkey://:hunter2@:1", "valkey://:hunter2@host:", "valkey://:hunter2@host:1x",
        "valkey://:hunter2@host:99999999999", "valkey://:hunter2@host/x", "valkey://:hunter2@host/1/2",
        "valkey://:hunter2%@host", "valkey://:hunter2%4@host", "valkey://:hunter2%4x@host", "valkey://:hunter2@[::1",
        "valkey://:hunter2@[::1]1", "valkey://:hunter2@[]"}) {
    CAPTURE(url);
    try {
      static_cast<void>(parse_valkey_url(url));
      FAIL("not refused");
    } catch (const InvalidArgument& refusal) {
      CHECK(refusal.argument() == "url");
      CHECK(std::string(refusal.what()).find("hunter2") == std::string::npos);
    }
  }
}

TEST_CASE("options that are none are refused by their name, and no text shows the password") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double inf = std::numeric_limits<double>::infinity();
  using Change = std::function<void(ValkeyStoreOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"host", [](auto& options) { options.host.clear(); }},
      {"host", [](auto& options) { options.host = std::string("a\0b", 3); }},
      {"unix_socket", [](auto& options) { options.unix_socket = std::string("a\0b", 3); }},
      {"port", [](auto& options) { options.port = 0; }},
      {"port", [](auto& options) { options.port = 65536; }},
      {"database", [](auto& options) { options.database = -1; }},
      {"connect_timeout_s", [](auto& options) { options.connect_timeout_s = 0; }},
      {"connect_timeout_s", [=](auto& options) { options.connect_timeout_s = nan; }},
      {"silence_timeout_s", [](auto& options) { options.silence_timeout_s = -1; }},
      {"silence_timeout_s", [=](auto& options) { options.silence_timeout_s = inf; }},
      {"lifetime_s", [](auto& options) { options.lifetime_s = -1; }},
      {"lifetime_s", [=](auto& options) { options.lifetime_s = nan; }},
      {"lifetime_s", [](auto& options) { options.lifetime_s = 1e-4; }},
      {"lifetime_s", [=](auto& options) { options.lifetime_s = inf; }},
      {"lanes", [](auto& options) { options.lanes = 0; }},
      {"lanes", [](auto& options) { options.lanes = 65; }},
      {"piece_bytes", [](auto& options) { options.piece_bytes = 1023; }},
      {"piece_bytes", [](auto& options) { options.piece_bytes = (std::size_t{64} << 20) + 1; }},
      {"prefix.size()", [](auto& options) { options.prefix.clear(); }},
      {"prefix.size()", [](auto& options) { options.prefix = std::string(65, 'p'); }},
      {"prefix", [](auto& options) { options.prefix = "a b"; }},
      {"key_file", [](auto& options) { options.tls = ValkeyTls{.certificate_file = "cert"}; }},
      {"key_file", [](auto& options) { options.tls = ValkeyTls{.key_file = "key"}; }},
      {"ca_file", [](auto& options) { options.tls = ValkeyTls{.ca_file = std::string("a\0b", 3)}; }},
  };
  for (const auto& [argument, change] : changes) {
    CAPTURE(argument);
    ValkeyStoreOptions options{.user = "engine", .password = "hunter2"};
    change(options);
    try {
      const ValkeyStore store(options);
      FAIL("not refused");
    } catch (const InvalidArgument& refusal) {
      CHECK(refusal.argument() == argument);
      CHECK(std::string(refusal.what()).find("hunter2") == std::string::npos);
    }
  }
  CHECK_THROWS_AS(ValkeyStore({.user = "engine"}), InvalidArgument);
  CHECK_NOTHROW(tiers::validate({.unix_socket = "/socket"}));
}

TEST_CASE("a build without hiredis says so") {
  if (ValkeyStore::is_built()) return;
  CHECK_FALSE(ValkeyStore::has_tls());
  CHECK_THROWS_AS(ValkeyStore({}), InvalidState);
}

}  // namespace
}  // namespace stateport
