// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using namespace stateport::replay;

namespace {

Trace read_rows(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream lines(text);
  return read_trace(lines, options);
}

std::string row_error(const std::string& text, const TraceOptions& options = {}) {
  try {
    (void)read_rows(text, options);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

/// Of every request: arrival in ms, tokens of input and output, session.
using RequestRow = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
std::vector<RequestRow> request_rows(const Workload& workload) {
  std::vector<RequestRow> all;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const Request& request = workload.request(i);
    all.emplace_back(request.arrival_ms, request.input_tokens, request.output_tokens, request.session);
  }
  return all;
}

const std::string burstgpt_header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Log Type\n";
const std::string azure_header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

}  // namespace

TEST_CASE("BurstGPT has seconds and sessions; a missing value is 1 token or the time before") {
  const Trace trace = read_rows(burstgpt_header +
                                "5,s-1,1.5,ChatGPT,472,18,Conversation log\n"
                                "5.25,,0,GPT-4,1087,230,API log\r\n"
                                "\n"
                                ",\"s,2\",0,GPT-4,2,,\"a \"\"log\"\", quoted\"\n"
                                " 118 , s-1 ,0,GPT-4, 1 ,0,\n");
  CHECK(request_rows(trace.workload) ==
        std::vector<RequestRow>{{5000, 472, 18, 0}, {5250, 1087, 230, -1}, {5250, 2, 1, 1}, {118'000, 1, 0, 0}});
  CHECK(trace.format == TraceFormat::burstgpt);
  CHECK(trace.bad_lines == 0);
}

TEST_CASE("columns are found by their names, and only that of input tokens must be there") {
  CHECK(request_rows(read_rows("Request tokens\n7\n8").workload) ==
        std::vector<RequestRow>{{0, 7, 1, -1}, {0, 8, 1, -1}});
  CHECK(request_rows(read_rows("Response tokens,x,Request tokens,Timestamp\n1,2,3,4\n").workload) ==
        std::vector<RequestRow>{{4000, 3, 1, -1}});
  CHECK(request_rows(read_rows("Timestamp,Request tokens\n4000,1\n", {.time_unit = TimeUnit::us}).workload) ==
        std::vector<RequestRow>{{4, 1, 1, -1}});
}

TEST_CASE("Azure has dates, and its first request comes at 0") {
  const std::string first = "2023-11-16 18:17:03.9799600,374,44\n";
  const std::string second = "2023-11-16 19:17:04.0319569+01:00,396,\n";
  CHECK(request_rows(read_rows(azure_header + first + second).workload) ==
        std::vector<RequestRow>{{0, 374, 44, -1}, {52, 396, 1, -1}});
  CHECK(request_rows(read_rows(azure_header + second + first, {.sort = true}).workload) ==
        std::vector<RequestRow>{{0, 374, 44, -1}, {52, 396, 1, -1}});
  CHECK(
      row_error(azure_header + second + first) ==
      "Azure CSV, line 3: TIMESTAMP = \"2023-11-16 18:17:03.9799600\" (must not be before that of an earlier request, "
      "unless sorted)");
  CHECK_THROWS_WITH_AS((void)read_rows(azure_header + first, {.time_unit = TimeUnit::s}),
                       "Azure CSV: its times are dates, which have no unit", std::runtime_error);
}

TEST_CASE("a malformed row is named by format, line and reason") {
  const auto row = [](const std::string& text) { return row_error(burstgpt_header + "\n5,,,,1,1,\n" + text + "\n"); };
  const auto line_4 = [](const std::string& reason) { return "BurstGPT CSV, line 4: " + reason; };
  CHECK(row("5,,,,1,1") == line_4("6 values for 7 columns"));
  CHECK(row("5,,,,1,1,,") == line_4("8 values for 7 columns"));
  CHECK(row("5,\",,,1,1,") == line_4("a quote has no end"));
  CHECK(row("5,,,,0,1,") == line_4(R"(Request tokens = "0" (must be an integer, 1 to 1099511627776))"));
  CHECK(row("5,,,,,1,") == line_4(R"(Request tokens = "" (must be an integer, 1 to 1099511627776))"));
  CHECK(row("5,,,,1.5,1,") == line_4(R"(Request tokens = "1.5" (must be an integer, 1 to 1099511627776))"));
  CHECK(row("5,,,,1,-1,") == line_4(R"(Response tokens = "-1" (must be an integer, 0 to 1099511627776))"));
  CHECK(row("5,,,,1,99999999999999999999,") ==
        line_4(R"(Response tokens = "99999999999999999999" (must be an integer, 0 to 1099511627776))"));
  CHECK(row("x,,,,1,1,") == line_4(R"(Timestamp = "x" (must be a number of s, 0 to 1e+12))"));
  CHECK(row("nan,,,,1,1,") == line_4(R"(Timestamp = "nan" (must be a number of s, 0 to 1e+12))"));
  CHECK(row("1e13,,,,1,1,") == line_4(R"(Timestamp = "1e13" (must be a number of s, 0 to 1e+12))"));
  CHECK(row("4.9,,,,1,1,") ==
        line_4(R"(Timestamp = "4.9" (must not be before that of an earlier request, 5000 ms, unless sorted))"));
  CHECK(row_error(azure_header + "5,1,1\n") ==
        "Azure CSV, line 2: TIMESTAMP = \"5\" (must be a time as 2023-11-16 18:17:03.98, from 1970 on)");
}

TEST_CASE("malformed rows are left out with their sessions and times") {
  const Trace trace = read_rows(burstgpt_header + "5,a,,,1,1,\n9,b,,,0,1,\n6,c,,,1,1,\n7,d,,,999,1,\n8,a,,,2,1,\n",
                                {.block_size_tokens = 1, .skip_bad = true, .unnamed_blocks_max = 4});
  CHECK(request_rows(trace.workload) == std::vector<RequestRow>{{5000, 1, 1, 0}, {6000, 1, 1, 1}, {8000, 2, 1, 0}});
  CHECK(trace.bad_lines == 2);
  CHECK(trace.first_bad_line.starts_with("BurstGPT CSV, line 3: Request tokens"));
}

TEST_CASE("prompts without hash ids have a bound on their blocks together") {
  const TraceOptions options{.block_size_tokens = 2, .unnamed_blocks_max = 5};
  CHECK(read_rows("Request tokens\n7\n5\n1\n", options).workload.total_blocks() == 5);
  CHECK(row_error("Request tokens\n7\n5\n2\n", options) ==
        "BurstGPT CSV, line 4: prompts have more than 5 blocks of 2 tokens together");
}

TEST_CASE("requests of a session continue each other in the order of their times") {
  const std::string lines = "Timestamp,Session ID,Request tokens,Response tokens\n9,a,8,0\n2,a,4,2\n3,,8,0\n4,b,8,0\n";
  const Workload workload = read_rows(lines, {.block_size_tokens = 2, .sort = true}).workload;
  REQUIRE(workload.size() == 4);
  const auto before = workload.blocks(0);
  const auto after = workload.blocks(3);
  CHECK(std::equal(before.begin(), before.end(), after.begin()));
  CHECK(workload.blocks(1)[0] != workload.blocks(2)[0]);
  CHECK(workload.blocks(1)[0] != before[0]);
}
