// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "containers/hash_index.hpp"
#include "containers/table.hpp"
#include "tier/tier_nodes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// Where one image is, and the one transfer that brings it into a tier.
struct ImageEntry {
  static constexpr std::uint32_t none = UINT32_MAX;
  enum class Task : std::uint8_t {
    none,
    store,  ///< from the device
    copy,   ///< from a faster tier, which keeps it
    move    ///< from a faster tier, which has evicted it
  };

  ImageKey key;
  std::uint64_t used_tick = 0;
  std::uint64_t created_tick = 0;
  std::uint32_t hits = 0;
  std::uint32_t pins = 0;     ///< of the engine
  std::uint32_t reads = 0;    ///< loads and finds that are not answered
  std::uint32_t next = none;  ///< behind this one in the queue of the tier `to`
  std::int32_t place = -1;    ///< task store: on the device
  RequestId request;          ///< task store: waits for it
  MediumSet in = 0;
  Task task = Task::none;
  Medium from = Medium::device;
  Medium to = Medium::host;
  bool waits = false;       ///< the task: for room, or for its turn
  bool has_waited = false;  ///< the task, for a load to end
  bool unwanted = false;    ///< removed while the task was there
  bool used = false;        ///< the entry

  [[nodiscard]] bool is_held() const noexcept { return pins > 0 || reads > 0 || task != Task::none; }
  [[nodiscard]] bool is_leaving(Medium medium) const noexcept { return task == Task::move && from == medium; }
};

/// The images that are known, each with a number. All calls are O(1). Nothing allocates after construction.
class ImageEntries {
 public:
  static constexpr std::uint32_t none = ImageEntry::none;

  explicit ImageEntries(std::size_t capacity) : capacity_(capacity) {
    entries_.reserve(capacity);
    free_.reserve(capacity);
    index_.reserve(capacity);
  }

  [[nodiscard]] ImageEntry& operator[](std::uint32_t at) noexcept { return entries_[at]; }
  [[nodiscard]] const ImageEntry& operator[](std::uint32_t at) const noexcept { return entries_[at]; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Numbers of entries are below it.
  [[nodiscard]] std::uint32_t made() const noexcept { return static_cast<std::uint32_t>(entries_.size()); }

  [[nodiscard]] std::uint32_t find(const ImageKey& key) const noexcept {
    return index_.find(hash_of(key), [&](std::uint32_t at) { return entries_[at].key == key; });
  }
  /// The entry of this key, a new one if there is none; none: there is no room for one.
  [[nodiscard]] std::uint32_t intern(const ImageKey& key) noexcept {
    std::uint32_t at = find(key);
    if (at != none) return at;
    if (free_.empty() && entries_.size() == capacity_) return none;
    at = free_.empty() ? made() : free_.back();
    if (free_.empty())
      entries_.emplace_back();
    else
      free_.pop_back();
    entries_[at].key = key;
    entries_[at].used = true;
    index_.insert(hash_of(key), at);
    return at;
  }
  void release(std::uint32_t at) noexcept {
    index_.erase(hash_of(entries_[at].key), at);
    entries_[at] = {};
    free_.push_back(at);
  }

  /// Throws std::logic_error naming the first violation. O(entries).
  void check_invariants() const {
    index_.check_invariants([&](std::uint32_t at) { return hash_of(entries_[at].key); });
    const auto used = static_cast<std::size_t>(std::ranges::count_if(entries_, &ImageEntry::used));
    require_invariant(used == index_.count() && used + free_.size() == entries_.size(), "ImageEntries",
                      "an entry is lost");
  }

 private:
  /// Engines without hashes of their own may count in the words: each field is spread over all bits.
  [[nodiscard]] static constexpr std::uint32_t hash_of(const ImageKey& key) noexcept {
    constexpr std::uint64_t golden = 0x9e3779b97f4a7c15U;
    std::uint64_t hash = static_cast<std::uint64_t>(key.content);
    for (const std::uint64_t field : {static_cast<std::uint64_t>(key.group), static_cast<std::uint64_t>(key.tokens),
                                      key.prefix.words[1], key.prefix.words[0]}) {
      hash = (hash ^ field) * golden;
      hash ^= hash >> 32;
    }
    return mixed_hash(hash);
  }

  std::size_t capacity_;
  Table<ImageEntry> entries_;
  std::vector<std::uint32_t> free_;
  HashIndex index_{50};
};

}  // namespace stateport::detail
