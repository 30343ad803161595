// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/file_tier.hpp>

#include <stateport/core/model/error.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>
#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stateport {
namespace {

using namespace test;

struct Fixture {
  TemporaryFolder folder;
  std::vector<ImageLayout> layouts = small_layouts();
  FileTierOptions options{.folder = folder.images(), .capacity_bytes = 64 * page, .queue_bytes = 32 * page};

  [[nodiscard]] FileTier open() const { return FileTier(options, layouts); }
  [[nodiscard]] FileTier open(FileCalls& calls) const { return make_file_tier(options, layouts, calls); }
  /// Argument and rule of the error that opening throws.
  [[nodiscard]] std::string refusal() const {
    try {
      const FileTier tier = open();
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return "";
  }
};

/// Stops a call of the tier until it is let go on.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  bool open_ = false;
};

/// One write waits at the gate before its data are durable.
class SlowWrite final : public FileCalls {
 public:
  int synchronize_data(int file) override {
    if (is_next_slow.exchange(false)) gate.pass();
    return FileCalls::synchronize_data(file);
  }
  Gate gate;
  std::atomic<bool> is_next_slow = false;
};

/// A test that fails does not leave a call waiting, for which its tier waits at the end.
class OpenAtEnd {
 public:
  explicit OpenAtEnd(Gate& gate) : gate_(gate) {}
  OpenAtEnd(const OpenAtEnd&) = delete;
  OpenAtEnd& operator=(const OpenAtEnd&) = delete;
  ~OpenAtEnd() { gate_.open(); }

 private:
  Gate& gate_;
};

TEST_CASE("images are written and read, at any alignment") {
  const Fixture fixture;
  FileTier tier = fixture.open();
  CHECK(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);
  CHECK(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2), state_key(2)}) == TransferStatus::done);
  CHECK(names(fixture.folder.images(), ".img").size() == 2);
  CHECK(names(fixture.folder.images(), ".tmp").empty());
  for (const std::size_t misalignment : {0u, 1u, 512u, 4095u})
    for (const ImageKey& key : {state_key(1), kv_key(1), kv_key(2), state_key(2)})
      CHECK(read_image(tier, fixture.layouts, key, misalignment) == TransferStatus::done);

  const AlignedBytes misaligned = image_of(fixture.layouts, state_key(3), 24);
  const FileImage image{state_key(3), misaligned.data()};
  REQUIRE(tier.write(7, {&image, 1}));
  const Completion answer = answer_of(tier);
  CHECK(answer.ticket == 7);
  CHECK(answer.status == TransferStatus::done);
  CHECK(answer.bytes == state_bytes);
  CHECK(read_image(tier, fixture.layouts, state_key(3)) == TransferStatus::done);
  tier.check_invariants();
}

TEST_CASE("what was said is for the owner of the folder alone, unless the folder lets others in") {
  const auto permissions = [](const std::string& path) {
    return static_cast<unsigned>(std::filesystem::status(path).permissions());
  };
  const auto mask = ::umask(0);
  for (const unsigned folder_permissions : {0U, 0700U, 0750U, 0777U}) {
    CAPTURE(folder_permissions);
    const Fixture fixture;
    const std::string folder = fixture.folder.images();
    if (folder_permissions != 0) {
      std::filesystem::create_directory(folder);
      std::filesystem::permissions(folder, static_cast<std::filesystem::perms>(folder_permissions));
    }
    FileTier tier = fixture.open();
    CHECK(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);
    const unsigned expected = folder_permissions == 0 ? 0700U : folder_permissions;
    CHECK(permissions(folder) == expected);
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      CHECK(permissions(entry.path()) == (expected & 0666U));
      ++files;
    }
    CHECK(files == 3);  // marker, lock, images
  }
  ::umask(mask);
}

TEST_CASE("images larger than a transfer are written and read, between small ones, at any alignment") {
  const TemporaryFolder folder;
  // 5 MiB and a bit in three sections, the second over two transfers.
  const StateSpec spec(
      {{.shape = {100000, 1, 1}}, {.layer = 1, .shape = {1000, 1000, 1}}, {.layer = 2, .shape = {200000, 1, 1}}});
  std::vector<ImageLayout> layouts = small_layouts();
  layouts[0] = ImageLayout(spec, {.model = ModelId(1)});
  FileTier tier({.folder = folder.images(), .capacity_bytes = 64 << 20}, layouts);
  const std::array keys = {kv_key(1), state_key(1), kv_key(2), kv_key(3), state_key(2)};
  for (const std::size_t misalignment : {0u, 8u}) {
    std::vector<AlignedBytes> memory;
    std::vector<FileImage> images;
    for (const ImageKey& key : keys) {
      memory.push_back(image_of(layouts, key, misalignment));
      images.push_back({key, memory.back().data()});
    }
    REQUIRE(tier.write(1, images));
    CHECK(answer_of(tier).status == TransferStatus::done);
    for (const ImageKey& key : keys) CHECK(read_image(tier, layouts, key, misalignment) == TransferStatus::done);
    for (const ImageKey& key : keys) CHECK(tier.remove(key));
  }
  tier.wait_idle();
  CHECK(names(folder.images(), ".img").empty());
}

TEST_CASE("a tier finds the images of one before, and what it reports is what it has") {
  const Fixture fixture;
  {
    FileTier tier = fixture.open();
    CHECK(tier.findings().images == 0);
    REQUIRE(write_images(tier, fixture.layouts, {kv_key(2), kv_key(1), state_key(2)}) == TransferStatus::done);
    REQUIRE(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);
  }
  FileTier tier = fixture.open();
  CHECK(tier.findings().images == 4);
  CHECK(tier.findings().foreign_files == 0);
  CHECK(tier.keys() == std::vector{kv_key(1), state_key(1), kv_key(2), state_key(2)});
  CHECK(tier.statistics().held_bytes == 2 * kv_bytes + 2 * state_bytes);
  for (const ImageKey& key : tier.keys()) CHECK(read_image(tier, fixture.layouts, key) == TransferStatus::done);

  const std::array wanted = {state_key(1), state_key(9), kv_key(2)};
  std::array<bool, 3> held = {};
  CHECK(tier.lookup(wanted, held) == 2);
  CHECK(held == std::array{true, false, true});
  CHECK(read_image(tier, fixture.layouts, state_key(9)) == TransferStatus::gone);
  const FileTierStatistics statistics = tier.statistics();
  CHECK(statistics.images == 4);
  CHECK(statistics.read_images == 4);
  CHECK(statistics.read_bytes == 2 * kv_bytes + 2 * state_bytes);
  CHECK(statistics.read_answers[static_cast<std::size_t>(TransferStatus::gone)] == 1);
  CHECK(statistics.read_answers[static_cast<std::size_t>(TransferStatus::done)] == 4);
}

TEST_CASE("a removed image's bytes are given back by a hole, and the file goes with its last image") {
  const Fixture fixture;
  {
    FileTier tier = fixture.open();
    REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2), state_key(2)}) == TransferStatus::done);
    const std::filesystem::path file =
        std::filesystem::path(fixture.folder.images()) / names(fixture.folder.images(), ".img")[0];
    CHECK(tier.remove(kv_key(2)));
    CHECK_FALSE(tier.remove(kv_key(2)));
    CHECK(tier.statistics().held_bytes == kv_bytes + page + state_bytes);  // the header stays
    tier.wait_idle();
    CHECK(read_image(tier, fixture.layouts, kv_key(2)) == TransferStatus::gone);
    CHECK(read_image(tier, fixture.layouts, kv_key(1)) == TransferStatus::done);
    CHECK(read_image(tier, fixture.layouts, state_key(2)) == TransferStatus::done);
    tier.check_invariants();
  }
  FileTier tier = fixture.open();
  CHECK(tier.keys() == std::vector{kv_key(1), state_key(2)});
  CHECK(tier.statistics().held_bytes == kv_bytes + page + state_bytes);
  CHECK(tier.remove(kv_key(1)));
  CHECK(tier.remove(state_key(2)));
  CHECK(tier.statistics().held_bytes == 0);
  tier.wait_idle();
  CHECK(names(fixture.folder.images(), ".img").empty());
  tier.check_invariants();
}

TEST_CASE("what does not fit is refused and counted") {
  Fixture fixture;
  fixture.options.capacity_bytes = 2 * state_bytes + page;
  FileTier tier = fixture.open();
  CHECK(write_images(tier, fixture.layouts, {state_key(1), state_key(2), state_key(3)}) == TransferStatus::no_room);
  CHECK(write_images(tier, fixture.layouts, {state_key(1), state_key(2)}) == TransferStatus::done);
  CHECK(write_images(tier, fixture.layouts, {kv_key(3)}) == TransferStatus::no_room);
  CHECK(tier.statistics().refused_writes == 2);
  // What is dropped makes room at once.
  CHECK(tier.remove(state_key(1)));
  CHECK(write_images(tier, fixture.layouts, {kv_key(3)}) == TransferStatus::done);
  CHECK(tier.statistics().held_bytes == state_bytes + page + kv_bytes);
  tier.check_invariants();
}

TEST_CASE("the queues are bounded, and no call waits for the file system") {
  Fixture fixture;
  fixture.options.queue_bytes = 2 * state_bytes;
  fixture.options.lanes = 1;
  Gate gate;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  const OpenAtEnd open_gate(gate);
  REQUIRE(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);

  calls.set([&](Call call) { return call == Call::synchronize_data ? (gate.pass(), 0) : 0; });
  const AlignedBytes a = image_of(fixture.layouts, state_key(2));
  const AlignedBytes b = image_of(fixture.layouts, state_key(3));
  const FileImage first{state_key(2), a.data()};
  const FileImage second{state_key(3), b.data()};
  REQUIRE(tier.write(1, {&first, 1}));
  gate.wait_until_reached();
  CHECK(tier.write(2, {&second, 1}));
  CHECK_FALSE(tier.write(3, {&second, 1}));
  const AlignedBytes room(state_bytes);
  CHECK(tier.read(4, state_key(1), room.bytes()));
  CHECK(tier.read(5, state_key(1), room.bytes()));
  CHECK_FALSE(tier.read(6, state_key(1), room.bytes()));
  CHECK(tier.read(7, state_key(9), room.bytes()));  // not held: needs no queue
  std::array<Completion, 8> answers;
  REQUIRE(tier.poll(answers) == 1);
  CHECK(answers[0].ticket == 7);
  CHECK(answers[0].status == TransferStatus::gone);
  std::array<bool, 1> held = {};
  CHECK(tier.lookup({&first.key, 1}, held) == 0);  // not before it is durable
  const FileTierStatistics statistics = tier.statistics();
  CHECK(statistics.write_queue_bytes == 2 * state_bytes);
  CHECK(statistics.read_queue_bytes == 2 * state_bytes);
  CHECK(statistics.refused_writes == 1);
  CHECK(statistics.refused_reads == 1);
  gate.open();
  tier.wait_idle();
  REQUIRE(tier.poll(std::span(answers).first(3)) == 3);
  REQUIRE(tier.poll(std::span(answers).subspan(3)) == 1);
  CHECK(answers[0].ticket == 1);
  CHECK(answers[1].ticket == 4);  // requests wait for reads
  CHECK(answers[2].ticket == 5);
  CHECK(answers[3].ticket == 2);
  CHECK(tier.poll(answers) == 0);
  CHECK(tier.lookup({&first.key, 1}, held) == 1);
  tier.check_invariants();
}

TEST_CASE("room that was promised to one write is not given to another") {
  Fixture fixture;
  fixture.options.capacity_bytes = 2 * state_bytes;
  Gate gate;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  const OpenAtEnd open_gate(gate);
  calls.set([&](Call call) { return call == Call::allocate ? (gate.pass(), 0) : 0; });
  const AlignedBytes memory = image_of(fixture.layouts, state_key(1));
  const std::array images = {FileImage{state_key(1), memory.data()}, FileImage{state_key(2), memory.data()},
                             FileImage{kv_key(3), memory.data()}};
  CHECK(tier.write(1, std::span(images).subspan(0, 1)));
  CHECK(tier.write(2, std::span(images).subspan(1, 1)));
  CHECK_FALSE(tier.write(3, std::span(images).subspan(2, 1)));
  gate.open();
  tier.wait_idle();
  CHECK(tier.statistics().held_bytes == 2 * state_bytes);
  tier.check_invariants();
}

TEST_CASE("a write leaves the floor of free space") {
  Fixture fixture;
  class Disk : public ScriptedCalls {
   public:
    std::int64_t free_bytes(int) override { return free; }
    std::int64_t free = 0;
  } disk;
  fixture.options.free_floor_bytes = 1000;
  FileTier tier = fixture.open(disk);
  for (const std::int64_t free : {std::int64_t{0}, std::int64_t{999}, std::int64_t{kv_bytes + 999}}) {
    disk.free = free;
    CHECK(write_images(tier, fixture.layouts, {kv_key(1)}) == TransferStatus::no_room);
    CHECK(names(fixture.folder.images(), ".img").empty());
  }
  disk.free = kv_bytes + 1000;
  CHECK(write_images(tier, fixture.layouts, {kv_key(1)}) == TransferStatus::done);
}

TEST_CASE("memory that O_DIRECT does not take is copied, not written or read in another way") {
  class Strict : public ScriptedCalls {
   public:
    ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) override {
      return fits(file, bytes, size) ? ScriptedCalls::write_at(file, bytes, size, offset) : (errno = EIO, -1);
    }
    ssize_t read_at(int file, std::byte* bytes, std::size_t size, off_t offset) override {
      return fits(file, bytes, size) ? ScriptedCalls::read_at(file, bytes, size, offset) : (errno = EIO, -1);
    }

   private:
    [[nodiscard]] static bool fits(int file, const std::byte* bytes, std::size_t size) {
      if ((::fcntl(file, F_GETFL) & O_DIRECT) == 0) return true;
      return reinterpret_cast<std::uintptr_t>(bytes) % page == 0 && size % page == 0;
    }
  } strict;
  const TemporaryFolder folder;
  std::vector<ImageLayout> layouts = small_layouts();
  layouts[0] = ImageLayout(StateSpec::uniform(1, {}, {.shape = {1000, 1000, 1}}), {.model = ModelId(1)});
  FileTier tier = make_file_tier({.folder = folder.images(), .capacity_bytes = 64 << 20}, layouts, strict);
  for (const ImageKey& key : {state_key(1), kv_key(1)}) {
    const AlignedBytes memory = image_of(layouts, key, 24);
    const FileImage image{key, memory.data()};
    REQUIRE(tier.write(1, {&image, 1}));
    CHECK(answer_of(tier).status == TransferStatus::done);
    CHECK(read_image(tier, layouts, key, 24) == TransferStatus::done);
  }
}

TEST_CASE("an image that is held is not written again") {
  const Fixture fixture;
  FileTier tier = fixture.open();
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2)}) == TransferStatus::done);
  CHECK(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2)}) == TransferStatus::done);
  CHECK(names(fixture.folder.images(), ".img").size() == 1);
  // One that is new takes the others with it, and their file goes.
  CHECK(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2), kv_key(3)}) == TransferStatus::done);
  tier.wait_idle();
  CHECK(names(fixture.folder.images(), ".img").size() == 1);
  CHECK(tier.statistics().held_bytes == 3 * kv_bytes);
  CHECK(tier.statistics().written_images == 5);
  // Twice in one request: the first is a hole.
  CHECK(write_images(tier, fixture.layouts, {kv_key(4), kv_key(4)}) == TransferStatus::done);
  CHECK(tier.statistics().held_bytes == 4 * kv_bytes + page);
  CHECK(read_image(tier, fixture.layouts, kv_key(4)) == TransferStatus::done);
  tier.check_invariants();
}

TEST_CASE("an image that is found damaged while it is written with others is there when they are") {
  Fixture fixture;
  fixture.options.lanes = 2;
  SlowWrite calls;
  FileTier tier = fixture.open(calls);
  const OpenAtEnd open_gate(calls.gate);
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1)}) == TransferStatus::done);
  const std::string file = names(fixture.folder.images(), ".img").at(0);
  flip_bit(std::filesystem::path(fixture.folder.images()) / file,
           8 * layout_of(fixture.layouts, kv_key(1)).section_offset(0));
  calls.is_next_slow = true;
  const AlignedBytes memory = image_of(fixture.layouts, kv_key(1));
  const AlignedBytes more = image_of(fixture.layouts, kv_key(2));
  const std::array images = {FileImage{kv_key(1), memory.data()}, FileImage{kv_key(2), more.data()}};
  REQUIRE(tier.write(1, images));
  calls.gate.wait_until_reached();
  const AlignedBytes read(kv_bytes);
  REQUIRE(tier.read(2, kv_key(1), read.bytes()));
  std::array<Completion, 1> answers;
  while (tier.poll(answers) == 0) std::this_thread::yield();
  CHECK(answers[0].ticket == 2);
  CHECK(answers[0].status == TransferStatus::damaged);
  CHECK(tier.keys().empty());
  calls.gate.open();
  CHECK(answer_of(tier).status == TransferStatus::done);
  CHECK(tier.keys() == std::vector{kv_key(1), kv_key(2)});
  CHECK(read_image(tier, fixture.layouts, kv_key(1)) == TransferStatus::done);
  tier.wait_idle();
  CHECK(names(fixture.folder.images(), ".img").size() == 1);
  tier.check_invariants();
}

TEST_CASE("an image that is removed and written again is there, whichever of the writes ends first") {
  Fixture fixture;
  fixture.options.lanes = 2;
  SlowWrite calls;
  calls.is_next_slow = true;
  std::optional<FileTier> tier = fixture.open(calls);
  const OpenAtEnd open_gate(calls.gate);
  const AlignedBytes memory = image_of(fixture.layouts, kv_key(1));
  const AlignedBytes more = image_of(fixture.layouts, kv_key(2));
  const std::array images = {FileImage{kv_key(1), memory.data()}, FileImage{kv_key(2), more.data()}};
  REQUIRE(tier->write(1, images));
  calls.gate.wait_until_reached();
  CHECK(tier->remove(kv_key(1)));
  REQUIRE(tier->write(2, std::span(images).first(1)));
  std::array<Completion, 1> answers;
  while (tier->poll(answers) == 0) std::this_thread::yield();
  CHECK(answers[0].ticket == 2);
  CHECK(tier->keys() == std::vector{kv_key(1)});
  calls.gate.open();
  CHECK(answer_of(*tier).ticket == 1);
  CHECK(tier->keys() == std::vector{kv_key(1), kv_key(2)});
  tier->wait_idle();
  tier->check_invariants();
  tier.reset();
  tier.emplace(fixture.open());
  CHECK(tier->keys() == std::vector{kv_key(1), kv_key(2)});
  CHECK(read_image(*tier, fixture.layouts, kv_key(1)) == TransferStatus::done);
  CHECK(read_image(*tier, fixture.layouts, kv_key(2)) == TransferStatus::done);
}

TEST_CASE("an image that is removed while it is written or read is removed after that") {
  Fixture fixture;
  fixture.options.lanes = 1;
  Gate write_gate;
  Gate read_gate;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  const OpenAtEnd open_write_gate(write_gate);
  const OpenAtEnd open_read_gate(read_gate);
  calls.set([&](Call call) { return call == Call::synchronize_data ? (write_gate.pass(), 0) : 0; });
  const AlignedBytes memory = image_of(fixture.layouts, kv_key(1));
  const AlignedBytes more = image_of(fixture.layouts, kv_key(2));
  const std::array images = {FileImage{kv_key(1), memory.data()}, FileImage{kv_key(2), more.data()}};
  REQUIRE(tier.write(1, images));
  write_gate.wait_until_reached();
  CHECK(tier.remove(kv_key(1)));
  CHECK_FALSE(tier.remove(kv_key(1)));
  write_gate.open();
  CHECK(answer_of(tier).status == TransferStatus::done);
  CHECK(tier.keys() == std::vector{kv_key(2)});

  calls.set([&](Call call) { return call == Call::read_at ? (read_gate.pass(), 0) : 0; });
  const AlignedBytes first(kv_bytes);
  const AlignedBytes second(kv_bytes);
  REQUIRE(tier.read(2, kv_key(2), first.bytes()));
  REQUIRE(tier.read(3, kv_key(2), second.bytes()));
  read_gate.wait_until_reached();
  CHECK(tier.remove(kv_key(2)));
  CHECK(tier.statistics().held_bytes == 0);
  CHECK(names(fixture.folder.images(), ".img").size() == 1);
  tier.check_invariants();
  read_gate.open();
  tier.wait_idle();
  std::array<Completion, 3> answers;
  REQUIRE(tier.poll(answers) == 2);
  CHECK(answers[0].status == TransferStatus::done);
  CHECK(answers[1].status == TransferStatus::done);
  CHECK(is_image_of(fixture.layouts, kv_key(2), second.bytes()));
  CHECK(names(fixture.folder.images(), ".img").empty());
  tier.check_invariants();
}

TEST_CASE("a file that is read stays until it is read, whatever the other lanes do") {
  const Fixture fixture;
  class SlowReads : public FileCalls {
   public:
    ssize_t read_at(int file, std::byte* bytes, std::size_t size, off_t offset) override {
      gate.pass();
      return FileCalls::read_at(file, bytes, size, offset);
    }
    Gate gate;
  } calls;
  FileTier tier = fixture.open(calls);
  const OpenAtEnd open_gate(calls.gate);
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1)}) == TransferStatus::done);
  const AlignedBytes image(kv_bytes);
  REQUIRE(tier.read(1, kv_key(1), image.bytes()));
  calls.gate.wait_until_reached();
  CHECK(tier.remove(kv_key(1)));
  // Removals come before writes: had this one been carried out, the file would be gone when the write is answered.
  const AlignedBytes memory = image_of(fixture.layouts, kv_key(2));
  const FileImage other{kv_key(2), memory.data()};
  REQUIRE(tier.write(2, {&other, 1}));
  Completion answer;
  while (tier.poll({&answer, 1}) == 0) std::this_thread::yield();
  CHECK(answer.ticket == 2);
  CHECK(names(fixture.folder.images(), ".img").size() == 2);
  calls.gate.open();
  CHECK(answer_of(tier).status == TransferStatus::done);
  CHECK(is_image_of(fixture.layouts, kv_key(1), image.bytes()));
  CHECK(names(fixture.folder.images(), ".img").size() == 1);
  tier.check_invariants();
}

TEST_CASE("a write is answered after data, name and folder are synchronised, in this order") {
  const Fixture fixture;
  std::vector<Call> made;
  ScriptedCalls calls([&made](Call call) {
    made.push_back(call);
    return 0;
  });
  FileTier tier = fixture.open(calls);
  made.clear();
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), state_key(1)}) == TransferStatus::done);
  std::erase(made, Call::free_bytes);
  CHECK(made == std::vector{Call::open, Call::allocate, Call::write_at, Call::synchronize_data, Call::rename,
                            Call::synchronize_folder});
}

TEST_CASE("a write that fails at any call leaves nothing, and the next one succeeds") {
  const Fixture fixture;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  const std::array keys = {kv_key(1), state_key(1)};
  for (const Call failing :
       {Call::open, Call::allocate, Call::write_at, Call::synchronize_data, Call::rename, Call::synchronize_folder})
    for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
      CAPTURE(static_cast<int>(failing));
      CAPTURE(error);
      calls.set([=](Call call) { return call == failing ? error : 0; });
      const bool full = error == ENOSPC || error == EDQUOT;
      CHECK(write_images(tier, fixture.layouts, keys) == (full ? TransferStatus::no_room : TransferStatus::failed));
      CHECK(names(fixture.folder.images(), ".img").empty());
      CHECK(names(fixture.folder.images(), ".tmp").empty());
      CHECK(tier.statistics().held_bytes == 0);
      CHECK(tier.keys().empty());
      tier.check_invariants();
    }
  calls.set({});
  CHECK(write_images(tier, fixture.layouts, keys) == TransferStatus::done);
  CHECK(read_image(tier, fixture.layouts, state_key(1)) == TransferStatus::done);
}

TEST_CASE("file systems without O_DIRECT, room in advance, holes or known free space are used all the same") {
  const Fixture fixture;
  const auto life = [&fixture](FileCalls& calls) {
    {
      FileTier tier = fixture.open(calls);
      CHECK(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2), state_key(2)}) == TransferStatus::done);
      CHECK(read_image(tier, fixture.layouts, state_key(2)) == TransferStatus::done);
      CHECK(tier.remove(kv_key(1)));
      CHECK(tier.remove(kv_key(2)));
      tier.wait_idle();
      tier.check_invariants();
      CHECK(read_image(tier, fixture.layouts, state_key(2)) == TransferStatus::done);
      CHECK(tier.remove(state_key(2)));
    }
    CHECK(names(fixture.folder.images(), ".img").empty());
  };
  class Refusing : public ScriptedCalls {
   public:
    int open(int folder, const char* name, int flags) override {
      if ((flags & O_DIRECT) != 0) return errno = EINVAL, -1;
      return ScriptedCalls::open(folder, name, flags);
    }
  } no_direct;
  life(no_direct);
  // Some accept O_DIRECT when a file is opened and refuse it when bytes are moved.
  for (const Call moved : {Call::write_at, Call::read_at}) {
    int refusals = 0;
    ScriptedCalls late_refusal([&](Call call) { return call == moved && refusals++ == 0 ? EINVAL : 0; });
    life(late_refusal);
    CHECK(refusals > 1);
  }
  ScriptedCalls no_room_in_advance([](Call call) { return call == Call::allocate ? EOPNOTSUPP : 0; });
  life(no_room_in_advance);
  ScriptedCalls no_holes([](Call call) { return call == Call::punch_hole ? EOPNOTSUPP : 0; });
  life(no_holes);
  ScriptedCalls unknown_space([](Call call) { return call == Call::free_bytes ? ENOSYS : 0; });
  life(unknown_space);
}

TEST_CASE("transfers that a signal interrupts, and those that move a part of the bytes, go on") {
  class Halting : public ScriptedCalls {
   public:
    ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) override {
      return halts() ? -1 : ScriptedCalls::write_at(file, bytes, part(size), offset);
    }
    ssize_t read_at(int file, std::byte* bytes, std::size_t size, off_t offset) override {
      return halts() ? -1 : ScriptedCalls::read_at(file, bytes, part(size), offset);
    }

   private:
    /// Every other call, of whatever lane.
    bool halts() {
      errno = EINTR;
      return calls_++ % 2 == 0;
    }
    /// As much as O_DIRECT takes.
    static std::size_t part(std::size_t size) { return std::min(size, ImageLayout::alignment_bytes); }
    std::atomic<int> calls_ = 0;
  } halting;
  const Fixture fixture;
  FileTier tier = fixture.open(halting);
  CHECK(write_images(tier, fixture.layouts, {state_key(1), kv_key(1), state_key(2)}) == TransferStatus::done);
  for (const ImageKey& key : {state_key(1), kv_key(1), state_key(2)})
    CHECK(read_image(tier, fixture.layouts, key) == TransferStatus::done);
  tier.check_invariants();
}

TEST_CASE("removals survive a crash of the machine once the tier was waited for") {
  const Fixture fixture;
  std::vector<Call> made;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2)}) == TransferStatus::done);
  REQUIRE(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);
  int error = EIO;
  Call failing = Call::synchronize_data;
  calls.set([&](Call call) {
    made.push_back(call);
    return call == failing ? error : 0;
  });
  tier.wait_idle();
  CHECK(made.empty());  // nothing was removed
  CHECK(tier.remove(kv_key(1)));
  CHECK(tier.remove(state_key(1)));
  for (const Call call : {Call::synchronize_data, Call::synchronize_folder, Call::open}) {
    error = call == Call::open ? EMFILE : EIO;
    failing = call;
    CHECK_THROWS_AS(tier.wait_idle(), BackendError);
  }
  error = 0;
  made.clear();
  tier.wait_idle();
  CHECK(made == std::vector{Call::synchronize_folder, Call::open, Call::synchronize_data});
  made.clear();
  tier.wait_idle();
  CHECK(made.empty());
  CHECK(tier.remove(kv_key(2)));  // with its file
  tier.wait_idle();
  CHECK(made == std::vector{Call::unlink, Call::synchronize_folder});
  // Another process removes a file that is to get a hole.
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(3), kv_key(4)}) == TransferStatus::done);
  for (const std::string& name : names(fixture.folder.images(), ".img"))
    std::filesystem::remove(std::filesystem::path(fixture.folder.images()) / name);
  CHECK(tier.remove(kv_key(3)));
  tier.wait_idle();
  tier.check_invariants();
}

TEST_CASE("whoever waits for a tier waits for removals that another caller synchronises") {
  const Fixture fixture;
  ScriptedCalls calls;
  FileTier tier = fixture.open(calls);
  REQUIRE(write_images(tier, fixture.layouts, {state_key(1)}) == TransferStatus::done);
  std::future<void> other;
  std::future_status early = std::future_status::deferred;
  calls.set([&](Call call) {
    if (call != Call::synchronize_folder || other.valid()) return 0;
    other = std::async(std::launch::async, [&] { tier.wait_idle(); });
    early = other.wait_for(std::chrono::milliseconds(100));
    return 0;
  });
  CHECK(tier.remove(state_key(1)));
  tier.wait_idle();
  REQUIRE(other.valid());
  other.get();
  CHECK(early == std::future_status::timeout);
}

TEST_CASE("without holes a file's bytes count until its last image goes") {
  const Fixture fixture;
  ScriptedCalls calls([](Call call) { return call == Call::punch_hole ? EOPNOTSUPP : 0; });
  FileTier tier = fixture.open(calls);
  REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2)}) == TransferStatus::done);
  CHECK(tier.remove(kv_key(1)));
  CHECK(tier.statistics().held_bytes == 2 * kv_bytes);
  tier.check_invariants();
  CHECK(tier.remove(kv_key(2)));
  CHECK(tier.statistics().held_bytes == 0);
  tier.wait_idle();
  tier.check_invariants();
}

TEST_CASE("destroying a tier abandons writes without a trace and carries out removals") {
  Fixture fixture;
  fixture.options.lanes = 1;
  {
    Gate gate;
    ScriptedCalls calls;
    FileTier tier = fixture.open(calls);
    const OpenAtEnd open_gate(gate);
    REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), kv_key(2)}) == TransferStatus::done);
    REQUIRE(write_images(tier, fixture.layouts, {kv_key(3)}) == TransferStatus::done);
    calls.set([&](Call call) { return call == Call::allocate ? (gate.pass(), 0) : 0; });
    const AlignedBytes memory = image_of(fixture.layouts, state_key(1));
    const FileImage image{state_key(1), memory.data()};
    const FileImage other{state_key(2), memory.data()};
    const AlignedBytes room(kv_bytes);
    REQUIRE(tier.write(1, {&image, 1}));
    gate.wait_until_reached();
    REQUIRE(tier.write(2, {&other, 1}));
    REQUIRE(tier.read(3, kv_key(3), room.bytes()));
    CHECK(tier.remove(kv_key(1)));
    CHECK(tier.remove(kv_key(3)));  // has a reader, which will not come
    std::thread opener([&] { gate.open(); });
    FileTier(std::move(tier));
    opener.join();
  }
  CHECK(names(fixture.folder.images(), ".tmp").empty());
  CHECK(names(fixture.folder.images(), ".lock").empty());
  FileTier tier = fixture.open();
  std::vector<ImageKey> keys = tier.keys();
  for (const ImageKey& key : keys) CHECK(read_image(tier, fixture.layouts, key) == TransferStatus::done);
  // What was accepted may have come to its end before the tier was destroyed.
  std::erase(keys, state_key(1));
  std::erase(keys, state_key(2));
  CHECK(keys == std::vector{kv_key(2)});
}

TEST_CASE("images of another model, layout or version are counted and left alone") {
  Fixture fixture;
  {
    FileTier tier = fixture.open();
    REQUIRE(write_images(tier, fixture.layouts, {kv_key(1), state_key(1)}) == TransferStatus::done);
  }
  {
    Fixture other;
    FileTier tier(fixture.options, small_layouts(2));
    CHECK(tier.findings().foreign_images == 2);
    CHECK(tier.findings().images == 0);
    CHECK(tier.statistics().held_bytes == 0);
    REQUIRE(write_images(tier, small_layouts(2), {state_key(1)}) == TransferStatus::done);
    CHECK(read_image(tier, small_layouts(2), state_key(1)) == TransferStatus::done);
    CHECK(tier.remove(state_key(1)));
  }
  {
    // A tier for states alone finds the state of a file and leaves its KV.
    FileTier states(fixture.options, {fixture.layouts[0]});
    CHECK(states.findings().foreign_images == 1);
    CHECK(states.keys() == std::vector{state_key(1)});
    CHECK(states.remove(state_key(1)));
    states.wait_idle();
    states.check_invariants();
  }
  FileTier tier = fixture.open();
  CHECK(tier.keys() == std::vector{kv_key(1)});
  CHECK(read_image(tier, fixture.layouts, kv_key(1)) == TransferStatus::done);
}

TEST_CASE("other files are reported and left alone") {
  const Fixture fixture;
  { const FileTier tier = fixture.open(); }
  const std::filesystem::path folder = fixture.folder.images();
  for (const char* name : {"README", "0123456789abcdef-1.img.bak", "0123456789abcdef-x.img", "0123456789abcde-1.tmp"})
    std::ofstream(folder / name) << "not ours";
  std::filesystem::create_directory(folder / "folder");
  const FileTier tier = fixture.open();
  CHECK(tier.findings().foreign_files == 5);
  CHECK(names(folder).size() == 5 + 2);  // marker and lock
}

TEST_CASE("a folder that is not ours is refused by name, and left as it is") {
  Fixture fixture;
  const std::filesystem::path folder = fixture.folder.images();
  fixture.options.folder = (folder / "deeper").string();
  CHECK(fixture.refusal() == "folder");  // the folder above is missing
  fixture.options.folder = "";
  CHECK(fixture.refusal() == "folder");
  fixture.options.folder = folder.string() + std::string("\0cut", 4);
  CHECK(fixture.refusal() == "folder");
  CHECK_FALSE(std::filesystem::exists(folder));
  fixture.options.folder = folder.string();
  std::ofstream(folder) << "a file";
  CHECK(fixture.refusal() == "folder");
  std::filesystem::remove(folder);

  std::filesystem::create_directory(folder);
  std::ofstream(folder / "thesis.tex") << "not ours";
  CHECK(fixture.refusal() == "folder");
  CHECK(names(folder) == std::vector<std::string>{"thesis.tex"});
  std::filesystem::remove(folder / "thesis.tex");

  std::ofstream(folder / "stateport-images-2") << "";
  CHECK(fixture.refusal() == "folder");
  CHECK(names(folder) == std::vector<std::string>{"stateport-images-2"});
  std::filesystem::remove(folder / "stateport-images-2");
  CHECK(fixture.refusal() == "");
}

TEST_CASE("wrong options and arguments are refused by name") {
  Fixture fixture;
  const auto refusal = [&fixture](auto&& change) {
    FileTierOptions options = fixture.options;
    std::vector<ImageLayout> layouts = fixture.layouts;
    change(options, layouts);
    try {
      const FileTier tier(options, layouts);
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return std::string();
  };
  CHECK(refusal([](auto& options, auto&) { options.capacity_bytes = state_bytes - 1; }) == "capacity_bytes");
  CHECK(refusal([](auto& options, auto&) { options.queue_bytes = state_bytes - 1; }) == "queue_bytes");
  CHECK(refusal([](auto& options, auto&) { options.lanes = 0; }) == "lanes");
  CHECK(refusal([](auto& options, auto&) { options.lanes = 65; }) == "lanes");
  CHECK(refusal([](auto&, auto& layouts) { layouts.clear(); }) == "layouts.size()");
  CHECK(refusal([](auto&, auto& layouts) { layouts.push_back(layouts[0]); }) == "layouts");
  CHECK_FALSE(std::filesystem::exists(fixture.options.folder));

  FileTier tier = fixture.open();
  const AlignedBytes memory = image_of(fixture.layouts, state_key(1));
  FileImage image{state_key(1), nullptr};
  CHECK_THROWS_AS(static_cast<void>(tier.write(1, {})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(tier.write(1, {&image, 1})), InvalidArgument);
  image = {state_key(1), memory.data()};
  image.key.group = 1;
  CHECK_THROWS_AS(static_cast<void>(tier.write(1, {&image, 1})), InvalidArgument);
  image.key = state_key(1);
  image.key.tokens = -1;
  CHECK_THROWS_AS(static_cast<void>(tier.write(1, {&image, 1})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(tier.read(1, state_key(1), memory.bytes().first(page))), InvalidArgument);
  std::array<bool, 2> held = {};
  CHECK_THROWS_AS(tier.lookup({&image.key, 1}, held), InvalidArgument);
  CHECK(tier.poll({}) == 0);
  tier.check_invariants();
}

}  // namespace
}  // namespace stateport
