// SPDX-License-Identifier: Apache-2.0
#include "transfer_executor.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <utility>

namespace stateport::tiers {
namespace {
constexpr std::size_t completions_together = 64;

bool with_file(const Transfer& transfer) noexcept {
  return transfer.from == Medium::file || transfer.to == Medium::file;
}

}  // namespace

TransferExecutor::TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, ImageFiles* files,
                                   const Limits& limits)
    : host_(&host),
      kinds_(std::move(kinds)),
      lane_(&lane),
      files_(files),
      limits_(limits),
      batches_(kinds_.size()),
      completions_(completions_together) {
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    no_checksums_.emplace_back(kinds_[kind].layout.spec().tensors().size());
    batches_[kind].written.resize(static_cast<std::size_t>(kinds_[kind].slots));
  }
}

void TransferExecutor::execute(const Stream& stream, TransferPlan plan) {
  for (const Transfer& transfer : plan.transfers) check(transfer);
  for (const Transfer& transfer : plan.transfers)
    if (transfer.from != Medium::elsewhere) start(stream, transfer);
  enqueue_batch(stream);
  feed_writes();
  feed_reads();
  mark(stream);
}

std::size_t TransferExecutor::poll(const Stream& stream, std::span<TransferResult> results) {
  mark(stream);
  finish_copies();
  if (files_ != nullptr) {
    finish_files(stream);
    enqueue_batch(stream);
    drop_late();
    feed_writes();
    feed_reads();
    mark(stream);
  }
  const std::size_t count = std::min(results.size(), results_.size() - results_read_);
  std::copy_n(results_.begin() + static_cast<std::ptrdiff_t>(results_read_), count, results.begin());
  results_read_ += count;
  if (2 * results_read_ >= results_.size()) {
    results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(results_read_));
    results_read_ = 0;
  }
  return count;
}

void TransferExecutor::check(const Transfer& transfer) const {
  using enum Medium;
  if (transfer.kind == Transfer::Kind::load && transfer.from == elsewhere) return;
  const auto medium = [](Medium of) { return static_cast<int>(of); };
  const bool takes = transfer.kind == Transfer::Kind::load || transfer.kind == Transfer::Kind::drop;
  const auto kind = static_cast<std::size_t>(host_->kind_of(transfer.image));
  require(transfer.image.tokens >= 0, "image.tokens", transfer.image.tokens, "must not be negative");
  switch (transfer.kind) {
    case Transfer::Kind::store:
      require(transfer.from == device, "from", medium(transfer.from), "a store is from the device");
      require(transfer.to == host || transfer.to == file, "to", medium(transfer.to), "is no tier that is here");
      break;
    case Transfer::Kind::load:
      require(transfer.to == device, "to", medium(transfer.to), "a load is to the device");
      break;
    case Transfer::Kind::copy:
      require(transfer.from == host, "from", medium(transfer.from), "a copy is from host memory");
      require(transfer.to == file, "to", medium(transfer.to), "a copy is to a file");
      break;
    case Transfer::Kind::drop:
      break;
    case Transfer::Kind::find:
      require(false, "from", medium(transfer.from), "is no tier that is here");
      break;
    default:
      require(false, "kind", static_cast<int>(transfer.kind), "is no kind of transfer");
  }
  require(!takes || transfer.from == host || transfer.from == file, "from", medium(transfer.from),
          "is no tier that is here");
  require(!with_file(transfer) || files_ != nullptr, "files", "nullptr", "there is no file tier");
  if (transfer.kind == Transfer::Kind::store || transfer.kind == Transfer::Kind::load)
    require(transfer.place >= 0 && transfer.place < kinds_[kind].slots, "place", transfer.place,
            "is not a slot of the store");
}

void TransferExecutor::start(const Stream& stream, const Transfer& transfer) {
  switch (transfer.kind) {
    case Transfer::Kind::store:
      return start_store(stream, transfer);
    case Transfer::Kind::load:
      return start_load(stream, transfer);
    case Transfer::Kind::copy:
      return start_copy(transfer);
    case Transfer::Kind::drop:
      return start_drop(stream, transfer);
    case Transfer::Kind::find:
      return;  // refused
  }
}

void TransferExecutor::start_store(const Stream& stream, const Transfer& transfer) {
  std::optional<HostImage> image;
  if (transfer.to == Medium::file) {
    // Requests wait for loads: those have staging memory first.
    if (!files_full() && to_read_.head == none) image = host_->reserve_staging(transfer.image);
  } else if (const HostImage held = host_->find(transfer.image); held.valid()) {
    // Equal keys have equal contents.
    if (host_->state(held) == HostTier::State::ready) return answer(transfer.id, TransferStatus::done);
    return wait_for_mark(make_operation(transfer, held));
  } else {
    image = host_->reserve(transfer.image);
  }
  if (!image) return answer(transfer.id, TransferStatus::no_room);
  const std::uint32_t operation = make_operation(transfer, *image);
  wait_for_mark(operation);
  add_store(stream, operation);
}

void TransferExecutor::add_store(const Stream& stream, std::uint32_t operation) {
  const Transfer& transfer = operations_[operation].transfer;
  const HostImage image = operations_[operation].image;
  const auto kind = static_cast<std::size_t>(host_->kind_of(transfer.image));
  separate(stream, kind, transfer.place);
  Batch& batch = batches_[kind];
  batch.stores.push_back(SlotCopy::whole(transfer.place, host_->place(image)));
  batch.store_operations.push_back(operation);
  if (image_batch_.size() <= image.index) image_batch_.resize(image.index + 1);
  image_batch_[image.index] = batch_;
  gathers_ = true;
}

void TransferExecutor::start_load(const Stream& stream, const Transfer& transfer) {
  // Without one of its images a load is worth nothing: however many there are, they wait.
  if (transfer.from == Medium::file) return push(to_read_, make_operation(transfer, {}), Phase::to_read);
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return answer(transfer.id, TransferStatus::gone);
  add_load(stream, transfer, image);
}

bool TransferExecutor::add_load(const Stream& stream, const Transfer& transfer, HostImage image) {
  const auto kind = static_cast<std::size_t>(host_->kind_of(transfer.image));
  const ImageLayout& layout = kinds_[kind].layout;
  const auto header = host_->bytes(image).first(layout.header_bytes());
  // An image that is copying has no header yet.
  const bool ready = host_->state(image) == HostTier::State::ready;
  const TransferStatus status = ready ? layout.check_header(header, transfer.image) : TransferStatus::done;
  if (status != TransferStatus::done) {
    answer(transfer.id, status);
    return false;
  }
  separate(stream, kind, transfer.place);
  Batch& batch = batches_[kind];
  batch.loads.push_back(SlotCopy::whole(host_->place(image), transfer.place));
  batch.load_ids.push_back(transfer.id);
  batch.written[static_cast<std::size_t>(transfer.place)] = batch_;
  if (image_batch_.size() <= image.index) image_batch_.resize(image.index + 1);
  image_batch_[image.index] = batch_;
  gathers_ = true;
  return true;
}

void TransferExecutor::separate(const Stream& stream, std::size_t kind, std::int32_t slot) {
  if (batches_[kind].written[static_cast<std::size_t>(slot)] == batch_) enqueue_batch(stream);
}

void TransferExecutor::start_copy(const Transfer& transfer) {
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return answer(transfer.id, TransferStatus::gone);
  if (files_full()) return answer(transfer.id, TransferStatus::no_room);
  host_->pin(image);
  const std::uint32_t operation = make_operation(transfer, image);
  if (host_->state(image) == HostTier::State::ready)
    push(to_write_, operation, Phase::to_write);
  else
    wait_for_mark(operation);
}

void TransferExecutor::start_drop(const Stream& stream, const Transfer& transfer) {
  if (transfer.from == Medium::file) {
    if (needed(transfer.image, ++numbers_))
      late_drops_.push_back({transfer.image, numbers_});
    else
      files_->remove(transfer.image);
    return;
  }
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return;
  // Its place may go to a store of the same batch.
  if (image.index < image_batch_.size() && image_batch_[image.index] == batch_) enqueue_batch(stream);
  host_->remove(image);
}

void TransferExecutor::enqueue_batch(const Stream& stream) {
  if (!gathers_) return;
  gathers_ = false;
  ++batch_;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) enqueue_stores(stream, kind);
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) enqueue_loads(stream, kind);
}

void TransferExecutor::enqueue_stores(const Stream& stream, std::size_t kind) {
  Batch& batch = batches_[kind];
  batch.refused = false;
  if (batch.stores.empty()) return;
  try {
    lane_->to_host(stream, kind, batch.stores);
  } catch (const BackendError&) {
    batch.refused = true;
    for (const std::uint32_t operation : batch.store_operations) fail_store(operation);
  }
  batch.stores.clear();
  batch.store_operations.clear();
}

void TransferExecutor::enqueue_loads(const Stream& stream, std::size_t kind) {
  Batch& batch = batches_[kind];
  if (batch.loads.empty()) return;
  try {
    if (!batch.refused) lane_->to_device(stream, kind, batch.loads);
  } catch (const BackendError&) {
    batch.refused = true;
  }
  for (const TransferId id : batch.load_ids) answer(id, batch.refused ? TransferStatus::failed : TransferStatus::done);
  batch.loads.clear();
  batch.load_ids.clear();
}

void TransferExecutor::fail_store(std::uint32_t operation) {
  const HostImage image = operations_[operation].image;
  for (std::uint32_t at = copying_.head; at != none; at = operations_[at].next)
    if (operations_[at].image == image) operations_[at].failed = true;
  if (operations_[operation].transfer.to == Medium::host) host_->remove(image);
}

void TransferExecutor::mark(const Stream& stream) {
  if (!unmarked_) return;
  lane_->mark(stream);
  ++marks_;
  unmarked_ = false;
}

void TransferExecutor::finish_copies() {
  if (copying_.head == none) return;
  const std::uint64_t reached = lane_->reached();
  while (copying_.head != none && operations_[copying_.head].mark <= reached) finish_copy(pop(copying_));
}

void TransferExecutor::finish_copy(std::uint32_t number) {
  const Operation& operation = operations_[number];
  const Transfer& transfer = operation.transfer;
  if (transfer.kind == Transfer::Kind::load) {
    // Answered when it was enqueued.
    host_->unpin(operation.image);
    return free_operation(number);
  }
  if (transfer.kind == Transfer::Kind::store && !operation.failed) publish(operation.image);
  if (with_file(transfer)) {
    if (operation.failed) return end(number, TransferStatus::failed);
    return push(to_write_, number, Phase::to_write);
  }
  const bool there = host_->state(operation.image) == HostTier::State::ready;
  answer(transfer.id, operation.failed ? TransferStatus::failed : there ? TransferStatus::done : TransferStatus::gone);
  free_operation(number);
}

// Not before: copies that were enqueued earlier may still read or write this place, for an image that had it then.
void TransferExecutor::publish(HostImage image) {
  if (!host_->publish(image)) return;
  const ImageKey& key = host_->key(image);
  const auto kind = static_cast<std::size_t>(host_->kind_of(key));
  const ImageLayout& layout = kinds_[kind].layout;
  layout.write_header(host_->bytes(image).first(layout.header_bytes()), key, no_checksums_[kind]);
}

void TransferExecutor::finish_files(const Stream& stream) {
  for (std::size_t count = completions_.size(); count == completions_.size();) {
    count = files_->poll(completions_);
    for (const ImageFiles::Completion& completion : std::span(completions_).first(count)) {
      const auto first = static_cast<std::uint32_t>(completion.ticket);
      if (operations_[first].transfer.kind == Transfer::Kind::load) {
        --reads_in_file_;
        finish_read(stream, first, completion.status);
        continue;
      }
      --writes_in_file_;
      for (std::uint32_t at = first, next = none; at != none; at = next) {
        next = operations_[at].next;
        end(at, completion.status);
      }
    }
  }
}

void TransferExecutor::finish_read(const Stream& stream, std::uint32_t number, TransferStatus status) {
  if (status != TransferStatus::done) return end(number, status);
  const Operation& operation = operations_[number];
  host_->publish(operation.image);
  if (add_load(stream, operation.transfer, operation.image)) return wait_for_mark(number);
  host_->unpin(operation.image);
  free_operation(number);
}

void TransferExecutor::gather_file(std::size_t images_max) {
  file_.clear();
  std::size_t bytes = 0;
  for (std::uint32_t at = to_write_.head; at != none && file_.size() < images_max; at = operations_[at].next) {
    const Operation& operation = operations_[at];
    const ImageKey& key = operation.transfer.image;
    const bool is_block = key.content == CacheContent::kv_block;
    if (std::ranges::find(file_, key, &ImageFiles::Image::key) != file_.end()) return;
    const std::span<const std::byte> image = host_->bytes(operation.image);
    bytes += image.size();
    if (!file_.empty() && (!is_block || bytes > limits_.kv_file_bytes_max)) return;
    file_.push_back({key, image});
    if (!is_block) return;
  }
}

void TransferExecutor::feed_writes() {
  std::size_t images_max = SIZE_MAX;
  while (to_write_.head != none) {
    gather_file(images_max);
    const std::uint32_t first = to_write_.head;
    if (files_->write(file_, first)) {
      ++writes_in_file_;
      // They stay linked, as one file.
      std::uint32_t last = none;
      for (std::size_t i = 0; i < file_.size(); ++i) {
        last = pop(to_write_);
        operations_[last].phase = Phase::in_file;
        if (i + 1 < file_.size()) operations_[last].next = to_write_.head;
      }
      continue;
    }
    // A write that ends may make room in the queue. Without one there is none at all.
    if (writes_in_file_ > 0) return;
    if (file_.size() == 1)
      end(pop(to_write_), TransferStatus::no_room);
    else
      images_max = 1;
  }
}

void TransferExecutor::feed_reads() {
  while (to_read_.head != none) {
    Operation& operation = operations_[to_read_.head];
    const std::optional<HostImage> image = host_->reserve_staging(operation.transfer.image);
    if (!image) return;
    if (files_->read(operation.transfer.image, host_->bytes(*image), to_read_.head)) {
      ++reads_in_file_;
      operation.image = *image;
      operations_[pop(to_read_)].phase = Phase::in_file;
      continue;
    }
    host_->unpin(*image);
    if (reads_in_file_ > 0) return;
    end(pop(to_read_), TransferStatus::no_room);
  }
}

void TransferExecutor::drop_late() {
  std::erase_if(late_drops_, [&](const LateDrop& drop) {
    if (needed(drop.image, drop.number)) return false;
    files_->remove(drop.image);
    return true;
  });
}

bool TransferExecutor::needed(const ImageKey& image, std::uint64_t before) const noexcept {
  return file_operations_ > 0 && std::ranges::any_of(operations_, [&](const Operation& operation) {
           const bool waits = operation.phase == Phase::to_write || operation.phase == Phase::to_read ||
                              (operation.phase == Phase::copying && operation.transfer.to == Medium::file);
           return waits && operation.number < before && operation.transfer.image == image;
         });
}

// Equal keys have equal contents: the image may as well stay.
bool TransferExecutor::take_back_drop(const ImageKey& image) {
  return std::erase_if(late_drops_, [&](const LateDrop& drop) { return drop.image == image; }) > 0;
}

std::uint32_t TransferExecutor::make_operation(const Transfer& transfer, HostImage image) {
  std::uint32_t number = free_operation_;
  if (number == none) {
    number = static_cast<std::uint32_t>(operations_.size());
    operations_.emplace_back();
  } else {
    free_operation_ = operations_[number].next;
  }
  operations_[number] = {.transfer = transfer,
                         .image = image,
                         .number = ++numbers_,
                         .drop_if_failed = transfer.to == Medium::file && take_back_drop(transfer.image)};
  ++operation_count_;
  file_operations_ += with_file(transfer);
  return number;
}

void TransferExecutor::free_operation(std::uint32_t number) noexcept {
  --operation_count_;
  file_operations_ -= with_file(operations_[number].transfer);
  operations_[number].phase = Phase::unused;
  operations_[number].next = free_operation_;
  free_operation_ = number;
}

void TransferExecutor::end(std::uint32_t number, TransferStatus status) {
  const Operation& operation = operations_[number];
  answer(operation.transfer.id, status);
  if (operation.drop_if_failed && status != TransferStatus::done) files_->remove(operation.transfer.image);
  if (operation.image.valid()) host_->unpin(operation.image);
  free_operation(number);
}

void TransferExecutor::push(Queue& queue, std::uint32_t number, Phase phase) noexcept {
  operations_[number].phase = phase;
  operations_[number].next = none;
  if (queue.tail == none)
    queue.head = number;
  else
    operations_[queue.tail].next = number;
  queue.tail = number;
}

std::uint32_t TransferExecutor::pop(Queue& queue) noexcept {
  const std::uint32_t number = queue.head;
  queue.head = operations_[number].next;
  operations_[number].next = none;
  if (queue.head == none) queue.tail = none;
  return number;
}

void TransferExecutor::wait_for_mark(std::uint32_t number) noexcept {
  operations_[number].mark = marks_ + 1;
  unmarked_ = true;
  push(copying_, number, Phase::copying);
}

void TransferExecutor::check_invariants() const {
  host_->check_invariants();
  const auto require_that = [](bool ok, const char* what) { require_invariant(ok, "StateTiers", what); };
  std::size_t used = 0, with_files = 0, queued = 0, staging = 0, in_file = 0;
  for (const Operation& operation : operations_) {
    if (operation.phase == Phase::unused) continue;
    ++used;
    with_files += with_file(operation.transfer);
    in_file += operation.phase == Phase::in_file;
    const bool staged = with_file(operation.transfer) && operation.transfer.kind != Transfer::Kind::copy;
    staging += staged && operation.image.valid();
    require_that(!with_file(operation.transfer) || operation.phase == Phase::to_read ||
                     host_->state(operation.image) != HostTier::State::gone,
                 "an image went while a file was read or written");
  }
  for (const auto& [queue, phase] : {std::pair{&copying_, Phase::copying}, std::pair{&to_write_, Phase::to_write},
                                     std::pair{&to_read_, Phase::to_read}}) {
    std::uint64_t mark = 0;
    for (std::uint32_t at = queue->head; at != none; at = operations_[at].next, ++queued) {
      require_that(operations_[at].phase == phase, "an operation is in a wrong queue");
      require_that(phase != Phase::copying || operations_[at].mark >= mark, "marks are out of order");
      mark = operations_[at].mark;
      require_that((operations_[at].next == none) == (queue->tail == at), "a queue has a wrong end");
    }
  }
  require_that(used == operation_count_ && with_files == file_operations_, "operations are counted wrongly");
  require_that(queued + in_file == used, "an operation is lost");
  require_that(staging == static_cast<std::size_t>(host_->usage().staging_images), "a staging image is lost");
  require_that(!gathers_, "copies are not enqueued");
}

}  // namespace stateport::tiers
