// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <span>

/// Transfers between the device and the tiers below it. Plain data: a RequestCache decides, and names its decisions in
/// the `transfers` of its answers. The owner of the tiers' memory carries them out and tells how each ended.
namespace stateport {

/// Where cached content lies: on the device, in a tier, from the fastest to the slowest, or where the engine keeps it
/// by its own means (TierOptions::kv_elsewhere).
enum class Medium : std::uint8_t { device, host, file, remote, elsewhere };
inline constexpr int medium_count = 4;  ///< without elsewhere

enum class CacheContent : std::uint8_t { kv_block, state };

/// Names the content of one image: the KV of a block of tokens, or the state of one group of layers at one position.
/// Two images of one model and layout with equal keys hold the same.
struct ImageKey {
  PrefixHash prefix;        ///< of all tokens up to `tokens`, with their namespace
  std::int64_t tokens = 0;  ///< from the start of the prompt to the state, or to the end of the block
  CacheContent content = CacheContent::state;
  std::int32_t group = 0;  ///< of a state
  friend constexpr bool operator==(const ImageKey&, const ImageKey&) noexcept = default;
};

/// Numbers transfers from 1, in the order in which they were decided.
using TransferId = std::uint64_t;

/// One image, and where it is to move.
struct Transfer {
  enum class Kind : std::uint8_t {
    store,  ///< device to a tier. `place` is read in the order of the engine's stream
    load,   ///< a tier to the device. `place` is written in the order of the engine's stream. From elsewhere: by the
            ///< engine itself, which settles it like any other
    copy,   ///< a tier to a lower one; both have it then
    drop,   ///< a tier forgets the image, as soon as no load or copy reads it any more. Not answered. Never of the
            ///< remote tier
    find  ///< asks whether the tier `from` has the image: `done`, it has; `gone`, it has not; anything else, not known
  };
  TransferId id = 0;
  Kind kind = Kind::store;
  ImageKey image;
  Medium from = Medium::device;
  Medium to = Medium::host;  ///< of a drop and a find: the same as `from`
  std::int32_t place = -1;   ///< store, load: the state's slot in the store of its group, or the number of the KV block
  RequestId request;  ///< load, find: the request that waits for it, or for which it was asked before it ended; of a
                      ///< prefetch: a number that no request has, with a row of at least max_requests

  friend constexpr bool operator==(const Transfer&, const Transfer&) noexcept = default;
};

/// In the order in which they take effect: a later store may use the room of a drop.
using TransferPlan = std::span<const Transfer>;

/// How a transfer ended. Everything but `done` leaves the destination without the image. A store or a copy of an image
/// that the destination has already is `done`.
enum class TransferStatus : std::uint8_t {
  done,            ///< store: readers may be sent there; load: enqueued, or written, before all that is enqueued later
  no_room,         ///< the tier is full, or its queue is
  gone,            ///< the tier has no such image (any more)
  damaged,         ///< a checksum does not fit
  foreign_layout,  ///< another model, layout, type or version
  wrong_position,  ///< the image names other tokens
  failed           ///< the machine failed: an input or output error
};
inline constexpr int transfer_status_count = 7;

struct TransferResult {
  TransferId id = 0;
  TransferStatus status = TransferStatus::done;
  friend constexpr bool operator==(const TransferResult&, const TransferResult&) noexcept = default;
};

}  // namespace stateport
