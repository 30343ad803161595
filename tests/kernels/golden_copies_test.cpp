// SPDX-License-Identifier: Apache-2.0
// The recorded outcomes of copies, through the kernels. (stateport-conformance, which needs no device, replays the same
// cases on plain lists.)
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/step_committer.hpp>

#include "device_array.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

using namespace stateport;
using test::DeviceArray;
using Json = nlohmann::json;
using Int32s = std::vector<std::int32_t>;

namespace {

/// All numbers of nested lists, in order.
Int32s flat(const Json& value) {
  if (!value.is_array()) return {value.get<std::int32_t>()};
  Int32s all;
  for (const Json& element : value) {
    const Int32s part = flat(element);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Int32s transposed(const Int32s& matrix, std::size_t rows) {
  const std::size_t columns = matrix.size() / rows;
  Int32s result(matrix.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; ++c) result[c * rows + r] = matrix[r * columns + c];
  return result;
}

StateTensorSpec conv_tensor(std::int64_t window, std::int64_t dim, ConvLayout layout) {
  return StateTensorSpec::conv(0, {.window = window, .dim = dim, .type = ElementType::fp32, .layout = layout});
}

/// A store of misaligned, padded tensors of 32-bit numbers, and the expected numbers.
class Numbers {
 public:
  Numbers(std::vector<StateTensorSpec> tensors, std::int32_t slots)
      : image_(random_, StateSpec(std::move(tensors)), test::ImageOptions{.slots = slots}) {}
  void set(std::size_t tensor, std::int32_t slot, const Int32s& numbers) {
    REQUIRE(numbers.size() * sizeof(std::int32_t) == image_.tensor(tensor).natural_bytes());
    std::memcpy(image_.slot(tensor, slot), numbers.data(), numbers.size() * sizeof(std::int32_t));
  }
  [[nodiscard]] StateStore upload() { return image_.upload(Stream::default_stream()); }
  [[nodiscard]] bool matches_device() const { return image_.matches_device(Stream::default_stream()); }

 private:
  test::Random random_{1};
  test::StoreImage image_;
};

/// conv_shift_bytes: tokens [bias, W) of one block → [0, W - bias) of another or of the same one.
void shift(const Json& row, ConvLayout layout, bool same_block) {
  const auto window = row.at("W").get<std::int64_t>();
  const auto bytes_of = [&](const char* key) {
    const Int32s tokens = flat(row.at(key));
    return layout == ConvLayout::sd ? tokens : transposed(tokens, static_cast<std::size_t>(window));
  };
  Numbers numbers({conv_tensor(window, row.at("D"), layout)}, 2);
  const std::int32_t dst = same_block ? 0 : 1;
  numbers.set(0, 0, bytes_of("src_tokens_major"));
  numbers.set(0, 1, bytes_of("dst_before"));
  const StateStore store = numbers.upload();
  const SlotCopy copy{.src_slot = 0, .dst_slot = dst, .conv_shift = row.at("bias"), .recurrent_src_slot = -1};
  SlotCopier(store).copy_shifted(Stream::default_stream(), {&copy, 1});
  numbers.set(0, dst, bytes_of(same_block ? "expect_same_block" : "expect_distinct"));
  REQUIRE(numbers.matches_device());
}

void shifts(const Json& rows) {
  for (const Json& row : rows)
    for (const ConvLayout layout : {ConvLayout::sd, ConvLayout::ds})
      for (const bool same_block : {false, true}) shift(row, layout, same_block);
}

/// overlap_memmove: rows that move down by one token in place.
void overlaps(const Json& value) {
  const auto token = value.at("shift").get<std::int64_t>() / 4;
  const auto window = value.at("bytes").get<std::int64_t>() / 4 / token + 1;
  const auto slots = value.at("rows").get<std::int32_t>();
  Numbers numbers({conv_tensor(window, token, ConvLayout::sd)}, slots);
  Int32s row(static_cast<std::size_t>(window * token));
  std::vector<SlotCopy> plan;
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::int32_t>(i) * 31 + slot;
    numbers.set(0, slot, row);
    plan.push_back({.src_slot = slot, .dst_slot = slot, .conv_shift = 1, .recurrent_src_slot = -1});
  }
  const StateStore store = numbers.upload();
  SlotCopier(store).copy_shifted(Stream::default_stream(), plan);
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t from = i + static_cast<std::size_t>(token);
      row[i] = static_cast<std::int32_t>(from < row.size() ? from : i) * 31 + slot;
    }
    numbers.set(0, slot, row);
  }
  REQUIRE(numbers.matches_device());
}

/// Every slot of a store of one tensor a layer: [layers, slots, …].
void fill(Numbers& numbers, const Json& layers) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    for (std::size_t slot = 0; slot < layers[layer].size(); ++slot)
      numbers.set(layer, static_cast<std::int32_t>(slot), flat(layers[layer][slot]));
}

/// masked_gather_scatter: dst[layer, slot of b] = src[layer, b, step of b].
void gather_scatter(const Json& row) {
  const Json& src = row.at("src");
  const auto width = static_cast<std::int64_t>(flat(row.at("dst")[0][0]).size());
  const auto steps = static_cast<std::int32_t>(src[0][0].size());
  std::vector<StateTensorSpec> tensors;
  std::deque<DeviceArray<std::int32_t>> scratch;
  std::vector<StepScratch> layouts;
  for (std::size_t layer = 0; layer < src.size(); ++layer) {
    tensors.push_back({.layer = static_cast<std::int32_t>(layer), .shape = {width, 1, 1}});
    scratch.emplace_back(flat(src[layer]));
    layouts.push_back({.base = reinterpret_cast<const std::byte*>(scratch.back().data()),
                       .request_stride_bytes = steps * width * 4,
                       .step_stride_bytes = width * 4});
  }
  Numbers numbers(tensors, static_cast<std::int32_t>(row.at("dst")[0].size()));
  fill(numbers, row.at("dst"));
  const StateStore store = numbers.upload();
  DeviceArray step(flat(row.at("steps"))), slot(flat(row.at("slots")));
  const auto rows = static_cast<std::int32_t>(row.at("steps").size());
  StepCommitter(layouts, store, rows, steps)
      .commit_step(Stream::default_stream(), {.last_step = step.data(), .live_slot = slot.data(), .rows = rows});
  fill(numbers, row.at("expect"));
  REQUIRE(numbers.matches_device());
}

/// conv_window: one window of a strip [channel][time].
void strip_window(const Json& row) {
  const auto window = row.at("kernel_minus_1").get<std::int64_t>();
  const auto dim = row.at("dim").get<std::int64_t>();
  const auto strip_tokens = static_cast<std::int64_t>(row.at("phys")[0].size());
  const ConvLayout layout = row.at("major") == "channel" ? ConvLayout::ds : ConvLayout::sd;
  Numbers numbers({conv_tensor(window, dim, layout)}, 1);
  const StateStore store = numbers.upload();
  DeviceArray strip(flat(row.at("phys"))), step(Int32s{row.at("step")}), slot(Int32s{0});
  const StepScratch scratch =
      StepScratch::strip(reinterpret_cast<const std::byte*>(strip.data()), ElementType::fp32, strip_tokens, dim, true);
  StepCommitter({&scratch, 1}, store, 1, static_cast<std::int32_t>(strip_tokens - window + 1))
      .commit_step(Stream::default_stream(), {.last_step = step.data(), .live_slot = slot.data(), .rows = 1});
  numbers.set(0, 0, flat(row.at("committed_conv_state")));
  REQUIRE(numbers.matches_device());
}

/// track_copy: rows of a pool are copied where the mask says so.
void tracking_copy(const Json& row) {
  const Json pool = Json::array({row.at("pool")});
  const auto width = static_cast<std::int64_t>(flat(row.at("pool")[0]).size());
  Numbers numbers({StateTensorSpec{.shape = {width, 1, 1}}}, static_cast<std::int32_t>(row.at("pool").size()));
  fill(numbers, pool);
  const StateStore store = numbers.upload();
  std::vector<SlotCopy> plan;
  for (std::size_t i = 0; i < row.at("src").size(); ++i)
    if (row.at("mask")[i].get<bool>()) plan.push_back(SlotCopy::whole(row.at("src")[i], row.at("dst")[i]));
  SlotCopier(store).copy_slots(Stream::default_stream(), plan);
  fill(numbers, Json::array({row.at("expect")}));
  REQUIRE(numbers.matches_device());
}

/// Runs `check` on the file's value of `key`, if both exist.
void replay(const char* file, const char* key, const std::function<void(const Json&)>& check) {
  const std::filesystem::path path = std::filesystem::path(STATEPORT_SHARED_DIR) / "golden" / file;
  if (!std::filesystem::exists(path)) {
    MESSAGE("skipped: no " << path.string());
    return;
  }
  std::ifstream stream(path);
  const Json cases = Json::parse(stream);
  if (cases.contains(key)) check(cases.at(key));
}

}  // namespace

TEST_CASE("the shift kernels have the recorded outcomes") {
  for (const char* file : {"align.json", "align_generated.json"}) {
    replay(file, "conv_shift_bytes", shifts);
    replay(file, "overlap_memmove", overlaps);
  }
}

TEST_CASE("the kernels of speculative commit have the recorded outcomes") {
  for (const char* file : {"speculative_commit.json", "speculative_commit_generated.json"})
    replay(file, "cases", [](const Json& rows) {
      for (const Json& row : rows) {
        const std::string kind = row.at("kind");
        CAPTURE(row.dump());
        if (kind == "masked_gather_scatter") gather_scatter(row);
        if (kind == "conv_window") strip_window(row);
        if (kind == "track_copy") tracking_copy(row);
      }
    });
}
