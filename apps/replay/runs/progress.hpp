// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace stateport::replay {

/// A progress bar on the standard error stream, redrawn a few times a second; silent when that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::int64_t total);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::int64_t done);

 private:
  std::int64_t total_;
  bool enabled_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace stateport::replay
