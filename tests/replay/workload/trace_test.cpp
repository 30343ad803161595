// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace stateport::replay;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

Trace read(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream lines(text);
  return read_trace(lines, options);
}

std::string error_of(const std::string& text, const TraceOptions& options = {}) {
  try {
    (void)read(text, options);
  } catch (const TraceError& error) {
    const std::string text = error.what();
    const std::string format = "Mooncake JSON lines, ";
    CHECK(text.starts_with(format));
    return text.substr(format.size());
  }
  return "no error";
}

/// Of a trace that is not read to its end for another reason than a malformed entry.
std::string failure_of(const std::string& text, const TraceOptions& options = {}) {
  try {
    (void)read(text, options);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

const std::string good = R"({"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[1,2,3]})";

}  // namespace

TEST_CASE("a line may give the partial last block or leave it out, and may have a session and unknown fields") {
  const Trace trace = read(good +
                           "\n\n"
                           R"({"hash_ids":[1,2],"timestamp":2.75,"output_length":0,"input_length":1100,"session":7,)"
                           R"("model":{"name":"x"}})"
                           "\r\n");
  REQUIRE(trace.workload.size() == 2);
  CHECK(trace.bad_lines == 0);
  CHECK(trace.workload.blocks(0).size() == 2);
  CHECK(trace.workload.blocks(1).size() == 2);
  CHECK(trace.workload.blocks(0)[1] == 2);
  CHECK(trace.workload.request(0).output_tokens == 5);
  CHECK(trace.workload.request(0).session == -1);
  CHECK(trace.workload.request(1).session == 0);
  CHECK(trace.workload.request(1).arrival_ms == 3);
}

TEST_CASE("the last line needs no line end, and the block size is the caller's") {
  const Trace trace =
      read(R"({"timestamp":0,"input_length":33,"output_length":0,"hash_ids":[-5,18446744073709551615]})",
           {.block_size_tokens = 16});
  CHECK(trace.workload.blocks(0).size() == 2);
  CHECK(trace.workload.blocks(0)[0] == static_cast<BlockIdentity>(-5));
}

TEST_CASE("a malformed line is named by number and reason") {
  const auto line = [](const std::string& fields) { return good + "\n{" + fields + "}\n"; };
  CHECK(error_of(good + "\nnot json\n") == "line 2: not JSON, from character 2 on");
  CHECK(error_of(good + "\n" + good.substr(0, 40)) == "line 2: not JSON, from character 41 on");
  CHECK(error_of(line(R"("timestamp":1e999)")) == "line 2: a number is out of range");
  CHECK(error_of(good + "\n[1]\n") == "line 2: not a JSON object");
  CHECK(error_of(line(R"("timestamp":0,"output_length":1,"hash_ids":[])")) == R"(line 2: no field "input_length")");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1,"output_length":1)")) == R"(line 2: no field "hash_ids")");
  CHECK(error_of(line(R"("timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[])")) ==
        "line 2: timestamp = -1 (must be a number of ms, 0 to 1e+15)");
  CHECK(error_of(line(R"("timestamp":"0","input_length":1,"output_length":1,"hash_ids":[])")) ==
        "line 2: timestamp = \"0\" (must be a number of ms, 0 to 1e+15)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":0,"output_length":1,"hash_ids":[])")) ==
        "line 2: input_length = 0 (must be 1 to 1099511627776)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1.5,"output_length":1,"hash_ids":[])")) ==
        "line 2: input_length = 1.5 (must be a 64-bit integer)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1,"output_length":18446744073709551615,"hash_ids":[])")) ==
        "line 2: output_length = 18446744073709551615 (must be a 64-bit integer)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1025,"output_length":1,"hash_ids":[1])")) ==
        "line 2: 1 hash_ids for 1025 tokens (must be 2 or 3 blocks of 512)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1024,"output_length":1,"hash_ids":[1,2,3])")) ==
        "line 2: 3 hash_ids for 1024 tokens (must be 2 blocks of 512)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":512,"output_length":1,"hash_ids":["a"])")) ==
        "line 2: a hash id is \"a\" (must be an integer)");
  CHECK(error_of(line(R"("timestamp":0,"input_length":512,"output_length":1,"hash_ids":7)")) ==
        "line 2: hash_ids is not an array");
  CHECK(error_of(line(R"("timestamp":0,"input_length":1,"output_length":1,"hash_ids":[],"session":1.5)")) ==
        "line 2: session = 1.5 (must be an integer or a text)");
}

TEST_CASE("timestamps have the unit that is named, and their bound is in it") {
  const auto arrival_ms = [](const std::string& timestamp, TimeUnit unit) {
    const std::string line = R"({"timestamp":)" + timestamp + R"(,"input_length":1,"hash_ids":[]})";
    return read(line, {.time_unit = unit}).workload.request(0).arrival_ms;
  };
  CHECK(arrival_ms("1500.9", TimeUnit::ms) == 1501);
  CHECK(arrival_ms("1500499", TimeUnit::us) == 1500);
  CHECK(arrival_ms("1.001", TimeUnit::s) == 1001);
  CHECK(arrival_ms("1.7e12", TimeUnit::ms) == 1'700'000'000'000);
  CHECK(arrival_ms("1.7e15", TimeUnit::us) == 1'700'000'000'000);
  const std::string late = R"({"timestamp":1.7e18,"input_length":1,"output_length":1,"hash_ids":[]})";
  CHECK(error_of(late) == "line 1: timestamp = 1.7e+18 (must be a number of ms, 0 to 1e+15)");
  CHECK(error_of(late, {.time_unit = TimeUnit::us}) ==
        "line 1: timestamp = 1.7e+18 (must be a number of us, 0 to 1e+18)");
  CHECK(error_of(late, {.time_unit = TimeUnit::s}) ==
        "line 1: timestamp = 1.7e+18 (must be a number of s, 0 to 1e+12)");
}

namespace {

std::string request_at(const std::string& timestamp, int hash) {
  return R"({"timestamp":)" + timestamp + R"(,"input_length":512,"hash_ids":[)" + std::to_string(hash) + "]}\n";
}

}  // namespace

TEST_CASE("a timestamp before that of an earlier line is refused, left out, or sorted") {
  const std::string lines = request_at("5", 1) + request_at("7", 2) + request_at("6", 3) + request_at("7", 4);
  CHECK(error_of(lines) ==
        "line 3: timestamp = 6 (must not be before that of an earlier request, 7 ms, unless sorted)");
  const Trace skipped = read(lines, {.skip_bad = true});
  REQUIRE(skipped.workload.size() == 3);
  CHECK(skipped.workload.blocks(2)[0] == 4);
  const std::string late_and_bad = R"({"timestamp":9,"input_length":512,"hash_ids":7})"
                                   "\n";
  CHECK(read(request_at("5", 1) + late_and_bad + request_at("6", 2), {.skip_bad = true}).workload.size() == 2);
  const Trace sorted = read(lines, {.sort = true});
  REQUIRE(sorted.workload.size() == 4);
  for (const auto& [index, hash] : {std::pair(0, 1), std::pair(1, 3), std::pair(2, 2), std::pair(3, 4)})
    CHECK(sorted.workload.blocks(static_cast<std::size_t>(index))[0] == static_cast<BlockIdentity>(hash));
}

TEST_CASE("a line without a timestamp comes with the line before it, and one without output_length generates a token") {
  const std::string bare = R"({"input_length":512,"hash_ids":[9]})";
  const Trace trace = read(bare + "\n" + request_at("5", 1) + bare);
  REQUIRE(trace.workload.size() == 3);
  CHECK(trace.workload.request(0).arrival_ms == 0);
  CHECK(trace.workload.request(2).arrival_ms == 5);
  CHECK(trace.workload.request(2).output_tokens == 1);
}

TEST_CASE("sessions are texts or integers under either name") {
  const auto line = [](const std::string& session) { return R"({"input_length":1,"hash_ids":[])" + session + "}\n"; };
  const Trace trace =
      read(line(R"(,"session":"7")") + line(R"(,"session_id":7)") + line(R"(,"session":null)") +
           line(R"(,"session_id":"7")") + line("") + line(R"(,"session":7)") + line(R"(,"session":-18446744073)"));
  std::vector<std::int64_t> sessions;
  for (std::size_t i = 0; i < trace.workload.size(); ++i) sessions.push_back(trace.workload.request(i).session);
  CHECK(sessions == std::vector<std::int64_t>{0, 1, -1, 0, -1, 1, 2});
}

TEST_CASE("skip_bad counts malformed lines and keeps the others") {
  const Trace trace = read("{x\n" + good + "\n{}\n" + good + "\n", {.skip_bad = true});
  CHECK(trace.workload.size() == 2);
  CHECK(trace.bad_lines == 2);
  CHECK(trace.first_bad_line.starts_with("Mooncake JSON lines, line 1: "));
}

TEST_CASE("the first line that is not blank tells the format") {
  const auto format_of = [](const std::string& text) { return read(text).format; };
  CHECK(format_of(good) == TraceFormat::mooncake);
  CHECK(format_of("\xef\xbb\xbf" + good) == TraceFormat::mooncake);
  CHECK(format_of("\n \r\n" + good) == TraceFormat::mooncake);
  CHECK(format_of("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,1,1,2,y\n") ==
        TraceFormat::burstgpt);
  CHECK(format_of("Request tokens\n7\n") == TraceFormat::burstgpt);
  CHECK(format_of("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,374,44\r\n") ==
        TraceFormat::azure);
  CHECK(format_of("\xef\xbb\xbf\"TIMESTAMP\" , \"ContextTokens\"\n2023-11-16 18:17:03,374\n") == TraceFormat::azure);
  CHECK(format_of(R"( [{"conversations":[{"from":"human","tokens":3}]}])") == TraceFormat::sharegpt);
  CHECK(read(good).description() == "Mooncake JSON lines");
}

TEST_CASE("a text of no known format is shown, with the formats that are known") {
  const std::string known =
      " (a trace is Mooncake JSON lines, a stateport trace, BurstGPT CSV, Azure CSV or ShareGPT JSON, plain or in "
      "gzip)";
  CHECK(failure_of("") == "nothing in it" + known);
  CHECK(failure_of("\n \t\r\n") == "nothing in it" + known);
  CHECK(failure_of("\nx,\"y\n" + good, {.skip_bad = true}) == R"(no known format, from line 2: "x,\"y")" + known);
  CHECK(failure_of("\xff\x01" + std::string(100, 'z')) ==
        R"(no known format, from line 1: "\ufffd\u0001)" + std::string(78, 'z') + R"(\u2026")" + known);
  CHECK(failure_of("timestamp,request tokens\n5,1\n").starts_with("no known format, from line 1: "));
}

TEST_CASE("a trace without requests and a file that is not there are errors") {
  CHECK(failure_of("{x\n", {.skip_bad = true}) == "Mooncake JSON lines: no request in it (1 malformed lines)");
  CHECK(failure_of("ContextTokens\n") == "Azure CSV: no request in it (0 malformed lines)");
  CHECK(failure_of("[7]", {.skip_bad = true}) == "ShareGPT JSON: no request in it (1 malformed conversations)");
  CHECK_THROWS_WITH_AS((void)read_trace(std::filesystem::path("no-such.jsonl")), "no-such.jsonl: cannot be opened",
                       std::runtime_error);
  CHECK_THROWS_AS((void)read(good, {.block_size_tokens = 0}), stateport::InvalidArgument);
}

TEST_CASE("damaged traces are read or refused, never worse") {
  const std::vector<std::string> traces = {
      good, "Timestamp,Session ID,Request tokens,Response tokens\n5,\"a,b\",9,2\n6,\"a,b\",17,0\n",
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n",
      R"([{"conversations":[{"from":"human","tokens":12},{"from":"gpt","tokens":40}]}])"};
  for_each_seed(2000, [&](Random& random, std::uint64_t seed) {
    std::string text = traces[seed % traces.size()];
    for (int edits = 0; edits < 3; ++edits) {
      const auto at = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size()) - 1));
      switch (random.between(0, 2)) {
        case 0:
          text[at] = static_cast<char>(random.between(1, 255));
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, "0[{,:\"-e9\n"[random.between(0, 9)]);
      }
    }
    try {
      const Trace trace = read(text, {.skip_bad = random.chance(50), .unnamed_blocks_max = 100'000});
      CHECK(trace.workload.size() >= 1);
    } catch (const std::runtime_error&) {  // TraceError, or nothing left
    }
  });
}
