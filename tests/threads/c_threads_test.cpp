// SPDX-License-Identifier: Apache-2.0
// Calls that the C interface allows to several threads at once.
#include <stateport.h>

#include "on_threads.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

using stateport::test::must;
using stateport::test::on_threads;

namespace {

void ok(stateport_status status) {
  must(status == STATEPORT_OK, stateport_last_error());
}

stateport_slot_allocator* make_allocator(std::int32_t blocks) {
  stateport_slot_allocator_options options = {};
  options.size = sizeof options;
  options.blocks = blocks;
  options.slots = 4;
  stateport_slot_allocator* allocator = nullptr;
  ok(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

}  // namespace

TEST_CASE("calls of several threads on one handle run one after another") {
  stateport_slot_allocator* const allocator = make_allocator(65);
  on_threads(4, [&](std::size_t number) {
    for (int round = 0; round < 200; ++round) {
      std::array<std::int32_t, 8> blocks = {};
      ok(stateport_slot_allocator_allocate_blocks(allocator, blocks.data(), blocks.size()));
      if (number == 0) ok(stateport_slot_allocator_check(allocator));
      ok(stateport_slot_allocator_advance_tick(allocator));
      ok(stateport_slot_allocator_release_blocks(allocator, blocks.data(), blocks.size()));
      stateport_slot_allocator_info info = {};
      info.size = sizeof info;
      ok(stateport_slot_allocator_describe(allocator, &info));
    }
  });
  stateport_slot_allocator_info info = {};
  info.size = sizeof info;
  ok(stateport_slot_allocator_describe(allocator, &info));
  CHECK(info.free_blocks == 64);
  ok(stateport_slot_allocator_destroy(allocator));
}

TEST_CASE("handles are made and destroyed by many threads, and each has its own last error") {
  on_threads(4, [](std::size_t number) {
    for (int round = 0; round < 100; ++round) {
      stateport_slot_allocator* const allocator = make_allocator(9);
      stateport_slot_allocator_options wrong = {};
      wrong.size = sizeof wrong;
      wrong.blocks = -1 - static_cast<std::int32_t>(number);
      stateport_slot_allocator* none = nullptr;
      must(stateport_slot_allocator_create(&wrong, &none) == STATEPORT_INVALID_ARGUMENT, "a wrong option is taken");
      const std::string error = stateport_last_error();
      must(error.find(std::to_string(wrong.blocks)) != std::string::npos, "the last error is another thread's");
      ok(stateport_slot_allocator_destroy(allocator));
      must(stateport_slot_allocator_check(allocator) != STATEPORT_OK, "a destroyed handle is taken");
    }
  });
}

TEST_CASE("a handle that is destroyed while others call it is refused, and nothing else") {
  for (int round = 0; round < 30; ++round) {
    stateport_slot_allocator* const allocator = make_allocator(65);
    std::atomic<int> refused = 0;
    on_threads(3, [&](std::size_t number) {
      if (number == 0) return ok(stateport_slot_allocator_destroy(allocator));
      for (int call = 0; call < 50; ++call) refused += stateport_slot_allocator_advance_tick(allocator) != STATEPORT_OK;
    });
    CHECK(stateport_slot_allocator_advance_tick(allocator) != STATEPORT_OK);
  }
}
