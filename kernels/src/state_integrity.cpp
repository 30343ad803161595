// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/state_integrity.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/upload.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>

#include "labels.hpp"
#include "slot_copier_impl.hpp"
#include "state_sums.hpp"
#include "sum_launch.hpp"
#include "sum_table.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace stateport {
namespace {

using kernels::CheckEntry;
using kernels::VerdictCode;

const StateStore& reachable(const StateStore* store) {
  require(store != nullptr, "stores", "nullptr", "must name the store with the checkpoints of each group");
  for (const StateTensorView& tensor : store->tensors()) detail::require_reachable(tensor.base, "stores");
  return *store;
}

/// Whether the tensors of a copier, and their number of slots, are those of the store.
bool same_states(std::span<const StateTensorView> tensors, std::int32_t slots, const StateStore& store) {
  const auto same = [](const StateTensorView& a, const StateTensorView& b) {
    return a.base == b.base && a.slot_stride_bytes == b.slot_stride_bytes && a.spec.type == b.spec.type &&
           a.spec.shape == b.spec.shape;
  };
  return slots == store.slots() && std::ranges::equal(tensors, store.tensors(), same);
}

std::optional<StateFault> fault_of(std::uint32_t verdict, const StateCheck& check) {
  const auto code = static_cast<VerdictCode>(verdict % (1u << kernels::verdict_code_bits));
  if (code == VerdictCode::passed) return {};
  const StateFault::Kind kind = code == VerdictCode::changed       ? StateFault::Kind::changed
                                : code == VerdictCode::other_state ? StateFault::Kind::other_state
                                                                   : StateFault::Kind::not_finite;
  const auto tensors = static_cast<std::int32_t>(verdict >> kernels::verdict_code_bits);
  return StateFault{.kind = kind, .tensor = tensors - 1, .check = check};
}

}  // namespace

class StateIntegrity::Impl {
 public:
  Impl(std::span<const StateStore* const> stores, const IntegrityOptions& options) : checks_max_(options.checks_max) {
    require(!stores.empty(), "stores", stores.size(), "must name at least one store");
    require(checks_max_ >= 1, "checks_max", checks_max_, "must be at least 1");
    for (const StateStore* store : stores) groups_.push_back(std::make_unique<Group>(reachable(store), device_));
    const auto checks = static_cast<std::size_t>(checks_max_);
    make_shared_memory(checks);
    begun_.resize(checks);
    rows_.reserve(checks);
    faults_.reserve(checks);
    prepare();
  }
  /// Streams of the engine may still use the memory.
  ~Impl() { detail::wait_for_device(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void begin(const Stream& stream, CheckPlan checks) {
    require_state(!open_, "begin", "end() of the checks before is due");
    require_not_captured(stream);
    validate(checks);
    make_room(stream, checks.size());
    first_check_ = next_check_;
    transfer_turn_ = ++turn_;
    first_turn_ = ++turn_;
    std::size_t transfers = 0;
    for (const StateCheck& check : checks) transfers += add(check) ? 1u : 0u;
    open_ = true;
    has_more_ = transfers < checks.size();
    link();
    if (transfers > 0) settle(stream, transfer_turn_, transfer_turn_);
  }

  void copy_slots(const Stream& stream, SlotCopier& copier, CopyPlan plan, std::int32_t group) {
    require_state(open_, "copy_slots", "begin() comes first");
    require_not_captured(stream);
    require(group >= 0 && static_cast<std::size_t>(group) < groups_.size(), "group", group, "has no store");
    Group& states = *groups_[static_cast<std::size_t>(group)];
    SlotCopier::Impl& copies = *copier.impl_;
    const bool reads = same_states(copies.first_source, copies.sources[0].slots, *states.store);
    const bool publishes = same_states(copies.destination_tensors, copies.dst_slots, *states.store);
    require(reads || publishes, "copier", "between other stores",
            "neither its source nor its destination is the store of the group");
    copies.copy_with_sums(stream, plan, ring_.sums, [&](const SlotCopy& row) {
      std::int32_t check = -1;
      if (reads) check = take(states.marks_of(row.src_slot).first_read);
      if (check < 0 && publishes) check = take(states.marks_of(row.dst_slot).first_published);
      return check;
    });
  }

  void end(const Stream& stream) {
    require_state(open_, "end", "begin() comes first");
    require_not_captured(stream);
    open_ = false;
    for (std::int64_t i = first_check_; i < next_check_; ++i) {
      SlotMarks& marks = marks_of(check_of(i));
      marks.first_read = marks.first_published = -1;
    }
    if (has_more_) settle(stream, first_turn_, turn_);
  }

  std::span<const StateFault> poll() {
    collect();
    answered_ = true;
    checked_ = collected_;
    return faults_;
  }

  [[nodiscard]] std::int64_t checked() const noexcept { return checked_; }

 private:
  /// The checks of one slot that the host remembers.
  struct SlotMarks {
    std::uint64_t published_turn = 0;  ///< the last one that settles a publication
    std::uint64_t read_turn = 0;       ///< the last one that settles anything else
    std::int32_t first_read = -1;      ///< the first check whose copy has not been seen, as an index of begun_
    std::int32_t first_published = -1;
  };

  struct Group {
    Group(const StateStore& checkpoints, DeviceResource& device)
        : store(&checkpoints),
          table(checkpoints, kernels::tile_bytes_max),
          marks(static_cast<std::size_t>(checkpoints.slots())),
          contents(device, marks.size() * sizeof(std::uint64_t)),
          sums(device, marks.size() * checkpoints.tensors().size() * sizeof(std::uint64_t)) {
      fill_bytes(Stream::default_stream(), contents.data(), std::byte{0}, contents.size_bytes());
    }
    [[nodiscard]] SlotMarks& marks_of(std::int32_t slot) { return marks[static_cast<std::size_t>(slot)]; }
    [[nodiscard]] kernels::GroupSums view() {
      return {.contents = contents.as<std::uint64_t>(),
              .sums = sums.as<std::uint64_t>(),
              .tensors = static_cast<std::uint32_t>(store->tensors().size())};
    }

    const StateStore* store;
    kernels::SumTable table;
    std::vector<SlotMarks> marks;
    Buffer contents;
    Buffer sums;
  };

  /// A check that is under way.
  struct Begun {
    StateCheck check;
    std::uint64_t turn = 0;
    std::int32_t next = -1;  ///< the next one of the slot and the kind whose copy has not been seen
    bool summed = false;
  };

  void make_shared_memory(std::size_t checks) {
    std::size_t tensors_max = 0;
    std::vector<kernels::GroupSums> views;
    for (const auto& group : groups_) {
      views.push_back(group->view());
      tensors_max = std::max(tensors_max, group->store->tensors().size());
    }
    entries_ = Buffer(pinned_, checks * sizeof(CheckEntry));
    std::uninitialized_fill_n(entries_.as<CheckEntry>(), checks, CheckEntry{});
    sums_ = Buffer(device_, checks * tensors_max * sizeof(kernels::TensorSum));
    fill_bytes(Stream::default_stream(), sums_.data(), std::byte{0}, sums_.size_bytes());
    group_views_ = detail::upload(device_, views);
    ring_ = {.entries = entries_.as<CheckEntry>(),
             .sums = {.sums = sums_.as<kernels::TensorSum>(), .tensors_max = static_cast<std::uint32_t>(tensors_max)},
             .groups = group_views_.as<kernels::GroupSums>(),
             .checks_max = static_cast<std::uint32_t>(checks)};
  }

  /// The first launch of a source file makes Kokkos copy tables to the device and wait, which no later call may. No
  /// entry has this turn.
  void prepare() {
    const Stream stream = Stream::default_stream();
    const SlotCopy none;
    kernels::SumTableView table = groups_.front()->table.view();
    table.tiles.tile_count = 1;
    kernels::sum_rows(kernels::labels::prepare, stream, table, {&none, 1}, ring_.sums);
    kernels::settle_checks(kernels::labels::prepare, stream, ring_, 0, 1, UINT32_MAX);
    stream.synchronize();
  }

  static void require_not_captured(const Stream& stream) {
    require(!detail::is_capturing(stream), "stream", "captures a graph", "no replay could be checked");
  }

  void validate(CheckPlan checks) const {
    require(checks.size() <= begun_.size(), "checks", checks.size(), "must be at most checks_max");
    for (const StateCheck& check : checks) {
      require(check.group >= 0 && static_cast<std::size_t>(check.group) < groups_.size(), "group", check.group,
              "has no store");
      const std::int32_t slots = groups_[static_cast<std::size_t>(check.group)]->store->slots();
      require(check.slot.valid() && check.slot.value() < slots, "slot", check.slot, "is not a slot of its store");
      require(check.content != 0, "content", check.content, "publications are numbered from 1");
    }
  }

  void make_room(const Stream& stream, std::size_t checks) {
    const auto fits = [&] { return next_check_ + static_cast<std::int64_t>(checks) <= collected_ + checks_max_; };
    if (fits()) return;
    collect();
    if (fits()) return;
    stream.synchronize();
    collect();
    require_state(fits(), "begin", "checks under way", next_check_ - collected_,
                  "poll() is due, or another stream has not ended them");
  }

  /// Returns whether the check is settled by begin().
  bool add(const StateCheck& check) {
    SlotMarks& marks = marks_of(check);
    const bool published = check.kind == StateCheck::Kind::published;
    // A transfer of a state that this answer publishes reads it later.
    const bool at_once = !published && !check.request.valid() && marks.published_turn < first_turn_;
    if (!at_once) {
      const bool waits = marks.published_turn == turn_ || (published && marks.read_turn == turn_);
      if (waits) ++turn_;
      (published ? marks.published_turn : marks.read_turn) = turn_;
    }
    const std::uint64_t turn = at_once ? transfer_turn_ : turn_;
    const auto index = static_cast<std::size_t>(next_check_ % checks_max_);
    begun_[index] = {.check = check, .turn = turn};
    ring_.entries[index] = {.content = check.content,
                            .slot = check.slot.value(),
                            .group = check.group,
                            .published = published ? 1u : 0u,
                            .turn = static_cast<std::uint32_t>(turn)};
    ++next_check_;
    return at_once;
  }

  /// Lists the checks of each slot, whose copies will be seen in this order.
  void link() {
    for (std::int64_t i = next_check_ - 1; i >= first_check_; --i) {
      const auto index = static_cast<std::int32_t>(i % checks_max_);
      Begun& begun = begun_[static_cast<std::size_t>(index)];
      if (begun.turn == transfer_turn_) continue;
      SlotMarks& marks = marks_of(begun.check);
      std::int32_t& first = begun.check.kind == StateCheck::Kind::published ? marks.first_published : marks.first_read;
      begun.next = std::exchange(first, index);
    }
  }

  /// Takes the first check of a list for a copy that sums it, or answers -1.
  std::int32_t take(std::int32_t& first) {
    const std::int32_t check = first;
    if (check < 0) return check;
    Begun& begun = begun_[static_cast<std::size_t>(check)];
    begun.summed = true;
    first = begun.next;
    return check;
  }

  /// Enqueues the sums of the checks of these turns that no copy has summed, then settles them, a launch for each turn.
  void settle(const Stream& stream, std::uint64_t first_turn, std::uint64_t last_turn) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      rows_.clear();
      for (std::int64_t i = first_check_; i < next_check_; ++i) {
        const auto index = static_cast<std::int32_t>(i % checks_max_);
        const Begun& begun = begun_[static_cast<std::size_t>(index)];
        if (begun.check.group != static_cast<std::int32_t>(group) || begun.summed || begun.turn < first_turn ||
            begun.turn > last_turn)
          continue;
        SlotCopy row = SlotCopy::whole(begun.check.slot, begun.check.slot);
        row.conv_shift = index;
        rows_.push_back(row);
      }
      if (rows_.empty()) continue;
      kernels::sum_rows(kernels::labels::sum_slots, stream, groups_[group]->table.view(), rows_, ring_.sums);
    }
    for (std::uint64_t turn = first_turn; turn <= last_turn; ++turn)
      kernels::settle_checks(kernels::labels::settle_checks, stream, ring_,
                             static_cast<std::uint32_t>(first_check_ % checks_max_),
                             static_cast<std::uint32_t>(next_check_ - first_check_), static_cast<std::uint32_t>(turn));
  }

  /// Moves the verdicts that are there into faults_, in the order of begin(), until that is full.
  void collect() {
    if (std::exchange(answered_, false)) faults_.clear();
    for (; collected_ < next_check_; ++collected_) {
      const auto index = static_cast<std::size_t>(collected_ % checks_max_);
      const auto verdict = std::atomic_ref(ring_.entries[index].verdict).load(std::memory_order_acquire);
      if (verdict == static_cast<std::uint32_t>(VerdictCode::pending)) return;
      const auto fault = fault_of(verdict, begun_[index].check);
      if (fault && faults_.size() == begun_.size()) return;
      if (fault) faults_.push_back(*fault);
    }
  }

  [[nodiscard]] const StateCheck& check_of(std::int64_t number) const {
    return begun_[static_cast<std::size_t>(number % checks_max_)].check;
  }
  [[nodiscard]] SlotMarks& marks_of(const StateCheck& check) {
    return groups_[static_cast<std::size_t>(check.group)]->marks_of(check.slot.value());
  }

  DeviceResource device_;
  PinnedResource pinned_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::int32_t checks_max_;
  Buffer entries_;
  Buffer sums_;
  Buffer group_views_;
  kernels::CheckRing ring_;
  std::vector<Begun> begun_;  ///< [checks_max], as the entries of the ring
  std::vector<SlotCopy> rows_;
  std::vector<StateFault> faults_;
  bool answered_ = false;  ///< poll() has answered faults_
  bool open_ = false;      ///< end() is due
  bool has_more_ = false;  ///< begin() has left checks to end()
  // Checks are counted from the first one on.
  std::int64_t first_check_ = 0;  ///< of the last begin()
  std::int64_t next_check_ = 0;
  std::int64_t collected_ = 0;
  std::int64_t checked_ = 0;
  // Launches that settle are numbered. In one launch no slot is published that another check of it names.
  std::uint64_t turn_ = 0;
  std::uint64_t transfer_turn_ = 0;  ///< of the checks that begin() settles
  std::uint64_t first_turn_ = 0;     ///< of the others of the last begin()
};

StateIntegrity::StateIntegrity(std::span<const StateStore* const> stores, const IntegrityOptions& options)
    : impl_(std::make_unique<Impl>(stores, options)) {}
StateIntegrity::StateIntegrity(StateIntegrity&&) noexcept = default;
StateIntegrity& StateIntegrity::operator=(StateIntegrity&&) noexcept = default;
StateIntegrity::~StateIntegrity() = default;

void StateIntegrity::begin(const Stream& stream, CheckPlan checks) {
  impl_->begin(stream, checks);
}
void StateIntegrity::copy_slots(const Stream& stream, SlotCopier& copier, CopyPlan plan, std::int32_t group) {
  impl_->copy_slots(stream, copier, plan, group);
}
void StateIntegrity::end(const Stream& stream) {
  impl_->end(stream);
}
std::span<const StateFault> StateIntegrity::poll() {
  return impl_->poll();
}
void StateIntegrity::wait(const Stream& stream) {
  stream.synchronize();
}
std::int64_t StateIntegrity::checked() const noexcept {
  return impl_->checked();
}

}  // namespace stateport
