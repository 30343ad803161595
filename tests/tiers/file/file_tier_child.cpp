// SPDX-License-Identifier: Apache-2.0
// A process of its own, for tests of file tiers that need one: to be killed, to be another user, to share a folder.
//
//   file-tier-child kill FOLDER STEP half|whole   carries out crash_script() and kills itself before its call STEP to
//                                                 the system; half: a write is made by half first. Says what is
//                                                 acknowledged.
//   file-tier-child limit FOLDER BYTES            may not write files of more than BYTES; says how a write ends
//   file-tier-child nobody FOLDER                 opens the folder as a user without rights; says why not
//   file-tier-child add FOLDER NUMBER             writes the state of this number
//   file-tier-child drop FOLDER NUMBER            removes its state and its KV
//   file-tier-child share FOLDER SEED             share_folder()
#include <stateport/core/model/error.hpp>

#include "file/make_file_tier.hpp"
#include "file_images.hpp"
#include "file_scripts.hpp"
#include "scripted_calls.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace stateport::test {
namespace {

/// Kills the process before its call number `step`. half: every write is made by half, and the process is killed after
/// the one that has this number.
class KillingCalls : public ScriptedCalls {
 public:
  KillingCalls(int step, bool half) : half_(half) {
    set([this, step](Call) {
      dying_ = step_++ == step;
      if (dying_ && !half_) ::raise(SIGKILL);
      return 0;
    });
  }
  ssize_t write_at(int file, const std::byte* bytes, std::size_t size, off_t offset) override {
    if (half_ && size > page) size = size / 2 / page * page;
    const ssize_t written = ScriptedCalls::write_at(file, bytes, size, offset);
    if (half_ && dying_) ::raise(SIGKILL);
    return written;
  }

 private:
  bool half_;
  int step_ = 0;
  bool dying_ = false;
};

/// Written at once, so that a killed process has said it.
void say(const std::string& text) {
  if (::write(STDOUT_FILENO, (text + "\n").data(), text.size() + 1) < 0) std::abort();
}

int kill_at(const FileTierOptions& options, int step, bool half) {
  KillingCalls calls(step, half);
  FileTierOptions one_lane = options;
  one_lane.lanes = 1;  // so that the calls come in one order
  FileTier tier = make_file_tier(one_lane, small_layouts(), calls);
  const std::vector<CrashStep> script = crash_script();
  for (std::size_t i = 0; i < script.size(); ++i) {
    carry_out(tier, script[i]);
    say(std::to_string(i));
  }
  return 0;
}

int limited(const FileTierOptions& options, const char* bytes) {
  const rlimit limit = {std::stoul(bytes), std::stoul(bytes)};
  if (::signal(SIGXFSZ, SIG_IGN) == SIG_ERR || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
  FileTier tier(options, small_layouts());
  const TransferStatus large = write_images(tier, small_layouts(), {kv_key(1), state_key(1)});
  const TransferStatus small = write_images(tier, small_layouts(), {kv_key(2)});
  say(std::to_string(static_cast<int>(large)) + " " + std::to_string(static_cast<int>(small)));
  return 0;
}

int as_nobody(const FileTierOptions& options) {
  constexpr unsigned nobody = 65534;
  if (::setgid(nobody) != 0 || ::setuid(nobody) != 0) return 77;
  try {
    const FileTier tier(options, small_layouts());
    say("opened");
  } catch (const InvalidArgument& error) {
    say(error.what());
  }
  return 0;
}

int run(std::string_view command, const FileTierOptions& options, char** rest) {
  if (command == "kill") return kill_at(options, std::stoi(rest[0]), rest[1] == std::string_view("half"));
  if (command == "limit") return limited(options, rest[0]);
  if (command == "nobody") return as_nobody(options);
  if (command == "share") return share_folder(options, std::stoull(rest[0])) ? 0 : 1;
  FileTier tier(options, small_layouts());
  const auto number = std::stoull(rest[0]);
  if (command == "add") return write_images(tier, small_layouts(), {state_key(number)}) == TransferStatus::done ? 0 : 1;
  const bool removed = tier.remove(state_key(number));
  return (tier.remove(kv_key(number)) || removed) && command == "drop" ? 0 : 1;
}

}  // namespace
}  // namespace stateport::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    return stateport::test::run(argv[1], stateport::test::crash_options(argv[2]), argv + 3);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
