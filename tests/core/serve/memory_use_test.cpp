// SPDX-License-Identifier: Apache-2.0
// The memory that a new request cache reserves and uses. CTest runs each file in a process of its own.
#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"
#include "instruction_count.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

using namespace stateport;
using stateport::test::Combination;
using stateport::test::every_combination;

#if defined(__GLIBC__) && !defined(STATEPORT_TEST_SANITIZED)
namespace {

std::int64_t reserved_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

/// Memory of this process that the system backs, without pages of files: how much of the program it has read differs
/// from run to run.
std::int64_t used_bytes() {
  ::malloc_trim(0);
  std::int64_t pages = 0, resident = 0, of_files = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident >> of_files;
  return (resident - of_files) * ::sysconf(_SC_PAGESIZE);
}

struct Memory {
  std::int64_t reserved = 0, used = 0;
};

Memory memory_of(const RequestCacheOptions& options) {
  const std::int64_t reserved = reserved_bytes(), used = used_bytes();
  const auto cache = make_request_cache(options);
  return {.reserved = reserved_bytes() - reserved, .used = used_bytes() - used};
}

/// Room for 10^6 tokens of KV, 256 requests of up to 131,072 tokens, and 1,024 checkpoints.
RequestCacheOptions large(Combination combination) {
  RequestCacheOptions options{.index = index_of(combination),
                              .max_requests = 256,
                              .max_request_tokens = 131'072,
                              .block_size_tokens = 16,
                              .kv_tokens = 1'000'000,
                              .unchecked_layout = true,
                              .memory = {.state_bytes = 1 << 20, .kv_bytes_per_token = 1 << 12}};
  if (in_columns(combination))
    options.layout = ColumnLayout{.groups = {{.block_size_tokens = 512, .blocks = 1024 + 3 * 256}}};
  else
    options.layout = SlotLayout{.checkpoints = 1024};
  return options;
}

}  // namespace

TEST_CASE("a new cache reserves and uses the memory that its declaration says") {
  constexpr std::int64_t mebibyte = 1 << 20, images = 1 << 19;
  if (std::cmp_greater(::mallinfo2().fordblks, 4 * mebibyte)) {
    MESSAGE("not measured: other tests of this process have left holes in the heap");
    return;
  }
  REQUIRE(::mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1);  // large blocks come from the system, and go back to it
  for (const Combination combination : every_combination) {
    CAPTURE(static_cast<int>(combination));
    RequestCacheOptions options = large(combination);
    const Memory alone = memory_of(options);
    CHECK(alone.reserved >= 200 * mebibyte);
    CHECK(alone.reserved <= 320 * mebibyte);
    CHECK(alone.used >= 5 * mebibyte);
    CHECK(alone.used <= 15 * mebibyte);
    options.tiers.host_bytes = images * options.memory.kv_bytes_per_token * options.block_size_tokens;
    const Memory with_tiers = memory_of(options);
    const std::int64_t reserved = with_tiers.reserved - alone.reserved, used = with_tiers.used - alone.used;
    CHECK(reserved >= 1000 * images);
    CHECK(reserved <= 180 * mebibyte + 1050 * images);
    CHECK(used >= 240 * images);
    CHECK(used <= 25 * mebibyte + 270 * images);
  }
}
#else
TEST_CASE("a new cache reserves and uses the memory that its declaration says") {
  MESSAGE("not measured: a sanitizer, or another C library than glibc, places memory");
}
#endif
