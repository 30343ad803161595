// SPDX-License-Identifier: Apache-2.0
// Hashes of a prompt that comes little by little are those of the whole.
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { block_size = 4, blocks_max = 50, tokens_max = block_size * blocks_max };

static const stateport_hash_options hash_options = {.size = sizeof hash_options,
                                                    .block_size_tokens = block_size,
                                                    .salt = "tenant",
                                                    .salt_bytes = 6,
                                                    .adapter = "a",
                                                    .adapter_bytes = 1};

static stateport_hasher* make_hasher(void) {
  stateport_hasher* hasher = NULL;
  CHECK_OK(stateport_hasher_create(&hash_options, &hasher));
  return hasher;
}

/// Appends all tokens in pieces of random sizes, 0 among them.
static size_t append_in_pieces(stateport_hasher* hasher, const int32_t* tokens, size_t count, int64_t* keys,
                               uint64_t* prefixes) {
  size_t done = 0;
  for (size_t at = 0; at < count;) {
    size_t piece = (size_t)(rand() % 11);
    if (piece > count - at) piece = count - at;
    size_t blocks = 0;
    CHECK_OK(stateport_hasher_append(hasher, tokens + at, piece, NULL, 0, keys + done, prefixes + 2 * done,
                                     blocks_max - done, &blocks));
    at += piece;
    done += blocks;
  }
  return done;
}

void test_hasher(void) {
  stateport_hasher* hasher = make_hasher();
  srand(7);
  for (int round = 0; round < 200; ++round) {
    int32_t tokens[tokens_max];
    const size_t count = (size_t)(rand() % (tokens_max + 1));
    for (size_t i = 0; i < count; ++i) tokens[i] = rand() % 3;
    int64_t wanted[blocks_max] = {0};
    int64_t keys[blocks_max] = {0};
    uint64_t wanted_prefixes[2 * blocks_max] = {0};
    uint64_t prefixes[2 * blocks_max] = {0};
    CHECK_OK(stateport_hash_blocks(&hash_options, tokens, count, wanted, wanted_prefixes));
    CHECK(append_in_pieces(hasher, tokens, count, keys, prefixes) == count / block_size);
    CHECK(memcmp(keys, wanted, sizeof keys) == 0 && memcmp(prefixes, wanted_prefixes, sizeof prefixes) == 0);
    CHECK_OK(stateport_hasher_reset(hasher));
  }
  CHECK_OK(stateport_hasher_destroy(hasher));
}

/// The keys of two blocks, with a picture at `position` that comes with the piece [first, 8).
static void hash_with_media(int64_t position, size_t first, const char* id, int64_t keys[2]) {
  const int32_t tokens[2 * block_size] = {1, 2, 3, 4, 5, 6, 7, 8};
  const stateport_media_key media = {.size = sizeof media, .id = id, .id_bytes = strlen(id), .first_token = position};
  stateport_hasher* hasher = make_hasher();
  size_t begun = 0;
  size_t rest = 0;
  CHECK_OK(stateport_hasher_append(hasher, tokens, first, NULL, 0, keys, NULL, 2, &begun));
  CHECK_OK(stateport_hasher_append(hasher, tokens + first, 2 * block_size - first, &media, id[0] != 0, keys + begun,
                                   NULL, 2 - begun, &rest));
  CHECK(begun + rest == 2);
  CHECK_OK(stateport_hasher_destroy(hasher));
}

void test_hasher_refusals(void) {
  int64_t plain[2];
  int64_t early[2];
  int64_t late[2];
  int64_t other[2];
  hash_with_media(0, 3, "", plain);
  hash_with_media(3, 3, "cat", early);
  hash_with_media(5, 5, "cat", late);
  hash_with_media(5, 5, "dog", other);
  CHECK(early[0] != plain[0] && early[1] != plain[1]);
  CHECK(late[0] == plain[0] && late[1] != plain[1] && late[1] != early[1] && late[1] != other[1]);

  stateport_hasher* hasher = make_hasher();
  const int32_t tokens[2 * block_size] = {1, 2, 3, 4, 5, 6, 7, 8};
  int64_t keys[2] = {0};
  size_t blocks = 9;
  stateport_media_key media[2] = {{.size = sizeof media[0], .id = "x", .id_bytes = 1, .first_token = 6},
                                  {.size = sizeof media[0], .id = "y", .id_bytes = 1, .first_token = 5}};
  CHECK_REFUSED(stateport_hasher_append(hasher, tokens, 8, NULL, 0, keys, NULL, 1, &blocks), STATEPORT_INVALID_ARGUMENT,
                "capacity = 1");
  CHECK_REFUSED(stateport_hasher_append(hasher, tokens, 8, NULL, 0, NULL, NULL, 2, &blocks), STATEPORT_INVALID_ARGUMENT,
                "keys = null");
  CHECK_REFUSED(stateport_hasher_append(hasher, tokens, 8, media, 2, keys, NULL, 2, &blocks),
                STATEPORT_INVALID_ARGUMENT, "first_token = 5");
  CHECK_REFUSED(stateport_hasher_append(hasher, tokens, 4, media, 1, keys, NULL, 2, &blocks),
                STATEPORT_INVALID_ARGUMENT, "first_token = 6");
  CHECK_REFUSED(stateport_hasher_append(hasher, tokens, 4, NULL, 0, keys, NULL, 2, NULL), STATEPORT_INVALID_ARGUMENT,
                "blocks = null");
  CHECK(blocks == 9 && keys[0] == 0);
  CHECK_OK(stateport_hasher_append(hasher, tokens, 8, NULL, 0, keys, NULL, 2, &blocks));  // none was appended above
  CHECK(blocks == 2 && keys[0] == plain[0] && keys[1] == plain[1]);
  CHECK_OK(stateport_hasher_destroy(hasher));
  CHECK_REFUSED(stateport_hasher_reset(hasher), STATEPORT_INVALID_HANDLE, "hasher");

  stateport_hash_options bad = hash_options;
  bad.salt = NULL;
  CHECK_REFUSED(stateport_hasher_create(&bad, &hasher), STATEPORT_INVALID_ARGUMENT, "salt = null");
  CHECK_REFUSED(stateport_hash_blocks(&bad, tokens, 8, keys, NULL), STATEPORT_INVALID_ARGUMENT, "salt = null");
  bad = hash_options;
  bad.block_size_tokens = 0;
  CHECK_REFUSED(stateport_hasher_create(&bad, &hasher), STATEPORT_INVALID_ARGUMENT, "block_size_tokens = 0");
}
