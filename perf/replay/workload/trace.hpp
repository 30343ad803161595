// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>
#include <filesystem>
#include <istream>
#include <stdexcept>
#include <string>

namespace stateport::replay {

enum class TimeUnit { us, ms, s };

struct TraceOptions {
  std::int64_t block_size_tokens = 512;  ///< tokens per entry of hash_ids
  bool skip_bad = false;                 ///< count malformed lines instead of throwing
  TimeUnit time_unit = TimeUnit::ms;     ///< of timestamp
  bool sort = false;                     ///< put the requests in the order of their timestamps
};

struct Trace {
  Workload workload;
  std::int64_t bad_lines = 0;
  std::string first_bad_line;  ///< "line N: reason" of the first one skipped
};

/// A line that is not a request: "line N: reason".
class TraceError : public std::runtime_error {
 public:
  TraceError(std::int64_t line, const std::string& reason);
  [[nodiscard]] std::int64_t line() const noexcept { return line_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  std::int64_t line_;
  std::string reason_;
};

/// Reads JSON lines, one request per line, in the order of service:
///
///     {"timestamp": number, "input_length": tokens, "output_length": tokens, "hash_ids": [integer…], "session": name}
///
/// hash_ids has floor or ceil of input_length / block size entries; an entry beyond the full blocks names the partial
/// last block and is dropped. A line without timestamp has that of the line before it. A line without output_length
/// generated one token. The session is an integer or a text, is called "session" or "session_id", and may be missing:
/// requests get the numbers 0, 1 … of their sessions. Other fields and empty lines are ignored. Timestamps are
/// rounded to milliseconds, and must not fall unless options.sort is set, which keeps the order of equal ones.
/// Throws TraceError for a malformed line unless skip_bad, and std::runtime_error if no request is left.
[[nodiscard]] Trace read_trace(std::istream& lines, const TraceOptions& options = {});

/// Also throws std::runtime_error for a file that cannot be opened or read; every message names the file.
[[nodiscard]] Trace read_trace(const std::filesystem::path& file, const TraceOptions& options = {});

}  // namespace stateport::replay
