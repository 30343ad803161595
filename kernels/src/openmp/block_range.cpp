// SPDX-License-Identifier: Apache-2.0
#include "block_range.hpp"

#include "../block_copy.hpp"
#include "convert_copy.hpp"
#include "stream_copy.hpp"
#include "wide_vectors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

namespace stateport::kernels {
namespace {

constexpr std::uint32_t whole = block_elements;

/// As encode_block. `Count`: std::uint32_t, or a constant, so that loops have a known length and no remainder.
template <class From, class Count>
void encode_one(std::byte* values, std::byte* scale_at, const std::byte* src, Count count) {
  typename From::Bits in[whole];
  std::memcpy(in, src, count * sizeof in[0]);
  float element[whole];
  std::int32_t magnitude = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    element[k] = From::load(in[k]);
    magnitude = std::max(magnitude, convert::magnitude_bits(element[k]));
  }
  const std::uint16_t scale = convert::block_scale(magnitude);
  std::memcpy(scale_at, &scale, sizeof scale);
  std::uint8_t out[whole] = {};
  if (convert::divides(scale)) {
    const float divisor = convert::fp16_to_fp32(scale);
    for (std::uint32_t k = 0; k < count; ++k)
      out[k] = static_cast<std::uint8_t>(convert::block_value(element[k], divisor));
  }
  std::memcpy(values, out, count);
}

/// As decode_block.
template <class To, class Count>
void decode_one(std::byte* dst, const std::byte* values, const std::byte* scale_at, Count count) {
  std::int8_t in[whole];
  std::memcpy(in, values, count);
  std::uint16_t scale;
  std::memcpy(&scale, scale_at, sizeof scale);
  typename To::Bits out[whole];
  if (convert::decodes_to_nan(scale)) {
    std::fill_n(out, whole, To::store(convert::block_nan()));
  } else {
    const float factor = convert::fp16_to_fp32(scale);
    for (std::uint32_t k = 0; k < count; ++k) out[k] = To::store(convert::block_element(in[k], factor));
  }
  std::memcpy(dst, out, count * sizeof out[0]);
}

/// Blocks [first, first + count) of a slot whose values begin at `values` and whose scales at `scales`: those of block
/// `first`. `elements`: those of the other slot. `body(elements, values, scale, count)` does one block.
template <std::size_t element_bytes, class Elements, class Bytes, class Body>
void for_blocks(const TensorRoute& route, Elements* elements, Bytes* values, Bytes* scales, std::uint32_t first,
                std::uint32_t count, const Body& body) {
  constexpr auto scale_bytes = static_cast<std::size_t>(BlockLayout::scale_bytes);
  if (route.dim % whole == 0) {
    for (std::size_t i = 0; i < count; ++i)
      body(elements + i * whole * element_bytes, values + i * whole, scales + i * scale_bytes,
           std::integral_constant<std::uint32_t, whole>{});
    return;
  }
  const std::uint64_t begin = route.block_begin(first);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t at = route.block_begin(first + i) - begin;
    const auto elements_of_block = static_cast<std::uint32_t>(route.block_begin(first + i + 1) - begin - at);
    body(elements + at * element_bytes, values + at, scales + i * scale_bytes, elements_of_block);
  }
}

template <class From>
void encode(const TensorRoute& route, std::byte* dst, std::byte* scales, const std::byte* src, std::uint32_t first,
            std::uint32_t count) {
  for_blocks<sizeof(typename From::Bits)>(route, src, dst, scales, first, count,
                                          [](const std::byte* elements, std::byte* values, std::byte* scale, auto n) {
                                            encode_one<From>(values, scale, elements, n);
                                          });
}
template <class To>
void decode(const TensorRoute& route, std::byte* dst, const std::byte* src, const std::byte* scales,
            std::uint32_t first, std::uint32_t count) {
  for_blocks<sizeof(typename To::Bits)>(route, dst, src, scales, first, count,
                                        [](std::byte* elements, const std::byte* values, const std::byte* scale,
                                           auto n) { decode_one<To>(elements, values, scale, n); });
}

/// Encodes or decodes blocks. `dst`, `src`: where block `first` begins; `scales` of the side that is in blocks: where
/// its scale lies.
struct Sides {
  std::byte* dst;
  std::byte* dst_scales;
  const std::byte* src;
  const std::byte* src_scales;
};

/// Encodes or decodes `count` blocks from `first` on, which `sides` are of.
inline void convert_blocks(const TensorRoute& route, const Sides& sides, std::uint32_t first, std::uint32_t count) {
  const bool encodes = in_blocks(route.dst_type);
  switch (encodes ? route.src_type : route.dst_type) {
    case ElementType::fp16:
      return encodes ? encode<Fp16>(route, sides.dst, sides.dst_scales, sides.src, first, count)
                     : decode<Fp16>(route, sides.dst, sides.src, sides.src_scales, first, count);
    case ElementType::bf16:
      return encodes ? encode<Bf16>(route, sides.dst, sides.dst_scales, sides.src, first, count)
                     : decode<Bf16>(route, sides.dst, sides.src, sides.src_scales, first, count);
    default:
      return encodes ? encode<Fp32>(route, sides.dst, sides.dst_scales, sides.src, first, count)
                     : decode<Fp32>(route, sides.dst, sides.src, sides.src_scales, first, count);
  }
}

void convert_blocks_plain(const TensorRoute& route, const Sides& sides, std::uint32_t first, std::uint32_t count) {
  convert_blocks(route, sides, first, count);
}

#if defined(__x86_64__)
/// The same code, compiled for wider vectors: `flatten` takes the loops in, so that `target` holds for them.
__attribute__((target("avx2"), flatten)) void convert_blocks_avx2(const TensorRoute& route, const Sides& sides,
                                                                  std::uint32_t first, std::uint32_t count) {
  convert_blocks(route, sides, first, count);
}
#else
constexpr auto convert_blocks_avx2 = convert_blocks_plain;
#endif

/// Bytes that these blocks take in the destination, scales apart.
std::size_t written_bytes(const TensorRoute& route, std::uint32_t first, std::uint32_t count) {
  return std::size_t{elements_of(route, first, count).count} * route.element_bytes;
}

/// Blocks that are in blocks on both sides, or on none.
void move_range(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t first,
                std::uint32_t count, std::size_t nontemporal_min) {
  const BlockElements range = elements_of(route, first, count);
  const std::uint64_t bytes = route.element_bytes;
  if (route.src_type != route.dst_type)
    return convert_copy(dst + range.first * bytes, route.dst_type, src + range.first * element_bytes(route.src_type),
                        route.src_type, range.count, nontemporal_min);
  stream_copy(dst + range.first * bytes, src + range.first * bytes, range.count * bytes, nontemporal_min);
  if (in_blocks(route.dst_type))
    std::memcpy(dst + route.scale_offset(first), src + route.scale_offset(first),
                std::size_t{count} * BlockLayout::scale_bytes);
}

}  // namespace

void copy_block_range(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t first,
                      std::uint32_t count, std::size_t nontemporal_min) noexcept {
  static const auto convert = has_avx2() ? convert_blocks_avx2 : convert_blocks_plain;
  if (in_blocks(route.src_type) == in_blocks(route.dst_type))
    return move_range(route, dst, src, first, count, nontemporal_min);
  const auto sides = [&](std::uint32_t block) {
    const std::uint64_t begin = route.block_begin(block);
    const std::uint64_t scale = route.scale_offset(block);
    return Sides{dst + begin * route.element_bytes, dst + scale, src + begin * element_bytes(route.src_type),
                 src + scale};
  };
  if (written_bytes(route, first, count) < nontemporal_min) return convert(route, sides(first), first, count);
  // Pieces stay in the nearest cache until they are streamed to memory.
  constexpr std::uint32_t piece_blocks = 64;
  alignas(64) std::array<std::byte, std::size_t{piece_blocks} * whole * sizeof(float)> piece;
  for (std::uint32_t done = 0; done < count; done += piece_blocks) {
    const std::uint32_t blocks = std::min(piece_blocks, count - done);
    Sides of_piece = sides(first + done);
    std::byte* const to = std::exchange(of_piece.dst, piece.data());
    convert(route, of_piece, first + done, blocks);
    stream_piece(to, piece.data(), written_bytes(route, first + done, blocks));
  }
}

}  // namespace stateport::kernels
