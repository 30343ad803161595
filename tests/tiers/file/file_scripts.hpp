// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/file_tier.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// What a process does with a folder while another one looks on, or after it was killed.
namespace stateport::test {

[[nodiscard]] FileTierOptions crash_options(const std::string& folder);

/// Writes `write` as one request, or removes `remove`, and waits until that is done.
struct CrashStep {
  std::vector<ImageKey> write;
  std::vector<ImageKey> remove;
};
[[nodiscard]] std::vector<CrashStep> crash_script();
/// Throws std::runtime_error if a write is not answered `done`.
void carry_out(FileTier& tier, const CrashStep& step);

/// Random requests to a folder that others use as well, with several of them under way. False: a read was answered by
/// another image than it named, or by a reason that others cannot have brought about.
[[nodiscard]] bool share_folder(const FileTierOptions& options, std::uint64_t seed);

}  // namespace stateport::test
