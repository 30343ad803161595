// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/image.hpp>

#include "file/image_folder.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stateport {

struct FoundImage {
  ImageKey key;
  const ImageLayout* layout = nullptr;
  std::uint64_t offset = 0;
};

/// The headers of an image file.
struct FoundFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t hole_bytes = 0;  ///< of images that were removed from it
  std::uint64_t foreign_images = 0;
  bool damaged = false;  ///< a header does not verify, or the file ends too early: the rest of it is not known
  bool readable = true;  ///< false: the file system failed, or the file is not there any more
  std::vector<FoundImage> images;
};

/// Reads the headers of these files, going from image to image, with several threads. `layouts` must outlive the
/// result.
[[nodiscard]] std::vector<FoundFile> scan_files(ImageFolder& folder, std::span<const std::string> names,
                                                std::span<const ImageLayout> layouts);

}  // namespace stateport
