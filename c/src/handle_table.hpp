// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace stateport::c {

enum class Kind : std::uint8_t {
  none,
  runtime,
  spec,
  model_layout,
  store,
  copier,
  resharder,
  slot_allocator,
  checkpoint_planner,
  tree,
  tree_lock,
  align,
  align_planner,
  image_cache,
  router_index,
  request_cache,
  step_committer,
  elastic_memory,
  memory_mover,
  integrity,
  state_tiers,
  file_tier,
  remote_objects,
  remote_store,
  handover_end,
  hasher
};
inline constexpr Kind last_kind = Kind::hasher;

/// The object that a handle names. Calls on one handle take turns: they hold its mutex.
class Object {
 public:
  explicit Object(Kind kind) noexcept : kind_(kind) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  /// Whose mutex the calls on this one hold: it is made of that one and changes it. Usually its own.
  [[nodiscard]] virtual const Object& turn_owner() const noexcept { return *this; }
  /// True in a callback of the calls on this object: the calling thread has the mutex, and would wait for itself.
  [[nodiscard]] virtual bool is_calling_back_here() const noexcept {
    return calling_back_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

 private:
  friend class Callback;

  Kind kind_;
  std::mutex mutex_;
  std::atomic<std::thread::id> calling_back_;  ///< of a callback that runs
};

/// While a function of the caller's runs during a call on `of`.
class Callback {
 public:
  explicit Callback(Object& of) noexcept : of_(of) {
    of_.calling_back_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~Callback() { of_.calling_back_.store({}, std::memory_order_relaxed); }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

 private:
  Object& of_;
};

/// Every object that C has a handle of. A handle is a number in the guise of a pointer, never dereferenced:
///
///     63      56 55                    24 23              0
///     [  kind  ][       generation       ][     index      ]
///
/// An index is used again with the next generation, and no more after the last one, so a handle that was destroyed
/// never comes to life again. Thread-safe; O(1).
class HandleTable {
 public:
  /// The one of the process. It is never destroyed: handles may be used until the very end of the program.
  [[nodiscard]] static HandleTable& instance();

  [[nodiscard]] void* add(std::shared_ptr<Object> object);
  /// Several: all, or none. out: as many.
  void add(std::span<std::shared_ptr<Object>> objects, std::span<void*> out);
  /// Throws InvalidHandle unless `handle` names a living object of that kind, InvalidState in a callback of the calls
  /// on it. So do the others. `argument` is for the text.
  [[nodiscard]] std::shared_ptr<Object> find(const void* handle, Kind kind, const char* argument) const;
  /// The same, and ends the handle. The object goes with its last user.
  [[nodiscard]] std::shared_ptr<Object> remove(const void* handle, Kind kind, const char* argument);
  /// Several, all or none: null is refused, and one that is named twice.
  [[nodiscard]] std::vector<std::shared_ptr<Object>> remove(std::span<const void* const> handles, Kind kind,
                                                            const char* argument);

 private:
  struct Entry {
    std::shared_ptr<Object> object;
    std::uint32_t generation = 1;
  };

  [[nodiscard]] void* place(std::shared_ptr<Object> object) noexcept;
  [[nodiscard]] std::shared_ptr<Object> take(std::size_t index) noexcept;
  [[nodiscard]] std::size_t index_of(const void* handle, Kind kind, const char* argument) const;

  mutable std::shared_mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> free_;  ///< with room for every entry
};

template <class T>
[[nodiscard]] std::shared_ptr<T> find(const void* handle, const char* argument) {
  return std::static_pointer_cast<T>(HandleTable::instance().find(handle, T::kind, argument));
}

/// The object of a handle for the time of one call, which has it for itself.
template <class T>
class Held {
 public:
  Held(const void* handle, const char* argument) : object_(find<T>(handle, argument)), lock_(object_->mutex()) {}
  [[nodiscard]] T* operator->() const noexcept { return object_.get(); }
  [[nodiscard]] T& operator*() const noexcept { return *object_; }

 private:
  std::shared_ptr<T> object_;  ///< goes after the lock on its mutex
  std::unique_lock<std::mutex> lock_;
};

/// Makes an object by `make`, which returns a shared pointer, and writes its handle to `out`.
template <class Handle, class Make>
void create(Handle** out, Make&& make) {
  require(out != nullptr, "out", "null", "must point to room for a handle");
  *out = static_cast<Handle*>(HandleTable::instance().add(make()));
}

/// Ends a handle; null is none.
template <class T>
void destroy(const void* handle, const char* argument) {
  if (handle != nullptr) static_cast<void>(HandleTable::instance().remove(handle, T::kind, argument));
}

}  // namespace stateport::c
