// SPDX-License-Identifier: Apache-2.0
// The driver's calls: the runtime has no such ones. Kokkos is linked with the driver.
#include <stateport/backends/internal/virtual_memory.hpp>

#include "check.hpp"

#include <cuda.h>

namespace stateport::detail {
namespace {

/// A current context for the calling thread, where it has none.
class ContextScope {
 public:
  explicit ContextScope(int device_id) noexcept {
    CUcontext current = nullptr;
    if (cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr) return;
    changed_ = cudaSetDevice(device_id) == cudaSuccess;
  }
  ~ContextScope() {
    if (changed_) static_cast<void>(cuCtxSetCurrent(nullptr));
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool changed_ = false;
};

CUdeviceptr as_pointer(void* address) noexcept {
  return reinterpret_cast<CUdeviceptr>(address);
}

CUmemAllocationProp properties_of(int device_id) noexcept {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_id;
  return properties;
}

std::string text_of(CUresult status) {
  const char* text = nullptr;
  return cuGetErrorString(status, &text) == CUDA_SUCCESS && text != nullptr ? text : "unknown error of the driver";
}

std::size_t granularity_of(int device_id) {
  const ContextScope scope(device_id);
  int is_supported = 0;
  CUresult status =
      cuDeviceGetAttribute(&is_supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device_id);
  if (status == CUDA_SUCCESS && is_supported == 0) throw BackendError("cuMemMap", "the device has no such memory");
  if (status != CUDA_SUCCESS) throw BackendError("cuDeviceGetAttribute", text_of(status));
  const CUmemAllocationProp properties = properties_of(device_id);
  std::size_t granularity = 0;
  status = cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (status != CUDA_SUCCESS) throw BackendError("cuMemGetAllocationGranularity", text_of(status));
  return granularity;
}

class CudaMemory final : public VirtualMemory {
 public:
  explicit CudaMemory(int device_id) : device_id_(device_id), granularity_(granularity_of(device_id)) {}

  [[nodiscard]] std::size_t granularity() const noexcept override { return granularity_; }
  // The driver's documentation promises no more than the range of one cuMemMap.
  [[nodiscard]] bool unmaps_runs() const noexcept override { return false; }

  [[nodiscard]] Status reserve(std::size_t bytes, std::size_t alignment, void*& address) noexcept override {
    const ContextScope scope(device_id_);
    CUdeviceptr pointer = 0;
    const CUresult status = cuMemAddressReserve(&pointer, bytes, alignment, 0, 0);
    address = reinterpret_cast<void*>(pointer);
    return status;
  }
  void free(void* address, std::size_t bytes) noexcept override {
    const ContextScope scope(device_id_);
    static_cast<void>(cuMemAddressFree(as_pointer(address), bytes));
  }

  [[nodiscard]] Status create(std::size_t bytes, Handle& handle) noexcept override {
    const ContextScope scope(device_id_);
    const CUmemAllocationProp properties = properties_of(device_id_);
    CUmemGenericAllocationHandle created = 0;
    const CUresult status = cuMemCreate(&created, bytes, &properties, 0);
    handle = created;
    return status;
  }
  void release(Handle handle) noexcept override {
    const ContextScope scope(device_id_);
    static_cast<void>(cuMemRelease(handle));
  }

  [[nodiscard]] Status map(void* address, std::size_t bytes, Handle handle) noexcept override {
    const ContextScope scope(device_id_);
    return cuMemMap(as_pointer(address), bytes, 0, handle, 0);
  }
  [[nodiscard]] Status allow(void* address, std::size_t bytes) noexcept override {
    const ContextScope scope(device_id_);
    CUmemAccessDesc access{};
    access.location = properties_of(device_id_).location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(as_pointer(address), bytes, &access, 1);
  }
  [[nodiscard]] Status unmap(void* address, std::size_t bytes) noexcept override {
    const ContextScope scope(device_id_);
    return cuMemUnmap(as_pointer(address), bytes);
  }

  [[nodiscard]] std::string text(Status refusal) const override { return text_of(static_cast<CUresult>(refusal)); }

 private:
  int device_id_;
  std::size_t granularity_;
};

}  // namespace

std::unique_ptr<VirtualMemory> native_virtual_memory(int device_id) {
  return std::make_unique<CudaMemory>(device_id);
}

}  // namespace stateport::detail
