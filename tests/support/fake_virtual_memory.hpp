// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/virtual_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace stateport::test {

/// A device whose virtual memory is a table. It refuses calls on demand, and notes those that break a driver's rules.
struct FakeDevice {
  using Handle = detail::VirtualMemory::Handle;

  struct Mapping {
    std::size_t bytes = 0;
    Handle handle = 0;
    bool allowed = false;
    friend bool operator==(const Mapping&, const Mapping&) = default;
  };

  std::size_t granularity = 4096;
  bool unmaps_runs = false;
  detail::VirtualMemory* real = nullptr;  ///< makes the calls as well, where memory is used

  std::map<std::uintptr_t, std::size_t> reservations;
  std::map<std::uintptr_t, Mapping> mappings;
  std::map<Handle, int> handles;    ///< how many mappings each has
  std::vector<std::string> calls;   ///< since the test cleared them
  std::vector<std::string> broken;  ///< rules
  std::size_t physical_bytes = 0;
  std::size_t physical_bytes_max = 0;

  int refuse_in = 0;     ///< the how-manieth call from now on is refused; 0: none
  int refuse_count = 1;  ///< and those after it
  int refused = 0;       ///< so far
  Handle last_handle = 0;
  std::uintptr_t next_address = std::uintptr_t{1} << 46U;

  [[nodiscard]] bool refuses() {
    if (refuse_in == 0 || --refuse_in > 0) return false;
    ++refused;
    refuse_in = --refuse_count > 0 ? 1 : 0;
    return true;
  }
  void rule(bool kept, const char* text) {
    if (!kept) broken.emplace_back(text);
  }
  [[nodiscard]] bool is_reserved(std::uintptr_t address, std::size_t bytes) const {
    const auto after = reservations.upper_bound(address);
    if (after == reservations.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return address + bytes <= base + size;
  }
  /// Whether a mapping has a byte in the range.
  [[nodiscard]] bool is_touched(std::uintptr_t address, std::size_t bytes) const {
    const auto after = mappings.lower_bound(address + bytes);
    return after != mappings.begin() && std::prev(after)->first + std::prev(after)->second.bytes > address;
  }
  /// The mappings that make up the range; empty if there are others, or gaps.
  [[nodiscard]] std::vector<std::uintptr_t> whole_mappings(std::uintptr_t address, std::size_t bytes) const {
    std::vector<std::uintptr_t> found;
    std::uintptr_t at = address;
    while (at < address + bytes) {
      const auto mapping = mappings.find(at);
      if (mapping == mappings.end()) return {};
      found.push_back(at);
      at += mapping->second.bytes;
    }
    if (at != address + bytes) found.clear();
    return found;
  }
};

/// The calls to a FakeDevice, which must outlive it.
class FakeVirtualMemory final : public detail::VirtualMemory {
 public:
  explicit FakeVirtualMemory(FakeDevice& device) : device_(&device) {}

  [[nodiscard]] std::size_t granularity() const noexcept override { return device_->granularity; }
  [[nodiscard]] bool unmaps_runs() const noexcept override { return device_->unmaps_runs; }

  [[nodiscard]] Status reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept override {
    device_->calls.emplace_back("reserve");
    if (device_->refuses() || bytes > std::size_t{1} << 45U) return refusal;
    device_->rule(bytes % device_->granularity == 0, "a reservation is whole granules");
    if (device_->real != nullptr) {
      if (const Status status = device_->real->reserve(bytes, alignment, address); status != 0) return status;
    } else {
      device_->next_address = (device_->next_address + alignment - 1) / alignment * alignment;
      address = reinterpret_cast<void*>(device_->next_address);
      device_->next_address += bytes;
    }
    device_->reservations[number_of(address)] = bytes;
    return 0;
  }

  void free(void* address, std::size_t bytes) noexcept override {
    device_->calls.emplace_back("free");
    const auto found = device_->reservations.find(number_of(address));
    device_->rule(found != device_->reservations.end() && found->second == bytes, "free takes a whole reservation");
    device_->rule(!device_->is_touched(number_of(address), bytes), "freed addresses have no memory");
    device_->reservations.erase(number_of(address));
    if (device_->real != nullptr) device_->real->free(address, bytes);
  }

  [[nodiscard]] Status create(std::size_t bytes, Handle& handle) noexcept override {
    device_->calls.emplace_back("create");
    if (device_->refuses()) return refusal;
    Handle unused = 0;
    if (device_->real != nullptr && device_->real->create(bytes, unused) != 0) return refusal;
    handle = ++device_->last_handle;
    real_handles_[handle] = unused;
    device_->handles[handle] = 0;
    device_->physical_bytes += bytes;
    device_->physical_bytes_max = std::max(device_->physical_bytes_max, device_->physical_bytes);
    bytes_of_handle_ = bytes;
    return 0;
  }

  void release(Handle handle) noexcept override {
    device_->calls.emplace_back("release");
    const auto found = device_->handles.find(handle);
    device_->rule(found != device_->handles.end() && found->second == 0, "a released handle is behind no address");
    device_->handles.erase(handle);
    device_->physical_bytes -= bytes_of_handle_;
    if (device_->real != nullptr) device_->real->release(real_handles_[handle]);
    real_handles_.erase(handle);
  }

  [[nodiscard]] Status map(void* address, std::size_t bytes, Handle handle) noexcept override {
    device_->calls.emplace_back("map");
    if (device_->refuses()) return refusal;
    device_->rule(device_->handles.contains(handle) && device_->handles[handle] == 0, "a handle is behind one granule");
    device_->rule(device_->is_reserved(number_of(address), bytes), "mapped addresses are reserved");
    device_->rule(!device_->is_touched(number_of(address), bytes), "mapped addresses had no memory");
    device_->rule(bytes == bytes_of_handle_, "a handle is mapped whole");
    if (device_->real != nullptr && device_->real->map(address, bytes, real_handles_[handle]) != 0) return refusal;
    device_->mappings[number_of(address)] = {.bytes = bytes, .handle = handle, .allowed = false};
    ++device_->handles[handle];
    return 0;
  }

  [[nodiscard]] Status allow(void* address, std::size_t bytes) noexcept override {
    device_->calls.emplace_back("allow");
    if (device_->refuses()) return refusal;
    const std::vector<std::uintptr_t> mappings = device_->whole_mappings(number_of(address), bytes);
    device_->rule(!mappings.empty(), "access is given to mapped addresses");
    if (device_->real != nullptr && device_->real->allow(address, bytes) != 0) return refusal;
    for (const std::uintptr_t at : mappings) device_->mappings[at].allowed = true;
    return 0;
  }

  [[nodiscard]] Status unmap(void* address, std::size_t bytes) noexcept override {
    device_->calls.emplace_back("unmap");
    if (device_->refuses()) return refusal;
    const std::vector<std::uintptr_t> mappings = device_->whole_mappings(number_of(address), bytes);
    device_->rule(!mappings.empty(), "unmapped addresses were mapped");
    device_->rule(device_->unmaps_runs || mappings.size() == 1, "one mapping is unmapped at a time");
    if (device_->real != nullptr && device_->real->unmap(address, bytes) != 0) return refusal;
    for (const std::uintptr_t at : mappings) {
      --device_->handles[device_->mappings[at].handle];
      device_->mappings.erase(at);
    }
    return 0;
  }

  [[nodiscard]] std::string text(Status) const override { return "the fake device says no"; }

 private:
  static constexpr Status refusal = 2;
  [[nodiscard]] static std::uintptr_t number_of(const void* address) noexcept {
    return reinterpret_cast<std::uintptr_t>(address);
  }

  FakeDevice* device_;
  std::map<Handle, Handle> real_handles_;
  std::size_t bytes_of_handle_ = 0;
};

}  // namespace stateport::test
