// SPDX-License-Identifier: Apache-2.0
#include "move/lower_queue.hpp"

#include <stateport/tiers/image.hpp>

#include "containers/reserve_amortised.hpp"

#include <algorithm>
#include <new>
#include <optional>

namespace stateport::tiers {
namespace {

constexpr std::size_t completions_together = 64;

enum class Begin : std::uint8_t { begun, refused, out_of_memory };

template <class Request>
Begin try_begin(Request&& request) {
  try {
    return request() ? Begin::begun : Begin::refused;
  } catch (const std::bad_alloc&) {
    return Begin::out_of_memory;
  }
}

TransferStatus status_of(Begin refusal) noexcept {
  return refusal == Begin::refused ? TransferStatus::no_room : TransferStatus::failed;
}

}  // namespace

LowerQueue::LowerQueue(Medium medium, const Options& options, TransferOperations& operations)
    : medium_(medium), options_(options), operations_(operations), completions_(completions_together) {}

void LowerQueue::reserve(std::size_t most) {
  if (!is_here()) return;
  detail::reserve_amortised(late_drops_, late_drops_.size() + most);
  const std::size_t together_max = options_.kv_bytes_together / ImageLayout::alignment_bytes + 1;
  detail::reserve_amortised(together_, std::min(most, together_max));
}

void LowerQueue::push_write(std::uint32_t operation) noexcept {
  operations_.push(writes_.queue, operation, Phase::to_write);
}

void LowerQueue::push_read(std::uint32_t operation) noexcept {
  operations_.push(reads_.queue, operation, Phase::to_read);
}

void LowerQueue::push_find(std::uint32_t operation) noexcept {
  operations_.push(finds_.queue, operation, Phase::to_find);
}

void LowerQueue::drop(const ImageKey& image, std::uint64_t number) noexcept {
  if (needed(image, number))
    late_drops_.push_back({image, number});
  else
    drop_now(image, number);
}

void LowerQueue::drop_now(const ImageKey& image, std::uint64_t number) noexcept {
  if (!try_remove(image)) late_drops_.push_back({image, number});
}

bool LowerQueue::take_back_drop(const ImageKey& image) noexcept {
  return std::erase_if(late_drops_, [&](const LateDrop& drop) { return drop.image == image; }) > 0;
}

void LowerQueue::drop_late() noexcept {
  std::erase_if(late_drops_,
                [&](const LateDrop& drop) { return !needed(drop.image, drop.number) && try_remove(drop.image); });
}

bool LowerQueue::try_remove(const ImageKey& image) noexcept {
  return try_begin([&] { return options_.tier->remove(image); }) == Begin::begun;
}

bool LowerQueue::needed(const ImageKey& image, std::uint64_t before) const noexcept {
  const auto has_one = [&](const Queue& queue, Medium Transfer::*side) {
    for (std::uint32_t number = queue.head; number != none; number = operations_[number].next) {
      const TransferOperation& operation = operations_[number];
      const bool is_with_it = operation.transfer.*side == medium_;
      if (is_with_it && operation.number < before && operation.transfer.image == image) return true;
    }
    return false;
  };
  return has_one(reads_.queue, &Transfer::from) || has_one(writes_.queue, &Transfer::to) ||
         has_one(operations_.copying, &Transfer::to);
}

void LowerQueue::feed(LowerQueueUser& user) {
  if (!is_here()) return;
  drop_late();
  // All requests to a remote store share one queue: requests of the engine wait for reads and finds. Staging memory
  // bounds the reads.
  if (options_.objects) feed_reads(user);
  feed_finds(user);
  feed_writes(user);
  if (!options_.objects) feed_reads(user);
}

void LowerQueue::feed_finds(LowerQueueUser& user) {
  while (!finds_.queue.empty()) {
    const std::uint32_t number = finds_.queue.head;
    const Begin asked = try_begin([&] { return options_.tier->find(operations_[number].transfer.image, number); });
    if (asked == Begin::refused && may_wait(finds_)) return;
    operations_.pop(finds_.queue);
    if (asked != Begin::begun) {
      user.end(number, status_of(asked));
      continue;
    }
    ++finds_.under_way;
    operations_[number].phase = Phase::below;
  }
}

void LowerQueue::gather(std::size_t images_max) {
  together_.clear();
  std::size_t bytes = 0;
  for (std::uint32_t at = writes_.queue.head; at != none && together_.size() < images_max; at = operations_[at].next) {
    const TransferOperation& operation = operations_[at];
    const ImageKey& key = operation.transfer.image;
    const bool is_block = key.content == CacheContent::kv_block;
    if (std::ranges::find(together_, key, &LowerTier::Image::key) != together_.end()) return;
    const std::span<std::byte> image = staging().bytes(operation.image);
    bytes += image.size();
    if (!together_.empty() && (!is_block || bytes > options_.kv_bytes_together)) return;
    together_.push_back({key, image});
    if (!is_block) return;
  }
}

/// Those that were gathered stay linked.
void LowerQueue::note_write() noexcept {
  ++writes_.under_way;
  for (std::size_t i = 0; i < together_.size(); ++i) {
    TransferOperation& operation = operations_[operations_.pop(writes_.queue)];
    operation.phase = Phase::below;
    if (i + 1 < together_.size()) operation.next = writes_.queue.head;
  }
}

void LowerQueue::feed_writes(LowerQueueUser& user) {
  std::size_t images_max = SIZE_MAX;
  while (!writes_.queue.empty()) {
    gather(images_max);
    const Begin written = try_begin([&] { return options_.tier->write(together_, writes_.queue.head); });
    if (written == Begin::begun) {
      note_write();
    } else if (written == Begin::out_of_memory) {
      user.end(operations_.pop(writes_.queue), TransferStatus::failed);
    } else if (may_wait(writes_)) {
      return;
    } else if (together_.size() == 1) {
      user.end(operations_.pop(writes_.queue), TransferStatus::no_room);
    } else {
      images_max = 1;
    }
  }
}

void LowerQueue::feed_reads(LowerQueueUser& user) {
  while (!reads_.queue.empty()) {
    const std::uint32_t number = reads_.queue.head;
    TransferOperation& operation = operations_[number];
    const std::optional<HostImage> image = staging().reserve_staging(operation.transfer.image);
    if (!image) return;
    const Begin read =
        try_begin([&] { return options_.tier->read(operation.transfer.image, staging().bytes(*image), number); });
    if (read != Begin::begun) staging().unpin(*image);
    if (read == Begin::refused && may_wait(reads_)) return;
    operations_.pop(reads_.queue);
    if (read != Begin::begun) {
      user.end(number, status_of(read));
      continue;
    }
    ++reads_.under_way;
    (operation.transfer.kind == Transfer::Kind::copy ? operation.source : operation.image) = *image;
    operation.phase = Phase::below;
  }
}

void LowerQueue::poll(const Stream& stream, LowerQueueUser& user) {
  if (!is_here()) return;
  for (std::size_t count = completions_.size(); count == completions_.size();) {
    try {
      count = options_.tier->poll(completions_);
    } catch (const std::bad_alloc&) {
      return;  // its answer comes later
    }
    for (std::size_t i = 0; i < count; ++i) take(stream, user, completions_[i]);
  }
}

void LowerQueue::take(const Stream& stream, LowerQueueUser& user, const Completion& completion) {
  const auto first = static_cast<std::uint32_t>(completion.ticket);
  const Transfer& transfer = operations_[first].transfer;
  if (transfer.kind == Transfer::Kind::find) {
    --finds_.under_way;
    return user.end(first, completion.status);
  }
  if (transfer.from == medium_) {
    --reads_.under_way;
    if (completion.status != TransferStatus::done) return user.end(first, completion.status);
    return user.arrive(stream, *this, first, completion.encoding);
  }
  --writes_.under_way;
  for (std::uint32_t number = first, next = none; number != none; number = next) {
    next = operations_[number].next;
    user.end(number, completion.status);
  }
}

std::size_t LowerQueue::check_invariants() const {
  if (options_.objects) staging().check_invariants();
  return operations_.check_queue(writes_.queue, Phase::to_write) +
         operations_.check_queue(reads_.queue, Phase::to_read) + operations_.check_queue(finds_.queue, Phase::to_find);
}

}  // namespace stateport::tiers
