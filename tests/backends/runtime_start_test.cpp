// SPDX-License-Identifier: Apache-2.0
// How a process starts and ends the device runtime. It can do so once, so every case runs in a child process of its
// own, and this process never starts it.
#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/runtime.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

using stateport::BackendError;
using stateport::Buffer;
using stateport::DeviceResource;
using stateport::Event;
using stateport::InvalidArgument;
using stateport::Runtime;
using stateport::Stream;

namespace {

constexpr int passed = 0;
constexpr int skipped = 77;

/// Runs `body` in a child process and returns its exit code; -1 when a signal ended it. The child ends with
/// std::exit, as a program does.
template <class Body>
[[nodiscard]] int in_child(Body&& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return -1;
  if (child == 0) {
    int code = 1;
    try {
      code = body();
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "child: %s\n", failure.what());
    }
    std::exit(code);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class Error, class Body>
[[nodiscard]] bool throws(Body&& body) {
  try {
    body();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// The exit code that names the first wrong expectation.
#define EXPECT_IN_CHILD(condition) \
  if (!(condition)) {              \
    return __LINE__ % 70 + 2;      \
  }

}  // namespace

TEST_CASE("before the first Runtime every use of the device says that there is none") {
  CHECK(in_child([] {
          EXPECT_IN_CHILD(!Runtime::is_running());
          EXPECT_IN_CHILD(throws<BackendError>([] { static_cast<void>(Stream::default_stream()); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { static_cast<void>(Stream::create()); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { static_cast<void>(Stream::from_native(nullptr)); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { const DeviceResource device; }));
          EXPECT_IN_CHILD(throws<BackendError>([] { const Event event; }));
          Stream::forget_native(nullptr);
          Runtime::finalize();
          const Runtime runtime;
          Stream::default_stream().synchronize();
          return passed;
        }) == passed);
}

TEST_CASE("a bad device id starts nothing, and a good one still can") {
  CHECK(in_child([] {
          EXPECT_IN_CHILD(throws<InvalidArgument>([] { const Runtime runtime({.device_id = 1'000}); }));
          EXPECT_IN_CHILD(throws<InvalidArgument>([] { const Runtime runtime({.device_id = -2}); }));
          EXPECT_IN_CHILD(!Runtime::is_running());
          const Runtime runtime({.device_id = 0});
          EXPECT_IN_CHILD(runtime.device().id == 0);
          return passed;
        }) == passed);
}

TEST_CASE("a Runtime may be made after the last one has gone") {
  CHECK(in_child([] {
          std::optional<Stream> stream;
          for (int round = 0; round < 3; ++round) {
            const Runtime runtime;
            if (stream) stream->synchronize();
            stream = Stream::create();
          }
          stream->synchronize();
          return passed;
        }) == passed);
}

TEST_CASE("finalize ends every stream; objects that still name one are inert, and their memory is given back") {
  CHECK(in_child([] {
          std::optional<Runtime> runtime(std::in_place);
          DeviceResource device;
          const Stream own = Stream::create();
          const Stream standard = Stream::default_stream();
          Buffer buffer(device, 100, 256, own);
          std::optional<Event> event(std::in_place);
          runtime.reset();
          Runtime::finalize();
          Runtime::finalize();
          EXPECT_IN_CHILD(!Runtime::is_running());
          EXPECT_IN_CHILD(throws<BackendError>([&] { own.synchronize(); }));
          EXPECT_IN_CHILD(throws<BackendError>([&] { standard.synchronize(); }));
          char bytes[2] = {};
          EXPECT_IN_CHILD(throws<BackendError>([&] { stateport::copy_bytes(own, &bytes[0], &bytes[1], 1); }));
          EXPECT_IN_CHILD(throws<BackendError>([&] { stateport::fill_bytes(own, bytes, std::byte{1}, 2); }));
          EXPECT_IN_CHILD(throws<BackendError>([&] { event->record(own); }));
          EXPECT_IN_CHILD(throws<BackendError>([&] { event->wait(standard); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { static_cast<void>(Stream::default_stream()); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { const Runtime second; }));
          EXPECT_IN_CHILD(own == own && !(own == standard));
          buffer.reset();
          return passed;
        }) == passed);
}

TEST_CASE("an engine that runs Kokkos keeps it, and its end ends the streams") {
  CHECK(in_child([] {
          Kokkos::initialize(Kokkos::InitializationSettings().set_disable_warnings(true));
          std::optional<Stream> early(Stream::default_stream());
          {
            const Runtime runtime;
            early->synchronize();
          }
          Runtime::finalize();
          EXPECT_IN_CHILD(Kokkos::is_initialized());
          const Stream late = Stream::create();
          late.synchronize();
          Kokkos::finalize();
          EXPECT_IN_CHILD(throws<BackendError>([&] { late.synchronize(); }));
          EXPECT_IN_CHILD(throws<BackendError>([] { const Runtime runtime; }));
          return passed;
        }) == passed);
}

TEST_CASE("a program may end with Runtime, streams and memory in static storage") {
  CHECK(in_child([] {
          static std::optional<Runtime> runtime(std::in_place);
          static DeviceResource device;
          static Stream stream = Stream::create();
          static Buffer buffer(device, 1000, 256, stream);
          return passed;
        }) == passed);
}

TEST_CASE("a Runtime starts without a word on standard error") {
  CHECK(in_child([] {
          ::unsetenv("OMP_PROC_BIND");
          std::FILE* const log = std::tmpfile();
          EXPECT_IN_CHILD(log != nullptr && ::dup2(::fileno(log), STDERR_FILENO) >= 0);
          const Runtime runtime({.host_threads = 3});
          struct stat file {};
          EXPECT_IN_CHILD(::fstat(STDERR_FILENO, &file) == 0 && file.st_size == 0);
          return passed;
        }) == passed);
}

TEST_CASE("an OpenMP build takes the host threads that a Runtime asks for") {
  if (stateport::backend_info().name != "OpenMP") return;
  CHECK(in_child([] {
          const Runtime runtime({.host_threads = 1});
          EXPECT_IN_CHILD(Kokkos::num_threads() == 1);
          return passed;
        }) == passed);
}

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  // Asking for devices may start the vendor's driver, which no child could use then.
  const int present = in_child([] { return stateport::devices().empty() ? skipped : passed; });
  if (present == skipped) {
    std::printf("skipped: no %s device found\n", std::string(stateport::backend_info().name).c_str());
    return skipped;
  }
  return context.run();
}
