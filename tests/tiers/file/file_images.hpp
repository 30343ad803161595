// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/file_tier.hpp>

#include "temporary_folder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Images of a small model, and a folder for their files. For processes that run no tests, too: what is wrong is
/// thrown.
namespace stateport::test {

inline constexpr std::size_t page = ImageLayout::alignment_bytes;

inline void require_true(bool ok, const char* otherwise) {
  if (!ok) throw std::runtime_error(otherwise);
}

/// Memory at a multiple of 4 KiB, and `misalignment` bytes behind it.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size, std::size_t misalignment = 0)
      : memory_(new (std::align_val_t{page}) std::byte[size + misalignment]()),
        bytes_(memory_.get() + misalignment, size) {}
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { ::operator delete[](bytes, std::align_val_t{page}); }
  };
  std::unique_ptr<std::byte[], Free> memory_;
  std::span<std::byte> bytes_;
};

/// A state of 3 pages, KV of 2.
inline std::vector<ImageLayout> small_layouts(std::uint64_t model = 1) {
  const auto state = StateSpec::uniform(1, {.window = 3, .dim = 500}, {.shape = {10, 10, 1}});
  const auto kv = StateSpec::uniform(1, {}, {.shape = {16, 2, 20}, .type = ElementType::bf16});
  return {ImageLayout(state, {.model = ModelId(model)}),
          ImageLayout(kv, {.model = ModelId(model), .content = CacheContent::kv_block})};
}
inline constexpr std::size_t state_bytes = 3 * page;
inline constexpr std::size_t kv_bytes = 2 * page;

inline ImageKey state_key(std::uint64_t number) {
  return {.prefix = {{number, ~number}}, .tokens = static_cast<std::int64_t>(16 * number)};
}
inline ImageKey kv_key(std::uint64_t number) {
  ImageKey key = state_key(number);
  key.content = CacheContent::kv_block;
  return key;
}

inline const ImageLayout& layout_of(std::span<const ImageLayout> layouts, const ImageKey& key) {
  return *std::ranges::find_if(layouts, [&key](const ImageLayout& layout) { return layout.holds(key); });
}

/// The image of this key: every section's bytes follow from the key; what lies in header and padding is noise.
inline AlignedBytes image_of(std::span<const ImageLayout> layouts, const ImageKey& key, std::size_t misalignment = 0) {
  const ImageLayout& layout = layout_of(layouts, key);
  AlignedBytes image(layout.image_bytes(), misalignment);
  std::ranges::fill(image.bytes(), std::byte{0xee});
  std::uint64_t value = key.prefix.words[0] * 2 + static_cast<std::uint64_t>(key.content);
  for (std::size_t i = 0; i < layout.spec().tensors().size(); ++i)
    for (std::byte& byte : image.bytes().subspan(layout.section_offset(i), layout.section_bytes(i))) {
      value = value * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<std::byte>(value >> 56);
    }
  return image;
}

/// Whether the sections are those of this key, and the image is sealed.
inline bool is_image_of(std::span<const ImageLayout> layouts, const ImageKey& key, std::span<const std::byte> image) {
  const ImageLayout& layout = layout_of(layouts, key);
  const AlignedBytes wanted = image_of(layouts, key);
  for (std::size_t i = 0; i < layout.spec().tensors().size(); ++i)
    if (std::memcmp(image.data() + layout.section_offset(i), wanted.data() + layout.section_offset(i),
                    layout.section_bytes(i)) != 0)
      return false;
  return layout.check(image, key) == TransferStatus::done;
}

/// Waits for the one answer that is due.
inline Completion answer_of(FileTier& tier) {
  tier.wait_idle();
  std::array<Completion, 2> answers;
  require_true(tier.poll(answers) == 1, "there is not one answer");
  return answers[0];
}

/// Writes the images of these keys as one request. no_room also if it is not accepted.
inline TransferStatus write_images(FileTier& tier, std::span<const ImageLayout> layouts,
                                   std::span<const ImageKey> keys) {
  std::vector<AlignedBytes> memory;
  std::vector<FileImage> images;
  for (const ImageKey& key : keys) {
    memory.push_back(image_of(layouts, key));
    images.push_back({key, memory.back().data()});
  }
  if (!tier.write(1, images)) return TransferStatus::no_room;
  return answer_of(tier).status;
}
inline TransferStatus write_images(FileTier& tier, std::span<const ImageLayout> layouts,
                                   std::initializer_list<ImageKey> keys) {
  return write_images(tier, layouts, std::span(keys.begin(), keys.size()));
}

/// Reads an image. Throws if another one is answered by `done`.
inline TransferStatus read_image(FileTier& tier, std::span<const ImageLayout> layouts, const ImageKey& key,
                                 std::size_t misalignment = 0) {
  const AlignedBytes image(layout_of(layouts, key).image_bytes(), misalignment);
  if (!tier.read(2, key, image.bytes())) return TransferStatus::no_room;
  const TransferStatus status = answer_of(tier).status;
  require_true(status != TransferStatus::done || is_image_of(layouts, key, image.bytes()), "a wrong image is answered");
  return status;
}

inline void flip_bit(const std::filesystem::path& file, std::size_t bit) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(bit / 8));
  stream.put(static_cast<char>(byte ^ (1 << (bit % 8))));
  require_true(byte >= 0 && stream.flush().good(), "a bit cannot be flipped");
}

/// Names in a folder that end like that, sorted.
inline std::vector<std::string> names(const std::filesystem::path& folder, std::string_view suffix = "") {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (std::string name = entry.path().filename().string(); name.ends_with(suffix)) found.push_back(std::move(name));
  std::ranges::sort(found);
  return found;
}

}  // namespace stateport::test
