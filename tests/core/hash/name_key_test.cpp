// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/name_key.hpp>

#include "hex.hpp"
#include "tree/namespace_table.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>

using namespace stateport;

TEST_CASE("a name of up to 32 bytes is its own key, a longer one is its SHA-256") {
  static_assert(NameKey("lora-7").text() == "lora-7");
  const std::string longest(32, 'n');
  CHECK(NameKey(longest).text() == longest);
  CHECK(NameKey("").length() == 0);
  const NameKey key(std::string(33, 'n'));
  CHECK(key.length() == 33);
  const std::string_view text = key.text();
  CHECK(test::hex(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())) ==
        "835cfa264c2aa28617784d495c1a60b2d332b5a2c5af2ed77a357beff6a42220");
}

TEST_CASE("names have one key only if they are one name") {
  std::string end(40, 'n');
  end.back() = 'm';
  const std::string digest(NameKey(end).text());
  for (const std::string& other : {std::string(40, 'n'), std::string(41, 'n'), std::string(31, 'n'), digest}) {
    CHECK(NameKey(other) == NameKey(std::string(other)));
    CHECK(NameKey(other) != NameKey(end));
  }
  CHECK(Namespace{.extra_key = ""} != Namespace{});
  CHECK(Namespace{.extra_key = "a"} != Namespace{.salt = "a"});
}

TEST_CASE("namespaces that differ have different seeds") {
  const std::string long_name(40, 'n');
  const std::string digest(NameKey(long_name).text());
  std::set<std::uint64_t> seeds;
  int names = 0;
  for (const Namespace& name_space :
       {Namespace{}, Namespace{.extra_key = ""}, Namespace{.salt = ""}, Namespace{.extra_key = "", .salt = ""},
        Namespace{.extra_key = long_name}, Namespace{.extra_key = digest}, Namespace{.salt = long_name},
        Namespace{.salt = digest}}) {
    ++names;
    seeds.insert(detail::namespace_seed(name_space, 7));
  }
  CHECK(seeds.size() == static_cast<std::size_t>(names));
}

TEST_CASE("a key for two names is that of no name, and knows their order") {
  const NameKey a("a");
  const NameKey b("b");
  const NameKey both = NameKey::both(a, b);
  CHECK(both == NameKey::both(a, b));
  CHECK(both != NameKey::both(b, a));
  CHECK(NameKey::both(both, a) != NameKey::both(a, both));
  // The message of its digest, as a name.
  std::string message(80, '\0');
  message[0] = 1;
  message[8] = 'a';
  message[40] = 1;
  message[48] = 'b';
  const NameKey forged(message);
  CHECK(forged.text() == both.text());
  CHECK(forged != both);
}
