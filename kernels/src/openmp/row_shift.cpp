// SPDX-License-Identifier: Apache-2.0
#include "row_shift.hpp"

#include <array>
#include <cstdint>
#include <cstring>

namespace stateport::kernels {
namespace {

constexpr std::size_t step_bytes = 32;

using Words = std::array<std::uint64_t, step_bytes / 8>;

Words load(const void* from) noexcept {
  Words words;
  std::memcpy(words.data(), from, step_bytes);
  return words;
}

/// For every byte of a row, repeated: all ones if the shift writes it. Read at any phase of a row.
class RowMask {
 public:
  RowMask(std::size_t row_bytes, std::size_t kept_bytes) noexcept {
    for (std::size_t i = 0; i < row_bytes + step_bytes; ++i)
      bytes_[i] = i % row_bytes < kept_bytes ? std::uint8_t{0xFF} : std::uint8_t{0};
  }
  [[nodiscard]] Words at(std::size_t phase) const noexcept { return load(bytes_.data() + phase); }
  [[nodiscard]] bool writes(std::size_t phase) const noexcept { return bytes_[phase] != 0; }

 private:
  std::array<std::uint8_t, short_row_bytes_max + step_bytes> bytes_;
};

}  // namespace

void shift_short_rows(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t row_bytes,
                      std::size_t shift_bytes) noexcept {
  const RowMask mask(row_bytes, row_bytes - shift_bytes);
  const std::size_t phase_step = step_bytes % row_bytes;
  std::size_t phase = 0;
  std::size_t at = 0;
  // In place, a step reads ahead of its writes, and later steps only behind them.
  for (; at + step_bytes + shift_bytes <= bytes; at += step_bytes) {
    const Words moved = load(src + at + shift_bytes);
    const Words old = load(dst + at);
    const Words taken = mask.at(phase);
    Words merged;
    for (std::size_t i = 0; i < merged.size(); ++i) merged[i] = (moved[i] & taken[i]) | (old[i] & ~taken[i]);
    std::memcpy(dst + at, merged.data(), step_bytes);
    phase += phase_step;
    if (phase >= row_bytes) phase -= row_bytes;
  }
  for (; at < bytes; ++at)
    if (mask.writes(at % row_bytes)) dst[at] = src[at + shift_bytes];
}

}  // namespace stateport::kernels
