// SPDX-License-Identifier: Apache-2.0
// A trace of stateport-replay in any format. The first byte chooses the options.
#include "byte_source.hpp"
#include "workload/trace.hpp"

#include <sstream>
#include <stdexcept>

using namespace stateport;

namespace {

void check_request(const replay::Workload& workload, std::size_t index) {
  const replay::Request& request = workload.request(index);
  fuzz::expect(request.input_tokens >= 1 && request.output_tokens >= 0 && request.arrival_ms >= 0, "counts");
  fuzz::expect(index == 0 || request.arrival_ms >= workload.request(index - 1).arrival_ms, "order of time");
  fuzz::expect(std::ssize(workload.blocks(index)) == request.input_tokens / workload.block_size_tokens(), "blocks");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::ByteSource source(data, size);
  const std::uint8_t choice = source.take();
  replay::TraceOptions options{.block_size_tokens = std::int64_t{1} << choice % 16,
                               .joins_blocks = choice / 64 % 2 == 1,
                               .skip_bad = choice >= 128,
                               .sort = choice / 64 % 2 == 1,
                               .unnamed_blocks_max = 10'000};
  if (const int unit = choice / 16 % 4; unit < 3) options.time_unit = static_cast<replay::TimeUnit>(unit);
  std::istringstream lines(source.rest());
  try {
    replay::Trace trace = replay::read_trace(lines, options);
    for (std::size_t i = 0; i < trace.workload.size(); ++i) check_request(trace.workload, i);
    fuzz::expect(trace.workload.distinct_blocks() <= trace.workload.total_blocks(), "distinct blocks");
    trace.workload.give_hints({.last_turns = true,
                               .tool_calls = true,
                               .idle_times = true,
                               .sessions = true,
                               .continues_auc = choice % 32 >= 16 ? 0.8 : 0});
  } catch (const std::runtime_error&) {
    // Refused with a text.
  }
  return 0;
}
