// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace stateport::conformance {

using Json = nlohmann::json;

/// Counts the cases of one suite. A case fails when its body throws, or when a check in it fails.
class Report {
 public:
  explicit Report(std::string suite) : suite_(std::move(suite)) {}

  /// Runs one case; prints "suite: case: reason" to stderr if it fails.
  void run_case(const std::string& name, const std::function<void()>& body);

  [[nodiscard]] std::int64_t passed() const noexcept { return passed_; }
  [[nodiscard]] std::int64_t failed() const noexcept { return failed_; }

 private:
  std::string suite_;
  std::int64_t passed_ = 0;
  std::int64_t failed_ = 0;
};

/// Throws with both values unless got == expected. `what` names the thing compared.
void expect_equal(const Json& got, const Json& expected, const std::string& what);

/// A suite replays the value of one top-level key of a file.
using Suite = void (*)(const Json& value, Report& report);

/// All suites by key. `cases` and `traces` are used by several files: those suites look at the form of the value.
[[nodiscard]] const std::map<std::string, Suite>& suites();

}  // namespace stateport::conformance
