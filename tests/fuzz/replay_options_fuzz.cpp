// SPDX-License-Identifier: Apache-2.0
// The command line of stateport-replay: arguments between null characters or ends of lines.
#include "byte_source.hpp"
#include "options/parser.hpp"

#include <cmath>
#include <iostream>
#include <streambuf>
#include <string>
#include <variant>
#include <vector>

using namespace stateport;

namespace {

/// Swallows the parser's output while it lives.
class Silence : public std::streambuf {
 public:
  Silence() : out_(std::cout.rdbuf(this)), error_(std::cerr.rdbuf(this)) {}
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
  ~Silence() override {
    std::cout.rdbuf(out_);
    std::cerr.rdbuf(error_);
  }

 private:
  int overflow(int letter) override { return letter; }

  std::streambuf* out_;
  std::streambuf* error_;
};

void check(const replay::CommonOptions& common) {
  fuzz::expect(common.workload.generator.block_size_tokens >= 1 && common.workload.requests_max >= 0, "counts");
  fuzz::expect(std::isfinite(common.workload.hints.continues_auc), "a chance");
}

void check(const replay::PoolOptions& pools) {
  fuzz::expect(pools.slots >= 1 && pools.blocks >= 0, "blocks and slots");
}

void check(const replay::MemoryOptions& memory) {
  fuzz::expect(memory.bytes >= 1 && memory.host_bytes >= 0 && memory.disk_bytes >= 0, "bytes");
  for (const double speed : {memory.speeds.host_bytes_per_s, memory.speeds.file_bytes_per_s, memory.speeds.tokens_per_s,
                             memory.speeds.remote_bytes_per_s, memory.speeds.remote_latency_s})
    fuzz::expect(speed >= 0 && std::isfinite(speed), "speeds");
}

void check_own(const replay::PromptsOptions& options) {
  check(options.pools);
}
void check_own(const replay::ServeOptions& options) {
  check(options.pools);
  fuzz::expect(std::isfinite(options.accept) && options.drafts >= 0, "drafts");
}
void check_own(const replay::BudgetOptions& options) {
  check(options.memory);
}
void check_own(const replay::SweepOptions& options) {
  for (const std::int64_t bytes : options.memory_bytes) fuzz::expect(bytes >= 1, "bytes");
}
void check_own(const replay::SizeOptions& options) {
  check(options.memory);
}
void check_own(const replay::FleetRunOptions& options) {
  check(options.memory);
  fuzz::expect(options.nodes >= 1 && options.remote_bytes >= 0 && options.samples >= 1, "the fleet's numbers");
  fuzz::expect(std::isfinite(options.load), "a load");
  for (const double time_s : {options.event_delay_s, options.mean_life_s, options.down_s})
    fuzz::expect(time_s >= 0 && std::isfinite(time_s), "times");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Silence silence;
  std::vector<std::string> arguments = {"stateport-replay"};
  bool ended = true;
  for (std::size_t i = 0; i < size; ++i) {
    if (ended) arguments.emplace_back();
    ended = data[i] == '\0' || data[i] == '\n';
    if (!ended) arguments.back().push_back(static_cast<char>(data[i]));
  }
  std::vector<char*> given;
  for (std::string& argument : arguments) given.push_back(argument.data());
  given.push_back(nullptr);
  int exit_code = -1;
  const auto command = replay::parse_command(static_cast<int>(arguments.size()), given.data(), exit_code);
  fuzz::expect(command || exit_code == 0 || exit_code == 2, "an exit code");
  if (!command) return 0;
  std::visit(
      [](const auto& options) {
        check(options.common);
        check_own(options);
      },
      *command);
  return 0;
}
