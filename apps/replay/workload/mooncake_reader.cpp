// SPDX-License-Identifier: Apache-2.0
#include "workload/json_fields.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::replay {
namespace {

using nlohmann::json;

constexpr const char* header_key = "stateport_trace";
constexpr std::int64_t longest_bytes = std::int64_t{1} << 40;

json parsed(std::string_view text) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw Malformed{fmt::format("not JSON, from character {} on", error.byte)};
  } catch (const json::exception&) {
    throw Malformed{"a number is out of range"};
  }
}

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

/// The value of a field that names something; null: there is none.
const json& name_of(const json& line, const char* field) {
  static const json none;
  const auto found = line.find(field);
  if (found == line.end()) return none;
  if (!found->is_null() && !found->is_string() && !found->is_number_integer())
    refuse(field, shown(*found), "must be an integer or a text");
  return *found;
}

/// Numbers 0, 1 … in the order in which names come.
class NameNumbers {
 public:
  std::int64_t of(const json& name) { return numbers_.try_emplace(name, std::ssize(numbers_)).first->second; }
  /// By number.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all(numbers_.size());
    for (const auto& [name, number] : numbers_)
      all[static_cast<std::size_t>(number)] = name.dump(-1, ' ', true, json::error_handler_t::replace);
    return all;
  }

 private:
  std::map<json, std::int64_t> numbers_;
};

/// Reads the lines of one trace.
class MooncakeReader {
 public:
  /// `block_size`: tokens of a hash id.
  MooncakeReader(const TraceOptions& options, std::int64_t block_size)
      : clock_(options, TimeUnit::ms), block_size_(block_size) {}

  /// Throws Malformed, nothing changed.
  void add(std::string_view text, Workload& workload) {
    const json line = parsed(text);
    Request request = read(line);
    request.session = session(line);
    workload.add(request, identities_);
    clock_.set(request.arrival_ms);
  }

 protected:
  /// All but the session; the identities of the blocks are in identities_.
  Request read(const json& line) {
    if (!line.is_object()) throw Malformed{"not a JSON object"};
    Request request{.arrival_ms = clock_.now_ms(), .input_tokens = bounded(line, "input_length", 1, longest_tokens)};
    if (const auto time = line.find("timestamp"); time != line.end())
      request.arrival_ms = json_arrival_ms(*time, clock_);
    request.output_tokens = line.contains("output_length") ? bounded(line, "output_length", 0, longest_tokens) : 1;
    read_identities(field(line, "hash_ids"), request.input_tokens, block_size_, identities_);
    return request;
  }
  static const json& session_name(const json& line) {
    const json& name = name_of(line, "session");
    return name.is_null() ? name_of(line, "session_id") : name;
  }

  NameNumbers sessions_;
  TraceClock clock_;
  std::vector<BlockIdentity> identities_;

 private:
  std::int64_t session(const json& line) {
    const json& name = session_name(line);
    return name.is_null() ? -1 : sessions_.of(name);
  }

  std::int64_t block_size_;
};

/// Reads the lines behind the header of one file.
class RecordedReader : MooncakeReader {
 public:
  RecordedReader(const TraceOptions& options, const TraceHeader& header)
      : MooncakeReader(options, header.block_size_tokens),
        began_ms_(header.began_ms),
        joined_(options.joins_blocks ? options.block_size_tokens / header.block_size_tokens : 1) {}

  /// Throws Malformed, nothing changed.
  void add(std::string_view text, Trace& trace) {
    const json line = parsed(text);
    Request request = read(line);
    if (line.contains("hit_tokens")) request.recorded_hit_tokens = bounded(line, "hit_tokens", 0, request.input_tokens);
    const json& tenant = name_of(line, "namespace");
    const json& session = session_name(line);
    if (is_cancelled(line) && request.recorded_hit_tokens < 0) {
      ++trace.never_ran;
      return;
    }
    if (!session.is_null()) request.session = sessions_.of(json::array({tenant, session}));
    keep_apart(tenant);
    request.arrival_ms += began_ms_;
    trace.workload.add(request, identities_);
    clock_.set(request.arrival_ms - began_ms_);
  }
  [[nodiscard]] std::vector<std::string> sessions() const { return sessions_.names(); }

 private:
  static bool is_cancelled(const json& line) {
    const auto found = line.find("cancelled");
    if (found == line.end()) return false;
    if (!found->is_boolean()) refuse("cancelled", shown(*found), "must be true or false");
    return found->get<bool>();
  }

  /// Puts blocks together, and makes identities of different namespaces differ. An identity names a whole prefix, so
  /// that the last one of several blocks names them all.
  void keep_apart(const json& tenant) {
    const auto step = static_cast<std::size_t>(joined_);
    const std::uint64_t salt = mix(std::hash<json>{}(tenant));
    std::size_t kept = 0;
    for (std::size_t at = step - 1; at < identities_.size(); at += step)
      identities_[kept++] = tenant.is_null() ? identities_[at] : mix(identities_[at] ^ salt);
    identities_.resize(kept);
  }

  std::int64_t began_ms_;
  std::int64_t joined_;  ///< recorded blocks of a block
};

std::string text_of(const json& header, const char* name) {
  const auto found = header.find(name);
  if (found == header.end()) return {};
  if (!found->is_string()) refuse(name, shown(*found), "must be a text");
  return found->get<std::string>();
}

TraceHeader read_fields(const json& line, const TraceOptions& options) {
  if (bounded(line, header_key, 0, INT64_MAX) != 1)
    refuse(header_key, shown(line.at(header_key)), "must be 1, the version of the format");
  TraceHeader header{.block_size_tokens = bounded(line, "block", 1, longest_tokens),
                     .model = text_of(line, "model"),
                     .engine = text_of(line, "engine"),
                     .version = text_of(line, "version")};
  constexpr std::int64_t latest_ms = 1'000'000'000'000'000;
  if (line.contains("began")) header.began_ms = bounded(line, "began", 0, latest_ms);
  if (line.contains("state_bytes")) header.state_bytes = bounded(line, "state_bytes", 1, longest_bytes);
  if (line.contains("kv_bytes_per_token"))
    header.kv_bytes_per_token = bounded(line, "kv_bytes_per_token", 1, longest_bytes);
  if (const auto sample = line.find("sample"); sample != line.end()) {
    header.sample = sample->is_number() ? sample->get<double>() : 0;
    if (!(header.sample > 0 && header.sample <= 1)) refuse("sample", shown(*sample), "must be above 0, at most 1");
  }
  if (options.joins_blocks && options.block_size_tokens % header.block_size_tokens != 0)
    refuse("block", fmt::to_string(header.block_size_tokens),
           fmt::format("does not divide the size of blocks that was asked for, {}", options.block_size_tokens));
  return header;
}

}  // namespace

std::optional<TraceHeader> read_header(const TraceLines& lines, const TraceOptions& options) {
  // A line that is none is read again by the reader of the lines, which says so.
  const json line = json::parse(lines.text(), nullptr, false);
  if (!line.is_object() || !line.contains(header_key)) return std::nullopt;
  try {
    return read_fields(line, options);
  } catch (const Malformed& malformed) {
    throw TraceError(TraceFormat::recorded, fmt::format("line {}", lines.number()), malformed.reason);
  }
}

void read_mooncake(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  MooncakeReader reader(options, options.block_size_tokens);
  do {
    try {
      reader.add(lines.text(), trace.workload);
    } catch (const Malformed& malformed) {
      refuse_entry(trace, options, fmt::format("line {}", lines.number()), malformed);
    }
  } while (lines.next());
}

void read_recorded(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  if (options.time_unit)
    throw std::runtime_error(fmt::format("{}: its times are in ms, and have no other unit", name(trace.format)));
  TraceOptions sorted = options;
  sorted.sort = true;  // lines are written when requests end
  RecordedReader reader(sorted, *trace.header);
  while (lines.next()) {
    try {
      reader.add(lines.text(), trace);
    } catch (const Malformed& malformed) {
      refuse_entry(trace, options, fmt::format("line {}", lines.number()), malformed);
    }
  }
  trace.sessions = reader.sessions();
}

}  // namespace stateport::replay
