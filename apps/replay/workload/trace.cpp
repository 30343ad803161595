// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include "workload/gzip.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

constexpr const char* known_formats =
    "a trace is Mooncake JSON lines, a stateport trace, BurstGPT CSV, Azure CSV or ShareGPT JSON, plain or in gzip";

/// `earlier_ms`: by how much every request comes earlier.
Workload in_order_of_time(const Workload& workload, std::int64_t earlier_ms = 0) {
  std::vector<std::size_t> order(workload.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return workload.request(index).arrival_ms; });
  Workload sorted(workload.block_size_tokens());
  for (const std::size_t index : order) {
    Request request = workload.request(index);
    request.arrival_ms -= earlier_ms;
    sorted.add(request, workload.blocks(index));
  }
  return sorted;
}

/// Sorts a recorded trace whose arrivals are since 1970, and begins it at 0. Precondition: it has a request.
void begin_at_first(Trace& trace) {
  trace.first_ms = trace.workload.request(0).arrival_ms;
  for (std::size_t index = 1; index < trace.workload.size(); ++index)
    trace.first_ms = std::min(trace.first_ms, trace.workload.request(index).arrival_ms);
  trace.workload = in_order_of_time(trace.workload, trace.first_ms);
}

std::optional<TraceFormat> format_of(std::string_view first_line) {
  switch (first_line[first_line.find_first_not_of(" \t\r")]) {
    case '{':
      return TraceFormat::mooncake;
    case '[':
      return TraceFormat::sharegpt;
    default:
      return csv_format(first_line);
  }
}

void read_format(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  switch (trace.format) {
    case TraceFormat::mooncake:
      read_mooncake(lines, options, trace);
      if (options.sort) trace.workload = in_order_of_time(trace.workload);
      return;
    case TraceFormat::recorded:
      trace.workload = Workload(options.joins_blocks ? options.block_size_tokens : trace.header->block_size_tokens);
      return read_recorded(lines, options, trace);
    case TraceFormat::burstgpt:
    case TraceFormat::azure:
      return read_csv(lines, options, trace);
    case TraceFormat::sharegpt:
      return read_sharegpt(lines, options, trace);
  }
}

Trace read_text(std::istream& stream, const TraceOptions& options) {
  Trace trace{.workload = Workload(options.block_size_tokens)};
  TraceLines lines(stream);
  const auto check_stream = [&] {
    if (stream.bad()) throw std::runtime_error("reading failed");
  };
  const bool empty = !lines.next();
  check_stream();
  if (empty) throw std::runtime_error(fmt::format("nothing in it ({})", known_formats));
  const auto format = format_of(lines.text());
  if (!format)
    throw std::runtime_error(
        fmt::format("no known format, from line {}: {} ({})", lines.number(), quoted(lines.text()), known_formats));
  trace.format = *format;
  if (trace.format == TraceFormat::mooncake) trace.header = read_header(lines, options);
  if (trace.header) trace.format = TraceFormat::recorded;
  read_format(lines, options, trace);
  check_stream();
  return trace;
}

/// The trace may have no request. Arrivals of a recorded one are since 1970, in no order.
Trace read_stream(std::istream& stream, const TraceOptions& options) {
  constexpr int first_byte_of_gzip = 0x1f;  // no text begins with it
  if (stream.peek() != first_byte_of_gzip) return read_text(stream, options);
  const std::unique_ptr<std::streambuf> plain = make_gzip_reader(*stream.rdbuf());
  std::istream text(plain.get());
  text.exceptions(std::ios::badbit);  // an exception of the reader passes on
  Trace trace = read_text(text, options);
  trace.compressed = true;
  return trace;
}

/// Throws if there are none.
Trace with_requests(Trace trace) {
  if (trace.workload.size() == 0)
    throw std::runtime_error(fmt::format("{}: no request in it ({} malformed {})", name(trace.format), trace.bad_lines,
                                         trace.format == TraceFormat::sharegpt ? "conversations" : "lines"));
  if (trace.header) begin_at_first(trace);
  return trace;
}

/// `alone`: see with_requests(); else read_stream().
Trace read_file(const std::filesystem::path& file, const TraceOptions& options, bool alone) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(fmt::format("{}: cannot be opened", file.string()));
  try {
    Trace trace = read_stream(stream, options);
    if (!alone) return trace;
    return with_requests(std::move(trace));
  } catch (const TraceError& error) {
    throw TraceError(error.format(), error.place(), fmt::format("{} ({})", error.reason(), file.string()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

std::string text_of_bytes(const std::optional<std::int64_t>& number) {
  return number ? fmt::to_string(*number) : "not there";
}

/// Throws if requests of one are no requests of the other's engine.
void require_alike(const TraceHeader& first, const TraceHeader& other) {
  const auto require_equal = [](const char* name, const std::string& wanted, const std::string& given) {
    if (wanted != given) throw std::runtime_error(fmt::format("{} = {} (of the first file: {})", name, given, wanted));
  };
  require_equal("block", fmt::to_string(first.block_size_tokens), fmt::to_string(other.block_size_tokens));
  require_equal("model", replay::quoted(first.model), replay::quoted(other.model));
  require_equal("state_bytes", text_of_bytes(first.state_bytes), text_of_bytes(other.state_bytes));
  require_equal("kv_bytes_per_token", text_of_bytes(first.kv_bytes_per_token), text_of_bytes(other.kv_bytes_per_token));
  require_equal("sample", fmt::to_string(first.sample), fmt::to_string(other.sample));
}

/// Collects the files of one recorded trace.
class TraceMerger {
 public:
  explicit TraceMerger(Trace first) : all_(std::move(first)) {
    for (const std::string& session : all_.sessions) numbers_.try_emplace(session, std::ssize(numbers_));
  }

  void add(const Trace& trace) {
    require_alike(*all_.header, *trace.header);
    for (std::size_t index = 0; index < trace.workload.size(); ++index) {
      Request request = trace.workload.request(index);
      if (request.session >= 0)
        request.session =
            numbers_.try_emplace(trace.sessions[static_cast<std::size_t>(request.session)], std::ssize(numbers_))
                .first->second;
      all_.workload.add(request, trace.workload.blocks(index));
    }
    all_.compressed = all_.compressed || trace.compressed;
    all_.never_ran += trace.never_ran;
    if (all_.bad_lines == 0) all_.first_bad_line = trace.first_bad_line;
    all_.bad_lines += trace.bad_lines;
  }
  [[nodiscard]] Trace take() {
    all_.sessions.resize(numbers_.size());
    for (const auto& [session, number] : numbers_) all_.sessions[static_cast<std::size_t>(number)] = session;
    return std::move(all_);
  }

 private:
  Trace all_;
  std::map<std::string, std::int64_t> numbers_;  ///< of sessions
};

}  // namespace

Trace read_trace(std::istream& stream, const TraceOptions& options) {
  return with_requests(read_stream(stream, options));
}

Trace read_trace(const std::filesystem::path& file, const TraceOptions& options) {
  return read_file(file, options, true);
}

Trace read_traces(std::span<const std::filesystem::path> files, const TraceOptions& options) {
  if (files.size() == 1) return read_trace(files.front(), options);
  Trace first = read_file(files.front(), options, false);
  const auto require_recorded = [](const Trace& trace, const std::filesystem::path& file) {
    if (!trace.header)
      throw std::runtime_error(
          fmt::format("{}: {} (several files must be of a stateport trace)", file.string(), trace.description()));
  };
  require_recorded(first, files.front());
  TraceMerger merger(std::move(first));
  for (const std::filesystem::path& file : files.subspan(1)) {
    const Trace trace = read_file(file, options, false);
    require_recorded(trace, file);
    try {
      merger.add(trace);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
    }
  }
  return with_requests(merger.take());
}

}  // namespace stateport::replay
