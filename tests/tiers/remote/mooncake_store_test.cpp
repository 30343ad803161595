// SPDX-License-Identifier: Apache-2.0
// MooncakeStore over a client that pretends.
#include <stateport/tiers/mooncake_store.hpp>

#include <stateport/core/model/error.hpp>

#include "mooncake/pretended_mooncake.hpp"
#include "random.hpp"
#include "remote_store_conformance.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;

MakeStore clients(std::int32_t lanes) {
  return [lanes](const RemoteQueueLimits& limits) -> std::unique_ptr<RemoteStore> {
    return std::make_unique<MooncakeStore>(MooncakeStoreOptions{.lanes = lanes, .limits = limits});
  };
}

TEST_CASE("a Mooncake store conforms, and moves registered memory alone") {
  conforms(clients(2));
  CHECK(unregistered_moves() == 0);
}

TEST_CASE("a Mooncake store behaves like a map") {
  for_each_seed(100, [](Random& random, std::uint64_t) {
    behaves_like_a_map(clients(random.between32(1, 3)), random, 40);
    CHECK(registered_buffers() == 0);
  });
  CHECK(unregistered_moves() == 0);
}

TEST_CASE("a lane of a Mooncake store without memory answers") {
  MooncakeStore store({.lanes = 1});
  std::vector<std::byte> memory(10);
  set_faults({.memory = true});
  CHECK(put(store, "a", memory) == TransferStatus::done);
  set_faults({});
  for (int i = 0; i < 3; ++i) {
    CHECK(exists(store, "a") == TransferStatus::failed);
    CHECK(put(store, "b", memory) == TransferStatus::failed);
    CHECK(get(store, "a", memory).status == TransferStatus::failed);
  }
  CHECK(remove(store, "a") == TransferStatus::done);  // of one key, which needs none
}

TEST_CASE("codes of Mooncake become answers") {
  MooncakeStore store({});
  std::vector<std::byte> memory(10);
  for (const auto& [code, status] : std::vector<std::pair<int, TransferStatus>>{{-705, TransferStatus::done},
                                                                                {-200, TransferStatus::no_room},
                                                                                {-1700, TransferStatus::no_room},
                                                                                {-800, TransferStatus::failed},
                                                                                {7, TransferStatus::failed}}) {
    set_faults({.put = code});
    CHECK(put(store, "a", memory) == status);
  }
  for (const auto& [code, status] : std::vector<std::pair<int, TransferStatus>>{{-704, TransferStatus::gone},
                                                                                {-703, TransferStatus::gone},
                                                                                {-710, TransferStatus::gone},
                                                                                {-712, TransferStatus::gone},
                                                                                {-801, TransferStatus::damaged},
                                                                                {-600, TransferStatus::failed},
                                                                                {-707, TransferStatus::failed},
                                                                                {11, TransferStatus::failed}}) {
    set_faults({.get = code});
    CHECK(get(store, "a", memory).status == status);
  }
  set_faults({.calls = true});
  CHECK(put(store, "a", memory) == TransferStatus::failed);
  CHECK(get(store, "a", memory).status == TransferStatus::failed);
  CHECK(exists(store, "a") == TransferStatus::failed);
  CHECK(remove(store, "a") == TransferStatus::failed);
  set_faults({});
}

TEST_CASE("a client that registers nothing fails what it must") {
  MooncakeStore store({});
  std::vector<std::byte> memory(30);
  store.register_memory(memory);
  set_faults({.registration = true});
  CHECK_THROWS_AS(store.unregister_memory(memory), BackendError);
  std::vector<std::byte> other(10);
  CHECK_THROWS_AS(store.register_memory(other), BackendError);
  // Pieces that lie apart need memory of the store, which is not registered now.
  const std::vector<RemotePiece> pieces = {{memory.data() + 20, 10}, {memory.data(), 10}};
  const RemoteObject object{1, "apart", pieces};
  REQUIRE(store.put_from({&object, 1}));
  CHECK(answers_of(store, 1).front().status == TransferStatus::failed);
  set_faults({});
  REQUIRE(store.put_from({&object, 1}));
  CHECK(answers_of(store, 1).front().status == TransferStatus::done);
  store.unregister_memory(memory);
  CHECK(remove(store, "apart") == TransferStatus::done);
}

TEST_CASE("options that are none, and a master that is away, are refused") {
  using Change = std::function<void(MooncakeStoreOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"local_hostname", [](auto& options) { options.local_hostname.clear(); }},
      {"metadata_server", [](auto& options) { options.metadata_server.clear(); }},
      {"master", [](auto& options) { options.master = std::string("a\0", 2); }},
      {"protocol", [](auto& options) { options.protocol.clear(); }},
      {"devices", [](auto& options) { options.devices = std::string("\0", 1); }},
      {"replicas", [](auto& options) { options.replicas = 0; }},
      {"lanes", [](auto& options) { options.lanes = 0; }},
      {"lanes", [](auto& options) { options.lanes = 65; }},
      {"queue_bytes", [](auto& options) { options.limits.queue_bytes = 0; }},
  };
  for (const auto& [argument, change] : changes) {
    MooncakeStoreOptions options;
    change(options);
    try {
      const MooncakeStore store(options);
      FAIL("not refused: " << argument);
    } catch (const InvalidArgument& refusal) {
      CHECK(refusal.argument() == argument);
    }
  }
  set_faults({.setup = -900});
  CHECK_THROWS_AS(MooncakeStore({}), BackendError);
  set_faults({});
}

}  // namespace
}  // namespace stateport
