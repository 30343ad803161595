// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/image.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "hex.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace stateport {
namespace {

constexpr std::size_t image_page = ImageLayout::alignment_bytes;

StateSpec small_spec() {
  return StateSpec::uniform(1, {.window = 3, .dim = 2, .type = ElementType::bf16, .layout = ConvLayout::ds},
                            {.shape = {2, 2, 1}, .type = ElementType::fp32});
}

ImageLayoutOptions small_options() {
  return {.model = ModelId(0x1122334455667788), .content = CacheContent::state};
}

ImageLayout small_layout() {
  return ImageLayout(small_spec(), small_options());
}

ImageKey small_key() {
  return {.prefix = {{0x0102030405060708, 0x090a0b0c0d0e0f10}}, .tokens = 4096, .content = CacheContent::state};
}

std::vector<std::byte> small_image() {
  const ImageLayout layout = small_layout();
  std::vector<std::byte> image(layout.image_bytes());
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < layout.section_bytes(i); ++j)
      image[layout.section_offset(i) + j] = static_cast<std::byte>(16 * (i + 1) + j);
  layout.seal(image, small_key());
  return image;
}

void seal_header_again(std::vector<std::byte>& image) {
  std::fill_n(image.begin() + 24, 16, std::byte{0});
  const Checksum sum = checksum(std::span(image).first(image_page));
  std::memcpy(image.data() + 24, sum.words.data(), 16);
}

std::string hex_of(std::span<const std::byte> bytes) {
  return test::hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

StateSpec with_tensor(void (*change)(StateTensorSpec&)) {
  const StateSpec spec = small_spec();
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  change(tensors[1]);
  return StateSpec(std::move(tensors));
}

TEST_CASE("the bytes of a small image are those of version 1") {
  const std::vector<std::byte> image = small_image();
  REQUIRE(image.size() == 3 * image_page);
  const auto field = [&image](std::size_t at, std::size_t bytes) {
    return hex_of(std::span(image).subspan(at, bytes));
  };
  CHECK(field(0, 8) == "895350494d470d0a");
  CHECK(field(8, 16) ==
        "01000000"
        "00100000"
        "0030000000000000");
  CHECK(field(24, 16) == "37f0782474d5eb0c6c82f3a6906feead");
  CHECK(field(40, 16) == "88776655443322110000000000000000");
  CHECK(field(56, 8) == "e7d4dbcae5ec89be");
  CHECK(field(64, 24) ==
        "0010000000000000"
        "0807060504030201"
        "100f0e0d0c0b0a09");
  CHECK(field(88, 40) == "01000000" + std::string(2 * 20, '0') + "02000000" + std::string(2 * 12, '0'));
  CHECK(field(128, 40) ==
        "00000000"
        "00000000"
        "00"
        "02"
        "000000000000"
        "0300000000000000"
        "0200000000000000"
        "0100000000000000");
  CHECK(field(168, 32) ==
        "0100000000000000"
        "0300000000000000"
        "0010000000000000"
        "0c00000000000000");
  CHECK(field(200, 24) == "0e3f5aaa095613658fb22e6a572917860000000000000000");
  CHECK(field(224, 40) ==
        "00000000"
        "00000000"
        "01"
        "00"
        "000000000000"
        "0200000000000000"
        "0200000000000000"
        "0100000000000000");
  CHECK(field(264, 32) ==
        "0000000000000000"
        "0000000000000000"
        "0020000000000000"
        "1000000000000000");
  CHECK(field(296, 24) == "be0c714d6451df1108fd84366559b45d0000000000000000");
  CHECK(std::all_of(image.begin() + 320, image.begin() + image_page,
                    [](std::byte byte) { return byte == std::byte{0}; }));
  CHECK(field(image_page, 12) == "101112131415161718191a1b");
  CHECK(field(2 * image_page, 16) == "202122232425262728292a2b2c2d2e2f");
}

TEST_CASE("a model id is a number or the checksum of a text") {
  CHECK(ModelId(7).words == std::array<std::uint64_t, 2>{7, 0});
  const ModelId model(std::string_view("qwen3-next-80b-a3b, revision 1"));
  CHECK(model == ModelId(std::string_view("qwen3-next-80b-a3b, revision 1")));
  CHECK_FALSE(model == ModelId(std::string_view("qwen3-next-80b-a3b, revision 2")));
}

TEST_CASE("a sealed image is the one that its key names, and no other") {
  const ImageLayout layout = small_layout();
  const std::vector<std::byte> image = small_image();
  CHECK(layout.check(image, small_key()) == TransferStatus::done);
  CHECK(layout.check_header(std::span(image).first(image_page), small_key()) == TransferStatus::done);

  ImageKey other = small_key();
  other.tokens += 1;
  CHECK(layout.check(image, other) == TransferStatus::wrong_position);
  other = small_key();
  other.prefix.words[1] ^= 1;
  CHECK(layout.check(image, other) == TransferStatus::wrong_position);
  other = small_key();
  other.group = 1;
  CHECK(layout.check(image, other) == TransferStatus::foreign_layout);
  other = small_key();
  other.content = CacheContent::kv_block;
  CHECK(layout.check(image, other) == TransferStatus::foreign_layout);
}

TEST_CASE("images of another model, layout, content, group or shard are foreign") {
  const std::vector<std::byte> image = small_image();
  const auto check = [&image](const StateSpec& spec, const ImageLayoutOptions& options) {
    ImageKey key = small_key();
    key.content = options.content;
    key.group = options.group;
    return ImageLayout(spec, options).check(image, key);
  };
  ImageLayoutOptions options = small_options();
  REQUIRE(check(small_spec(), options) == TransferStatus::done);
  options.model.words[1] = 1;
  CHECK(check(small_spec(), options) == TransferStatus::foreign_layout);
  options = small_options();
  options.content = CacheContent::kv_block;
  CHECK(check(small_spec(), options) == TransferStatus::foreign_layout);
  options = small_options();
  options.group = 1;
  CHECK(check(small_spec(), options) == TransferStatus::foreign_layout);
  options = small_options();
  options.shard = {.layer_end = 1, .head_group = 1, .head_groups = 2};
  CHECK(check(small_spec(), options) == TransferStatus::foreign_layout);

  options = small_options();
  CHECK(check(with_tensor([](StateTensorSpec& tensor) { tensor.type = ElementType::bf16; }), options) ==
        TransferStatus::foreign_layout);
  CHECK(check(with_tensor([](StateTensorSpec& tensor) {
                tensor.shape = {4, 1, 1};
              }),
              options) == TransferStatus::foreign_layout);
  CHECK(check(with_tensor([](StateTensorSpec& tensor) { tensor.layer = 1; }), options) ==
        TransferStatus::foreign_layout);
}

TEST_CASE("a flipped bit in header or sections is damage, whatever the field") {
  const ImageLayout layout = small_layout();
  std::vector<std::byte> image = small_image();
  const auto answer = [&](std::size_t bit) {
    image[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    const TransferStatus status = layout.check(image, small_key());
    image[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    return status;
  };
  std::size_t undamaged = 0;
  for (std::size_t bit = 0; bit < 8 * image_page; ++bit) undamaged += answer(bit) != TransferStatus::damaged;
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t bit = 0; bit < 8 * layout.section_bytes(i); ++bit)
      undamaged += answer(8 * layout.section_offset(i) + bit) != TransferStatus::damaged;
  CHECK(undamaged == 0);
  CHECK(answer(8 * (image_page + layout.section_bytes(0))) == TransferStatus::done);  // padding means nothing
}

TEST_CASE("fewer bytes than an image has are damage") {
  const ImageLayout layout = small_layout();
  const std::vector<std::byte> image = small_image();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{15}, image_page - 1, image_page, 2 * image_page, 3 * image_page - 1}) {
    CAPTURE(bytes);
    CHECK(layout.check(std::span(image).first(bytes), small_key()) == TransferStatus::damaged);
  }
  CHECK(layout.check_header(std::span(image).first(image_page - 1), small_key()) == TransferStatus::damaged);
}

TEST_CASE("a table of other tensors is foreign, whatever the fingerprint says") {
  for (const std::size_t field : {128u, 132u, 136u, 137u, 138u, 144u, 168u, 184u, 192u, 224u, 240u}) {
    CAPTURE(field);
    std::vector<std::byte> image = small_image();
    image[field] ^= std::byte{1};
    seal_header_again(image);
    CHECK(small_layout().check(image, small_key()) == TransferStatus::foreign_layout);
  }
}

TEST_CASE("an image of another version is foreign, not damaged, and tells its size") {
  std::vector<std::byte> image = small_image();
  image[8] = std::byte{2};
  seal_header_again(image);
  CHECK(small_layout().check(image, small_key()) == TransferStatus::foreign_layout);
  const std::optional<ImageFacts> facts = read_image_facts(image);
  REQUIRE(facts);
  CHECK(facts->version == 2);
  CHECK(facts->image_bytes == 3 * image_page);
}

TEST_CASE("the facts of a header are read without its layout") {
  const std::vector<std::byte> image = small_image();
  CHECK(image_header_bytes(std::span(image).first(32)) == image_page);
  const std::optional<ImageFacts> facts = read_image_facts(std::span(image).first(image_page));
  REQUIRE(facts);
  CHECK(facts->version == ImageLayout::version);
  CHECK(facts->header_bytes == image_page);
  CHECK(facts->image_bytes == 3 * image_page);
  CHECK(facts->key == small_key());
  const std::vector<std::byte> zeros(image_page);
  CHECK_FALSE(image_header_bytes(zeros));
  CHECK_FALSE(read_image_facts(zeros));
}

TEST_CASE("the header grows by pages with the table of tensors") {
  const auto header_bytes = [](std::int32_t layers) {
    return ImageLayout(StateSpec::uniform(layers, {}, {.shape = {1, 1, 1}}), small_options()).header_bytes();
  };
  CHECK(header_bytes(1) == image_page);
  CHECK(header_bytes(41) == image_page);  // 128 + 41 * 96 = 4064
  CHECK(header_bytes(42) == 2 * image_page);
  CHECK(header_bytes(84) == 2 * image_page);  // 128 + 84 * 96 = 8192
  CHECK(header_bytes(85) == 3 * image_page);
  const ImageLayout layout(models::find("qwen3-next-80b-a3b"), small_options());
  std::vector<std::byte> image(layout.image_bytes(), std::byte{1});
  layout.seal(image, small_key());
  CHECK(layout.check(image, small_key()) == TransferStatus::done);
  CHECK(layout.section_offset(0) == layout.header_bytes());
}

TEST_CASE("sections have no gaps, whatever the strides of the engine's conv states") {
  StateTensorSpec gapped = StateTensorSpec::conv(0, {.window = 3, .dim = 2, .type = ElementType::bf16});
  gapped.strides = {.token = 8, .channel = 2};
  const StateSpec spec({gapped});
  const ImageLayout layout(spec, small_options());
  CHECK(layout.section_bytes(0) == 12);
  CHECK(layout.spec().tensors()[0].is(ConvLayout::sd));
  const ImageLayout dense(small_spec(), small_options());
  CHECK(dense.spec() == small_spec());
}

TEST_CASE("wrong arguments of image layouts are refused by name") {
  const auto refused = [](const ImageLayoutOptions& options) -> std::string {
    try {
      const ImageLayout layout(small_spec(), options);
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return "";
  };
  CHECK(refused(small_options()) == "");
  CHECK(refused({.content = CacheContent{2}}) == "content");
  CHECK(refused({.group = -1}) == "group");
  CHECK(refused({.content = CacheContent::kv_block, .group = 1}) == "group");
  CHECK(refused({.shard = {.layer_begin = -1, .layer_end = 1, .head_groups = 1}}) == "shard.layer_begin");
  CHECK(refused({.shard = {.layer_begin = 1, .layer_end = 1, .head_groups = 1}}) == "shard.layer_end");
  CHECK(refused({.shard = {.layer_end = 1}}) == "shard.head_groups");
  CHECK(refused({.shard = {.layer_end = 1, .head_group = 2, .head_groups = 2}}) == "shard.head_group");

  const ImageLayout layout = small_layout();
  std::vector<std::byte> image(layout.image_bytes());
  CHECK_THROWS_AS(layout.seal(std::span(image).first(image_page), small_key()), InvalidArgument);
  ImageKey key = small_key();
  key.tokens = -1;
  CHECK_THROWS_AS(layout.seal(image, key), InvalidArgument);
  key = small_key();
  key.group = 3;
  CHECK_THROWS_AS(layout.seal(image, key), InvalidArgument);
  CHECK(std::all_of(image.begin(), image.end(), [](std::byte byte) { return byte == std::byte{0}; }));
}

}  // namespace
}  // namespace stateport
