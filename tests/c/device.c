// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <string.h>

size_t tensor_bytes(size_t tensor) {
  return tensor % 2 == 0 ? (size_t)conv_window * conv_dim * 2 : (size_t)recurrent_elements * 4;
}

static char* slot_address(stateport_store* store, size_t tensor, int32_t slot) {
  stateport_tensor_memory memory = {.size = sizeof memory};
  CHECK_OK(stateport_store_tensor(store, tensor, &memory));
  return (char*)memory.base + slot * memory.slot_stride_bytes;
}

void read_slot(stateport_store* store, size_t tensor, int32_t slot, void* to, size_t bytes) {
  CHECK_OK(stateport_copy_bytes(NULL, to, slot_address(store, tensor, slot), bytes));
  CHECK_OK(stateport_stream_synchronize(NULL));
}

void write_slot(stateport_store* store, size_t tensor, int32_t slot, const void* from, size_t bytes) {
  CHECK_OK(stateport_copy_bytes(NULL, slot_address(store, tensor, slot), from, bytes));
  CHECK_OK(stateport_stream_synchronize(NULL));
}

enum { slot_bytes_max = recurrent_elements * 4 };

static void pattern(unsigned char* bytes, size_t tensor, unsigned seed) {
  for (size_t i = 0; i < tensor_bytes(tensor); ++i) bytes[i] = (unsigned char)(seed * 31u + tensor * 7u + i);
}

void fill_slot(stateport_store* store, int32_t slot, unsigned seed) {
  unsigned char bytes[slot_bytes_max];
  for (size_t tensor = 0; tensor < small_tensors; ++tensor) {
    pattern(bytes, tensor, seed);
    write_slot(store, tensor, slot, bytes, tensor_bytes(tensor));
  }
}

bool tensor_holds(stateport_store* store, int32_t slot, size_t tensor, unsigned seed) {
  unsigned char wanted[slot_bytes_max];
  unsigned char found[slot_bytes_max];
  pattern(wanted, tensor, seed);
  read_slot(store, tensor, slot, found, tensor_bytes(tensor));
  return memcmp(found, wanted, tensor_bytes(tensor)) == 0;
}

bool slot_holds(stateport_store* store, int32_t slot, unsigned seed) {
  for (size_t tensor = 0; tensor < small_tensors; ++tensor)
    if (!tensor_holds(store, slot, tensor, seed)) return false;
  return true;
}

device_bytes to_device(const void* from, size_t bytes) {
  const stateport_tensor_spec tensor = {
      .size = sizeof tensor, .kind = STATEPORT_RECURRENT, .type = STATEPORT_INT8, .shape = {(int64_t)bytes, 1, 1}};
  const stateport_store_options options = {.size = sizeof options, .slots = 1};
  stateport_spec* spec = NULL;
  device_bytes result = {NULL, NULL};
  CHECK_OK(stateport_spec_create(&tensor, 1, &spec));
  CHECK_OK(stateport_store_create(spec, &options, NULL, &result.store));
  CHECK_OK(stateport_spec_destroy(spec));
  result.data = slot_address(result.store, 0, 0);
  write_slot(result.store, 0, 0, from, bytes);
  return result;
}
