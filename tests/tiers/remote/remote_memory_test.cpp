// SPDX-License-Identifier: Apache-2.0
// A remote tier that is short of memory: every request is answered once.
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/remote_tier.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
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
using stateport::test::fail_each_allocation;
using stateport::test::fail_heap_allocation;
using stateport::test::heap_allocations;

namespace {

constexpr std::uint64_t plenty = 1 << 30;

ObjectSet small_set() {
  const StateSpec whole = StateSpec::uniform(1, {.window = 3, .dim = 16}, {.shape = {8, 2, 4}});
  const ModelLayout layout(whole, {.axis = 1, .bands = {{.extent = 16, .parts = 8}}},
                           {.axis = 0, .bands = {{.extent = 8, .parts = 8}}});
  return ObjectSet(layout, ModelShard{0, 1, 0, 1}, {.model = ModelId(1), .grid = {.head_groups = 2}});
}

ImageKey key_of_transfer(std::uint64_t number) {
  return {.prefix = {{number, 1}}, .tokens = 64};
}

constexpr std::uint64_t written = 4;
constexpr std::uint64_t images = 6;
constexpr std::uint64_t damaged_image = 2;

/// Images are written, asked for, read and removed; one is damaged, two were never written.
class Script {
 public:
  Script() : memory_(images, std::vector<std::byte>(set_.bytes())), store_(objects_), tier_(store_, {set_}) {
    ends_.reserve(std::size_t{8} * images);
  }

  /// With the n-th allocation failing. False: there are fewer.
  bool run(std::uint64_t n, bool and_later) {
    const std::uint64_t before = heap_allocations();
    fail_heap_allocation(n, and_later);
    run_all(RemoteCall::put, written);
    damage();
    run_all(RemoteCall::exists, images);
    run_all(RemoteCall::get, images);
    run_all(RemoteCall::remove, images);
    fail_heap_allocation(0);
    return heap_allocations() - before >= n;
  }
  void check() const {
    objects_->check_invariants();
    const RemoteStoreStatistics done = store_.statistics();
    CHECK(done.accepted_requests == std::accumulate(done.answers.begin(), done.answers.end(), std::uint64_t{0}));
    std::map<std::pair<RemoteCall, std::uint64_t>, int> ends;
    for (const auto& [call, answer] : ends_) ++ends[{call, answer.ticket}];
    for (const auto call : {RemoteCall::put, RemoteCall::exists, RemoteCall::get})
      for (std::uint64_t image = 1; image <= (call == RemoteCall::put ? written : images); ++image)
        CHECK(ends[{call, image}] == 1);
    for (const auto& [call, answer] : ends_)
      if (call == RemoteCall::get && answer.status == TransferStatus::done)
        CHECK((answer.ticket <= written && answer.ticket != damaged_image));
  }
  [[nodiscard]] std::int64_t done() const {
    return std::ranges::count_if(ends_, [](const auto& end) { return end.second.status == TransferStatus::done; });
  }

 private:
  bool begin(RemoteCall call, std::uint64_t image) {
    const ImageKey key = key_of_transfer(image);
    if (call == RemoteCall::put) return tier_.write(image, key, memory_[image - 1]);
    if (call == RemoteCall::get) return tier_.read(image, key, memory_[image - 1]);
    return call == RemoteCall::exists ? tier_.find(image, key) : tier_.remove(key);
  }
  /// A caller that is refused for want of memory tries again when there is some.
  void run_all(RemoteCall call, std::uint64_t count) {
    for (std::uint64_t image = 1; image <= count; ++image) {
      bool begun = false;
      try {
        begun = begin(call, image);
      } catch (const std::bad_alloc&) {
        fail_heap_allocation(0);
        begun = begin(call, image);
      }
      REQUIRE(begun);
    }
    std::array<Completion, images> answers;
    const std::size_t answered = tier_.poll(answers);
    CHECK(answered == (call == RemoteCall::remove ? 0 : count));
    for (const Completion& answer : std::span(answers).first(answered)) ends_.emplace_back(call, answer);
  }
  void damage() {
    try {
      const std::string name = set_.name(0, key_of_transfer(damaged_image));
      std::optional<std::vector<std::byte>> bytes = objects_->read(name);
      if (!bytes) return;
      (*bytes)[set_.layout(0).header_bytes()] ^= std::byte{1};
      objects_->overwrite(name, *bytes);
    } catch (const std::bad_alloc&) {
      fail_heap_allocation(0);
      damage();
    }
  }

  ObjectSet set_ = small_set();
  std::vector<std::vector<std::byte>> memory_;
  std::shared_ptr<InProcessObjects> objects_ = std::make_shared<InProcessObjects>(plenty);
  InProcessStore store_;
  RemoteTier tier_;
  std::vector<std::pair<RemoteCall, Completion>> ends_;
};

}  // namespace

TEST_CASE("each request to a remote tier is answered once, whichever of its allocations fails") {
  Script whole;
  CHECK_FALSE(whole.run(UINT64_MAX, false));
  whole.check();
  CHECK(whole.done() == written + written + (written - 1));
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

TEST_CASE("an exchange of records that finds no memory has not begun") {
  const auto cache = make_request_cache({.layout = SlotLayout{.layout_fingerprint = 1, .checkpoints = 1},
                                         .max_requests = 1,
                                         .max_request_tokens = 8,
                                         .block_size_tokens = 4,
                                         .kv_tokens = 8});
  cache->epochs().forget({}, ForgetBy::all);
  const auto objects = std::make_shared<InProcessObjects>(plenty);
  InProcessStore store(objects);
  RemoteTier tier(store, {small_set()});
  std::optional<TransferStatus> status;
  const std::uint64_t failures =
      fail_each_allocation([&](std::uint64_t) { status = tier.share_forgotten(cache->epochs()); },
                           [&](std::uint64_t) { CHECK_FALSE(status); });
  CHECK(failures > 0);
  std::array<Completion, 1> none;
  CHECK(tier.poll(none) == 0);
  CHECK(tier.share_forgotten(cache->epochs()) == TransferStatus::done);
  CHECK(objects->keys().size() == 2);
}
