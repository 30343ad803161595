// SPDX-License-Identifier: Apache-2.0
#include "round_checks.hpp"

#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/transfer.hpp>

#include <algorithm>
#include <utility>

namespace stateport::perf {
namespace {

constexpr std::size_t word_bytes = 16;
constexpr std::size_t piece_bytes = std::size_t{256} << 10;  // one block's work: small, so that the load is even
constexpr std::byte poison{0xA5};

/// Adds left and right, cut into pieces.
void cut(std::vector<EqualRanges>& pieces, const std::byte* left, const std::byte* right, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += piece_bytes)
    pieces.push_back(
        {left + at, right + at, static_cast<std::uint32_t>(std::min(piece_bytes, bytes - at) / word_bytes)});
}

}  // namespace

RoundChecks::RoundChecks(std::vector<std::vector<WrittenRange>> rounds) : different_(resource_, sizeof(std::uint32_t)) {
  for (std::vector<WrittenRange>& ranges : rounds) {
    std::vector<EqualRanges> pieces;
    for (const WrittenRange& range : ranges) cut(pieces, range.dst, range.expected, range.bytes);
    rounds_.push_back({.ranges = std::move(ranges),
                       .pieces = static_cast<std::uint32_t>(pieces.size()),
                       .device_pieces = detail::upload(resource_, pieces)});
  }
}

void RoundChecks::prepare(const Stream& stream, int round) const {
  for (const WrittenRange& range : rounds_[index(round)].ranges) {
    if (range.before != nullptr)
      copy_bytes(stream, range.dst, range.before, range.bytes);
    else
      fill_bytes(stream, range.dst, poison, range.bytes);
  }
}

bool RoundChecks::hold(const Stream& stream, int round) {
  const Round& checked = rounds_[index(round)];
  std::uint32_t different = 1;
  fill_bytes(stream, different_.data(), std::byte{0}, sizeof different);
  count_differences(stream, checked.device_pieces.as<EqualRanges>(), checked.pieces, different_.as<std::uint32_t>());
  copy_bytes(stream, &different, different_.data(), sizeof different);
  stream.synchronize();
  return different == 0;
}

std::vector<WrittenRange> destinations(const std::vector<Chunk>& chunks) {
  std::vector<WrittenRange> ranges;
  for (const Chunk& chunk : chunks) ranges.push_back({.dst = chunk.dst, .expected = chunk.src, .bytes = chunk.bytes});
  return ranges;
}

std::vector<WrittenRange> slot_ranges(const StateStore& written, const StateStore& expected, const StateStore* before,
                                      std::int32_t first, std::int32_t slots) {
  std::vector<WrittenRange> ranges;
  for (std::size_t i = 0; i < written.tensors().size(); ++i) {
    const StateTensorView& tensor = written.tensors()[i];
    ranges.push_back({.dst = tensor.slot_data(SlotId{first}),
                      .expected = expected.tensors()[i].slot_data(SlotId{first}),
                      .bytes = static_cast<std::size_t>(slots * tensor.slot_stride_bytes),
                      .before = before != nullptr ? before->tensors()[i].slot_data(SlotId{first}) : nullptr});
  }
  return ranges;
}

CacheSweep::CacheSweep(std::size_t bytes) : bytes_(bytes), memory_(resource_, bytes + word_bytes) {
  std::vector<EqualRanges> pieces;
  cut(pieces, memory_.as<std::byte>(), memory_.as<std::byte>(), bytes_);
  device_pieces_ = detail::upload(resource_, pieces);
  pieces_ = static_cast<std::uint32_t>(pieces.size());
}

void CacheSweep::run(const Stream& stream) {
  auto* const different = reinterpret_cast<std::uint32_t*>(memory_.as<std::byte>() + bytes_);
  count_differences(stream, device_pieces_.as<EqualRanges>(), pieces_, different);
}

}  // namespace stateport::perf
