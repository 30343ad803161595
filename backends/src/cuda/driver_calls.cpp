// SPDX-License-Identifier: Apache-2.0
// The driver's calls that stateport and Kokkos make, for wheels: each asks libcuda.so.1 when it is called for the first
// time. Linked with libcuda instead, the library could not be loaded on a machine without a driver, and what needs no
// device could not be used there. Other builds link libcuda.
#include <cuda.h>
#include <dlfcn.h>

namespace {

void* driver_function(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? ::dlsym(library, name) : nullptr;
}

}  // namespace

// cuda.h names some functions anew by macros, as cuCtxPushCurrent_v2: these are expanded first.
#define STATEPORT_TEXT_OF(name) #name
#define STATEPORT_DRIVER_CALL(name, parameters, arguments)                                                \
  CUresult CUDAAPI name parameters {                                                                      \
    static const auto call = reinterpret_cast<decltype(&name)>(driver_function(STATEPORT_TEXT_OF(name))); \
    return call ? call arguments : CUDA_ERROR_NO_DEVICE;                                                  \
  }

STATEPORT_DRIVER_CALL(cuCtxGetCurrent, (CUcontext * context), (context))
STATEPORT_DRIVER_CALL(cuCtxGetDevice, (CUdevice * device), (device))
STATEPORT_DRIVER_CALL(cuCtxPopCurrent, (CUcontext * context), (context))
STATEPORT_DRIVER_CALL(cuCtxPushCurrent, (CUcontext context), (context))
STATEPORT_DRIVER_CALL(cuCtxSetCurrent, (CUcontext context), (context))
STATEPORT_DRIVER_CALL(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device),
                      (value, attribute, device))
STATEPORT_DRIVER_CALL(cuGetErrorString, (CUresult error, const char** text), (error, text))
STATEPORT_DRIVER_CALL(cuMemAddressFree, (CUdeviceptr address, size_t bytes), (address, bytes))
STATEPORT_DRIVER_CALL(cuMemAddressReserve,
                      (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                       unsigned long long flags),
                      (address, bytes, alignment, wanted, flags))
STATEPORT_DRIVER_CALL(cuMemCreate,
                      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp* properties,
                       unsigned long long flags),
                      (handle, bytes, properties, flags))
STATEPORT_DRIVER_CALL(cuMemGetAllocationGranularity,
                      (size_t * granularity, const CUmemAllocationProp* properties,
                       CUmemAllocationGranularity_flags option),
                      (granularity, properties, option))
STATEPORT_DRIVER_CALL(cuMemMap,
                      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags),
                      (address, bytes, offset, handle, flags))
STATEPORT_DRIVER_CALL(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))
STATEPORT_DRIVER_CALL(cuMemSetAccess, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count),
                      (address, bytes, access, count))
STATEPORT_DRIVER_CALL(cuMemUnmap, (CUdeviceptr address, size_t bytes), (address, bytes))
STATEPORT_DRIVER_CALL(cuStreamGetCtx, (CUstream stream, CUcontext* context), (stream, context))
