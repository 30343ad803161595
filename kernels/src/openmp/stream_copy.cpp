// SPDX-License-Identifier: Apache-2.0
#include "stream_copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stateport::kernels {

#if defined(__x86_64__)
namespace {

constexpr std::size_t line_bytes = 64;

/// Whole cache lines; dst is line-aligned. Plain AVX, not AVX-512: the stores are limited by memory, not by width.
__attribute__((target("avx"))) void stream_lines_avx(std::byte* dst, const std::byte* src, std::size_t lines) noexcept {
  for (std::size_t i = 0; i < lines; ++i, dst += line_bytes, src += line_bytes) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
  }
}

void stream_lines_sse2(std::byte* dst, const std::byte* src, std::size_t lines) noexcept {
  for (std::size_t i = 0; i < lines * 4; ++i, dst += 16, src += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst), _mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
}

}  // namespace

void stream_piece(std::byte* dst, const std::byte* src, std::size_t bytes) noexcept {
  const std::size_t to_line = (line_bytes - reinterpret_cast<std::uintptr_t>(dst) % line_bytes) % line_bytes;
  const std::size_t head = std::min(to_line, bytes);
  const std::size_t lines = (bytes - head) / line_bytes;
  const std::size_t tail = bytes - head - lines * line_bytes;
  std::memcpy(dst, src, head);
  static const bool has_avx = __builtin_cpu_supports("avx");
  (has_avx ? stream_lines_avx : stream_lines_sse2)(dst + head, src + head, lines);
  std::memcpy(dst + bytes - tail, src + bytes - tail, tail);
}

void finish_stream_copies() noexcept {
  _mm_sfence();
}
#else
void stream_piece(std::byte* dst, const std::byte* src, std::size_t bytes) noexcept {
  std::memcpy(dst, src, bytes);
}
void finish_stream_copies() noexcept {}
#endif

void stream_copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t nontemporal_min) noexcept {
  if (bytes < nontemporal_min)
    std::memcpy(dst, src, bytes);
  else
    stream_piece(dst, src, bytes);
}

}  // namespace stateport::kernels
