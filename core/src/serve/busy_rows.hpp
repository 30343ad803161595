// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serve/request_book.hpp"
#include "serve/request_forks.hpp"
#include "serve/request_index.hpp"
#include "serve/tenant_marks.hpp"

#include <cstdint>

namespace stateport::detail {

/// The rows of passes in which the index has a part (RowPart::busy): finds memory for them, and plans the copies before
/// their pass.
class BusyRows {
 public:
  /// The arguments must outlive it. `marks` may be null.
  BusyRows(RequestBook& book, RequestIndex& index, RequestForks& forks, TenantMarks* marks);

  /// Takes memory for the first `upto` tokens of a request, which the pass is to run. RowPart::none: there is too
  /// little.
  [[nodiscard]] RowPart reserve(Pass& pass, RequestId request, std::int64_t upto);
  /// Plans the copies before the pass. Where its rows begin is known.
  void place(Pass& pass);
  /// The same for a pass that was planned before that was known.
  void place_late(Pass& pass);
  /// The newest pass does not run.
  void drop_newest();

 private:
  RequestBook& book_;
  RequestIndex& index_;
  RequestForks& forks_;
  TenantMarks* marks_;
};

}  // namespace stateport::detail
