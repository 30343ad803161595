// SPDX-License-Identifier: Apache-2.0
#include "serve/held_prefixes.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace stateport::detail {
namespace {

/// Stands behind a prompt that is held: a request can continue from all of its prompt but the last token.
constexpr Token behind_prompt = std::numeric_limits<Token>::min();

}  // namespace

HeldPrefixes::HeldPrefixes(RequestBook& book, RequestIndex& index, RequestEpochs& epochs, RequestClock& clock,
                           RequestTiers* tiers, TenantMarks* marks)
    : book_(book), index_(index), epochs_(epochs), clock_(clock), tiers_(tiers), marks_(marks), memory_(book) {
  std::int32_t row = book.options.max_requests;
  for (std::int32_t i = 0; i < book.options.prefixes.pins; ++i) pins_.push_back({.row = RequestId{row++}});
  for (std::int32_t i = 0; i < book.options.prefixes.prefetches; ++i)
    loads_.push_back({.row = RequestId{row++}, .memory = {}});
  for (auto record = book.records.begin() + book.options.max_requests; record != book.records.end(); ++record)
    record->holds_prefix = true;
  if (tiers != nullptr) tiers->set_prefix_loads(*this);
}

void HeldPrefixes::begin_call(const Prompt& prompt) {
  check_prompt(prompt, book_.options.max_request_tokens, clock_.least_s());
  require(std::ssize(prompt.tokens) < book_.options.max_request_tokens, "prompt", prompt.tokens.size(),
          "must be shorter than max_request_tokens: a request computes one token more");
  book_.now_s = clock_.at(prompt.now_s);
  end_leases();
}

/// Takes the hit of the prompt.
void HeldPrefixes::open(RequestId row, const Prompt& prompt) {
  RequestRecord& record = book_.records[row.index()];
  record.id = row;
  record.fill(prompt, epochs_.name_of(prompt.name_space), book_.options.block_size_tokens);
  record.tokens.append({&behind_prompt, 1});
  ++record.prompt_tokens;
  book_.set_breakpoints(row, {});
  if (marks_ != nullptr) marks_->begin(row, prompt.name_space.salt);
  if (book_.tenants) book_.tenants->begin(row, prompt.name_space.salt);
  if (book_.sessions) book_.sessions->begin(row, 0, book_.now_s);
  book_.opened[row.index()] = *index_.open(row, {.name_space = record.name_space, .media = prompt.media});
  record.running = true;
  record.computed = book_.opened_of(row).reused_tokens;
  index_.note_memory(row);
}

void HeldPrefixes::close(RequestId& row) {
  book_.ask(row);
  index_.close(row, RequestEnd::aborted, {});
  if (book_.sessions) book_.sessions->note_change();
  book_.records[row.index()].running = false;
  row = row.next();
}

void HeldPrefixes::end_call() {
  if (book_.tenants) book_.tenants->keep_to_limits();
  book_.ask_for_nobody();
  if (tiers_ != nullptr) tiers_->end_call();
  count();
}

void HeldPrefixes::count() noexcept {
  usage_.pinned_kv_tokens = memory_.kv_tokens();
  usage_.pinned_states = memory_.states();
  usage_.pinned_bytes = memory_.bytes();
}

PinnedPrefix HeldPrefixes::pin(const Prompt& prompt, double lease_s) {
  require(std::isfinite(lease_s) && lease_s >= 0, "lease_s", lease_s, "must be finite and not negative");
  begin_call(prompt);
  const auto free = std::ranges::find(pins_, PinId{0}, &Pin::id);
  if (free == pins_.end()) {
    ++usage_.refused_pins;
    return {.refused = true};
  }
  Pin& pin = *free;
  open(pin.row, prompt);
  PinnedPrefix answer{.tokens = book_.opened_of(pin.row).reused_tokens};
  // An index by hash also holds KV behind the state, which the pin does not promise. A close may evict, where a budget
  // is exceeded.
  for (Prompt held = prompt; answer.tokens > 0 && book_.opened_of(pin.row).cached_tokens > answer.tokens;) {
    close(pin.row);
    held.tokens = prompt.tokens.first(static_cast<std::size_t>(answer.tokens));
    open(pin.row, held);
    answer.tokens = book_.opened_of(pin.row).reused_tokens;
  }
  if (answer.tokens > 0) memory_.add(pin.row);
  answer.refused = answer.tokens > 0 && !memory_.fits();
  usage_.refused_pins += answer.refused;
  if (answer.tokens == 0 || answer.refused) {
    if (answer.refused) memory_.remove(pin.row);
    close(pin.row);
  } else {
    constexpr double never = std::numeric_limits<double>::infinity();
    answer.pin = pin.id = ++last_pin_;
    pin.ends_s = lease_s > 0 ? book_.now_s + lease_s : never;
    ++usage_.pins;
    ++usage_.made_pins;
  }
  end_call();
  return answer;
}

void HeldPrefixes::end(Pin& pin) {
  memory_.remove(pin.row);
  close(pin.row);
  pin.id = 0;
  --usage_.pins;
}

bool HeldPrefixes::unpin(PinId id) {
  require(id >= 1 && id <= last_pin_, "pin", id, "is the number of no pin");
  const auto pin = std::ranges::find(pins_, id, &Pin::id);
  if (pin == pins_.end()) return false;
  end(*pin);
  end_call();
  return true;
}

void HeldPrefixes::end_leases() {
  bool ended = false;
  for (Pin& pin : pins_) {
    if (pin.id == 0 || pin.ends_s > book_.now_s) continue;
    end(pin);
    ++usage_.ended_leases;
    ended = true;
  }
  if (ended) end_call();
}

void HeldPrefixes::end_stale() {
  for (Pin& pin : pins_)
    if (pin.id > 0 && book_.record(pin.row).stale) end(pin);
  book_.ask_for_nobody();
  count();
}

void HeldPrefixes::end_pins_of(std::size_t group, SlotId slot) {
  for (Pin& pin : pins_)
    if (pin.id > 0 && book_.hit_of(pin.row, group) == slot) end(pin);
  book_.ask_for_nobody();
  count();
}

void HeldPrefixes::end_all() {
  for (Pin& pin : pins_)
    if (pin.id > 0) end(pin);
  book_.ask_for_nobody();
  count();
}

Prefetch HeldPrefixes::prefetch(const Prompt& prompt) {
  require(prompt.search != PromptSearch::device, "search", static_cast<int>(prompt.search),
          "must not be the device alone");
  begin_call(prompt);
  const auto free = std::ranges::find(loads_, PrefetchId{0}, &Load::id);
  if (free == loads_.end()) {
    ++usage_.refused_prefetches;
    return {.load = {}, .refused = true, .transfers = tiers_ != nullptr ? tiers_->take_transfers() : TransferPlan{}};
  }
  Load& load = *free;
  open(load.row, prompt);
  const OpenedPrompt opened = book_.opened_of(load.row);
  load.id = ++last_load_;
  load.cached_tokens = opened.reused_tokens;
  StartedRequest started{.request = load.row};
  tiers_->start(load.row, prompt.search, opened, started);
  Prefetch answer{.cached_tokens = opened.reused_tokens, .load = started.load, .transfers = {}};
  if (started.load) {
    tiers_->end_after_load(load.row);
    answer.prefetch = load.id;
    index_.note_memory(load.row);
    ++usage_.prefetches;
    ++usage_.made_prefetches;
  } else {
    load.id = 0;
    --last_load_;
    if (load.memory.states > 0) ++usage_.refused_prefetches;  // the index had no room
    memory_.remove(std::exchange(load.memory, {}));
    close(load.row);
  }
  end_call();
  answer.transfers = tiers_->take_transfers();
  return answer;
}

HeldPrefixes::Load& HeldPrefixes::load_of(RequestId row) noexcept {
  return loads_[row.index() - static_cast<std::size_t>(book_.options.max_requests) - pins_.size()];
}

/// All of the load counts as memory of its own.
bool HeldPrefixes::may_load(RequestId row, std::int64_t tokens, std::int64_t cached_tokens) {
  Load& load = load_of(row);
  const std::int64_t block = book_.options.block_size_tokens;
  load.memory = {.blocks = std::max<std::int64_t>(tokens - cached_tokens, 0) / block, .states = 1};
  memory_.add(load.memory);
  if (memory_.fits()) return true;
  memory_.remove(load.memory);
  load.memory = {};
  ++usage_.refused_prefetches;
  return false;
}

void HeldPrefixes::end_load(RequestId row) {
  Load& load = load_of(row);
  memory_.remove(std::exchange(load.memory, {}));
  usage_.prefetched_tokens += book_.record(row).computed - load.cached_tokens;
  close(load.row);
  load.id = 0;
  --usage_.prefetches;
  book_.ask_for_nobody();
  count();
}

bool HeldPrefixes::is_prefetching(PrefetchId id) const {
  require(id >= 1 && id <= last_load_, "prefetch", id, "is the number of no prefetch");
  return std::ranges::find(loads_, id, &Load::id) != loads_.end();
}

void HeldPrefixes::check() const {
  constexpr const char* structure = "HeldPrefixes";
  std::vector<RequestId> rows;
  for (const Pin& pin : pins_) {
    require_invariant(book_.record(pin.row).running == (pin.id > 0), structure, "a row is open without a pin");
    if (pin.id == 0) continue;
    rows.push_back(pin.row);
    require_invariant(!book_.record(pin.row).stale, structure, "a pin holds contents that are forgotten");
    require_invariant(book_.record(pin.row).computed > 0, structure, "a pin holds nothing");
  }
  require_invariant(std::ssize(rows) == usage_.pins, structure, "a pin is counted twice");
  memory_.check(rows);
  std::int32_t loads = 0;
  for (const Load& load : loads_) {
    loads += load.id > 0;
    require_invariant(book_.record(load.row).running == (load.id > 0), structure, "a row is open without a prefetch");
  }
  require_invariant(loads == usage_.prefetches, structure, "a prefetch is lost");
  require_invariant(usage_.pinned_kv_tokens == memory_.kv_tokens() && usage_.pinned_states == memory_.states(),
                    structure, "the usage of pins is out of date");
}

}  // namespace stateport::detail
