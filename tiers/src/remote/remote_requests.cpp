// SPDX-License-Identifier: Apache-2.0
#include "remote/remote_requests.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

namespace stateport::tiers {
namespace {

/// Parts that share a call of a lane: enough to hide a round trip, few enough to leave some to other lanes.
constexpr std::size_t parts_together = 64;

/// Blocks all signals for threads that are made meanwhile: a socket that the server closed must not end the process,
/// and the engine's signals are the engine's.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

/// Whether a call can have this answer (RemoteStore).
bool is_answer(RemoteCall call, TransferStatus status) noexcept {
  using enum TransferStatus;
  if (status == done || status == failed) return true;
  if (call == RemoteCall::put) return status == no_room;
  return status == gone || (call == RemoteCall::get && (status == damaged || status == foreign_layout));
}

}  // namespace

RemoteRequests::Worker::Worker(std::unique_ptr<RemoteLane> its)
    : lane(std::move(its)), names(parts_together), pieces(parts_together) {
  parts.reserve(parts_together);
  objects.reserve(parts_together);
  answers.reserve(parts_together);
}

RemoteRequests::RemoteRequests(const RemoteQueueLimits& limits) : limits_(limits) {
  require(limits.queue_bytes > 0, "queue_bytes", limits.queue_bytes, "must not be 0");
  require(limits.queue_requests > 0, "queue_requests", limits.queue_requests, "must not be 0");
}

void RemoteRequests::serve(std::vector<std::unique_ptr<RemoteLane>> lanes, std::size_t batch_bytes) {
  batch_bytes_ = batch_bytes;
  for (std::unique_ptr<RemoteLane>& lane : lanes) workers_.push_back(std::make_unique<Worker>(std::move(lane)));
  try {
    const BlockedSignals blocked;  // threads inherit the mask of their maker
    for (const auto& worker : workers_) worker->thread = std::thread([this, &worker = *worker] { run(worker); });
  } catch (const std::system_error& error) {
    stop();
    throw BackendError("start of a thread", error.what());
  } catch (...) {
    stop();
    throw;
  }
}

void RemoteRequests::serve_in_poll(std::unique_ptr<RemoteLane> lane) {
  batch_bytes_ = SIZE_MAX;
  in_poll_ = std::make_unique<Worker>(std::move(lane));
}

bool RemoteRequests::add(Batch& batch) {
  const std::lock_guard lock(mutex_);
  std::size_t free_parts = limits_.queue_requests - queued_parts_;
  std::size_t free_bytes = limits_.queue_bytes - queued_bytes_;
  for (const auto& request : batch) {
    if (request->cost_.parts > free_parts || request->cost_.bytes > free_bytes) {
      statistics_.refused_requests += batch.size();
      return false;
    }
    free_parts -= request->cost_.parts;
    free_bytes -= request->cost_.bytes;
  }
  completions_.prepare(limits_.queue_requests - free_parts);
  queued_parts_ = limits_.queue_requests - free_parts;
  queued_bytes_ = limits_.queue_bytes - free_bytes;
  statistics_.accepted_requests += batch.size();
  for (auto request = batch.begin(); request != batch.end(); ++request) (*request)->self_ = request;
  waiting_.splice(waiting_.end(), batch);
  changed_.notify_all();
  return true;
}

bool RemoteRequests::take(Worker& worker) {
  worker.parts.clear();
  std::size_t bytes = 0;
  while (!waiting_.empty() && worker.parts.size() < parts_together) {
    RemoteRequest& request = *waiting_.front();
    const std::size_t more = request.bytes(request.taken_);
    const bool is_first = worker.parts.empty();
    if (!is_first && (request.call() != worker.parts.front().request->call() || more > batch_bytes_ - bytes)) break;
    bytes = is_first ? std::min(more, batch_bytes_) : bytes + more;
    worker.parts.push_back({&request, request.taken_++});
    if (request.taken_ == request.parts_) running_.splice(running_.end(), waiting_, waiting_.begin());
  }
  return !worker.parts.empty();
}

void RemoteRequests::run(Worker& worker) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      take(worker);
    }
    carry_out(worker);
  }
}

bool RemoteRequests::prepare(Worker& worker, const Part& part) noexcept {
  const std::size_t at = worker.objects.size();
  try {
    const RemoteObject object = part.request->object(part.number, worker.names[at], worker.pieces[at]);
    if (part.request->call() == RemoteCall::put) part.request->seal(part.number);
    worker.objects.push_back(object);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void RemoteRequests::carry_out(Worker& worker) noexcept {
  worker.objects.clear();
  for (const Part part : worker.parts) {
    const Completion failed{.status = TransferStatus::failed};
    if (prepare(worker, part))
      worker.parts[worker.objects.size() - 1] = part;
    else
      note({&part, 1}, {&failed, 1});
  }
  worker.parts.resize(worker.objects.size());
  if (worker.parts.empty()) return;
  const RemoteCall call = worker.parts.front().request->call();
  worker.answers.assign(worker.parts.size(), {});
  ask(*worker.lane, call, worker.objects, worker.answers);
  if (call == RemoteCall::get)
    for (std::size_t i = 0; i < worker.parts.size(); ++i) verify(worker, i);
  note(worker.parts, worker.answers);
}

void RemoteRequests::ask(RemoteLane& lane, RemoteCall call, std::span<const RemoteObject> objects,
                         std::span<Completion> answers) noexcept {
  for (std::size_t i = 0; i < objects.size(); ++i) answers[i] = {.status = TransferStatus::failed};
  try {
    lane.carry_out(call, objects, answers);
  } catch (...) {
    // Objects without an answer have failed.
  }
  for (std::size_t i = 0; i < objects.size(); ++i) {
    Completion& answer = answers[i];
    const std::size_t most = bytes_of(objects[i].pieces);
    if (call != RemoteCall::get) answer.bytes = most;
    if (!is_answer(call, answer.status) || answer.bytes > most) answer.status = TransferStatus::failed;
    if (answer.status != TransferStatus::done) answer.bytes = 0;
  }
}

void RemoteRequests::verify(Worker& worker, std::size_t at) noexcept {
  const auto& [request, part] = worker.parts[at];
  Completion& answer = worker.answers[at];
  try {
    if (answer.status == TransferStatus::done) answer.status = request->verify(part, answer.bytes);
  } catch (const std::bad_alloc&) {
    answer.status = TransferStatus::failed;
  }
  if (!request->removes(answer.status)) return;
  const RemoteObject wrong{.ticket = request->ticket(), .key = worker.objects[at].key};
  Completion ignored;
  ask(*worker.lane, RemoteCall::remove, {&wrong, 1}, {&ignored, 1});
}

void RemoteRequests::note(std::span<const Part> parts, std::span<const Completion> answers) noexcept {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    RemoteRequest& request = *parts[i].request;
    request.note(parts[i].number, answers[i]);
    if (++request.answered_ == request.parts_) end(request);
  }
}

void RemoteRequests::end(RemoteRequest& request) noexcept {
  Completion answer{.ticket = request.ticket()};
  const bool is_dropped = giving_up_ || stopping_;
  const RemoteRequest::End how = is_dropped ? RemoteRequest::End::silent : request.finish(answer);
  if (how == RemoteRequest::End::anew) {
    request.taken_ = request.answered_ = 0;
    waiting_.splice(waiting_.begin(), running_, request.self_);
    return changed_.notify_all();
  }
  queued_bytes_ -= request.cost_.bytes;
  queued_parts_ -= request.cost_.parts;
  if (how == RemoteRequest::End::answered) {
    completions_.push(answer);
    ++queued_parts_;
  } else {
    count(is_dropped ? TransferStatus::failed : answer.status);
  }
  running_.erase(request.self_);
  if (running_.empty()) changed_.notify_all();
}

std::size_t RemoteRequests::poll(std::span<Completion> completions) {
  const auto has_work = [&] {
    const std::lock_guard lock(mutex_);
    return completions_.size() < completions.size() && take(*in_poll_);
  };
  if (in_poll_) {
    const std::lock_guard turn(poll_mutex_);
    while (has_work()) carry_out(*in_poll_);
  }
  const std::lock_guard lock(mutex_);
  const std::size_t taken = completions_.hand_out(completions);
  queued_parts_ -= taken;
  for (const Completion& completion : completions.first(taken)) count(completion.status);
  return taken;
}

void RemoteRequests::drop_waiting() noexcept {
  while (!waiting_.empty()) {
    RemoteRequest& request = *waiting_.front();
    request.parts_ = request.taken_;
    running_.splice(running_.end(), waiting_, waiting_.begin());
    if (request.answered_ == request.parts_) end(request);
  }
}

void RemoteRequests::give_up() noexcept {
  std::unique_lock lock(mutex_);
  giving_up_ = true;
  drop_waiting();
  changed_.wait(lock, [this] { return running_.empty(); });
  giving_up_ = false;
  Completion dropped;
  while (completions_.hand_out({&dropped, 1}) > 0) {
    --queued_parts_;
    count(TransferStatus::failed);
  }
}

void RemoteRequests::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    drop_waiting();
  }
  changed_.notify_all();
  for (const auto& worker : workers_) worker->lane->interrupt();
  for (const auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
  workers_.clear();
  in_poll_.reset();
}

RemoteStoreStatistics RemoteRequests::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace stateport::tiers
