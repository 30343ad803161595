// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace stateport::perf {

/// A new folder in STATEPORT_PERF_FOLDER, or where temporary files lie; removed with all that it holds.
class FileFolder {
 public:
  FileFolder() {
    const char* given = std::getenv("STATEPORT_PERF_FOLDER");
    const std::filesystem::path above = given ? std::filesystem::path(given) : std::filesystem::temp_directory_path();
    path_ = (above / "stateport-perf-XXXXXX").string();
    if (!::mkdtemp(path_.data())) throw std::runtime_error("no folder can be made in " + above.string());
  }
  FileFolder(const FileFolder&) = delete;
  FileFolder& operator=(const FileFolder&) = delete;
  ~FileFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace stateport::perf
