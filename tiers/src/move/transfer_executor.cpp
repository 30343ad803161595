// SPDX-License-Identifier: Apache-2.0
#include "move/transfer_executor.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/reserve_amortised.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace stateport::tiers {
namespace {

constexpr std::size_t completions_together = 64;

constexpr std::size_t lower_count = 2;
constexpr std::size_t files_index = 0;
constexpr std::size_t remote_index = 1;
constexpr std::size_t lower_index(Medium medium) noexcept {
  return medium == Medium::file ? files_index : medium == Medium::remote ? remote_index : lower_count;
}
/// The lower tier that a transfer is with: the one that it goes to, if both are.
constexpr std::size_t lower_index(const Transfer& transfer) noexcept {
  return lower_index(transfer.to) < lower_count ? lower_index(transfer.to) : lower_index(transfer.from);
}
constexpr bool is_with_lower(const Transfer& transfer) noexcept {
  return lower_index(transfer) < lower_count;
}
/// Finds keep no memory, and are not bounded by it.
constexpr bool is_counted(const Transfer& transfer) noexcept {
  return is_with_lower(transfer) && transfer.kind != Transfer::Kind::find;
}

std::size_t kind_of(const HostTier& host, const ImageKey& image) {
  return static_cast<std::size_t>(host.kind_of(image));
}

enum class Begin : std::uint8_t { begun, refused, out_of_memory };

template <class Request>
Begin try_begin(Request&& request) {
  try {
    return request() ? Begin::begun : Begin::refused;
  } catch (const std::bad_alloc&) {
    return Begin::out_of_memory;
  }
}

/// False: there was no memory for it, or no room in a queue.
bool try_remove(LowerTier& tier, const ImageKey& image) {
  return try_begin([&] { return tier.remove(image); }) == Begin::begun;
}

}  // namespace

TransferExecutor::TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, const CopyRoutes& routes,
                                   const Below& files, const Below& remote)
    : host_(&host),
      kinds_(std::move(kinds)),
      lane_(&lane),
      routes_(routes),
      copies_(routes.count()),
      refused_(kinds_.size()),
      lower_{Lower{files}, Lower{remote}},
      completions_(completions_together) {
  for (const Kind& kind : kinds_) {
    no_checksums_.emplace_back(kind.layout.spec().tensors().size());
    written_.emplace_back(static_cast<std::size_t>(kind.slots));
  }
  std::int32_t images_max = 0;
  for (std::int32_t kind = 0; kind < host.kinds(); ++kind) images_max = std::max(images_max, host.places(kind));
  image_batch_.reserve(static_cast<std::size_t>(images_max));
}

void TransferExecutor::execute(const Stream& stream, TransferPlan plan) {
  for (const Transfer& transfer : plan.transfers) check(transfer);
  reserve(plan.transfers.size());
  for (const Transfer& transfer : plan.transfers)
    if (transfer.from != Medium::elsewhere) start(stream, transfer);
  let_go_on(stream);
}

void TransferExecutor::reserve(std::size_t transfers) {
  const std::size_t most = operations_.count() + transfers;
  lane_->prepare_marks(2);
  operations_.reserve(most);
  detail::reserve_amortised(results_, results_.size() + most);
  for (Copies& copies : copies_) {
    detail::reserve_amortised(copies.plan, most);
    detail::reserve_amortised(copies.operations, most);
    detail::reserve_amortised(copies.loads, most);
  }
  for (Lower& lower : lower_) {
    if (lower.tier == nullptr) continue;
    detail::reserve_amortised(lower.late_drops, lower.late_drops.size() + most);
    const std::size_t together_max = lower.kv_bytes_together / ImageLayout::alignment_bytes + 1;
    detail::reserve_amortised(together_, std::min(most, together_max));
  }
}

std::size_t TransferExecutor::poll(const Stream& stream, std::span<TransferResult> results) {
  lane_->prepare_marks(2);
  mark(stream);
  if (!copying_.empty()) {
    const std::uint64_t reached = lane_->reached();
    while (!copying_.empty() && operations_[copying_.head].mark <= reached) finish_copy(operations_.pop(copying_));
  }
  for (Lower& lower : lower_)
    if (lower.tier != nullptr) finish_below(stream, lower);
  let_go_on(stream);
  const std::size_t count = std::min(results.size(), results_.size() - results_read_);
  std::copy_n(results_.begin() + static_cast<std::ptrdiff_t>(results_read_), count, results.begin());
  results_read_ += count;
  if (2 * results_read_ >= results_.size()) {
    results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(results_read_));
    results_read_ = 0;
  }
  return count;
}

void TransferExecutor::let_go_on(const Stream& stream) {
  enqueue_batch(stream);
  for (Lower& lower : lower_) {
    if (lower.tier == nullptr) continue;
    drop_late(lower);
    feed_writes(lower);
    feed_reads(lower);
  }
  mark(stream);
}

void TransferExecutor::check(const Transfer& transfer) const {
  using enum Medium;
  if (transfer.kind == Transfer::Kind::load && transfer.from == elsewhere) return;
  const auto medium = [](Medium of) { return static_cast<int>(of); };
  const auto is_here = [&](Medium of) {
    return of == host || (of == file && lower_[files_index].tier != nullptr) ||
           (of == remote && lower_[remote_index].tier != nullptr);
  };
  const std::size_t kind = kind_of(*host_, transfer.image);
  require(transfer.image.tokens >= 0, "image.tokens", transfer.image.tokens, "must not be negative");
  switch (transfer.kind) {
    case Transfer::Kind::store:
      require(transfer.from == device, "from", medium(transfer.from), "a store is from the device");
      require(is_here(transfer.to), "to", medium(transfer.to), "is no tier that is here");
      break;
    case Transfer::Kind::load:
      require(transfer.to == device, "to", medium(transfer.to), "a load is to the device");
      require(is_here(transfer.from), "from", medium(transfer.from), "is no tier that is here");
      break;
    case Transfer::Kind::copy:
      require(transfer.from == host || (transfer.from == file && is_here(file)), "from", medium(transfer.from),
              "a copy is from host memory or a file that is here");
      require(transfer.to > transfer.from && is_here(transfer.to), "to", medium(transfer.to),
              "is no lower tier that is here");
      break;
    case Transfer::Kind::drop:
      require(is_here(transfer.from), "from", medium(transfer.from), "is no tier that is here");
      break;
    case Transfer::Kind::find:
      require(transfer.from == remote && is_here(remote), "from", medium(transfer.from),
              "is no tier that can be asked");
      break;
    default:
      require(false, "kind", static_cast<int>(transfer.kind), "is no kind of transfer");
  }
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
      return start_find(transfer);
  }
}

void TransferExecutor::start_store(const Stream& stream, const Transfer& transfer) {
  std::optional<HostImage> image;
  if (is_with_lower(transfer)) {
    Lower& lower = lower_[lower_index(transfer)];
    // Requests wait for loads: those have staging memory first.
    if (!lower.full() && lower.to_read.empty()) image = lower.staging->reserve_staging(transfer.image);
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

void TransferExecutor::add_store(const Stream& stream, std::uint32_t number) {
  const TransferOperation& operation = operations_[number];
  const Transfer& transfer = operation.transfer;
  const std::size_t kind = kind_of(*host_, transfer.image);
  const bool objects = is_with_lower(transfer) && lower_[lower_index(transfer)].objects;
  separate(stream, kind, transfer.place);
  Copies& copies = copies_[objects ? routes_.to_objects(kind) : routes_.to_host(kind)];
  copies.plan.push_back(SlotCopy::whole(transfer.place, memory_of(operation).place(operation.image)));
  copies.operations.push_back(number);
  if (!objects) note_in_batch(operation.image);
  gathers_ = true;
}

void TransferExecutor::note_in_batch(HostImage image) {
  if (image_batch_.size() <= image.index) image_batch_.resize(image.index + 1);
  image_batch_[image.index] = batch_;
}

void TransferExecutor::start_load(const Stream& stream, const Transfer& transfer) {
  // Without one of its images a load is worth nothing: however many there are, they wait.
  if (is_with_lower(transfer))
    return operations_.push(lower_[lower_index(transfer)].to_read, make_operation(transfer, {}), Phase::to_read);
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return answer(transfer.id, TransferStatus::gone);
  add_load(stream, transfer, image);
}

bool TransferExecutor::add_load(const Stream& stream, const Transfer& transfer, HostImage image) {
  const std::size_t kind = kind_of(*host_, transfer.image);
  const ImageLayout& layout = kinds_[kind].layout;
  const auto header = host_->bytes(image).first(layout.header_bytes());
  // An image that is copying has no header yet.
  const bool ready = host_->state(image) == HostTier::State::ready;
  const TransferStatus status = ready ? layout.check_header(header, transfer.image) : TransferStatus::done;
  if (status != TransferStatus::done) {
    answer(transfer.id, status);
    return false;
  }
  add_load(stream, transfer, routes_.to_device(kind), host_->place(image));
  note_in_batch(image);
  return true;
}

void TransferExecutor::add_load(const Stream& stream, const Transfer& transfer, std::size_t route, std::int32_t place) {
  const std::size_t kind = kind_of(*host_, transfer.image);
  separate(stream, kind, transfer.place);
  copies_[route].plan.push_back(SlotCopy::whole(place, transfer.place));
  copies_[route].loads.push_back(transfer.id);
  written_[kind][static_cast<std::size_t>(transfer.place)] = batch_;
  gathers_ = true;
  unmarked_ = true;  // copies on another stream come behind it
}

void TransferExecutor::separate(const Stream& stream, std::size_t kind, std::int32_t slot) {
  if (written_[kind][static_cast<std::size_t>(slot)] == batch_) enqueue_batch(stream);
}

void TransferExecutor::start_copy(const Transfer& transfer) {
  const bool full = lower_[lower_index(transfer)].full();
  if (transfer.from == Medium::file) {
    Queue& reads = lower_[files_index].to_read;
    if (full || !reads.empty()) return answer(transfer.id, TransferStatus::no_room);
    return operations_.push(reads, make_operation(transfer, {}), Phase::to_read);
  }
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return answer(transfer.id, TransferStatus::gone);
  if (full) return answer(transfer.id, TransferStatus::no_room);
  host_->pin(image);
  const bool ready = host_->state(image) == HostTier::State::ready;
  const std::uint32_t number = make_operation(transfer, {});
  operations_[number].source = image;
  if (ready)
    send_down(number);
  else
    wait_for_mark(number);
}

void TransferExecutor::send_down(std::uint32_t number) {
  TransferOperation& operation = operations_[number];
  Lower& lower = lower_[lower_index(operation.transfer)];
  if (!lower.objects) {
    operation.image = std::exchange(operation.source, {});
    return operations_.push(lower.to_write, number, Phase::to_write);
  }
  const std::optional<HostImage> set = lower.staging->reserve_staging(operation.transfer.image);
  if (!set) return end(number, TransferStatus::no_room);
  operation.image = *set;
  Copies& copies = copies_[routes_.host_to_objects(kind_of(*host_, operation.transfer.image))];
  copies.plan.push_back(SlotCopy::whole(host_->place(operation.source), lower.staging->place(*set)));
  copies.operations.push_back(number);
  note_in_batch(operation.source);
  gathers_ = true;
  wait_for_mark(number);
}

void TransferExecutor::start_find(const Transfer& transfer) {
  const std::uint32_t number = make_operation(transfer, {});
  operations_[number].phase = Phase::below;
  const Begin asked = try_begin([&] { return lower_[lower_index(transfer)].tier->find(transfer.image, number); });
  if (asked != Begin::begun) end(number, asked == Begin::refused ? TransferStatus::no_room : TransferStatus::failed);
}

void TransferExecutor::start_drop(const Stream& stream, const Transfer& transfer) {
  if (is_with_lower(transfer)) {
    Lower& lower = lower_[lower_index(transfer)];
    if (needed(lower, transfer.image, ++numbers_) || !try_remove(*lower.tier, transfer.image))
      lower.late_drops.push_back({transfer.image, numbers_});
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
  refused_.assign(refused_.size(), false);
  for (std::size_t route = 0; route < copies_.size(); ++route) enqueue(stream, route);
}

void TransferExecutor::enqueue(const Stream& stream, std::size_t route) {
  Copies& copies = copies_[route];
  if (copies.plan.empty()) return;
  const std::size_t kind = routes_.kind(route);
  // Loads from host memory may read what stores that were refused should have written.
  bool refused = route == routes_.to_device(kind) && refused_[kind];
  try {
    if (!refused) lane_->copy(stream, route, copies.plan);
  } catch (const BackendError&) {
    refused = true;
  } catch (const OutOfMemory&) {
    refused = true;
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  if (refused && route == routes_.to_host(kind)) refused_[kind] = true;
  for (const TransferId id : copies.loads) answer(id, refused ? TransferStatus::failed : TransferStatus::done);
  if (refused)
    for (const std::uint32_t operation : copies.operations) fail_copy(operation);
  copies.plan.clear();
  copies.operations.clear();
  copies.loads.clear();
}

void TransferExecutor::fail_copy(std::uint32_t number) {
  TransferOperation& failed = operations_[number];
  failed.failed = true;
  if (&memory_of(failed) != host_ || failed.source.valid()) return;
  for (std::uint32_t at = copying_.head; at != none; at = operations_[at].next) {
    TransferOperation& waiting = operations_[at];
    const HostImage waits_for = waiting.source.valid() ? waiting.source : waiting.image;
    if (&memory_of(waiting) == host_ && waits_for == failed.image) waiting.failed = true;
  }
  if (failed.transfer.to == Medium::host) host_->remove(failed.image);
}

void TransferExecutor::mark(const Stream& stream) {
  if (!unmarked_) return;
  lane_->mark(stream);
  ++marks_;
  unmarked_ = false;
}

void TransferExecutor::finish_copy(std::uint32_t number) {
  TransferOperation& operation = operations_[number];
  const Transfer& transfer = operation.transfer;
  if (transfer.kind == Transfer::Kind::load) {
    // Answered when it was enqueued.
    memory_of(operation).unpin(operation.image);
    return free_operation(number);
  }
  const bool in_host = &memory_of(operation) == host_;
  if (transfer.kind == Transfer::Kind::store && !operation.failed && in_host) publish(operation.image);
  if (is_with_lower(transfer)) {
    if (operation.failed) return end(number, TransferStatus::failed);
    if (!operation.image.valid()) return send_down(number);
    if (operation.source.valid()) host_->unpin(std::exchange(operation.source, {}));
    return operations_.push(lower_[lower_index(transfer)].to_write, number, Phase::to_write);
  }
  const bool there = host_->state(operation.image) == HostTier::State::ready;
  answer(transfer.id, operation.failed ? TransferStatus::failed : there ? TransferStatus::done : TransferStatus::gone);
  free_operation(number);
}

// Not before: copies that were enqueued earlier may still read or write this place, for an image that had it then.
void TransferExecutor::publish(HostImage image) {
  if (!host_->publish(image)) return;
  const ImageKey& key = host_->key(image);
  const std::size_t kind = kind_of(*host_, key);
  const ImageLayout& layout = kinds_[kind].layout;
  layout.write_header(host_->bytes(image).first(layout.header_bytes()), key, no_checksums_[kind]);
}

void TransferExecutor::finish_below(const Stream& stream, Lower& lower) {
  const auto at = static_cast<std::size_t>(&lower - lower_.data());
  for (std::size_t count = completions_.size(); count == completions_.size();) {
    try {
      count = lower.tier->poll(completions_);
    } catch (const std::bad_alloc&) {
      return;  // its answer comes later
    }
    for (const Completion& completion : std::span(completions_).first(count)) {
      const auto first = static_cast<std::uint32_t>(completion.ticket);
      const Transfer& transfer = operations_[first].transfer;
      if (transfer.kind == Transfer::Kind::find) {
        end(first, completion.status);
        continue;
      }
      if (lower_index(transfer.from) == at) {
        --lower.reads;
        finish_read(stream, lower, completion);
        continue;
      }
      --lower.writes;
      for (std::uint32_t number = first, next = none; number != none; number = next) {
        next = operations_[number].next;
        end(number, completion.status);
      }
    }
  }
}

void TransferExecutor::finish_read(const Stream& stream, Lower& lower, const Completion& completion) {
  const auto number = static_cast<std::uint32_t>(completion.ticket);
  if (completion.status != TransferStatus::done) return end(number, completion.status);
  const TransferOperation& operation = operations_[number];
  if (operation.transfer.kind == Transfer::Kind::copy) return send_down(number);
  if (lower.objects) {
    const std::size_t route =
        routes_.from_objects(kind_of(*host_, operation.transfer.image), static_cast<std::size_t>(completion.encoding));
    add_load(stream, operation.transfer, route, lower.staging->place(operation.image));
    return wait_for_mark(number);
  }
  host_->publish(operation.image);
  if (add_load(stream, operation.transfer, operation.image)) return wait_for_mark(number);
  host_->unpin(operation.image);
  free_operation(number);
}

void TransferExecutor::gather(Lower& lower, std::size_t images_max) {
  together_.clear();
  std::size_t bytes = 0;
  for (std::uint32_t at = lower.to_write.head; at != none && together_.size() < images_max; at = operations_[at].next) {
    const TransferOperation& operation = operations_[at];
    const ImageKey& key = operation.transfer.image;
    const bool is_block = key.content == CacheContent::kv_block;
    if (std::ranges::find(together_, key, &LowerTier::Image::key) != together_.end()) return;
    const std::span<std::byte> image = memory_of(operation).bytes(operation.image);
    bytes += image.size();
    if (!together_.empty() && (!is_block || bytes > lower.kv_bytes_together)) return;
    together_.push_back({key, image});
    if (!is_block) return;
  }
}

void TransferExecutor::feed_writes(Lower& lower) {
  std::size_t images_max = SIZE_MAX;
  while (!lower.to_write.empty()) {
    gather(lower, images_max);
    const std::uint32_t first = lower.to_write.head;
    const Begin written = try_begin([&] { return lower.tier->write(together_, first); });
    if (written == Begin::begun) {
      ++lower.writes;
      // They stay linked.
      std::uint32_t last = none;
      for (std::size_t i = 0; i < together_.size(); ++i) {
        last = operations_.pop(lower.to_write);
        operations_[last].phase = Phase::below;
        if (i + 1 < together_.size()) operations_[last].next = lower.to_write.head;
      }
      continue;
    }
    if (written == Begin::out_of_memory) {
      end(operations_.pop(lower.to_write), TransferStatus::failed);
      continue;
    }
    // A write that ends may make room in the queue. Without one there is none at all.
    if (lower.writes > 0) return;
    if (together_.size() == 1)
      end(operations_.pop(lower.to_write), TransferStatus::no_room);
    else
      images_max = 1;
  }
}

void TransferExecutor::feed_reads(Lower& lower) {
  while (!lower.to_read.empty()) {
    TransferOperation& operation = operations_[lower.to_read.head];
    const std::optional<HostImage> image = lower.staging->reserve_staging(operation.transfer.image);
    if (!image) return;
    const Begin read = try_begin(
        [&] { return lower.tier->read(operation.transfer.image, lower.staging->bytes(*image), lower.to_read.head); });
    if (read == Begin::begun) {
      ++lower.reads;
      (operation.transfer.kind == Transfer::Kind::copy ? operation.source : operation.image) = *image;
      operations_[operations_.pop(lower.to_read)].phase = Phase::below;
      continue;
    }
    lower.staging->unpin(*image);
    if (lower.reads > 0 && read == Begin::refused) return;
    end(operations_.pop(lower.to_read), read == Begin::refused ? TransferStatus::no_room : TransferStatus::failed);
  }
}

void TransferExecutor::drop_late(Lower& lower) {
  std::erase_if(lower.late_drops, [&](const LateDrop& drop) {
    return !needed(lower, drop.image, drop.number) && try_remove(*lower.tier, drop.image);
  });
}

bool TransferExecutor::needed(const Lower& lower, const ImageKey& image, std::uint64_t before) const noexcept {
  const auto at = static_cast<std::size_t>(&lower - lower_.data());
  const auto has_one = [&](const Queue& queue, Medium Transfer::*side) {
    for (std::uint32_t number = queue.head; number != none; number = operations_[number].next) {
      const TransferOperation& operation = operations_[number];
      const bool is_with_it = lower_index(operation.transfer.*side) == at;
      if (is_with_it && operation.number < before && operation.transfer.image == image) return true;
    }
    return false;
  };
  return has_one(lower.to_read, &Transfer::from) || has_one(lower.to_write, &Transfer::to) ||
         has_one(copying_, &Transfer::to);
}

HostTier& TransferExecutor::memory_of(const TransferOperation& operation) noexcept {
  const std::size_t at = lower_index(operation.transfer);
  return at < lower_count && lower_[at].objects && operation.image.valid() ? *lower_[at].staging : *host_;
}

std::uint32_t TransferExecutor::make_operation(const Transfer& transfer, HostImage image) {
  bool took_back_drop = false;
  if (is_counted(transfer)) {
    Lower& lower = lower_[lower_index(transfer)];
    ++lower.operations;
    // Equal keys have equal contents: the image may as well stay.
    if (transfer.kind != Transfer::Kind::load) took_back_drop = lower.take_back_drop(transfer.image);
  }
  return operations_.make(
      {.transfer = transfer, .image = image, .number = ++numbers_, .drop_if_failed = took_back_drop});
}

void TransferExecutor::free_operation(std::uint32_t number) noexcept {
  const Transfer& transfer = operations_[number].transfer;
  if (is_counted(transfer)) --lower_[lower_index(transfer)].operations;
  operations_.free(number);
}

void TransferExecutor::end(std::uint32_t number, TransferStatus status) {
  const TransferOperation& operation = operations_[number];
  answer(operation.transfer.id, status);
  if (operation.drop_if_failed && status != TransferStatus::done) {
    Lower& lower = lower_[lower_index(operation.transfer)];
    if (!try_remove(*lower.tier, operation.transfer.image))
      lower.late_drops.push_back({operation.transfer.image, operation.number});
  }
  if (operation.source.valid()) host_->unpin(operation.source);
  if (operation.image.valid()) memory_of(operation).unpin(operation.image);
  free_operation(number);
}

void TransferExecutor::wait_for_mark(std::uint32_t number) noexcept {
  operations_[number].mark = marks_ + 1;
  unmarked_ = true;
  operations_.push(copying_, number, Phase::copying);
}

void TransferExecutor::check_invariants() const {
  const auto require_that = [](bool ok, const char* what) { require_invariant(ok, "StateTiers", what); };
  std::size_t used = 0, queued = 0, below = 0;
  std::array<std::size_t, lower_count> counted = {};
  std::int64_t staged = 0, sets = 0;
  host_->check_invariants();
  for (const TransferOperation& operation : operations_.all()) {
    if (operation.phase == Phase::unused) continue;
    ++used;
    const Transfer& transfer = operation.transfer;
    const std::size_t at = lower_index(transfer);
    if (is_counted(transfer)) ++counted[at];
    below += operation.phase == Phase::below;
    staged += operation.source.valid() && transfer.from == Medium::file;
    if (!is_counted(transfer) || !operation.image.valid()) continue;
    const bool objects = lower_[at].objects;
    sets += objects;
    staged += !objects && transfer.kind != Transfer::Kind::copy;
    const HostTier& memory = objects ? *lower_[at].staging : *host_;
    require_that(memory.state(operation.image) != HostTier::State::gone, "an image went while it was read or written");
  }
  const auto count_queue = [&](const Queue& queue, Phase phase) {
    std::uint64_t mark = 0;
    for (std::uint32_t at = queue.head; at != none; at = operations_[at].next, ++queued) {
      require_that(operations_[at].phase == phase, "an operation is in a wrong queue");
      require_that(phase != Phase::copying || operations_[at].mark >= mark, "marks are out of order");
      mark = operations_[at].mark;
      require_that((operations_[at].next == none) == (queue.tail == at), "a queue has a wrong end");
    }
  };
  count_queue(copying_, Phase::copying);
  for (std::size_t i = 0; i < lower_count; ++i) {
    count_queue(lower_[i].to_write, Phase::to_write);
    count_queue(lower_[i].to_read, Phase::to_read);
    require_that(counted[i] == lower_[i].operations, "operations of a lower tier are counted wrongly");
    if (!lower_[i].objects) continue;
    lower_[i].staging->check_invariants();
    require_that(sets == lower_[i].staging->usage().staging_images, "a set of objects is lost");
  }
  require_that(used == operations_.count(), "operations are counted wrongly");
  require_that(queued + below == used, "an operation is lost");
  require_that(staged == host_->usage().staging_images, "a staging image is lost");
  require_that(!gathers_, "copies are not enqueued");
}

}  // namespace stateport::tiers
