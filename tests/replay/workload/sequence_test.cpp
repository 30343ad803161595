// SPDX-License-Identifier: Apache-2.0
#include "workload/sequence.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

using namespace stateport::replay;
using Blocks = std::vector<BlockIdentity>;

TEST_CASE("prefixes have one name each, shared by sequences that begin alike") {
  const Sequence a(4, 11, Blocks{1, 2, 3}, 0);
  const Sequence b(4, 11, Blocks{1, 2, 4}, 1);
  CHECK(a.prefix(0) == empty_content);
  CHECK(a.prefix(-3) == empty_content);
  CHECK(a.boundaries().size() == 3);
  CHECK(a.prefix(8) == a.boundaries()[2]);
  std::set<Content> names;
  for (std::int64_t n = 0; n <= 11; ++n) {
    names.insert(a.prefix(n));
    names.insert(b.prefix(n));
    CHECK((a.prefix(n) == b.prefix(n)) == (n <= 8));
  }
  CHECK(names.size() == 12 + 3);
}

TEST_CASE("blocks after the known ones are a sequence's own") {
  const Sequence a(4, 12, Blocks{1}, 7);
  const Sequence again(4, 12, Blocks{1}, 7);
  const Sequence other(4, 12, Blocks{1}, 8);
  CHECK(a.prefix(4) == other.prefix(4));
  CHECK(a.prefix(5) != other.prefix(5));
  CHECK(a.prefix(12) != other.prefix(12));
  CHECK(a.prefix(11) == again.prefix(11));
  CHECK(a.token(4) != a.token(8));
}

TEST_CASE("an answer is named after the session's next prompt if that continues this one") {
  Workload workload(4);
  workload.add({.input_tokens = 5, .session = 1}, Blocks{1});     // goes on in 2
  workload.add({.input_tokens = 5, .session = 2}, Blocks{1});     // 4 is another text
  workload.add({.input_tokens = 9, .session = 1}, Blocks{1, 2});  // 3 has no more blocks
  workload.add({.input_tokens = 9, .session = 1}, Blocks{1, 2});  // the last one
  workload.add({.input_tokens = 9, .session = 2}, Blocks{3, 2});  // the last one
  workload.add({.input_tokens = 5}, Blocks{1});                   // no session
  workload.add({.input_tokens = 13}, Blocks{1, 2, 3});
  CHECK(find_continuations(workload) == std::vector<std::size_t>{2, 1, 2, 3, 4, 5, 6});
}
