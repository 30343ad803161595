// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>

#include "random.hpp"
#include "temporary_folder.hpp"
#include "workload/trace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace stateport::replay;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

Trace read_recording(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream lines(text);
  return read_trace(lines, options);
}

std::string recording_error(const std::string& text, const TraceOptions& options = {}) {
  try {
    (void)read_recording(text, options);
  } catch (const TraceError& error) {
    CHECK(error.format() == TraceFormat::recorded);
    return error.place() + ": " + error.reason();
  }
  return "no error";
}

const std::string short_header = R"({"stateport_trace":1,"block":4})"
                                 "\n";

std::string header_with(const std::string& fields) {
  return R"({"stateport_trace":1,"block":4,)" + fields + "}\n" + R"({"input_length":1,"hash_ids":[]})";
}

/// Files in a folder that goes.
class TraceFolder {
 public:
  void add(const std::string& text) {
    files.push_back(folder_.path() / ("part-" + std::to_string(files.size()) + ".jsonl"));
    std::ofstream(files.back()) << text;
  }
  std::string error(const TraceOptions& options = {}) const {
    try {
      (void)read_traces(files, options);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  std::vector<std::filesystem::path> files;

 private:
  stateport::test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("a recorded trace has its own block size and sizes") {
  const Trace trace = read_recording(
      R"({"stateport_trace":1,"block":4,"began":1000,"model":"m","state_bytes":12,"kv_bytes_per_token":3,"engine":"e",)"
      R"("version":"v","sample":0.25,"other":[1]})"
      "\n\n"
      R"({"timestamp":7.6,"input_length":9,"output_length":3,"hash_ids":[5,6],"session":77,"hit_tokens":4,)"
      R"("hit_tier":"host","lost_reason":"evicted","other":{}})"
      "\n");
  CHECK(trace.format == TraceFormat::recorded);
  CHECK(trace.description() == "stateport trace");
  REQUIRE(trace.header.has_value());
  CHECK(*trace.header == TraceHeader{.block_size_tokens = 4,
                                     .began_ms = 1000,
                                     .model = "m",
                                     .engine = "e",
                                     .version = "v",
                                     .state_bytes = 12,
                                     .kv_bytes_per_token = 3,
                                     .sample = 0.25});
  REQUIRE(trace.workload.size() == 1);
  CHECK(trace.workload.block_size_tokens() == 4);
  CHECK(std::ranges::equal(trace.workload.blocks(0), std::vector<BlockIdentity>{5, 6}));
  const Request& request = trace.workload.request(0);
  CHECK(request.arrival_ms == 0);
  CHECK(trace.first_ms == 1008);
  CHECK(request.output_tokens == 3);
  CHECK(request.session == 0);
  CHECK(request.recorded_hit_tokens == 4);
  const Trace bare = read_recording(short_header + R"({"input_length":1,"hash_ids":[]})");
  CHECK(*bare.header == TraceHeader{.block_size_tokens = 4});
  CHECK(bare.workload.request(0).recorded_hit_tokens == -1);
}

TEST_CASE("a wrong header is named by line and field, and is not left out") {
  const auto error = [](const std::string& header) {
    const std::string text = "\n" + header + "\n" + R"({"input_length":1,"hash_ids":[]})";
    const std::string found = recording_error(text);
    CHECK(recording_error(text, {.skip_bad = true}) == found);
    return found;
  };
  CHECK(error(R"({"stateport_trace":2,"block":4})") ==
        "line 2: stateport_trace = 2 (must be 1, the version of the format)");
  CHECK(error(R"({"stateport_trace":"1","block":4})") == "line 2: stateport_trace = \"1\" (must be a 64-bit integer)");
  CHECK(error(R"({"stateport_trace":1})") == R"(line 2: no field "block")");
  CHECK(error(R"({"stateport_trace":1,"block":0})") == "line 2: block = 0 (must be 1 to 1099511627776)");
  CHECK(recording_error(header_with(R"("began":-1)")) == "line 1: began = -1 (must be 0 to 1000000000000000)");
  CHECK(recording_error(header_with(R"("model":7)")) == "line 1: model = 7 (must be a text)");
  CHECK(recording_error(header_with(R"("engine":null)")) == "line 1: engine = null (must be a text)");
  CHECK(recording_error(header_with(R"("version":[])")) == "line 1: version = array (must be a text)");
  CHECK(recording_error(header_with(R"("state_bytes":0)")) == "line 1: state_bytes = 0 (must be 1 to 1099511627776)");
  CHECK(recording_error(header_with(R"("kv_bytes_per_token":1.5)")) ==
        "line 1: kv_bytes_per_token = 1.5 (must be a 64-bit integer)");
  for (const char* sample : {"0", "1.01", "\"1\""})
    CHECK(recording_error(header_with(R"("sample":)" + std::string(sample))) ==
          "line 1: sample = " + std::string(sample) + " (must be above 0, at most 1)");
  CHECK(recording_error(short_header, {.block_size_tokens = 6, .joins_blocks = true}) ==
        "line 1: block = 4 (does not divide the size of blocks that was asked for, 6)");
  CHECK_THROWS_WITH_AS((void)read_recording(header_with(R"("began":0)"), {.time_unit = TimeUnit::s}),
                       "stateport trace: its times are in ms, and have no other unit", std::runtime_error);
  CHECK_THROWS_WITH_AS((void)read_recording(short_header), "stateport trace: no request in it (0 malformed lines)",
                       std::runtime_error);
}

TEST_CASE("a malformed line of a recorded trace is named, or left out") {
  const auto line = [](const std::string& fields) {
    return short_header + R"({"input_length":8,"hash_ids":[1,2],)" + fields + "}\n";
  };
  CHECK(recording_error(line(R"("hit_tokens":9)")) == "line 2: hit_tokens = 9 (must be 0 to 8)");
  CHECK(recording_error(line(R"("hit_tokens":null)")) == "line 2: hit_tokens = null (must be a 64-bit integer)");
  CHECK(recording_error(line(R"("cancelled":1)")) == "line 2: cancelled = 1 (must be true or false)");
  CHECK(recording_error(line(R"("namespace":1.5)")) == "line 2: namespace = 1.5 (must be an integer or a text)");
  CHECK(recording_error(line(R"("session":[])")) == "line 2: session = array (must be an integer or a text)");
  CHECK(recording_error(short_header + short_header) == R"(line 2: no field "input_length")");
  const Trace skipped =
      read_recording(line(R"("cancelled":1)") + R"({"input_length":1,"hash_ids":[],"session":3})", {.skip_bad = true});
  CHECK(skipped.workload.size() == 1);
  CHECK(skipped.bad_lines == 1);
  CHECK(skipped.first_bad_line == "stateport trace, line 2: cancelled = 1 (must be true or false)");
  CHECK(skipped.sessions.size() == 1);
}

TEST_CASE("cancelled requests that never ran are counted and left out") {
  const Trace trace =
      read_recording(short_header + R"({"input_length":1,"hash_ids":[],"cancelled":true})"
                                    "\n"
                                    R"({"input_length":2,"hash_ids":[],"cancelled":true,"hit_tokens":0})"
                                    "\n"
                                    R"({"input_length":3,"hash_ids":[],"cancelled":false})");
  CHECK(trace.never_ran == 1);
  REQUIRE(trace.workload.size() == 2);
  CHECK(trace.workload.request(0).input_tokens == 2);
  CHECK(trace.workload.request(1).input_tokens == 3);
}

TEST_CASE("requests of different namespaces share neither blocks nor sessions") {
  std::string text = short_header;
  const std::vector<std::string> namespaces = {
      "", R"(,"namespace":null)", R"(,"namespace":0)", R"(,"namespace":1)", R"(,"namespace":"1")", R"(,"namespace":1)"};
  for (const std::string& tenant : namespaces)
    text += R"({"input_length":8,"hash_ids":[1,2],"session":5)" + tenant + "}\n";
  const Trace trace = read_recording(text);
  std::vector<std::int64_t> sessions;
  std::map<BlockIdentity, std::vector<std::size_t>> first;
  for (std::size_t i = 0; i < trace.workload.size(); ++i) {
    sessions.push_back(trace.workload.request(i).session);
    first[trace.workload.blocks(i)[0]].push_back(i);
    CHECK(trace.workload.blocks(i)[0] != trace.workload.blocks(i)[1]);
  }
  CHECK(sessions == std::vector<std::int64_t>{0, 0, 1, 2, 3, 2});
  std::vector<std::vector<std::size_t>> alike;
  for (const auto& [identity, requests] : first) alike.push_back(requests);
  std::ranges::sort(alike);
  CHECK(alike == std::vector<std::vector<std::size_t>>{{0, 1}, {2}, {3, 5}, {4}});
  CHECK(trace.workload.blocks(0)[0] == 1);
}

TEST_CASE("files of one recording are read as one, in the order of times since 1970") {
  TraceFolder folder;
  folder.add(R"({"stateport_trace":1,"block":4,"began":5000})"
             "\n"
             R"({"timestamp":3,"input_length":4,"hash_ids":[7],"session":1})"
             "\n"
             R"({"timestamp":1,"input_length":5,"hash_ids":[7],"session":2,"cancelled":true})"
             "\n{x\n");
  folder.add(R"({"stateport_trace":1,"block":4,"began":4000,"engine":"another"})"
             "\n"
             R"({"timestamp":1002,"input_length":6,"hash_ids":[8],"session":3})"
             "\n"
             R"({"timestamp":0,"input_length":7,"hash_ids":[7],"session":1})"
             "\n[]\n");
  const Trace trace = read_traces(folder.files, {.skip_bad = true});
  CHECK(trace.first_ms == 4000);
  CHECK(trace.never_ran == 1);
  CHECK(trace.bad_lines == 2);
  CHECK(trace.first_bad_line.starts_with("stateport trace, line 4: not JSON"));
  std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> read;
  for (std::size_t i = 0; i < trace.workload.size(); ++i) {
    const Request& request = trace.workload.request(i);
    read.emplace_back(request.arrival_ms, request.input_tokens, request.session);
  }
  CHECK(read ==
        std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>{{0, 7, 0}, {1002, 6, 1}, {1003, 4, 0}});
}

TEST_CASE("of several files one may have no request, but not all") {
  for (const bool first : {true, false}) {
    TraceFolder folder;
    folder.add(short_header);
    folder.add(short_header + R"({"input_length":1,"hash_ids":[]})");
    if (!first) std::swap(folder.files[0], folder.files[1]);
    CHECK(read_traces(folder.files).workload.size() == 1);
    folder.files[0] = folder.files[1] = folder.files[first ? 0 : 1];
    CHECK(folder.error() == "stateport trace: no request in it (0 malformed lines)");
    folder.files.pop_back();
    CHECK(folder.error() == folder.files[0].string() + ": stateport trace: no request in it (0 malformed lines)");
  }
}

TEST_CASE("files that are not of one recording are refused by name") {
  const std::string request = R"({"input_length":1,"hash_ids":[]})";
  const std::vector<std::pair<std::string, std::string>> others = {
      {R"({"stateport_trace":1,"block":8})", "block = 8 (of the first file: 4)"},
      {R"({"stateport_trace":1,"block":4,"model":"m"})", R"(model = "m" (of the first file: ""))"},
      {R"({"stateport_trace":1,"block":4,"state_bytes":3})", "state_bytes = 3 (of the first file: not there)"},
      {R"({"stateport_trace":1,"block":4,"kv_bytes_per_token":3})",
       "kv_bytes_per_token = 3 (of the first file: not there)"},
      {R"({"stateport_trace":1,"block":4,"sample":0.5})", "sample = 0.5 (of the first file: 1)"},
      {request, "Mooncake JSON lines (several files must be of a stateport trace)"}};
  for (const auto& [header, text] : others) {
    TraceFolder folder;
    folder.add(short_header + request);
    folder.add(header + "\n" + request);
    CHECK(folder.error() == folder.files[1].string() + ": " + text);
    std::swap(folder.files[0], folder.files[1]);
    CHECK(folder.error() != "no error");
  }
  TraceFolder folder;
  folder.add(request);
  CHECK(read_traces(folder.files).format == TraceFormat::mooncake);
}

namespace {

struct RecordedLine {
  std::int64_t ms;
  std::int64_t tokens;
  std::vector<int> prefix;  ///< a digit for each block, which its name stands for
  int session;              ///< -1: none
  int tenant;               ///< -1: none
};

std::vector<RecordedLine> random_lines(Random& random) {
  std::vector<RecordedLine> lines;
  for (auto left = random.between(1, 30); left > 0; --left) {
    RecordedLine line{.ms = random.between(0, 20), .tokens = random.between(1, 50)};
    for (std::int64_t block = 0; block < line.tokens / 4; ++block)
      line.prefix.push_back(static_cast<int>(random.between(0, 1)));
    line.session = static_cast<int>(random.between(-1, 2));
    line.tenant = static_cast<int>(random.between(-1, 1));
    lines.push_back(line);
  }
  return lines;
}

/// A name of a prefix of blocks: binary digits behind a one.
std::uint64_t name_of_prefix(const std::vector<int>& prefix, std::size_t blocks) {
  std::uint64_t name = 1;
  for (std::size_t block = 0; block < blocks; ++block) name = 2 * name + static_cast<std::uint64_t>(prefix[block]);
  return name;
}

std::string json_of(const RecordedLine& line, std::int64_t began) {
  std::string text = R"({"timestamp":)" + std::to_string(line.ms - began) + R"(,"input_length":)" +
                     std::to_string(line.tokens) + R"(,"hash_ids":[)";
  for (std::size_t block = 1; block <= line.prefix.size(); ++block)
    text += (block == 1 ? "" : ",") + std::to_string(name_of_prefix(line.prefix, block));
  text += "]";
  if (line.session >= 0) text += R"(,"session":)" + std::to_string(line.session);
  if (line.tenant >= 0) text += R"(,"namespace":)" + std::to_string(line.tenant);
  return text + "}\n";
}

/// Equal things have equal numbers, in the order in which they come.
template <class Key>
class Alike {
 public:
  std::int64_t of(const Key& key) { return numbers_.try_emplace(key, std::ssize(numbers_)).first->second; }

 private:
  std::map<Key, std::int64_t> numbers_;
};

}  // namespace

TEST_CASE("random recordings in several files are the requests of a plain model") {
  for_each_seed(300, [](Random& random, std::uint64_t) {
    std::vector<RecordedLine> lines = random_lines(random);
    const std::int64_t join = random.between(1, 3);
    TraceFolder folder;
    std::vector<RecordedLine> in_files;
    for (std::size_t at = 0; at < lines.size();) {
      const std::int64_t began = random.between(0, 1) == 0 ? 0 : -random.between(0, 5);
      std::string text = R"({"stateport_trace":1,"block":4,"began":)" + std::to_string(100 + began) + "}\n";
      for (auto left = random.between(1, 12); left > 0 && at < lines.size(); --left, ++at) {
        text += json_of(lines[at], began);
        in_files.push_back(lines[at]);
      }
      folder.add(text);
    }
    const Trace trace = read_traces(folder.files, {.block_size_tokens = 4 * join, .joins_blocks = true});
    std::ranges::stable_sort(in_files, {}, &RecordedLine::ms);
    REQUIRE(trace.workload.size() == in_files.size());
    CHECK(trace.workload.block_size_tokens() == 4 * join);
    CHECK(trace.first_ms == 100 + in_files.front().ms);
    Alike<std::pair<int, int>> sessions;
    Alike<std::int64_t> read_sessions;
    Alike<std::pair<int, std::uint64_t>> blocks;
    Alike<BlockIdentity> read_blocks;
    for (std::size_t i = 0; i < in_files.size(); ++i) {
      const RecordedLine& line = in_files[i];
      const Request& request = trace.workload.request(i);
      CHECK(request.arrival_ms == line.ms - in_files.front().ms);
      CHECK(request.input_tokens == line.tokens);
      CHECK((request.session < 0) == (line.session < 0));
      if (line.session >= 0) CHECK(read_sessions.of(request.session) == sessions.of({line.tenant, line.session}));
      REQUIRE(std::ssize(trace.workload.blocks(i)) == line.tokens / (4 * join));
      for (std::size_t block = 0; block < trace.workload.blocks(i).size(); ++block)
        CHECK(read_blocks.of(trace.workload.blocks(i)[block]) ==
              blocks.of({line.tenant, name_of_prefix(line.prefix, (block + 1) * static_cast<std::size_t>(join))}));
    }
  });
}
