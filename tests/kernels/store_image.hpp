// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/kernels/state_store.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace stateport::test {

/// How freely a random store is laid out.
struct ImageOptions {
  std::int32_t slots = 4;
  std::size_t misalignment_max = 15;  ///< bytes that a tensor's base may lie past a 16-byte boundary
  std::size_t padding_max = 40;       ///< bytes between slots
};

/// A store in host memory together with its guard bands: tensors lie in one byte array with gaps before, between and
/// after them. The array goes to the device as a whole and comes back as a whole, so a kernel's every stray byte shows.
class StoreImage {
 public:
  StoreImage(Random& random, const StateSpec& spec, const ImageOptions& options) : slots_(options.slots) {
    std::size_t offset = 64;
    for (const StateTensorSpec& tensor : spec.tensors()) {
      const auto draw = [&](std::size_t max) {
        return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(max)));
      };
      offset = (offset + 15) / 16 * 16 + draw(options.misalignment_max);
      const std::size_t stride = tensor.extent_bytes() + draw(options.padding_max);
      tensors_.push_back({.spec = tensor, .slot_stride_bytes = static_cast<std::int64_t>(stride)});
      offsets_.push_back(offset);
      offset += stride * static_cast<std::size_t>(slots_) + 64;
    }
    bytes_.resize(offset);
    for (std::size_t i = 0; i < bytes_.size(); i += 8) {
      const std::uint64_t word = random.bits();
      std::memcpy(bytes_.data() + i, &word, std::min<std::size_t>(8, bytes_.size() - i));
    }
  }

  [[nodiscard]] std::int32_t slots() const { return slots_; }
  [[nodiscard]] std::size_t tensor_count() const { return tensors_.size(); }
  [[nodiscard]] const StateTensorSpec& tensor(std::size_t i) const { return tensors_[i].spec; }
  [[nodiscard]] std::byte* slot(std::size_t tensor, std::int32_t slot) {
    return bytes_.data() + offsets_[tensor] + static_cast<std::ptrdiff_t>(slot) * tensors_[tensor].slot_stride_bytes;
  }

  /// A view of the device copy, which upload() makes.
  [[nodiscard]] StateStore upload(const Stream& stream) {
    device_ = Buffer(resource_, bytes_.size());
    copy_bytes(stream, device_.data(), bytes_.data(), bytes_.size());
    stream.synchronize();
    std::vector<StateTensorView> views = tensors_;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].base = device_.as<std::byte>() + offsets_[i];
    return StateStore::view(views, slots_);
  }

  /// True when the device copy equals this image byte for byte, guard bands included.
  [[nodiscard]] bool matches_device(const Stream& stream) const {
    std::vector<std::byte> now(bytes_.size());
    copy_bytes(stream, now.data(), device_.data(), now.size());
    stream.synchronize();
    return now == bytes_;
  }

 private:
  std::int32_t slots_;
  std::vector<StateTensorView> tensors_;
  std::vector<std::size_t> offsets_;
  std::vector<std::byte> bytes_;
  DeviceResource resource_;
  Buffer device_;
};

/// sd, ds, or, for a fifth of the tensors, either of them with gaps between channels, tokens or both.
inline ConvStrides random_strides(Random& random, const StateTensorSpec& conv) {
  const auto gap = [&] { return random.chance(50) ? random.between(0, 3) : 0; };
  const bool gaps = random.chance(20);
  const std::int64_t inner = gaps ? 1 + gap() : 1;
  const std::int64_t row = gaps ? gap() : 0;
  if (random.chance(50)) return {(conv.dim() - 1) * inner + 1 + row, inner};
  return {inner, (conv.window() - 1) * inner + 1 + row};
}

/// The use of a random spec. Checkpoints may have tensors in blocks.
enum class SpecUse : std::uint8_t { live, checkpoint };

/// A small spec of odd sizes: 1 … 4 tensors; a few are longer than a team or a tile.
inline StateSpec random_spec(Random& random, SpecUse use = SpecUse::checkpoint) {
  constexpr ElementType types[] = {ElementType::fp32, ElementType::fp16, ElementType::bf16,
                                   ElementType::fp64, ElementType::fp8,  ElementType::int8};
  std::vector<StateTensorSpec> tensors;
  const std::int32_t count = random.between32(1, 4);
  for (std::int32_t i = 0; i < count; ++i) {
    StateTensorSpec tensor{.layer = i, .type = types[random.between(0, 5)]};
    const std::int64_t long_extent = random.chance(5) ? 20000 : random.chance(20) ? 700 : 9;
    if (random.chance(50)) {
      tensor.kind = StateKind::conv;
      const bool long_window = random.chance(15);
      tensor.shape = {long_window ? random.between(7, 40) : random.between(1, 6),
                      random.between(1, long_window ? 60 : long_extent), 1};
      tensor.strides = random_strides(random, tensor);
    } else {
      tensor.shape = {random.between(1, 5), random.between(1, 5), random.between(1, long_extent)};
      constexpr std::int64_t of_blocks[] = {31, 32, 33, 64, 96, 128};
      if (random.chance(30)) tensor.shape[2] = of_blocks[random.between(0, 5)];
      if (use == SpecUse::checkpoint && random.chance(20)) tensor.type = ElementType::int8_block32;
    }
    tensors.push_back(tensor);
  }
  return StateSpec(std::move(tensors));
}

/// The same tensors, some in another type that they can be converted to, some conv tensors with other strides.
inline StateSpec converted_spec(Random& random, const StateSpec& spec, SpecUse use = SpecUse::checkpoint) {
  constexpr ElementType types[] = {ElementType::fp32, ElementType::fp16, ElementType::bf16};
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  for (StateTensorSpec& tensor : tensors) {
    if (convertible(tensor.type, ElementType::fp32)) tensor.type = types[random.between(0, 2)];
    if (use == SpecUse::checkpoint && tensor.kind == StateKind::recurrent &&
        convertible(tensor.type, ElementType::int8_block32) && random.chance(30))
      tensor.type = ElementType::int8_block32;
    if (tensor.kind == StateKind::conv && random.chance(50)) tensor.strides = random_strides(random, tensor);
  }
  return StateSpec(std::move(tensors));
}

/// Up to `count` copies with distinct destinations; sources are never destinations when `same_store`.
inline std::vector<SlotCopy> random_plan(Random& random, std::int32_t src_slots, std::int32_t dst_slots,
                                         std::int32_t count, bool same_store) {
  std::vector<SlotCopy> plan;
  std::vector<bool> written(static_cast<std::size_t>(dst_slots), false);
  std::vector<bool> read(static_cast<std::size_t>(std::max(src_slots, dst_slots)), false);
  for (std::int32_t i = 0; i < count; ++i) {
    SlotCopy copy = SlotCopy::whole(random.between32(-1, src_slots - 1), random.between32(-1, dst_slots - 1));
    if (random.chance(10)) copy.recurrent_src_slot = random.between32(-1, src_slots - 1);
    const auto at = [](std::vector<bool>& flags, std::int32_t slot) { return flags[static_cast<std::size_t>(slot)]; };
    if (copy.dst_slot >= 0) {
      const bool reads_written =
          same_store && ((copy.src_slot >= 0 && copy.src_slot != copy.dst_slot && at(written, copy.src_slot)) ||
                         (copy.recurrent_src_slot >= 0 && copy.recurrent_src_slot != copy.dst_slot &&
                          at(written, copy.recurrent_src_slot)));
      if (at(written, copy.dst_slot) || reads_written || (same_store && at(read, copy.dst_slot))) continue;
      written[static_cast<std::size_t>(copy.dst_slot)] = true;
      if (copy.src_slot >= 0) read[static_cast<std::size_t>(copy.src_slot)] = true;
      if (copy.recurrent_src_slot >= 0) read[static_cast<std::size_t>(copy.recurrent_src_slot)] = true;
    }
    plan.push_back(copy);
  }
  return plan;
}

}  // namespace stateport::test
