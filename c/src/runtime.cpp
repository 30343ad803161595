// SPDX-License-Identifier: Apache-2.0
// Runtime and streams.
#include <stateport/backends/runtime.hpp>

#include <stateport/backends/device.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/c/store.h>

#include "arguments.hpp"
#include "guard.hpp"
#include "handle_table.hpp"

using namespace stateport;
using namespace stateport::c;

namespace {

struct RuntimeObject final : Object {
  static constexpr Kind kind = Kind::runtime;
  explicit RuntimeObject(const Runtime::Options& options) : Object(kind), runtime(options) {}

  Runtime runtime;
};

}  // namespace

const char* stateport_backend() {
  return backend_info().name.data();  // of a literal
}

stateport_status stateport_runtime_create(const stateport_runtime_options* options, stateport_runtime** out) {
  return guarded([&] {
    create(out, [&] {
      Runtime::Options wanted;
      if (options != nullptr) {
        const auto given = read_struct<stateport_runtime_options>(options, "options");
        wanted = {.device_id = given.device_id, .host_threads = given.host_threads};
      }
      return std::make_shared<RuntimeObject>(wanted);
    });
  });
}
stateport_status stateport_runtime_destroy(stateport_runtime* runtime) {
  return guarded([&] { destroy<RuntimeObject>(runtime, "runtime"); });
}

stateport_status stateport_stream_synchronize(void* stream) {
  return guarded([&] { Stream::from_native(stream).synchronize(); });
}
stateport_status stateport_stream_forget(void* stream) {
  return guarded([&] { Stream::forget_native(stream); });
}
stateport_status stateport_copy_bytes(void* stream, void* dst, const void* src, size_t bytes) {
  return guarded([&] { copy_bytes(Stream::from_native(stream), dst, src, bytes); });
}
