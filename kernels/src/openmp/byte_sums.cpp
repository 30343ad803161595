// SPDX-License-Identifier: Apache-2.0
#include "byte_sums.hpp"

#include "stream_copy.hpp"
#include "wide_vectors.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stateport::kernels {
namespace {

/// Copies words one by one if `dst` is not nullptr. The last one may be short.
PartSum add_words(std::byte* dst, const std::byte* src, std::size_t bytes, std::uint32_t first_word,
                  ExponentMask mask) noexcept {
  PartSum part;
  for (std::size_t at = 0; at < bytes; at += 4, ++first_word) {
    std::uint32_t word = 0;
    const std::size_t count = std::min<std::size_t>(bytes - at, 4);
    std::memcpy(&word, src + at, count);
    if (dst != nullptr) std::memcpy(dst + at, &word, count);
    part.add(word, first_word, mask);
  }
  return part;
}

constexpr std::size_t summed_line_bytes = 64;
constexpr std::uint32_t summed_line_words = summed_line_bytes / 4;

#if defined(__x86_64__)
enum class Store : std::uint8_t { none, cached, streamed };

/// The weights of the even words of a vector, or of the odd ones, in the low halves of its 64-bit lanes.
__attribute__((target("avx2"))) __m256i weights_from(std::uint32_t first_word) noexcept {
  const auto weight = [&](std::uint32_t word) { return static_cast<long long>(sum_weight(first_word + word)); };
  return _mm256_setr_epi64x(weight(0), weight(2), weight(4), weight(6));
}

/// Whole cache lines. `dst` is line-aligned where the stores bypass the caches.
template <Store store>
__attribute__((target("avx2"))) PartSum add_lines(std::byte* dst, const std::byte* src, std::size_t lines,
                                                  std::uint32_t first_word, ExponentMask mask) noexcept {
  const __m256i bits = _mm256_set1_epi32(static_cast<int>(mask.bits));
  const __m256i units = _mm256_set1_epi32(static_cast<int>(mask.units));
  const __m256i step = _mm256_set1_epi32(static_cast<int>(sum_weight_step * summed_line_words));
  __m256i low_even = weights_from(first_word);
  __m256i low_odd = weights_from(first_word + 1);
  __m256i high_even = weights_from(first_word + 8);
  __m256i high_odd = weights_from(first_word + 9);
  __m256i even_sum = _mm256_setzero_si256();
  __m256i odd_sum = _mm256_setzero_si256();
  __m256i exponents = _mm256_setzero_si256();
  for (std::size_t i = 0; i < lines; ++i, dst += summed_line_bytes, src += summed_line_bytes) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
    if constexpr (store == Store::streamed) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
    } else if constexpr (store == Store::cached) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst), low);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 32), high);
    }
    // A product takes the low halves of 64-bit lanes: the even words, and the odd ones when they are shifted down.
    even_sum = _mm256_add_epi64(even_sum, _mm256_mul_epu32(low, low_even));
    odd_sum = _mm256_add_epi64(odd_sum, _mm256_mul_epu32(_mm256_srli_epi64(low, 32), low_odd));
    even_sum = _mm256_add_epi64(even_sum, _mm256_mul_epu32(high, high_even));
    odd_sum = _mm256_add_epi64(odd_sum, _mm256_mul_epu32(_mm256_srli_epi64(high, 32), high_odd));
    exponents = _mm256_or_si256(exponents, _mm256_add_epi32(_mm256_and_si256(low, bits), units));
    exponents = _mm256_or_si256(exponents, _mm256_add_epi32(_mm256_and_si256(high, bits), units));
    low_even = _mm256_add_epi32(low_even, step);
    low_odd = _mm256_add_epi32(low_odd, step);
    high_even = _mm256_add_epi32(high_even, step);
    high_odd = _mm256_add_epi32(high_odd, step);
  }
  std::array<std::uint64_t, 4> sums;
  std::array<std::uint32_t, 8> found;
  const __m256i both = _mm256_add_epi64(even_sum, odd_sum);
  std::memcpy(sums.data(), &both, sizeof sums);
  std::memcpy(found.data(), &exponents, sizeof found);
  PartSum part;
  for (const std::uint64_t sum : sums) part.sum += sum;
  for (const std::uint32_t lane : found) part.exponents |= lane;
  return part;
}

/// The lines of a range, and the bytes behind them.
template <Store store>
PartSum add_range(std::byte* dst, const std::byte* src, std::size_t bytes, std::uint32_t first_word,
                  ExponentMask mask) noexcept {
  const std::size_t lines = bytes / summed_line_bytes;
  const std::size_t done = lines * summed_line_bytes;
  PartSum part = add_lines<store>(dst, src, lines, first_word, mask);
  part.add(add_words(store == Store::none ? nullptr : dst + done, src + done, bytes - done,
                     first_word + static_cast<std::uint32_t>(done / 4), mask));
  return part;
}
#endif

}  // namespace

PartSum sum_of_bytes(const std::byte* src, std::size_t bytes, std::uint32_t first_word, ExponentMask mask) noexcept {
#if defined(__x86_64__)
  static const bool wide = has_avx2();
  if (wide) return add_range<Store::none>(nullptr, src, bytes, first_word, mask);
#endif
  return add_words(nullptr, src, bytes, first_word, mask);
}

PartSum copy_and_sum(std::byte* dst, const std::byte* src, std::size_t bytes, std::uint32_t first_word,
                     ExponentMask mask, std::size_t nontemporal_min) noexcept {
  PartSum part;
#if defined(__x86_64__)
  static const bool wide = has_avx2();
  const std::size_t to_line =
      (summed_line_bytes - reinterpret_cast<std::uintptr_t>(dst) % summed_line_bytes) % summed_line_bytes;
  if (wide && bytes < nontemporal_min) return add_range<Store::cached>(dst, src, bytes, first_word, mask);
  if (wide && to_line % 4 == 0) {
    const std::size_t head = std::min(to_line, bytes);
    part = add_words(dst, src, head, first_word, mask);
    part.add(add_range<Store::streamed>(dst + head, src + head, bytes - head,
                                        first_word + static_cast<std::uint32_t>(head / 4), mask));
    return part;
  }
#endif
  // Pieces stay in the nearest cache until they are summed.
  constexpr std::size_t piece_bytes = 8192;
  for (std::size_t done = 0; done < bytes; done += piece_bytes) {
    const std::size_t count = std::min(piece_bytes, bytes - done);
    if (bytes < nontemporal_min)
      std::memcpy(dst + done, src + done, count);
    else
      stream_piece(dst + done, src + done, count);
    part.add(sum_of_bytes(src + done, count, first_word + static_cast<std::uint32_t>(done / 4), mask));
  }
  return part;
}

}  // namespace stateport::kernels
