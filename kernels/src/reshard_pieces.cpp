// SPDX-License-Identifier: Apache-2.0
#include "reshard_pieces.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cstddef>

namespace stateport::kernels {
namespace {

/// Runs of a piece up to this many are tensors of their own, moved as bytes: the tokens of any conv window. More of
/// them are one tensor with strides, moved element by element.
constexpr std::int64_t runs_max = 8;

/// A tensor of one side of a piece, seen as [rows, extent, inner]: `extent` is the one that is split.
struct Side {
  const StateTensorView& tensor;
  std::size_t axis;
  std::int64_t begin;  ///< the piece
  std::int64_t end;

  [[nodiscard]] const StateTensorSpec& spec() const noexcept { return tensor.spec; }
  [[nodiscard]] std::int64_t extent() const noexcept { return spec().shape[axis]; }
  [[nodiscard]] bool is_whole() const noexcept { return begin == 0 && end == extent(); }
  [[nodiscard]] std::int64_t rows() const noexcept {
    return spec().kind == StateKind::conv ? spec().window()
           : axis == 0                    ? 1
           : axis == 1                    ? spec().shape[0]
                                          : spec().shape[0] * spec().shape[1];
  }
  [[nodiscard]] std::int64_t inner() const noexcept {
    return axis == 2 ? 1 : axis == 1 ? spec().shape[2] : spec().shape[1] * spec().shape[2];
  }
  /// Where rows and elements of the piece lie, in elements.
  [[nodiscard]] ConvStrides strides() const noexcept {
    if (spec().kind == StateKind::conv) return spec().conv_strides();
    return {.token = extent() * inner(), .channel = 1};
  }
  [[nodiscard]] std::int64_t first_element() const noexcept { return begin * inner() * strides().channel; }

  [[nodiscard]] StateTensorView view(const StateTensorSpec& piece, std::int64_t bytes_on) const noexcept {
    return {.spec = piece, .base = tensor.base + bytes_on, .slot_stride_bytes = tensor.slot_stride_bytes};
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t elements) const noexcept {
    return elements * static_cast<std::int64_t>(element_bytes(spec().type));
  }
};

StateTensorSpec run_of(const Side& side, ElementType type, std::int64_t elements) {
  return {.layer = side.spec().layer, .kind = StateKind::recurrent, .type = type, .shape = {elements, 1, 1}};
}

/// The values of the piece's blocks, then their scales: both are runs where the piece is whole rows.
void add_blocks(const Side& from, const Side& to, ReshardPieces& pieces) {
  const auto rows_of = [](const Side& side, std::int64_t end) {
    return end * side.inner() / side.spec().block_layout().row_elements;
  };
  const auto is_rows = [](const Side& side) {
    return side.rows() == 1 && side.inner() % side.spec().block_layout().row_elements == 0;
  };
  require(is_rows(from) && is_rows(to), "axis", static_cast<std::int64_t>(from.axis),
          "cuts blocks of int8_block32: they are split between rows only");
  const auto add = [&](const Side& side, std::vector<StateTensorView>& out) {
    const BlockLayout blocks = side.spec().block_layout();
    const std::int64_t values = (side.end - side.begin) * side.inner();
    const std::int64_t row = rows_of(side, side.begin);
    const std::int64_t scales = (rows_of(side, side.end) - row) * blocks.blocks_per_row();
    out.push_back(side.view(run_of(side, ElementType::int8, values), side.begin * side.inner()));
    out.push_back(side.view(run_of(side, ElementType::fp16, scales),
                            blocks.elements() + row * blocks.blocks_per_row() * BlockLayout::scale_bytes));
  };
  add(from, pieces.source);
  add(to, pieces.destination);
}

/// One side is in blocks, and whole; the piece is one run of the other.
void add_conversion(const Side& from, const Side& to, ReshardPieces& pieces) {
  const Side& blocks = in_blocks(from.spec().type) ? from : to;
  const Side& other = in_blocks(from.spec().type) ? to : from;
  require(blocks.is_whole() && (other.rows() == 1 || other.is_whole()), "type", name(blocks.spec().type),
          "is converted where a piece is the whole tensor that is in blocks");
  StateTensorSpec piece = blocks.spec();
  piece.layer = other.spec().layer;
  const auto add = [&](const Side& side, std::vector<StateTensorView>& out) {
    piece.type = side.spec().type;
    out.push_back(side.view(piece, side.bytes(side.first_element())));
  };
  add(from, pieces.source);
  add(to, pieces.destination);
}

/// Element by element, from place to place.
void add_places(const Side& from, const Side& to, ReshardPieces& pieces) {
  const auto add = [&](const Side& side, std::vector<StateTensorView>& out) {
    const StateTensorSpec piece{.layer = from.spec().layer,
                                .kind = StateKind::conv,
                                .type = side.spec().type,
                                .shape = {side.rows(), (side.end - side.begin) * side.inner(), 1},
                                .strides = side.strides()};
    out.push_back(side.view(piece, side.bytes(side.first_element())));
  };
  add(from, pieces.source);
  add(to, pieces.destination);
}

/// Row by row; the elements of a row lie behind each other on both sides.
void add_runs(const Side& from, const Side& to, ReshardPieces& pieces) {
  for (std::int64_t row = 0; row < from.rows(); ++row) {
    const auto add = [&](const Side& side, std::vector<StateTensorView>& out) {
      const std::int64_t first = side.first_element() + row * side.strides().token;
      out.push_back(
          side.view(run_of(from, side.spec().type, (side.end - side.begin) * side.inner()), side.bytes(first)));
    };
    add(from, pieces.source);
    add(to, pieces.destination);
  }
}

void add_piece(const Side& from, const Side& to, ReshardPieces& pieces) {
  const bool from_blocks = in_blocks(from.spec().type);
  const bool to_blocks = in_blocks(to.spec().type);
  if (from_blocks && to_blocks) return add_blocks(from, to, pieces);
  if (from_blocks || to_blocks) return add_conversion(from, to, pieces);
  const bool channels_are_runs = from.strides().channel == 1 && to.strides().channel == 1;
  const bool one_run = from.is_whole() && to.is_whole() && from.strides() == to.strides();
  if (channels_are_runs && (from.rows() == 1 || (from.rows() <= runs_max && !one_run)))
    return add_runs(from, to, pieces);
  add_places(from, to, pieces);
}

void check(const ModelLayout& layout, const ShardStore& shard, const char* side) {
  require(shard.store != nullptr, side, "nullptr", "must be a store");
  const StateSpec wanted = layout.spec_of(shard.shard);
  const std::span<const StateTensorSpec> tensors = shard.store->spec().tensors();
  require(tensors.size() == wanted.tensors().size(), side, tensors.size(),
          "has another number of tensors than its shard");
  const std::int32_t layers_on = wanted.tensors()[0].layer - tensors[0].layer;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StateTensorSpec& tensor = wanted.tensors()[i];
    require(tensors[i].kind == tensor.kind, side, static_cast<int>(tensors[i].kind),
            "has a tensor of another kind than its shard");
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis)
      require(tensors[i].shape[axis] == tensor.shape[axis], side, tensors[i].shape[axis],
              "has a tensor of another shape than its shard");
    require(tensor.layer - tensors[i].layer == layers_on, side, tensors[i].layer,
            "has a tensor of another layer than its shard");
  }
}

std::vector<ReshardRank> ranks_of(std::span<const ShardStore> shards) {
  std::vector<ReshardRank> ranks;
  for (const ShardStore& shard : shards) ranks.push_back({static_cast<std::int32_t>(ranks.size()), shard.shard});
  return ranks;
}

}  // namespace

ReshardPieces cut_pieces(const ModelLayout& layout, std::span<const ShardStore> sources,
                         std::span<const ShardStore> destinations) {
  require(!sources.empty(), "sources", "empty", "there must be at least one");
  require(!destinations.empty(), "destinations", "empty", "there must be at least one");
  for (const ShardStore& source : sources) check(layout, source, "sources");
  for (const ShardStore& destination : destinations) check(layout, destination, "destinations");
  ReshardPieces pieces;
  for (const ReshardSlice& slice : plan_reshard(layout, ranks_of(sources), ranks_of(destinations))) {
    const auto axis = static_cast<std::size_t>(layout.splits()[static_cast<std::size_t>(slice.tensor)].axis);
    const auto tensor_of = [](const ShardStore& shard, std::int32_t number) -> const StateTensorView& {
      return shard.store->tensors()[static_cast<std::size_t>(number)];
    };
    add_piece({.tensor = tensor_of(sources[static_cast<std::size_t>(slice.src_rank)], slice.src_tensor),
               .axis = axis,
               .begin = slice.src_begin,
               .end = slice.src_end},
              {.tensor = tensor_of(destinations[static_cast<std::size_t>(slice.dst_rank)], slice.dst_tensor),
               .axis = axis,
               .begin = slice.dst_begin,
               .end = slice.dst_end},
              pieces);
  }
  return pieces;
}

}  // namespace stateport::kernels
