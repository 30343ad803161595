// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_TESTS_MOONCAKE_STORE_C_H
#define STATEPORT_TESTS_MOONCAKE_STORE_C_H

#include <stddef.h>
#include <stdint.h>

/// The part of Mooncake's C interface (mooncake-store/include/store_c.h) that MooncakeStore calls, for tests of builds
/// without it: over memory of the process. pretended_mooncake.cpp implements it.
#ifdef __cplusplus
extern "C" {
#endif

typedef void* mooncake_store_t;

struct mooncake_replicate_config {
  size_t replica_num;
  int with_soft_pin;
  int with_hard_pin;
  const char** preferred_segments;
  size_t preferred_segments_count;
};
typedef struct mooncake_replicate_config mooncake_replicate_config_t;

mooncake_store_t mooncake_store_create();
void mooncake_store_destroy(mooncake_store_t store);
int mooncake_store_setup(mooncake_store_t store, const char* local_hostname, const char* metadata_server,
                         uint64_t global_segment_size, uint64_t local_buffer_size, const char* protocol,
                         const char* device_name, const char* master_server_addr);
int mooncake_store_batch_put_from(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes,
                                  size_t count, const mooncake_replicate_config_t* config, int* results_out);
int mooncake_store_batch_get_into(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes,
                                  size_t count, int64_t* results_out);
int mooncake_store_batch_is_exist(mooncake_store_t store, const char** keys, size_t count, int* results_out);
int64_t mooncake_store_get_size(mooncake_store_t store, const char* key);
int mooncake_store_remove(mooncake_store_t store, const char* key, int force);
int mooncake_store_register_buffer(mooncake_store_t store, void* buffer, size_t size);
int mooncake_store_unregister_buffer(mooncake_store_t store, void* buffer);

#ifdef __cplusplus
}
#endif

#endif
