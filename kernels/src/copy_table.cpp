// SPDX-License-Identifier: Apache-2.0
#include "copy_table.hpp"

#include <stateport/backends/internal/device_checks.hpp>
#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <numeric>

namespace stateport::kernels {
namespace {

constexpr std::uint64_t tile_grain_elements = 16;  // keeps every tile of an aligned tensor 16-byte aligned

/// A pass of the GPU kernels over 1,024 rows counts its (row, tile) pairs, and the parts of some of them, in 32 bits.
constexpr std::size_t tiles_max = UINT32_MAX / 2048;

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}

void require_fitting(const StateTensorView& src, const StateTensorView& dst) {
  require(src.spec.kind == dst.spec.kind, "source", static_cast<int>(src.spec.kind), "its tensors differ in kind");
  for (std::size_t axis = 0; axis < src.spec.shape.size(); ++axis)
    require(src.spec.shape[axis] == dst.spec.shape[axis], "source", src.spec.shape[axis],
            "its tensors differ in shape from the destination's");
  require(convertible(src.spec.type, dst.spec.type), "source", name(src.spec.type),
          "cannot be converted to the destination's element type");
  require(dst.spec.kind != StateKind::conv || std::max(src.spec.extent_bytes(), dst.spec.extent_bytes()) <= UINT32_MAX,
          "source", std::max(src.spec.extent_bytes(), dst.spec.extent_bytes()),
          "a conv state must have fewer than 2^32 bytes");
}

/// Strides of extents of 1 are never used, so they are the same whatever they say.
RouteStrides strides_of(const StateTensorSpec& spec) {
  const ConvStrides strides = spec.conv_strides();
  return {.token = spec.window() == 1 ? 0 : static_cast<std::uint32_t>(strides.token),
          .channel = spec.dim() == 1 ? 0 : static_cast<std::uint32_t>(strides.channel)};
}

void add_conv(TensorRoute& route, const StateTensorSpec& src, const StateTensorSpec& dst) {
  route.window = static_cast<std::uint32_t>(dst.window());
  route.dim = static_cast<std::uint32_t>(dst.dim());
  route.src_strides = strides_of(src);
  route.dst_strides = strides_of(dst);
  route.token_inner = dst.conv_strides().token < dst.conv_strides().channel;
  route.dst_dense = dst.dense();
  const bool same_places =
      route.src_strides.token == route.dst_strides.token && route.src_strides.channel == route.dst_strides.channel;
  if (!same_places || !route.dst_dense) route.mode = TensorRoute::Mode::elements;
}

void count_in_blocks(TensorRoute& route, const StateTensorSpec& spec) {
  const BlockLayout layout = spec.block_layout();
  require(layout.rows <= UINT32_MAX && layout.row_elements <= UINT32_MAX && layout.blocks() < UINT32_MAX, "source",
          layout.blocks(), "a tensor in blocks must have fewer than 2^32 of them, and of rows");
  route.window = static_cast<std::uint32_t>(layout.rows);
  route.dim = static_cast<std::uint32_t>(layout.row_elements);
  route.mode = TensorRoute::Mode::blocks;
  route.dst_dense = false;
}

TensorRoute route_of(const StateTensorView& src, const StateTensorView& dst) {
  TensorRoute route{.src = src.base,
                    .dst = dst.base,
                    .src_stride_bytes = src.slot_stride_bytes,
                    .dst_stride_bytes = dst.slot_stride_bytes,
                    .element_bytes = static_cast<std::uint8_t>(element_bytes(dst.spec.type)),
                    .src_type = src.spec.type,
                    .dst_type = dst.spec.type,
                    .kind = dst.spec.kind,
                    .mode = src.spec.type == dst.spec.type ? TensorRoute::Mode::bytes : TensorRoute::Mode::convert};
  if (dst.spec.kind == StateKind::conv) add_conv(route, src.spec, dst.spec);
  return route;
}

/// Bytes of a whole block as elements of this type.
std::size_t block_bytes(ElementType type) {
  constexpr std::size_t elements = BlockLayout::block_elements;
  return in_blocks(type) ? elements + BlockLayout::scale_bytes : elements * element_bytes(type);
}

/// The unit of the tiles of one tensor.
struct Units {
  std::uint64_t count;
  std::size_t bytes;         ///< of one in the destination; of a block, in the widest type
  std::size_t widest_bytes;  ///< of one in the widest type, or when it is converted
};

/// The tensors of a store in the order of layers; those of one layer stay in their order.
std::vector<std::uint32_t> in_layer_order(std::span<const StateTensorView> tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return tensors[i].spec.layer; });
  return order;
}

using Tensors = std::span<const StateTensorView>;

/// [sources, tensors]. `units` are those of tensors without blocks, and become those of tensors that are in blocks
/// anywhere: all routes of a tensor count alike.
std::vector<TensorRoute> routes_of(const std::vector<Tensors>& sources, Tensors destination,
                                   std::vector<Units>& units) {
  std::vector<TensorRoute> routes;
  for (const Tensors source : sources) {
    require(source.size() == destination.size(), "source", source.size(),
            "has another number of tensors than the destination");
    for (std::size_t i = 0; i < destination.size(); ++i) {
      detail::require_reachable(source[i].base, "source");
      detail::require_reachable(destination[i].base, "destination");
      require_fitting(source[i], destination[i]);
      routes.push_back(route_of(source[i], destination[i]));
      if (routes.back().mode == TensorRoute::Mode::convert) units[i].widest_bytes = sizeof(float);
    }
  }
  for (std::size_t i = 0; i < destination.size(); ++i) {
    const StateTensorSpec& spec = destination[i].spec;
    const auto source_in_blocks = [i](Tensors source) { return in_blocks(source[i].spec.type); };
    if (!in_blocks(spec.type) && std::ranges::none_of(sources, source_in_blocks)) continue;
    units[i] = {.count = static_cast<std::uint64_t>(spec.block_layout().blocks()),
                .bytes = block_bytes(spec.type),
                .widest_bytes = 0};
    for (std::size_t s = 0; s < sources.size(); ++s) {
      units[i].bytes = std::max(units[i].bytes, block_bytes(sources[s][i].spec.type));
      count_in_blocks(routes[s * destination.size() + i], spec);
    }
    units[i].widest_bytes = units[i].bytes;
  }
  return routes;
}

/// The tile as copies by this route need it.
Tile routed(Tile tile, const TensorRoute& route) {
  tile.src = route.src + tile.first_element * element_bytes(route.src_type);
  tile.dst = route.dst + tile.first_element * route.element_bytes;
  tile.src_stride_bytes = route.src_stride_bytes;
  tile.dst_stride_bytes = route.dst_stride_bytes;
  tile.window = route.window;
  tile.dim = route.dim;
  tile.element_bytes = route.element_bytes;
  tile.kind = route.kind;
  tile.mode = route.mode;
  tile.src_type = route.src_type;
  tile.token_inner = route.token_inner;
  return tile;
}

/// Whether the tiles of a tensor of so many elements are aligned in every slot; see CopyTableView.
bool is_aligned(const TensorRoute& route, std::uint64_t elements) {
  const auto aligned = [](auto value) { return value % 16 == 0; };
  if (!aligned(reinterpret_cast<std::uintptr_t>(route.src)) || !aligned(reinterpret_cast<std::uintptr_t>(route.dst)) ||
      !aligned(route.src_stride_bytes) || !aligned(route.dst_stride_bytes))
    return false;
  if (route.mode == TensorRoute::Mode::bytes) return aligned(elements * route.element_bytes);
  const bool has_fp16 = route.src_type == ElementType::fp16 || route.dst_type == ElementType::fp16;
  return route.mode == TensorRoute::Mode::convert && !has_fp16 && elements % 4 == 0;
}

/// Whether shifts of a tensor with aligned tiles move whole words; see CopyCode::words.
bool shifts_words(const TensorRoute& route) {
  if (route.kind != StateKind::conv) return true;
  constexpr std::uint32_t row_bytes_max = 256;
  const std::uint32_t element = route.element_bytes;
  return (element == 2 || element == 4) &&
         (route.token_inner ? route.window * element <= row_bytes_max : route.dim * element % 16 == 0);
}

CopyCode code_for(const TensorRoute& route, bool aligned) {
  if (route.mode == TensorRoute::Mode::blocks) return CopyCode::blocks;
  const bool words = aligned && route.mode == TensorRoute::Mode::bytes && shifts_words(route);
  return words ? CopyCode::words : CopyCode::elements;
}

/// Whether a copy crosses between the memory of the device and pinned memory of the host, where the copy engine is as
/// fast as the link.
bool crosses_to_device(const std::byte* src, const std::byte* dst) {
  using Kind = detail::MemoryPlace::Kind;
  const Kind from = detail::place_of(src).kind;
  const Kind to = detail::place_of(dst).kind;
  return (from == Kind::device && to == Kind::anywhere) || (from == Kind::anywhere && to == Kind::device);
}

/// The images that slots of both stores are, if they are any. `routes`: of the only source.
ImageRoute image_of(Tensors destination, std::span<const TensorRoute> routes) {
  const TensorRoute& first = *std::ranges::min_element(routes, {}, &TensorRoute::dst);
  std::size_t bytes = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const TensorRoute& route = routes[i];
    const std::ptrdiff_t offset = route.dst - first.dst;
    const bool alike = route.src - first.src == offset && route.src_stride_bytes == first.src_stride_bytes &&
                       route.dst_stride_bytes == first.dst_stride_bytes;
    if (route.mode != TensorRoute::Mode::bytes || !alike) return {};
    bytes += destination[i].spec.natural_bytes();
    end = std::max(end, static_cast<std::size_t>(offset) + destination[i].spec.natural_bytes());
  }
  // Tensors do not overlap: they leave no gap if they are as many bytes as there are from the first to the last one.
  if (end != bytes || !crosses_to_device(first.src, first.dst)) return {};
  return {.src = first.src,
          .dst = first.dst,
          .src_stride_bytes = first.src_stride_bytes,
          .dst_stride_bytes = first.dst_stride_bytes,
          .bytes = bytes};
}

/// The largest tile of a tensor. That of a conv tensor holds whole groups of columns of its window: so many that the
/// threads of a GPU's team, which take columns of 16 bytes in a shift, all have some.
std::size_t tile_bytes_of(const StateTensorSpec& spec, std::size_t tile_bytes_max) {
  constexpr std::size_t group_bytes = 256 * 16;
  if (spec.kind != StateKind::conv) return tile_bytes_max;
  const std::size_t window_bytes = static_cast<std::size_t>(spec.window()) * group_bytes;
  return window_bytes <= tile_bytes_max ? tile_bytes_max / window_bytes * window_bytes : tile_bytes_max;
}

std::vector<std::span<const StateTensorView>> tensors_of(std::span<const StateStore* const> stores) {
  std::vector<std::span<const StateTensorView>> tensors;
  for (const StateStore* store : stores) tensors.push_back(store->tensors());
  return tensors;
}

}  // namespace

void append_tiles(std::vector<Tile>& tiles, std::uint32_t tensor, std::uint64_t elements, std::size_t element_bytes,
                  std::size_t tile_bytes_max) {
  const std::uint64_t elements_max = tile_bytes_max / element_bytes / tile_grain_elements * tile_grain_elements;
  const std::uint64_t count = ceil_div(elements, elements_max);
  const std::uint64_t grains = ceil_div(elements, tile_grain_elements);
  const std::uint64_t per_tile = ceil_div(grains, count) * tile_grain_elements;
  for (std::uint64_t first = 0; first < elements; first += per_tile)
    tiles.push_back({.first_element = first,
                     .elements = static_cast<std::uint32_t>(std::min(per_tile, elements - first)),
                     .tensor = tensor});
}

CopyTable::CopyTable(std::span<const StateStore* const> sources, const StateStore& destination,
                     std::size_t tile_bytes_max)
    : CopyTable(tensors_of(sources), destination.tensors(), tile_bytes_max) {}

CopyTable::CopyTable(std::span<const StateTensorView> source, const StateStore& destination, std::size_t tile_bytes_max)
    : CopyTable(std::vector{source}, destination.tensors(), tile_bytes_max) {}

CopyTable::CopyTable(const std::vector<Tensors>& sources, Tensors destination, std::size_t tile_bytes_max)
    : tensor_count_(static_cast<std::uint32_t>(destination.size())) {
  std::vector<Units> units;
  for (const StateTensorView& tensor : destination) {
    const std::size_t bytes = element_bytes(tensor.spec.type);
    units.push_back(
        {.count = static_cast<std::uint64_t>(tensor.spec.element_count()), .bytes = bytes, .widest_bytes = bytes});
    if (tensor.spec.kind == StateKind::conv) window_min_ = std::min(window_min_, tensor.spec.window());
  }
  const std::vector<TensorRoute> routes = routes_of(sources, destination, units);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const TensorRoute& route = routes[i];
    const bool aligned = is_aligned(route, units[i % destination.size()].count);
    aligned_ = aligned_ && aligned;
    code_ = std::max(code_, code_for(route, aligned));
    moves_bytes_ = moves_bytes_ && route.mode == TensorRoute::Mode::bytes;
    has_ds_ = has_ds_ || (route.token_inner && route.mode == TensorRoute::Mode::bytes);
  }
  if (sources.size() == 1) image_ = image_of(destination, routes);
  std::vector<Tile> tiles;
  for (const std::uint32_t i : in_layer_order(destination)) {
    const std::int32_t layer = destination[i].spec.layer;
    if (layer_starts_.empty() || layer_starts_.back().layer != layer)
      layer_starts_.push_back({.layer = layer, .first_tile = static_cast<std::uint32_t>(tiles.size())});
    append_tiles(tiles, i, units[i].count, units[i].widest_bytes, tile_bytes_of(destination[i].spec, tile_bytes_max));
  }
  std::vector<std::uint64_t> begin_bytes = {0};
  for (const Tile& tile : tiles) begin_bytes.push_back(begin_bytes.back() + tile.elements * units[tile.tensor].bytes);
  require(tiles.size() <= tiles_max, "tiles", tiles.size(),
          "a state has too many bytes: one pass over rows counts in 32 bits");
  tile_count_ = static_cast<std::uint32_t>(tiles.size());
  std::vector<Tile> routed_tiles;
  for (std::size_t source = 0; source < sources.size(); ++source)
    for (const Tile& tile : tiles)
      routed_tiles.push_back(routed(tile, routes[source * destination.size() + tile.tensor]));
  routes_ = detail::upload(resource_, routes);
  tiles_ = detail::upload(resource_, routed_tiles);
  tile_begin_bytes_ = detail::upload(resource_, begin_bytes);
}

std::uint32_t CopyTable::tiles_before(std::int32_t layer) const noexcept {
  const auto start = std::ranges::lower_bound(layer_starts_, layer, {}, &LayerStart::layer);
  return start == layer_starts_.end() ? tile_count_ : start->first_tile;
}

CopyTableView CopyTable::view(std::int32_t begin, std::int32_t end) const noexcept {
  const std::uint32_t first = tiles_before(begin);
  const std::uint32_t last = tiles_before(end);
  return {.routes = routes_.as<TensorRoute>(),
          .tiles = tiles_.as<Tile>() + first,
          .tile_begin_bytes = tile_begin_bytes_.as<std::uint64_t>() + first,
          .tensor_count = tensor_count_,
          .tile_count = last - first,
          .source_tiles = tile_count_,
          .code = code_,
          .aligned = aligned_,
          .has_ds = has_ds_};
}

}  // namespace stateport::kernels
