// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// Byte ranges copied or zeroed by the lanes of one team, in words as wide as the alignment allows. Ranges are
/// tiles: 32 bits hold their sizes, and spare registers.
namespace stateport::kernels {

/// The widest access of one thread: one 16-byte load or store. A vector where the compiler has them: clang for gfx942
/// keeps structs of the copy loops in memory and writes them there in every round.
#if defined(__clang__)
using Word16 = std::uint32_t __attribute__((ext_vector_type(4)));
#else
struct alignas(16) Word16 {
  std::uint32_t x, y, z, w;
};
#endif

/// Independent loads per thread before the first store; 256 lanes x 4 x 16 bytes keep 16 KiB in flight per team.
inline constexpr std::uint32_t loads_in_flight = 4;

template <class Word>
KOKKOS_INLINE_FUNCTION void copy_words(std::uint32_t lane, std::uint32_t lanes, Word* dst, const Word* src,
                                       std::uint32_t count) {
  std::uint32_t i = lane;
  for (; i + (loads_in_flight - 1) * lanes < count; i += loads_in_flight * lanes) {
    const Word first = src[i];
    const Word second = src[i + lanes];
    const Word third = src[i + 2 * lanes];
    const Word fourth = src[i + 3 * lanes];
    dst[i] = first;
    dst[i + lanes] = second;
    dst[i + 2 * lanes] = third;
    dst[i + 3 * lanes] = fourth;
  }
  for (; i < count; i += lanes) dst[i] = src[i];
}

/// A range whose two ends agree modulo sizeof(Word): bytes up to the first word boundary, words, bytes.
template <class Word>
KOKKOS_INLINE_FUNCTION void copy_as_words(std::uint32_t lane, std::uint32_t lanes, std::byte* dst, const std::byte* src,
                                          std::uint32_t bytes) {
  const auto misaligned = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(dst) % sizeof(Word));
  std::uint32_t head = misaligned == 0 ? 0 : static_cast<std::uint32_t>(sizeof(Word)) - misaligned;
  if (head > bytes) head = bytes;
  const std::uint32_t words = (bytes - head) / static_cast<std::uint32_t>(sizeof(Word));
  const std::uint32_t tail_begin = head + words * static_cast<std::uint32_t>(sizeof(Word));
  for (std::uint32_t i = lane; i < head; i += lanes) dst[i] = src[i];
  copy_words(lane, lanes, reinterpret_cast<Word*>(dst + head), reinterpret_cast<const Word*>(src + head), words);
  for (std::uint32_t i = tail_begin + lane; i < bytes; i += lanes) dst[i] = src[i];
}

/// A range whose two ends differ modulo 4: aligned stores of words that are put together from two neighbouring aligned
/// loads. No load leaves the range.
KOKKOS_INLINE_FUNCTION void copy_through_funnel(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                                const std::byte* src, std::uint32_t bytes) {
  const auto dst_offset = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(dst) % 4);
  std::uint32_t head = (4 - dst_offset) % 4;
  const auto src_offset = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(src + head) % 4);
  if (head < src_offset) head += 4;
  if (head > bytes) head = bytes;
  std::uint32_t words = (bytes - head) / 4;
  if (words > 0 && (bytes - head) % 4 < 4 - src_offset) --words;
  const auto* const from = reinterpret_cast<const std::uint32_t*>(src + head - src_offset);
  auto* const to = reinterpret_cast<std::uint32_t*>(dst + head);
  const std::uint32_t right = 8 * src_offset;
  for (std::uint32_t i = lane; i < words; i += lanes) to[i] = from[i] >> right | from[i + 1] << (32 - right);
  for (std::uint32_t i = lane; i < head; i += lanes) dst[i] = src[i];
  for (std::uint32_t i = head + words * 4 + lane; i < bytes; i += lanes) dst[i] = src[i];
}

/// Any alignment of either end; the ranges do not overlap.
KOKKOS_INLINE_FUNCTION void copy_bytes_by_lanes(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                                const std::byte* src, std::uint32_t bytes) {
  const std::uint64_t difference = reinterpret_cast<std::uintptr_t>(dst) ^ reinterpret_cast<std::uintptr_t>(src);
  if (difference % sizeof(Word16) == 0) return copy_as_words<Word16>(lane, lanes, dst, src, bytes);
  if (difference % 4 == 0) return copy_as_words<std::uint32_t>(lane, lanes, dst, src, bytes);
  copy_through_funnel(lane, lanes, dst, src, bytes);
}

KOKKOS_INLINE_FUNCTION void zero_bytes_by_lanes(std::uint32_t lane, std::uint32_t lanes, std::byte* dst,
                                                std::uint32_t bytes) {
  const auto misaligned = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(dst) % sizeof(Word16));
  std::uint32_t head = misaligned == 0 ? 0 : static_cast<std::uint32_t>(sizeof(Word16)) - misaligned;
  if (head > bytes) head = bytes;
  const std::uint32_t words = (bytes - head) / static_cast<std::uint32_t>(sizeof(Word16));
  auto* const aligned = reinterpret_cast<Word16*>(dst + head);
  for (std::uint32_t i = lane; i < head; i += lanes) dst[i] = std::byte{0};
  for (std::uint32_t i = lane; i < words; i += lanes) aligned[i] = Word16{0, 0, 0, 0};
  for (std::uint32_t i = head + words * static_cast<std::uint32_t>(sizeof(Word16)) + lane; i < bytes; i += lanes)
    dst[i] = std::byte{0};
}

}  // namespace stateport::kernels
