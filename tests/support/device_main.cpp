// SPDX-License-Identifier: Apache-2.0
// main of every test program that needs the build's device: starts a Runtime, unless doctest is only asked to list,
// and exits with 77 (skipped, see SKIP_RETURN_CODE in cmake/StateportProject.cmake) when there is no device.
#include <stateport/backends/runtime.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

// A test asks for more memory than there is: under the sanitizer this too is answered with nullptr.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace {
constexpr int skipped = 77;

bool only_lists(int argc, char** argv) {
  static constexpr std::array<std::string_view, 12> words{"list-test-cases",
                                                          "ltc",
                                                          "list-test-suites",
                                                          "lts",
                                                          "list-reporters",
                                                          "lr",
                                                          "help",
                                                          "h",
                                                          "?",
                                                          "version",
                                                          "v",
                                                          "count"};
  return std::any_of(argv + 1, argv + argc, [](std::string_view word) {
    word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
    if (word.starts_with("dt-")) word.remove_prefix(3);
    word = word.substr(0, word.find('='));
    return std::ranges::find(words, word) != words.end() || word == "c";
  });
}
}  // namespace

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  std::optional<stateport::Runtime> runtime;
  if (!only_lists(argc, argv)) {
    if (stateport::devices().empty()) {
      std::printf("skipped: no %s device found\n", std::string(stateport::backend_info().name).c_str());
      return skipped;
    }
    runtime.emplace();
  }
  return context.run();
}
