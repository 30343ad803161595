// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/tiers/remote_store.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stateport {

/// The objects that the clients of one InProcessStore share, in memory of this process, the least recently used one
/// evicted first. Stands for a store of other machines in tests and simulations. Thread-safe. Calls take O(bytes).
class InProcessObjects {
 public:
  explicit InProcessObjects(std::uint64_t capacity_bytes) noexcept : capacity_bytes_(capacity_bytes) {}
  InProcessObjects(const InProcessObjects&) = delete;
  InProcessObjects& operator=(const InProcessObjects&) = delete;

  /// Keeps an object that is there already. done, or no_room: larger than the capacity. It is the most recently used
  /// one then.
  TransferStatus put(std::string_view key, std::span<const RemotePiece> pieces);
  /// done, gone or foreign_layout, and the size of the object.
  Completion get(std::string_view key, std::span<const RemotePiece> pieces);
  [[nodiscard]] bool contains(std::string_view key) const;
  /// Returns whether it was there.
  bool erase(std::string_view key);

  /// A copy; nothing if it is not there.
  [[nodiscard]] std::optional<std::vector<std::byte>> read(std::string_view key) const;
  /// Puts other bytes in the place of an object that is there, as damage or another writer does. They may be more or
  /// fewer. Returns whether it was there, and they fit into the capacity.
  bool overwrite(std::string_view key, std::span<const std::byte> bytes);
  /// Of all objects, the least recently used one first.
  [[nodiscard]] std::vector<std::string> keys() const;
  [[nodiscard]] std::uint64_t held_bytes() const;
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  /// Recounts everything. Throws std::logic_error naming the first that is wrong. O(objects).
  void check_invariants() const;

 private:
  struct Object {
    std::string key;
    std::vector<std::byte> bytes;
  };
  using Objects = std::list<Object>;

  [[nodiscard]] std::optional<Objects::iterator> find(std::string_view key) const;
  void evict_until(std::uint64_t free_bytes);
  void erase(Objects::iterator object);

  std::uint64_t capacity_bytes_;
  mutable std::mutex mutex_;
  Objects objects_;                                                    ///< the least recently used one first
  std::unordered_map<std::string_view, Objects::iterator> positions_;  ///< keys are those of the objects
  std::uint64_t held_bytes_ = 0;
};

struct InProcessStoreOptions {
  RemoteQueueLimits limits = {};
  bool needs_registration = false;  ///< refuse memory that is not registered, as stores on network hardware do
};

/// A client of InProcessObjects. poll() carries requests out, in their order: only there is memory read or written.
class InProcessStore final : public RemoteStore {
 public:
  /// Throws InvalidArgument: no objects, a limit of 0.
  explicit InProcessStore(std::shared_ptr<InProcessObjects> objects, const InProcessStoreOptions& options = {});

  [[nodiscard]] bool needs_registration() const noexcept override { return needs_registration_; }
  [[nodiscard]] InProcessObjects& objects() const noexcept { return *objects_; }

 private:
  std::shared_ptr<InProcessObjects> objects_;
  bool needs_registration_;
};

}  // namespace stateport
