// SPDX-License-Identifier: Apache-2.0
#include "memory_fixtures.hpp"

#include <stateport/backends/callback_resource.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/host_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>

#include "failing_resource.hpp"
#include "limit_resource.hpp"
#include "statistics_resource.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace stateport::test {
namespace {

// Stands for an engine's allocator.
void* engine_allocate(std::size_t bytes, std::size_t alignment, void*, void* context) {
  ++*static_cast<int*>(context);
  return bytes > (std::size_t{1} << 40) ? nullptr : ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
}
void engine_deallocate(void* memory, std::size_t bytes, std::size_t alignment, void*, void* context) {
  --*static_cast<int*>(context);
  ::operator delete (memory, bytes, std::align_val_t{alignment});
}

template <class Resource, class... Arguments>
ResourceUnderTest adaptor(std::string name, std::unique_ptr<MemoryResource> upstream, Arguments&&... arguments) {
  ResourceUnderTest under_test{.name = std::move(name)};
  under_test.resource = std::make_unique<Resource>(*upstream, std::forward<Arguments>(arguments)...);
  under_test.upstreams.push_back(std::move(upstream));
  return under_test;
}

ResourceUnderTest callback() {
  static int live = 0;
  ResourceUnderTest under_test{.name = "callback"};
  under_test.resource = std::make_unique<CallbackResource>(CallbackResource::Callbacks{
      .allocate = engine_allocate, .deallocate = engine_deallocate, .context = &live, .kind = MemoryKind::host});
  return under_test;
}

}  // namespace

std::vector<ResourceUnderTest> every_resource() {
  constexpr std::size_t budget_bytes = std::size_t{1} << 30;
  std::vector<ResourceUnderTest> all;
  all.push_back({.name = "host", .resource = std::make_unique<HostResource>()});
  all.push_back({.name = "device", .resource = std::make_unique<DeviceResource>()});
  all.push_back({.name = "pinned host", .resource = std::make_unique<PinnedResource>()});
  all.push_back({.name = "host with huge pages",
                 .resource = std::make_unique<HostResource>(HostResource::Options{.huge_pages = true})});
  all.push_back(adaptor<StatisticsResource>("statistics", std::make_unique<DeviceResource>()));
  all.push_back(adaptor<LimitResource>("limit", std::make_unique<DeviceResource>(), budget_bytes));
  all.push_back(adaptor<FailingResource>("failing", std::make_unique<HostResource>()));
  all.push_back(callback());
  return all;
}

void paint(MemoryKind kind, void* memory, std::size_t bytes, unsigned char value, const Stream& stream) {
  if (kind == MemoryKind::host) {  // a device may not be able to write it
    stream.synchronize();
    std::memset(memory, value, bytes);
    return;
  }
  fill_bytes(stream, memory, std::byte{value}, bytes);
}

bool painted(const void* memory, std::size_t bytes, unsigned char value, const Stream& stream) {
  std::vector<unsigned char> seen(bytes);
  copy_bytes(stream, seen.data(), memory, bytes);
  stream.synchronize();
  return seen == std::vector<unsigned char>(bytes, value);
}

bool aborts(const std::function<void()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Neither doctest's handler nor the assertion's text belongs in the report of the parent.
    std::signal(SIGABRT, SIG_DFL);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

}  // namespace stateport::test
