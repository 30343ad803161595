// SPDX-License-Identifier: Apache-2.0
// Shared by the tests that need a device: the memory of the small model's slots.
#ifndef STATEPORT_TESTS_C_DEVICE_H
#define STATEPORT_TESTS_C_DEVICE_H

#include <stateport.h>

#include "check.h"

/// The host's copy of a slot of one tensor; `bytes` are those of the tensor without padding.
void read_slot(stateport_store* store, size_t tensor, int32_t slot, void* to, size_t bytes);
void write_slot(stateport_store* store, size_t tensor, int32_t slot, const void* from, size_t bytes);
size_t tensor_bytes(size_t tensor);
/// Fills every tensor of a slot with bytes that depend on `seed`, the tensor and the position.
void fill_slot(stateport_store* store, int32_t slot, unsigned seed);
bool slot_holds(stateport_store* store, int32_t slot, unsigned seed);
bool tensor_holds(stateport_store* store, int32_t slot, size_t tensor, unsigned seed);

/// Device memory that holds a copy of host bytes: the only slot of a store of bytes.
typedef struct device_bytes {
  stateport_store* store;
  void* data;
} device_bytes;
device_bytes to_device(const void* from, size_t bytes);

void test_stores(void);
void test_copiers(void);
void test_scratch_and_device_plans(void);
void test_layer_ranges(void);
void test_strides(void);
void test_state_tiers(void);
void test_state_tiers_without_memory(void);
void test_images(void);
void test_file_limits(void);
void test_scrubbed_files(void);
void test_file_tier(void);
void test_file_tier_refusals(void);
void test_remote_store(void);
void test_remote_store_without_memory(void);
void test_remote_store_refusals(void);
void test_resharders(void);
void test_remote_tiers(void);
void test_handovers(void);
void test_state_tiers_refusals(void);
void test_step_committer(void);
void test_integrity(void);
void test_elastic_memory(void);
void test_elastic_refusals(void);
void test_align(void);
void test_align_refusals(void);

#endif
