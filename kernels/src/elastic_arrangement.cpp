// SPDX-License-Identifier: Apache-2.0
#include "elastic_arrangement.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace stateport::kernels {
namespace {

constexpr std::size_t tensor_alignment = MemoryResource::default_alignment;  // of tensors that stay
constexpr std::size_t slot_alignment = 16;                                   // one vector access of the kernels
constexpr std::size_t bytes_max = PTRDIFF_MAX / 2;
constexpr std::size_t small_part = 16;  // what is smaller than one part in so many is small

std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t product(std::size_t a, std::size_t b, std::int32_t slots) {
  require(b == 0 || a <= bytes_max / b, "slots", slots, "take more than memory has");
  return a * b;
}

/// Slots whose bytes are whole granules: the fewest.
std::size_t run_of(std::size_t stride, std::size_t granularity) noexcept {
  return granularity / std::gcd(stride, granularity);
}

std::vector<bool> staying(const StateSpec& spec) {
  std::size_t largest = 0;
  std::size_t all = 0;
  for (const StateTensorSpec& tensor : spec.tensors()) {
    largest = std::max(largest, tensor.extent_bytes());
    all += tensor.extent_bytes();
  }
  std::vector<bool> stays;
  std::size_t small = 0;
  for (const StateTensorSpec& tensor : spec.tensors()) {
    stays.push_back(tensor.extent_bytes() < largest / small_part);
    if (stays.back()) small += tensor.extent_bytes();
  }
  if (small >= all / small_part) stays.assign(stays.size(), false);
  return stays;
}

void count_extents(ElasticArrangement& result, std::size_t extent_slots, std::int32_t slots) {
  require(extent_slots <= INT32_MAX, "granularity", extent_slots, "gives extents of more slots than a number can name");
  result.extent_slots = static_cast<std::int64_t>(extent_slots);
  result.extents = (slots + result.extent_slots - 1) / result.extent_slots;
}

/// Appends the addresses of all extents of a tensor, or of all images.
void append_moving(ElasticArrangement& result, std::size_t stride, std::int32_t slots) {
  const std::size_t bytes = product(stride, static_cast<std::size_t>(result.extent_slots), slots);
  result.moving.push_back({.offset = result.bytes, .bytes = bytes});
  result.bytes += product(bytes, static_cast<std::size_t>(result.extents), slots);
  require(result.bytes <= bytes_max, "slots", slots, "take more than memory has");
}

void arrange_layers(ElasticArrangement& result, const StateSpec& spec, std::int32_t slots, std::size_t granularity) {
  const std::vector<bool> stays = staying(spec);
  std::size_t extent_slots = 1;  // powers of two, as the granularity is one
  for (std::size_t i = 0; i < stays.size(); ++i) {
    const std::size_t bytes = spec.tensors()[i].extent_bytes();
    require(bytes <= bytes_max, "slots", slots, "take more than memory has");
    const std::size_t stride = stays[i] ? round_up(bytes, slot_alignment) : elastic_stride(bytes, granularity);
    result.tensors[i].slot_stride_bytes = static_cast<std::int64_t>(stride);
    if (!stays[i]) extent_slots = std::max(extent_slots, run_of(stride, granularity));
  }
  count_extents(result, extent_slots, slots);
  for (std::size_t i = 0; i < stays.size(); ++i) {
    result.offsets[i] = result.bytes;
    if (!stays[i]) append_moving(result, static_cast<std::size_t>(result.tensors[i].slot_stride_bytes), slots);
  }
  result.fixed_offset = result.bytes;
  for (std::size_t i = 0; i < stays.size(); ++i) {
    if (!stays[i]) continue;
    result.offsets[i] = result.bytes = round_up(result.bytes, tensor_alignment);
    result.bytes +=
        product(static_cast<std::size_t>(result.tensors[i].slot_stride_bytes), static_cast<std::size_t>(slots), slots);
    require(result.bytes <= bytes_max, "slots", slots, "take more than memory has");
  }
  result.fixed_bytes = round_up(result.bytes - result.fixed_offset, granularity);
  result.bytes = result.fixed_offset + result.fixed_bytes;
}

void arrange_images(ElasticArrangement& result, const StateSpec& spec, std::int32_t slots, std::size_t granularity) {
  std::size_t image = 0;
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    result.offsets[i] = image;
    image = round_up(image + spec.tensors()[i].extent_bytes(), slot_alignment);
    require(image <= bytes_max, "slots", slots, "take more than memory has");
  }
  const std::size_t stride = elastic_stride(image, granularity);
  for (StateTensorView& tensor : result.tensors) tensor.slot_stride_bytes = static_cast<std::int64_t>(stride);
  count_extents(result, run_of(stride, granularity), slots);
  append_moving(result, stride, slots);
}

}  // namespace

std::size_t elastic_stride(std::size_t bytes, std::size_t granularity) noexcept {
  std::size_t multiple = granularity;
  while (multiple > slot_alignment && (round_up(bytes, multiple) - bytes) * small_part >= bytes) multiple /= 2;
  return round_up(bytes, multiple);
}

ElasticArrangement arrange_elastic(const StateSpec& spec, const StoreOptions& options, std::size_t granularity) {
  require(options.slots >= 1, "slots", options.slots, "must be >= 1");
  ElasticArrangement result;
  for (const StateTensorSpec& tensor : spec.tensors()) result.tensors.push_back({.spec = tensor});
  result.offsets.resize(result.tensors.size());
  const auto arrange = options.layout == StoreLayout::layer_major ? arrange_layers : arrange_images;
  arrange(result, spec, options.slots, granularity);
  return result;
}

}  // namespace stateport::kernels
