// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

/// How arguments of C become arguments of C++, or a refusal.
namespace stateport::c {

/// Larger sizes are no struct of any version, but a member `size` that was forgotten; nor are those that would end
/// within a pointer.
inline constexpr std::size_t struct_bytes_max = 4096;

[[nodiscard]] inline std::size_t read_size(const void* from, const char* argument) {
  require(from != nullptr, argument, "null", "must point to a struct");
  std::size_t size = 0;
  std::memcpy(&size, from, sizeof size);
  require(size >= sizeof size && size <= struct_bytes_max && size % alignof(std::size_t) == 0, argument, size,
          "its size must be sizeof the struct");
  return size;
}

/// A caller's struct as this version knows it: members that an older caller lacks are zero, and members that only a
/// newer caller has are refused unless they are zero.
template <class Struct>
[[nodiscard]] Struct read_struct(const void* from, const char* argument) {
  static_assert(std::is_trivially_copyable_v<Struct> && std::is_standard_layout_v<Struct> &&
                offsetof(Struct, size) == 0);
  const std::size_t size = read_size(from, argument);
  const std::span bytes(static_cast<const std::byte*>(from), size);
  const std::size_t known = std::min(size, sizeof(Struct));
  const bool rest_is_zero =
      std::ranges::all_of(bytes.subspan(known), [](std::byte byte) { return byte == std::byte{0}; });
  require(rest_is_zero, argument, size, "is a larger struct, with members set that this version does not know");
  Struct result = {};
  std::memcpy(&result, bytes.data(), known);
  return result;
}

/// The same; null is all zeros.
template <class Struct>
[[nodiscard]] Struct read_optional_struct(const Struct* from, const char* argument) {
  return from == nullptr ? Struct{} : read_struct<Struct>(from, argument);
}

/// The members that the caller set in a struct for a result; the others may hold anything.
template <class Struct>
[[nodiscard]] Struct read_settings(const Struct* from, const char* argument) {
  Struct result = {};
  const std::size_t size = read_size(from, argument);
  std::memcpy(&result, from, std::min(size, sizeof(Struct)));
  return result;
}

/// Where results will go, one `size` of the first apart: refused before anything is done.
template <class Struct>
class OutArray {
 public:
  OutArray(Struct* to, std::size_t count, const char* argument)
      : to_(reinterpret_cast<std::byte*>(to)), size_(count == 0 ? sizeof(Struct) : read_size(to, argument)) {}

  void write(std::size_t i, Struct value) const noexcept {
    value.size = size_;
    std::byte* const to = to_ + i * size_;
    const std::size_t known = std::min(size_, sizeof(Struct));
    std::memcpy(to, &value, known);
    std::memset(to + known, 0, size_ - known);
  }

 private:
  std::byte* to_;
  std::size_t size_;
};

/// Where a result will go: refused before anything is done.
template <class Struct>
class Out {
 public:
  Out(Struct* to, const char* argument) : to_(to, 1, argument) {}
  void write(const Struct& value) const noexcept { to_.write(0, value); }

 private:
  OutArray<Struct> to_;
};

template <class T>
[[nodiscard]] T& checked(T* to, const char* argument) {
  require(to != nullptr, argument, "null", "must point to room for the result");
  return *to;
}

template <class T>
[[nodiscard]] std::span<T> array(T* data, std::size_t count, const char* argument) {
  require(data != nullptr || count == 0, argument, "null", "must point to an array");
  require(count <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / sizeof(T), argument, count,
          "has more elements than memory has");
  return {data, count};
}

/// An array of structs, one `size` apart.
template <class Struct>
[[nodiscard]] std::vector<Struct> read_structs(const Struct* data, std::size_t count, const char* argument) {
  std::vector<Struct> result;
  if (array(data, count, argument).empty()) return result;
  const std::size_t stride = read_size(data, argument);
  const auto* at = reinterpret_cast<const std::byte*>(data);
  for (std::size_t i = 0; i < count; ++i, at += stride) {
    require(read_size(at, argument) == stride, argument, read_size(at, argument), "all elements must have one size");
    result.push_back(read_struct<Struct>(at, argument));
  }
  return result;
}

/// Ids of a caller's array, in storage that is used again.
template <class Id>
[[nodiscard]] std::span<const Id> read_ids(const std::int32_t* data, std::size_t count, const char* argument,
                                           std::vector<Id>& storage) {
  const std::span<const std::int32_t> values = array(data, count, argument);
  storage.assign(values.size(), Id{});
  std::ranges::transform(values, storage.begin(), [](std::int32_t value) { return Id{value}; });
  return storage;
}

template <class Id>
void write_ids(std::span<const Id> ids, std::int32_t* out) noexcept {
  std::ranges::transform(ids, out, [](Id id) { return id.value(); });
}

/// The enumerator with this value; the last one is `last`.
template <class Enum>
[[nodiscard]] Enum enumerator(std::int32_t value, Enum last, const char* argument) {
  require(value >= 0 && value <= static_cast<std::int32_t>(last), argument, value, "is no enumerator");
  return static_cast<Enum>(value);
}

/// Of the names of metrics.
[[nodiscard]] inline std::string_view prefix_of(const char* prefix) {
  return prefix == nullptr ? "stateport" : prefix;
}

/// Writes the text that make() answers, ended by a zero byte, as far as there is room. bytes: needed for all of it.
template <class Make>
void write_text(char* text, std::size_t capacity, std::size_t* bytes, Make&& make) {
  const std::span<char> room = array(text, capacity, "text");
  std::size_t& needed = checked(bytes, "bytes");
  const std::string all = make();
  needed = all.size() + 1;
  if (room.empty()) return;
  const std::size_t reported = std::min(all.size(), room.size() - 1);
  std::ranges::copy(std::string_view(all).substr(0, reported), room.begin());
  room[reported] = '\0';
}

}  // namespace stateport::c
