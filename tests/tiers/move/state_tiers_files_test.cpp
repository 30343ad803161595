// SPDX-License-Identifier: Apache-2.0
// StateTiers with files of a real folder.
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "file/file_images.hpp"
#include "random.hpp"
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <vector>

using namespace stateport;
using test::copy_down;
using test::drop_from;
using test::kv_image;
using test::load_from;
using test::Random;
using test::state_image;
using test::store_to;

namespace {

constexpr std::int32_t blocks = 40;

/// One group of states and KV, with host memory for six states, and files.
struct FilesWorld {
  explicit FilesWorld(const std::string& folder, std::uint64_t model = 1,
                      std::uint64_t capacity_bytes = std::uint64_t{1} << 26, std::size_t transfers_max = 4096)
      : tiers(memory, {.states = {&states.store()},
                       .kv = &kv.store(),
                       .model = ModelId(model),
                       .host_budget_bytes = 6 * frame_bytes,
                       .files = FileTierOptions{.folder = folder, .capacity_bytes = capacity_bytes},
                       .staging_bytes = 1,
                       .file_transfers_max = transfers_max}) {}

  /// The answers of all that is under way.
  std::vector<TransferResult> wait() {
    std::vector<TransferResult> all, some(7);
    while (tiers.in_flight() > 0) {
      const std::size_t count = tiers.poll(stream, some);
      all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
      std::this_thread::yield();
    }
    stream.synchronize();
    tiers.check_invariants();
    return all;
  }
  TransferStatus run(const Transfer& transfer) {
    tiers.execute(stream, {&transfer, 1});
    const std::vector<TransferResult> results = wait();
    REQUIRE(results.size() == 1);
    return results[0].status;
  }

  static constexpr std::size_t frame_bytes = 5 * 4096;
  PinnedResource memory;
  Stream stream = Stream::default_stream();
  test::DeviceStates states{StateSpec::uniform(2, {.window = 3, .dim = 40}, {.shape = {2, 4, 8}}), 6};
  test::DeviceStates kv{StateSpec({{.shape = {16, 2, 8}}}), blocks};
  StateTiers tiers;
};

}  // namespace

TEST_CASE("what was copied to files is there after a restart, bit for bit") {
  const test::TemporaryFolder folder;
  std::vector<ImageKey> keys;
  {
    FilesWorld world(folder.images());
    std::vector<Transfer> stores;
    for (std::int32_t slot = 0; slot < 4; ++slot) {
      const ImageKey key = state_image(static_cast<std::uint64_t>(slot));
      world.states.fill(slot, key);
      stores.push_back(store_to(slot < 2 ? Medium::host : Medium::file, stores.size() + 1, key, slot));
      if (slot >= 2) CHECK(world.run(stores.back()) == TransferStatus::done);
    }
    stores.resize(2);
    world.tiers.execute(world.stream, stores);
    CHECK(world.wait().size() == 2);
    for (const Transfer& store : stores) CHECK(world.run(copy_down(9, store.image)) == TransferStatus::done);
    CHECK(world.tiers.files()->keys().size() == 4);
    CHECK(world.tiers.host().usage().images == 2);
  }
  FilesWorld world(folder.images());
  CHECK(world.tiers.host().usage().images == 0);
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    const ImageKey key = state_image(static_cast<std::uint64_t>(slot));
    CHECK(world.run(load_from(Medium::host, 1, key, 5)) == TransferStatus::gone);
    CHECK(world.run(load_from(Medium::file, 2, key, slot)) == TransferStatus::done);
    CHECK(world.states.holds(slot, key));
  }
  const TransferId got = world.tiers.get(world.stream, state_image(1), SlotId{4});
  CHECK(world.wait() == std::vector<TransferResult>{{got, TransferStatus::done}});
  CHECK(world.states.holds(4, state_image(1)));
}

TEST_CASE("images without a cache are put, found, got and removed in both tiers") {
  const test::TemporaryFolder folder;
  FilesWorld world(folder.images());
  std::vector<SlotImage> low, high;
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    const SlotImage image{state_image(static_cast<std::uint64_t>(slot)), SlotId{slot}};
    world.states.fill(slot, image.key);
    (slot < 2 ? high : low).push_back(image);
  }
  world.kv.fill(7, kv_image(7));
  low.push_back({kv_image(7), SlotId{7}});
  const TransferId first_high = world.tiers.put(world.stream, high);
  CHECK(first_high == StateTiers::first_own_id);
  std::set<TransferId> answered;
  // There is staging memory for one image.
  for (std::size_t i = 0; i < low.size(); ++i) {
    const TransferId first_low = world.tiers.put(world.stream, std::span(low).subspan(i, 1), Medium::file);
    CHECK(first_low == first_high + 2 + i);
    for (const TransferResult& result : world.wait()) {
      CHECK(result.status == TransferStatus::done);
      answered.insert(result.id);
    }
  }
  CHECK(answered == std::set<TransferId>{first_high, first_high + 1, first_high + 2, first_high + 3, first_high + 4});

  const std::vector<ImageKey> keys = {state_image(0), state_image(9), state_image(2), kv_image(7)};
  std::vector<std::optional<Medium>> where(keys.size(), Medium::remote);
  CHECK(world.tiers.lookup(keys, where) == 3);
  CHECK(where == std::vector<std::optional<Medium>>{Medium::host, std::nullopt, Medium::file, Medium::file});
  world.states.fill(4, state_image(8));
  const std::vector<SlotImage> wanted = {{state_image(0), SlotId{5}}, {state_image(2), SlotId{4}}};
  const TransferId first_got = world.tiers.get(world.stream, wanted);
  const TransferId block = world.tiers.get(world.stream, kv_image(7), SlotId{30});
  CHECK(block == first_got + 2);
  const std::vector<TransferResult> got = world.wait();
  CHECK(got.size() == 3);
  for (const TransferResult& result : got) CHECK(result.status == TransferStatus::done);
  CHECK(world.states.holds(5, state_image(0)));
  CHECK(world.states.holds(4, state_image(2)));
  CHECK(world.kv.holds(30, kv_image(7)));

  // One of them lies in both tiers, and leaves both.
  CHECK(world.run(copy_down(9, state_image(0))) == TransferStatus::done);
  world.tiers.remove(world.stream, keys);
  CHECK(world.wait().empty());
  CHECK(world.tiers.lookup(keys, where) == 0);
  CHECK(where == std::vector<std::optional<Medium>>(keys.size()));
  CHECK(world.tiers.host().keys() == std::vector<ImageKey>{state_image(1)});
  CHECK(world.tiers.files()->keys() == std::vector<ImageKey>{state_image(3)});

  CHECK_THROWS_WITH_AS(static_cast<void>(world.tiers.put(world.stream, high, Medium::device)),
                       doctest::Contains("to = 0"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(world.tiers.put(world.stream, high, Medium::remote)),
                       doctest::Contains("to = 3"), InvalidArgument);
  where.pop_back();
  CHECK_THROWS_WITH_AS(world.tiers.lookup(keys, where), doctest::Contains("where = 3"), InvalidArgument);
  const ImageKey stranger = state_image(1, 1);
  where.resize(1);
  CHECK_THROWS_WITH_AS(world.tiers.lookup({&stranger, 1}, where), doctest::Contains("group"), InvalidArgument);
  CHECK_THROWS_WITH_AS(world.tiers.remove(world.stream, {&stranger, 1}), doctest::Contains("group"), InvalidArgument);
  // A refused put takes no numbers.
  CHECK(world.tiers.put(world.stream, state_image(1), SlotId{1}) == block + 1);
  world.wait();
}

TEST_CASE("drain copies all that host memory holds, and only that") {
  const test::TemporaryFolder folder;
  {
    FilesWorld world(folder.images());
    std::vector<Transfer> stores;
    for (std::int32_t block = 0; block < 8; ++block) {
      world.kv.fill(block, kv_image(static_cast<std::uint64_t>(block)));
      stores.push_back(store_to(Medium::host, stores.size() + 1, kv_image(static_cast<std::uint64_t>(block)), block));
    }
    world.states.fill(0, state_image(1));
    stores.push_back(store_to(Medium::host, 9, state_image(1), 0));
    world.tiers.execute(world.stream, stores);
    std::vector<TransferResult> results(100);
    int calls = 0;
    while (world.tiers.drain(world.stream) > 0) {
      static_cast<void>(world.tiers.poll(world.stream, results));
      std::this_thread::yield();
      ++calls;
    }
    CHECK(calls > 0);
    CHECK(world.tiers.files()->keys().size() == 9);
    CHECK(world.tiers.files()->statistics().written_images == 9);
    CHECK(world.tiers.drain(world.stream) == 0);
    world.wait();
  }
  FilesWorld world(folder.images());
  for (std::int32_t block = 0; block < 8; ++block) {
    const ImageKey key = kv_image(static_cast<std::uint64_t>(block));
    CHECK(world.run(load_from(Medium::file, 1, key, block + 20)) == TransferStatus::done);
    CHECK(world.kv.holds(block + 20, key));
  }
}

TEST_CASE("drain begins no copy while more loads than its bound are under way") {
  const test::TemporaryFolder folder;
  FilesWorld world(folder.images(), 1, std::uint64_t{1} << 26, 2);
  world.states.fill(0, state_image(1));
  CHECK(world.run(store_to(Medium::file, 1, state_image(1), 0)) == TransferStatus::done);
  for (std::uint64_t prefix = 2; prefix <= 5; ++prefix)
    CHECK(world.run(store_to(Medium::host, prefix, state_image(prefix), 0)) == TransferStatus::done);
  CHECK(world.tiers.drain(world.stream) == 4);  // two are under way, and two left
  const std::vector<Transfer> loads{load_from(Medium::file, 6, state_image(1), 1),
                                    load_from(Medium::file, 7, state_image(1), 2),
                                    load_from(Medium::file, 8, state_image(1), 3)};
  world.tiers.execute(world.stream, loads);
  CHECK(world.tiers.drain(world.stream) == 7);
  for (const TransferResult& result : world.wait()) CHECK(result.status == TransferStatus::done);
  while (world.tiers.drain(world.stream) > 0) world.wait();
  CHECK(world.tiers.files()->keys().size() == 5);
}

TEST_CASE("a folder of another model gives clean misses, and a full one no room") {
  const test::TemporaryFolder folder;
  const ImageKey a = state_image(1), b = state_image(2);
  {
    FilesWorld world(folder.images(), 1, 5 * 4096);
    world.states.fill(0, a);
    CHECK(world.run(store_to(Medium::file, 1, a, 0)) == TransferStatus::done);
    CHECK(world.run(store_to(Medium::file, 2, b, 0)) == TransferStatus::no_room);
    CHECK(world.run(load_from(Medium::file, 3, a, 1)) == TransferStatus::done);
    CHECK(world.states.holds(1, a));
  }
  FilesWorld other(folder.images(), 2);
  CHECK(other.tiers.files()->keys().empty());
  CHECK(other.run(load_from(Medium::file, 1, a, 0)) == TransferStatus::gone);
}

TEST_CASE("a byte of a file that changed is found before anything is loaded") {
  const test::TemporaryFolder folder;
  FilesWorld world(folder.images());
  const ImageKey a = state_image(1);
  world.states.fill(0, a);
  CHECK(world.run(store_to(Medium::file, 1, a, 0)) == TransferStatus::done);
  std::size_t flipped = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.images())) {
    if (entry.file_size() < 5 * 4096) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(4096 + 17);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(4096 + 17);
    file.put(byte);
    ++flipped;
  }
  REQUIRE(flipped == 1);
  world.states.fill(1, state_image(2));
  CHECK(world.run(load_from(Medium::file, 2, a, 1)) == TransferStatus::damaged);
  CHECK(world.states.holds(1, state_image(2)));
}

TEST_CASE("files need staging memory and a folder, and transfers with files a file tier") {
  const test::TemporaryFolder folder;
  FilesWorld world(folder.images());
  PinnedResource memory;
  StateTiersOptions options{.states = {&world.states.store()}, .host_budget_bytes = 10 * FilesWorld::frame_bytes};
  StateTiers plain(memory, options);
  CHECK(plain.files() == nullptr);
  CHECK_THROWS_AS(static_cast<void>(plain.drain(world.stream)), InvalidState);
  const Transfer store = store_to(Medium::file, 1, state_image(1), 0);
  CHECK_THROWS_WITH_AS(plain.execute(world.stream, {&store, 1}), doctest::Contains("to = 2"), InvalidArgument);
  options.files = FileTierOptions{.folder = folder.images() + "/none/there", .capacity_bytes = 1 << 20};
  CHECK_THROWS_AS(StateTiers(memory, options), InvalidArgument);
  options.files->folder = (folder.path() / "other").string();
  options.staging_bytes = 0;
  CHECK_THROWS_WITH_AS(StateTiers(memory, options), doctest::Contains("staging_bytes = 0"), InvalidArgument);
  options.staging_bytes = 1;
  options.file_transfers_max = 0;
  CHECK_THROWS_WITH_AS(StateTiers(memory, options), doctest::Contains("file_transfers_max = 0"), InvalidArgument);
}

TEST_CASE("random transfers with a real folder load what their keys say, restarts included") {
  test::for_each_seed(5, [](Random& random, std::uint64_t) {
    const test::TemporaryFolder folder;
    std::set<std::uint64_t> in_file;
    for (int run = 0; run < 2; ++run) {
      FilesWorld world(folder.images());
      REQUIRE(world.tiers.files()->keys().size() == in_file.size());
      for (int step = 0; step < 20; ++step) {
        const auto prefix = static_cast<std::uint64_t>(random.between(1, 12));
        const ImageKey key = kv_image(prefix);
        const std::int32_t from = random.between32(0, blocks / 2 - 1), to = random.between32(blocks / 2, blocks - 1);
        world.kv.fill(from, key);
        const std::int64_t choice = random.between(0, 2);
        if (choice == 0) {
          REQUIRE(world.run(store_to(Medium::file, 1, key, from)) == TransferStatus::done);
          in_file.insert(prefix);
        } else if (choice == 1) {
          const std::vector<Transfer> plan{store_to(Medium::host, 1, key, from), copy_down(2, key),
                                           drop_from(Medium::host, key)};
          world.tiers.execute(world.stream, plan);
          const auto results = world.wait();
          REQUIRE(std::ranges::count(results, TransferResult{2, TransferStatus::done}) == 1);
          in_file.insert(prefix);
        } else if (random.chance(50)) {
          const Transfer drop = drop_from(Medium::file, key);
          world.tiers.execute(world.stream, {&drop, 1});
          in_file.erase(prefix);
        }
        const ImageKey wanted = kv_image(static_cast<std::uint64_t>(random.between(1, 12)));
        const bool held = in_file.contains(wanted.prefix.words[0]);
        REQUIRE(world.run(load_from(Medium::file, 3, wanted, to)) ==
                (held ? TransferStatus::done : TransferStatus::gone));
        if (held) REQUIRE(world.kv.holds(to, wanted));
      }
    }
  });
}
