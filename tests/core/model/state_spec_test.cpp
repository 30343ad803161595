// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/state_spec.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace stateport;

TEST_CASE("a uniform spec lists conv before recurrent and sums their bytes") {
  const auto spec = StateSpec::uniform(2, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  REQUIRE(spec.tensors().size() == 4);
  CHECK(spec.tensors()[0].kind == StateKind::conv);
  CHECK(spec.tensors()[1].kind == StateKind::recurrent);
  CHECK(spec.tensors()[3].layer == 1);
  CHECK(spec.slot_bytes() == 2 * (3 * 8 * 2 + 16 * 4));
}

TEST_CASE("an opaque spec is one tensor of whole words") {
  const StateSpec spec = StateSpec::opaque(1004);
  CHECK(spec.tensors().size() == 1);
  CHECK(spec.slot_bytes() == 1004);
  CHECK(spec.fingerprint() != StateSpec::opaque(1000).fingerprint());
  CHECK_THROWS_WITH_AS(static_cast<void>(StateSpec::opaque(0)), "bytes = 0 (must be a multiple of 4, and not 0)",
                       InvalidArgument);
  for (const std::int64_t bytes : {std::int64_t{-4}, std::int64_t{1002}, (std::int64_t{1} << 40) + 4})
    CHECK_THROWS_AS(static_cast<void>(StateSpec::opaque(bytes)), InvalidArgument);
}

TEST_CASE("fingerprints tell layouts, types and shapes apart") {
  const auto base = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  CHECK(base.fingerprint() == StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}}).fingerprint());
  CHECK(base.fingerprint() !=
        StateSpec::uniform(1, {.window = 3, .dim = 8, .layout = ConvLayout::ds}, {.shape = {4, 2, 2}}).fingerprint());
  CHECK(base.fingerprint() != StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {2, 4, 2}}).fingerprint());
  CHECK(base.fingerprint() !=
        StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}, .type = ElementType::bf16}).fingerprint());
}

TEST_CASE("fingerprints of the usual layouts are those of earlier versions, in any wording") {
  const auto of = [](const char* model, ConvLayout layout) {
    return models::find(model, {.drafts = 3, .conv_layout = layout}).fingerprint();
  };
  CHECK(of("qwen3-next-80b-a3b", ConvLayout::sd) == 0xb6074dc73d9c3d91);
  CHECK(of("qwen3-next-80b-a3b", ConvLayout::ds) == 0x1f2f06f17e88040a);
  CHECK(of("lfm2-1.2b", ConvLayout::sd) == 0x2a0611f6e91e9b26);
  CHECK(of("lfm2-1.2b", ConvLayout::ds) == 0xf4858bcb169be7e2);
  CHECK(of("minimax-text-01", ConvLayout::ds) == 0x264714c8690a1a4f);
  const StateSpec unsaid({{.kind = StateKind::conv, .shape = {3, 8, 1}}});
  const StateSpec said({{.kind = StateKind::conv, .shape = {3, 8, 1}, .strides = {8, 1}}});
  CHECK(unsaid == said);
  CHECK(unsaid.fingerprint() == said.fingerprint());
}

TEST_CASE("each stride of a conv state changes its fingerprint") {
  StateTensorSpec tensor = StateTensorSpec::conv(0, {.window = 3, .dim = 8});
  const auto with = [&](std::int64_t token, std::int64_t channel) {
    tensor.strides = {.token = token, .channel = channel};
    return StateSpec({tensor}).fingerprint();
  };
  CHECK(with(1, 5) != with(1, 6));
  CHECK(with(40, 2) != with(41, 2));
}

TEST_CASE("a conv state with gaps spans more bytes than it has, and has a fingerprint of its own") {
  const StateTensorSpec sd = StateTensorSpec::conv(0, {.window = 3, .dim = 8});
  CHECK(sd.is(ConvLayout::sd));
  CHECK_FALSE(sd.is(ConvLayout::ds));
  CHECK(sd.dense());
  StateTensorSpec gaps = sd;
  gaps.strides = {20, 2};
  CHECK_FALSE(gaps.is(ConvLayout::sd));
  CHECK_FALSE(gaps.dense());
  CHECK(gaps.natural_bytes() == 3 * 8 * 2);
  CHECK(gaps.extent_bytes() == (2 * 20 + 7 * 2 + 1) * 2);
  CHECK(StateSpec({gaps}).slot_bytes() == sd.natural_bytes());
  CHECK(StateSpec({gaps}).fingerprint() != StateSpec({sd}).fingerprint());
  gaps.strides = {21, 2};
  CHECK(StateSpec({gaps}).fingerprint() != StateSpec({sd}).fingerprint());
}

TEST_CASE("a spec refuses strides by which elements meet") {
  const auto conv = [](std::int64_t window, std::int64_t dim, ConvStrides strides) {
    return std::vector<StateTensorSpec>{{.kind = StateKind::conv, .shape = {window, dim, 1}, .strides = strides}};
  };
  for (const ConvStrides strides :
       {ConvStrides{7, 1}, {1, 2}, {1, 1}, {8, 0}, {0, 1}, {-8, 1}, {std::int64_t{1} << 40, 1}})
    CHECK_THROWS_AS(StateSpec(conv(3, 8, strides)), InvalidArgument);
  for (const ConvStrides strides : {ConvStrides{8, 1}, {1, 3}, {2, 5}, {15, 2}})
    CHECK_NOTHROW(StateSpec(conv(3, 8, strides)));
  CHECK_NOTHROW(StateSpec(conv(1, 8, {1, 1})));
  CHECK_NOTHROW(StateSpec(conv(3, 1, {1, 1})));
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.strides = {1, 1}}}), InvalidArgument);
}

TEST_CASE("a spec refuses shapes that cannot exist") {
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(0, {}, {.shape = {1, 1, 1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {.window = 3, .dim = 0}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {.window = -1, .dim = 4}, {}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {}, {.shape = {1LL << 30, 1LL << 30, 1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.layer = -1}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.layer = INT32_MAX}}), InvalidArgument);
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.group = -1}}), InvalidArgument);
}

TEST_CASE("a tensor in blocks has a byte for each element and two for each block, and no block crosses a row") {
  const auto bytes = [](std::array<std::int64_t, 3> shape) {
    const StateTensorSpec tensor{.type = ElementType::int8_block32, .shape = shape};
    CHECK(tensor.extent_bytes() == tensor.natural_bytes());
    CHECK(StateSpec({tensor}).slot_bytes() == tensor.natural_bytes());
    return tensor.natural_bytes();
  };
  CHECK(bytes({1, 1, 1}) == 1 + 2);
  CHECK(bytes({3, 5, 31}) == 15 * (31 + 2));
  CHECK(bytes({3, 5, 32}) == 15 * (32 + 2));
  CHECK(bytes({3, 5, 33}) == 15 * (33 + 2 * 2));
  CHECK(bytes({1, 1, 64}) == 64 + 2 * 2);
  CHECK(bytes({32, 128, 128}) == 32 * 128 * (128 + 4 * 2));
  // Rows run along the last extent that is not 1.
  CHECK(bytes({8192, 16, 1}) == 8192 * (16 + 2));
  CHECK(bytes({100, 1, 1}) == 100 + 4 * 2);
}

TEST_CASE("the spec of checkpoints differs from that of live states in its recurrent tensors alone") {
  const models::SpecOptions fp32{.drafts = 1, .conv_layout = ConvLayout::ds, .recurrent_type = ElementType::fp32};
  const StateSpec live = models::find("qwen3-next-80b-a3b", fp32);
  const StateSpec blocks = quantised(live, ElementType::int8_block32);
  const StateSpec bf16 = quantised(live, ElementType::bf16);
  REQUIRE(blocks.tensors().size() == live.tensors().size());
  for (std::size_t i = 0; i < live.tensors().size(); ++i) {
    StateTensorSpec expected = live.tensors()[i];
    if (expected.kind == StateKind::recurrent) expected.type = ElementType::int8_block32;
    CHECK(blocks.tensors()[i] == expected);
  }
  CHECK(blocks.fingerprint() != live.fingerprint());
  CHECK(blocks.fingerprint() != bf16.fingerprint());
  CHECK(quantised(live, ElementType::fp32) == live);
  CHECK(quantised(bf16, ElementType::int8_block32) == blocks);
  CHECK(blocks ==
        models::find("qwen3-next-80b-a3b",
                     {.drafts = 1, .conv_layout = ConvLayout::ds, .recurrent_type = ElementType::int8_block32}));
}

TEST_CASE("states are kept as types that copies can make of them, and only recurrent tensors in blocks") {
  const StateSpec live = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  for (const ElementType type : {ElementType::fp64, ElementType::fp8, ElementType::int8})
    CHECK_THROWS_AS(quantised(live, type), InvalidArgument);
  for (const ElementType type : {ElementType::fp64, ElementType::fp8, ElementType::int8, ElementType::int8_block32})
    CHECK_THROWS_AS(quantised(StateSpec({{.type = type, .shape = {4, 2, 2}}}), ElementType::bf16), InvalidArgument);
  CHECK_THROWS_AS(StateSpec::uniform(1, {.window = 3, .dim = 32, .type = ElementType::int8_block32}, {}),
                  InvalidArgument);
  CHECK_NOTHROW(StateSpec::uniform(1, {}, {.shape = {4, 2, 2}, .type = ElementType::int8_block32}));
  CHECK_THROWS_AS(StateSpec(std::vector<StateTensorSpec>{{.type = static_cast<ElementType>(7)}}), InvalidArgument);
  static_assert(element_type_last == static_cast<ElementType>(6));
}
