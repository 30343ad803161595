// SPDX-License-Identifier: Apache-2.0
#include "remote/remote_requests.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <iterator>

namespace stateport::tiers {

RemoteRequests::RemoteRequests(const RemoteQueueLimits& limits) : limits_(limits) {
  require(limits.queue_bytes > 0, "queue_bytes", limits.queue_bytes, "must not be 0");
  require(limits.queue_requests > 0, "queue_requests", limits.queue_requests, "must not be 0");
}

bool RemoteRequests::add(RemoteRequest::Kind kind, std::span<const RemoteObject> objects) {
  std::list<RemoteRequest> requests;
  for (const RemoteObject& object : objects) {
    RemoteRequest& request = requests.emplace_back();
    request.kind = kind;
    request.ticket = object.ticket;
    request.key = object.key;
    std::ranges::copy_if(object.pieces, std::back_inserter(request.pieces),
                         [](const RemotePiece& piece) { return piece.bytes > 0; });
    for (const RemotePiece& piece : request.pieces) request.bytes += piece.bytes;
  }
  return add(requests);
}

bool RemoteRequests::add(RemoteRequest::Kind kind, std::span<const RemoteKey> keys) {
  std::list<RemoteRequest> requests;
  for (const RemoteKey& key : keys)
    requests.push_back({.kind = kind, .ticket = key.ticket, .key = std::string(key.key)});
  return add(requests);
}

bool RemoteRequests::add(std::list<RemoteRequest>& requests) {
  const std::lock_guard lock(mutex_);
  if (requests.size() > limits_.queue_requests - queued_requests_) return false;
  std::size_t free_bytes = limits_.queue_bytes - queued_bytes_;
  for (const RemoteRequest& request : requests) {
    if (request.bytes > free_bytes) return false;
    free_bytes -= request.bytes;
  }
  completions_.prepare(queued_requests_ + requests.size());
  queued_bytes_ = limits_.queue_bytes - free_bytes;
  queued_requests_ += requests.size();
  waiting_.splice(waiting_.end(), requests);
  changed_.notify_all();
  return true;
}

void RemoteRequests::move_front(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes) {
  const RemoteRequest::Kind kind = waiting_.front().kind;
  taken.reserve(taken.size() + std::min(count, waiting_.size()));
  std::size_t moved_bytes = 0;
  for (std::size_t i = 0; i < count && !waiting_.empty() && waiting_.front().kind == kind; ++i) {
    if (i > 0 && waiting_.front().bytes > bytes - std::min(bytes, moved_bytes)) return;
    moved_bytes += waiting_.front().bytes;
    taken.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool RemoteRequests::take(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return false;
  move_front(taken, count, bytes);
  return true;
}

bool RemoteRequests::wait_and_take(std::vector<RemoteRequest>& taken, std::size_t count, std::size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (stopping_) return false;
  move_front(taken, count, bytes);
  return true;
}

void RemoteRequests::answer(const RemoteRequest& request, TransferStatus status, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  completions_.push({request.ticket, status, status == TransferStatus::done ? bytes : 0});
  queued_bytes_ -= request.bytes;
}

std::size_t RemoteRequests::poll(std::span<RemoteCompletion> completions) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = completions_.hand_out(completions);
  queued_requests_ -= count;
  return count;
}

void RemoteRequests::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
}

}  // namespace stateport::tiers
