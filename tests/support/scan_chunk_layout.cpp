// SPDX-License-Identifier: Apache-2.0
#include "scan_chunk_layout.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::test {

void ScanChunkLayout::build(std::int32_t chunk, std::span<const std::int32_t> computed,
                            std::span<const std::int32_t> query_tokens,
                            std::span<const std::int32_t> checkpoint_offsets) {
  require(chunk >= 1, "chunk", chunk, "must be at least 1");
  require(query_tokens.size() == computed.size(), "query_tokens", query_tokens.size(),
          "must have one entry per sequence");
  require(checkpoint_offsets.empty() || checkpoint_offsets.size() == computed.size(), "checkpoint_offsets",
          checkpoint_offsets.size(), "must have one entry per sequence, or none");
  std::int64_t total = 0;
  for (std::size_t i = 0; i < computed.size(); ++i) {
    require(computed[i] >= 0, "computed", computed[i], "must not be negative");
    require(query_tokens[i] >= 0, "query_tokens", query_tokens[i], "must not be negative");
    total += query_tokens[i];
    require(total <= INT32_MAX, "query_tokens", total, "a batch has at most 2^31 - 1 tokens");
    const std::int32_t offset = checkpoint_offsets.empty() ? 0 : checkpoint_offsets[i];
    require(offset >= 0 && offset <= query_tokens[i], "checkpoint_offsets", offset, "must lie in the query");
  }
  cumulative_.assign(1, 0);
  sequence_.clear();
  last_.clear();
  checkpoint_.clear();
  for (std::size_t i = 0; i < computed.size(); ++i) {
    const std::int32_t offset = checkpoint_offsets.empty() ? 0 : checkpoint_offsets[i];
    const std::int32_t first_token = cumulative_.back();
    std::int32_t checkpoint_piece = -1;
    for (std::int32_t done = 0; done < query_tokens[i];) {
      const std::int64_t position = std::int64_t{computed[i]} + done;
      std::int64_t end = std::min<std::int64_t>(done + chunk - position % chunk, query_tokens[i]);
      if (done < offset && offset < end) end = offset;
      done = static_cast<std::int32_t>(end);
      if (offset > 0 && done == offset) checkpoint_piece = static_cast<std::int32_t>(sequence_.size());
      sequence_.push_back(static_cast<std::int32_t>(i));
      cumulative_.push_back(first_token + done);
    }
    last_.push_back(static_cast<std::int32_t>(sequence_.size()) - 1);
    checkpoint_.push_back(checkpoint_piece);
  }
}

}  // namespace stateport::test
