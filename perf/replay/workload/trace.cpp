// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
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

/// Some traces give fractions of a millisecond; replay has no use for them.
std::int64_t milliseconds(const json& value) {
  constexpr double longest_ms = 1e15;  // 30 thousand years: beyond it a double has no milliseconds left
  const double ms = value.is_number() ? value.get<double>() : std::nan("");
  if (!(ms >= 0 && ms <= longest_ms))
    throw Malformed{fmt::format("timestamp = {} (must be a number of ms, not negative)", shown(value))};
  return static_cast<std::int64_t>(ms);
}

void read_identities(const json& ids, std::int64_t input_tokens, std::int64_t block_size,
                     std::vector<BlockIdentity>& out) {
  if (!ids.is_array()) throw Malformed{"hash_ids is not an array"};
  const std::int64_t floor = input_tokens / block_size;
  const std::int64_t ceil = floor + (input_tokens % block_size != 0);
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count != floor && count != ceil)
    throw Malformed{fmt::format("{} hash_ids for {} tokens (must be {} or {} blocks of {})", count, input_tokens, floor,
                                ceil, block_size)};
  out.clear();
  for (const json& id : ids) {
    if (!id.is_number_integer()) throw Malformed{fmt::format("a hash id is {} (must be an integer)", shown(id))};
    out.push_back(id.get<BlockIdentity>());
  }
}

void add_line(std::string_view text, Workload& workload, std::vector<BlockIdentity>& identities) {
  constexpr std::int64_t longest_tokens = std::int64_t{1} << 40;
  try {
    const json line = json::parse(text);
    if (!line.is_object()) throw Malformed{"not a JSON object"};
    Request request{.arrival_ms = milliseconds(field(line, "timestamp")),
                    .input_tokens = bounded(line, "input_length", 1, longest_tokens),
                    .output_tokens = bounded(line, "output_length", 0, longest_tokens)};
    if (const auto session = line.find("session"); session != line.end())
      request.session = integer(*session, "session");
    read_identities(field(line, "hash_ids"), request.input_tokens, workload.block_size_tokens(), identities);
    workload.add(request, identities);
  } catch (const json::exception& error) {
    throw Malformed{error.what()};
  }
}

bool blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

TraceError::TraceError(std::int64_t line, const std::string& reason)
    : std::runtime_error(fmt::format("line {}: {}", line, reason)), line_(line), reason_(reason) {}

Trace read_trace(std::istream& lines, const TraceOptions& options) {
  Trace trace{.workload = Workload(options.block_size_tokens)};
  std::vector<BlockIdentity> identities;
  std::string text;
  for (std::int64_t number = 1; std::getline(lines, text); ++number) {
    if (blank(text)) continue;
    try {
      add_line(text, trace.workload, identities);
    } catch (const Malformed& malformed) {
      const TraceError error(number, malformed.reason);
      if (!options.skip_bad) throw error;
      if (trace.bad_lines++ == 0) trace.first_bad_line = error.what();
    }
  }
  if (lines.bad()) throw std::runtime_error("reading failed");
  if (trace.workload.size() == 0)
    throw std::runtime_error(fmt::format("no request in it ({} malformed lines)", trace.bad_lines));
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
