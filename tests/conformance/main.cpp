// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"
#include "suite.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace stateport::conformance {

void Report::run_case(const std::string& name, const std::function<void()>& body) {
  try {
    body();
    ++passed_;
  } catch (const std::exception& error) {
    ++failed_;
    std::fprintf(stderr, "%s: %s: %s\n", suite_.c_str(), name.c_str(), error.what());
  }
}

void Report::run_case(const std::string& name, const Json& row, const std::function<void(const Json& row)>& body) {
  const Json newer = superseded_.newer(file_, suite_, name, row);
  if (newer.is_null()) return run_case(name, [&] { body(row); });
  ++superseded_cases_;
  run_case(name, [&] {
    bool differs = false;
    try {
      body(row);
    } catch (const Difference&) {
      differs = true;
    }
    if (!differs) throw std::runtime_error("is listed as superseded, but passes as recorded");
    body(newer);
  });
}

void expect_equal(const Json& got, const Json& expected, const std::string& what) {
  if (got != expected) throw Difference(what + ": got " + got.dump() + ", expected " + expected.dump());
}

namespace {

constexpr int exit_skipped = 77;

struct Totals {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
};

Json read_file(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error(path + ": cannot be opened");
  return Json::parse(stream);
}

void run_file(const std::string& path, bool allow_unknown, SupersededCases& superseded, Totals& totals) {
  const Json file = read_file(path);
  for (const auto& [key, value] : file.items()) {
    if (key == "meta") continue;
    const auto suite = suites().find(key);
    if (suite == suites().end()) {
      if (allow_unknown) continue;
      throw std::runtime_error(path + ": unknown suite '" + key + "' (--allow-unknown ignores it)");
    }
    Report report(std::filesystem::path(path).filename(), key, superseded);
    require_limits(key, value);
    suite->second(value, report);
    std::printf("%s: %lld passed, %lld failed", key.c_str(), static_cast<long long>(report.passed()),
                static_cast<long long>(report.failed()));
    if (report.superseded() > 0) std::printf(" (%lld of an older rule)", static_cast<long long>(report.superseded()));
    std::printf("\n");
    totals.passed += report.passed();
    totals.failed += report.failed();
  }
}

}  // namespace
}  // namespace stateport::conformance

int main(int argc, char** argv) {
  using namespace stateport::conformance;
  CLI::App app{"Replays recorded cases of the reference systems"};
  std::vector<std::string> files;
  bool allow_unknown = false;
  bool skip_missing = false;
  bool whole_list = false;
  std::string list = STATEPORT_SUPERSEDED_CASES;
  app.add_option("files", files, "JSON files")->required();
  app.add_option("--superseded", list, "The list of cases that record an older rule")->capture_default_str();
  app.add_flag("--whole-list", whole_list, "Fail if a case of the list is in none of the files");
  app.add_flag("--allow-unknown", allow_unknown, "Ignore suites that this runner does not know");
  app.add_flag("--skip-missing", skip_missing, "Exit with 77 if a file does not exist");
  CLI11_PARSE(app, argc, argv);

  Totals totals;
  std::optional<SupersededCases> superseded;
  try {
    superseded.emplace(read_file(list));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", list.c_str(), error.what());
    return 1;
  }
  for (const std::string& file : files) {
    if (skip_missing && !std::filesystem::exists(file)) {
      std::printf("%s is not there: skipped\n", file.c_str());
      return exit_skipped;
    }
    try {
      run_file(file, allow_unknown, *superseded, totals);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ++totals.failed;
    }
  }
  if (whole_list && !superseded->first_missing().empty()) {
    std::fprintf(stderr, "listed as superseded, but not there: %s\n", superseded->first_missing().c_str());
    ++totals.failed;
  }
  std::printf("%lld passed, %lld failed\n", static_cast<long long>(totals.passed),
              static_cast<long long>(totals.failed));
  return totals.failed == 0 && totals.passed > 0 ? 0 : 1;
}
