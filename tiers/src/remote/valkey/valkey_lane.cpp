// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_lane.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace stateport::tiers {
namespace {

/// Questions and removals that share their round trips.
constexpr std::size_t batch_requests = 64;
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

ValkeyLane::ValkeyLane(const ValkeyStoreOptions& options, const ValkeyTlsContext* tls, RemoteRequests& requests,
                       ValkeyCounts& counts)
    : options_(options), tls_(tls), requests_(requests), counts_(counts) {
  taken_.reserve(batch_requests);
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

void ValkeyLane::run() {
  // No bytes: one put or get at a time, so that other lanes find work.
  while (requests_.wait_and_take(taken_, batch_requests, 0)) {
    carry_out(taken_);
    taken_.clear();
  }
}

void ValkeyLane::carry_out(std::span<const RemoteRequest> requests) noexcept {
  const std::vector<ValkeyOutcome> outcomes = attempt(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!outcomes.empty()) note(outcomes[i]);
    requests_.answer(requests[i], outcomes.empty() ? TransferStatus::failed : outcomes[i].status,
                     outcomes.empty() ? 0 : outcomes[i].bytes);
  }
}

std::vector<ValkeyOutcome> ValkeyLane::attempt(std::span<const RemoteRequest> requests) noexcept {
  // A connection may have been lost since its last use: then, and only then, requests are tried again on a new one. All
  // of them may be carried out twice: a put that was committed finds its own object.
  for (bool is_fresh = false; !is_fresh && !gate_.is_closed();) {
    is_fresh = !connection_;
    try {
      if (!is_connected_or_connects()) return {};
      ValkeyObjects objects(options_, *connection_);
      std::vector<ValkeyOutcome> outcomes;
      switch (requests.front().kind) {
        case RemoteRequest::Kind::put:
          for (const RemoteRequest& request : requests)
            outcomes.push_back(objects.put(request.key, request.pieces, request.bytes));
          break;
        case RemoteRequest::Kind::get:
          for (const RemoteRequest& request : requests)
            outcomes.push_back(objects.get(request.key, request.pieces, request.bytes));
          break;
        case RemoteRequest::Kind::exists:
          outcomes = objects.exist(requests);
          break;
        case RemoteRequest::Kind::remove:
          for (const RemoteRequest& request : requests) outcomes.push_back(objects.remove(request.key));
          break;
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
