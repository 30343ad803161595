// SPDX-License-Identifier: Apache-2.0
// Random requests, failures of the system, and damage to the files, against a slow and plain model.
#include "file_tier_model.hpp"

#include <stateport/tiers/file_tier.hpp>

#include "file/image_folder.hpp"
#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "random.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stateport {
namespace {

using namespace test;

/// That bytes reach the disk is not what these tests look at, and takes most of the time.
class UnsynchronisedCalls : public ScriptedCalls {
 public:
  int synchronize_data(int) override { return allowed(Call::synchronize_data) ? 0 : -1; }
  int synchronize_folder(int) override { return allowed(Call::synchronize_folder) ? 0 : -1; }
};

class World {
 public:
  explicit World(Random& random) : random_(random) { open(); }

  void step() {
    const std::int64_t what = random_.between(0, 99);
    if (what < 35) {
      write();
    } else if (what < 65) {
      read();
    } else if (what < 80) {
      remove();
    } else if (what < 87) {
      look_up();
    } else if (what < 95) {
      damage();
    } else {
      reopen();
    }
    tier_->wait_idle();
    check();
  }
  [[nodiscard]] const std::map<std::string, int>& events() const noexcept { return events_; }

 private:
  void open() { tier_.emplace(make_file_tier(options_, layouts_, calls_)); }

  [[nodiscard]] ImageKey any_key() {
    const auto number = static_cast<std::uint64_t>(random_.between(1, 14));
    return random_.chance(50) ? state_key(number) : kv_key(number);
  }

  /// Makes this call, whenever it is made, fail. Returns what a request that makes it is answered by.
  TransferStatus plant(Call failing) {
    static constexpr std::array errors = {EIO, ENOSPC, EDQUOT, EROFS, EMFILE, EFBIG};
    const int error = errors[static_cast<std::size_t>(random_.between(0, errors.size() - 1))];
    calls_.set([=](Call call) { return call == failing ? error : 0; });
    const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    return full ? TransferStatus::no_room : TransferStatus::failed;
  }

  void write() {
    std::vector<ImageKey> keys;
    while (keys.empty() || (keys.size() < 4 && random_.chance(60)))
      if (const ImageKey key = any_key(); std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    FolderModel::File file;
    const bool holds_all =
        std::ranges::all_of(keys, [this](const ImageKey& key) { return model_.find(key).first != nullptr; });
    for (const ImageKey& key : keys) {
      if (holds_all) continue;
      const std::size_t bytes = layout_of(layouts_, key).image_bytes();
      file.images.push_back({.key = key, .offset = file.bytes, .header_bytes = page, .bytes = bytes});
      file.bytes += bytes;
    }
    file.known_bytes = file.bytes;
    TransferStatus expected = TransferStatus::done;
    if (!file.images.empty() && random_.chance(25)) {
      static constexpr std::array calls = {
          Call::open, Call::allocate, Call::write_at, Call::synchronize_data, Call::rename, Call::synchronize_folder};
      expected = plant(calls[static_cast<std::size_t>(random_.between(0, calls.size() - 1))]);
      ++events_["writes that fail"];
    }
    if (model_.held_bytes() + file.bytes > options_.capacity_bytes && !file.images.empty()) {
      expected = TransferStatus::no_room;
      ++events_["writes that do not fit"];
    }
    CHECK(write_images(*tier_, layouts_, keys) == expected);
    calls_.set({});
    if (expected != TransferStatus::done || file.images.empty()) return;
    const std::vector<std::string> known = model_.file_names();
    for (const std::string& name : names(folder_.images(), ".img"))
      if (std::ranges::find(known, name) == known.end()) file.name = name;
    for (const ImageKey& key : keys) {
      const bool held = model_.find(key).first != nullptr;
      if (held) model_.remove(key);
      events_["written again"] += held;
    }
    model_.files.push_back(file);
    CHECK(tier_->statistics().held_bytes <= options_.capacity_bytes);
    ++events_["files"];
  }

  void read() {
    const ImageKey key = any_key();
    if (const auto* file = model_.find(key).first; file && file->exists && random_.chance(10)) {
      plant(random_.chance(50) ? Call::open : Call::read_at);
      CHECK(read_image(*tier_, layouts_, key) == TransferStatus::failed);
      calls_.set({});
      ++events_["reads that fail"];
      return;
    }
    const TransferStatus expected = model_.read(key);
    CHECK(read_image(*tier_, layouts_, key, random_.chance(20) ? 8 : 0) == expected);
    ++events_["reads answered " + std::to_string(static_cast<int>(expected))];
  }

  void remove() {
    const ImageKey key = any_key();
    const bool held = model_.find(key).first != nullptr;
    CHECK(tier_->remove(key) == held);
    if (held) model_.remove(key);
    events_["removed"] += held;
  }

  void look_up() {
    std::array<ImageKey, 8> keys;
    for (ImageKey& key : keys) key = any_key();
    std::array<bool, 8> held = {};
    std::size_t expected = 0;
    const std::size_t found = tier_->lookup(keys, held);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      CHECK(held[i] == (model_.find(keys[i]).first != nullptr));
      expected += held[i];
    }
    CHECK(found == expected);
  }

  /// Flips a bit of an image, cuts a file, or removes it behind the tier's back.
  void damage() {
    const auto [file, image] = model_.find(any_key());
    if (!file || !file->exists || image->end() > file->bytes) return;
    const std::filesystem::path path = std::filesystem::path(folder_.images()) / file->name;
    if (random_.chance(20)) {
      std::filesystem::remove(path);
      file->exists = false;
      ++events_["files removed"];
    } else if (random_.chance(30)) {
      file->bytes = static_cast<std::uint64_t>(random_.between(0, static_cast<std::int64_t>(file->bytes) - 1));
      std::filesystem::resize_file(path, file->bytes);
      ++events_["files cut"];
    } else if (!image->header_damaged && !image->body_damaged) {
      const bool header = random_.chance(50);
      const ImageLayout& layout = layout_of(layouts_, image->key);
      const std::size_t begin = header ? 0 : layout.section_offset(0);
      const std::size_t size = header ? page : layout.section_bytes(0);
      flip_bit(path, 8 * (image->offset + begin) +
                         static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(8 * size) - 1)));
      (header ? image->header_damaged : image->body_damaged) = true;
      ++events_["bits flipped"];
    }
  }

  void reopen() {
    tier_.reset();
    if (random_.chance(30)) {
      calls_.set([](Call call) { return call == Call::read_at ? EIO : 0; });
      open();
      CHECK(tier_->keys().empty());
      tier_.reset();
      calls_.set({});
    }
    open();
    model_.reopen();
    ++events_["opened"];
  }

  void check() {
    REQUIRE(tier_->keys() == model_.keys());
    REQUIRE(tier_->statistics().held_bytes == model_.held_bytes());
    REQUIRE(names(folder_.images(), ".img") == model_.file_names());
    REQUIRE(names(folder_.images(), ".tmp").empty());
    tier_->check_invariants();
  }

  Random& random_;
  TemporaryFolder folder_;
  std::vector<ImageLayout> layouts_ = small_layouts();
  FileTierOptions options_{.folder = folder_.images(), .capacity_bytes = 40 * page, .queue_bytes = 40 * page};
  UnsynchronisedCalls calls_;
  std::optional<FileTier> tier_;
  FolderModel model_;
  std::map<std::string, int> events_;
};

TEST_CASE("10,000 random requests, failures and damages are answered as a plain model says") {
  {
    const TemporaryFolder folder;
    if (!ImageFolder(FileCalls::system(), folder.images()).punches_holes()) {
      MESSAGE("skipped: files of this file system have no holes");
      return;
    }
  }
  std::map<std::string, int> events;
  for_each_seed(10, [&events](Random& random, std::uint64_t) {
    World world(random);
    for (int step = 0; step < 1000; ++step) {
      CAPTURE(step);
      world.step();
    }
    for (const auto& [name, count] : world.events()) events[name] += count;
  });
  std::string text;
  for (const auto& [name, count] : events) text += name + " " + std::to_string(count) + ", ";
  MESSAGE(text);
  for (const char* name : {"writes that fail", "writes that do not fit", "files", "written again", "reads that fail",
                           "removed", "files removed", "files cut", "bits flipped", "opened"})
    CHECK(events[name] > 0);
}

}  // namespace
}  // namespace stateport
