// SPDX-License-Identifier: Apache-2.0
// main of every test program that needs no device.
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  return doctest::Context(argc, argv).run();
}
