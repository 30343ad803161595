// SPDX-License-Identifier: Apache-2.0
#include "workload/date_time.hpp"
#include "workload/trace_readers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

namespace stateport::replay {
namespace {

/// The columns of a format. The one of input tokens must be there, and tells the format.
struct CsvLayout {
  TraceFormat format;
  std::string_view time;
  bool dates;  ///< in the column of times, instead of seconds
  std::string_view input;
  std::string_view output;
  std::string_view session;  ///< empty: none
};

constexpr CsvLayout csv_layouts[] = {
    {TraceFormat::burstgpt, "Timestamp", false, "Request tokens", "Response tokens", "Session ID"},
    {TraceFormat::azure, "TIMESTAMP", true, "ContextTokens", "GeneratedTokens", ""}};

/// Blanks around a field do not count.
std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// A field in quotes may hold commas. Two quotes in it, which stand for one, stay two: such a text is compared alone.
/// Throws Malformed for a quote without its end.
void split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (std::size_t begin = 0;;) {
    bool in_quotes = false;
    std::size_t end = begin;
    for (; end < line.size() && (in_quotes || line[end] != ','); ++end)
      if (line[end] == '"') in_quotes = !in_quotes;
    if (in_quotes) throw Malformed{"a quote has no end"};
    std::string_view one = trimmed(line.substr(begin, end - begin));
    if (one.size() >= 2 && one.front() == '"' && one.back() == '"') one = one.substr(1, one.size() - 2);
    fields.push_back(one);
    if (end == line.size()) return;
    begin = end + 1;
  }
}

std::int64_t parse_tokens(std::string_view text, std::string_view column, std::int64_t low) {
  std::int64_t tokens = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  if (error != std::errc() || end != text.data() + text.size() || tokens < low || tokens > longest_tokens)
    refuse(column, quoted(text), fmt::format("must be an integer, {} to {}", low, longest_tokens));
  return tokens;
}

/// Reads the lines of one file.
class CsvReader {
 public:
  /// Throws Malformed for a header that split() refuses.
  CsvReader(const CsvLayout& layout, std::string_view header, const TraceOptions& options)
      : layout_(layout), clock_(options, TimeUnit::s), requests_(options) {
    split(header, fields_);
    columns_ = fields_.size();
    time_ = column(layout.time);
    input_ = column(layout.input);
    output_ = column(layout.output);
    session_ = column(layout.session);
  }

  /// Throws Malformed, nothing changed.
  void add(std::string_view line) {
    split(line, fields_);
    if (fields_.size() != columns_) throw Malformed{fmt::format("{} values for {} columns", fields_.size(), columns_)};
    Request request{.arrival_ms = clock_.now_ms(), .input_tokens = parse_tokens(fields_[input_], layout_.input, 1)};
    if (const std::string_view time = value(time_); !time.empty()) request.arrival_ms = arrival_ms(time);
    const std::string_view output = value(output_);
    request.output_tokens = output.empty() ? 1 : parse_tokens(output, layout_.output, 0);
    requests_.require_room(requests_.blocks_of(request));
    if (const std::string_view session = value(session_); !session.empty())
      request.session = sessions_.try_emplace(std::string(session), std::ssize(sessions_)).first->second;
    requests_.add(request);
    clock_.set(request.arrival_ms);
  }

  void move_to(Workload& workload) { requests_.move_to(workload, layout_.dates); }

 private:
  [[nodiscard]] std::size_t column(std::string_view name) const {
    return name.empty() ? columns_ : static_cast<std::size_t>(std::ranges::find(fields_, name) - fields_.begin());
  }
  /// Empty where the file has no such column.
  [[nodiscard]] std::string_view value(std::size_t column) const {
    return column < columns_ ? fields_[column] : std::string_view();
  }
  [[nodiscard]] std::int64_t arrival_ms(std::string_view text) const {
    if (layout_.dates) {
      const auto date_ms = parse_date_time(text);
      if (!date_ms) refuse(layout_.time, quoted(text), "must be a time as 2023-11-16 18:17:03.98, from 1970 on");
      if (clock_.falls(*date_ms))
        refuse(layout_.time, quoted(text), "must not be before that of an earlier request, unless sorted");
      return *date_ms;
    }
    double time = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), time);
    const bool number = error == std::errc() && end == text.data() + text.size();
    const auto ms = clock_.milliseconds(number ? time : -1);
    if (!ms) refuse(layout_.time, quoted(text), clock_.rule());
    if (clock_.falls(*ms)) refuse(layout_.time, quoted(text), clock_.order_rule());
    return *ms;
  }

  const CsvLayout& layout_;
  TraceClock clock_;
  UnnamedRequests requests_;
  std::unordered_map<std::string, std::int64_t> sessions_;
  std::vector<std::string_view> fields_;  ///< of the last line
  std::size_t columns_ = 0;
  // Numbers of columns; columns_ for one that the file does not have.
  std::size_t time_ = 0;
  std::size_t input_ = 0;
  std::size_t output_ = 0;
  std::size_t session_ = 0;
};

}  // namespace

std::optional<TraceFormat> csv_format(std::string_view header) {
  std::vector<std::string_view> fields;
  try {
    split(header, fields);
  } catch (const Malformed&) {
    return std::nullopt;
  }
  for (const CsvLayout& layout : csv_layouts)
    if (std::ranges::find(fields, layout.input) != fields.end()) return layout.format;
  return std::nullopt;
}

void read_csv(TraceLines& lines, const TraceOptions& options, Trace& trace) {
  const CsvLayout& layout = *std::ranges::find(csv_layouts, trace.format, &CsvLayout::format);
  if (layout.dates && options.time_unit)
    throw std::runtime_error(fmt::format("{}: its times are dates, which have no unit", name(trace.format)));
  CsvReader reader(layout, lines.text(), options);
  while (lines.next()) {
    try {
      reader.add(lines.text());
    } catch (const Malformed& malformed) {
      refuse_entry(trace, options, fmt::format("line {}", lines.number()), malformed);
    }
  }
  reader.move_to(trace.workload);
}

}  // namespace stateport::replay
