// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/transfers.h>
#include <stateport/core/tier/tier_options.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "arguments.hpp"

#include <cstddef>
#include <vector>

/// Transfers and their keys, between C and C++. Everything that comes from C is checked.
namespace stateport::c {

static_assert(sizeof(stateport_image_key) == 32 && sizeof(stateport_transfer) == 64 &&
              sizeof(stateport_transfer_result) == 16);
static_assert(STATEPORT_MEDIUM_DEVICE == static_cast<int>(Medium::device) &&
              STATEPORT_MEDIUM_HOST == static_cast<int>(Medium::host) &&
              STATEPORT_MEDIUM_FILE == static_cast<int>(Medium::file) &&
              STATEPORT_MEDIUM_REMOTE == static_cast<int>(Medium::remote) &&
              STATEPORT_MEDIUM_ELSEWHERE == static_cast<int>(Medium::elsewhere));
static_assert(STATEPORT_KV_BLOCK == static_cast<int>(CacheContent::kv_block) &&
              STATEPORT_STATE == static_cast<int>(CacheContent::state));
static_assert(STATEPORT_TRANSFER_STORE == static_cast<int>(Transfer::Kind::store) &&
              STATEPORT_TRANSFER_LOAD == static_cast<int>(Transfer::Kind::load) &&
              STATEPORT_TRANSFER_COPY == static_cast<int>(Transfer::Kind::copy) &&
              STATEPORT_TRANSFER_DROP == static_cast<int>(Transfer::Kind::drop) &&
              STATEPORT_TRANSFER_FIND == static_cast<int>(Transfer::Kind::find));
static_assert(STATEPORT_TRANSFER_DONE == static_cast<int>(TransferStatus::done) &&
              STATEPORT_TRANSFER_NO_ROOM == static_cast<int>(TransferStatus::no_room) &&
              STATEPORT_TRANSFER_GONE == static_cast<int>(TransferStatus::gone) &&
              STATEPORT_TRANSFER_DAMAGED == static_cast<int>(TransferStatus::damaged) &&
              STATEPORT_TRANSFER_FOREIGN_LAYOUT == static_cast<int>(TransferStatus::foreign_layout) &&
              STATEPORT_TRANSFER_WRONG_POSITION == static_cast<int>(TransferStatus::wrong_position) &&
              STATEPORT_TRANSFER_FAILED == static_cast<int>(TransferStatus::failed) &&
              STATEPORT_TRANSFER_FAILED + 1 == transfer_status_count);

[[nodiscard]] inline Medium medium_from_c(std::int32_t given, const char* argument) {
  return enumerator(given, Medium::elsewhere, argument);
}

[[nodiscard]] inline ImageKey from_c(const stateport_image_key& key) {
  return {.prefix = {{key.prefix[0], key.prefix[1]}},
          .tokens = key.tokens,
          .content = enumerator(key.content, CacheContent::state, "content"),
          .group = key.group};
}
[[nodiscard]] inline stateport_image_key to_c(const ImageKey& key) noexcept {
  return {.prefix = {key.prefix.words[0], key.prefix.words[1]},
          .tokens = key.tokens,
          .content = static_cast<std::int32_t>(key.content),
          .group = key.group};
}

[[nodiscard]] inline std::vector<ImageKey> read_keys(const stateport_image_key* keys, std::size_t count,
                                                     const char* argument) {
  std::vector<ImageKey> wanted;
  for (const stateport_image_key& key : array(keys, count, argument)) wanted.push_back(from_c(key));
  return wanted;
}

[[nodiscard]] inline Transfer from_c(const stateport_transfer& transfer) {
  return {.id = transfer.id,
          .kind = enumerator(transfer.kind, Transfer::Kind::find, "kind"),
          .image = from_c(transfer.image),
          .from = medium_from_c(transfer.from, "from"),
          .to = medium_from_c(transfer.to, "to"),
          .place = transfer.place,
          .request = RequestId{transfer.request}};
}
[[nodiscard]] inline stateport_transfer to_c(const Transfer& transfer) noexcept {
  return {.id = transfer.id,
          .kind = static_cast<std::int32_t>(transfer.kind),
          .from = static_cast<std::int32_t>(transfer.from),
          .to = static_cast<std::int32_t>(transfer.to),
          .place = transfer.place,
          .request = transfer.request.value(),
          .image = to_c(transfer.image)};
}

[[nodiscard]] inline TransferResult from_c(const stateport_transfer_result& result) {
  return {.id = result.id, .status = enumerator(result.status, TransferStatus::failed, "status")};
}
[[nodiscard]] inline stateport_transfer_result to_c(const TransferResult& result) noexcept {
  return {.id = result.id, .status = static_cast<std::int32_t>(result.status), .reserved = 0};
}

/// None are no tiers. Without kv_elsewhere.
[[nodiscard]] TierOptions read_tier_options(const stateport_tier_options* options);
[[nodiscard]] stateport_tier_usage to_c(const TierUsage& usage) noexcept;

}  // namespace stateport::c
