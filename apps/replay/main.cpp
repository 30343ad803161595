// SPDX-License-Identifier: Apache-2.0
#include "options/parser.hpp"
#include "runs/run_setup.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <variant>

int main(int argc, char** argv) {
  using namespace stateport::replay;
  int exit_code = 0;
  const auto command = parse_command(argc, argv, exit_code);
  if (!command) return exit_code;
  interrupt_gently();
  try {
    return std::visit([](const auto& options) { return run(options); }, *command);
  } catch (const std::exception& error) {
    fmt::print(stderr, "stateport-replay: {}\n", error.what());
    return exit_failed;
  }
}
