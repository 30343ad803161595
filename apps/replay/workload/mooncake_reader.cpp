// SPDX-License-Identifier: Apache-2.0
#include "workload/json_fields.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iterator>
#include <map>
#include <string_view>
#include <vector>

namespace stateport::replay {
namespace {

using nlohmann::json;

void read_identities(const json& ids, std::int64_t input_tokens, std::int64_t block_size,
                     std::vector<BlockIdentity>& out) {
  if (!ids.is_array()) throw Malformed{"hash_ids is not an array"};
  const std::int64_t floor = input_tokens / block_size;
  const std::int64_t ceil = floor + (input_tokens % block_size != 0);
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count != floor && count != ceil)
    throw Malformed{fmt::format("{} hash_ids for {} tokens (must be {} blocks of {})", count, input_tokens,
                                floor == ceil ? fmt::to_string(floor) : fmt::format("{} or {}", floor, ceil),
                                block_size)};
  out.clear();
  for (const json& id : ids) {
    if (!id.is_number_integer()) throw Malformed{fmt::format("a hash id is {} (must be an integer)", shown(id))};
    out.push_back(id.get<BlockIdentity>());
  }
}

/// Reads the lines of one trace.
class MooncakeReader {
 public:
  explicit MooncakeReader(const TraceOptions& options) : options_(options), clock_(options, TimeUnit::ms) {}

  /// Throws Malformed, nothing changed.
  void add(std::string_view text, Workload& workload) {
    const json line = parsed(text);
    if (!line.is_object()) throw Malformed{"not a JSON object"};
    Request request{.arrival_ms = clock_.now_ms(), .input_tokens = bounded(line, "input_length", 1, longest_tokens)};
    if (const auto time = line.find("timestamp"); time != line.end())
      request.arrival_ms = json_arrival_ms(*time, clock_);
    request.output_tokens = line.contains("output_length") ? bounded(line, "output_length", 0, longest_tokens) : 1;
    read_identities(field(line, "hash_ids"), request.input_tokens, options_.block_size_tokens, identities_);
    request.session = session(line);
    workload.add(request, identities_);
    clock_.set(request.arrival_ms);
  }

 private:
  static json parsed(std::string_view text) {
    try {
      return json::parse(text);
    } catch (const json::parse_error& error) {
      throw Malformed{fmt::format("not JSON, from character {} on", error.byte)};
    } catch (const json::exception&) {
      throw Malformed{"a number is out of range"};
    }
  }
  std::int64_t session(const json& line) {
    for (const char* name : {"session", "session_id"}) {
      const auto found = line.find(name);
      if (found == line.end() || found->is_null()) continue;
      if (!found->is_string() && !found->is_number_integer())
        refuse(name, shown(*found), "must be an integer or a text");
      return sessions_.try_emplace(*found, std::ssize(sessions_)).first->second;
    }
    return -1;
  }

  TraceOptions options_;
  TraceClock clock_;
  std::map<json, std::int64_t> sessions_;
  std::vector<BlockIdentity> identities_;
};

}  // namespace

void read_mooncake(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  MooncakeReader reader(options);
  do {
    try {
      reader.add(lines.text(), trace.workload);
    } catch (const Malformed& malformed) {
      refuse_entry(trace, options, fmt::format("line {}", lines.number()), malformed);
    }
  } while (lines.next());
}

}  // namespace stateport::replay
