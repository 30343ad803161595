// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/image.hpp>

#include <stateport/core/model/error.hpp>

#include "image/running_checksum.hpp"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <type_traits>
#include <utility>

namespace stateport {
namespace {

constexpr std::array<unsigned char, 8> magic = {0x89, 'S', 'P', 'I', 'M', 'G', '\r', '\n'};

// Where the fields of a header lie; image.hpp draws them.
constexpr std::size_t version_at = 8;
constexpr std::size_t header_bytes_at = 12;
constexpr std::size_t image_bytes_at = 16;
constexpr std::size_t checksum_at = 24;
constexpr std::size_t model_at = 40;
constexpr std::size_t fingerprint_at = 56;
constexpr std::size_t tokens_at = 64;
constexpr std::size_t prefix_at = 72;
constexpr std::size_t content_at = 88;
constexpr std::size_t group_at = 92;
constexpr std::size_t shard_at = 96;
constexpr std::size_t tensor_count_at = 112;
constexpr std::size_t table_at = 128;
constexpr std::size_t entry_bytes = 96;
// … and those of an entry.
constexpr std::size_t entry_kind_at = 8;
constexpr std::size_t entry_type_at = 9;
constexpr std::size_t entry_shape_at = 16;
constexpr std::size_t entry_strides_at = 40;
constexpr std::size_t entry_offset_at = 56;
constexpr std::size_t entry_bytes_at = 64;
constexpr std::size_t entry_checksum_at = 72;

constexpr std::size_t checksum_bytes = 16;

constexpr std::size_t padded(std::size_t bytes) noexcept {
  return (bytes + ImageLayout::alignment_bytes - 1) / ImageLayout::alignment_bytes * ImageLayout::alignment_bytes;
}

constexpr std::size_t header_bytes_of(std::size_t tensors) noexcept {
  return padded(table_at + tensors * entry_bytes);
}

template <std::integral Value>
void put(std::span<std::byte> bytes, std::size_t at, Value value) noexcept {
  const auto bits = static_cast<std::make_unsigned_t<Value>>(value);
  for (std::size_t i = 0; i < sizeof(Value); ++i)
    bytes[at + i] = static_cast<std::byte>(static_cast<std::uint64_t>(bits) >> (8 * i));
}

template <std::integral Value>
[[nodiscard]] Value get(std::span<const std::byte> bytes, std::size_t at) noexcept {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(Value); ++i)
    bits |= static_cast<std::uint64_t>(std::to_integer<unsigned char>(bytes[at + i])) << (8 * i);
  return static_cast<Value>(static_cast<std::make_unsigned_t<Value>>(bits));
}

using Words = std::array<std::uint64_t, 2>;

void put(std::span<std::byte> bytes, std::size_t at, const Words& words) noexcept {
  put(bytes, at, words[0]);
  put(bytes, at + 8, words[1]);
}

Words get_words(std::span<const std::byte> bytes, std::size_t at) noexcept {
  return {get<std::uint64_t>(bytes, at), get<std::uint64_t>(bytes, at + 8)};
}

/// Of a header, its own place taken as zero.
Checksum header_checksum(std::span<const std::byte> header) noexcept {
  static constexpr std::array<std::byte, checksum_bytes> zeros = {};
  RunningChecksum sum;
  sum.add(header.first(checksum_at));
  sum.add(zeros);
  sum.add(header.subspan(checksum_at + checksum_bytes));
  return sum.finish();
}

constexpr std::size_t entry_at(std::size_t tensor) noexcept {
  return table_at + tensor * entry_bytes;
}

void put_entry(std::span<std::byte> entry, const StateTensorSpec& tensor, std::size_t offset) noexcept {
  put(entry, 0, tensor.layer);
  put(entry, 4, tensor.group);
  put(entry, entry_kind_at, static_cast<std::uint8_t>(tensor.kind));
  put(entry, entry_type_at, static_cast<std::uint8_t>(tensor.type));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) put(entry, entry_shape_at + 8 * i, tensor.shape[i]);
  if (tensor.kind == StateKind::conv) {
    put(entry, entry_strides_at, tensor.conv_strides().token);
    put(entry, entry_strides_at + 8, tensor.conv_strides().channel);
  }
  put(entry, entry_offset_at, static_cast<std::uint64_t>(offset));
  put(entry, entry_bytes_at, static_cast<std::uint64_t>(tensor.natural_bytes()));
}

StateSpec without_gaps(const StateSpec& spec) {
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  for (StateTensorSpec& tensor : tensors)
    if (!tensor.dense()) tensor.strides = {};
  return StateSpec(std::move(tensors));
}

void validate(const StateSpec& spec, const ImageLayoutOptions& options) {
  require(spec.tensors().size() <= ImageLayout::tensors_max, "tensors", spec.tensors().size(), "must be at most 16384");
  require(options.content == CacheContent::kv_block || options.content == CacheContent::state, "content",
          static_cast<int>(options.content), "is no content of an image");
  require(options.group >= 0 && (options.group == 0 || options.content == CacheContent::state), "group", options.group,
          "must not be negative, and KV has group 0");
  const ModelShard& shard = options.shard;
  if (shard == ModelShard{}) return;
  require(shard.layer_begin >= 0, "shard.layer_begin", shard.layer_begin, "must not be negative");
  require(shard.layer_end > shard.layer_begin, "shard.layer_end", shard.layer_end, "must lie behind layer_begin");
  require(shard.head_groups >= 1, "shard.head_groups", shard.head_groups, "must be at least 1");
  require(shard.head_group >= 0 && shard.head_group < shard.head_groups, "shard.head_group", shard.head_group,
          "must lie in [0, head_groups)");
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t begin, std::size_t end) noexcept {
  return std::memcmp(a.data() + begin, b.data() + begin, end - begin) == 0;
}

}  // namespace

ModelId::ModelId(std::string_view text) noexcept : words(checksum(std::as_bytes(std::span(text))).words) {}

ImageLayout::ImageLayout(const StateSpec& spec, const ImageLayoutOptions& options)
    : options_(options), spec_((validate(spec, options), without_gaps(spec))) {
  const std::span<const StateTensorSpec> tensors = spec_.tensors();
  header_.resize(header_bytes_of(tensors.size()));
  image_bytes_ = header_.size();
  section_offsets_.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    section_offsets_.push_back(image_bytes_);
    put_entry(std::span(header_).subspan(entry_at(i), entry_bytes), tensors[i], image_bytes_);
    image_bytes_ += padded(tensors[i].natural_bytes());
  }
  std::memcpy(header_.data(), magic.data(), magic.size());
  put(header_, version_at, version);
  put(header_, header_bytes_at, static_cast<std::uint32_t>(header_.size()));
  put(header_, image_bytes_at, static_cast<std::uint64_t>(image_bytes_));
  put(header_, model_at, options_.model.words);
  put(header_, fingerprint_at, options_.fingerprint != 0 ? options_.fingerprint : spec_.fingerprint());
  put(header_, content_at, static_cast<std::uint32_t>(options_.content));
  put(header_, group_at, options_.group);
  put(header_, shard_at, options_.shard.layer_begin);
  put(header_, shard_at + 4, options_.shard.layer_end);
  put(header_, shard_at + 8, options_.shard.head_group);
  put(header_, shard_at + 12, options_.shard.head_groups);
  put(header_, tensor_count_at, static_cast<std::uint32_t>(tensors.size()));
}

void ImageLayout::clear_padding(std::span<std::byte> part, std::size_t begin) const noexcept {
  const std::size_t end = begin + part.size();
  for (std::size_t i = 0; i < section_offsets_.size(); ++i) {
    const std::size_t data_end = section_offsets_[i] + section_bytes(i);
    const std::size_t first = std::clamp(data_end, begin, end);
    const std::size_t last = std::clamp(padded(data_end), begin, end);
    std::ranges::fill(part.subspan(first - begin, last - first), std::byte{0});
  }
}

void ImageLayout::seal(std::span<std::byte> image, const ImageKey& key) const {
  require(image.size() == image_bytes_, "image.size()", image.size(), "must be image_bytes()");
  std::vector<Checksum> sections;
  sections.reserve(section_offsets_.size());
  for (std::size_t i = 0; i < section_offsets_.size(); ++i)
    sections.push_back(checksum(image.subspan(section_offsets_[i], section_bytes(i))));
  clear_padding(image);
  write_header(image.first(header_.size()), key, sections);
}

void ImageLayout::write_header(std::span<std::byte> header, const ImageKey& key,
                               std::span<const Checksum> sections) const {
  require(key.content == options_.content, "key.content", static_cast<int>(key.content), "is not that of the layout");
  require(key.group == options_.group, "key.group", key.group, "is not that of the layout");
  require(key.tokens >= 0, "key.tokens", key.tokens, "must not be negative");
  require(header.size() == header_.size(), "header.size()", header.size(), "must be header_bytes()");
  require(sections.size() == section_offsets_.size(), "sections.size()", sections.size(),
          "must be that of the tensors");
  std::ranges::copy(header_, header.begin());
  put(header, tokens_at, key.tokens);
  put(header, prefix_at, key.prefix.words);
  for (std::size_t i = 0; i < sections.size(); ++i) put(header, entry_at(i) + entry_checksum_at, sections[i].words);
  put(header, checksum_at, header_checksum(header).words);
}

Checksum ImageLayout::section_checksum(std::span<const std::byte> header, std::size_t tensor) const noexcept {
  return {get_words(header, entry_at(tensor) + entry_checksum_at)};
}

TransferStatus ImageLayout::check_header(std::span<const std::byte> header, const ImageKey& key) const noexcept {
  const std::optional<ImageFacts> facts = read_image_facts(header);
  if (!facts) return TransferStatus::damaged;
  // An image is this layout's if its header is, but for the key and the checksums of the sections.
  if (facts->version != version || facts->header_bytes != header_.size() || !holds(key) ||
      !equal(header, header_, image_bytes_at, checksum_at) || !equal(header, header_, model_at, tokens_at) ||
      !equal(header, header_, content_at, table_at))
    return TransferStatus::foreign_layout;
  for (std::size_t i = 0; i < section_offsets_.size(); ++i)
    if (!equal(header, header_, entry_at(i), entry_at(i) + entry_checksum_at)) return TransferStatus::foreign_layout;
  return facts->key == key ? TransferStatus::done : TransferStatus::wrong_position;
}

TransferStatus ImageLayout::check(std::span<const std::byte> image, const ImageKey& key) const noexcept {
  if (const TransferStatus header = check_header(image, key); header != TransferStatus::done) return header;
  if (image.size() < image_bytes_) return TransferStatus::damaged;
  for (std::size_t i = 0; i < section_offsets_.size(); ++i)
    if (checksum(image.subspan(section_offsets_[i], section_bytes(i))) != section_checksum(image, i))
      return TransferStatus::damaged;
  return TransferStatus::done;
}

std::optional<std::size_t> image_header_bytes(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() < image_bytes_at || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) return {};
  const auto header_bytes = std::size_t{get<std::uint32_t>(bytes, header_bytes_at)};
  const bool plausible = header_bytes > 0 && header_bytes % ImageLayout::alignment_bytes == 0 &&
                         header_bytes <= header_bytes_of(ImageLayout::tensors_max);
  return plausible ? std::optional(header_bytes) : std::nullopt;
}

std::optional<ImageFacts> read_image_facts(std::span<const std::byte> header) noexcept {
  const std::optional<std::size_t> header_bytes = image_header_bytes(header);
  if (!header_bytes || header.size() < *header_bytes) return {};
  header = header.first(*header_bytes);
  if (header_checksum(header).words != get_words(header, checksum_at)) return {};
  ImageFacts facts{.version = get<std::uint32_t>(header, version_at),
                   .header_bytes = *header_bytes,
                   .image_bytes = get<std::uint64_t>(header, image_bytes_at)};
  if (facts.image_bytes < facts.header_bytes || facts.image_bytes % ImageLayout::alignment_bytes != 0) return {};
  if (facts.version == ImageLayout::version)
    facts.key = {.prefix = {get_words(header, prefix_at)},
                 .tokens = get<std::int64_t>(header, tokens_at),
                 .content = static_cast<CacheContent>(get<std::uint32_t>(header, content_at)),
                 .group = get<std::int32_t>(header, group_at)};
  if (facts.key.tokens < 0) return {};
  return facts;
}

}  // namespace stateport
