// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/trace_types.hpp"

#include <filesystem>
#include <istream>
#include <span>

namespace stateport::replay {

/// Reads a trace in the order of service. Recognises its format by its content; decompresses gzip.
///
/// Mooncake: one JSON object per line. `session` may be called `session_id`. Unit of time: ms.
///
///     {"timestamp": number, "input_length": tokens, "output_length": tokens, "hash_ids": [integer…], "session": name}
///
/// hash_ids has floor or ceil of input_length / block size entries; an entry beyond the full blocks names the partial
/// last block and is dropped.
///
/// Recorded by stateport.record: a header, then lines as of Mooncake.
///
///     {"stateport_trace": 1, "block": tokens, "began": ms, "model": text, "state_bytes": integer,
///      "kv_bytes_per_token": integer, "engine": text, "version": text, "sample": 0 to 1}
///     {…, "namespace": name, "hit_tokens": tokens, "hit_tier": text, "lost_reason": text, "cancelled": true}
///
/// A hash id names the whole prefix up to the end of its block. Requests of different namespaces share nothing.
/// Cancelled requests without hit_tokens never ran, and are counted and left out. Requests are sorted by their times,
/// and the first comes at 0.
///
/// BurstGPT: columns Timestamp, Request tokens, Response tokens, Session ID. Unit of time: s. Azure: columns TIMESTAMP
/// (YYYY-MM-DD HH:MM:SS, with or without a fraction and an offset from UTC), ContextTokens, GeneratedTokens; the first
/// request comes at 0. Only the column of input tokens must be there. A field in quotes may hold commas.
///
/// ShareGPT: conversations as turns with token counts. Unit of time: ms.
///
///     [{"conversations": [{"from": "human", "tokens": 12, "timestamp": number}, {"from": "gpt", "tokens": 40}, …]}, …]
///
/// `from` is human or user, gpt or assistant, or system. Each turn of a human is a request of the session that the
/// conversation is. Its input are all turns up to it, its output is the next turn if that is an answer.
///
/// Of all formats: a request without a timestamp has that of the request before it. One without an output length
/// generated one token. A session is a text, or in JSON an integer, and may be missing: requests get the numbers 0, 1 …
/// of their sessions. Other fields and blank lines are ignored. Timestamps are rounded to milliseconds (dates down),
/// and must not fall unless options.sort is set, which keeps the order of equal ones. A prompt without hash ids has
/// blocks as UnnamedPrompts says.
///
/// Throws TraceError for a malformed entry unless skip_bad, and for text that is no JSON at all in ShareGPT.
/// Throws std::runtime_error: no known format, a unit of time for dates, damaged gzip, gzip where zlib was missing when
/// this was built, no request left.
[[nodiscard]] Trace read_trace(std::istream& stream, const TraceOptions& options = {});

/// Also throws std::runtime_error for a file that cannot be opened or read; every message names the file.
[[nodiscard]] Trace read_trace(const std::filesystem::path& file, const TraceOptions& options = {});

/// Several files of a recorded trace, of which some may have no request, or one file of any format: their requests in
/// the order of their times. Also throws std::runtime_error: several files of which one was not recorded, or whose
/// headers differ in more than engine, version and begin. Precondition: files is not empty.
[[nodiscard]] Trace read_traces(std::span<const std::filesystem::path> files, const TraceOptions& options = {});

}  // namespace stateport::replay
