// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>

#include <stateport/backends/internal/device_checks.hpp>
#include <stateport/core/model/error.hpp>

#include "native_stream.hpp"
#include "stream_check.hpp"
#include "stream_state.hpp"

#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace stateport {
namespace detail {
namespace {

using StatePointer = std::shared_ptr<const StreamState>;

/// Every StreamState there is. Engines' streams are kept until they are forgotten; own streams live with their users.
struct StreamRegistry {
  struct Entry {
    std::weak_ptr<const StreamState> state;
    StatePointer kept;
  };

  std::mutex mutex;
  StatePointer default_state;
  std::unordered_map<void*, Entry> by_native;
  std::unordered_set<StreamState*> all;
};

// Never destroyed: Streams in objects of static storage may go after everything else.
StreamRegistry& registry() {
  static auto* const instance = new StreamRegistry;
  return *instance;
}

// Kokkos refuses instances that outlive it, so all of ours go first. Runs within Kokkos::finalize.
void end_all_streams() {
  StreamRegistry& streams = registry();
  StatePointer default_state;
  std::unordered_map<void*, StreamRegistry::Entry> by_native;
  const std::lock_guard lock(streams.mutex);
  for (StreamState* state : streams.all) state->end();
  // The shells that this drops need only `all` in their destructors, which is why they run after the lock is gone.
  default_state.swap(streams.default_state);
  by_native.swap(streams.by_native);
}

/// Locks the registry for one call of Stream. A state that is dropped when the call fails goes after the lock, which
/// its destructor takes.
struct LockedRegistry {
  StreamRegistry& streams = registry();
  StatePointer made;  ///< members go in reverse order: the lock first
  std::unique_lock<std::mutex> lock{streams.mutex};

  const StatePointer& add(ExecutionSpace space, void* native, StreamState::Owner owner) {
    const bool owned = owner == StreamState::Owner::library;
    auto state = std::make_shared<StreamState>(std::move(space), native, owner);
    StreamState* const raw = state.get();
    made = std::move(state);
    streams.all.insert(raw);
    // In an OpenMP build every stream has the same native handle: it names the default stream.
    if (!owned || native != nullptr) streams.by_native[native] = {made, owned ? nullptr : made};
    return made;
  }

  const StatePointer& default_state() {
    if (!Kokkos::is_initialized()) throw BackendError("Stream", "start a stateport::Runtime first");
    if (!streams.default_state) {
      Kokkos::push_finalize_hook(end_all_streams);
      const ExecutionSpace space;
      streams.default_state = add(space, native_stream(space), StreamState::Owner::runtime);
      made.reset();
    }
    return streams.default_state;
  }
};

}  // namespace

StreamState::StreamState(ExecutionSpace instance, void* native_stream, Owner owner_of_native)
    : space(std::move(instance)), native(native_stream), owner(owner_of_native) {}

StreamState::~StreamState() {
  StreamRegistry& streams = registry();
  const std::lock_guard lock(streams.mutex);
  streams.all.erase(this);
  const auto entry = streams.by_native.find(native);
  if (entry != streams.by_native.end() && entry->second.state.expired()) streams.by_native.erase(entry);
  end();
}

void StreamState::end() noexcept {
  if (!space) return;
  space.reset();
  if (owner == Owner::engine) return;
  if (owner == Owner::library) destroy_native_stream(native);
  native = nullptr;
  gone = true;
}

}  // namespace detail

Stream Stream::default_stream() {
  return Stream(detail::LockedRegistry().default_state());
}

Stream Stream::create() {
  detail::LockedRegistry locked;
  static_cast<void>(locked.default_state());
  void* const native = detail::create_native_stream();
  try {
    return Stream(locked.add(detail::make_execution_space(native), native, detail::StreamState::Owner::library));
  } catch (...) {
    if (!locked.made) detail::destroy_native_stream(native);
    throw;
  }
}

Stream Stream::from_native(void* native) {
  detail::LockedRegistry locked;
  static_cast<void>(locked.default_state());
  const auto entry = locked.streams.by_native.find(native);
  if (entry != locked.streams.by_native.end())
    if (auto known = entry->second.state.lock()) return Stream(std::move(known));
  detail::require_stream_in_use(native);
  return Stream(locked.add(detail::make_execution_space(native), native, detail::StreamState::Owner::engine));
}

void Stream::forget_native(void* native) noexcept {
  detail::StreamRegistry& streams = detail::registry();
  std::shared_ptr<const detail::StreamState> dropped;  // goes after the lock, which its destructor takes
  const std::lock_guard lock(streams.mutex);
  const auto entry = streams.by_native.find(native);
  if (entry == streams.by_native.end() || !entry->second.kept || entry->second.kept == streams.default_state) return;
  dropped = std::move(entry->second.kept);
  streams.by_native.erase(entry);
}

void* Stream::native() const noexcept {
  return state_->native;
}

void Stream::synchronize() const {
  detail::require_usable(*this);
  detail::synchronize_native_stream(state_->native);
}

void detail::require_usable(const Stream& stream) {
  static_cast<void>(execution_space(stream));
}

const ExecutionSpace& execution_space(const Stream& stream) {
  const std::optional<ExecutionSpace>& space = stream.state().space;
  if (!space) throw BackendError("Stream", "the device runtime has ended");
  return *space;
}

}  // namespace stateport
