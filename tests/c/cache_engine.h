// SPDX-License-Identifier: Apache-2.0
// An engine in small over a request cache, whose memory is host arrays: it carries out plans and commits, and checks
// every state and every KV that it reads.
#ifndef STATEPORT_TESTS_C_CACHE_ENGINE_H
#define STATEPORT_TESTS_C_CACHE_ENGINE_H

#include "check.h"
#include "combination.h"

enum {
  engine_window = 2,
  engine_drafts_max = 2,
  engine_groups_max = 2,
  engine_requests = 3,
  engine_tokens_max = 48,
  engine_slots_max = 96,
  engine_kv_max = 512,
  engine_events_max = 4096,
  engine_images_max = 1024,
  engine_block_tokens_max = 8
};

/// Sizes that the tests of request caches share.
enum { engine_block_tokens = 4, engine_prompt_max = 22 };

/// Two groups of layers for a layout in columns, with this number of blocks each.
#define ENGINE_GROUP(blocks_, fingerprint_)                                                                 \
  {                                                                                                         \
    .size = sizeof(stateport_state_group), .block_size_tokens = 2 * engine_block_tokens, .blocks = blocks_, \
    .conv_window = engine_window + engine_drafts_max, .layout_fingerprint = fingerprint_                    \
  }
#define ENGINE_GROUPS(blocks_) \
  { ENGINE_GROUP(blocks_, 5), ENGINE_GROUP(blocks_, 6) }

/// A state: the last tokens, with room for the drafts behind them, and a digest of all tokens.
typedef struct engine_state {
  int32_t conv[engine_window + engine_drafts_max];
  uint64_t recurrent;
} engine_state;

typedef struct engine_request {
  int64_t id;  ///< of the cache; STATEPORT_NONE: it does not run
  int32_t tokens[engine_tokens_max];
  int32_t known;     ///< tokens that the device knows
  int32_t reported;  ///< of these, reported to the cache
  int32_t computed;  ///< tokens of committed passes
  int32_t prompt;
  int32_t given;  ///< of its tokens, that no pass of it sampled
  int32_t end;  ///< number of tokens at which it is complete
  bool loading;
} engine_request;

/// An image below the device.
typedef struct engine_image {
  stateport_image_key key;
  int32_t medium;
  engine_state state;
  uint64_t kv[engine_block_tokens_max];
} engine_image;

typedef struct engine_tiers {
  stateport_tier_options options;
  int count;
  engine_image image[engine_images_max];
  size_t ended;  ///< transfers that were carried out and not settled
  stateport_transfer_result results[engine_images_max];
  int64_t transfers[5];  ///< [stateport_transfer_kind]
  int64_t failed;
  int64_t loaded_tokens;
  int64_t elsewhere;  ///< blocks that were loaded by other means
} engine_tiers;

typedef struct engine_row {
  int request;  ///< index, or -1: it has ended
  int32_t tokens;
  int32_t drafts;
  int64_t start;
  int32_t sampled_at;
  int32_t sampled;
} engine_row;

typedef struct engine_pass {
  uint64_t pass;
  int rows;
  engine_row row[engine_requests];
  bool has_run;
} engine_pass;

typedef struct engine {
  stateport_request_cache* cache;
  size_t groups;
  int32_t drafts;
  int32_t block_tokens;
  bool align;
  bool overlap;
  uint64_t random;
  bool separate;  ///< checkpoints lie in a store of their own
  engine_state store[engine_groups_max][engine_slots_max];
  engine_state checkpoints[engine_slots_max];
  engine_state scratch[engine_slots_max];
  engine_state steps[engine_requests][1 + engine_drafts_max];
  uint64_t kv[engine_kv_max];
  engine_request requests[engine_requests];
  stateport_prompt names;  ///< whose namespace and media prompts have
  int passes;
  engine_pass pass[2];  ///< outstanding, oldest first
  stateport_pass_plan plan;
  stateport_group_plan plans[engine_groups_max];
  int64_t started;
  stateport_started_request start;  ///< the answer of the last start
  int64_t finished;
  int64_t reused_tokens;
  int64_t lost_tokens[STATEPORT_LOST_REASONS_MAX];
  int64_t planned_ahead;
  int64_t ready_ahead;  ///< of these, complete at once
  int64_t published;
  int64_t step_commits;
  int64_t fork_copies;
  uint64_t last_event;
  int found;  ///< prefixes that can be found, by the events
  struct {
    uint64_t prefix[2];
    int32_t content;
    int32_t group;
    int32_t medium;
  } stored[engine_events_max];
  engine_tiers* tiers;  ///< null: there are none
} engine;

/// Where checkpoints of a group lie.
engine_state* engine_checkpoints(engine* self, size_t group);
/// KV of the token at a position, as passes write it.
uint64_t engine_kv(const int32_t* tokens, int64_t position);
/// A number below `limit` (or 0).
int32_t engine_random(engine* self, int32_t limit);
/// Options of a small cache with events; members that stay 0 are left to the test: room for KV and checkpoints, and the
/// options under test.
void engine_setup(cache_setup* self, int32_t combination, int32_t drafts, const stateport_state_group* groups);
/// Fills in prompts that share beginnings, and their lengths.
void engine_prompts(engine* self, int prompts, int32_t (*tokens)[engine_prompt_max], int32_t* counts);
/// Takes over a cache whose sizes fit the arrays.
void engine_make(engine* self, stateport_request_cache* cache, const stateport_request_cache_options* options,
                 uint64_t seed);
/// Starts a request where none runs, if there is room.
bool engine_start(engine* self, int index, const int32_t* prompt, int32_t count, int32_t end);
void engine_end(engine* self, int index, int32_t how);
/// Starts forks of a request, which have `count` tokens of their own each, at these places, where none runs.
void engine_fork(engine* self, int index, const int32_t* tokens, int32_t count, const int* forks, int32_t fork_count);
/// One step: plans a pass for the running requests, runs it, and commits the pass that is due.
void engine_step(engine* self, int32_t budget);
/// Commits all outstanding passes.
void engine_settle(engine* self);
/// Reads all events: a removed content was stored before, and sequence numbers count up by one.
void engine_read_events(engine* self);
/// Carries out the transfers of an answer: at once, and some of them fail.
void engine_carry_out(engine* self, const stateport_transfer* transfers, size_t count);
/// The same for calls whose answers have no transfers.
void engine_carry_out_rest(engine* self);
/// Tells the cache how some of them ended, in any order; or all.
void engine_settle_transfers(engine* self, bool all);
/// The tokens that a model without a cache would have given, after those of the prompt.
void engine_oracle(const int32_t* prompt, int32_t count, int32_t* tokens, int32_t end);

#endif
