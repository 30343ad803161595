// SPDX-License-Identifier: Apache-2.0
#include "image_stores.hpp"

#include <stateport/tiers/checksum.hpp>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace stateport::llamacpp {
namespace {

constexpr std::size_t word_bytes = 16;  // slots are whole words

struct Tag {
  std::int64_t tokens = 0;
  std::uint64_t sum = 0;
  friend bool operator==(const Tag&, const Tag&) noexcept = default;
};
static_assert(sizeof(Tag) == word_bytes);

std::size_t tag_offset(std::size_t image_bytes) {
  return (image_bytes + word_bytes - 1) / word_bytes * word_bytes;
}

/// Names the prefix by its length and its last tokens: enough to find an image that another one should have replaced.
Tag tag_of(std::span<const std::byte> image, std::span<const llama_token> prefix) {
  constexpr std::size_t named_tokens = 64;
  const auto named = prefix.last(std::min(named_tokens, prefix.size()));
  return {.tokens = std::ssize(prefix), .sum = checksum(image).words[0] ^ checksum(std::as_bytes(named)).words[1]};
}

}  // namespace

StateSpec ImageStore::spec(std::size_t image_bytes) {
  return StateSpec::opaque(static_cast<std::int64_t>(tag_offset(image_bytes) + sizeof(Tag)));
}

ImageStore::ImageStore(MemoryResource& memory, std::size_t image_bytes, std::int32_t slots, const Stream& stream)
    : image_bytes_(image_bytes), store_(memory, spec(image_bytes), {.slots = slots}, stream) {}

std::span<std::byte> ImageStore::image(std::int32_t slot) const noexcept {
  return {store_.tensors()[0].slot_data(SlotId{slot}), image_bytes_};
}

void ImageStore::seal(std::int32_t slot, std::span<const llama_token> prefix) const {
  const std::span<std::byte> bytes = image(slot);
  const Tag tag = tag_of(bytes, prefix);
  std::memcpy(bytes.data() + tag_offset(image_bytes_), &tag, sizeof tag);
}

void ImageStore::verify(std::int32_t slot, std::span<const llama_token> prefix, std::string_view content) const {
  const std::span<const std::byte> bytes = image(slot);
  Tag tag;
  std::memcpy(&tag, bytes.data() + tag_offset(image_bytes_), sizeof tag);
  if (tag != tag_of(bytes, prefix))
    throw std::runtime_error("the image of " + std::string(content) + " after " + std::to_string(prefix.size()) +
                             " tokens, in slot " + std::to_string(slot) + ", is not the one that was saved there");
}

}  // namespace stateport::llamacpp
