// SPDX-License-Identifier: Apache-2.0
#include "elastic_memory.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace stateport::detail {
namespace {

constexpr std::size_t bytes_max = PTRDIFF_MAX / 2;  // rounding up to a granule does not overflow

std::uintptr_t number_of(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

VirtualMemory::~VirtualMemory() = default;

ElasticMemory::ElasticMemory(std::unique_ptr<VirtualMemory> calls, std::size_t limit_bytes,
                             std::size_t granularity_bytes)
    : calls_(std::move(calls)), limit_(limit_bytes), granule_(granularity_bytes) {
  require(limit_ > 0, "limit_bytes", limit_, "must be more than 0");
  if (granule_ == 0) granule_ = calls_->granularity();
  require(std::has_single_bit(granule_) && granule_ % calls_->granularity() == 0 && granule_ <= bytes_max,
          "granularity_bytes", granule_, "must be a power of two, and a multiple of the device's own granularity");
}

ElasticMemory::~ElasticMemory() {
  while (!reservations_.empty()) deallocate(reinterpret_cast<void*>(reservations_.begin()->first));
  trim();
}

std::size_t ElasticMemory::mapped_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return mapped_ * granule_;
}

std::size_t ElasticMemory::held_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return (mapped_ + free_.size()) * granule_;
}

std::size_t ElasticMemory::reserved_bytes(std::size_t bytes) const noexcept {
  return (bytes + granule_ - 1) / granule_ * granule_;
}

void* ElasticMemory::allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes > bytes_max) throw OutOfMemory("ElasticResource, of addresses", bytes, 0);
  const std::lock_guard lock(mutex_);
  const std::size_t granules = reserved_bytes(bytes) / granule_;
  void* address = nullptr;
  if (calls_->reserve(granules * granule_, std::max(granule_, alignment), address) != 0)
    throw OutOfMemory("ElasticResource, of addresses", bytes, 0);
  try {
    Reservation reservation{std::make_unique_for_overwrite<Handle[]>(granules), granules};
    std::fill_n(reservation.handles.get(), granules, unmapped);
    free_.reserve(std::min(reserved_ + granules, limit_ / granule_));  // no later call allocates
    reservations_.emplace(number_of(address), std::move(reservation));
  } catch (...) {
    calls_->free(address, granules * granule_);
    throw;
  }
  reserved_ += granules;
  return address;
}

void ElasticMemory::deallocate(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(number_of(memory));
  if (found == reservations_.end()) return;
  Run run{static_cast<std::byte*>(memory), {found->second.handles.get(), found->second.granules}};
  while (!run.handles.empty()) {
    const std::size_t dropped = drop_run(run);
    run = {run.address + dropped * granule_, run.handles.subspan(dropped)};
  }
  calls_->free(memory, found->second.granules * granule_);
  reserved_ -= found->second.granules;
  reservations_.erase(found);
}

/// Unmaps the granules at the start of a run that are alike, and returns how many. Memory that the system does not
/// unmap is released: it goes with its addresses.
std::size_t ElasticMemory::drop_run(Run run) noexcept {
  const bool is_mapped = run.handles[0] != unmapped;
  const auto end = std::ranges::find_if(run.handles, [&](Handle h) { return (h != unmapped) != is_mapped; });
  auto count = static_cast<std::size_t>(end - run.handles.begin());
  if (!is_mapped) return count;
  if (!calls_->unmaps_runs()) count = 1;
  const bool is_free = calls_->unmap(run.address, count * granule_) == 0;
  for (Handle& handle : run.handles.first(count)) {
    set_free(handle);
    if (!is_free) release_until(free_.size() - 1);
  }
  return count;
}

ElasticMemory::Run ElasticMemory::find(const MemoryRange& range) const {
  const std::uintptr_t address = number_of(range.address);
  require(range.bytes > 0 && range.bytes % granule_ == 0, "bytes", range.bytes,
          "must be a whole multiple of the granularity");
  require(address % granule_ == 0, "address", address, "must be a multiple of the granularity");
  const auto after = reservations_.upper_bound(address);
  require(after != reservations_.begin(), "address", address, "is in no allocation of this resource");
  const auto& [base, reservation] = *std::prev(after);
  const std::size_t first = (address - base) / granule_;
  require(first < reservation.granules, "address", address, "is in no allocation of this resource");
  require(range.bytes / granule_ <= reservation.granules - first, "bytes", range.bytes,
          "must end within the allocation");
  return {static_cast<std::byte*>(range.address), {reservation.handles.get() + first, range.bytes / granule_}};
}

/// Returns the number of granules.
std::size_t ElasticMemory::require_ranges(std::span<const MemoryRange> ranges, bool mapped) const {
  std::size_t granules = 0;
  std::uintptr_t end = 0;
  for (const MemoryRange& range : ranges) {
    const std::uintptr_t address = number_of(range.address);
    const Run run = find(range);
    require(address >= end, "address", address, "must be at or above the end of the range before it");
    require(std::ranges::all_of(run.handles, [&](Handle handle) { return (handle != unmapped) == mapped; }), "address",
            address, mapped ? "must be mapped, as the whole range" : "must not be mapped, nor a part of the range");
    end = address + range.bytes;
    granules += run.handles.size();
  }
  return granules;
}

/// Until `count` handles are free.
bool ElasticMemory::create_until(std::size_t count) noexcept {
  while (free_.size() < count) {
    Handle handle = unmapped;
    if (calls_->create(granule_, handle) != 0) return false;
    free_.push_back(handle);
  }
  return true;
}

void ElasticMemory::release_until(std::size_t count) noexcept {
  for (; free_.size() > count; free_.pop_back()) calls_->release(free_.back());
}

void ElasticMemory::set_free(Handle& handle) noexcept {
  free_.push_back(std::exchange(handle, unmapped));
  --mapped_;
}

bool ElasticMemory::map(std::span<const MemoryRange> ranges) {
  const std::lock_guard lock(mutex_);
  const std::size_t granules = require_ranges(ranges, false);
  if (granules > limit_ / granule_ - mapped_) return false;
  const std::size_t free_before = free_.size();
  bool clean = true;
  bool done = create_until(granules);
  for (std::size_t i = 0; done && i < ranges.size(); ++i) {
    done = map_run(find(ranges[i]), clean);
    for (std::size_t before = 0; !done && before < i; ++before)
      if (!take_back(find(ranges[before]))) clean = false;
  }
  if (!done) release_until(free_before);  // a system that has refused lacks memory
  if (!clean) throw BackendError("ElasticResource::map", "was refused, and some of the memory cannot be unmapped");
  return done;
}

/// Maps all granules or none. Sets `clean` to false when one stays mapped nevertheless.
bool ElasticMemory::map_run(Run run, bool& clean) noexcept {
  std::size_t count = 0;
  for (; count < run.handles.size(); ++count) {
    if (calls_->map(run.address + count * granule_, granule_, free_.back()) != 0) break;
    run.handles[count] = free_.back();
    free_.pop_back();
    ++mapped_;
  }
  if (count == run.handles.size() && calls_->allow(run.address, count * granule_) == 0) return true;
  if (!take_back({run.address, run.handles.first(count)})) clean = false;
  return false;
}

/// Unmaps granules that were just mapped. Returns false if one stays mapped.
bool ElasticMemory::take_back(Run run) noexcept {
  bool all = true;
  for (std::size_t i = 0; i < run.handles.size(); ++i) {
    if (calls_->unmap(run.address + i * granule_, granule_) == 0)
      set_free(run.handles[i]);
    else
      all = false;
  }
  return all;
}

void ElasticMemory::unmap(std::span<const MemoryRange> ranges) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(require_ranges(ranges, true));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Status refusal = unmap_run(find(ranges[i]));
    if (refusal == 0) continue;
    for (std::size_t before = 0; before < i; ++before) restore(find(ranges[before]));
    throw BackendError("ElasticResource::unmap", calls_->text(refusal));
  }
  for (const MemoryRange& range : ranges)
    for (Handle& handle : find(range).handles) set_free(handle);
}

/// Unmaps all granules or none; they keep their handles.
ElasticMemory::Status ElasticMemory::unmap_run(Run run) noexcept {
  const std::size_t step = calls_->unmaps_runs() ? run.handles.size() : 1;
  for (std::size_t at = 0; at < run.handles.size(); at += step) {
    const Status refusal = calls_->unmap(run.address + at * granule_, step * granule_);
    if (refusal == 0) continue;
    restore({run.address, run.handles.first(at)});
    return refusal;
  }
  return 0;
}

/// Puts the handles of granules behind them again. A granule for which the system refuses that is unmapped.
void ElasticMemory::restore(Run run) noexcept {
  for (std::size_t i = 0; i < run.handles.size(); ++i) {
    std::byte* const address = run.address + i * granule_;
    if (calls_->map(address, granule_, run.handles[i]) != 0) {
      set_free(run.handles[i]);
    } else if (calls_->allow(address, granule_) != 0 && calls_->unmap(address, granule_) == 0) {
      set_free(run.handles[i]);
    }
  }
}

bool ElasticMemory::is_mapped(const MemoryRange& range) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(find(range).handles, [](Handle handle) { return handle == unmapped; });
}

void ElasticMemory::trim() noexcept {
  const std::lock_guard lock(mutex_);
  release_until(0);
}

}  // namespace stateport::detail
