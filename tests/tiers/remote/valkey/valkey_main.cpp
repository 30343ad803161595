// SPDX-License-Identifier: Apache-2.0
// Runs tests against a real server, which they start. Exits with 77 (skipped) where there is none.
#include "valkey_server.hpp"

#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  doctest::Context context(argc, argv);
  if (stateport::test::ValkeyServer::program().empty()) {
    std::printf("skipped: neither valkey-server nor redis-server is here\n");
    return skipped;
  }
  return context.run();
}
