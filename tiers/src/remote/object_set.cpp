// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/object_set.hpp>

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stateport {
namespace {

/// The model as objects have it: conv layout sd, element types of the encoding.
ModelLayout encoded(const ModelLayout& layout, const ObjectEncoding& encoding) {
  std::vector<StateTensorSpec> tensors(layout.whole().tensors().begin(), layout.whole().tensors().end());
  for (StateTensorSpec& tensor : tensors) {
    const bool is_conv = tensor.kind == StateKind::conv;
    const ElementType type = (is_conv ? encoding.conv : encoding.recurrent).value_or(tensor.type);
    require(convertible(tensor.type, type), is_conv ? "encoding.conv" : "encoding.recurrent", name(type),
            "is no type into which that of the model can be converted");
    tensor.type = type;
    tensor.strides = {};
    tensor.group = 0;  // numbers of block tables are each engine's own
  }
  return ModelLayout(StateSpec(std::move(tensors)), {layout.splits().begin(), layout.splits().end()});
}

bool has_tensors(const ModelLayout& layout, std::int32_t layer_begin, std::int32_t layer_end) {
  return std::ranges::any_of(layout.whole().tensors(), [&](const StateTensorSpec& tensor) {
    return tensor.layer >= layer_begin && tensor.layer < layer_end;
  });
}

/// The shards of the grid of which `rank` consists, layers first.
std::vector<ModelShard> cut(const ModelLayout& layout, const ModelShard& rank, const ObjectGrid& grid) {
  const ModelShard whole = layout.resolve(rank);
  require(grid.head_groups >= 1 && grid.head_groups % whole.head_groups == 0, "grid.head_groups", grid.head_groups,
          "must be a multiple of the tensor-parallel size");
  require(grid.layers_per_object >= 0, "grid.layers_per_object", grid.layers_per_object, "must not be negative");
  const std::int32_t layers = grid.layers_per_object == 0 ? layout.layers() : grid.layers_per_object;
  const bool fits =
      whole.layer_begin % layers == 0 && (whole.layer_end % layers == 0 || whole.layer_end == layout.layers());
  require(fits, "grid.layers_per_object", grid.layers_per_object,
          "must divide where the layers of the rank begin and end");
  const std::int32_t groups = grid.head_groups / whole.head_groups;
  const std::int64_t runs = (std::int64_t{whole.layer_end} - whole.layer_begin + layers - 1) / layers;
  require(runs * groups <= std::int64_t{ObjectSet::objects_max}, "grid.head_groups", grid.head_groups,
          "makes more than 16384 objects of the rank's share");
  std::vector<ModelShard> shards;
  for (std::int32_t layer = whole.layer_begin, end = 0; layer < whole.layer_end; layer = end) {
    end = layers < whole.layer_end - layer ? layer + layers : whole.layer_end;
    if (!has_tensors(layout, layer, end)) continue;
    for (std::int32_t group = 0; group < groups; ++group)
      shards.push_back({.layer_begin = layer,
                        .layer_end = end,
                        .head_group = whole.head_group * groups + group,
                        .head_groups = grid.head_groups});
  }
  return shards;
}

/// The worse an answer is, the more it says about the store.
int badness(TransferStatus status) noexcept {
  switch (status) {
    case TransferStatus::done:
      return 0;
    case TransferStatus::wrong_position:
      return 2;
    case TransferStatus::foreign_layout:
      return 3;
    case TransferStatus::damaged:
      return 4;
    default:
      return 1;
  }
}

}  // namespace

ObjectSet::ObjectSet(const ModelLayout& layout, const ModelShard& rank, const ObjectSetOptions& options)
    : options_(options) {
  const ModelLayout model = encoded(layout, options.encoding);
  for (const ModelShard& shard : cut(layout, rank, options.grid)) {
    objects_.emplace_back(model.spec_of(shard), ImageLayoutOptions{.model = options.model,
                                                                   .content = options.content,
                                                                   .group = options.group,
                                                                   .shard = shard,
                                                                   .fingerprint = model.fingerprint()});
    offsets_.push_back(bytes_);
    bytes_ += objects_.back().image_bytes();
    names_.push_back(fmt::format("v{}/{:016x}{:016x}/{:016x}/{:016x}/{}{}/{}-{}/{}of{}", ImageLayout::version,
                                 options.model.words[0], options.model.words[1], model.fingerprint(),
                                 model.whole().fingerprint(), options.content == CacheContent::state ? 's' : 'k',
                                 options.group, shard.layer_begin, shard.layer_end, shard.head_group,
                                 shard.head_groups));
  }
}

std::string ObjectSet::name(std::size_t object, const ImageKey& key) const {
  return fmt::format("{}/{}/{:016x}{:016x}", names_[object], key.tokens, key.prefix.words[0], key.prefix.words[1]);
}

StateStore ObjectSet::view(std::size_t object, std::byte* base, std::size_t stride_bytes, std::int32_t places) const {
  const ImageLayout& image = objects_[object];
  std::vector<StateTensorView> tensors;
  for (std::size_t i = 0; i < image.spec().tensors().size(); ++i)
    tensors.push_back({.spec = image.spec().tensors()[i],
                       .base = base + offset(object) + image.section_offset(i),
                       .slot_stride_bytes = static_cast<std::int64_t>(stride_bytes)});
  return StateStore::view(tensors, places);
}

void ObjectSet::seal(std::span<std::byte> set, const ImageKey& key) const {
  require(set.size() == bytes_, "set.size()", set.size(), "must be bytes()");
  for (std::size_t i = 0; i < size(); ++i) layout(i).seal(part(set, i), key);
}

TransferStatus ObjectSet::check(std::span<const std::byte> set, const ImageKey& key) const noexcept {
  if (set.size() != bytes_) return TransferStatus::damaged;
  TransferStatus worst = TransferStatus::done;
  for (std::size_t i = 0; i < size(); ++i) {
    const TransferStatus status = layout(i).check(set.subspan(offset(i), layout(i).image_bytes()), key);
    if (badness(status) > badness(worst)) worst = status;
  }
  return worst;
}

}  // namespace stateport
