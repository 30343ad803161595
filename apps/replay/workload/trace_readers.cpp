// SPDX-License-Identifier: Apache-2.0
#include "workload/trace_readers.hpp"

#include "workload/unnamed_prompts.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace stateport::replay {
namespace {

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

constexpr double longest_ms = 1e15;  // 30 thousand years: beyond it a double has no milliseconds left

}  // namespace

void refuse(std::string_view name, std::string_view value, std::string_view rule) {
  throw Malformed{fmt::format("{} = {} ({})", name, value, rule)};
}

std::string quoted(std::string_view text) {
  constexpr std::size_t shown_bytes = 80;
  const bool whole = text.size() <= shown_bytes;
  const nlohmann::json shown = std::string(text.substr(0, shown_bytes)) + (whole ? "" : "…");
  return shown.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool TraceLines::next() {
  while (std::getline(stream_, text_)) {
    ++number_;
    constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
    if (number_ == 1 && text_.starts_with(byte_order_mark)) text_.erase(0, byte_order_mark.size());
    if (text_.ends_with('\r')) text_.pop_back();
    if (text_.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
  return false;
}

std::string TraceLines::rest() {
  constexpr std::size_t piece_bytes = std::size_t{1} << 16;
  std::string all(static_cast<std::size_t>(number_ - 1), '\n');
  all += text_;
  if (!stream_.eof()) all += '\n';
  for (std::string piece(piece_bytes, '\0'); stream_;) {
    stream_.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    all.append(piece, 0, static_cast<std::size_t>(stream_.gcount()));
  }
  return all;
}

std::optional<std::int64_t> TraceClock::milliseconds(double time) const noexcept {
  const double unit_ms = unit_of(unit_).ms;
  if (!(time >= 0 && time <= longest_ms / unit_ms)) return std::nullopt;
  return std::llround(time * unit_ms);
}

std::string TraceClock::rule() const {
  const UnitOfTime unit = unit_of(unit_);
  return fmt::format("must be a number of {}, 0 to {:g}", unit.name, longest_ms / unit.ms);
}

std::string TraceClock::order_rule() const {
  return fmt::format("must not be before that of an earlier request, {} ms, unless sorted", now_ms_);
}

void refuse_entry(Trace& trace, const TraceOptions& options, const std::string& place, const Malformed& malformed) {
  const TraceError error(trace.format, place, malformed.reason);
  if (!options.skip_bad) throw error;
  if (trace.bad_lines++ == 0) trace.first_bad_line = error.what();
}

void UnnamedRequests::require_room(std::int64_t blocks) const {
  if (blocks > options_.unnamed_blocks_max - blocks_)
    throw Malformed{fmt::format("prompts have more than {} blocks of {} tokens together", options_.unnamed_blocks_max,
                                options_.block_size_tokens)};
}

void UnnamedRequests::add(const Request& request) {
  blocks_ += blocks_of(request);
  requests_.push_back(request);
}

void UnnamedRequests::move_to(Workload& workload, bool rebase) {
  // Sorted before prompts are made: a prompt continues the one before it in its session.
  if (options_.sort) std::ranges::stable_sort(requests_, {}, &Request::arrival_ms);
  const std::int64_t begin_ms = rebase && !requests_.empty() ? requests_.front().arrival_ms : 0;
  UnnamedPrompts prompts(options_.block_size_tokens);
  for (Request& request : requests_) {
    request.arrival_ms -= begin_ms;
    workload.add(request, prompts.blocks_of(request));
  }
}

}  // namespace stateport::replay
