// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.hpp"

#include "workload/gzip.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>
#include <numeric>
#include <vector>

namespace stateport::replay {
namespace {

constexpr const char* known_formats =
    "a trace is Mooncake JSON lines, BurstGPT CSV, Azure CSV or ShareGPT JSON, plain or in gzip";

Workload in_order_of_time(const Workload& workload) {
  std::vector<std::size_t> order(workload.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return workload.request(index).arrival_ms; });
  Workload sorted(workload.block_size_tokens());
  for (const std::size_t index : order) sorted.add(workload.request(index), workload.blocks(index));
  return sorted;
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
  read_format(lines, options, trace);
  check_stream();
  if (trace.workload.size() == 0)
    throw std::runtime_error(fmt::format("{}: no request in it ({} malformed {})", name(trace.format), trace.bad_lines,
                                         trace.format == TraceFormat::sharegpt ? "conversations" : "lines"));
  return trace;
}

}  // namespace

Trace read_trace(std::istream& stream, const TraceOptions& options) {
  constexpr int first_byte_of_gzip = 0x1f;  // no text begins with it
  if (stream.peek() != first_byte_of_gzip) return read_text(stream, options);
  const std::unique_ptr<std::streambuf> plain = make_gzip_reader(*stream.rdbuf());
  std::istream text(plain.get());
  text.exceptions(std::ios::badbit);  // an exception of the reader passes on
  Trace trace = read_text(text, options);
  trace.compressed = true;
  return trace;
}

Trace read_trace(const std::filesystem::path& file, const TraceOptions& options) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error(fmt::format("{}: cannot be opened", file.string()));
  try {
    return read_trace(stream, options);
  } catch (const TraceError& error) {
    throw TraceError(error.format(), error.place(), fmt::format("{} ({})", error.reason(), file.string()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace stateport::replay
