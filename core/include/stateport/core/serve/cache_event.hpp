// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <cstdint>

namespace stateport {

/// A change of the contents of a cache, for routers. Events of the remote tier name contents that this cache knows to
/// be there. Contents that it forgets (`removed`) may still be there.
struct CacheEvent {
  enum class Kind : std::uint8_t {
    stored,   ///< can be found from now on
    removed,  ///< can not be found any more
    cleared   ///< nothing can be found any more, KV or states; the other fields have no meaning
  };
  using Content = CacheContent;
  using Medium = stateport::Medium;

  std::uint64_t sequence =
      0;  ///< counts up by one from 1; after a gap, events were lost because they were not taken in time
  Kind kind = Kind::cleared;
  Content content = Content::kv_block;
  Medium medium = Medium::device;
  std::int32_t group = 0;   ///< of a state
  PrefixHash prefix;        ///< names the block, or the state, with everything before it (BlockDigest::prefix)
  PrefixHash parent;        ///< stored KV: of the block before; zero for the first block of a prompt
  std::int64_t tokens = 0;  ///< stored: tokens from the start of the prompt to the end of the block, or to the state
  friend constexpr bool operator==(const CacheEvent&, const CacheEvent&) noexcept = default;
};

}  // namespace stateport
