// SPDX-License-Identifier: Apache-2.0
// doctest itself, compiled once for all test programs.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
