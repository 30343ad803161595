// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "combination.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace stateport::test {

/// Parts of a plan that an engine can leave out.
struct IgnoredLists {
  bool kv_blocks = false;
  bool scratch = false;
  bool draft_rows = false;
  bool clear = false;  ///< those of slots that do not begin with the empty state
  [[nodiscard]] bool any() const noexcept { return kv_blocks || scratch || draft_rows || clear; }
};

/// Memory of an engine in which every byte carries the mark of the tenant that wrote it. Executes plans, commits and
/// transfers of a RequestCache, and counts the bytes of others that a tenant could read. A write that replaces a part
/// of a place leaves the rest as it was, and a load that fails leaves a part of an image.
class MarkedMemory {
 public:
  using Mark = std::uint8_t;

  explicit MarkedMemory(const RequestCacheOptions& options, const IgnoredLists& ignored = {});

  /// Carries out the plan's work before the pass.
  void before(const PassPlan& plan);
  /// Runs one row of a tenant (0, 1 …); first looks at all that the row can read.
  void run(std::size_t index, const RowPlan& row, int tenant);
  void after(const PassCommit& commit);
  void after_end(CopyPlan copies);
  /// As StateWorld's. `tenant`: of the request of a load.
  void begin(const Transfer& transfer);
  void end(const Transfer& transfer, bool done, int tenant);

  void copy_kv(const SlotCopy& copy) {
    kv_[static_cast<std::size_t>(copy.dst_slot)] = kv_[static_cast<std::size_t>(copy.src_slot)];
  }
  /// See StateWorld::wipe(): a stranger wrote there.
  void wipe(MemoryPart part, std::int32_t first, std::int32_t count);

  [[nodiscard]] std::int64_t looked() const noexcept { return looked_; }  ///< number of bytes that were looked at
  [[nodiscard]] std::int64_t leaks() const noexcept { return leaks_; }    ///< bytes of others that could be read
  /// Bytes that a tenant could read and that it had written itself.
  [[nodiscard]] std::int64_t own() const noexcept { return own_; }

 private:
  using Bytes = std::vector<Mark>;
  using Places = std::vector<Bytes>;
  using ImageName = std::tuple<Medium, std::array<std::uint64_t, 2>, std::int64_t, CacheContent, std::int32_t>;
  static constexpr std::size_t part_bytes = 4;  ///< of a recurrent state, and of a conv window without drafts
  static constexpr Mark stranger = 255;         ///< content of memory before its first use
  [[nodiscard]] static Mark mark_of(int tenant) { return static_cast<Mark>(tenant + 1); }

  [[nodiscard]] Places& checkpoints(std::size_t group) {
    return has_separate_checkpoints(options_) ? checkpoints_ : slots_[group];
  }
  [[nodiscard]] Bytes& place_of(const Transfer& transfer);
  void copy(CopyPlan plan, const Places& from, Places& to) const;
  void look(std::span<const Mark> bytes, Mark mark);
  void look_at(std::size_t index, const RowPlan& row, Mark mark);
  void write(std::size_t index, const RowPlan& row, Mark mark);

  RequestCacheOptions options_;
  IgnoredLists ignored_;
  std::size_t conv_bytes_;
  std::vector<Places> slots_;  ///< by group and slot: recurrent state, then conv window
  Places checkpoints_;
  Places scratch_;
  Places steps_;  ///< by row of the pass: the states after its steps
  Places kv_;     ///< by block
  std::map<ImageName, Bytes> images_;
  std::map<TransferId, Bytes> moving_;
  std::int64_t looked_ = 0;
  std::int64_t leaks_ = 0;
  std::int64_t own_ = 0;
};

}  // namespace stateport::test
