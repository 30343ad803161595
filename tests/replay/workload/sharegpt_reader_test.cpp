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

Trace read_conversations(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream lines(text);
  return read_trace(lines, options);
}

std::string conversation_error(const std::string& text) {
  try {
    (void)read_conversations(text);
  } catch (const TraceError& error) {
    return error.what();
  }
  return "no error";
}

/// Of every request: arrival in ms, tokens of input and output, session.
using TurnRow = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
std::vector<TurnRow> turn_rows(const Workload& workload) {
  std::vector<TurnRow> all;
  for (std::size_t i = 0; i < workload.size(); ++i) {
    const Request& request = workload.request(i);
    all.emplace_back(request.arrival_ms, request.input_tokens, request.output_tokens, request.session);
  }
  return all;
}

std::string json_conversation(const std::string& turns) {
  return R"({"id":"x","conversations":[)" + turns + "]}";
}

std::string json_turn(const std::string& from, int tokens, const std::string& more = "") {
  return R"({"from":")" + from + R"(","tokens":)" + std::to_string(tokens) + more + "}";
}

}  // namespace

TEST_CASE("each turn of a human is a request that continues the conversation") {
  const Trace trace = read_conversations(
      "[" +
          json_conversation(json_turn("system", 8) + "," + json_turn("human", 2) + "," + json_turn("gpt", 6) + "," +
                            json_turn("user", 4)) +
          ",\n" + json_conversation(json_turn("gpt", 3)) + "," + json_conversation("") + "," +
          json_conversation(json_turn("human", 1) + "," + json_turn("human", 1) + "," + json_turn("system", 2) + "," +
                            json_turn("assistant", 9) + "," + json_turn("human", 7)) +
          "]\n",
      {.block_size_tokens = 1});
  CHECK(turn_rows(trace.workload) ==
        std::vector<TurnRow>{{0, 10, 6, 0}, {0, 20, 1, 0}, {0, 1, 1, 1}, {0, 2, 1, 1}, {0, 20, 1, 1}});
  for (const std::size_t i : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    const auto before = trace.workload.blocks(i);
    CHECK(std::ranges::equal(before, trace.workload.blocks(i + 1).first(before.size())));
  }
  CHECK(trace.workload.blocks(0)[0] != trace.workload.blocks(2)[0]);
}

TEST_CASE("turns may have times, by which conversations take turns when sorted") {
  const std::string text =
      "[" +
      json_conversation(json_turn("human", 4, R"(,"timestamp":1)") + "," + json_turn("human", 4, R"(,"timestamp":9)")) +
      "," + json_conversation(json_turn("human", 5, R"(,"timestamp":2)") + "," + json_turn("human", 5)) + "]";
  CHECK(conversation_error(text) ==
        "ShareGPT JSON, conversation 2: turn 1: timestamp = 2 (must not be before that of an earlier request, 9 ms, "
        "unless sorted)");
  const Trace sorted = read_conversations(text, {.time_unit = TimeUnit::s, .sort = true});
  CHECK(turn_rows(sorted.workload) ==
        std::vector<TurnRow>{{1000, 4, 1, 0}, {2000, 5, 1, 1}, {2000, 10, 1, 1}, {9000, 8, 1, 0}});
}

TEST_CASE("malformed text is named by conversation and turn, or by line where it is no JSON") {
  const auto error = [](const std::string& turns) {
    const std::string text = conversation_error("[" + json_conversation("") + "," + json_conversation(turns) + "]");
    const std::string place = "ShareGPT JSON, conversation 2: ";
    return text.starts_with(place) ? text.substr(place.size()) : text;
  };
  CHECK(error("7") == "turn 1: not a JSON object");
  CHECK(error(json_turn("human", 1) + R"(,{"from":"gpt"})") == R"(turn 2: no field "tokens")");
  CHECK(error(R"({"tokens":1})") == R"(turn 1: no field "from")");
  CHECK(error(json_turn("tool", 1)) == R"(turn 1: from = "tool" (must be human, user, gpt, assistant or system))");
  CHECK(error(R"({"from":[[1]],"tokens":1})") ==
        "turn 1: from = array (must be human, user, gpt, assistant or system)");
  CHECK(error(json_turn("human", 0)) == "turn 1: tokens = 0 (must be 1 to 1099511627776)");
  CHECK(error(json_turn("gpt", 0) + "," + json_turn("gpt", -1)) == "turn 2: tokens = -1 (must be 0 to 1099511627776)");
  CHECK(error(json_turn("system", 10) + R"(,{"from":"gpt","tokens":1099511627767})") ==
        "turn 2: tokens = 1099511627767 (must be 0 to 1099511627766)");
  CHECK(error(json_turn("human", 1, R"(,"timestamp":"1")")) ==
        "turn 1: timestamp = \"1\" (must be a number of ms, 0 to 1e+15)");
  CHECK(conversation_error("[7]") == "ShareGPT JSON, conversation 1: not a JSON object");
  CHECK(conversation_error("[{}]") == R"(ShareGPT JSON, conversation 1: no field "conversations")");
  CHECK(conversation_error(R"([{"conversations":7}])") ==
        "ShareGPT JSON, conversation 1: conversations is not an array");
  CHECK(conversation_error("\n\n[1,\n  2 3]") == "ShareGPT JSON, line 4: not JSON, from character 5 on");
  CHECK(conversation_error("[x]") == "ShareGPT JSON, line 1: not JSON, from character 2 on");
  CHECK(conversation_error("[1,") == "ShareGPT JSON, line 1: not JSON, from character 4 on");
  CHECK(conversation_error("[1]\n2") == "ShareGPT JSON, line 2: not JSON, from character 1 on");
  CHECK_THROWS_WITH_AS((void)read_conversations("[1e999]"), "ShareGPT JSON: a number is out of range",
                       std::runtime_error);
}

TEST_CASE("a malformed conversation is left out as a whole") {
  const std::string good = json_conversation(json_turn("human", 3));
  const std::string bad = json_conversation(json_turn("human", 3, R"(,"timestamp":50)") + "," + json_turn("robot", 1));
  const std::string late = json_conversation(json_turn("human", 4, R"(,"timestamp":7)"));
  const std::string long_one = json_conversation(json_turn("human", 4) + "," + json_turn("human", 4));
  const Trace trace = read_conversations("[" + bad + "," + good + "," + long_one + "," + late + "]",
                                         {.block_size_tokens = 1, .skip_bad = true, .unnamed_blocks_max = 8});
  CHECK(turn_rows(trace.workload) == std::vector<TurnRow>{{0, 3, 1, 0}, {7, 4, 1, 1}});
  CHECK(trace.bad_lines == 2);
  CHECK(trace.first_bad_line.starts_with("ShareGPT JSON, conversation 1: turn 2: from"));
}
