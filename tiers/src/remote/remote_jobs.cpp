// SPDX-License-Identifier: Apache-2.0
#include "remote/remote_jobs.hpp"

#include "containers/reserve_amortised.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>

namespace stateport::tiers {
namespace {

constexpr std::size_t completions_together = 256;
/// Keys of one batch: enough for the prompts of many requests, few enough for one message.
constexpr std::size_t keys_together = 8192;

/// A ticket names a job and one of its parts.
constexpr unsigned part_bits = 24;
constexpr std::uint64_t ticket_of(std::uint32_t number, std::size_t part) noexcept {
  return std::uint64_t{number} << part_bits | part;
}
constexpr std::uint32_t number_of(std::uint64_t ticket) noexcept {
  return static_cast<std::uint32_t>(ticket >> part_bits);
}
constexpr std::size_t part_of(std::uint64_t ticket) noexcept {
  return ticket & ((std::uint64_t{1} << part_bits) - 1);
}

bool has_keys(RemoteJob::Kind kind) noexcept {
  return kind == RemoteJob::Kind::find || kind == RemoteJob::Kind::remove;
}

std::size_t objects_of(std::span<const ObjectSet> sets) noexcept {
  return std::accumulate(sets.begin(), sets.end(), std::size_t{0},
                         [](std::size_t sum, const ObjectSet& set) { return sum + set.size(); });
}

/// Of several parts: done if all are, else the first of these that a part has.
TransferStatus summary(std::span<const TransferStatus> parts) noexcept {
  using enum TransferStatus;
  for (const TransferStatus status : {damaged, foreign_layout, wrong_position, failed, no_room, gone})
    if (std::ranges::find(parts, status) != parts.end()) return status;
  return done;
}

/// No object with this name can be right: it is to be written again.
bool is_wrong(TransferStatus status) noexcept {
  using enum TransferStatus;
  return status == damaged || status == foreign_layout || status == wrong_position;
}

}  // namespace

RemoteJobs::RemoteJobs(RemoteStore& store) : store_(store), completions_(completions_together) {}

/// A read may begin a removal.
void RemoteJobs::reserve(std::size_t jobs, std::vector<Ended>& ended) {
  const std::size_t most = 2 * (running_.size() - free_.size() + jobs);
  detail::reserve_amortised(ended, ended.size() + most);
  detail::reserve_amortised(free_, std::max(most, running_.size()));
  detail::reserve_amortised(running_, most);
}

void RemoteJobs::add(const RemoteJob& job, std::vector<Ended>& ended) {
  try {
    if (job.kind == RemoteJob::Kind::write) job.sets.front().seal(job.memory, job.key);
  } catch (const std::bad_alloc&) {
    ended.push_back({.job = job, .status = TransferStatus::failed});
    return;
  }
  start(job);
}

void RemoteJobs::start(const RemoteJob& job) noexcept {
  auto number = static_cast<std::uint32_t>(running_.size());
  if (free_.empty()) {
    running_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  running_[number].job = job;
  running_[number].encoding = 0;
  wait(number);
}

void RemoteJobs::wait(std::uint32_t number) noexcept {
  running_[number].next = none;
  (first_waiting_ == none ? first_waiting_ : running_[last_waiting_].next) = number;
  last_waiting_ = number;
}

std::uint32_t RemoteJobs::stop_waiting() noexcept {
  const std::uint32_t number = first_waiting_;
  first_waiting_ = running_[number].next;
  return number;
}

void RemoteJobs::advance(std::vector<Ended>& ended) {
  submit_waiting(ended);
  take_answers(ended);
  submit_waiting(ended);
}

void RemoteJobs::submit_waiting(std::vector<Ended>& ended) {
  while (first_waiting_ != none && !full_) {
    TransferStatus refusal = TransferStatus::no_room;
    try {
      if (submit_first()) continue;
      if (in_store_ > 0) {
        full_ = true;  // an answer may make room
        return;
      }
    } catch (const std::exception&) {
      refusal = TransferStatus::failed;
    }
    end(stop_waiting(), {.status = refusal}, ended);
  }
}

bool RemoteJobs::submit_first() {
  if (!has_keys(running_[first_waiting_].job.kind)) return submit_objects(first_waiting_);
  const std::size_t jobs = jobs_together();
  return submit_keys(jobs) || (jobs > 1 && submit_keys(1));
}

std::size_t RemoteJobs::jobs_together() const {
  const RemoteJob& first = running_[first_waiting_].job;
  std::size_t keys = objects_of(first.sets);
  std::size_t jobs = 1;
  for (std::uint32_t at = running_[first_waiting_].next; at != none; at = running_[at].next, ++jobs) {
    const RemoteJob& job = running_[at].job;
    keys += objects_of(job.sets);
    if (job.kind != first.kind || keys > keys_together) break;
  }
  return jobs;
}

bool RemoteJobs::submit_keys(std::size_t jobs) {
  names_.clear();
  keys_.clear();
  std::uint32_t at = first_waiting_;
  for (std::size_t i = 0; i < jobs; ++i, at = running_[at].next) {
    Running& running = running_[at];
    std::size_t part = 0;
    for (const ObjectSet& set : running.job.sets)
      for (std::size_t object = 0; object < set.size(); ++object, ++part) {
        names_.push_back(set.name(object, running.job.key));
        keys_.push_back({.ticket = ticket_of(at, part)});
      }
    running.parts.assign(part, TransferStatus::failed);
    running.waits.assign(part, false);
  }
  for (std::size_t i = 0; i < names_.size(); ++i) keys_[i].key = names_[i];
  const bool finds = running_[first_waiting_].job.kind == RemoteJob::Kind::find;
  if (!(finds ? store_.exists(keys_) : store_.remove(keys_))) return false;
  for (std::size_t i = 0; i < jobs; ++i) wait_for_answers(running_[stop_waiting()]);
  in_store_ += keys_.size();
  return true;
}

bool RemoteJobs::submit_objects(std::uint32_t number) {
  Running& running = running_[number];
  const ObjectSet& set = running.job.sets[static_cast<std::size_t>(running.encoding)];
  names_.clear();
  pieces_.clear();
  objects_.clear();
  const std::span<std::byte> memory = running.job.memory.first(set.bytes());
  for (std::size_t object = 0; object < set.size(); ++object) {
    names_.push_back(set.name(object, running.job.key));
    const std::span<std::byte> part = set.part(memory, object);
    pieces_.push_back({part.data(), part.size()});
  }
  for (std::size_t object = 0; object < set.size(); ++object)
    objects_.push_back({.ticket = ticket_of(number, object), .key = names_[object], .pieces = {&pieces_[object], 1}});
  running.parts.assign(set.size(), TransferStatus::failed);
  running.waits.assign(set.size(), false);
  running.bytes.assign(set.size(), 0);
  if (!(running.job.kind == RemoteJob::Kind::write ? store_.put_from(objects_) : store_.get_into(objects_)))
    return false;
  wait_for_answers(running);
  in_store_ += set.size();
  stop_waiting();
  return true;
}

void RemoteJobs::wait_for_answers(Running& running) noexcept {
  running.left = running.parts.size();
  std::fill(running.waits.begin(), running.waits.end(), true);
}

void RemoteJobs::take_answers(std::vector<Ended>& ended) {
  for (std::size_t count = completions_.size(); count == completions_.size();) {
    try {
      count = store_.poll(completions_);
    } catch (const std::exception&) {
      return;  // its answer comes later
    }
    for (const RemoteCompletion& completion : std::span(completions_).first(count)) {
      const std::uint32_t number = number_of(completion.ticket);
      const std::size_t part = part_of(completion.ticket);
      // An answer to no request does no harm.
      if (number >= running_.size() || part >= running_[number].waits.size() || !running_[number].waits[part]) continue;
      Running& running = running_[number];
      running.waits[part] = false;
      --in_store_;
      full_ = false;
      running.parts[part] = completion.status;
      if (!has_keys(running.job.kind)) running.bytes[part] = completion.bytes;
      if (--running.left == 0) finish(number, ended);
    }
  }
}

void RemoteJobs::finish(std::uint32_t number, std::vector<Ended>& ended) {
  const Running& running = running_[number];
  switch (running.job.kind) {
    case RemoteJob::Kind::read:
      return finish_read(number, ended);
    case RemoteJob::Kind::write:
      return end(number, {.status = summary(running.parts), .bytes = running.job.sets.front().bytes()}, ended);
    case RemoteJob::Kind::remove:
      return end(number, {}, ended);
    case RemoteJob::Kind::find:
      break;
  }
  std::span<const TransferStatus> parts = running.parts;
  TransferStatus best = TransferStatus::gone;
  for (const ObjectSet& set : running.job.sets) {
    const TransferStatus status = summary(parts.first(set.size()));
    if (best != TransferStatus::done && status != TransferStatus::gone) best = status;
    parts = parts.subspan(set.size());
  }
  end(number, {.status = best}, ended);
}

void RemoteJobs::finish_read(std::uint32_t number, std::vector<Ended>& ended) {
  Running& running = running_[number];
  const RemoteJob job = running.job;
  const auto encoding = static_cast<std::size_t>(running.encoding);
  const ObjectSet& set = job.sets[encoding];
  TransferStatus status = summary(running.parts);
  if (status == TransferStatus::gone && encoding + 1 < job.sets.size()) {
    ++running.encoding;
    wait(number);
    return;
  }
  for (std::size_t object = 0; object < set.size() && status == TransferStatus::done; ++object)
    if (running.bytes[object] != set.layout(object).image_bytes()) status = TransferStatus::damaged;
  try {
    if (status == TransferStatus::done) status = set.check(job.memory.first(set.bytes()), job.key);
  } catch (const std::bad_alloc&) {
    status = TransferStatus::failed;
  }
  if (is_wrong(status)) start({.kind = RemoteJob::Kind::remove, .key = job.key, .sets = job.sets.subspan(encoding, 1)});
  end(number,
      {.status = status,
       .encoding = static_cast<std::int32_t>(encoding),
       .bytes = set.bytes(),
       .removed_objects = is_wrong(status) ? set.size() : 0},
      ended);
}

void RemoteJobs::end(std::uint32_t number, const Ended& how, std::vector<Ended>& ended) {
  ended.push_back(how);
  ended.back().job = running_[number].job;
  if (how.status != TransferStatus::done) ended.back().bytes = 0;
  free_.push_back(number);
}

void RemoteJobs::give_up() noexcept {
  first_waiting_ = none;
}

}  // namespace stateport::tiers
