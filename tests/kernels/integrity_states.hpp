// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/core/pool/state_check.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>
#include <stateport/kernels/state_store.hpp>

#include "random.hpp"
#include "slot_kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

template <>
struct doctest::StringMaker<stateport::StateFault> {
  static String convert(const stateport::StateFault& fault) {
    const auto text = [](auto number) { return std::to_string(number); };
    const std::string said = "kind " + text(static_cast<int>(fault.kind)) + " tensor " + text(fault.tensor) + " pass " +
                             text(fault.check.pass) + " check {" + text(static_cast<int>(fault.check.kind)) +
                             ", group " + text(fault.check.group) + ", slot " + text(fault.check.slot.value()) +
                             ", content " + text(fault.check.content) + ", request " +
                             text(fault.check.request.value()) + "}";
    return said.c_str();
  }
};

/// States whose bytes tests read and write, wherever they lie.
namespace stateport::test {

using Bytes = std::vector<std::byte>;
using FaultKind = StateFault::Kind;
using StateFaults = std::vector<StateFault>;

/// The bytes of a tensor's slot from its first to its last element.
inline Bytes read_tensor(const StateStore& store, std::size_t tensor, SlotId slot) {
  Bytes bytes(store.tensors()[tensor].spec.extent_bytes());
  const Stream stream = Stream::default_stream();
  copy_bytes(stream, bytes.data(), store.tensors()[tensor].slot_data(slot), bytes.size());
  stream.synchronize();
  return bytes;
}
inline void write_tensor(const StateStore& store, std::size_t tensor, SlotId slot, std::span<const std::byte> bytes,
                         std::size_t at = 0) {
  const Stream stream = Stream::default_stream();
  copy_bytes(stream, store.tensors()[tensor].slot_data(slot) + at, bytes.data(), bytes.size());
  stream.synchronize();
}

/// Offsets of all elements of a conv state from the start of its slot, in the order of memory.
inline std::vector<std::size_t> element_offsets(const StateTensorSpec& spec) {
  std::vector<std::size_t> offsets;
  for (std::int64_t t = 0; t < spec.window(); ++t)
    for (std::int64_t c = 0; c < spec.dim(); ++c)
      offsets.push_back(static_cast<std::size_t>(reference::element_index(spec, t, c)) * element_bytes(spec.type));
  std::ranges::sort(offsets);
  return offsets;
}
/// The elements of a slot without gaps.
inline Bytes packed(const StateTensorSpec& spec, const Bytes& slot) {
  if (spec.dense()) return slot;
  Bytes elements;
  for (const std::size_t offset : element_offsets(spec)) {
    const auto from = slot.begin() + static_cast<std::ptrdiff_t>(offset);
    elements.insert(elements.end(), from, from + static_cast<std::ptrdiff_t>(element_bytes(spec.type)));
  }
  return elements;
}
/// Whether an element or a scale is an infinity or a NaN, of the types that are looked at.
inline bool has_no_number(const StateTensorSpec& spec, const Bytes& elements) {
  const ElementType type = in_blocks(spec.type) ? ElementType::fp16 : spec.type;
  if (!convertible(type)) return false;
  const auto first = in_blocks(spec.type) ? static_cast<std::size_t>(spec.element_count()) : 0;
  for (std::size_t at = first; at < elements.size(); at += element_bytes(type))
    if (!std::isfinite(reference::load(elements.data() + at, type))) return true;
  return false;
}

/// Bits of a 32-bit word that no word of finite elements has set: the highest of each exponent.
constexpr std::uint32_t top_exponent_bits(ElementType type) {
  if (type == ElementType::fp32) return 0x40000000u;
  return type == ElementType::fp16 || type == ElementType::bf16 ? 0x40004000u : 0;
}

/// Random bits of one tensor without an infinity or a NaN; gaps are random, too.
inline Bytes finite_bytes(Random& random, const StateTensorSpec& spec) {
  Bytes bytes(spec.extent_bytes());
  const std::uint32_t cleared = top_exponent_bits(spec.type);
  for (std::size_t at = 0; at < bytes.size(); at += 4) {
    const std::uint32_t word = static_cast<std::uint32_t>(random.bits()) & ~cleared;
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(4, bytes.size() - at));
  }
  if (in_blocks(spec.type))
    for (auto at = static_cast<std::size_t>(spec.element_count()); at < bytes.size(); at += 2)
      bytes[at + 1] &= std::byte{0xBF};
  return bytes;
}
inline void fill_slot(Random& random, const StateStore& store, SlotId slot) {
  for (std::size_t i = 0; i < store.tensors().size(); ++i)
    write_tensor(store, i, slot, finite_bytes(random, store.tensors()[i].spec));
}

/// Changes one bit.
inline void flip_bit(const StateStore& store, std::size_t tensor, SlotId slot, std::size_t byte, int bit) {
  Bytes bytes = read_tensor(store, tensor, slot);
  bytes.at(byte) ^= std::byte{1} << bit;
  write_tensor(store, tensor, slot, bytes);
}

constexpr StateCheck published(SlotId slot, std::uint64_t content, RequestId request, std::int32_t group = 0) {
  return {StateCheck::Kind::published, group, slot, content, request};
}
constexpr StateCheck reading(SlotId slot, std::uint64_t content, RequestId request = {}, std::int32_t group = 0) {
  return {StateCheck::Kind::read, group, slot, content, request};
}

/// The check in a pass.
constexpr StateCheck in_pass(StateCheck check, std::uint64_t pass) {
  check.pass = pass;
  return check;
}
/// A fault of a check in a pass.
constexpr StateFault fault(FaultKind kind, std::int32_t tensor, std::uint64_t pass, const StateCheck& check) {
  return {.kind = kind, .tensor = tensor, .check = in_pass(check, pass)};
}

/// All faults that are known once the stream is done.
inline StateFaults faults_after(StateIntegrity& integrity, const Stream& stream) {
  integrity.wait(stream);
  const auto faults = integrity.poll();
  return {faults.begin(), faults.end()};
}

/// Six tensors whose whole copies every backend can sum: all types of exponents, conv states of both orders, two
/// tensors of one shape, none with a remainder below 16 bytes.
inline StateSpec word_spec() {
  return StateSpec({{.layer = 0, .kind = StateKind::conv, .type = ElementType::bf16, .shape = {4, 24, 1}},
                    {.layer = 0, .type = ElementType::fp32, .shape = {2, 4, 8}},
                    {.layer = 1,
                     .kind = StateKind::conv,
                     .type = ElementType::fp16,
                     .shape = {4, 16, 1},
                     .strides = ConvStrides::of(ConvLayout::ds, 4, 16)},
                    {.layer = 1, .type = ElementType::fp32, .shape = {2, 4, 8}},
                    {.layer = 2, .type = ElementType::int8, .shape = {1, 3, 16}},
                    {.layer = 2, .type = ElementType::fp16, .shape = {2, 4, 8}}});
}

/// Six tensors that are summed by themselves: remainders of 1 … 3 bytes, conv states with gaps, blocks.
inline StateSpec odd_spec() {
  return StateSpec({{.layer = 0,
                     .kind = StateKind::conv,
                     .type = ElementType::bf16,
                     .shape = {3, 7, 1},
                     .strides = {.token = 17, .channel = 2}},
                    {.layer = 0, .type = ElementType::int8_block32, .shape = {3, 5, 35}},
                    {.layer = 1, .type = ElementType::fp16, .shape = {3, 3, 5}},
                    {.layer = 1, .type = ElementType::fp8, .shape = {1, 1, 37}},
                    {.layer = 2,
                     .kind = StateKind::conv,
                     .type = ElementType::fp64,
                     .shape = {2, 3, 1},
                     .strides = {.token = 1, .channel = 5}},
                    {.layer = 2, .type = ElementType::int8_block32, .shape = {2, 2, 64}}});
}

/// The live states of checkpoints by odd_spec().
inline StateSpec odd_live_spec() {
  const StateSpec spec = odd_spec();
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  for (StateTensorSpec& tensor : tensors)
    if (in_blocks(tensor.type)) tensor.type = ElementType::fp32;
  return StateSpec(std::move(tensors));
}

/// What an engine has: live states, their checkpoints, the copies both ways and the checks.
class IntegrityStates {
 public:
  IntegrityStates(Random& random, const StateSpec& live_spec, const StateSpec& kept_spec, std::int32_t slots = 8,
                  const IntegrityOptions& options = {})
      : live(resource_, live_spec, {.slots = slots}),
        kept(resource_, kept_spec, {.slots = slots}),
        integrity(std::vector{&kept}, options) {
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      fill_slot(random, live, SlotId{slot});
      fill_slot(random, kept, SlotId{slot});
    }
  }

  /// Begins checks in a pass.
  void begin(CheckPlan checks, std::uint64_t pass) {
    begun_.clear();
    for (const StateCheck& check : checks) begun_.push_back(in_pass(check, pass));
    integrity.begin(stream, begun_);
  }
  /// Copies a live state to a checkpoint, which the check publishes.
  void publish(const StateCheck& check, SlotId from, std::uint64_t pass) {
    begin({&check, 1}, pass);
    const SlotCopy copy = SlotCopy::whole(from, check.slot);
    integrity.copy_slots(stream, save, {&copy, 1});
    integrity.end(stream);
  }
  /// Copies a checkpoint to a live state.
  void restore(const StateCheck& check, SlotId to, std::uint64_t pass) {
    begin({&check, 1}, pass);
    const SlotCopy copy = SlotCopy::whole(check.slot, to);
    integrity.copy_slots(stream, load, {&copy, 1});
    integrity.end(stream);
  }
  /// Checks of states that kernels of the engine write or read.
  void check(CheckPlan checks, std::uint64_t pass) {
    begin(checks, pass);
    integrity.end(stream);
  }
  void check(const StateCheck& one, std::uint64_t pass) { check({&one, 1}, pass); }
  [[nodiscard]] StateFaults faults() { return faults_after(integrity, stream); }

 private:
  DeviceResource resource_;
  std::vector<StateCheck> begun_ = std::vector<StateCheck>(64);

 public:
  Stream stream = Stream::default_stream();
  StateStore live;
  StateStore kept;
  SlotCopier save{live, kept};
  SlotCopier load{kept, live};
  StateIntegrity integrity;
};

}  // namespace stateport::test
