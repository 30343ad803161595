// SPDX-License-Identifier: Apache-2.0
#include "report/figures.hpp"

#include <doctest/doctest.h>

using namespace stateport::replay;

TEST_CASE("quantile takes the nearest rank") {
  CHECK(quantile({}, 0.5) == 0);
  CHECK(quantile({7}, 0.99) == 7);
  CHECK(quantile({40, 10, 30, 20}, 0.5) == 20);
  CHECK(quantile({40, 10, 30, 20}, 0.99) == 40);
  CHECK(quantile({40, 10, 30, 20}, 0) == 10);
}

TEST_CASE("bytes are readable") {
  CHECK(human_bytes(17) == "17 B");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(3.0 * (1 << 30)) == "3.00 GiB");
}
