// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_prefixes.hpp>

#include "serve/request_book.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// Counts the memory that pins hold and loads of prefetches take, so that a request of max_request_tokens finds room
/// beside them.
class HeldMemory {
 public:
  /// Sizes of a load of one prefetch.
  struct Load {
    std::int64_t blocks = 0;  ///< of KV
    std::int64_t states = 0;  ///< in each group
  };

  /// `book` must outlive it.
  explicit HeldMemory(const RequestBook& book);

  /// A pin holds the KV and the state that this row of the index has from now on. O(tokens).
  void add(RequestId row) { change(row, 1); }
  void remove(RequestId row) { change(row, -1); }
  void add(const Load& load) noexcept;
  void remove(const Load& load) noexcept;

  /// Pins have at most PrefixOptions::pinned_bytes, loads at most prefetched_bytes, and a request finds room.
  [[nodiscard]] bool fits() const;
  [[nodiscard]] std::int64_t kv_tokens() const noexcept { return blocks_ * options_.block_size_tokens; }
  [[nodiscard]] std::int64_t states() const noexcept;
  /// Bytes of pins.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_of(blocks_, states()); }
  /// Throws std::logic_error unless these are the counts for pins in exactly these rows.
  void check(const std::vector<RequestId>& rows) const;

 private:
  void change(RequestId row, std::int32_t by);
  [[nodiscard]] std::int64_t bytes_of(std::int64_t blocks, std::int64_t states) const noexcept;
  [[nodiscard]] bool fits_states() const;
  [[nodiscard]] bool fits_shared() const;

  const RequestBook& book_;
  const RequestCacheOptions& options_;
  std::vector<std::int32_t> kv_pins_;                  ///< by block
  std::vector<std::vector<std::int32_t>> state_pins_;  ///< by group and slot
  std::int64_t blocks_ = 0;                            ///< that a pin holds
  std::vector<std::int64_t> states_;                   ///< the same, by group
  Load loads_;                                         ///< of all prefetches
};

/// Throws InvalidArgument unless such a cache can have these PrefixOptions.
void require_prefix_options(const RequestCacheOptions& options);

}  // namespace stateport::detail
