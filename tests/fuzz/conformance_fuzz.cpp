// SPDX-License-Identifier: Apache-2.0
// Recorded cases, as stateport-conformance reads them: JSON whose top-level keys are suites. Cases may fail, and rows
// that are none are refused; both say so by an exception.
#include "byte_source.hpp"
#include "fuzz_memory.hpp"
#include "limits.hpp"
#include "suite.hpp"

#include <exception>
#include <new>
#include <string>

namespace stateport::conformance {

// As in the program, but that nothing is printed.
void Report::run_case(const std::string&, const std::function<void()>& body) {
  try {
    body();
    ++passed_;
  } catch (const std::exception&) {
    ++failed_;
  }
}

void Report::run_case(const std::string& name, const Json& row, const std::function<void(const Json& row)>& body) {
  const Json newer = superseded_.newer(file_, suite_, name, row);
  run_case(name, [&] { body(newer.is_null() ? row : newer); });
}

void expect_equal(const Json& got, const Json& expected, const std::string& what) {
  if (got != expected) throw Difference(what);
}

}  // namespace stateport::conformance

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stateport::conformance;
  static SupersededCases superseded(Json{{"rules", Json::object()}, {"cases", Json::array()}});
  // A row that asks for a pool of any size fails for want of memory.
  stateport::fuzz::limit_allocations(std::size_t{16} << 20);
  try {
    const Json file = Json::parse(data, data + size);
    for (const auto& [key, value] : file.items()) {
      const auto suite = suites().find(key);
      if (suite == suites().end()) continue;
      Report report("input.json", key, superseded);
      require_limits(key, value);
      suite->second(value, report);
    }
  } catch (const std::exception&) {
    // No JSON, or rows of another form.
  }
  stateport::fuzz::limit_allocations(0);
  return 0;
}
