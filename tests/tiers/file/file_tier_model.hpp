// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

namespace stateport::test {

/// What a folder of images holds, in the plainest way: lists that are searched from front to back.
class FolderModel {
 public:
  struct Image {
    ImageKey key;
    std::uint64_t offset = 0;
    std::uint64_t header_bytes = 0;
    std::uint64_t bytes = 0;
    bool held = true;
    bool header_damaged = false;
    bool body_damaged = false;
    [[nodiscard]] std::uint64_t end() const { return offset + bytes; }
  };
  struct File {
    std::string name;
    std::uint64_t known_bytes = 0;  ///< when the tier saw it first
    std::uint64_t bytes = 0;        ///< now
    bool exists = true;
    std::vector<Image> images;
    [[nodiscard]] bool held() const { return std::ranges::any_of(images, &Image::held); }
  };
  std::vector<File> files;

  [[nodiscard]] std::pair<File*, Image*> find(const ImageKey& key) {
    for (File& file : files)
      for (Image& image : file.images)
        if (image.held && image.key == key) return {&file, &image};
    return {nullptr, nullptr};
  }

  [[nodiscard]] std::vector<ImageKey> keys() const {
    std::vector<ImageKey> keys;
    for (const File& file : files)
      for (const Image& image : file.images)
        if (image.held) keys.push_back(image.key);
    std::ranges::sort(
        keys, {}, [](const ImageKey& key) { return std::tuple(key.tokens, key.prefix.words, key.content, key.group); });
    return keys;
  }

  /// A removed image leaves its header, and nothing once its file holds none.
  [[nodiscard]] std::uint64_t held_bytes() const {
    std::uint64_t bytes = 0;
    for (const File& file : files) {
      if (!file.held()) continue;
      bytes += file.known_bytes;
      for (const Image& image : file.images) bytes -= image.held ? 0 : image.bytes - image.header_bytes;
    }
    return bytes;
  }

  [[nodiscard]] std::vector<std::string> file_names() const {
    std::vector<std::string> names;
    for (const File& file : files)
      if (file.exists) names.push_back(file.name);
    std::ranges::sort(names);
    return names;
  }

  void remove(const ImageKey& key) {
    const auto [file, image] = find(key);
    image->held = false;
    drop_empty();
  }

  [[nodiscard]] TransferStatus read(const ImageKey& key) {
    const auto [file, image] = find(key);
    if (!image) return TransferStatus::gone;
    TransferStatus status = TransferStatus::done;
    if (image->header_damaged || image->body_damaged || image->end() > file->bytes) status = TransferStatus::damaged;
    if (!file->exists) status = TransferStatus::gone;
    if (status != TransferStatus::done) remove(key);
    return status;
  }

  /// What a new tier finds: in every file the images before the first header that is damaged or cut off.
  void reopen() {
    std::erase_if(files, [](const File& file) { return !file.exists; });
    for (File& file : files) {
      const auto end = std::ranges::find_if(
          file.images, [&file](const Image& image) { return image.header_damaged || image.end() > file.bytes; });
      file.images.erase(end, file.images.end());
      file.known_bytes = file.bytes;
    }
    drop_empty();
  }

 private:
  void drop_empty() {
    std::erase_if(files, [](const File& file) { return !file.held(); });
  }
};

}  // namespace stateport::test
