// SPDX-License-Identifier: Apache-2.0
// Folders with whatever others put into them: any name, and links, folders and pipes under the names of a tier's files.
#include <stateport/tiers/file_tier.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "random.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace stateport {
namespace {

using namespace test;
namespace fs = std::filesystem;

enum class Thing : std::uint8_t { noise, empty, holes, image, folder, link, loop, nowhere, pipe };
constexpr std::size_t outside_bytes = 3 * page;
constexpr std::uint64_t hole_bytes = std::uint64_t{1} << 30;

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Counts what is written.
class CountingCalls final : public FileCalls {
 public:
  ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) override {
    written_ += size;
    return FileCalls::write_at(file, bytes, size, offset);
  }
  [[nodiscard]] std::uint64_t written() const { return written_; }

 private:
  std::atomic<std::uint64_t> written_ = 0;
};

/// A folder that a tier made, what somebody put there, and what a tier must find.
class Clutter {
 public:
  explicit Clutter(Random& random) : random_(random) {
    static_cast<void>(FileTier(options(false), layouts_));
    std::ofstream(outside()) << std::string(outside_bytes, 'o');
    for (std::int64_t things = random.between(0, 12); things > 0; --things) {
      switch (random_.between(0, 3)) {
        case 0:
          place(writer() + "-" + std::to_string(random_.between(0, 9)) + ".img", images_);
          break;
        case 1:
          place(writer() + "-" + std::to_string(random_.between(0, 9)) + ".tmp", temporaries_);
          break;
        case 2:
          place(writer() + ".lock", locks_);
          break;
        default:
          place(foreign_name(), foreign_);
      }
    }
  }

  [[nodiscard]] FileTierOptions options(bool scrub) const {
    return {.folder = folder_.images(), .capacity_bytes = std::uint64_t{1} << 40, .scrub = scrub};
  }
  [[nodiscard]] const std::vector<ImageLayout>& layouts() const noexcept { return layouts_; }

  void check_found(const FolderFindings& found) const {
    const auto count = [this](auto... things) {
      return static_cast<std::uint64_t>(
          std::ranges::count_if(images_, [&](const auto& one) { return ((one.second == things) || ...); }));
    };
    CHECK(found.images == count(Thing::image));
    CHECK(found.foreign_files == foreign_.size());
    CHECK(found.damaged_files == count(Thing::noise, Thing::empty, Thing::holes));
    CHECK(found.unreadable_files == count(Thing::folder, Thing::link, Thing::loop, Thing::nowhere, Thing::pipe));
    CHECK(found.dropped_temporaries ==
          std::ranges::count_if(temporaries_, [this](const auto& one) { return is_dropped(one.first, one.second); }));
  }
  /// What the tier need not give up is still there, and what lies outside is as it was.
  void check_left() const {
    CHECK(bytes_of(outside()) == std::string(outside_bytes, 'o'));
    for (const auto& [name, thing] : foreign_) CHECK(is_there(name));
    for (const auto& [name, thing] : images_) CHECK(is_there(name) == (thing == Thing::image || !is_file(thing)));
    for (const auto& [name, thing] : temporaries_) CHECK(is_there(name) == !is_dropped(name, thing));
    for (const auto& [name, thing] : locks_) CHECK(is_there(name) == !is_file(thing));
  }

 private:
  using Things = std::map<std::string, Thing>;

  static bool is_file(Thing thing) { return thing <= Thing::image; }
  /// A lock that is no file tells nothing: its writer may live.
  bool is_dropped(const std::string& name, Thing thing) const {
    const auto lock = locks_.find(name.substr(0, 16) + ".lock");
    return thing != Thing::folder && (lock == locks_.end() || is_file(lock->second));
  }
  [[nodiscard]] fs::path outside() const { return folder_.path() / "outside"; }
  [[nodiscard]] fs::path path(const std::string& name) const { return fs::path(folder_.images()) / name; }
  [[nodiscard]] bool is_there(const std::string& name) const {
    return fs::symlink_status(path(name)).type() != fs::file_type::not_found;
  }
  [[nodiscard]] std::string writer() { return std::string(15, 'a') + "0123456789abcdef"[random_.between(0, 2)]; }

  /// Nearly a name that a tier gives, or nothing like it.
  [[nodiscard]] std::string foreign_name() {
    const std::array names = {"A" + writer().substr(1) + "-1.img",
                              writer() + "-.img",
                              writer() + ".img",
                              writer() + "-1.IMG",
                              writer() + "-1.img ",
                              writer() + "--1.img",
                              writer() + "a-1.img",
                              writer().substr(1) + "-1.img",
                              writer() + "-1a.tmp",
                              writer() + ".lock\n",
                              std::string(255, 'x'),
                              std::string(".img"),
                              std::string("\xff\xfe\x01"),
                              std::string("-1.img")};
    return names[static_cast<std::size_t>(random_.between(0, std::ssize(names) - 1))];
  }

  void place(const std::string& name, Things& things) {
    const auto thing = static_cast<Thing>(random_.between(0, static_cast<int>(Thing::pipe)));
    if (!things.emplace(name, thing).second) return;
    switch (thing) {
      case Thing::noise:
        std::ofstream(path(name)) << std::string(static_cast<std::size_t>(random_.between(1, 10000)), 'n');
        break;
      case Thing::empty:
        static_cast<void>(std::ofstream(path(name)));
        break;
      case Thing::holes:
        static_cast<void>(std::ofstream(path(name)));
        fs::resize_file(path(name), hole_bytes);
        break;
      case Thing::image: {
        const ImageKey key = state_key(next_key_++);
        const AlignedBytes image = image_of(layouts_, key);
        layout_of(layouts_, key).seal(image.bytes(), key);
        std::ofstream(path(name)).write(reinterpret_cast<const char*>(image.data()), state_bytes);
        break;
      }
      case Thing::folder:
        fs::create_directory(path(name));
        break;
      case Thing::link:
        fs::create_symlink(outside(), path(name));
        break;
      case Thing::loop:
        fs::create_symlink(name, path(name));
        break;
      case Thing::nowhere:
        fs::create_symlink("nowhere", path(name));
        break;
      case Thing::pipe:
        REQUIRE(::mkfifo(path(name).c_str(), 0600) == 0);
    }
  }

  Random& random_;
  TemporaryFolder folder_;
  std::vector<ImageLayout> layouts_ = small_layouts();
  std::uint64_t next_key_ = 1;
  Things images_;
  Things temporaries_;
  Things locks_;
  Things foreign_;
};

TEST_CASE("a tier opens a folder with anything in it, and touches what is its own alone") {
  for_each_seed(400, [](Random& random, std::uint64_t) {
    Clutter clutter(random);
    const bool scrub = random.chance(50);
    CAPTURE(scrub);
    CountingCalls calls;
    {
      FileTier tier = make_file_tier(clutter.options(scrub), clutter.layouts(), calls);
      clutter.check_found(tier.findings());
      tier.wait_idle();
      tier.check_invariants();
      // Holes have no bytes to scrub.
      CHECK(calls.written() <= (scrub ? 13 * (outside_bytes + page) : 0));
      clutter.check_left();
      CHECK(write_images(tier, clutter.layouts(), {kv_key(1)}) == TransferStatus::done);
      CHECK(read_image(tier, clutter.layouts(), kv_key(1)) == TransferStatus::done);
    }
    clutter.check_left();
  });
}

}  // namespace
}  // namespace stateport
