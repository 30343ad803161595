// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/remote_tier.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/reserve_amortised.hpp"
#include "host/ready_queue.hpp"
#include "remote/remote_jobs.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

namespace stateport {
namespace {

/// How long the thread leaves the store alone while it waits for answers: at first a fraction of a round trip on a
/// network, and twice as long each time that nothing came.
constexpr std::chrono::microseconds poll_interval_min{50};
constexpr std::chrono::microseconds poll_interval_max{1000};

void validate(std::span<const ObjectSet> sets, const RemoteTierOptions& options) {
  require(!sets.empty(), "sets.size()", sets.size(), "a tier holds objects of at least one set");
  require(options.finds_max >= 1, "finds_max", options.finds_max, "must be at least 1");
  for (const ObjectSet& set : sets)
    require(options.queue_bytes >= set.bytes(), "queue_bytes", options.queue_bytes, "is less than a set of objects");
}

/// Answers to requests of others would be taken for those to the tier's.
void require_unused(const RemoteStore& store) {
  const RemoteStoreStatistics done = store.statistics();
  const auto answered = std::accumulate(done.answers.begin(), done.answers.end(), std::uint64_t{0});
  require_state(done.accepted_requests <= answered, "RemoteTier", "requests of the store without an answer",
                done.accepted_requests - answered, "must be 0");
}

bool holds(const ObjectSet& set, CacheContent content, std::int32_t group) noexcept {
  return set.options().content == content && set.options().group == group;
}

}  // namespace

class RemoteTier::Impl {
 public:
  Impl(RemoteStore& store, std::vector<ObjectSet> sets, const RemoteTierOptions& options)
      : options_((validate(sets, options), options)), sets_(in_groups(std::move(sets))), store_(store), jobs_(store) {
    require_unused(store_);
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      throw BackendError("start of a thread", error.what());
    }
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  /// Sets of one content and group stand behind each other.
  static std::vector<ObjectSet> in_groups(std::vector<ObjectSet> sets) {
    std::ranges::stable_sort(
        sets, {}, [](const ObjectSet& set) { return std::pair(set.options().content, set.options().group); });
    return sets;
  }
  [[nodiscard]] std::span<const ObjectSet> sets_of(CacheContent content, std::int32_t group) const noexcept {
    const auto is_of = [&](const ObjectSet& set) { return holds(set, content, group); };
    const auto first = std::ranges::find_if(sets_, is_of);
    return {first, std::find_if_not(first, sets_.end(), is_of)};
  }
  [[nodiscard]] std::span<const ObjectSet> require_sets(const ImageKey& key) const {
    require(key.tokens >= 0, "key.tokens", key.tokens, "must not be negative");
    const auto sets = sets_of(key.content, key.group);
    require(!sets.empty(), "key.group", key.group, "is of no content and group that the tier holds");
    return sets;
  }
  [[nodiscard]] std::size_t bytes_of(const ImageKey& key) const {
    return std::ranges::max(require_sets(key), {}, &ObjectSet::bytes).bytes();
  }

  bool accept(tiers::RemoteJob job) {
    job.sets = require_sets(job.key);
    const bool writes = job.kind == tiers::RemoteJob::Kind::write;
    if (writes || job.kind == tiers::RemoteJob::Kind::read) {
      const std::size_t wanted = writes ? job.sets.front().bytes() : bytes_of(job.key);
      require(job.memory.size() == wanted, "set.size()", job.memory.size(), "must be that of the objects of the key");
      require(job.memory.data() != nullptr, "set", "nullptr", "must point to memory");
    }
    job.accepted = std::chrono::steady_clock::now();
    {
      const std::lock_guard lock(mutex_);
      answers_.prepare(under_way_ + answers_.size() + 1);
      detail::reserve_amortised(incoming_, incoming_.size() + 1);
      if (!has_room(job)) return false;
      incoming_.push_back(job);
      ++under_way_;
    }
    wake_.notify_all();
    return true;
  }

  std::size_t poll(std::span<RemoteTierCompletion> completions) {
    const std::lock_guard lock(mutex_);
    return answers_.hand_out(completions);
  }
  void wait_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return under_way_ == 0; });
  }
  [[nodiscard]] RemoteTierStatistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  /// Counts the request as accepted, or as refused.
  bool has_room(const tiers::RemoteJob& job) {
    const auto fits = [&](std::uint64_t& queue, std::uint64_t& refused) {
      if (queue + job.memory.size() > options_.queue_bytes) return ++refused, false;
      queue += job.memory.size();
      return true;
    };
    switch (job.kind) {
      case tiers::RemoteJob::Kind::write:
        return fits(statistics_.write_queue_bytes, statistics_.refused_writes);
      case tiers::RemoteJob::Kind::read:
        return fits(statistics_.read_queue_bytes, statistics_.refused_reads);
      case tiers::RemoteJob::Kind::find:
        if (finds_ >= options_.finds_max) return ++statistics_.refused_finds, false;
        ++finds_;
        return true;
      case tiers::RemoteJob::Kind::remove:
        break;
    }
    return true;
  }

  void run() {
    std::vector<tiers::RemoteJobs::Ended> ended;
    std::vector<tiers::RemoteJob> taken;
    std::chrono::microseconds interval = poll_interval_min;
    std::unique_lock lock(mutex_);
    while (!stopping_ || jobs_.in_store() > 0) {
      const auto has_work = [&] { return stopping_ || !incoming_.empty(); };
      if (jobs_.idle())
        wake_.wait(lock, has_work);
      else
        wake_.wait_for(lock, interval, [&] { return !incoming_.empty(); });
      if (stopping_) incoming_.clear();
      take_incoming(taken, ended, lock);
      const bool gives_up = stopping_;
      lock.unlock();
      if (gives_up) jobs_.give_up();
      for (const tiers::RemoteJob& job : taken) jobs_.add(job, ended);
      jobs_.advance(ended);
      interval = ended.empty() && taken.empty() ? std::min(2 * interval, poll_interval_max) : poll_interval_min;
      lock.lock();
      for (const tiers::RemoteJobs::Ended& job : ended) note_end(job);
      ended.clear();
      taken.clear();
      if (under_way_ == 0) idle_.notify_all();
    }
  }

  /// Without memory for them they stay where they are: they are tried again, a while later.
  void take_incoming(std::vector<tiers::RemoteJob>& taken, std::vector<tiers::RemoteJobs::Ended>& ended,
                     std::unique_lock<std::mutex>& lock) {
    try {
      jobs_.reserve(incoming_.size(), ended);
      std::swap(taken, incoming_);
    } catch (const std::bad_alloc&) {
      wake_.wait_for(lock, poll_interval_max, [&] { return stopping_; });
      if (stopping_) incoming_.clear();
    }
  }

  void note_end(const tiers::RemoteJobs::Ended& ended) {
    const tiers::RemoteJob& job = ended.job;
    --under_way_;
    if (job.kind == tiers::RemoteJob::Kind::remove) return;
    statistics_.removed_objects += ended.removed_objects;
    under_way_ += ended.removed_objects > 0;  // a removal of the tier's own has begun
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - job.accepted).count();
    const auto status = static_cast<std::size_t>(ended.status);
    const bool done = ended.status == TransferStatus::done;
    if (job.kind == tiers::RemoteJob::Kind::write) {
      statistics_.write_queue_bytes -= job.memory.size();
      statistics_.written_bytes += ended.bytes;
      statistics_.write_seconds += done ? seconds : 0;
      ++statistics_.write_answers[status];
    } else if (job.kind == tiers::RemoteJob::Kind::read) {
      statistics_.read_queue_bytes -= job.memory.size();
      statistics_.read_bytes += ended.bytes;
      statistics_.read_seconds += done ? seconds : 0;
      ++statistics_.read_answers[status];
    } else {
      --finds_;
      ++statistics_.find_answers[status];
    }
    answers_.push(
        {.id = job.id, .status = ended.status, .encoding = ended.encoding, .bytes = ended.bytes, .seconds = seconds});
  }

  RemoteTierOptions options_;
  std::vector<ObjectSet> sets_;
  RemoteStore& store_;
  tiers::RemoteJobs jobs_;  ///< of the thread alone

  std::mutex mutex_;  ///< of all that follows; held for no call of the store
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<tiers::RemoteJob> incoming_;
  tiers::ReadyQueue<RemoteTierCompletion> answers_;
  std::size_t under_way_ = 0;  ///< accepted and not ended, removals among them
  std::size_t finds_ = 0;
  RemoteTierStatistics statistics_;
  bool stopping_ = false;
  std::thread thread_;
};

RemoteTier::RemoteTier(RemoteStore& store, std::vector<ObjectSet> sets, const RemoteTierOptions& options)
    : impl_(std::make_unique<Impl>(store, std::move(sets), options)) {}
RemoteTier::RemoteTier(RemoteTier&&) noexcept = default;
RemoteTier& RemoteTier::operator=(RemoteTier&&) noexcept = default;
RemoteTier::~RemoteTier() = default;

std::span<const ObjectSet> RemoteTier::sets(CacheContent content, std::int32_t group) const noexcept {
  return impl_->sets_of(content, group);
}
std::size_t RemoteTier::bytes(const ImageKey& key) const {
  return impl_->bytes_of(key);
}

bool RemoteTier::write(TransferId id, const ImageKey& key, std::span<std::byte> set) {
  return impl_->accept({.kind = tiers::RemoteJob::Kind::write, .id = id, .key = key, .memory = set});
}
bool RemoteTier::read(TransferId id, const ImageKey& key, std::span<std::byte> set) {
  return impl_->accept({.kind = tiers::RemoteJob::Kind::read, .id = id, .key = key, .memory = set});
}
bool RemoteTier::find(TransferId id, const ImageKey& key) {
  return impl_->accept({.kind = tiers::RemoteJob::Kind::find, .id = id, .key = key});
}
void RemoteTier::remove(const ImageKey& key) {
  static_cast<void>(impl_->accept({.kind = tiers::RemoteJob::Kind::remove, .key = key}));
}

std::size_t RemoteTier::poll(std::span<RemoteTierCompletion> completions) {
  return impl_->poll(completions);
}
void RemoteTier::wait_idle() const {
  impl_->wait_idle();
}
RemoteTierStatistics RemoteTier::statistics() const {
  return impl_->statistics();
}

}  // namespace stateport
