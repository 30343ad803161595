// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <stdexcept>
#include <string>

TEST_CASE("without zlib a trace in gzip is refused, which says so") {
  std::istringstream compressed("\x1f\x8b\x08");
  CHECK_THROWS_WITH_AS((void)stateport::replay::read_trace(compressed),
                       "gzip: zlib was missing when this program was built (Debian package: zlib1g-dev)",
                       std::runtime_error);
}
