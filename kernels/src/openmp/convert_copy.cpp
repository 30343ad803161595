// SPDX-License-Identifier: Apache-2.0
#include "convert_copy.hpp"

#include "../element_copy.hpp"
#include "stream_copy.hpp"
#include "wide_vectors.hpp"

#include <algorithm>
#include <array>

namespace stateport::kernels {
namespace {

void convert_plain(std::byte* dst, ElementType dst_type, const std::byte* src, ElementType src_type,
                   std::uint32_t count) noexcept {
  convert_range(0, 1, dst, dst_type, src, src_type, count);
}

#if defined(__x86_64__)
/// The same code, compiled for wider vectors: `flatten` takes the loops in, so that `target` holds for them.
__attribute__((target("avx2"), flatten)) void convert_avx2(std::byte* dst, ElementType dst_type, const std::byte* src,
                                                           ElementType src_type, std::uint32_t count) noexcept {
  convert_range(0, 1, dst, dst_type, src, src_type, count);
}
#else
constexpr auto convert_avx2 = convert_plain;
#endif

}  // namespace

void convert_copy(std::byte* dst, ElementType dst_type, const std::byte* src, ElementType src_type, std::uint32_t count,
                  std::size_t nontemporal_min) noexcept {
  static const auto convert = has_avx2() ? convert_avx2 : convert_plain;
  const std::uint64_t dst_bytes = element_bytes(dst_type);
  const std::uint64_t src_bytes = element_bytes(src_type);
  if (count * dst_bytes < nontemporal_min) return convert(dst, dst_type, src, src_type, count);
  // Pieces stay in the nearest cache until they are streamed to memory.
  constexpr std::uint32_t piece_elements = 2048;
  alignas(64) std::array<std::byte, piece_elements * 4> piece;
  for (std::uint32_t done = 0; done < count; done += piece_elements) {
    const std::uint32_t elements = std::min(piece_elements, count - done);
    convert(piece.data(), dst_type, src + done * src_bytes, src_type, elements);
    stream_piece(dst + done * dst_bytes, piece.data(), elements * dst_bytes);
  }
}

}  // namespace stateport::kernels
