// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/core.h>
#include <stateport/c/parts.h>

#include "byte_source.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

/// A caller of the C interface whose calls are read from bytes: right calls, and any that the conventions of core.h
/// allow. A mistake that no call can refuse is left out: a pointer that is neither null nor valid for its number of
/// bytes.
namespace stateport::fuzz {

enum class Kind : std::uint8_t {
  spec,
  layout,
  hasher,
  allocator,
  planner,
  tree,
  lock,
  align,
  cache,
  // With a device: c_device_world.hpp.
  runtime,
  store,
  copier,
  resharder,
  committer,
  device_align,
  tiers,
  files,
  objects,
  remote,
  handover,
  elastic_memory,
  memory_mover
};

/// How handles of a kind are checked and ended.
struct KindCalls {
  Kind kind;
  stateport_status (*destroy)(void* handle);
  stateport_status (*check)(void* handle) = nullptr;
};

template <class Handle, stateport_status (*call)(Handle*)>
stateport_status call_on(void* handle) {
  return call(static_cast<Handle*>(handle));
}

class World {
 public:
  /// `more`: of kinds that the interface of core does not have.
  explicit World(ByteSource source, std::span<const KindCalls> more = {}) : input(source), more_kinds_(more) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { end(); }
  /// Checks and destroys every object.
  void end();

  ByteSource input;

  // Numbers: mostly small ones and those that calls answered, sometimes any.
  [[nodiscard]] std::int32_t number() { return static_cast<std::int32_t>(wide_number()); }
  [[nodiscard]] std::int64_t wide_number();
  /// A capacity that makes an object small, or is refused.
  [[nodiscard]] std::int32_t capacity();
  [[nodiscard]] double real();
  [[nodiscard]] std::int32_t flag() { return input.chance(64) ? 1 : 0; }
  /// From here on a number that is likely to be drawn.
  void know(std::int64_t value);

  /// `count` elements of a caller's array in memory that ends with it. Sometimes null, with any count.
  template <class T>
  [[nodiscard]] T* array(std::size_t& count, T (World::*draw)() = nullptr) {
    count = input.below(input.chance(24) ? 64 : 9);
    if (input.chance(8)) {
      count = input.chance(128) ? 0 : strange_count();
      return nullptr;
    }
    return room<T>(count, draw);
  }
  /// An array of a count that is given: as large as it must be, or null.
  template <class T>
  [[nodiscard]] T* room(std::size_t count, T (World::*draw)() = nullptr) {
    if (count == 0) return nullptr;
    T* const elements = reinterpret_cast<T*>(memory(count * sizeof(T)));
    for (std::size_t i = 0; i < count; ++i) elements[i] = draw ? (this->*draw)() : T{};
    return elements;
  }
  template <class T>
  [[nodiscard]] T* maybe(T* pointer) {
    return input.chance(8) ? nullptr : pointer;
  }
  [[nodiscard]] std::size_t strange_count() {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    const std::size_t counts[] = {1, most, most / 2, most / 2 + 1, most / 8 + 1, most / 16 + 1, std::size_t{1} << 32};
    return counts[input.below(7)];
  }
  [[nodiscard]] const void* text(std::size_t& count);

  /// Structs of a caller, one `size` apart. Now and then `size` belongs to another version, or is 0. `bytes_min`: bytes
  /// that this caller needs; older versions have fewer.
  template <class Struct>
  [[nodiscard]] Struct* structs(const std::vector<Struct>& values, std::size_t bytes_min = 0) {
    std::size_t size = struct_size(sizeof(Struct));
    if (size >= sizeof size && size < bytes_min) size = sizeof(Struct);
    if (input.chance(6)) return nullptr;
    const std::size_t stride = size < sizeof size || size > 4096 ? sizeof(Struct) : size;
    std::byte* const bytes = memory(stride * values.size(), std::byte{0});
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(bytes + i * stride, &values[i], std::min(sizeof(Struct), stride));
      std::memcpy(bytes + i * stride, &size, sizeof size);
      if (size == sizeof(Struct) + 8 && input.chance(64)) bytes[(i + 1) * stride - 1] = std::byte{1};
    }
    return reinterpret_cast<Struct*>(bytes);
  }
  template <class Struct>
  [[nodiscard]] Struct* given(const Struct& value, std::size_t bytes_min = 0) {
    return structs(std::vector<Struct>{value}, bytes_min);
  }
  /// Room for results. `kept`: a refused call that writes there is a finding.
  template <class Struct>
  [[nodiscard]] Struct* results(std::size_t count, bool kept, const Struct& settings = {}) {
    Struct* const first = structs(std::vector<Struct>(count, settings));
    if (first == nullptr || count == 0 || !kept) return first;
    keep(first, std::min(*reinterpret_cast<const std::size_t*>(first), sizeof(Struct)) * count);
    return first;
  }
  template <class Struct>
  [[nodiscard]] Struct* result(const Struct& settings = {}) {
    return results<Struct>(1, true, settings);
  }
  template <class T>
  [[nodiscard]] T* value(bool kept = true) {
    T* const place = maybe(room<T>(1));
    if (place != nullptr && kept) keep(place, sizeof(T));
    return place;
  }

  /// A handle: usually one of that kind that lives, else of another kind, destroyed, null or made up.
  template <class Handle>
  [[nodiscard]] Handle* pick(Kind kind) {
    return static_cast<Handle*>(pick_any(kind));
  }
  /// Calls `create` with room for a handle, which is then known.
  template <class Handle, class Create>
  void make(Kind kind, Create&& create) {
    Handle* handle = nullptr;
    const bool has_room = !input.chance(2);
    const stateport_status status = create(has_room ? &handle : nullptr);
    judge(status);
    expect((handle != nullptr) == (status == STATEPORT_OK), "a handle is written when one is made");
    if (handle != nullptr) add(kind, handle);
  }
  void add(Kind kind, void* handle) { handles_.push_back({kind, true, handle}); }
  /// Its `destroy` is called next.
  void forget(const void* handle);

  /// A refused call that writes there is a finding.
  void keep(const void* place, std::size_t bytes);
  /// Checks the status of the last call, then frees the arguments that were drawn for it.
  void judge(stateport_status status);
  /// Reads the array to which a call's answer points.
  template <class T>
  void read(const T* answered, std::size_t count) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(answered);
    for (std::size_t i = 0; i < count * sizeof(T); ++i) sum_ = sum_ + bytes[i];
  }
  /// A handle that lives, or null.
  [[nodiscard]] void* living(Kind kind);

 private:
  struct Handle {
    Kind kind;
    bool lives;
    void* value;
  };
  struct Kept {
    const std::byte* place;
    std::vector<std::byte> before;
  };
  [[nodiscard]] std::byte* memory(std::size_t bytes, std::byte fill = std::byte{0xA5});
  [[nodiscard]] std::size_t struct_size(std::size_t usual);
  [[nodiscard]] void* pick_any(Kind kind);
  [[nodiscard]] const KindCalls& calls_of(Kind kind) const;

  std::span<const KindCalls> more_kinds_;
  std::vector<Handle> handles_;
  std::vector<std::int64_t> known_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<Kept> kept_;
  volatile unsigned sum_ = 0;
};

/// Memory for fewer than `below` answers. Sometimes null, with any count.
template <class T>
[[nodiscard]] T* answers(World& world, std::size_t& count, std::uint32_t below) {
  count = world.input.below(below);
  T* const out = world.maybe(world.room<T>(count));
  if (out == nullptr && count > 0) count = world.strange_count();
  return out;
}

using Call = void (*)(World& world);

/// Every call of a family.
[[nodiscard]] std::span<const Call> spec_calls();
[[nodiscard]] std::span<const Call> allocator_calls();
[[nodiscard]] std::span<const Call> tree_calls();
[[nodiscard]] std::span<const Call> align_calls();
[[nodiscard]] std::span<const Call> cache_calls();

// Arguments that several families draw.
[[nodiscard]] const stateport_namespace* name_space(World& world);
[[nodiscard]] const stateport_reuse_hint* hint(World& world);
[[nodiscard]] const stateport_eviction_options* eviction(World& world);
[[nodiscard]] stateport_tag tag(World& world);
[[nodiscard]] stateport_media_key* media(World& world, std::size_t& count);

}  // namespace stateport::fuzz
