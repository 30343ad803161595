// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace stateport::fuzz {

/// Ends the program as a finding unless `ok`.
inline void expect(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "not as it must be: %s\n", what);
  std::abort();
}

/// Values drawn from the bytes of an input. Behind its end everything is 0.
class ByteSource {
 public:
  ByteSource(const std::uint8_t* data, std::size_t size) noexcept : bytes_(data, size) {}

  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }

  template <class Value = std::uint8_t>
  [[nodiscard]] Value take() noexcept {
    static_assert(std::is_arithmetic_v<Value>);
    Value value = {};
    const std::size_t count = std::min(sizeof value, bytes_.size());
    if (count > 0) std::memcpy(&value, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
    return value;
  }
  /// In [0, end). `end` > 0.
  [[nodiscard]] std::uint32_t below(std::uint32_t end) noexcept {
    return end <= 256 ? take() % end : take<std::uint16_t>() % end;
  }
  /// True for `times` of 256 values of a byte.
  [[nodiscard]] bool chance(int times) noexcept { return 255 - take() < times; }
  /// As many as there are, at most `count`.
  [[nodiscard]] std::span<const std::uint8_t> take_bytes(std::size_t count) noexcept {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  [[nodiscard]] std::string take_text(std::size_t count) {
    const auto taken = take_bytes(count);
    return {taken.begin(), taken.end()};
  }
  [[nodiscard]] std::string rest() { return take_text(bytes_.size()); }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace stateport::fuzz
