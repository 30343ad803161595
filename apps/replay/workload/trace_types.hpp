// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::replay {

enum class TimeUnit { us, ms, s };

/// The format of a trace. Recognised from its first line that is not blank.
enum class TraceFormat : std::uint8_t {
  mooncake,  ///< JSON lines, from {
  burstgpt,  ///< CSV with a column "Request tokens"
  azure,     ///< CSV with a column "ContextTokens"
  sharegpt,  ///< one JSON array of conversations, from [
  recorded   ///< a header with "stateport_trace", then JSON lines
};

[[nodiscard]] std::string_view name(TraceFormat format) noexcept;

struct TraceOptions {
  std::int64_t block_size_tokens = 512;  ///< tokens per entry of hash_ids
  /// Of a recorded trace: its blocks are put together to blocks of block_size_tokens. False: they stay as they are.
  bool joins_blocks = false;
  bool skip_bad = false;              ///< count malformed lines and conversations instead of throwing
  std::optional<TimeUnit> time_unit;  ///< of timestamps; none: that of the format
  bool sort = false;                  ///< put the requests in the order of their timestamps
  /// Full blocks that all prompts without hash ids may have together. A bound on memory: 8 bytes for each.
  std::int64_t unnamed_blocks_max = std::int64_t{1} << 31;
};

/// The first line of a recorded trace.
struct TraceHeader {
  std::int64_t block_size_tokens = 0;  ///< of the recorded blocks
  std::int64_t began_ms = 0;           ///< times of requests count from here
  std::string model;                   ///< empty: not known, like the next two
  std::string engine;
  std::string version;
  std::optional<std::int64_t> state_bytes;
  std::optional<std::int64_t> kv_bytes_per_token;
  double sample = 1;  ///< the part of the conversations that was recorded

  friend bool operator==(const TraceHeader&, const TraceHeader&) = default;
};

struct Trace {
  Workload workload;
  TraceFormat format = TraceFormat::mooncake;
  bool compressed = false;     ///< by gzip
  std::int64_t bad_lines = 0;  ///< of ShareGPT: conversations
  std::string first_bad_line;  ///< text of the error of the first one skipped

  // Of a recorded trace.
  std::optional<TraceHeader> header;
  std::int64_t first_ms = 0;          ///< when the first request came, which is 0 in the workload
  std::int64_t never_ran = 0;         ///< cancelled requests that the workload does not have
  std::vector<std::string> sessions;  ///< names, by number

  /// For people: the format, and whether it was compressed.
  [[nodiscard]] std::string description() const;
};

/// An entry of a trace that is not a request: "<format>, <place>: <reason>". The place is "line N" or "conversation N".
class TraceError : public std::runtime_error {
 public:
  TraceError(TraceFormat format, const std::string& place, const std::string& reason);
  [[nodiscard]] TraceFormat format() const noexcept { return format_; }
  [[nodiscard]] const std::string& place() const noexcept { return place_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

 private:
  TraceFormat format_;
  std::string place_;
  std::string reason_;
};

}  // namespace stateport::replay
