// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_HASH_H
#define STATEPORT_C_HASH_H

#include <stateport/c/status.h>

/// Chained hashes of token blocks: stateport::BlockHasher. The conventions are in stateport/c/core.h.
#ifdef __cplusplus
extern "C" {
#endif

typedef struct stateport_hash_options {
  size_t size;
  int32_t block_size_tokens;
  stateport_flag fast;  ///< not 0: xxh3_128, for a single tenant unless seed is a secret; 0: sha256
  const void* salt;     ///< of the tenant
  size_t salt_bytes;
  const void* adapter;
  size_t adapter_bytes;
  /// Two seeds share nothing; 0: none. A secret random value where tenants are not trusted, the same for all that share
  /// files or a store.
  uint64_t seed;
  uint64_t epoch;  ///< of the weights, as of stateport_request_cache_epoch: names as of a cache with this epoch
} stateport_hash_options;

/// An image or another input at a position of a prompt. Prompts that differ in it share nothing from its block on; in a
/// request cache with STATEPORT_INDEX_TREE they share nothing at all.
typedef struct stateport_media_key {
  size_t size;
  const void* id;  ///< of the content, for example its hash
  size_t id_bytes;
  int64_t first_token;  ///< position in the prompt; ascending
} stateport_media_key;

/// The chained hashes of the count / block_size_tokens full blocks of a prompt: keys [blocks] for the maps, prefixes
/// [blocks, 2] for the tags (or null).
stateport_status stateport_hash_blocks(const stateport_hash_options* options, const int32_t* tokens, size_t count,
                                       int64_t* keys, uint64_t* prefixes);

/// The same for a request whose tokens come little by little: each is hashed once.
typedef struct stateport_hasher stateport_hasher;

stateport_status stateport_hasher_create(const stateport_hash_options* options, stateport_hasher** out);
stateport_status stateport_hasher_destroy(stateport_hasher* hasher);
/// Appends tokens, and tells the hashes of the blocks that they complete: keys [blocks] and prefixes [blocks, 2] (or
/// null), their number into `blocks`. media: that begin among these tokens; first_token counts from the start of the
/// prompt. Refused, and nothing is appended: a `capacity` less than the blocks, media elsewhere or not
/// ascending.
stateport_status stateport_hasher_append(stateport_hasher* hasher, const int32_t* tokens, size_t count,
                                         const stateport_media_key* media, size_t media_count, int64_t* keys,
                                         uint64_t* prefixes, size_t capacity, size_t* blocks);
/// Begins another prompt, with the same options.
stateport_status stateport_hasher_reset(stateport_hasher* hasher);

#ifdef __cplusplus
}
#endif

#endif
