// SPDX-License-Identifier: Apache-2.0
#include "move/transfer_executor.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace stateport::tiers {
namespace {

std::vector<std::int32_t> slots_of(const std::vector<TransferExecutor::Kind>& kinds) {
  std::vector<std::int32_t> slots;
  for (const TransferExecutor::Kind& kind : kinds) slots.push_back(kind.slots);
  return slots;
}

std::size_t images_max(const HostTier& host) {
  std::int32_t most = 0;
  for (std::int32_t kind = 0; kind < host.kinds(); ++kind) most = std::max(most, host.places(kind));
  return static_cast<std::size_t>(most);
}

}  // namespace

TransferExecutor::TransferExecutor(HostTier& host, std::vector<Kind> kinds, CopyLane& lane, const CopyRoutes& routes,
                                   const Below& files, const Below& remote)
    : host_(&host),
      kinds_(std::move(kinds)),
      lane_(&lane),
      routes_(routes),
      batch_(lane, routes, slots_of(kinds_), images_max(host)),
      lower_{LowerQueue(Medium::file, files, operations_), LowerQueue(Medium::remote, remote, operations_)} {
  for (const Kind& kind : kinds_) no_checksums_.emplace_back(kind.layout.spec().tensors().size());
}

void TransferExecutor::execute(const Stream& stream, TransferPlan transfers) {
  for (const Transfer& transfer : transfers) check(transfer);
  reserve(transfers.size());
  now_ = Clock::now();
  for (const Transfer& transfer : transfers)
    if (transfer.from != Medium::elsewhere) start(stream, transfer);
  let_go_on(stream);
}

void TransferExecutor::reserve(std::size_t transfers) {
  const std::size_t most = operations_.count() + transfers;
  lane_->prepare_marks(2);
  operations_.reserve(most);
  results_.prepare(results_.size() + most);
  batch_.reserve(most);
  for (LowerQueue& lower : lower_) lower.reserve(most);
}

std::size_t TransferExecutor::poll(const Stream& stream, std::span<TransferResult> results) {
  lane_->prepare_marks(2);
  now_ = Clock::now();
  mark(stream);
  if (!operations_.copying.empty()) {
    const std::uint64_t reached = lane_->reached();
    while (!operations_.copying.empty() && operations_[operations_.copying.head].mark <= reached)
      finish_copy(operations_.pop(operations_.copying));
  }
  for (LowerQueue& lower : lower_) lower.poll(stream, *this);
  let_go_on(stream);
  return results_.hand_out(results);
}

void TransferExecutor::let_go_on(const Stream& stream) {
  enqueue_batch(stream);
  for (LowerQueue& lower : lower_) lower.feed(*this);
  mark(stream);
}

void TransferExecutor::check(const Transfer& transfer) const {
  using enum Medium;
  if (transfer.kind == Transfer::Kind::load && transfer.from == elsewhere) return;
  const auto medium = [](Medium of) { return static_cast<int>(of); };
  const auto is_here = [&](Medium of) {
    return of == host || (of == file && lower_[0].is_here()) || (of == remote && lower_[1].is_here());
  };
  const std::size_t kind = kind_of(transfer);
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
      require(transfer.to == transfer.from, "to", medium(transfer.to), "of a drop must be its from");
      break;
    case Transfer::Kind::find:
      require(transfer.from == remote && is_here(remote), "from", medium(transfer.from),
              "is no tier that can be asked");
      require(transfer.to == transfer.from, "to", medium(transfer.to), "of a find must be its from");
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
  if (LowerQueue* const lower = lower_of(transfer)) {
    // Requests wait for loads: those have staging memory first.
    if (!lower->full() && !lower->reads_wait()) image = lower->staging().reserve_staging(transfer.image);
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
  const std::size_t kind = kind_of(transfer);
  const bool objects = operation.lower != nullptr && operation.lower->objects();
  if (batch_.writes(kind, transfer.place)) enqueue_batch(stream);
  batch_.add_store(objects ? routes_.to_objects(kind) : routes_.to_host(kind), transfer.place,
                   memory_of(operation).place(operation.image), number);
  if (!objects) batch_.note(operation.image);
}

void TransferExecutor::start_load(const Stream& stream, const Transfer& transfer) {
  // Without one of its images a load is worth nothing: however many there are, they wait.
  if (LowerQueue* const lower = lower_of(transfer)) return lower->push_read(make_operation(transfer, {}));
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return answer(transfer.id, TransferStatus::gone);
  add_load(stream, transfer, image);
}

bool TransferExecutor::add_load(const Stream& stream, const Transfer& transfer, HostImage image) {
  const std::size_t kind = kind_of(transfer);
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
  batch_.note(image);
  return true;
}

void TransferExecutor::add_load(const Stream& stream, const Transfer& transfer, std::size_t route, std::int32_t place) {
  if (batch_.writes(routes_.kind(route), transfer.place)) enqueue_batch(stream);
  batch_.add_load(route, place, transfer.place, transfer.id);
  unmarked_ = true;  // copies on another stream come behind it
}

void TransferExecutor::start_copy(const Transfer& transfer) {
  const bool full = lower_of(transfer)->full();
  if (transfer.from == Medium::file) {
    LowerQueue& files = lower_[0];
    if (full || files.reads_wait()) return answer(transfer.id, TransferStatus::no_room);
    return files.push_read(make_operation(transfer, {}));
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
  LowerQueue& lower = *operation.lower;
  if (!lower.objects()) {
    operation.image = std::exchange(operation.source, {});
    return lower.push_write(number);
  }
  // Requests wait for loads: those have staging memory first.
  if (lower.reads_wait()) return end(number, TransferStatus::no_room);
  const std::optional<HostImage> set = lower.staging().reserve_staging(operation.transfer.image);
  if (!set) return end(number, TransferStatus::no_room);
  operation.image = *set;
  batch_.add_store(routes_.host_to_objects(kind_of(operation.transfer)), host_->place(operation.source),
                   lower.staging().place(*set), number);
  batch_.note(operation.source);
  wait_for_mark(number);
}

void TransferExecutor::start_find(const Transfer& transfer) {
  lower_of(transfer)->push_find(make_operation(transfer, {}));
}

void TransferExecutor::start_drop(const Stream& stream, const Transfer& transfer) {
  if (LowerQueue* const lower = lower_of(transfer)) return lower->drop(transfer.image, ++numbers_);
  const HostImage image = host_->find(transfer.image);
  if (!image.valid()) return;
  // Its place may go to a store of the same batch.
  if (batch_.copies(image)) enqueue_batch(stream);
  host_->remove(image);
}

void TransferExecutor::enqueue_batch(const Stream& stream) {
  for (const std::uint32_t operation : batch_.enqueue(stream, results_)) fail_copy(operation);
}

void TransferExecutor::fail_copy(std::uint32_t number) {
  TransferOperation& failed = operations_[number];
  failed.failed = true;
  if (&memory_of(failed) != host_ || failed.source.valid()) return;
  for (std::uint32_t at = operations_.copying.head; at != TransferOperation::none; at = operations_[at].next) {
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
  if (operation.lower != nullptr) {
    if (operation.failed) return end(number, TransferStatus::failed);
    if (!operation.image.valid()) return send_down(number);
    if (operation.source.valid()) host_->unpin(std::exchange(operation.source, {}));
    return operation.lower->push_write(number);
  }
  const bool there = host_->state(operation.image) == HostTier::State::ready;
  if (!operation.failed && there) note_done(operation);
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

void TransferExecutor::arrive(const Stream& stream, LowerQueue& lower, std::uint32_t number, std::int32_t encoding) {
  const TransferOperation& operation = operations_[number];
  const Transfer& transfer = operation.transfer;
  if (transfer.kind == Transfer::Kind::copy) return send_down(number);
  if (lower.objects()) {
    note_done(operation);
    const std::size_t route = routes_.from_objects(kind_of(transfer), static_cast<std::size_t>(encoding));
    add_load(stream, transfer, route, lower.staging().place(operation.image));
    return wait_for_mark(number);
  }
  host_->publish(operation.image);
  if (add_load(stream, transfer, operation.image)) {
    note_done(operation);
    return wait_for_mark(number);
  }
  host_->unpin(operation.image);
  free_operation(number);
}

LowerQueue* TransferExecutor::lower_of(const Transfer& transfer) noexcept {
  for (const Medium medium : {transfer.to, transfer.from})
    for (LowerQueue& lower : lower_)
      if (lower.medium() == medium) return &lower;
  return nullptr;
}

HostTier& TransferExecutor::memory_of(const TransferOperation& operation) const noexcept {
  return operation.lower != nullptr && operation.image.valid() ? operation.lower->staging() : *host_;
}

std::size_t TransferExecutor::kind_of(const Transfer& transfer) const {
  return static_cast<std::size_t>(host_->kind_of(transfer.image));
}

std::uint32_t TransferExecutor::make_operation(const Transfer& transfer, HostImage image) {
  TransferOperation operation{
      .transfer = transfer, .lower = lower_of(transfer), .image = image, .number = ++numbers_, .begun = now_};
  if (operation.is_counted()) {
    operation.lower->count();
    // Equal keys have equal contents: the image may as well stay.
    if (transfer.kind != Transfer::Kind::load)
      operation.drop_if_failed = operation.lower->take_back_drop(transfer.image);
  }
  return operations_.make(operation);
}

void TransferExecutor::free_operation(std::uint32_t number) noexcept {
  if (operations_[number].is_counted()) operations_[number].lower->discount();
  operations_.free(number);
}

void TransferExecutor::end(std::uint32_t number, TransferStatus status) {
  const TransferOperation& operation = operations_[number];
  answer(operation.transfer.id, status);
  if (status == TransferStatus::done) note_done(operation);
  if (operation.drop_if_failed && status != TransferStatus::done)
    operation.lower->drop_now(operation.transfer.image, operation.number);
  if (operation.source.valid()) host_->unpin(operation.source);
  if (operation.image.valid()) memory_of(operation).unpin(operation.image);
  free_operation(number);
}

void TransferExecutor::wait_for_mark(std::uint32_t number) noexcept {
  operations_[number].mark = marks_ + 1;
  unmarked_ = true;
  operations_.push(operations_.copying, number, Phase::copying);
}

void TransferExecutor::check_invariants() const {
  const auto require_that = [](bool ok, const char* what) { require_invariant(ok, "StateTiers", what); };
  std::size_t used = 0, below = 0;
  std::array<std::size_t, 2> counted = {};
  std::int64_t staged = 0, sets = 0;
  host_->check_invariants();
  for (const TransferOperation& operation : operations_.all()) {
    if (operation.phase == Phase::unused) continue;
    ++used;
    const Transfer& transfer = operation.transfer;
    const LowerQueue* const lower = operation.lower;
    below += operation.phase == Phase::below;
    staged += operation.source.valid() && transfer.from == Medium::file;
    if (!operation.is_counted()) continue;
    ++counted[static_cast<std::size_t>(lower - lower_.data())];
    if (!operation.image.valid()) continue;
    sets += lower->objects();
    staged += !lower->objects() && transfer.kind != Transfer::Kind::copy;
    const HostTier::State state = lower->staging().state(operation.image);
    require_that(state != HostTier::State::gone, "an image went while it was read or written");
  }
  std::size_t queued = operations_.check_queue(operations_.copying, Phase::copying);
  for (std::size_t i = 0; i < lower_.size(); ++i) {
    queued += lower_[i].check_invariants();
    require_that(counted[i] == lower_[i].operations(), "operations of a lower tier are counted wrongly");
    if (!lower_[i].objects()) continue;
    require_that(sets == lower_[i].staging().usage().staging_images, "a set of objects is lost");
  }
  require_that(used == operations_.count(), "operations are counted wrongly");
  require_that(queued + below == used, "an operation is lost");
  require_that(staged == host_->usage().staging_images, "a staging image is lost");
  require_that(batch_.empty(), "copies are not enqueued");
}

}  // namespace stateport::tiers
