// SPDX-License-Identifier: Apache-2.0
// The sums themselves, of kernels that read and of those that copy, against a serial model.
#include "state_sums.hpp"

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include "copy_table.hpp"
#include "device_array.hpp"
#include "integrity_states.hpp"
#include "launch.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"
#include "sum_launch.hpp"
#include "sum_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

using namespace stateport;
using kernels::TensorSum;
using test::Random;
using test::StoreImage;

namespace {

/// The words of a slot, as state_sums.hpp counts them.
std::vector<std::uint32_t> words_of(const StateTensorSpec& spec, const std::byte* slot) {
  std::vector<std::byte> packed(slot, slot + spec.extent_bytes());
  const std::size_t element = element_bytes(spec.type);
  if (!spec.dense()) {
    packed.clear();
    for (const std::size_t offset : test::element_offsets(spec)) {
      packed.insert(packed.end(), slot + offset, slot + offset + element);
      packed.resize((packed.size() + 3) / 4 * 4);
    }
  }
  packed.resize((packed.size() + 3) / 4 * 4);
  std::vector<std::uint32_t> words(packed.size() / 4);
  std::memcpy(words.data(), packed.data(), packed.size());
  return words;
}

TensorSum model_sum(const StateTensorSpec& spec, const std::byte* slot) {
  TensorSum sum;
  std::uint32_t weight = kernels::sum_weight_first;
  for (const std::uint32_t word : words_of(spec, slot)) {
    sum.sum += std::uint64_t{word} * weight;
    weight += kernels::sum_weight_step;
  }
  const test::Bytes bytes(slot, slot + spec.extent_bytes());
  sum.not_finite = test::has_no_number(spec, test::packed(spec, bytes)) ? 1 : 0;
  return sum;
}

/// Sums of so many checks, in device memory.
class DeviceSums {
 public:
  DeviceSums(std::int32_t checks, std::size_t tensors)
      : tensors_(tensors), sums_(std::vector<TensorSum>(static_cast<std::size_t>(checks) * tensors)) {}
  [[nodiscard]] kernels::CheckSums view() { return {sums_.data(), static_cast<std::uint32_t>(tensors_)}; }
  /// Whether the sums of a check are those of the slot.
  [[nodiscard]] bool hold(std::int32_t check, StoreImage& image, std::int32_t slot) {
    const std::vector<TensorSum> sums =
        test::from_device(sums_.data() + static_cast<std::size_t>(check) * tensors_, tensors_);
    for (std::size_t i = 0; i < tensors_; ++i) {
      const TensorSum expected = model_sum(image.tensor(i), image.slot(i, slot));
      if (sums[i].sum != expected.sum || sums[i].not_finite != expected.not_finite) return false;
    }
    return true;
  }

 private:
  std::size_t tensors_;
  test::DeviceArray<TensorSum> sums_;
};

/// Most states are finite; some have one element that is not.
void make_finite(Random& random, StoreImage& image) {
  for (std::size_t i = 0; i < image.tensor_count(); ++i)
    for (std::int32_t slot = 0; slot < image.slots(); ++slot) {
      const StateTensorSpec& spec = image.tensor(i);
      const test::Bytes bytes = test::finite_bytes(random, spec);
      std::ranges::copy(bytes, image.slot(i, slot));
      if (!random.chance(20) || !convertible(spec.type)) continue;
      const auto element = element_bytes(spec.type);
      const auto at = static_cast<std::size_t>(random.between(0, spec.element_count() - 1));
      const std::size_t offset = spec.dense() ? at * element : test::element_offsets(spec)[at];
      constexpr float broken[] = {INFINITY, -INFINITY, NAN};
      test::reference::store(image.slot(i, slot) + offset, spec.type, broken[random.between(0, 2)]);
    }
}

/// Copies with rows that carry checks, as SlotCopier gathers them: row i has check i, or none.
void check_copies(Random& random, const StateSpec& spec, const test::ImageOptions& options, int& summed) {
  const Stream stream = Stream::default_stream();
  StoreImage src(random, spec, options);
  StoreImage dst(random, spec, options);
  if (random.chance(50)) make_finite(random, src);
  const StateStore src_store = src.upload(stream);
  const StateStore dst_store = dst.upload(stream);
  const kernels::CopyTable table(std::vector{&src_store}, dst_store, kernels::tile_bytes_max);
  if (!kernels::can_sum_copies(table)) return;
  ++summed;
  std::vector<SlotCopy> rows;
  const std::int32_t turned = random.between32(0, options.slots - 1);
  const std::int32_t copies = random.between32(1, options.slots);
  for (std::int32_t i = 0; i < copies; ++i)
    rows.push_back(SlotCopy::whole(random.between32(0, options.slots - 1), (i + turned) % options.slots));
  test::reference::copy_slots(src, dst, rows);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].conv_shift = random.chance(80) ? static_cast<std::int32_t>(i) : -1;
  DeviceSums sums(options.slots, spec.tensors().size());
  kernels::Launcher launcher;
  launcher.copy_rows_with_sums(stream, table.view(), rows, sums.view());
  stream.synchronize();
  REQUIRE(dst.matches_device(stream));
  for (const SlotCopy& row : rows)
    if (row.conv_shift >= 0) REQUIRE(sums.hold(row.conv_shift, dst, row.dst_slot));
}

/// Whole words of 16 bytes, as models have.
StateSpec random_word_spec(Random& random, std::int64_t largest) {
  constexpr ElementType types[] = {ElementType::fp32, ElementType::fp16, ElementType::bf16};
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t i = 0; i < random.between32(1, 4); ++i) {
    StateTensorSpec tensor{.layer = i, .type = types[random.between(0, 2)]};
    const std::int64_t columns = 8 * random.between(1, largest);
    tensor.shape = {random.between(1, 4), columns, 1};
    if (random.chance(50)) {
      tensor.kind = StateKind::conv;
      const auto order = random.chance(50) ? ConvLayout::sd : ConvLayout::ds;
      tensor.strides = ConvStrides::of(order, tensor.window(), tensor.dim());
    }
    tensors.push_back(tensor);
  }
  return StateSpec(std::move(tensors));
}

}  // namespace

TEST_CASE("sums of slots equal the serial sums, for any tensors, strides and alignments") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    StoreImage image(random, test::random_spec(random), {.slots = random.between32(1, 6)});
    if (random.chance(60)) make_finite(random, image);
    const StateStore store = image.upload(stream);
    const kernels::SumTable table(store, kernels::tile_bytes_max);
    std::vector<SlotCopy> rows;
    const std::int32_t checks = random.chance(3) ? 400 : random.between32(1, 9);
    for (std::int32_t i = 0; i < checks; ++i) {
      rows.push_back(SlotCopy::whole(random.between32(-1, image.slots() - 1), 0));
      rows.back().conv_shift = checks - 1 - i;
    }
    DeviceSums sums(checks, image.tensor_count());
    kernels::sum_rows("sums", stream, table.view(), rows, sums.view());
    stream.synchronize();
    for (const SlotCopy& row : rows)
      if (row.src_slot >= 0) REQUIRE(sums.hold(row.conv_shift, image, row.src_slot));
    REQUIRE(image.matches_device(stream));
  });
}

TEST_CASE("copies that are summed move the same bytes, and have the sums of their slots") {
  int summed = 0;
  test::for_each_seed(1000, [&](Random& random, std::uint64_t) {
    const bool words = random.chance(50);
    const test::ImageOptions options{
        .slots = random.between32(1, 20), .misalignment_max = words ? 0u : 15u, .padding_max = words ? 0u : 40u};
    check_copies(random, words ? random_word_spec(random, 40) : test::random_spec(random), options, summed);
  });
  CHECK(summed > 5);
}

TEST_CASE("copies that are larger than a cache, and longer than kernels have arguments, are summed alike") {
  int summed = 0;
  test::for_each_seed(8, [&](Random& random, std::uint64_t seed) {
    // Ranges of any length and alignment pass the caches by.
    const bool odd = seed % 2 == 0;
    const std::int64_t elements = random.between(400000, 700000) / 16 * 16 + (odd ? 5 : 0);
    StateSpec spec({{.layer = 0, .kind = StateKind::conv, .type = ElementType::bf16, .shape = {4, 4096, 1}},
                    {.layer = 1, .type = ElementType::fp32, .shape = {1, 1, elements}},
                    {.layer = 2, .type = ElementType::fp16, .shape = {1, 3, elements / 16 * 16}}});
    check_copies(random, spec, {.slots = 3, .misalignment_max = odd ? 15u : 0u, .padding_max = 0}, summed);
    check_copies(random, random_word_spec(random, 4), {.slots = 600, .misalignment_max = 0, .padding_max = 0}, summed);
  });
  CHECK(summed > 8);
}

TEST_CASE("every change of one word, and every exchange of two, changes the sum") {
  std::set<std::uint32_t> weights;
  for (std::uint32_t i = 0; i < 100000; ++i) weights.insert(kernels::sum_weight(i));
  CHECK(weights.size() == 100000);
  CHECK(std::ranges::all_of(weights, [](std::uint32_t weight) { return weight % 2 == 1; }));
  test::for_each_seed(3000, [](Random& random, std::uint64_t) {
    const auto draw = [&] { return static_cast<std::uint32_t>(random.bits()); };
    std::vector<std::uint32_t> words(static_cast<std::size_t>(random.between(2, 60)));
    for (std::uint32_t& word : words) word = random.chance(30) ? 0 : draw();
    const std::uint32_t first = draw();
    const auto sum = [&] {
      kernels::PartSum part;
      for (std::size_t i = 0; i < words.size(); ++i) part.add(words[i], first + static_cast<std::uint32_t>(i), {});
      return part.sum;
    };
    const std::uint64_t before = sum();
    const auto at = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(words.size()) - 1));
    const auto other = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(words.size()) - 1));
    if (words[at] != words[other]) {
      std::swap(words[at], words[other]);
      REQUIRE(sum() != before);
      std::swap(words[at], words[other]);
    }
    words[at] ^= random.chance(50) ? 1u << random.between(0, 31) : draw() | 1u;
    REQUIRE(sum() != before);
  });
}
