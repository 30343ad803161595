// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

namespace stateport::detail {

/// The caller's clock in seconds, as the cache counts it: it goes on where it was when the caller's begins again.
class RequestClock {
 public:
  /// The caller's time, which is not before the one of the last call unless restart() came between. Answers the
  /// cache's.
  [[nodiscard]] double at(double caller_s) noexcept {
    caller_s_ = caller_s;
    offset_s_ = std::max(offset_s_, now_s_ - caller_s);
    return now_s_ = caller_s + offset_s_;
  }
  /// The caller's clock may not fall below it.
  [[nodiscard]] double least_s() const noexcept { return caller_s_; }
  void restart() noexcept { caller_s_ = 0; }

 private:
  double caller_s_ = 0;
  double offset_s_ = 0;  ///< the cache's clock is ahead by this
  double now_s_ = 0;
};

}  // namespace stateport::detail
