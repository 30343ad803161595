// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "superseded.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace stateport::conformance {

using Json = nlohmann::json;

/// Counts the cases of one suite of one file. A case fails when its body throws, or when a check in it fails.
class Report {
 public:
  Report(std::string file, std::string suite, SupersededCases& superseded)
      : file_(std::move(file)), suite_(std::move(suite)), superseded_(superseded) {}

  /// Runs one case; prints "suite: case: reason" to stderr if it fails.
  void run_case(const std::string& name, const std::function<void()>& body);
  /// The same for a case that may be superseded: its result must then differ from the recorded one, and pass by the
  /// newer rule. A case that is listed and passes as recorded fails: the list hides no defect.
  void run_case(const std::string& name, const Json& row, const std::function<void(const Json& row)>& body);

  [[nodiscard]] std::int64_t passed() const noexcept { return passed_; }
  [[nodiscard]] std::int64_t failed() const noexcept { return failed_; }
  [[nodiscard]] std::int64_t superseded() const noexcept { return superseded_cases_; }

 private:
  std::string file_;
  std::string suite_;
  SupersededCases& superseded_;
  std::int64_t passed_ = 0;
  std::int64_t failed_ = 0;
  std::int64_t superseded_cases_ = 0;  ///< of both
};

/// The result of a case differs from the recorded one.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Difference with both values unless got == expected. `what` names the thing compared.
void expect_equal(const Json& got, const Json& expected, const std::string& what);

/// A suite replays the value of one top-level key of a file.
using Suite = void (*)(const Json& value, Report& report);

/// All suites by key. `cases` and `traces` are used by several files: those suites look at the form of the value.
[[nodiscard]] const std::map<std::string, Suite>& suites();

}  // namespace stateport::conformance
