// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace stateport::replay {

/// A way for bytes that transfers share, first come, first served: each takes its bytes over the bandwidth, and arrives
/// one latency after its last byte was sent. Both directions share the bandwidth.
class Link {
 public:
  /// bytes_per_s 0: not known, and bytes take no time.
  Link(double bytes_per_s, double latency_s) noexcept : bytes_per_s_(bytes_per_s), latency_s_(latency_s) {}

  /// When these bytes have arrived, if they come to the link now. `now_s` never goes back.
  double send(double now_s, std::int64_t bytes) noexcept {
    const double takes_s = bytes_per_s_ > 0 ? static_cast<double>(bytes) / bytes_per_s_ : 0;
    free_s_ = std::max(free_s_, now_s) + takes_s;
    busy_s_ += takes_s;
    bytes_ += bytes;
    return free_s_ + latency_s_;
  }
  /// When a message without bytes has been answered. It waits for no transfer.
  [[nodiscard]] double ask(double now_s) const noexcept { return now_s + latency_s_; }

  /// Nothing is on its way any more.
  void clear() noexcept { free_s_ = 0; }

  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] double busy_s() const noexcept { return busy_s_; }

 private:
  double bytes_per_s_;
  double latency_s_;
  double free_s_ = 0;
  double busy_s_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace stateport::replay
