// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// Byte ranges copied or zeroed by the lanes of one team, in words as wide as the alignment allows. Ranges are
/// tiles: 32 bits hold their sizes, and spare registers.
namespace stateport::kernels {

/// Unrolls the loop that follows on a device, where an array that a loop indexes would lie in memory; or leaves it as
/// it is, where more rounds at once would need more registers than there are.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define STATEPORT_UNROLL _Pragma("unroll")
#define STATEPORT_UNROLL_BY_FOUR _Pragma("unroll 4")
#define STATEPORT_NO_UNROLL _Pragma("unroll 1")
#else
#define STATEPORT_UNROLL
#define STATEPORT_UNROLL_BY_FOUR
#define STATEPORT_NO_UNROLL
#endif

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

/// Moves entries [0, count), which neighbouring lanes share out by turns: a thread calls load(i) for `in_flight` of its
/// entries before it calls store(i, loaded) for the first of them. Entries past the end are not stored, and in their
/// place the thread loads one of its own again, so that also the last group of a range waits for memory once.
template <std::uint32_t in_flight, class Load, class Store>
KOKKOS_INLINE_FUNCTION void move_in_groups(std::uint32_t lane, std::uint32_t lanes, std::uint32_t count,
                                           const Load& load, const Store& store) {
  using Loaded = decltype(load(std::uint64_t{lane}));
  std::uint32_t i = lane;
  // 64 bits, so that the entries of a group share one address register.
  const auto entry = [&](std::uint32_t k) { return std::uint64_t{i} + k * lanes; };
  STATEPORT_NO_UNROLL
  for (; i + (in_flight - 1) * lanes < count; i += in_flight * lanes) {
    Loaded loaded[in_flight];
    STATEPORT_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) loaded[k] = load(entry(k));
    STATEPORT_UNROLL
    for (std::uint32_t k = 0; k < in_flight; ++k) store(entry(k), loaded[k]);
  }
  if (i >= count) return;
  Loaded loaded[in_flight];
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < in_flight; ++k) loaded[k] = load(i + k * lanes < count ? entry(k) : i);
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < in_flight; ++k)
    if (i + k * lanes < count) store(entry(k), loaded[k]);
}

template <class Word>
KOKKOS_INLINE_FUNCTION void copy_words(std::uint32_t lane, std::uint32_t lanes, Word* dst, const Word* src,
                                       std::uint32_t count) {
  move_in_groups<loads_in_flight>(
      lane, lanes, count, [&](std::uint64_t i) { return src[i]; },
      [&](std::uint64_t i, const Word& word) { dst[i] = word; });
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
  move_in_groups<loads_in_flight>(
      lane, lanes, words, [&](std::uint64_t i) { return from[i] >> right | from[i + 1] << (32 - right); },
      [&](std::uint64_t i, std::uint32_t word) { to[i] = word; });
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
