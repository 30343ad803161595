// SPDX-License-Identifier: Apache-2.0
// A remote tier and its store that are short of memory: every request is answered once.
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/remote_tier.hpp>

#include "heap_counter.hpp"
#include "remote/remote_jobs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using stateport::test::fail_heap_allocation;
using stateport::test::heap_allocations;
using tiers::RemoteJob;
using tiers::RemoteJobs;

namespace {

constexpr std::uint64_t plenty = 1 << 30;

ObjectSet small_set() {
  const StateSpec whole = StateSpec::uniform(1, {.window = 3, .dim = 16}, {.shape = {8, 2, 4}});
  const ModelLayout layout(whole, {.axis = 1, .bands = {{.extent = 16, .parts = 8}}},
                           {.axis = 0, .bands = {{.extent = 8, .parts = 8}}});
  return ObjectSet(layout, ModelShard{0, 1, 0, 1}, {.model = ModelId(1), .grid = {.head_groups = 2}});
}

ImageKey key_of_transfer(TransferId number) {
  return {.prefix = {{number, 1}}, .tokens = 64};
}

constexpr TransferId written = 4;
constexpr TransferId images = 6;

/// Images are written, asked for, read and removed; one is damaged, two were never written.
class Script {
 public:
  Script() : memory_(images, std::vector<std::byte>(sets_[0].bytes())), store_(objects_), jobs_(store_) {
    ends_.reserve(std::size_t{8} * images);
  }

  /// With the n-th allocation failing. False: there are fewer.
  bool run(std::uint64_t n, bool and_later) {
    const std::uint64_t before = heap_allocations();
    fail_heap_allocation(n, and_later);
    run_all(RemoteJob::Kind::write, written);
    damage();
    run_all(RemoteJob::Kind::find, images);
    run_all(RemoteJob::Kind::read, images);
    run_all(RemoteJob::Kind::remove, images);
    fail_heap_allocation(0);
    return heap_allocations() - before >= n;
  }
  void check() const {
    objects_->check_invariants();
    const RemoteStoreStatistics done = store_.statistics();
    CHECK(done.accepted_requests == std::accumulate(done.answers.begin(), done.answers.end(), std::uint64_t{0}));
    std::map<std::pair<RemoteJob::Kind, TransferId>, int> ends;
    for (const RemoteJobs::Ended& end : ends_) ++ends[{end.job.kind, end.job.id}];
    for (const auto kind : {RemoteJob::Kind::write, RemoteJob::Kind::find, RemoteJob::Kind::read})
      for (TransferId id = 1; id <= (kind == RemoteJob::Kind::write ? written : images); ++id)
        CHECK(ends[{kind, id}] == 1);
    for (const RemoteJobs::Ended& end : ends_)
      if (end.job.kind == RemoteJob::Kind::read && end.status == TransferStatus::done)
        CHECK((end.job.id <= written && end.job.id != damaged));
  }
  [[nodiscard]] std::int64_t done() const {
    return std::ranges::count(ends_, TransferStatus::done, &RemoteJobs::Ended::status);
  }

 private:
  static constexpr TransferId damaged = 2;

  /// A caller that is refused for want of memory tries again when there is some.
  void run_all(RemoteJob::Kind kind, TransferId count) {
    std::vector<RemoteJobs::Ended> ended;
    for (TransferId id = 1; id <= count; ++id) {
      try {
        jobs_.reserve(1, ended);
      } catch (const std::bad_alloc&) {
        fail_heap_allocation(0);
        jobs_.reserve(1, ended);
      }
      jobs_.add({.kind = kind, .id = id, .key = key_of_transfer(id), .sets = sets_, .memory = memory_[id - 1]}, ended);
    }
    constexpr int rounds_max = 1000;
    constexpr int rounds_without_memory = 20;
    int round = 0;
    for (; (!jobs_.idle() || !ended.empty()) && round < rounds_max; ++round) {
      if (round == rounds_without_memory) fail_heap_allocation(0);
      jobs_.advance(ended);
      ends_.insert(ends_.end(), ended.begin(), ended.end());
      ended.clear();
    }
    REQUIRE(round < rounds_max);
  }
  void damage() {
    try {
      const std::string name = sets_[0].name(0, key_of_transfer(damaged));
      std::optional<std::vector<std::byte>> bytes = objects_->read(name);
      if (!bytes) return;
      (*bytes)[sets_[0].layout(0).header_bytes()] ^= std::byte{1};
      objects_->overwrite(name, *bytes);
    } catch (const std::bad_alloc&) {
      fail_heap_allocation(0);
      damage();
    }
  }

  std::vector<ObjectSet> sets_ = {small_set()};
  std::vector<std::vector<std::byte>> memory_;
  std::shared_ptr<InProcessObjects> objects_ = std::make_shared<InProcessObjects>(plenty);
  InProcessStore store_;
  RemoteJobs jobs_;
  std::vector<RemoteJobs::Ended> ends_;
};

/// Lets allocations of the thread that asks for answers fail.
class ShortStore final : public RemoteStore {
 public:
  std::atomic<std::int64_t> polls = 0;

 private:
  bool do_put(std::span<const RemoteObject> objects) override { return store_.put_from(objects); }
  bool do_get(std::span<const RemoteObject> objects) override { return store_.get_into(objects); }
  bool do_exists(std::span<const RemoteKey> keys) override { return store_.exists(keys); }
  bool do_remove(std::span<const RemoteKey> keys) override { return store_.remove(keys); }
  std::size_t do_poll(std::span<RemoteCompletion> completions) override {
    const std::int64_t poll = ++polls;
    constexpr std::int64_t failing = 11;
    fail_heap_allocation(static_cast<std::uint64_t>(poll % failing), poll % 3 == 0);
    return store_.poll(completions);
  }

  InProcessStore store_{std::make_shared<InProcessObjects>(plenty)};
};

}  // namespace

TEST_CASE("each job of a remote tier ends once, whichever of its allocations fails") {
  Script whole;
  CHECK_FALSE(whole.run(UINT64_MAX, false));
  whole.check();
  // The tier removes what is damaged.
  CHECK(whole.done() == written + written + (written - 1) + 1 + images);
  for (const bool and_later : {false, true})
    for (std::uint64_t n = 1;; ++n) {
      CAPTURE(n);
      CAPTURE(and_later);
      Script script;
      const bool failed = script.run(n, and_later);
      script.check();
      if (!failed) break;
      CHECK(n < 10000);
    }
}

TEST_CASE("a remote tier whose thread is short of memory answers everything") {
  const ObjectSet set = small_set();
  ShortStore store;
  std::vector<std::vector<std::byte>> memory(images, std::vector<std::byte>(set.bytes()));
  std::map<TransferId, int> answers;
  TransferId next = 0;
  {
    RemoteTier tier(store, {set});
    std::int64_t statuses = 0;
    for (int round = 0; round < 100; ++round) {
      for (TransferId image = 1; image <= images; ++image) {
        const ImageKey key = key_of_transfer(image);
        if (round % 3 == 0) CHECK(tier.write(++next, key, memory[image - 1]));
        if (round % 3 == 1) CHECK(tier.read(++next, key, memory[image - 1]));
        CHECK(tier.find(++next, key));
        if (round % 5 == 0) tier.remove(key);
      }
      tier.wait_idle();
      std::vector<RemoteTierCompletion> completions(std::size_t{4} * images);
      completions.resize(tier.poll(completions));
      for (const RemoteTierCompletion& completion : completions) {
        ++answers[completion.id];
        statuses += completion.status == TransferStatus::done;
      }
    }
    CHECK(statuses > 0);
  }
  CHECK(answers.size() == next);
  CHECK(std::ranges::all_of(answers, [](const auto& answer) { return answer.second == 1; }));
}
