// SPDX-License-Identifier: Apache-2.0
// What only another process can show: it is killed, has other rights, shares a folder.
#include <stateport/tiers/file_tier.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "file_scripts.hpp"
#include "random.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace stateport {
namespace {

using namespace test;

/// A child of this process, and what it says.
class Child {
 public:
  explicit Child(const std::string& arguments)
      : pipe_(::popen(("exec " STATEPORT_FILE_TIER_CHILD " " + arguments).c_str(), "r")) {
    REQUIRE(pipe_ != nullptr);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pipe_) ::pclose(pipe_);
  }
  struct End {
    std::string said;
    bool killed = false;
    int exit_code = -1;
  };
  [[nodiscard]] End wait() {
    End end;
    for (int letter = ::fgetc(pipe_); letter != EOF; letter = ::fgetc(pipe_))
      end.said.push_back(static_cast<char>(letter));
    const int status = ::pclose(std::exchange(pipe_, nullptr));
    end.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return end;
  }

 private:
  FILE* pipe_;
};

Child::End run_child(const std::string& arguments) {
  return Child(arguments).wait();
}

/// Which keys must be held, and which may be, after the script was killed behind so many acknowledged steps.
struct Expected {
  std::vector<ImageKey> must;
  std::vector<ImageKey> may;
};
Expected expected_after(std::size_t acknowledged) {
  Expected expected;
  const std::vector<CrashStep> script = crash_script();
  for (std::size_t i = 0; i < script.size() && i <= acknowledged; ++i) {
    const bool sure = i < acknowledged;
    for (const ImageKey& key : script[i].write) (sure ? expected.must : expected.may).push_back(key);
    for (const ImageKey& key : script[i].remove) {
      std::erase(expected.must, key);
      if (!sure) expected.may.push_back(key);
    }
  }
  return expected;
}

void check_after_crash(const std::string& folder, std::size_t acknowledged) {
  const std::vector<ImageLayout> layouts = small_layouts();
  FileTier tier(crash_options(folder), layouts);
  CHECK(tier.findings().damaged_files == 0);
  CHECK(tier.findings().foreign_files == 0);
  CHECK(tier.findings().unreadable_files == 0);
  CHECK(tier.findings().dropped_temporaries <= 1);
  CHECK(names(folder, ".tmp").empty());
  CHECK(names(folder, ".lock").size() == 1);
  const Expected expected = expected_after(acknowledged);
  const std::vector<ImageKey> keys = tier.keys();
  const auto among = [](const std::vector<ImageKey>& all, const ImageKey& key) {
    return std::ranges::find(all, key) != all.end();
  };
  for (const ImageKey& key : expected.must) CHECK(among(keys, key));
  for (const ImageKey& key : keys) {
    CHECK((among(expected.must, key) || among(expected.may, key)));
    CHECK(read_image(tier, layouts, key) == TransferStatus::done);
  }
  CHECK(write_images(tier, layouts, {state_key(99)}) == TransferStatus::done);
  tier.check_invariants();
}

/// Whether the script has so many steps. Checks what is left when it is killed there.
bool killed_at(int step, const std::string& how) {
  CAPTURE(how);
  CAPTURE(step);
  const TemporaryFolder folder;
  const Child::End end = run_child("kill " + folder.images() + " " + std::to_string(step) + " " + how);
  REQUIRE((end.killed || end.exit_code == 0));
  const auto acknowledged = static_cast<std::size_t>(std::ranges::count(end.said, '\n'));
  CHECK((end.killed || acknowledged == crash_script().size()));
  check_after_crash(folder.images(), acknowledged);
  return end.killed;
}

TEST_CASE("a process killed before any call loses only what was not acknowledged") {
  int steps = 0;
  while (killed_at(steps, "whole")) ++steps;
  MESSAGE("killed before " << steps << " calls");
  CHECK(steps > 30);
  int writes = 0;
  for (int step = 0; step < 2 * steps; ++step) writes += killed_at(step, "half") ? 1 : 0;
  MESSAGE("killed in the middle of " << writes << " writes");
  CHECK(writes >= 8);
}

TEST_CASE("the temporaries of a writer that lives are left alone, and its images found by others") {
  const TemporaryFolder folder;
  const std::vector<ImageLayout> layouts = small_layouts();
  const std::string options = folder.images() + " ";
  bool added = false;
  ScriptedCalls calls([&](Call call) {
    // While this write has only its temporary file, another process opens the folder and writes.
    if (call == Call::rename && !std::exchange(added, true)) {
      CHECK(names(folder.images(), ".tmp").size() == 1);
      CHECK(run_child("add " + options + "2").exit_code == 0);
    }
    return 0;
  });
  FileTier tier = make_file_tier(crash_options(folder.images()), layouts, calls);
  REQUIRE(write_images(tier, layouts, {state_key(1), kv_key(1), kv_key(7)}) == TransferStatus::done);
  REQUIRE(added);
  CHECK(read_image(tier, layouts, state_key(1)) == TransferStatus::done);
  // A tier knows what was there when it opened, and what it wrote.
  CHECK(read_image(tier, layouts, state_key(2)) == TransferStatus::gone);
  FileTier second(crash_options(folder.images()), layouts);
  CHECK(second.findings().images == 4);
  CHECK(read_image(second, layouts, state_key(2)) == TransferStatus::done);

  // What another process removes is gone, whether its file goes or gets a hole.
  REQUIRE(run_child("drop " + options + "1").exit_code == 0);
  CHECK(read_image(second, layouts, state_key(1)) == TransferStatus::gone);
  CHECK(read_image(second, layouts, kv_key(7)) == TransferStatus::done);
  REQUIRE(run_child("drop " + options + "2").exit_code == 0);
  CHECK(read_image(second, layouts, state_key(2)) == TransferStatus::gone);
  CHECK(second.keys() == std::vector{kv_key(1), kv_key(7)});
  CHECK(read_image(second, layouts, kv_key(1)) == TransferStatus::gone);
  second.check_invariants();
}

TEST_CASE("three processes share a folder") {
  for_each_seed(3, [](Random&, std::uint64_t seed) {
    const TemporaryFolder folder;
    Child a("share " + folder.images() + " " + std::to_string(10 * seed));
    Child b("share " + folder.images() + " " + std::to_string(10 * seed + 1));
    CHECK(share_folder(crash_options(folder.images()), 10 * seed + 2));
    CHECK(a.wait().exit_code == 0);
    CHECK(b.wait().exit_code == 0);
    FileTier tier(crash_options(folder.images()), small_layouts());
    CHECK(tier.findings().damaged_files == 0);
    CHECK(names(folder.images(), ".tmp").empty());
    for (const ImageKey& key : tier.keys()) CHECK(read_image(tier, small_layouts(), key) == TransferStatus::done);
  });
}

TEST_CASE("a file that may not grow so large is answered by no room") {
  const TemporaryFolder folder;
  const Child::End end = run_child("limit " + folder.images() + " " + std::to_string(4 * page));
  CHECK(end.exit_code == 0);
  CHECK(end.said == "1 0\n");  // no_room, done
  FileTier tier(crash_options(folder.images()), small_layouts());
  CHECK(tier.keys() == std::vector{kv_key(2)});
}

TEST_CASE("a folder without permission is refused with the reason") {
  if (::getuid() != 0) {
    MESSAGE("skipped: only root can become another user");
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  { const FileTier tier(crash_options(folder.images()), small_layouts()); }
  const auto refusal = [&](mode_t mode) {
    REQUIRE(::chmod(folder.images().c_str(), mode) == 0);
    const Child::End end = run_child("nobody " + folder.images());
    CHECK(end.exit_code == 0);
    return end.said;
  };
  const std::string prefix = "folder = " + folder.images() + " (";
  CHECK(refusal(0700) == prefix + "it cannot be opened: Permission denied)\n");
  CHECK(refusal(0755) == prefix + "it cannot be written: Permission denied)\n");
  CHECK(refusal(0777) == "opened\n");
}

/// A file system of 1 MiB, if this process may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& folder) : folder_(folder) {
    std::filesystem::create_directory(folder);
    mounted_ = ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  void make_read_only() { REQUIRE(::mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") == 0); }

 private:
  std::string folder_;
  bool mounted_ = false;
};

TEST_CASE("a full disk refuses writes and loses nothing, a read-only one is refused") {
  const TemporaryFolder folder;
  SmallDisk disk(folder.images());
  if (!disk.mounted()) {
    MESSAGE("skipped: this process may not mount a file system; see the tests that make calls fail");
    return;
  }
  const std::vector<ImageLayout> layouts = small_layouts();
  FileTierOptions options = crash_options(folder.images());
  options.capacity_bytes = 1 << 30;
  {
    FileTier tier(options, layouts);
    std::uint64_t written = 0;
    while (written < 1000 && write_images(tier, layouts, {state_key(written)}) == TransferStatus::done) ++written;
    CHECK(written > 50);
    CHECK(written < 100);
    CHECK(write_images(tier, layouts, {state_key(written)}) == TransferStatus::no_room);
    CHECK(names(folder.images(), ".tmp").empty());
    CHECK(names(folder.images(), ".img").size() == written);
    CHECK(read_image(tier, layouts, state_key(0)) == TransferStatus::done);
    CHECK(tier.remove(state_key(0)));
    tier.wait_idle();
    CHECK(write_images(tier, layouts, {state_key(written)}) == TransferStatus::done);
    CHECK(write_images(tier, layouts, {kv_key(1), kv_key(2)}) == TransferStatus::no_room);
    tier.check_invariants();
  }
  options.free_floor_bytes = 512 << 10;
  {
    FileTier tier(options, layouts);
    CHECK(write_images(tier, layouts, {kv_key(1)}) == TransferStatus::no_room);
    const std::vector<ImageKey> keys = tier.keys();
    for (std::size_t i = 0; i < 50; ++i) CHECK(tier.remove(keys[i]));
    tier.wait_idle();
    CHECK(write_images(tier, layouts, {kv_key(1)}) == TransferStatus::done);
  }
  disk.make_read_only();
  std::string refusal;
  try {
    const FileTier tier(options, layouts);
  } catch (const std::exception& error) {
    refusal = error.what();
  }
  CHECK(refusal == "folder = " + folder.images() + " (it cannot be written: Read-only file system)");
}

}  // namespace
}  // namespace stateport
