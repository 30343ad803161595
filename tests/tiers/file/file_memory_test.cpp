// SPDX-License-Identifier: Apache-2.0
// A file tier that is short of memory, in the calls to it and in its own threads.
#include "file/make_file_tier.hpp"
#include "file/section_sums.hpp"
#include "file_images.hpp"
#include "heap_counter.hpp"
#include "random.hpp"
#include "scripted_calls.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace stateport {
namespace {

using namespace test;

/// Lets allocations of the threads that make calls fail, but for the thread that made this, and holds those threads up.
class ShortCalls final : public FileCalls {
 public:
  /// The n-th allocation of each thread after its next call; 0 = none.
  void fail(std::uint64_t n, bool and_later) {
    and_later_ = and_later;
    failing_ = n;
  }
  void close_gate() { set_gate(false); }
  void open_gate() { set_gate(true); }
  /// This thread waits in its next call for another one's.
  void wait_for_others() { waits_ = true; }

  int open(int folder, const char* name, int flags) override {
    called();
    return FileCalls::open(folder, name, flags);
  }
  int unlink(int folder, const char* name) override {
    called();
    return FileCalls::unlink(folder, name);
  }
  std::int64_t free_bytes(int folder) override {
    called();
    return FileCalls::free_bytes(folder);
  }
  int synchronize_data(int) override { return 0; }
  int synchronize_folder(int) override { return 0; }

 private:
  void set_gate(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void called() {
    std::unique_lock lock(mutex_);
    if (std::this_thread::get_id() == maker_) {
      if (waits_) changed_.wait(lock, [this] { return others_ > 0; });
      return;
    }
    ++others_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    fail_heap_allocation(failing_, and_later_);
  }

  const std::thread::id maker_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  bool waits_ = false;
  std::uint64_t others_ = 0;
  std::atomic<std::uint64_t> failing_ = 0;
  std::atomic<bool> and_later_ = false;
};

/// A file tier and an exact model of it.
class Day {
 public:
  explicit Day(Random& random) : random_(random) { open(); }

  /// Calls that are refused memory at each of their allocations, while no lane gets on.
  void step() {
    calls_.close_gate();
    for (std::int64_t left = random_.between(1, 6); left > 0; --left) {
      const std::int64_t what = random_.between(0, 99);
      if (what < 40) {
        write();
      } else if (what < 70) {
        read();
      } else if (what < 95) {
        remove();
      } else {
        CHECK(keys() == std::vector(held_.begin(), held_.end()));
      }
      if (random_.chance(30)) poll();
    }
    calls_.open_gate();
    tier_->wait_idle();
    settle();
    if (random_.chance(10)) open();
  }
  std::uint64_t failures = 0;

 private:
  struct KeyOrder {
    bool operator()(const ImageKey& a, const ImageKey& b) const {
      return std::tuple(a.tokens, a.content) < std::tuple(b.tokens, b.content);
    }
  };
  using Keys = std::set<ImageKey, KeyOrder>;
  struct Asked {
    Keys written;
    std::optional<ImageKey> read;
    bool held = false;  ///< what is read
    std::vector<AlignedBytes> memory;
  };

  void open() {
    tier_.reset();
    failures +=
        fail_each_allocation([this](std::uint64_t) { tier_.emplace(make_file_tier(options_, layouts_, calls_)); },
                             [this](std::uint64_t) {
                               if (!tier_ && std::filesystem::exists(options_.folder))
                                 CHECK(names(options_.folder, ".lock").empty());
                             });
    settle();
  }

  /// Makes a call with each allocation failing: until it is through, nothing changes.
  template <class Call>
  void call(Call&& call) {
    const FileTierStatistics before = tier_->statistics();
    bool through = false;
    failures += fail_each_allocation(
        [&](std::uint64_t) {
          call();
          through = true;
        },
        [&](std::uint64_t) {
          if (through) return;
          const FileTierStatistics now = tier_->statistics();
          CHECK(now.images == before.images);
          CHECK(now.held_bytes == before.held_bytes);
          CHECK(now.write_queue_bytes == before.write_queue_bytes);
          CHECK(now.read_queue_bytes == before.read_queue_bytes);
          CHECK(now.write_answers == before.write_answers);
          CHECK(now.read_answers == before.read_answers);
        });
  }

  ImageKey any_key() {
    const auto number = static_cast<std::uint64_t>(random_.between(1, 12));
    return random_.chance(50) ? state_key(number) : kv_key(number);
  }
  void write() {
    Asked asked;
    while (asked.written.empty() || (asked.written.size() < 4 && random_.chance(60))) asked.written.insert(any_key());
    std::vector<FileImage> images;
    for (const ImageKey& key : asked.written) {
      asked.memory.push_back(image_of(layouts_, key));
      images.push_back({key, asked.memory.back().data()});
    }
    std::erase_if(asked.written, [this](const ImageKey& key) { return held_.contains(key); });
    bool accepted = false;
    call([&] { accepted = tier_->write(next_, images); });
    REQUIRE(accepted);
    asked_.emplace(next_++, std::move(asked));
  }
  void read() {
    Asked asked{.read = any_key()};
    asked.held = held_.contains(*asked.read);
    asked.memory.emplace_back(layout_of(layouts_, *asked.read).image_bytes());
    bool accepted = false;
    call([&] { accepted = tier_->read(next_, *asked.read, asked.memory[0].bytes()); });
    REQUIRE(accepted);
    asked_.emplace(next_++, std::move(asked));
  }
  void remove() {
    const ImageKey key = any_key();
    bool expected = held_.erase(key) > 0;
    for (auto& [id, asked] : asked_) expected |= asked.written.erase(key) > 0;
    bool found = false;
    call([&] { found = tier_->remove(key); });
    CHECK(found == expected);
  }
  std::vector<ImageKey> keys() {
    std::vector<ImageKey> keys;
    call([&] { keys = tier_->keys(); });
    std::ranges::sort(keys, KeyOrder());
    return keys;
  }
  void poll() {
    std::array<Completion, 3> answers;
    std::size_t count = 0;
    do {
      call([&] { count = tier_->poll(answers); });
      for (const Completion& answer : std::span(answers).first(count)) take(answer);
    } while (count == answers.size());
  }
  void take(const Completion& answer) {
    const auto found = asked_.find(answer.ticket);
    REQUIRE(found != asked_.end());
    Asked& asked = found->second;
    CHECK(answer.status == (asked.read && !asked.held ? TransferStatus::gone : TransferStatus::done));
    if (asked.held) CHECK(is_image_of(layouts_, *asked.read, asked.memory[0].bytes()));
    held_.merge(asked.written);
    asked_.erase(found);
  }
  /// All are answered, once.
  void settle() {
    poll();
    CHECK(asked_.empty());
    CHECK(keys() == std::vector(held_.begin(), held_.end()));
    CHECK(names(options_.folder, ".tmp").empty());
    CHECK(held_.empty() == names(options_.folder, ".img").empty());
    tier_->check_invariants();
  }

  Random& random_;
  TemporaryFolder folder_;
  std::vector<ImageLayout> layouts_ = small_layouts();
  FileTierOptions options_{.folder = folder_.images(), .capacity_bytes = 1000 * page, .queue_bytes = 1000 * page};
  ShortCalls calls_;
  std::optional<FileTier> tier_;
  Keys held_;
  std::map<TransferId, Asked> asked_;
  TransferId next_ = 1;
};

/// A state that is summed by a thread of its own, and KV that is not.
std::vector<ImageLayout> uneven_layouts() {
  std::vector<ImageLayout> layouts = small_layouts();
  layouts[0] =
      ImageLayout(StateSpec::uniform(1, {.window = 3, .dim = 100000}, {.shape = {100, 100, 1}}), {.model = ModelId(1)});
  return layouts;
}

}  // namespace

TEST_CASE("calls of a file tier that run out of memory change nothing") {
  std::uint64_t failures = 0;
  for_each_seed(4, [&failures](Random& random, std::uint64_t) {
    Day day(random);
    for (int step = 0; step < 60; ++step) {
      CAPTURE(step);
      day.step();
    }
    failures += day.failures;
  });
  MESSAGE(failures << " allocations failed");
  CHECK(failures > 1000);
}

TEST_CASE("a lane of a file tier that runs out of memory answers, and leaves nothing behind") {
  const std::vector<ImageLayout> layouts = uneven_layouts();
  const TemporaryFolder folder;
  ShortCalls calls;
  const FileTierOptions options{.folder = folder.images(), .capacity_bytes = 1000 * page, .queue_bytes = 1000 * page};
  std::optional<FileTier> tier;
  for (const ImageKey& key : {state_key(1), kv_key(1)})
    for (const bool and_later : {false, true})
      for (const bool reads : {false, true}) {
        CAPTURE(and_later);
        CAPTURE(reads);
        std::uint64_t failed = 0;
        for (TransferStatus status = TransferStatus::failed; status != TransferStatus::done;) {
          calls.fail(0, false);
          tier.reset();
          if (reads) {
            FileTier before = make_file_tier(options, layouts, calls);
            CHECK(write_images(before, layouts, {key}) == TransferStatus::done);
          }
          // A new tier has used no memory before.
          tier.emplace(make_file_tier(options, layouts, calls));
          calls.fail(++failed, and_later);
          status = reads ? read_image(*tier, layouts, key) : write_images(*tier, layouts, {key});
          REQUIRE((status == TransferStatus::done || status == TransferStatus::failed));
          const bool held = reads || status == TransferStatus::done;
          CHECK(tier->keys() == (held ? std::vector{key} : std::vector<ImageKey>()));
          CHECK(names(options.folder, ".tmp").empty());
          CHECK(names(options.folder, ".img").size() == (held ? 1 : 0));
          // What is removed goes, whatever memory there is.
          calls.fail(1, true);
          CHECK(tier->remove(key) == held);
          tier->wait_idle();
          CHECK(names(options.folder, ".img").empty());
          tier->check_invariants();
        }
        CHECK(failed > 1);
      }
}

TEST_CASE("threads that look through a folder without memory do not end the process") {
  constexpr std::uint64_t files = 130;
  const std::vector<ImageLayout> layouts = small_layouts();
  const TemporaryFolder folder;
  const FileTierOptions options{.folder = folder.images(), .capacity_bytes = 1000 * page, .queue_bytes = 1000 * page};
  ShortCalls calls;
  {
    FileTier tier = make_file_tier(options, layouts, calls);
    for (std::uint64_t number = 1; number <= files; ++number)
      REQUIRE(write_images(tier, layouts, {kv_key(number)}) == TransferStatus::done);
  }
  calls.wait_for_others();
  calls.fail(1, true);
  CHECK_THROWS_AS(make_file_tier(options, layouts, calls), const std::bad_alloc&);
  CHECK(names(options.folder, ".lock").empty());
  calls.fail(0, false);
  std::optional<FileTier> tier;
  CHECK(fail_each_allocation([&](std::uint64_t) { tier.emplace(make_file_tier(options, layouts, calls)); },
                             [](std::uint64_t) {}) > files);
  CHECK(tier->keys().size() == files);
}

TEST_CASE("checksums that have begun need no memory") {
  const std::vector<ImageLayout> layouts = small_layouts();
  const AlignedBytes image = image_of(layouts, state_key(1));
  SectionSums sums;
  sums.start(layouts[0], image.data());
  const std::uint64_t before = heap_allocations();
  sums.advance(layouts[0].image_bytes());
  CHECK(heap_allocations() == before);
}

}  // namespace stateport
