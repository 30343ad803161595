// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/parts/align_planner.hpp>
#include <stateport/parts/align_staging.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

class StateStore;

/// The states that a context works on, per group. Slots of the store are block ids; block 0 is null and never touched.
struct AlignBinding {
  const StateStore* states = nullptr;         ///< tensors of any layout, padding and alignment
  const std::int32_t* block_table = nullptr;  ///< [rows, row_stride] in batch order, device memory
  std::int64_t row_stride = 0;                ///< ids from one row to the next
  std::int32_t columns = 0;                   ///< ids of a row
};

/// A batch in device memory, in batch order, read when a kernel runs. Negative requests are skipped.
struct AlignDeviceBatch {
  const std::int32_t* request = nullptr;
  const std::int32_t* computed = nullptr;   ///< post_step_advanced: tokens after the step
  const std::int32_t* scheduled = nullptr;  ///< not read by post_step_advanced
  const std::int32_t* drafts = nullptr;     ///< read by post_step; nullptr if the context has no drafts
  std::int32_t rows = 0;
  /// [rows + 1], in place of scheduled: tokens of the batch before each row, and of all rows.
  const std::int32_t* query_start_loc = nullptr;
  bool computed_by_request = false;  ///< computed is [max_requests], by request slot
  bool drafts_by_request = false;    ///< drafts is [max_requests], by request slot
};

/// AlignPlanner's decisions taken on the device: columns and accepted counts live there by request slot, a step reads
/// device arrays alone, decides, copies and remembers in ONE launch over all groups, requests and tensors. But for
/// bind() and stage(), no call waits for the device, fences or allocates, and every call may be captured into a graph,
/// which later sees the contents that the arrays, tables and rebound stores have then. Rules and results are those of
/// AlignPlanner; the parts of copies that it would refuse are skipped and counted here.
///
/// In modes none and all no state moves: nothing need be bound, pre-steps launch nothing, and post_step remembers the
/// columns of full draft steps (all) or launches nothing (none). Accepted counts are kept in every mode.
///
/// Every row is decided from the values before the launch: they are written back after the last row was read.
/// Calls must come from one thread at a time, and be ordered by their streams.
class AlignContext {
 public:
  /// Throws InvalidArgument as AlignPlanner, for max_requests >= 2^30 and 2 * max_requests * (1 + drafts) >= 2^32 - 1.
  explicit AlignContext(AlignOptions options);
  AlignContext(AlignContext&&) noexcept;
  AlignContext& operator=(AlignContext&&) noexcept;
  ~AlignContext();

  /// Binds, or binds again after the engine moved its tensors or tables: computes the tile tables and uploads the
  /// addresses. The only call that allocates; it waits for the upload. The stores must outlive the binding.
  /// Throws InvalidArgument: another number of bindings than groups, null pointers, a stride below the columns, a store
  /// with fewer slots than the group has blocks, conv windows shorter than the group's or not longer than drafts,
  /// tensors in blocks, which are of checkpoints alone, stores and tables that kernels cannot reach (as SlotCopier).
  void bind(std::span<const AlignBinding> groups);
  void unbind() noexcept;
  [[nodiscard]] bool bound() const noexcept;

  /// As AlignPlanner::add_request. One launch. Neither this nor forget() needs a binding.
  void add_request(const Stream& stream, RequestIndex request, std::int64_t computed);
  /// Forgets finished, preempted or resumed requests; naming one that is not remembered is harmless. One launch for
  /// every 64 of them. Throws InvalidArgument, nothing changed, for a request out of range.
  void forget(const Stream& stream, std::span<const RequestIndex> requests);

  /// Copies the batch of an engine whose counters live on the host through pinned memory; the result is valid for work
  /// on `stream` until the second next call, which waits if the copy is still under way. No launch; not for capture.
  /// Throws InvalidArgument as stage_batch, for more rows than max_requests, a request named twice, drafts > K and
  /// drafts > scheduled.
  [[nodiscard]] AlignDeviceBatch stage(const Stream& stream, std::span<const StagedRequest> batch);

  /// One launch each. All throw InvalidState when not bound (align mode), InvalidArgument for null arrays, both
  /// scheduled and query_start_loc, rows < 0 and rows > 2 * max_requests (padding included).
  void pre_step(const Stream& stream, const AlignDeviceBatch& batch);
  void post_step(const Stream& stream, const AlignDeviceBatch& batch);
  void post_step_advanced(const Stream& stream, const AlignDeviceBatch& batch);
  /// accepted = max(sampled, 1) in every group; `sampled` [rows] in device memory, or one value for all rows.
  void scatter_accepted(const Stream& stream, const std::int32_t* request, const std::int32_t* sampled,
                        std::int32_t rows);
  void fill_accepted(const Stream& stream, const std::int32_t* request, std::int32_t sampled, std::int32_t rows);

  /// Arrays for decode kernels, in batch order: accepted counts (1 for skipped rows and rows >= batch.rows) and draft
  /// counts (-1 there and for rows that do not decode). decode [batch.rows]: not 0 for rows that decode; out arrays:
  /// [padded_rows]. One launch.
  void gather_decode(const Stream& stream, std::int32_t group, const AlignDeviceBatch& batch,
                     const std::uint8_t* decode, std::int32_t padded_rows, std::int32_t* accepted,
                     std::int32_t* draft_counts);

  /// PublicationCheck's knowledge, for engines whose counters live on the device: the number of tokens of the states in
  /// each block of a group. Every step of align mode keeps it up to date, in the order of its stream. An engine
  /// verifies a block before it publishes it, and forgets it before it uses the block for something else. Arrays are
  /// [count] in device memory. The null block and ids out of range hold nothing. One launch each; all throw
  /// InvalidArgument for a group out of range, null arrays and count < 0.

  /// The tokens of the conv and of the recurrent state in each block; -1: unknown.
  void gather_held(const Stream& stream, std::int32_t group, const std::int32_t* blocks, std::int32_t count,
                   std::int32_t* conv, std::int32_t* recurrent);
  /// holds[i] = 1 if blocks[i] holds state@tokens[i] in both parts, else 0: it must not be published then.
  void verify_blocks(const Stream& stream, std::int32_t group, const std::int32_t* blocks, const std::int32_t* tokens,
                     std::int32_t count, std::uint8_t* holds);
  /// The forward itself wrote state@tokens[i] to blocks[i]: a checkpoint inside a chunk, or a boundary in mode all.
  void wrote_blocks(const Stream& stream, std::int32_t group, const std::int32_t* blocks, const std::int32_t* tokens,
                    std::int32_t count);
  /// The blocks have a new owner, or their content is no longer known. Ids in host memory; one launch for every 64.
  void forget_blocks(const Stream& stream, std::int32_t group, std::span<const BlockId> blocks);

  /// [max_requests] device arrays of a group, by request slot: running columns and accepted counts, and source column
  /// and bias of the last pre-step.
  [[nodiscard]] const std::int32_t* columns(std::int32_t group) const;
  [[nodiscard]] const std::int32_t* accepted(std::int32_t group) const;
  [[nodiscard]] const std::int32_t* src_columns(std::int32_t group) const;
  [[nodiscard]] const std::int32_t* src_offsets(std::int32_t group) const;
  /// Parts of copies skipped so far: one number in device memory.
  [[nodiscard]] const std::int64_t* skipped_parts() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// out[i] = values[index[i]] for 0 <= index[i] < count, else `fill`; all in device memory, rows entries. One launch.
void gather_by_index(const Stream& stream, const std::int32_t* index, const std::int32_t* values, std::int32_t count,
                     std::int32_t fill, std::int32_t* out, std::int32_t rows);

}  // namespace stateport
