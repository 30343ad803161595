// SPDX-License-Identifier: Apache-2.0
#include "runs/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace stateport::replay {

ProgressBar::ProgressBar(std::int64_t total)
    : total_(total), enabled_(isatty(STDERR_FILENO) == 1 && total > 0), begin_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() {
  if (enabled_) std::fputs("\r\033[K", stderr);  // the summary follows on a clean line
}

void ProgressBar::show(std::int64_t done) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(200);
  constexpr std::int64_t width = 40;
  const auto filled = static_cast<std::size_t>(done * width / total_);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double left = seconds * static_cast<double>(total_ - done) / static_cast<double>(done > 0 ? done : 1);
  const std::string line = fmt::format("\r[{}{}] {} of {} requests, {:.0f} s left \033[K", std::string(filled, '#'),
                                       std::string(width - filled, '.'), done, total_, left);
  std::fputs(line.c_str(), stderr);
}

}  // namespace stateport::replay
