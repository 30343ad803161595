// SPDX-License-Identifier: Apache-2.0
#include "handle_table.hpp"

#include "guard.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

namespace stateport::c {
namespace {

constexpr unsigned index_bits = 24;
constexpr unsigned generation_bits = 32;
constexpr std::size_t index_max = (std::size_t{1} << index_bits) - 1;
static_assert(sizeof(void*) == sizeof(std::uint64_t), "a handle needs 64 bits");

std::string_view name(Kind kind) noexcept {
  switch (kind) {
    case Kind::none:
      break;
    case Kind::runtime:
      return "runtime";
    case Kind::spec:
      return "spec";
    case Kind::model_layout:
      return "model layout";
    case Kind::store:
      return "store";
    case Kind::copier:
      return "copier";
    case Kind::resharder:
      return "resharder";
    case Kind::slot_allocator:
      return "slot allocator";
    case Kind::checkpoint_planner:
      return "checkpoint planner";
    case Kind::tree:
      return "tree";
    case Kind::tree_lock:
      return "tree lock";
    case Kind::align:
      return "align context";
    case Kind::image_cache:
      return "image cache";
    case Kind::router_index:
      return "router index";
    case Kind::align_planner:
      return "align planner";
    case Kind::request_cache:
      return "request cache";
    case Kind::step_committer:
      return "step committer";
    case Kind::elastic_memory:
      return "elastic memory";
    case Kind::memory_mover:
      return "memory mover";
    case Kind::integrity:
      return "integrity";
    case Kind::state_tiers:
      return "state tiers";
    case Kind::file_tier:
      return "file tier";
    case Kind::remote_objects:
      return "remote objects";
    case Kind::remote_store:
      return "remote store";
    case Kind::handover_end:
      return "handover end";
    case Kind::hasher:
      return "hasher";
  }
  return "?";
}

}  // namespace

HandleTable& HandleTable::instance() {
  static auto* const table = new HandleTable;
  return *table;
}

void* HandleTable::add(std::shared_ptr<Object> object) {
  void* handle = nullptr;
  add({&object, 1}, {&handle, 1});
  return handle;
}

void HandleTable::add(std::span<std::shared_ptr<Object>> objects, std::span<void*> out) {
  const std::unique_lock lock(mutex_);
  const std::size_t room = free_.size() + (index_max + 1 - entries_.size());
  if (objects.size() > room)
    throw NoCapacity("handles", static_cast<std::int64_t>(objects.size()), static_cast<std::int64_t>(room));
  const std::size_t made = objects.size() - std::min(objects.size(), free_.size());
  const std::size_t before = entries_.size();
  entries_.resize(before + made);
  try {
    free_.reserve(entries_.capacity());
  } catch (...) {
    entries_.resize(before);
    throw;
  }
  for (std::size_t index = before; index < entries_.size(); ++index) free_.push_back(index);
  for (std::size_t i = 0; i < objects.size(); ++i) out[i] = place(std::move(objects[i]));
}

void* HandleTable::place(std::shared_ptr<Object> object) noexcept {
  const std::size_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[index];
  const auto kind = static_cast<std::uintptr_t>(object->kind());
  entry.object = std::move(object);
  const std::uintptr_t handle =
      kind << (index_bits + generation_bits) | static_cast<std::uintptr_t>(entry.generation) << index_bits | index;
  return reinterpret_cast<void*>(handle);
}

std::size_t HandleTable::index_of(const void* handle, Kind kind, const char* argument) const {
  if (handle == nullptr) throw InvalidHandle(argument, "null", name(kind));
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  const auto held = static_cast<Kind>(number >> (index_bits + generation_bits));
  const auto generation = static_cast<std::uint32_t>(number >> index_bits);
  const std::size_t index = number & index_max;
  const bool made = index < entries_.size() && generation >= 1 && generation <= entries_[index].generation &&
                    held > Kind::none && held <= last_kind;
  if (!made) throw InvalidHandle(argument, "no handle", name(kind));
  const Entry& entry = entries_[index];
  if (entry.object == nullptr || generation != entry.generation)
    throw InvalidHandle(argument, "a handle that was destroyed", name(kind));
  if (held != entry.object->kind()) throw InvalidHandle(argument, "no handle", name(kind));
  if (held != kind) throw InvalidHandle(argument, name(held), name(kind));
  // Here, and not where the mutex is taken: a thread that has found an object may be its last user, and end it.
  require_state(!entry.object->turn_owner().is_calling_back_here(), argument, "is used by a callback of its own");
  return index;
}

std::shared_ptr<Object> HandleTable::find(const void* handle, Kind kind, const char* argument) const {
  const std::shared_lock lock(mutex_);
  return entries_[index_of(handle, kind, argument)].object;
}

std::shared_ptr<Object> HandleTable::remove(const void* handle, Kind kind, const char* argument) {
  const std::unique_lock lock(mutex_);
  return take(index_of(handle, kind, argument));
}

std::vector<std::shared_ptr<Object>> HandleTable::remove(std::span<const void* const> handles, Kind kind,
                                                         const char* argument) {
  std::vector<std::shared_ptr<Object>> objects;
  std::vector<std::size_t> indices;
  objects.reserve(handles.size());
  indices.reserve(handles.size());
  const std::unique_lock lock(mutex_);
  for (const void* handle : handles) indices.push_back(index_of(handle, kind, argument));
  std::ranges::sort(indices);
  if (std::ranges::adjacent_find(indices) != indices.end())
    throw InvalidHandle(argument, "a handle that is named twice", name(kind));
  for (const std::size_t index : indices) objects.push_back(take(index));
  return objects;
}

std::shared_ptr<Object> HandleTable::take(std::size_t index) noexcept {
  Entry& entry = entries_[index];
  std::shared_ptr<Object> object = std::move(entry.object);
  entry.object.reset();
  if (entry.generation < std::numeric_limits<std::uint32_t>::max()) {
    ++entry.generation;
    free_.push_back(index);
  }
  return object;
}

}  // namespace stateport::c
