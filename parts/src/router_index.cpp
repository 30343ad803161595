// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/router_index.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/flat_map.hpp"
#include "containers/table.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

namespace stateport {
namespace {

constexpr std::int32_t workers_limit = 65536;
constexpr std::size_t prefixes_limit = std::size_t{1} << 31;
constexpr std::size_t blocks_limit = std::size_t{1} << 24;
constexpr std::int32_t groups_limit = 15;
constexpr std::size_t media = medium_count;

struct PrefixKey {
  [[nodiscard]] std::size_t operator()(const PrefixHash& prefix) const noexcept { return prefix.words[0]; }
};

RouterIndexOptions checked(const RouterIndexOptions& options) {
  require(options.workers_max >= 1 && options.workers_max <= workers_limit, "workers_max", options.workers_max,
          "must be from 1 to 65536");
  require(options.prefixes_max >= 1 && options.prefixes_max <= prefixes_limit, "prefixes_max", options.prefixes_max,
          "must be from 1 to 2^31");
  require(options.blocks_max >= 1 && options.blocks_max <= blocks_limit, "blocks_max", options.blocks_max,
          "must be from 1 to 2^24");
  require(options.state_groups >= 0 && options.state_groups <= groups_limit, "state_groups", options.state_groups,
          "must be from 0 to 15");
  return options;
}

}  // namespace

/// The contents of a prefix are a row of bit sets of workers: one set for each medium that may have the KV, then one
/// for each group of states and medium.
class RouterIndex::Impl {
 public:
  explicit Impl(const RouterIndexOptions& options)
      : options_(checked(options)),
        words_((static_cast<std::size_t>(options.workers_max) + 63) / 64),
        row_words_((1 + static_cast<std::size_t>(options.state_groups)) * media * words_),
        workers_(static_cast<std::size_t>(options.workers_max)),
        known_(words_),
        alive_(media * words_),
        reach_(workers_.size()) {
    row_of_.reserve(options.prefixes_max);
    keys_.reserve(options.prefixes_max);
    contents_.reserve(options.prefixes_max);
    free_.reserve(options.prefixes_max);
    rows_.reserve(options.prefixes_max * row_words_);
    hits_.reserve(options.blocks_max * media * words_);
    found_.reserve(workers_.size());
  }

  void join(std::int32_t worker, std::uint64_t next_sequence) {
    Worker& joined = at(worker);
    if (joined.is_there) clear(worker);
    joined = {.is_there = true, .next = next_sequence, .end = next_sequence};
    set_known(worker);
  }

  void leave(std::int32_t worker) {
    Worker& gone = at(worker);
    if (gone.is_there) clear(worker);
    gone = {};
    set_known(worker);
  }

  bool hear(std::int32_t worker, std::span<const CacheEvent> events) {
    check(worker, events);
    for (const CacheEvent& event : events) take(worker, event.sequence, {&event, 1});
    return is_known(worker);
  }

  bool hear(std::int32_t worker, std::uint64_t sequence, std::span<const CacheEvent> events) {
    check(worker, events);
    take(worker, sequence, events);
    return is_known(worker);
  }

  [[nodiscard]] bool is_known(std::int32_t worker) const {
    const Worker& asked = at(worker);
    return asked.is_there && asked.next >= asked.end;
  }
  [[nodiscard]] std::uint64_t next_sequence(std::int32_t worker) const { return at(worker).next; }

  [[nodiscard]] std::span<const RouterReach> find(std::span<const PrefixHash> blocks);
  [[nodiscard]] std::size_t prefixes() const noexcept { return row_of_.size(); }
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
  void check_invariants() const;

 private:
  struct Worker {
    bool is_there = false;
    std::uint64_t next = 0;  ///< the first number that was not heard
    std::uint64_t end = 0;   ///< behind the largest number that came
  };
  using Row = std::uint32_t;

  [[nodiscard]] const Worker& at(std::int32_t worker) const {
    require(worker >= 0 && worker < options_.workers_max, "worker", worker, "must be from 0 to workers_max - 1");
    return workers_[static_cast<std::size_t>(worker)];
  }
  [[nodiscard]] Worker& at(std::int32_t worker) { return const_cast<Worker&>(std::as_const(*this).at(worker)); }
  void check(std::int32_t worker, std::span<const CacheEvent> events) const;
  void take(std::int32_t worker, std::uint64_t sequence, std::span<const CacheEvent> events);
  void apply(std::int32_t worker, const CacheEvent& event);
  void store(const PrefixHash& prefix, std::size_t set, std::int32_t worker);
  void remove(const PrefixHash& prefix, std::size_t set, std::int32_t worker);
  void clear(std::int32_t worker);
  void give_back(Row row);
  void set_known(std::int32_t worker);
  bool walk_on(const std::uint64_t* row);
  void note(std::size_t block);

  [[nodiscard]] std::uint64_t* row(Row number) noexcept { return rows_.data() + number * row_words_; }
  [[nodiscard]] const std::uint64_t* row(Row number) const noexcept { return rows_.data() + number * row_words_; }
  [[nodiscard]] static std::size_t word_of(std::int32_t worker) noexcept {
    return static_cast<std::size_t>(worker) / 64;
  }
  [[nodiscard]] static std::uint64_t bit_of(std::int32_t worker) noexcept {
    return std::uint64_t{1} << (static_cast<unsigned>(worker) % 64U);
  }

  RouterIndexOptions options_;
  std::size_t words_;      ///< of a set of workers
  std::size_t row_words_;  ///< of the contents of a prefix
  std::vector<Worker> workers_;
  std::vector<std::uint64_t> known_;
  FlatMap<PrefixHash, Row, PrefixKey> row_of_;
  Table<std::uint64_t> rows_;
  std::vector<PrefixHash> keys_;         ///< by row
  std::vector<std::uint32_t> contents_;  ///< by row: bits that are set; 0: the row is free
  std::vector<Row> free_;
  std::uint64_t refused_ = 0;

  // Of one find(), by medium: workers that have all KV so far without slower media, and those that can reuse a block.
  std::vector<std::uint64_t> alive_;
  Table<std::uint64_t> hits_;
  std::vector<RouterReach> reach_;  ///< by worker
  std::vector<RouterReach> found_;
};

void RouterIndex::Impl::check(std::int32_t worker, std::span<const CacheEvent> events) const {
  require(at(worker).is_there, "worker", worker, "has not joined");
  for (const CacheEvent& event : events)
    if (event.kind != CacheEvent::Kind::cleared && event.content == CacheContent::state)
      require(event.group >= 0 && event.group < std::max(options_.state_groups, 1), "group", event.group,
              "must be from 0 to state_groups - 1");
}

void RouterIndex::Impl::take(std::int32_t worker, std::uint64_t sequence, std::span<const CacheEvent> events) {
  Worker& from = at(worker);
  if (sequence < from.next) return;
  from.end = std::max(from.end, sequence + 1);
  const bool clears = std::ranges::find(events, CacheEvent::Kind::cleared, &CacheEvent::kind) != events.end();
  if (sequence == from.next || clears) {
    from.next = sequence + 1;
    for (const CacheEvent& event : events) apply(worker, event);
  }
  set_known(worker);
}

void RouterIndex::Impl::apply(std::int32_t worker, const CacheEvent& event) {
  if (event.kind == CacheEvent::Kind::cleared) return clear(worker);
  const bool is_state = event.content == CacheContent::state;
  if (event.medium == Medium::elsewhere || (is_state && options_.state_groups == 0)) return;
  const std::size_t group = is_state ? 1 + static_cast<std::size_t>(event.group) : 0;
  const std::size_t set = group * media + static_cast<std::size_t>(event.medium);
  if (event.kind == CacheEvent::Kind::stored)
    store(event.prefix, set, worker);
  else
    remove(event.prefix, set, worker);
}

void RouterIndex::Impl::store(const PrefixHash& prefix, std::size_t set, std::int32_t worker) {
  auto entry = row_of_.find(prefix);
  if (entry == row_of_.end()) {
    if (row_of_.size() == options_.prefixes_max) {
      ++refused_;
      return;
    }
    Row fresh = static_cast<Row>(keys_.size());
    if (free_.empty()) {
      keys_.push_back(prefix);
      contents_.push_back(0);
      rows_.resize(rows_.size() + row_words_);
    } else {
      fresh = free_.back();
      free_.pop_back();
      keys_[fresh] = prefix;
    }
    entry = row_of_.try_emplace(prefix, fresh).first;
  }
  std::uint64_t& word = row(entry->second)[set * words_ + word_of(worker)];
  contents_[entry->second] += (word & bit_of(worker)) == 0;
  word |= bit_of(worker);
}

void RouterIndex::Impl::remove(const PrefixHash& prefix, std::size_t set, std::int32_t worker) {
  const auto entry = row_of_.find(prefix);
  if (entry == row_of_.end()) return;
  std::uint64_t& word = row(entry->second)[set * words_ + word_of(worker)];
  contents_[entry->second] -= (word & bit_of(worker)) != 0;
  word &= ~bit_of(worker);
  if (contents_[entry->second] == 0) give_back(entry->second);
}

void RouterIndex::Impl::clear(std::int32_t worker) {
  for (Row number = 0; number < keys_.size(); ++number) {
    if (contents_[number] == 0) continue;
    std::uint64_t* word = row(number) + word_of(worker);
    for (std::size_t set = 0; set < row_words_ / words_; ++set, word += words_) {
      contents_[number] -= (*word & bit_of(worker)) != 0;
      *word &= ~bit_of(worker);
    }
    if (contents_[number] == 0) give_back(number);
  }
}

void RouterIndex::Impl::give_back(Row row) {
  row_of_.erase(keys_[row]);
  free_.push_back(row);
}

void RouterIndex::Impl::set_known(std::int32_t worker) {
  std::uint64_t& word = known_[word_of(worker)];
  word = is_known(worker) ? word | bit_of(worker) : word & ~bit_of(worker);
}

/// Notes the workers that can reuse the prefix of this row. False: none has all KV up to it.
bool RouterIndex::Impl::walk_on(const std::uint64_t* row) {
  std::uint64_t any = 0;
  for (std::size_t word = 0; word < words_; ++word) {
    std::uint64_t kv = 0;
    std::array<std::uint64_t, groups_limit> states = {};
    for (std::size_t medium = 0; medium < media; ++medium) {
      kv |= row[medium * words_ + word];
      std::uint64_t& alive = alive_[medium * words_ + word];
      alive &= kv;
      any |= alive;
      std::uint64_t hit = alive;
      for (std::size_t group = 0; group < static_cast<std::size_t>(options_.state_groups); ++group) {
        states[group] |= row[((1 + group) * media + medium) * words_ + word];
        hit &= states[group];
      }
      hits_.push_back(hit);
    }
  }
  return any != 0;
}

/// The workers for whom this is the last block that they can reuse. Those that are noted leave alive_.
void RouterIndex::Impl::note(std::size_t block) {
  for (std::size_t word = 0; word < words_; ++word)
    for (std::size_t medium = 0; medium < media; ++medium) {
      std::uint64_t& left = alive_[medium * words_ + word];
      std::uint64_t fresh = hits_[(block * words_ + word) * media + medium] & left;
      left &= ~fresh;
      for (; fresh != 0; fresh &= fresh - 1)
        reach_[word * 64 + static_cast<std::size_t>(std::countr_zero(fresh))].blocks[medium] =
            static_cast<std::int32_t>(block + 1);
    }
}

std::span<const RouterReach> RouterIndex::Impl::find(std::span<const PrefixHash> blocks) {
  hits_.clear();
  found_.clear();
  for (std::size_t medium = 0; medium < media; ++medium)
    std::ranges::copy(known_, alive_.begin() + static_cast<std::ptrdiff_t>(medium * words_));
  for (const PrefixHash& prefix : blocks.first(std::min(blocks.size(), options_.blocks_max))) {
    const auto entry = row_of_.find(prefix);
    if (entry == row_of_.end() || !walk_on(row(entry->second))) break;
  }
  std::ranges::fill(alive_, ~std::uint64_t{0});
  for (std::size_t block = hits_.size() / (media * words_); block-- > 0;) note(block);
  // A worker that reached a block by some media reached it by all.
  for (std::size_t word = 0; word < words_; ++word)
    for (std::uint64_t hit = ~alive_[(media - 1) * words_ + word]; hit != 0; hit &= hit - 1) {
      const std::size_t worker = word * 64 + static_cast<std::size_t>(std::countr_zero(hit));
      reach_[worker].worker = static_cast<std::int32_t>(worker);
      found_.push_back(std::exchange(reach_[worker], {}));
    }
  return found_;
}

void RouterIndex::Impl::check_invariants() const {
  const auto holds = [](bool ok, std::string_view what) { require_invariant(ok, "RouterIndex", what); };
  std::size_t rows = 0;
  for (Row number = 0; number < keys_.size(); ++number) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < row_words_; ++i) {
      std::uint64_t left = row(number)[i];
      bits += static_cast<std::uint32_t>(std::popcount(left));
      for (; left != 0; left &= left - 1) {
        const std::size_t worker = i % words_ * 64 + static_cast<std::size_t>(std::countr_zero(left));
        holds(worker < workers_.size() && workers_[worker].is_there, "contents of a worker that has not joined");
      }
    }
    holds(bits == contents_[number], "a row has another number of contents");
    if (bits == 0) continue;
    ++rows;
    const auto entry = row_of_.find(keys_[number]);
    holds(entry != row_of_.end() && entry->second == number, "a prefix is not found");
  }
  holds(rows == row_of_.size(), "a prefix without contents");
  holds(rows + free_.size() == keys_.size(), "a row is lost");
}

RouterIndex::RouterIndex(const RouterIndexOptions& options) : impl_(std::make_unique<Impl>(options)) {}
RouterIndex::RouterIndex(RouterIndex&&) noexcept = default;
RouterIndex& RouterIndex::operator=(RouterIndex&&) noexcept = default;
RouterIndex::~RouterIndex() = default;

void RouterIndex::join(std::int32_t worker, std::uint64_t next_sequence) {
  impl_->join(worker, next_sequence);
}
void RouterIndex::leave(std::int32_t worker) {
  impl_->leave(worker);
}
bool RouterIndex::hear(std::int32_t worker, std::span<const CacheEvent> events) {
  return impl_->hear(worker, events);
}
bool RouterIndex::hear(std::int32_t worker, std::uint64_t sequence, std::span<const CacheEvent> events) {
  return impl_->hear(worker, sequence, events);
}
bool RouterIndex::is_known(std::int32_t worker) const {
  return impl_->is_known(worker);
}
std::uint64_t RouterIndex::next_sequence(std::int32_t worker) const {
  return impl_->next_sequence(worker);
}
std::span<const RouterReach> RouterIndex::find(std::span<const PrefixHash> blocks) {
  return impl_->find(blocks);
}
std::size_t RouterIndex::prefixes() const noexcept {
  return impl_->prefixes();
}
std::uint64_t RouterIndex::refused() const noexcept {
  return impl_->refused();
}
void RouterIndex::check_invariants() const {
  impl_->check_invariants();
}

}  // namespace stateport
