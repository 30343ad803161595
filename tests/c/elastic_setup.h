// SPDX-License-Identifier: Apache-2.0
// Two elastic stores whose slots are one granule of memory each, and a cache whose KV and states lie in them.
#ifndef STATEPORT_TESTS_C_ELASTIC_SETUP_H
#define STATEPORT_TESTS_C_ELASTIC_SETUP_H

#include "device.h"

enum { elastic_granules = 24, elastic_block_tokens = 4, elastic_blocks = 20, elastic_checkpoints = 18 };

typedef struct elastic_setup {
  int64_t granule_bytes;
  stateport_spec* spec;  ///< of a state, and of a block of KV: one granule
  stateport_elastic_memory* memory;
  stateport_store* kv;
  stateport_store* states;
  stateport_request_cache* cache;
} elastic_setup;

stateport_elastic_usage elastic_usage_of(stateport_elastic_memory* memory);
stateport_elastic_store_info elastic_info_of(stateport_store* store);
/// With the smallest granules of the device.
stateport_elastic_memory* make_elastic_memory(int64_t granule_bytes, int64_t granules);
int64_t smallest_granule(void);
stateport_spec* spec_of_bytes(int64_t bytes);
stateport_store* make_elastic_store(stateport_elastic_memory* memory, stateport_spec* spec, int32_t slots);
/// arena_granules: what the cache believes to have.
stateport_request_cache* make_elastic_cache(const elastic_setup* self, int64_t arena_granules);
void make_elastic_setup(elastic_setup* self);
void end_elastic_setup(elastic_setup* self);

#endif
