// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

using nlohmann::json;

/// The reason why a line is no request.
struct Malformed {
  std::string reason;
};

/// For a text: of an array or an object its type alone, because dump() recurses into what may be nested deeply.
std::string shown(const json& value) {
  return value.is_structured() ? value.type_name() : value.dump();
}

const json& field(const json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end()) throw Malformed{fmt::format("no field \"{}\"", name)};
  return *found;
}

std::int64_t integer(const json& value, const char* name) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}))
    throw Malformed{fmt::format("{} = {} (must be a 64-bit integer)", name, shown(value))};
  return value.get<std::int64_t>();
}

std::int64_t bounded(const json& line, const char* name, std::int64_t low, std::int64_t high) {
  const std::int64_t value = integer(field(line, name), name);
  if (value < low || value > high) throw Malformed{fmt::format("{} = {} (must be {} to {})", name, value, low, high)};
  return value;
}

struct UnitOfTime {
  const char* name;
  double ms;
};

UnitOfTime unit_of(TimeUnit unit) noexcept {
  switch (unit) {
    case TimeUnit::us:
      return {"us", 1e-3};
    case TimeUnit::s:
      return {"s", 1e3};
    default:
      return {"ms", 1};
  }
}

/// Some traces give fractions of a millisecond; replay has no use for them.
std::int64_t milliseconds(const json& value, TimeUnit time_unit) {
  constexpr double longest_ms = 1e15;  // 30 thousand years: beyond it a double has no milliseconds left
  const UnitOfTime unit = unit_of(time_unit);
  const double time = value.is_number() ? value.get<double>() : std::nan("");
  if (!(time >= 0 && time <= longest_ms / unit.ms))
    throw Malformed{fmt::format("timestamp = {} (must be a number of {}, 0 to {:g})", shown(value), unit.name,
                                longest_ms / unit.ms)};
  return std::llround(time * unit.ms);
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

/// Reads the lines of one trace.
class LineReader {
 public:
  explicit LineReader(const TraceOptions& options) : options_(options) {}

  /// Throws Malformed, nothing changed.
  void add(std::string_view text, Workload& workload) {
    constexpr std::int64_t longest_tokens = std::int64_t{1} << 40;
    const json line = parsed(text);
    if (!line.is_object()) throw Malformed{"not a JSON object"};
    Request request{.arrival_ms = last_ms_, .input_tokens = bounded(line, "input_length", 1, longest_tokens)};
    if (const auto time = line.find("timestamp"); time != line.end())
      request.arrival_ms = milliseconds(*time, options_.time_unit);
    if (!options_.sort && request.arrival_ms < last_ms_)
      throw Malformed{fmt::format("timestamp = {} (must not be before that of an earlier line, {} ms, unless sorted)",
                                  shown(line["timestamp"]), last_ms_)};
    request.output_tokens = line.contains("output_length") ? bounded(line, "output_length", 0, longest_tokens) : 1;
    read_identities(field(line, "hash_ids"), request.input_tokens, options_.block_size_tokens, identities_);
    request.session = session(line);
    workload.add(request, identities_);
    last_ms_ = request.arrival_ms;
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
        throw Malformed{fmt::format("{} = {} (must be an integer or a text)", name, shown(*found))};
      return sessions_.try_emplace(*found, std::ssize(sessions_)).first->second;
    }
    return -1;
  }

  TraceOptions options_;
  std::int64_t last_ms_ = 0;
  std::map<json, std::int64_t> sessions_;
  std::vector<BlockIdentity> identities_;
};

Workload in_order_of_time(const Workload& workload) {
  std::vector<std::size_t> order(workload.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return workload.request(index).arrival_ms; });
  Workload sorted(workload.block_size_tokens());
  for (const std::size_t index : order) sorted.add(workload.request(index), workload.blocks(index));
  return sorted;
}

bool blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

TraceError::TraceError(std::int64_t line, const std::string& reason)
    : std::runtime_error(fmt::format("line {}: {}", line, reason)), line_(line), reason_(reason) {}

Trace read_trace(std::istream& lines, const TraceOptions& options) {
  Trace trace{.workload = Workload(options.block_size_tokens)};
  LineReader reader(options);
  std::string text;
  for (std::int64_t number = 1; std::getline(lines, text); ++number) {
    if (blank(text)) continue;
    try {
      reader.add(text, trace.workload);
    } catch (const Malformed& malformed) {
      const TraceError error(number, malformed.reason);
      if (!options.skip_bad) throw error;
      if (trace.bad_lines++ == 0) trace.first_bad_line = error.what();
    }
  }
  if (lines.bad()) throw std::runtime_error("reading failed");
  if (trace.workload.size() == 0)
    throw std::runtime_error(fmt::format("no request in it ({} malformed lines)", trace.bad_lines));
  if (options.sort) trace.workload = in_order_of_time(trace.workload);
  return trace;
}

Trace read_trace(const std::filesystem::path& file, const TraceOptions& options) {
  std::ifstream lines(file, std::ios::binary);
  if (!lines) throw std::runtime_error(fmt::format("{}: cannot be opened", file.string()));
  try {
    return read_trace(lines, options);
  } catch (const TraceError& error) {
    throw TraceError(error.line(), fmt::format("{} ({})", error.reason(), file.string()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace stateport::replay
