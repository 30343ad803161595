// SPDX-License-Identifier: Apache-2.0
#include "copy_table.hpp"

#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::kernels {
namespace {

constexpr std::uint64_t tile_grain_elements = 16;  // keeps every tile of an aligned tensor 16-byte aligned

/// A pass of the GPU kernels over 1,024 rows counts its (row, tile) pairs in 32 bits.
constexpr std::size_t tiles_max = UINT32_MAX / 1024;

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

void require_fitting(const StateTensorView& src, const StateTensorView& dst) {
  require(src.spec.kind == dst.spec.kind, "source", static_cast<int>(src.spec.kind), "its tensors differ in kind");
  for (std::size_t axis = 0; axis < src.spec.shape.size(); ++axis)
    require(src.spec.shape[axis] == dst.spec.shape[axis], "source", src.spec.shape[axis],
            "its tensors differ in shape from the destination's");
  require(src.spec.type == dst.spec.type || (convertible(src.spec.type) && convertible(dst.spec.type)), "source",
          name(src.spec.type), "cannot be converted to the destination's element type");
  require(
      dst.spec.kind != StateKind::conv || std::max(src.spec.natural_bytes(), dst.spec.natural_bytes()) <= UINT32_MAX,
      "source", dst.spec.natural_bytes(), "a conv state must have fewer than 2^32 bytes");
}

TensorRoute route_of(const StateTensorView& src, const StateTensorView& dst) {
  const bool transposed = src.spec.kind == StateKind::conv && src.spec.conv_layout != dst.spec.conv_layout;
  const bool same = src.spec.type == dst.spec.type && !transposed;
  return {.src = src.base,
          .dst = dst.base,
          .src_stride_bytes = src.slot_stride_bytes,
          .dst_stride_bytes = dst.slot_stride_bytes,
          .window = dst.spec.window(),
          .dim = dst.spec.dim(),
          .element_bytes = static_cast<std::int32_t>(element_bytes(dst.spec.type)),
          .src_type = src.spec.type,
          .dst_type = dst.spec.type,
          .kind = dst.spec.kind,
          .mode = same ? TensorRoute::Mode::bytes : TensorRoute::Mode::elements,
          .src_layout = src.spec.conv_layout,
          .dst_layout = dst.spec.conv_layout};
}

template <class T>
Buffer upload(MemoryResource& resource, const std::vector<T>& values) {
  const Stream stream = Stream::default_stream();
  Buffer buffer(resource, values.size() * sizeof(T));
  copy_bytes(stream, buffer.data(), values.data(), values.size() * sizeof(T));
  stream.synchronize();
  return buffer;
}

}  // namespace

void append_tiles(std::vector<Tile>& tiles, std::uint32_t tensor, std::uint64_t elements, std::size_t element_bytes,
                  std::size_t tile_bytes_max) {
  const std::uint64_t elements_max = tile_bytes_max / element_bytes;
  const std::uint64_t count = ceil_div(elements, elements_max);
  const std::uint64_t grains = ceil_div(elements, tile_grain_elements);
  const std::uint64_t per_tile = ceil_div(grains, count) * tile_grain_elements;
  for (std::uint64_t first = 0; first < elements; first += per_tile)
    tiles.push_back({.tensor = tensor,
                     .elements = static_cast<std::uint32_t>(std::min(per_tile, elements - first)),
                     .first_element = first});
}

CopyTable::CopyTable(std::span<const StateStore* const> sources, const StateStore& destination,
                     std::size_t tile_bytes_max)
    : tensor_count_(static_cast<std::uint32_t>(destination.tensors().size())) {
  std::vector<TensorRoute> routes;
  for (const StateStore* source : sources) {
    require(source->tensors().size() == tensor_count_, "source", source->tensors().size(),
            "has another number of tensors than the destination");
    for (std::size_t i = 0; i < tensor_count_; ++i) {
      require_fitting(source->tensors()[i], destination.tensors()[i]);
      routes.push_back(route_of(source->tensors()[i], destination.tensors()[i]));
    }
  }
  converts_ =
      std::ranges::any_of(routes, [](const TensorRoute& route) { return route.mode == TensorRoute::Mode::elements; });
  shiftable_ = std::ranges::none_of(routes, [](const TensorRoute& route) {
    return route.kind == StateKind::conv && route.mode == TensorRoute::Mode::elements;
  });
  for (const StateTensorView& tensor : destination.tensors())
    if (tensor.spec.kind == StateKind::conv) window_min_ = std::min(window_min_, tensor.spec.window());
  std::vector<Tile> tiles;
  for (std::uint32_t i = 0; i < tensor_count_; ++i) {
    const StateTensorSpec& spec = destination.tensors()[i].spec;
    append_tiles(tiles, i, static_cast<std::uint64_t>(spec.element_count()), element_bytes(spec.type), tile_bytes_max);
  }
  std::vector<std::uint64_t> begin_bytes = {0};
  for (const Tile& tile : tiles)
    begin_bytes.push_back(begin_bytes.back() +
                          tile.elements * element_bytes(destination.tensors()[tile.tensor].spec.type));
  require(tiles.size() <= tiles_max, "tiles", tiles.size(),
          "a state has too many bytes: one pass over rows counts in 32 bits");
  tile_count_ = static_cast<std::uint32_t>(tiles.size());
  routes_ = upload(resource_, routes);
  tiles_ = upload(resource_, tiles);
  tile_begin_bytes_ = upload(resource_, begin_bytes);
}

CopyTableView CopyTable::view() const noexcept {
  return {.routes = routes_.as<TensorRoute>(),
          .tiles = tiles_.as<Tile>(),
          .tile_begin_bytes = tile_begin_bytes_.as<std::uint64_t>(),
          .tensor_count = tensor_count_,
          .tile_count = tile_count_,
          .converts = converts_};
}

}  // namespace stateport::kernels
