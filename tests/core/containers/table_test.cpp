// SPDX-License-Identifier: Apache-2.0
#include "containers/table.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

using namespace stateport;

TEST_CASE("a table begins with a cache line, however small and however often it grew") {
  struct Entry {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
  };
  Table<Entry> table;
  Table<char> other;  // takes the places between
  for (std::size_t size = 1; size < 5000; size = 2 * size + 1) {
    table.resize(size);
    other.resize(size + 1);
    CHECK(reinterpret_cast<std::uintptr_t>(table.data()) % 64 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(other.data()) % 64 == 0);
  }
}

TEST_CASE("a table of two megabytes or more begins with a huge page") {
  for (const std::size_t bytes : {detail::huge_page_bytes, 3 * detail::huge_page_bytes + 5}) {
    const Table<char> table(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(table.data()) % detail::huge_page_bytes == 0);
  }
}
