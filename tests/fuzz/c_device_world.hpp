// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport.h>

#include "c_world.hpp"

#include <map>
#include <string>

namespace stateport::fuzz {

/// A caller with a device that is the host: memory of stores, scratch, block tables and images is his, and ends where
/// an overrun is seen.
class DeviceWorld : public World {
 public:
  explicit DeviceWorld(ByteSource source);
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;
  /// Every store gives its memory back.
  ~DeviceWorld();

  /// Memory that lives until the end of the input. Null: more than an input gets.
  [[nodiscard]] std::byte* lasting(std::size_t bytes, std::byte fill = std::byte{0x5A});
  template <class T>
  [[nodiscard]] T* lasting_array(std::size_t count, T (World::*draw)() = nullptr) {
    T* const elements = reinterpret_cast<T*>(lasting(count * sizeof(T)));
    if (elements != nullptr && draw != nullptr)
      for (std::size_t i = 0; i < count; ++i) elements[i] = (this->*draw)();
    return elements;
  }
  /// An object that lives until the end of the input.
  template <class T>
  [[nodiscard]] T* own(T&& value) {
    auto kept = std::make_shared<std::decay_t<T>>(std::forward<T>(value));
    owned_.push_back(kept);
    return kept.get();
  }
  /// A refused call that changes the memory of a store is a finding.
  void keep_stores();

  /// An engine's allocator of device memory.
  static void* allocate(std::size_t bytes, std::size_t alignment, void* stream, void* context);
  static void deallocate(void* memory, std::size_t bytes, std::size_t alignment, void* stream, void* context);

  /// Almost always null, the only stream of a build without a GPU.
  [[nodiscard]] void* stream();
  /// Of a store: mostly one that there may be, sometimes -1 or any.
  [[nodiscard]] std::int32_t slot();
  [[nodiscard]] stateport_slot_copy* copies(std::size_t& count);
  [[nodiscard]] stateport_shard shard();
  [[nodiscard]] stateport_image_key key();
  [[nodiscard]] stateport_image_key* keys(std::size_t& count);
  /// Of this input: made when it is first asked for.
  [[nodiscard]] const char* folder();
  /// A model's name, in `bytes` bytes.
  [[nodiscard]] const void* model(std::size_t& bytes);

  /// Two layers of a conv and a recurrent tensor, of which all specs have the same shapes. Null: memory ran out.
  [[nodiscard]] stateport_spec* small_spec();
  [[nodiscard]] stateport_model_layout* small_layout();

 private:
  struct Allocation {
    std::size_t bytes;
    std::size_t alignment;
  };

  std::vector<std::unique_ptr<std::byte[]>> lasting_;
  std::vector<std::shared_ptr<void>> owned_;
  std::map<void*, Allocation> allocations_;
  std::size_t lasting_bytes_ = 0;
  std::size_t allocated_bytes_ = 0;
  std::string folder_;
};

using DeviceCall = void (*)(DeviceWorld& world);

/// Calls that belong together.
struct Family {
  std::span<const DeviceCall> begin;  ///< make the objects that the other calls usually need
  std::span<const DeviceCall> calls;
};
[[nodiscard]] Family store_family();
[[nodiscard]] Family step_family();
[[nodiscard]] Family rank_family();
[[nodiscard]] Family file_family();
[[nodiscard]] Family remote_family();
[[nodiscard]] Family tiers_family();
[[nodiscard]] Family elastic_family();

/// A remote store in functions of the caller's.
void make_client(DeviceWorld& world);
/// A store that gives its memory back to the world. Null: there is no room for it.
[[nodiscard]] stateport_store* make_store(DeviceWorld& world, stateport_spec* spec, std::int32_t slots);

/// Ends a handle of a kind.
template <class Handle, Kind kind, stateport_status (*call)(Handle*)>
void destroy(DeviceWorld& world) {
  auto* const handle = world.pick<Handle>(kind);
  const stateport_status status = call(handle);
  if (status == STATEPORT_OK) world.forget(handle);
  world.judge(status);
}

/// Starts the runtime that every input uses, and makes the folder in which theirs are.
void start_device();

}  // namespace stateport::fuzz
