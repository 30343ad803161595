// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/tiers/file_tier.hpp>
#include <stateport/tiers/host_tier.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

using namespace stateport;
using namespace stateport::test;

namespace {

std::vector<char> content_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Looks at all bytes just before they are given back.
class WatchingCalls final : public FileCalls {
 public:
  explicit WatchingCalls(bool has_holes = true, int failing_writes = 0)
      : has_holes_(has_holes), failing_writes_(failing_writes) {}

  int unlink(int folder, const char* name) override {
    const FileHandle file(::openat(folder, name, O_RDONLY));
    look(file.get(), 0, ::lseek(file.get(), 0, SEEK_END));
    return FileCalls::unlink(folder, name);
  }
  int punch_hole(int file, off_t offset, off_t bytes) override {
    if (!has_holes_) {
      errno = EOPNOTSUPP;
      return -1;
    }
    // The tier writes to this file only: read it under its other name.
    const FileHandle readable(::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY));
    look(readable.get(), offset, offset + bytes);
    return FileCalls::punch_hole(file, offset, bytes);
  }
  int synchronize_data(int file) override {
    if (failing_writes_ > 0) {
      --failing_writes_;
      errno = EIO;
      return -1;
    }
    return FileCalls::synchronize_data(file);
  }

  [[nodiscard]] std::int64_t given_back() const { return given_back_; }  ///< bytes
  [[nodiscard]] std::int64_t readable() const { return readable_; }      ///< of these, that were not zero

 private:
  void look(int file, off_t begin, off_t end) {
    std::array<unsigned char, 4096> bytes;
    const std::lock_guard lock(mutex_);
    for (off_t at = begin; at < end;) {
      const ssize_t read = ::pread(file, bytes.data(), std::min(bytes.size(), static_cast<std::size_t>(end - at)), at);
      if (read <= 0) break;
      given_back_ += read;
      readable_ += read - std::count(bytes.begin(), bytes.begin() + read, 0);
      at += read;
    }
  }

  bool has_holes_;
  int failing_writes_;
  std::mutex mutex_;
  std::int64_t given_back_ = 0;
  std::int64_t readable_ = 0;
};

FileTierOptions options_for(const TemporaryFolder& folder, bool scrub) {
  return {.folder = folder.path().string(), .capacity_bytes = std::uint64_t{1} << 30, .scrub = scrub};
}

/// Keeps what a tier leaves in its memory.
class KeepingResource final : public MemoryResource {
 public:
  KeepingResource(std::size_t bytes) : memory(bytes) {}
  AlignedBytes memory;

 private:
  void* do_allocate(std::size_t, std::size_t, const Stream&) override { return memory.data(); }
  void do_deallocate(void*, std::size_t, std::size_t, const Stream&) noexcept override {}
  [[nodiscard]] MemoryKind do_kind() const noexcept override { return MemoryKind::host; }
};

}  // namespace

TEST_CASE("a scrubbing tier gives no byte of an image back that is not overwritten, another one gives all back") {
  for (const bool scrub : {false, true})
    for (const bool has_holes : {false, true}) {
      CAPTURE(scrub);
      CAPTURE(has_holes);
      const TemporaryFolder folder;
      WatchingCalls calls(has_holes);
      const auto layouts = small_layouts();
      {
        FileTier tier = make_file_tier(options_for(folder, scrub), layouts, calls);
        CHECK(write_images(tier, layouts, {state_key(1), kv_key(1), kv_key(2)}) == TransferStatus::done);
        CHECK(write_images(tier, layouts, {state_key(2)}) == TransferStatus::done);
        CHECK(tier.remove(kv_key(1)));  // of several
        CHECK(tier.remove(state_key(2)));
        tier.wait_idle();
        CHECK(read_image(tier, layouts, state_key(1)) == TransferStatus::done);
        CHECK(read_image(tier, layouts, kv_key(2)) == TransferStatus::done);
        CHECK(tier.remove(state_key(1)));
        CHECK(tier.remove(kv_key(2)));
      }
      CHECK(calls.given_back() >= static_cast<std::int64_t>(2 * state_bytes + 2 * kv_bytes));
      CHECK((calls.readable() == 0) == scrub);
      CHECK(names(folder.path(), ".img").empty());
    }
}

TEST_CASE("what a failed write and a writer that died left is overwritten, too") {
  for (const bool scrub : {false, true}) {
    CAPTURE(scrub);
    const TemporaryFolder folder;
    const auto layouts = small_layouts();
    WatchingCalls failing(true, 1);
    {
      FileTier tier = make_file_tier(options_for(folder, scrub), layouts, failing);
      CHECK(write_images(tier, layouts, {state_key(1)}) == TransferStatus::failed);
      CHECK(failing.given_back() >= static_cast<std::int64_t>(state_bytes));
      CHECK((failing.readable() == 0) == scrub);
    }
    std::ofstream(folder.path() / "0123456789abcdef-0.tmp") << std::string(5000, 'x');
    WatchingCalls calls;
    const FileTier tier = make_file_tier(options_for(folder, scrub), layouts, calls);
    CHECK(tier.findings().dropped_temporaries == 1);
    CHECK(calls.given_back() >= 5000);
    CHECK((calls.readable() == 0) == scrub);
  }
}

TEST_CASE("a scrubbing tier removes a file that has another name, and leaves its bytes there") {
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  const std::filesystem::path kept = elsewhere.path() / "kept";
  std::ofstream(kept) << std::string(5000, 'x');
  std::filesystem::create_hard_link(kept, folder.path() / "0123456789abcdef-0.tmp");
  const FileTier tier(options_for(folder, true), small_layouts());
  CHECK(tier.findings().dropped_temporaries == 1);
  CHECK(content_of(kept) == std::vector<char>(5000, 'x'));
  CHECK(tier.statistics().unscrubbed == 1);
}

TEST_CASE("bytes that are given back although they could not be overwritten are counted") {
  const TemporaryFolder folder;
  const auto layouts = small_layouts();
  ScriptedCalls calls;
  FileTier tier = make_file_tier(options_for(folder, true), layouts, calls);
  CHECK(write_images(tier, layouts, {state_key(1), kv_key(1)}) == TransferStatus::done);
  CHECK(write_images(tier, layouts, {state_key(2)}) == TransferStatus::done);
  CHECK(write_images(tier, layouts, {state_key(3)}) == TransferStatus::done);
  CHECK(write_images(tier, layouts, {state_key(4)}) == TransferStatus::done);
  const auto removed = [&](const ImageKey& key) {
    CHECK(tier.remove(key));
    tier.wait_idle();
    return tier.statistics().unscrubbed;
  };
  calls.set([](Call call) { return call == Call::write_at ? EIO : 0; });
  CHECK(removed(kv_key(1)) == 1);  // a hole
  CHECK(removed(state_key(2)) == 2);
  calls.set([](Call call) { return call == Call::synchronize_data ? EIO : 0; });
  CHECK(removed(state_key(3)) == 3);
  calls.set([](Call call) { return call == Call::seek_data ? EINVAL : 0; });  // then all is taken for data
  CHECK(removed(state_key(4)) == 3);
  CHECK(names(folder.path(), ".img").size() == 1);
}

TEST_CASE("no byte that lay in the padding of an image comes into a file of a scrubbing tier, whatever its size") {
  // The second one is written in pieces, with whole ones and a part in the last.
  const std::array sizes = {500, 700'000};
  for (const bool scrub : {false, true})
    for (const int size : sizes)
      for (const std::size_t misalignment : {std::size_t{0}, std::size_t{8}}) {
        CAPTURE(scrub);
        CAPTURE(size);
        const TemporaryFolder folder;
        const auto spec = StateSpec::uniform(3, {.window = 3, .dim = size}, {.shape = {10, 10, 1}});
        const std::vector layouts = {ImageLayout(spec, {.model = ModelId(1)})};
        const AlignedBytes image = image_of(layouts, state_key(1), misalignment);
        // Sections without the byte that fills the padding.
        for (std::size_t i = 0; i < spec.tensors().size(); ++i)
          for (std::byte& byte : image.bytes().subspan(layouts[0].section_offset(i), layouts[0].section_bytes(i)))
            byte = std::byte{1};
        FileTier tier(options_for(folder, scrub), layouts);
        const FileImage given{state_key(1), image.data()};
        REQUIRE(tier.write(1, {&given, 1}));
        CHECK(answer_of(tier).status == TransferStatus::done);
        const std::vector<char> written = content_of(folder.path() / names(folder.path(), ".img").at(0));
        REQUIRE(written.size() == layouts[0].image_bytes());
        std::size_t strange = 0;
        for (std::size_t i = 0; i < spec.tensors().size(); ++i) {
          const std::size_t first = layouts[0].section_offset(i) + layouts[0].section_bytes(i);
          const std::size_t end = i + 1 < spec.tensors().size() ? layouts[0].section_offset(i + 1) : written.size();
          for (std::size_t at = first; at < end; ++at) strange += written[at] != 0;
        }
        const bool copied = size == sizes[0];  // small images are copied, and cleared, in any case
        CHECK((strange == 0) == (scrub || copied));
        AlignedBytes read(layouts[0].image_bytes());
        REQUIRE(tier.read(2, state_key(1), read.bytes()));
        CHECK(answer_of(tier).status == TransferStatus::done);
        CHECK(layouts[0].check(read.bytes(), state_key(1)) == TransferStatus::done);
      }
}

TEST_CASE("a scrubbing host tier leaves its memory empty") {
  for (const bool scrub : {false, true}) {
    KeepingResource resource(64 * page);
    {
      HostTier host(resource, {.budget_bytes = 32 * page,
                               .staging_bytes = 16 * page,
                               .state_image_bytes = {4 * page},
                               .kv_image_bytes = page,
                               .scrub = scrub});
      const std::array images = {*host.reserve(state_key(1)), *host.reserve(kv_key(1)),
                                 *host.reserve_staging(state_key(2))};
      for (const HostImage image : images) std::ranges::fill(host.bytes(image), std::byte{7});
      HostTier moved = std::move(host);
      CHECK(std::ranges::count(resource.memory.bytes(), std::byte{7}) == 9 * page);
    }
    CHECK((std::ranges::count(resource.memory.bytes(), std::byte{7}) == 0) == scrub);
  }
}

TEST_CASE("a seal clears the padding of an image") {
  const auto layouts = small_layouts();
  for (const ImageKey& key : {state_key(3), kv_key(3)}) {
    const ImageLayout& layout = layout_of(layouts, key);
    const AlignedBytes image = image_of(layouts, key);
    layout.seal(image.bytes(), key);
    for (std::size_t i = 0; i < layout.spec().tensors().size(); ++i) {
      const std::size_t first = layout.section_offset(i) + layout.section_bytes(i);
      const auto padding = image.bytes().subspan(first, (page - first % page) % page);
      CHECK(std::ranges::count(padding, std::byte{0}) == std::ssize(padding));
    }
    CHECK(is_image_of(layouts, key, image.bytes()));
  }
}
