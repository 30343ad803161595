// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/internal/virtual_memory.hpp>

#include "check.hpp"

namespace stateport::detail {
namespace {

hipMemGenericAllocationHandle_t as_native(VirtualMemory::Handle handle) noexcept {
  return reinterpret_cast<hipMemGenericAllocationHandle_t>(handle);
}

/// HIP repeats an error to the next who asks: this one is answered here.
VirtualMemory::Status answered(hipError_t status) noexcept {
  if (status != hipSuccess) static_cast<void>(hipGetLastError());
  return status;
}

hipMemAllocationProp properties_of(int device_id) noexcept {
  hipMemAllocationProp properties{};
  properties.type = hipMemAllocationTypePinned;
  properties.location.type = hipMemLocationTypeDevice;
  properties.location.id = device_id;
  return properties;
}

std::size_t granularity_of(int device_id) {
  int is_supported = 0;
  check(hipDeviceGetAttribute(&is_supported, hipDeviceAttributeVirtualMemoryManagementSupported, device_id),
        "hipDeviceGetAttribute");
  if (is_supported == 0) throw BackendError("hipMemMap", "the device has no such memory");
  const hipMemAllocationProp properties = properties_of(device_id);
  std::size_t granularity = 0;
  check(hipMemGetAllocationGranularity(&granularity, &properties, hipMemAllocationGranularityRecommended),
        "hipMemGetAllocationGranularity");
  return granularity;
}

class HipMemory final : public VirtualMemory {
 public:
  explicit HipMemory(int device_id) : device_id_(device_id), granularity_(granularity_of(device_id)) {}

  [[nodiscard]] std::size_t granularity() const noexcept override { return granularity_; }
  // HIP's documentation promises no more than the range of one hipMemMap.
  [[nodiscard]] bool unmaps_runs() const noexcept override { return false; }

  [[nodiscard]] Status reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept override {
    return answered(hipMemAddressReserve(&address, bytes, alignment, nullptr, 0));
  }
  void free(void* address, std::size_t bytes) noexcept override {
    static_cast<void>(answered(hipMemAddressFree(address, bytes)));
  }

  [[nodiscard]] Status create(std::size_t bytes, Handle& handle) noexcept override {
    const hipMemAllocationProp properties = properties_of(device_id_);
    hipMemGenericAllocationHandle_t created = nullptr;
    const hipError_t status = hipMemCreate(&created, bytes, &properties, 0);
    handle = reinterpret_cast<Handle>(created);
    return answered(status);
  }
  void release(Handle handle) noexcept override { static_cast<void>(answered(hipMemRelease(as_native(handle)))); }

  [[nodiscard]] Status map(void* address, std::size_t bytes, Handle handle) noexcept override {
    return answered(hipMemMap(address, bytes, 0, as_native(handle), 0));
  }
  [[nodiscard]] Status allow(void* address, std::size_t bytes) noexcept override {
    hipMemAccessDesc access{};
    access.location = properties_of(device_id_).location;
    access.flags = hipMemAccessFlagsProtReadWrite;
    return answered(hipMemSetAccess(address, bytes, &access, 1));
  }
  [[nodiscard]] Status unmap(void* address, std::size_t bytes) noexcept override {
    return answered(hipMemUnmap(address, bytes));
  }

  [[nodiscard]] std::string text(Status refusal) const override {
    return hipGetErrorString(static_cast<hipError_t>(refusal));
  }

 private:
  int device_id_;
  std::size_t granularity_;
};

}  // namespace

std::unique_ptr<VirtualMemory> native_virtual_memory(int device_id) {
  return std::make_unique<HipMemory>(device_id);
}

}  // namespace stateport::detail
