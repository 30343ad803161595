// SPDX-License-Identifier: Apache-2.0
// Whatever happens to the bytes of a folder, no read is answered by an image that is not the one asked for.
#include <stateport/tiers/file_tier.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace stateport {
namespace {

using namespace test;

/// A file of a state between the KV of two blocks.
class DamagedFile {
 public:
  DamagedFile() {
    FileTier tier = open();
    REQUIRE(write_images(tier, layouts_, {kv_key(1), state_key(1), kv_key(2)}) == TransferStatus::done);
    const std::filesystem::path folder = folder_.images();
    file_ = folder / names(folder, ".img").at(0);
    std::ifstream stream(file_, std::ios::binary);
    original_.assign(std::istreambuf_iterator<char>(stream), {});
    REQUIRE(original_.size() == 2 * kv_bytes + state_bytes);
  }
  [[nodiscard]] FileTier open() const { return FileTier(options_, layouts_); }
  [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }
  [[nodiscard]] const std::vector<ImageLayout>& layouts() const noexcept { return layouts_; }
  [[nodiscard]] std::string folder() const { return folder_.images(); }
  [[nodiscard]] const FileTierOptions& options() const noexcept { return options_; }
  void restore() const { std::ofstream(file_, std::ios::binary | std::ios::trunc) << original_; }

  /// What a tier answers that opened the folder before this happened to the file, and how many images one finds that
  /// opens it then. Restores the file.
  struct Answer {
    TransferStatus status;
    std::size_t found;
    friend bool operator==(const Answer&, const Answer&) = default;
  };
  template <class Damage>
  [[nodiscard]] Answer after(Damage&& damage) const {
    restore();
    FileTier before = open();
    REQUIRE(before.findings().images == 3);
    damage();
    const TransferStatus status = read_image(before, layouts_, state_key(1));
    if (status != TransferStatus::done) CHECK(read_image(before, layouts_, state_key(1)) == TransferStatus::gone);
    before.check_invariants();
    restore();
    damage();
    FileTier tier = open();
    const std::size_t found = tier.findings().images;
    for (const ImageKey& key : {kv_key(1), state_key(1), kv_key(2)}) {
      const TransferStatus reopened = read_image(tier, layouts_, key);
      CHECK((reopened == TransferStatus::done || key == state_key(1) || found < 3));
    }
    tier.wait_idle();
    tier.check_invariants();
    return {status, found};
  }

 private:
  TemporaryFolder folder_;
  std::vector<ImageLayout> layouts_ = small_layouts();
  FileTierOptions options_{.folder = folder_.images(), .capacity_bytes = 1 << 20};
  std::filesystem::path file_;
  std::string original_;
};

TEST_CASE("a flipped bit in any field of a header is damage, and hides what follows from the next opening") {
  const DamagedFile damaged;
  using Answer = DamagedFile::Answer;
  // Magic, version, sizes, checksum, model, fingerprint, tokens, prefix, content, group, shard, count, reserved, and
  // the fields of both tensors; see image.hpp.
  std::vector<std::size_t> fields = {0, 8, 12, 16, 24, 40, 56, 64, 72, 80, 88, 92, 96, 100, 104, 108, 112, 120};
  for (const std::size_t entry : {128u, 224u})
    for (const std::size_t field : {0u, 4u, 8u, 9u, 10u, 16u, 24u, 32u, 40u, 48u, 56u, 64u, 72u, 80u, 88u})
      fields.push_back(entry + field);
  fields.push_back(page - 1);
  for (const std::size_t field : fields) {
    CAPTURE(field);
    const Answer answer = damaged.after([&] { flip_bit(damaged.file(), 8 * (kv_bytes + field) + field % 8); });
    CHECK(answer == Answer{TransferStatus::damaged, 1});
  }
}

TEST_CASE("a flipped bit in any section is damage of that image alone") {
  const DamagedFile damaged;
  const ImageLayout& layout = damaged.layouts()[0];
  for (std::size_t section = 0; section < 2; ++section)
    for (const std::size_t byte :
         {std::size_t{0}, layout.section_bytes(section) / 2, layout.section_bytes(section) - 1}) {
      CAPTURE(section);
      CAPTURE(byte);
      const auto answer = damaged.after(
          [&] { flip_bit(damaged.file(), 8 * (kv_bytes + layout.section_offset(section) + byte) + byte % 8); });
      CHECK(answer == DamagedFile::Answer{TransferStatus::damaged, 3});
    }
}

TEST_CASE("a file that is cut, empty, gone or another one's is a miss with its reason") {
  const DamagedFile damaged;
  using Answer = DamagedFile::Answer;
  const auto cut = [&](std::size_t bytes) {
    return damaged.after([&] { std::filesystem::resize_file(damaged.file(), bytes); });
  };
  CHECK(cut(kv_bytes + state_bytes) == Answer{TransferStatus::done, 2});
  CHECK(cut(kv_bytes + state_bytes - 1) == Answer{TransferStatus::damaged, 1});
  CHECK(cut(kv_bytes + page) == Answer{TransferStatus::damaged, 1});
  CHECK(cut(kv_bytes + 100) == Answer{TransferStatus::damaged, 1});
  CHECK(cut(kv_bytes) == Answer{TransferStatus::damaged, 1});
  CHECK(cut(0) == Answer{TransferStatus::damaged, 0});
  CHECK(damaged.after([&] { std::filesystem::remove(damaged.file()); }) == Answer{TransferStatus::gone, 0});

  // Another image in its place: the state of another position, of another model.
  const auto replaced = [&](std::span<const ImageLayout> layouts, const ImageKey& key) {
    const AlignedBytes image = image_of(layouts, key);
    layout_of(layouts, key).seal(image.bytes(), key);
    return damaged.after([&] {
      std::fstream stream(damaged.file(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(static_cast<std::streamoff>(kv_bytes));
      stream.write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(state_bytes));
    });
  };
  CHECK(replaced(damaged.layouts(), state_key(2)) == Answer{TransferStatus::wrong_position, 3});
  CHECK(replaced(small_layouts(2), state_key(1)) == Answer{TransferStatus::foreign_layout, 2});
}

TEST_CASE("an image that somebody put in the place of another is left as it is") {
  const TemporaryFolder folder;
  const FileTierOptions options{.folder = folder.images(), .capacity_bytes = 1 << 20};
  FileTier tier(options, small_layouts());
  REQUIRE(write_images(tier, small_layouts(), {state_key(1)}) == TransferStatus::done);
  const AlignedBytes image = image_of(small_layouts(2), state_key(1));
  small_layouts(2)[0].seal(image.bytes(), state_key(1));
  std::ofstream(folder.images() + "/" + names(folder.images(), ".img").at(0), std::ios::binary)
      .write(reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(state_bytes));
  CHECK(read_image(tier, small_layouts(), state_key(1)) == TransferStatus::foreign_layout);
  CHECK(read_image(tier, small_layouts(), state_key(1)) == TransferStatus::gone);
  tier.wait_idle();
  tier.check_invariants();
  CHECK(tier.statistics().held_bytes == 0);
  FileTier other(options, small_layouts(2));
  CHECK(read_image(other, small_layouts(2), state_key(1)) == TransferStatus::done);
}

TEST_CASE("a damaged file is counted and removed, one that cannot be read is counted and left alone") {
  const DamagedFile damaged;
  flip_bit(damaged.file(), 0);
  {
    ScriptedCalls calls([](Call call) { return call == Call::read_at ? EIO : 0; });
    FileTier tier = make_file_tier(damaged.options(), damaged.layouts(), calls);
    CHECK(tier.findings().unreadable_files == 1);
    CHECK(tier.findings().images == 0);
  }
  CHECK(names(damaged.folder(), ".img").size() == 1);
  FileTier tier = damaged.open();
  CHECK(tier.findings().damaged_files == 1);
  CHECK(tier.findings().unreadable_files == 0);
  tier.wait_idle();
  CHECK(names(damaged.folder(), ".img").empty());
}

TEST_CASE("an input error is answered and forgets nothing") {
  const DamagedFile damaged;
  ScriptedCalls calls;
  FileTier tier = make_file_tier(damaged.options(), damaged.layouts(), calls);
  for (const Call failing : {Call::open, Call::read_at}) {
    calls.set([=](Call call) { return call == failing ? EIO : 0; });
    CHECK(read_image(tier, damaged.layouts(), state_key(1)) == TransferStatus::failed);
    calls.set({});
    CHECK(read_image(tier, damaged.layouts(), state_key(1)) == TransferStatus::done);
  }
}

TEST_CASE("two files with one image: one is read, and the other goes") {
  const DamagedFile damaged;
  std::filesystem::copy_file(damaged.file(), damaged.file().parent_path() / "ffffffffffffffff-1.img");
  FileTier tier = damaged.open();
  CHECK(tier.findings().images == 3);
  CHECK(tier.statistics().held_bytes == 2 * kv_bytes + state_bytes);
  tier.wait_idle();
  CHECK(names(damaged.folder(), ".img") == std::vector<std::string>{"ffffffffffffffff-1.img"});
  for (const ImageKey& key : tier.keys()) CHECK(read_image(tier, damaged.layouts(), key) == TransferStatus::done);
  tier.check_invariants();
}

TEST_CASE("the times of files mean nothing") {
  const DamagedFile damaged;
  for (const auto years : {-60, 200}) {
    for (const auto& entry : std::filesystem::directory_iterator(damaged.folder()))
      std::filesystem::last_write_time(entry,
                                       std::filesystem::file_time_type::clock::now() + std::chrono::years(years));
    FileTier tier = damaged.open();
    CHECK(tier.findings().images == 3);
    for (const ImageKey& key : tier.keys()) CHECK(read_image(tier, damaged.layouts(), key) == TransferStatus::done);
  }
}

}  // namespace
}  // namespace stateport
