// SPDX-License-Identifier: Apache-2.0
#include "remote/set_request.hpp"

#include <algorithm>
#include <numeric>

namespace stateport::tiers {
namespace {

/// Of several parts: done if all are, else the first of these that a part has. A set without one of its objects is
/// gone, whatever the others are.
TransferStatus worst(std::span<const TransferStatus> parts) noexcept {
  using enum TransferStatus;
  for (const TransferStatus status : {gone, failed, no_room, damaged, foreign_layout, wrong_position})
    if (std::ranges::find(parts, status) != parts.end()) return status;
  return done;
}

bool has_memory(RemoteCall call) noexcept {
  return call == RemoteCall::put || call == RemoteCall::get;
}

}  // namespace

void RemoteTierCounts::refuse(RemoteCall call) noexcept {
  const std::lock_guard lock(mutex_);
  if (call == RemoteCall::put) ++statistics_.refused_writes;
  if (call == RemoteCall::get) ++statistics_.refused_reads;
  if (call == RemoteCall::exists) ++statistics_.refused_finds;
}

void RemoteTierCounts::end(RemoteCall call, const Completion& how, double seconds, std::uint64_t removed) noexcept {
  const std::lock_guard lock(mutex_);
  const auto status = static_cast<std::size_t>(how.status);
  if (how.status != TransferStatus::done) seconds = 0;
  if (call == RemoteCall::put) {
    ++statistics_.write_answers[status];
    statistics_.written_bytes += how.bytes;
    statistics_.write_seconds += seconds;
  } else if (call == RemoteCall::get) {
    ++statistics_.read_answers[status];
    statistics_.read_bytes += how.bytes;
    statistics_.read_seconds += seconds;
    statistics_.removed_objects += removed;
  } else if (call == RemoteCall::exists) {
    ++statistics_.find_answers[status];
  }
}

RemoteTierStatistics RemoteTierCounts::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::size_t SetRequest::parts_of(RemoteCall call, std::span<const ObjectSet> sets) noexcept {
  if (has_memory(call)) return sets.front().size();
  return std::accumulate(sets.begin(), sets.end(), std::size_t{0},
                         [](std::size_t sum, const ObjectSet& set) { return sum + set.size(); });
}

SetRequest::SetRequest(RemoteCall call, std::uint64_t ticket, const ImageKey& key, std::span<const ObjectSet> sets,
                       std::span<std::byte> memory, RemoteTierCounts& counts)
    : RemoteRequest(call, ticket, parts_of(call, sets), {.parts = parts_of(call, sets), .bytes = memory.size()}),
      key_(key),
      sets_(sets),
      memory_(memory),
      counts_(counts),
      statuses_(parts_of(call, sets), TransferStatus::failed) {}

std::pair<const ObjectSet*, std::size_t> SetRequest::place_of(std::size_t part) const noexcept {
  if (has_memory(call())) return {&sets_[encoding_], part};
  const ObjectSet* set = sets_.data();
  for (; part >= set->size(); ++set) part -= set->size();
  return {set, part};
}

RemoteObject SetRequest::object(std::size_t part, std::string& name, RemotePiece& piece) const {
  const auto [set, number] = place_of(part);
  name = set->name(number, key_);
  if (!has_memory(call())) return {.ticket = ticket(), .key = name};
  const std::span<std::byte> memory = set->part(memory_.first(set->bytes()), number);
  piece = {memory.data(), memory.size()};
  return {.ticket = ticket(), .key = name, .pieces = {&piece, 1}};
}

std::size_t SetRequest::bytes(std::size_t part) const noexcept {
  return has_memory(call()) ? sets_[encoding_].layout(part).image_bytes() : 0;
}

void SetRequest::seal(std::size_t part) const {
  const ObjectSet& set = sets_[encoding_];
  set.layout(part).seal(set.part(memory_.first(set.bytes()), part), key_);
}

TransferStatus SetRequest::verify(std::size_t part, std::uint64_t bytes) {
  const ObjectSet& set = sets_[encoding_];
  if (bytes != set.layout(part).image_bytes()) return TransferStatus::damaged;
  return set.layout(part).check(set.part(memory_.first(set.bytes()), part), key_);
}

/// No object with this name can be right: it is to be written again.
bool SetRequest::removes(TransferStatus status) const noexcept {
  using enum TransferStatus;
  return call() == RemoteCall::get && (status == damaged || status == foreign_layout || status == wrong_position);
}

void SetRequest::note(std::size_t part, const Completion& how) noexcept {
  statuses_[part] = how.status;
  removed_ += removes(how.status);
}

TransferStatus SetRequest::summary() const noexcept {
  if (call() != RemoteCall::exists) return worst(statuses_);
  std::span<const TransferStatus> parts = statuses_;
  TransferStatus best = TransferStatus::gone;
  for (const ObjectSet& set : sets_) {
    const TransferStatus status = worst(parts.first(set.size()));
    if (best != TransferStatus::done && status != TransferStatus::gone) best = status;
    parts = parts.subspan(set.size());
  }
  return best;
}

RemoteRequest::End SetRequest::finish(Completion& answer) noexcept {
  if (call() == RemoteCall::remove) return End::silent;
  answer.status = summary();
  if (call() == RemoteCall::get && answer.status == TransferStatus::gone && encoding_ + 1 < sets_.size()) {
    ++encoding_;
    return End::anew;
  }
  const bool is_done = answer.status == TransferStatus::done;
  if (is_done && has_memory(call())) answer.bytes = sets_[encoding_].bytes();
  answer.encoding = static_cast<std::int32_t>(encoding_);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - accepted_).count();
  counts_.end(call(), answer, seconds, removed_);
  return End::answered;
}

}  // namespace stateport::tiers
