// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serve/request_book.hpp"
#include "serve/request_forks.hpp"
#include "serve/request_index.hpp"
#include "serve/tenant_marks.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::detail {

/// Plans passes: finds memory for their rows, and the copies before them. A pass is placed as soon as it is known where
/// its rows begin.
class PassPlanner {
 public:
  /// The arguments must outlive it. `marks` may be null.
  PassPlanner(RequestBook& book, RequestIndex& index, RequestForks& forks, TenantMarks* marks);

  /// Plans a pass behind those that are outstanding. The rows are checked. `inserts`: see RequestCache::insert.
  Pass& plan(std::span<const PassRow> rows, bool inserts);
  /// Where the rows of the pass begin is known by now.
  void place(Pass& pass);
  /// The newest pass does not run.
  void drop_newest();

 private:
  void add_row(Pass& pass, std::size_t index, const PassRow& row, std::size_t ahead);
  [[nodiscard]] RowPart reserve(Pass& pass, RequestId request, std::int64_t upto);
  void place_busy_rows(Pass& pass);

  RequestBook& book_;
  RequestIndex& index_;
  RequestForks& forks_;
  TenantMarks* marks_;
  PassId last_pass_ = 0;
};

}  // namespace stateport::detail
