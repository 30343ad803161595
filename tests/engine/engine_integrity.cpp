// SPDX-License-Identifier: Apache-2.0
#include "engine_integrity.hpp"

#include <stateport/backends/transfer.hpp>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <stdexcept>
#include <string>

namespace stateport::engine {
namespace {

constexpr std::size_t old_states_max = 8;

bool is_of_pass(const StateCheck& check) {
  return check.kind == StateCheck::Kind::read && check.request.valid();
}

}  // namespace

EngineIntegrity::EngineIntegrity(const CacheOptions& options, RequestCache& cache,
                                 std::vector<const StateStore*> stores, CacheCounts& counts)
    : options_(options),
      cache_(cache),
      stores_(std::move(stores)),
      counts_(counts),
      sums_(stores_, {.checks_max = static_cast<std::int32_t>(cache.integrity()->usage().checks_max)}),
      random_(options.damage),
      old_(stores_.size()) {}

void EngineIntegrity::begin() {
  begun_.clear();
  for (const StateCheck& check : cache_.integrity()->take()) (is_of_pass(check) ? reads_ : begun_).push_back(check);
  sums_.begin(stream_, begun_);
}

void EngineIntegrity::begin_pass() {
  begun_ = std::exchange(reads_, {});
  sums_.begin(stream_, begun_);
}

void EngineIntegrity::end() {
  sums_.end(stream_);
  sums_.wait(stream_);
  const std::span<const StateFault> faults = sums_.poll();
  const auto is_read = [](const StateCheck& check) { return check.kind == StateCheck::Kind::read; };
  const auto is_damaged = [&](const StateCheck& check) { return is_read(check) && damaged_.contains(check.content); };
  const auto is_fault_of = [](const StateFault& fault, const StateCheck& check) {
    return fault.kind == StateFault::Kind::changed && fault.check == check;
  };
  if (!std::ranges::equal(faults, begun_ | std::views::filter(is_damaged), is_fault_of))
    throw std::logic_error("EngineIntegrity: " + std::to_string(faults.size()) + " faults, and " +
                           std::to_string(std::ranges::count_if(begun_, is_damaged)) + " reads of damaged checkpoints");
  counts_.checks += std::ranges::count_if(begun_, is_read);
  counts_.faults += std::ssize(faults);
  for (const StateFault& fault : faults)
    if (fault.check.request.valid()) wrong_.insert(fault.check.request);
  if (options_.fault != Fault::unread_verdicts) counts_.withdrawn += cache_.integrity()->withdraw(faults);
  remember_published();
  if (cache_.integrity()->usage().unchecked_states > 0)
    throw std::logic_error("EngineIntegrity: a checkpoint stays without checks");
}

bool EngineIntegrity::end_pass() {
  wrong_.clear();
  end();
  return wrong_.empty() || options_.fault == Fault::unread_verdicts;
}

void EngineIntegrity::remember_published() {
  if (options_.damage == 0) return;
  for (const StateCheck& check : begun_) {
    if (check.kind != StateCheck::Kind::published) continue;
    const Kept& kept = kept_[{check.group, check.slot}] = {.check = check, .bytes = read(check.group, check.slot)};
    std::vector<StateBytes>& old = old_[static_cast<std::size_t>(check.group)];
    if (old.size() < old_states_max)
      old.push_back(kept.bytes);
    else
      old[check.content % old_states_max] = kept.bytes;
  }
}

void EngineIntegrity::damage(const std::function<bool(const StateCheck&)>& is_worked_in) {
  if (options_.damage == 0 || kept_.empty() || !random_.chance(30)) return;
  const auto at = std::next(kept_.begin(), random_.between(0, std::ssize(kept_) - 1));
  if (is_worked_in(at->second.check)) return;
  const Kept kept = at->second;
  kept_.erase(at);
  if (read(kept.check.group, kept.check.slot) != kept.bytes) return;  // it was evicted, and others use the slot
  const StateBytes bytes = damaged(kept.check.group, kept.bytes);
  if (bytes == kept.bytes) return;
  write(kept.check.group, kept.check.slot, bytes);
  damaged_.insert(kept.check.content);
  ++counts_.damaged;
}

/// A stray write, a copy of the wrong slot, zeros, or a copy that comes too late. All numbers stay finite: the room for
/// drafts behind a conv window may keep them when the block has another state, which is no fault of that one.
EngineIntegrity::StateBytes EngineIntegrity::damaged(std::int32_t group, const StateBytes& bytes) {
  const auto index = static_cast<std::size_t>(group);
  StateBytes wrong = bytes;
  switch (random_.between(0, 3)) {
    case 0: {
      const auto tensor = static_cast<std::size_t>(random_.between(0, std::ssize(wrong) - 1));
      const StateTensorSpec& spec = stores_[index]->tensors()[tensor].spec;
      for (std::int64_t count = random_.between(1, 4); count > 0; --count) {
        const auto element = static_cast<std::size_t>(random_.between(0, spec.element_count() - 1));
        wrong[tensor][element * element_bytes(spec.type)] ^= static_cast<std::byte>(random_.between(1, 255));
      }
      return wrong;
    }
    case 1:
      return read(group, SlotId{random_.between32(0, stores_[index]->slots() - 1)});
    case 2:
      for (auto& tensor : wrong) std::ranges::fill(tensor, std::byte{0});
      return wrong;
    default:
      return old_[index][static_cast<std::size_t>(random_.between(0, std::ssize(old_[index]) - 1))];
  }
}

EngineIntegrity::StateBytes EngineIntegrity::read(std::int32_t group, SlotId slot) const {
  StateBytes bytes;
  for (const StateTensorView& tensor : stores_[static_cast<std::size_t>(group)]->tensors()) {
    bytes.emplace_back(tensor.spec.natural_bytes());
    copy_bytes(stream_, bytes.back().data(), tensor.slot_data(slot), bytes.back().size());
  }
  stream_.synchronize();
  return bytes;
}

void EngineIntegrity::write(std::int32_t group, SlotId slot, const StateBytes& bytes) const {
  const StateStore& store = *stores_[static_cast<std::size_t>(group)];
  for (std::size_t i = 0; i < bytes.size(); ++i)
    copy_bytes(stream_, store.tensors()[i].slot_data(slot), bytes[i].data(), bytes[i].size());
  stream_.synchronize();
}

}  // namespace stateport::engine
