// SPDX-License-Identifier: Apache-2.0
#include "move/copy_batch.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/reserve_amortised.hpp"

#include <new>

namespace stateport::tiers {

CopyBatch::CopyBatch(CopyLane& lane, const CopyRoutes& routes, std::span<const std::int32_t> slots,
                     std::size_t images_max)
    : lane_(&lane), routes_(routes), copies_(routes.count()), refused_(slots.size()) {
  for (const std::int32_t count : slots) written_.emplace_back(static_cast<std::size_t>(count));
  images_.reserve(images_max);
}

void CopyBatch::reserve(std::size_t copies) {
  for (Copies& of : copies_) {
    detail::reserve_amortised(of.plan, copies);
    detail::reserve_amortised(of.operations, copies);
    detail::reserve_amortised(of.loads, copies);
  }
  detail::reserve_amortised(failed_, copies);
}

void CopyBatch::add_store(std::size_t route, std::int32_t from, std::int32_t to, std::uint32_t operation) noexcept {
  copies_[route].plan.push_back(SlotCopy::whole(from, to));
  copies_[route].operations.push_back(operation);
  empty_ = false;
}

void CopyBatch::add_load(std::size_t route, std::int32_t place, std::int32_t slot, TransferId id) noexcept {
  copies_[route].plan.push_back(SlotCopy::whole(place, slot));
  copies_[route].loads.push_back(id);
  written_[routes_.kind(route)][static_cast<std::size_t>(slot)] = number_;
  empty_ = false;
}

void CopyBatch::note(HostImage image) noexcept {
  if (images_.size() <= image.index) images_.resize(image.index + 1);
  images_[image.index] = number_;
}

std::span<const std::uint32_t> CopyBatch::enqueue(const Stream& stream, ReadyQueue<TransferResult>& results) {
  failed_.clear();
  if (empty_) return failed_;
  empty_ = true;
  ++number_;
  refused_.assign(refused_.size(), false);
  for (std::size_t route = 0; route < copies_.size(); ++route)
    if (!copies_[route].plan.empty()) enqueue(stream, route, results);
  return failed_;
}

bool CopyBatch::try_copy(const Stream& stream, std::size_t route) {
  try {
    lane_->copy(stream, route, copies_[route].plan);
    return true;
  } catch (const BackendError&) {
  } catch (const OutOfMemory&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

void CopyBatch::enqueue(const Stream& stream, std::size_t route, ReadyQueue<TransferResult>& results) {
  Copies& copies = copies_[route];
  const std::size_t kind = routes_.kind(route);
  // Loads from host memory may read what stores that were refused should have written.
  const bool reads_nothing = route == routes_.to_device(kind) && refused_[kind];
  const bool is_enqueued = !reads_nothing && try_copy(stream, route);
  if (!is_enqueued && route == routes_.to_host(kind)) refused_[kind] = true;
  for (const TransferId id : copies.loads)
    results.push({id, is_enqueued ? TransferStatus::done : TransferStatus::failed});
  if (!is_enqueued) failed_.insert(failed_.end(), copies.operations.begin(), copies.operations.end());
  copies.plan.clear();
  copies.operations.clear();
  copies.loads.clear();
}

}  // namespace stateport::tiers
