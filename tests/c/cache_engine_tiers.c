// SPDX-License-Identifier: Apache-2.0
// Tiers of the engine in small: images in an array.
#include "cache_engine.h"

#include <string.h>

/// Index of an image; `count` if it is not there.
static int find_image(const engine_tiers* tiers, const stateport_image_key* key, int32_t medium) {
  int at = 0;
  while (at < tiers->count &&
         (tiers->image[at].medium != medium || memcmp(&tiers->image[at].key, key, sizeof *key) != 0))
    ++at;
  return at;
}

/// Other machines remove images of the remote tier, so that there is room.
static void forget_remote(engine_tiers* tiers) {
  for (int at = 0; at < tiers->count && tiers->count > engine_images_max / 2; ++at)
    if (tiers->image[at].medium == STATEPORT_MEDIUM_REMOTE) tiers->image[at] = tiers->image[--tiers->count];
}

static void drop(engine_tiers* tiers, const stateport_image_key* key, int32_t medium) {
  const int at = find_image(tiers, key, medium);
  if (at < tiers->count) tiers->image[at] = tiers->image[--tiers->count];
}

/// A state of all groups counts once: as much as its groups have.
static void check_room(const engine* self, int32_t medium) {
  const engine_tiers* const tiers = self->tiers;
  int64_t bytes = 0;
  for (int i = 0; i < tiers->count; ++i)
    if (tiers->image[i].medium == medium)
      bytes += tiers->image[i].key.content == STATEPORT_STATE ? tiers->options.state_image_bytes / (int64_t)self->groups
                                                              : tiers->options.kv_image_bytes;
  if (medium == STATEPORT_MEDIUM_REMOTE) return;  // its own affair
  CHECK(bytes <= (medium == STATEPORT_MEDIUM_HOST ? tiers->options.host_bytes : tiers->options.file_bytes));
}

static void read_place(engine* self, const stateport_transfer* transfer, engine_image* image) {
  if (transfer->image.content == STATEPORT_STATE)
    image->state = engine_checkpoints(self, (size_t)transfer->image.group)[transfer->place];
  else
    memcpy(image->kv, &self->kv[transfer->place * self->block_tokens], (size_t)self->block_tokens * sizeof *image->kv);
}

static void write_place(engine* self, const stateport_transfer* transfer, const engine_image* image) {
  if (transfer->image.content == STATEPORT_STATE)
    engine_checkpoints(self, (size_t)transfer->image.group)[transfer->place] = image->state;
  else
    memcpy(&self->kv[transfer->place * self->block_tokens], image->kv, (size_t)self->block_tokens * sizeof *image->kv);
}

/// The content of a place whose load failed, and of a lost image.
static engine_image garbage(void) {
  engine_image image;
  memset(&image, 0xdd, sizeof image);
  return image;
}

/// KV that the engine keeps itself: as the request that waits for it would have computed it.
static int32_t load_from_elsewhere(engine* self, const stateport_transfer* transfer) {
  CHECK(transfer->kind == STATEPORT_TRANSFER_LOAD && transfer->image.content == STATEPORT_KV_BLOCK);
  engine_image image = garbage();
  int index = 0;
  while (index < engine_requests && self->requests[index].id != transfer->request) ++index;
  const bool fails = index == engine_requests || engine_random(self, 10) == 0;  // it may have ended
  for (int32_t i = 0; i < self->block_tokens && !fails; ++i)
    image.kv[i] = engine_kv(self->requests[index].tokens, transfer->image.tokens - self->block_tokens + i);
  write_place(self, transfer, &image);
  ++self->tiers->elsewhere;
  return fails ? STATEPORT_TRANSFER_GONE : STATEPORT_TRANSFER_DONE;
}

static int32_t carry_out(engine* self, const stateport_transfer* transfer) {
  engine_tiers* const tiers = self->tiers;
  if (transfer->from == STATEPORT_MEDIUM_ELSEWHERE) return load_from_elsewhere(self, transfer);
  CHECK(tiers->options.leading_blocks == NULL || transfer->image.content == STATEPORT_STATE);
  const bool fails = engine_random(self, 10) == 0;
  engine_image image = garbage();
  const int at = find_image(tiers, &transfer->image, transfer->from);
  if (transfer->kind == STATEPORT_TRANSFER_FIND) {
    CHECK(transfer->from == STATEPORT_MEDIUM_REMOTE && transfer->to == STATEPORT_MEDIUM_REMOTE);
    if (fails) return STATEPORT_TRANSFER_FAILED;
    return at < tiers->count ? STATEPORT_TRANSFER_DONE : STATEPORT_TRANSFER_GONE;
  }
  if (transfer->from != STATEPORT_MEDIUM_DEVICE) {
    if (at == tiers->count) return STATEPORT_TRANSFER_GONE;
    image = tiers->image[at];
  }
  if (transfer->kind == STATEPORT_TRANSFER_LOAD) {
    const engine_image nothing = garbage();
    write_place(self, transfer, fails ? &nothing : &image);
    if (fails) drop(tiers, &transfer->image, transfer->from);
    return fails ? STATEPORT_TRANSFER_DAMAGED : STATEPORT_TRANSFER_DONE;
  }
  if (fails) return engine_random(self, 2) == 0 ? STATEPORT_TRANSFER_NO_ROOM : STATEPORT_TRANSFER_FAILED;
  if (transfer->from == STATEPORT_MEDIUM_DEVICE) read_place(self, transfer, &image);
  image.key = transfer->image;
  image.medium = transfer->to;
  const bool is_there = find_image(tiers, &transfer->image, transfer->to) < tiers->count;
  CHECK(!is_there || transfer->to == STATEPORT_MEDIUM_REMOTE);
  if (is_there) return STATEPORT_TRANSFER_DONE;
  forget_remote(tiers);
  CHECK(tiers->count < engine_images_max);
  if (tiers->count < engine_images_max) tiers->image[tiers->count++] = image;
  check_room(self, transfer->to);
  return STATEPORT_TRANSFER_DONE;
}

void engine_carry_out(engine* self, const stateport_transfer* transfers, size_t count) {
  engine_tiers* const tiers = self->tiers;
  CHECK(tiers != NULL || count == 0);
  for (size_t i = 0; i < count; ++i) {
    const stateport_transfer* const transfer = &transfers[i];
    CHECK(transfer->kind >= 0 && transfer->kind < 5);
    ++tiers->transfers[transfer->kind];
    if (transfer->kind == STATEPORT_TRANSFER_DROP) {
      CHECK(transfer->from != STATEPORT_MEDIUM_REMOTE);
      drop(tiers, &transfer->image, transfer->from);
      continue;
    }
    CHECK(tiers->ended < engine_images_max);
    tiers->results[tiers->ended].id = transfer->id;
    tiers->results[tiers->ended].status = carry_out(self, transfer);
    tiers->failed += tiers->results[tiers->ended++].status != STATEPORT_TRANSFER_DONE;
  }
}

/// Requests whose loads have ended continue from the loaded prefix.
static void end_loads(engine* self, int32_t loaded) {
  int32_t reported = 0;
  for (int index = 0; index < engine_requests; ++index) {
    engine_request* const request = &self->requests[index];
    if (request->id == STATEPORT_NONE || !request->loading) continue;
    uint8_t loading = 2;
    CHECK_OK(stateport_request_cache_loading(self->cache, &request->id, 1, &loading));
    CHECK(loading == 0 || loading == 1);
    request->loading = loading != 0;
    if (request->loading) continue;
    stateport_running_request running = {.size = sizeof running};
    CHECK_OK(stateport_request_cache_request(self->cache, request->id, &running));
    self->tiers->loaded_tokens += running.computed - request->computed;
    request->computed = (int32_t)running.computed;
    ++reported;
  }
  CHECK(reported <= loaded);  // others ended before
}

void engine_carry_out_rest(engine* self) {
  stateport_settled_transfers settled = {.size = sizeof settled};
  CHECK_OK(stateport_request_cache_settle(self->cache, NULL, 0, &settled));
  engine_carry_out(self, settled.transfers, settled.transfer_count);
}

void engine_settle_transfers(engine* self, bool all) {
  engine_tiers* const tiers = self->tiers;
  if (tiers == NULL) return;
  for (size_t i = tiers->ended; i > 1; --i) {
    const size_t other = (size_t)engine_random(self, (int32_t)i);
    const stateport_transfer_result last = tiers->results[i - 1];
    tiers->results[i - 1] = tiers->results[other];
    tiers->results[other] = last;
  }
  while (tiers->ended > 0) {
    const size_t count = all ? tiers->ended : (size_t)engine_random(self, (int32_t)tiers->ended + 1);
    stateport_settled_transfers settled = {.size = sizeof settled};
    tiers->ended -= count;
    CHECK_OK(stateport_request_cache_settle(self->cache, tiers->results + tiers->ended, count, &settled));
    engine_carry_out(self, settled.transfers, settled.transfer_count);
    end_loads(self, settled.ready_requests);
    if (!all) return;
  }
}
