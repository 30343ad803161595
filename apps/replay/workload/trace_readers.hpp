// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/trace_types.hpp"

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Shared by the readers of all formats. read_trace() alone calls them.
namespace stateport::replay {

/// The most tokens of a prompt, an answer or a turn.
inline constexpr std::int64_t longest_tokens = std::int64_t{1} << 40;

/// The reason why an entry is no request.
struct Malformed {
  std::string reason;
};

/// Throws Malformed: "<name> = <value> (<rule>)".
[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view rule);
/// The text as JSON shows it, shortened to about a line.
[[nodiscard]] std::string quoted(std::string_view text);

/// The lines of a trace that are not blank. A byte order mark before the first and a carriage return at the end of a
/// line are no part of it.
class TraceLines {
 public:
  explicit TraceLines(std::istream& stream) : stream_(stream) {}

  /// Goes to the next one. False: there is none.
  bool next();
  [[nodiscard]] std::string_view text() const noexcept { return text_; }
  /// From 1. Blank lines count.
  [[nodiscard]] std::int64_t number() const noexcept { return number_; }
  /// The current line and all that follow, behind as many empty lines as there were lines before.
  [[nodiscard]] std::string rest();

 private:
  std::istream& stream_;
  std::string text_;
  std::int64_t number_ = 0;
};

/// Times of requests, as numbers of a unit.
class TraceClock {
 public:
  TraceClock(const TraceOptions& options, TimeUnit unit_of_format)
      : unit_(options.time_unit.value_or(unit_of_format)), sorts_(options.sort) {}

  /// Rounded to milliseconds: replay has no use for fractions. No value: not a number of this unit in the range of
  /// rule().
  [[nodiscard]] std::optional<std::int64_t> milliseconds(double time) const noexcept;
  [[nodiscard]] std::string rule() const;
  /// Whether a request may not come so early, because an earlier one came later and nothing is sorted.
  [[nodiscard]] bool falls(std::int64_t arrival_ms) const noexcept { return !sorts_ && arrival_ms < now_ms_; }
  [[nodiscard]] std::string order_rule() const;
  /// Of the last request.
  [[nodiscard]] std::int64_t now_ms() const noexcept { return now_ms_; }
  void set(std::int64_t arrival_ms) noexcept { now_ms_ = arrival_ms; }

 private:
  TimeUnit unit_;
  bool sorts_;
  std::int64_t now_ms_ = 0;
};

/// Throws a TraceError, or counts the entry in the trace if the options say so.
void refuse_entry(Trace& trace, const TraceOptions& options, const std::string& place, const Malformed& malformed);

/// Requests without hash ids, until all are read.
class UnnamedRequests {
 public:
  explicit UnnamedRequests(const TraceOptions& options) : options_(options) {}

  [[nodiscard]] std::int64_t blocks_of(const Request& request) const noexcept {
    return request.input_tokens / options_.block_size_tokens;
  }
  /// Throws Malformed if the prompts, with `blocks` blocks more, would have more than the options allow.
  void require_room(std::int64_t blocks) const;
  void add(const Request& request);
  /// Adds all to the workload, in the order of their arrivals if the options say so. `rebase`: the first comes at 0.
  void move_to(Workload& workload, bool rebase);

 private:
  TraceOptions options_;
  std::int64_t blocks_ = 0;
  std::vector<Request> requests_;
};

/// The format of a CSV file with this first line; none: of no such file.
[[nodiscard]] std::optional<TraceFormat> csv_format(std::string_view header);

/// The header of a recorded trace; none: another line. Throws TraceError for a wrong header.
[[nodiscard]] std::optional<TraceHeader> read_header(const TraceLines& lines, const TraceOptions& options);

/// Read from the current line on, which is the first. The format is that of the trace.
void read_mooncake(TraceLines& lines, const TraceOptions& options, Trace& trace);
/// From the header on, which the trace has already. Arrivals are since 1970, in no order.
void read_recorded(TraceLines& lines, const TraceOptions& options, Trace& trace);
void read_csv(TraceLines& lines, const TraceOptions& options, Trace& trace);
void read_sharegpt(TraceLines& lines, const TraceOptions& options, Trace& trace);

}  // namespace stateport::replay
