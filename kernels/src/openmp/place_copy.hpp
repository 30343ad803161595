// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../copy_table.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stateport::kernels {

/// Elements [first, first + count) of a route with equal types, from place to place: run by run along the inner
/// dimension of the destination, the tokens of a channel or the channels of a token. `bytes`: of an element.
template <std::size_t bytes>
void copy_places(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t first,
                 std::uint32_t count) noexcept {
  struct Steps {
    std::size_t inner;
    std::size_t outer;
  };
  const auto steps = [&](const RouteStrides& strides) -> Steps {
    const std::size_t token = strides.token * bytes;
    const std::size_t channel = strides.channel * bytes;
    return route.token_inner ? Steps{token, channel} : Steps{channel, token};
  };
  const Steps to = steps(route.dst_strides);
  const Steps from = steps(route.src_strides);
  const std::uint32_t run = route.token_inner ? route.window : route.dim;
  std::uint32_t outer = first / run;
  std::uint32_t at = first % run;
  for (std::uint32_t left = count; left > 0; ++outer, at = 0) {
    const std::uint32_t elements = std::min(run - at, left);
    std::byte* write = dst + outer * to.outer + at * to.inner;
    const std::byte* read = src + outer * from.outer + at * from.inner;
    for (std::uint32_t i = 0; i < elements; ++i, write += to.inner, read += from.inner) std::memcpy(write, read, bytes);
    left -= elements;
  }
}

/// False, and nothing done: types differ, or elements have another size.
inline bool copy_places(const TensorRoute& route, std::byte* dst, const std::byte* src, std::uint32_t first,
                        std::uint32_t count) noexcept {
  if (route.src_type != route.dst_type) return false;
  if (route.element_bytes == 2)
    copy_places<2>(route, dst, src, first, count);
  else if (route.element_bytes == 4)
    copy_places<4>(route, dst, src, first, count);
  else
    return false;
  return true;
}

}  // namespace stateport::kernels
