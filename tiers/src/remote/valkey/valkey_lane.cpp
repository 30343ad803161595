// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_lane.hpp"

#include "remote/remote_request.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace stateport::tiers {
namespace {

constexpr std::chrono::milliseconds pause_min{100};
constexpr std::chrono::milliseconds pause_max{5000};

}  // namespace

void ValkeyCounts::tell(std::string_view why, std::string_view word) noexcept {
  const std::lock_guard lock(mutex_);
  std::string& text = statistics_.last_error;
  try {
    text = why;
    if (!word.empty()) text.append(": ").append(word);
  } catch (const std::bad_alloc&) {
    text.clear();
  }
}

std::string ValkeyLane::connect() {
  try {
    connection_.emplace(options_, tls_, gate_);
  } catch (const std::exception& problem) {  // the machine may have no memory, or no random numbers, either
    pause();
    counts_.change([](ValkeyStoreStatistics& counts) { ++counts.failed_attempts; });
    counts_.tell(problem.what());
    return problem.what();
  }
  counts_.change([](ValkeyStoreStatistics& counts) { ++counts.connections; });
  return {};
}

void ValkeyLane::pause() {
  pause_ = std::clamp(pause_ * 2, pause_min, pause_max);
  retry_at_ = Clock::now() + pause_;
  connections_at_pause_ = counts_.connections();
}

bool ValkeyLane::is_connected_or_connects() {
  if (connection_) return true;
  const bool another_lane_connected = counts_.connections() != connections_at_pause_;
  return (another_lane_connected || Clock::now() >= retry_at_) && connect().empty();
}

void ValkeyLane::carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) {
  const std::vector<ValkeyOutcome> outcomes = attempt(call, objects);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    note(outcomes[i]);
    answers[i].status = outcomes[i].status;
    answers[i].bytes = outcomes[i].bytes;
  }
}

std::vector<ValkeyOutcome> ValkeyLane::attempt(RemoteCall call, std::span<const RemoteObject> objects) noexcept {
  // A connection may have been lost since its last use: then, and only then, requests are tried again on a new one. All
  // of them may be carried out twice: a put that was committed finds its own object.
  for (bool is_fresh = false; !is_fresh && !gate_.is_closed();) {
    is_fresh = !connection_;
    try {
      if (!is_connected_or_connects()) return {};
      ValkeyObjects server(options_, *connection_);
      std::vector<ValkeyOutcome> outcomes;
      if (call == RemoteCall::exists) outcomes = server.exist(objects);
      for (const auto& [ticket, key, pieces] : objects) {
        if (call == RemoteCall::put) outcomes.push_back(server.put(key, pieces, bytes_of(pieces)));
        if (call == RemoteCall::get) outcomes.push_back(server.get(key, pieces, bytes_of(pieces)));
        if (call == RemoteCall::remove) outcomes.push_back(server.remove(key));
      }
      pause_ = {};
      return outcomes;
    } catch (const ConnectionLost& problem) {
      connection_.reset();
      if (is_fresh) pause();
      counts_.change([](ValkeyStoreStatistics& counts) { ++counts.lost_connections; });
      counts_.tell(problem.what());
    } catch (const std::exception&) {
      connection_.reset();  // replies may be under way
      return {};
    }
  }
  return {};
}

void ValkeyLane::note(const ValkeyOutcome& outcome) noexcept {
  if (outcome.found_damage) counts_.change([](ValkeyStoreStatistics& counts) { ++counts.damaged_objects; });
  if (*outcome.why != '\0') counts_.tell(outcome.why, outcome.word);
}

}  // namespace stateport::tiers
