// SPDX-License-Identifier: Apache-2.0
// An engine in small over a request cache with tiers, whose states and KV lie in stores: it writes bytes that follow
// from the tokens, and checks all that it reads.
#ifndef STATEPORT_TESTS_C_TIER_ENGINE_H
#define STATEPORT_TESTS_C_TIER_ENGINE_H

#include "combination.h"
#include "device.h"

enum {
  tier_block_tokens = 4,
  tier_prompt_tokens = 9,
  tier_whole_tokens = 8,  ///< of a prompt, in whole blocks
  tier_request_tokens_max = 16,
  kv_elements = 24,
  kv_tensors = 2
};

typedef struct tier_engine_options {
  int32_t combination;
  int64_t host_bytes;
  const char* folder;    ///< null: no file tier
  int64_t file_bytes;    ///< of the cache; 0: much
  int64_t remote_bytes;  ///< of the cache: the mover has no remote tier
  int32_t groups;        ///< of the cache, in columns; 0: one. The mover has one
  bool by_hand;          ///< takes, executes, polls and settles by itself
  bool write_through;    ///< to files
  bool states_alone;     ///< KV is computed again, as if it came from elsewhere
} tier_engine_options;

typedef struct tier_engine {
  tier_engine_options options;
  stateport_store* states;
  stateport_store* kv;
  stateport_request_cache* cache;
  stateport_state_tiers* tiers;
  int64_t waits;          ///< calls of end_transfers that named a request whose wait has ended
  int64_t begun;          ///< transfers
  int64_t elsewhere;      ///< blocks of KV that came from elsewhere
  const int32_t* tokens;  ///< of the prompt that is served
} tier_engine;

/// Two recurrent tensors: keys and values of a block of tokens.
stateport_spec* kv_spec(void);
uint64_t image_bytes(stateport_spec* (*make)(void));
/// Any slot of a store of small_spec() or kv_spec(): bytes that follow from `seed`.
void fill_image(stateport_store* store, size_t tensors, int32_t slot, uint64_t seed);
bool holds_image(stateport_store* store, size_t tensors, int32_t slot, uint64_t seed);

/// The memory of the stores holds nothing that was ever written.
void tier_engine_make(tier_engine* self, const tier_engine_options* options);
void tier_engine_destroy(tier_engine* self);
/// Serves one prompt, whose tokens follow from its number, from its start to its end. Returns the answer of its start.
stateport_started_request tier_engine_serve(tier_engine* self, int32_t prompt);
/// Waits until all transfers have ended, and those that they begin.
void tier_engine_wait(tier_engine* self);
/// Writes all that is cached to files.
void tier_engine_drain(tier_engine* self);
stateport_tier_usage tier_engine_usage(const tier_engine* self, int32_t medium);

/// A new folder for the tests, and all that tiers left in it.
void make_folder(char* path, size_t bytes);
void remove_folder(const char* path);

#endif
