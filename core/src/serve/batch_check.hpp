// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/pass_queue.hpp"
#include "serve/request_record.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Checks the arguments of RequestCache::plan and commit: throws InvalidArgument that names the wrong one. The
/// constructor's arguments must outlive it.
class BatchCheck {
 public:
  BatchCheck(const RequestCacheOptions& options, std::span<RequestRecord> records, const PassQueue& passes)
      : options_(options), records_(records), passes_(passes) {
    busy_.reserve(records.size());
  }

  /// A plan behind the first `passes` outstanding passes. Marks the requests as named by this batch.
  void check_rows(std::span<const PassRow> rows, std::size_t passes);
  /// Of the rows that were checked last, those whose requests are not quiet.
  [[nodiscard]] std::span<const PassRow> busy_rows() const noexcept { return busy_; }
  /// A commit of the oldest outstanding pass: how many tokens each row sampled, and all together.
  void check_counts(std::span<const std::int32_t> counts, std::int64_t sampled) const;

 private:
  [[nodiscard]] bool is_quiet(const PassRow& row, std::size_t passes) const noexcept;
  void check_row(const PassRow& row, std::size_t passes) const;

  const RequestCacheOptions& options_;
  std::span<RequestRecord> records_;
  const PassQueue& passes_;
  std::uint64_t batch_ = 0;
  std::vector<PassRow> busy_;
};

}  // namespace stateport::detail
