// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/ids.hpp>

#include "align_rows.hpp"
#include "labels.hpp"
#include "work_queue.hpp"

#include <cstdint>
#include <memory>
#include <span>

/// The launches of AlignContext: a step once for GPUs and once for CPUs, the index kernels once for all.
namespace stateport::kernels {

/// Counters in device memory.
struct AlignCounters {
  std::int64_t skipped_parts = 0;
  WorkQueue queue;  ///< of every step: steps are ordered by their streams
};

/// Decides every row of every group, copies, and remembers, in one launch.
class AlignLauncher {
 public:
  /// Room for this many rows and groups, so that no step allocates.
  AlignLauncher(std::int32_t groups, std::int32_t max_rows);
  AlignLauncher(AlignLauncher&&) noexcept;
  AlignLauncher& operator=(AlignLauncher&&) noexcept;
  ~AlignLauncher();

  /// `groups` in host memory and `device_groups` in device memory say the same.
  void step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
            const AlignGroupView* device_groups, const AlignBatchView& batch, AlignCounters* counters);

 private:
  class Scratch;
  std::unique_ptr<Scratch> scratch_;
};

/// Columns of one request: the seed of `computed` with each group's block size.
void align_add_request(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                       RequestIndex request, std::int64_t computed);
void align_forget(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                  std::span<const RequestIndex> requests);
/// sampled == nullptr: `value` for every row.
void align_scatter_accepted(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                            const std::int32_t* request, const std::int32_t* sampled, std::int32_t value,
                            std::int32_t rows, std::int32_t max_requests);
/// Mode all: remembers the columns of full draft steps.
void align_remember_columns(const Stream& stream, const AlignGroupView* device_groups, std::int32_t groups,
                            const AlignBatchView& batch);
/// `accepted_of`: [max_requests] of the group.
void align_gather_decode(const Stream& stream, const AlignBatchView& batch, const std::int32_t* accepted_of,
                         const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                         std::int32_t* draft_counts);

/// Blocks that a group does not have, and the null block, hold nothing and remember nothing.
void align_gather_held(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                       std::int32_t count, std::int32_t* conv, std::int32_t* recurrent);
void align_verify_blocks(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                         const std::int32_t* tokens, std::int32_t count, std::uint8_t* holds);
void align_wrote_blocks(const Stream& stream, const AlignGroupView& group, const std::int32_t* blocks,
                        const std::int32_t* tokens, std::int32_t count);
void align_forget_blocks(const Stream& stream, const AlignGroupView& group, std::span<const BlockId> blocks);

}  // namespace stateport::kernels
