// SPDX-License-Identifier: Apache-2.0
// The command line of stateport-replay: arguments between null characters or ends of lines.
#include "byte_source.hpp"
#include "options.hpp"

#include <cmath>
#include <iostream>
#include <streambuf>
#include <string>
#include <vector>

using namespace stateport;

namespace {

/// Takes what the parser prints, as long as it lives.
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

void check_options(const replay::Options& options) {
  fuzz::expect(options.generator.block_size_tokens >= 1 && options.slots >= 1 && options.blocks >= 0, "counts");
  fuzz::expect(options.budget_bytes >= 0 && options.host_bytes >= 0 && options.disk_bytes >= 0, "bytes");
  fuzz::expect(options.fleet.remote_bytes >= 0 && options.fleet.samples >= 1, "the fleet's numbers");
  fuzz::expect(
      std::isfinite(options.accept) && std::isfinite(options.fleet.load) && std::isfinite(options.hints.continues_auc),
      "finite numbers");
  for (const double speed : {options.speeds.host_bytes_per_s, options.speeds.file_bytes_per_s,
                             options.speeds.tokens_per_s, options.speeds.remote_bytes_per_s,
                             options.speeds.remote_latency_s, options.fleet.event_delay_s, options.fleet.down_s})
    fuzz::expect(speed >= 0 && std::isfinite(speed), "speeds and times");
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
  const auto options = replay::parse_options(static_cast<int>(arguments.size()), given.data(), exit_code);
  fuzz::expect(options || exit_code == 0 || exit_code == 2, "an exit code");
  if (options) check_options(*options);
  return 0;
}
