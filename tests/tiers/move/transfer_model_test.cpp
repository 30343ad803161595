// SPDX-License-Identifier: Apache-2.0
// Random plans, with copies and files that end at random times, against what the contract of a TransferPlan says.
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <vector>

using namespace stateport;
using test::KeyOrder;
using test::Random;
using test::TransferRig;

namespace {

using SlotOf = std::pair<std::int32_t, std::int32_t>;  // kind, slot

/// An engine that knows what every tier should hold, and looks at every byte that it loads.
class RandomEngine {
 public:
  RandomEngine(Random& random, TransferRig& rig) : random_(random), rig_(rig) {}

  void step() {
    switch (random_.between(0, 5)) {
      case 0:
      case 1:
        return run_plan();
      case 2:
        return rig_.lane->advance(static_cast<std::size_t>(random_.between(0, 40)));
      case 3:
      case 4:
        if (rig_.files.waiting() > 0) finish_one(rig_.files);
        if (rig_.remote.waiting() > 0) finish_one(rig_.remote);
        return;
      default:
        learn(rig_.poll());
    }
  }

  /// Nothing is left under way, and every transfer was answered once.
  void finish() {
    for (int round = 0; round < 1000 && rig_.executor->in_flight() > 0; ++round) {
      rig_.lane->advance();
      while (rig_.files.waiting() > 0) finish_one(rig_.files);
      while (rig_.remote.waiting() > 0) finish_one(rig_.remote);
      learn(rig_.poll());
    }
    rig_.lane->advance();
    REQUIRE(rig_.executor->in_flight() == 0);
    REQUIRE(pending_.empty());
    REQUIRE(rig_.host.usage().staging_images == 0);
    REQUIRE(rig_.remote_staging.usage().staging_images == 0);
    REQUIRE(wrong_loads_ == 0);
  }

  [[nodiscard]] const std::map<std::pair<Transfer::Kind, TransferStatus>, int>& seen() const { return seen_; }

 private:
  /// A transfer that has no answer yet. `image`: the number of the image in host memory that it is about.
  struct Pending {
    Transfer transfer;
    std::uint64_t image = 0;
  };

  ImageKey random_key() {
    const auto prefix = static_cast<std::uint64_t>(random_.between(1, 9));
    return random_.chance(50) ? test::kv_image(prefix) : test::state_image(prefix, random_.between32(0, 1));
  }
  static ImageKey other_than(ImageKey key) {
    key.tokens = 99;
    return key;
  }
  std::int32_t free_slot(const ImageKey& key, const std::set<SlotOf>& taken) {
    const std::int32_t kind = rig_.host.kind_of(key);
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::int32_t slot = random_.between32(0, TransferRig::slots - 1);
      if (!loading_.contains({kind, slot}) && !taken.contains({kind, slot})) return slot;
    }
    return -1;
  }

  void finish_one(test::SlowFiles& tier) {
    constexpr TransferStatus statuses[] = {TransferStatus::failed, TransferStatus::damaged, TransferStatus::no_room};
    const auto i = static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(tier.waiting()) - 1));
    tier.finish(i, random_.chance(85) ? TransferStatus::done : statuses[random_.between(0, 2)]);
    REQUIRE(tier.wrong_images == 0);
  }

  void run_plan() {
    std::vector<Transfer> plan;
    std::set<SlotOf> stored, loaded;
    const std::int64_t count = random_.between(1, 7);
    while (std::ssize(plan) < count) add_transfers(plan, stored, loaded);
    rig_.execute(plan);
    // The engine goes on, and writes over what was stored.
    for (const Transfer& transfer : plan)
      if (transfer.kind == Transfer::Kind::store && !loaded.contains({kind_of(transfer), transfer.place}))
        rig_.compute(transfer.place, other_than(transfer.image));
    const std::vector<TransferResult> results = rig_.poll();
    std::map<TransferId, TransferStatus> answers;
    for (const TransferResult& result : results) answers.emplace(result.id, result.status);
    std::map<SlotOf, ImageKey> written;
    for (const Transfer& transfer : plan) follow(transfer, answers, written);
    for (const auto& [slot, key] : written) look_at(slot.second, key);
    learn(results);
  }

  void add_transfers(std::vector<Transfer>& plan, std::set<SlotOf>& stored, std::set<SlotOf>& loaded) {
    const ImageKey key = random_key();
    const std::int32_t kind = rig_.host.kind_of(key);
    constexpr Medium mediums[] = {Medium::file, Medium::file, Medium::remote, Medium::host};
    const Medium tier = random_.chance(45) ? mediums[random_.between(0, 2)] : Medium::host;
    switch (random_.between(0, 5)) {
      case 0:
      case 1: {
        std::set<SlotOf> taken = stored;
        taken.insert(loaded.begin(), loaded.end());
        const std::int32_t slot = free_slot(key, taken);
        if (slot < 0) return plan.push_back(test::drop_from(Medium::host, key));
        stored.emplace(kind, slot);
        rig_.compute(slot, key);
        return plan.push_back(test::store_to(tier, ++ids_, key, slot));
      }
      case 2: {
        // A slot that a store of the plan reads is written behind it. Who waits for a file has a slot of its own.
        const std::int32_t slot = free_slot(key, tier != Medium::host ? stored : loaded);
        if (slot < 0 || (tier != Medium::host && loaded.contains({kind, slot}))) return;
        loaded.emplace(kind, slot);
        if (tier != Medium::host) loading_.emplace(kind, slot);
        return plan.push_back(test::load_from(tier, ++ids_, key, slot));
      }
      case 3:
        if (tier == Medium::host) return plan.push_back(test::copy_down(++ids_, key));
        return plan.push_back(test::copy_down(++ids_, key, tier == Medium::file ? tier : Medium::host, Medium::remote));
      case 4:
        if (random_.chance(50)) return plan.push_back(test::find_in_remote(++ids_, key));
        [[fallthrough]];
      default:
        return plan.push_back(test::drop_from(tier, key));
    }
  }

  /// What the plan does to the tiers, in its order.
  void follow(const Transfer& transfer, const std::map<TransferId, TransferStatus>& answers,
              std::map<SlotOf, ImageKey>& written) {
    const auto answer = answers.find(transfer.id);
    const bool refused = answer != answers.end() && answer->second == TransferStatus::no_room;
    const auto held = held_.find(transfer.image);
    if (transfer.kind == Transfer::Kind::drop) {
      if (transfer.from == Medium::host) held_.erase(transfer.image);
      return;
    }
    if (transfer.kind == Transfer::Kind::load && transfer.from == Medium::host) {
      REQUIRE(answer != answers.end());
      REQUIRE(answer->second == (held == held_.end() ? TransferStatus::gone : TransferStatus::done));
      if (held != held_.end()) written[{kind_of(transfer), transfer.place}] = transfer.image;
    } else if (transfer.kind == Transfer::Kind::copy && transfer.from == Medium::host && held == held_.end()) {
      REQUIRE(answer != answers.end());
      REQUIRE(answer->second == TransferStatus::gone);
    } else if (transfer.kind == Transfer::Kind::store && transfer.to == Medium::host && held == held_.end() &&
               !refused) {
      held_.emplace(transfer.image, ++images_);
    }
    const auto image = held_.find(transfer.image);
    pending_[transfer.id] = {transfer, image == held_.end() ? 0 : image->second};
    if (transfer.kind == Transfer::Kind::store && transfer.to == Medium::host && image != held_.end() &&
        ready_.contains(image->second)) {
      REQUIRE(answer != answers.end());
      REQUIRE(answer->second == TransferStatus::done);
      pending_[transfer.id].image = 0;
    }
  }

  /// Takes answers of transfers that were followed.
  void learn(const std::vector<TransferResult>& results) {
    for (const TransferResult& result : results) {
      const auto found = pending_.find(result.id);
      REQUIRE(found != pending_.end());
      const auto [transfer, image] = found->second;
      pending_.erase(found);
      ++seen_[{transfer.kind, result.status}];
      const auto held = held_.find(transfer.image);
      const bool still_held = image != 0 && held != held_.end() && held->second == image;
      if (transfer.kind == Transfer::Kind::store && transfer.to == Medium::host && image != 0) {
        if (result.status == TransferStatus::done) ready_.insert(image);
        REQUIRE(result.status == (still_held ? TransferStatus::done : TransferStatus::gone));
      }
      if (transfer.kind == Transfer::Kind::load && transfer.from != Medium::host)
        learn_of_read(transfer, result.status, transfer.from == Medium::file ? rig_.files : rig_.remote);
    }
    // What is held is found, and nothing else.
    REQUIRE(rig_.host.usage().images >= std::ssize(held_));
    for (std::uint64_t prefix = 1; prefix <= 9; ++prefix)
      for (const ImageKey& key : {test::kv_image(prefix), test::state_image(prefix), test::state_image(prefix, 1)})
        REQUIRE(rig_.host.find(key).valid() == held_.contains(key));
  }

  void learn_of_read(const Transfer& transfer, TransferStatus status, test::SlowFiles& tier) {
    loading_.erase({kind_of(transfer), transfer.place});
    std::deque<TransferStatus>& answers = tier.read_answers[transfer.image];
    // Those that are enqueued are answered after those that fail.
    const auto answer = std::ranges::find(answers, status);
    const bool was_asked = answer != answers.end();
    if (!was_asked && (status == TransferStatus::no_room || (tier.allocates && status == TransferStatus::failed)))
      return;
    REQUIRE(answer != answers.end());
    answers.erase(answer);
    if (status == TransferStatus::done) look_at(transfer.place, transfer.image);
  }

  /// Behind the load, in the order of the stream.
  void look_at(std::int32_t slot, const ImageKey& key) {
    rig_.lane->enqueue([this, slot, key] { wrong_loads_ += !rig_.of(key).holds(slot, key); });
  }
  [[nodiscard]] std::int32_t kind_of(const Transfer& transfer) const { return rig_.host.kind_of(transfer.image); }

  Random& random_;
  TransferRig& rig_;
  TransferId ids_ = 0;
  std::uint64_t images_ = 0;
  std::map<ImageKey, std::uint64_t, KeyOrder> held_;  ///< what host memory holds: the number of each image
  std::set<std::uint64_t> ready_;                     ///< those that were answered
  std::map<TransferId, Pending> pending_;
  std::set<SlotOf> loading_;  ///< slots that wait for a lower tier
  int wrong_loads_ = 0;
  std::map<std::pair<Transfer::Kind, TransferStatus>, int> seen_;
};

}  // namespace

TEST_CASE("random plans move what their keys say, whenever copies and files end") {
  std::map<std::pair<Transfer::Kind, TransferStatus>, int> seen;
  int seeds = 0;
  test::for_each_seed(300, [&](Random& random, std::uint64_t) {
    TransferRig rig(static_cast<std::size_t>(random.between(1, 6)), static_cast<std::size_t>(random.between(1, 3)),
                    {.transfers_max = random.chance(50) ? std::size_t{3} : std::size_t{100}},
                    static_cast<std::size_t>(random.between(1, 3)));
    if (random.chance(50)) rig.files.queue_max = static_cast<std::size_t>(random.between(1, 3));
    if (random.chance(30)) rig.remote.queue_max = static_cast<std::size_t>(random.between(1, 3));
    RandomEngine engine(random, rig);
    for (int step = 0; step < 120; ++step) engine.step();
    engine.finish();
    for (const auto& [what, count] : engine.seen()) seen[what] += count;
    ++seeds;
  });
  if (seeds < 20) return;  // who runs a few seeds again does not meet everything
  // All that can happen did.
  using Kind = Transfer::Kind;
  for (const TransferStatus status : {TransferStatus::done, TransferStatus::gone, TransferStatus::no_room})
    for (const Kind kind : {Kind::store, Kind::load, Kind::copy}) CHECK(seen[{kind, status}] > 0);
  CHECK(seen[{Kind::load, TransferStatus::damaged}] > 0);
  CHECK(seen[{Kind::copy, TransferStatus::failed}] > 0);
  for (const TransferStatus status : {TransferStatus::done, TransferStatus::gone, TransferStatus::failed})
    CHECK(seen[{Kind::find, status}] > 0);
}

TEST_CASE("plans and polls that run out of memory change nothing") {
  std::uint64_t failures = 0;
  test::for_each_seed(40, [&](Random& random, std::uint64_t) {
    TransferRig rig(static_cast<std::size_t>(random.between(1, 6)), static_cast<std::size_t>(random.between(1, 3)),
                    {.transfers_max = random.chance(50) ? std::size_t{3} : std::size_t{100}},
                    static_cast<std::size_t>(random.between(1, 3)));
    const auto facts = [&rig] {
      const HostTier::Usage host = rig.host.usage();
      return std::vector<std::int64_t>{std::ssize(rig.files.held),
                                       static_cast<std::int64_t>(rig.executor->in_flight()),
                                       static_cast<std::int64_t>(rig.lane->waiting()),
                                       static_cast<std::int64_t>(rig.files.waiting()),
                                       static_cast<std::int64_t>(rig.remote.waiting()),
                                       host.images,
                                       host.copying,
                                       host.staging_images,
                                       rig.remote_staging.usage().staging_images};
    };
    rig.make_call = [&](const std::function<void()>& call) {
      const std::vector<std::int64_t> before = facts();
      bool through = false;
      failures += test::fail_each_allocation(
          [&](std::uint64_t) {
            call();
            through = true;
          },
          [&](std::uint64_t) {
            if (through) return;
            REQUIRE(facts() == before);
            rig.executor->check_invariants();
          });
    };
    RandomEngine engine(random, rig);
    for (int step = 0; step < 120; ++step) engine.step();
    engine.finish();
  });
  CHECK(failures > 1000);
}

TEST_CASE("what a lower tier has no memory for has failed, and what it is to forget is forgotten later") {
  std::map<std::pair<Transfer::Kind, TransferStatus>, int> seen;
  test::for_each_seed(100, [&](Random& random, std::uint64_t) {
    TransferRig rig(static_cast<std::size_t>(random.between(1, 6)), static_cast<std::size_t>(random.between(1, 3)), {},
                    static_cast<std::size_t>(random.between(1, 3)));
    rig.files.allocates = rig.remote.allocates = true;
    rig.make_call = [&](const std::function<void()>& call) {
      test::fail_heap_allocation(static_cast<std::uint64_t>(random.between(0, 12)), random.chance(20));
      try {
        call();
        test::fail_heap_allocation(0);
      } catch (const std::bad_alloc&) {
        test::fail_heap_allocation(0);
        call();
      }
    };
    RandomEngine engine(random, rig);
    for (int step = 0; step < 120; ++step) engine.step();
    engine.finish();
    for (const auto& [what, count] : engine.seen()) seen[what] += count;
  });
  using Kind = Transfer::Kind;
  for (const Kind kind : {Kind::store, Kind::load, Kind::copy, Kind::find})
    for (const TransferStatus status : {TransferStatus::done, TransferStatus::failed}) CHECK(seen[{kind, status}] > 0);
}

TEST_CASE("an image whose removal has no memory is removed by a poll") {
  TransferRig rig(2, 1);
  const ImageKey key = test::state_image(1);
  rig.compute(0, key);
  rig.execute({test::store_to(Medium::file, 1, key, 0)});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  rig.files.finish_all();
  CHECK(rig.poll() == std::vector<TransferResult>{{1, TransferStatus::done}});
  rig.execute({});
  rig.files.allocates = true;
  rig.make_call = [](const std::function<void()>& call) {
    test::fail_heap_allocation(2, true);  // the first makes room for marks
    call();
    test::fail_heap_allocation(0);
  };
  rig.execute({test::drop_from(Medium::file, key)});
  CHECK(rig.files.held.contains(key));
  CHECK(rig.executor->in_flight() == 1);
  CHECK(rig.poll().empty());
  CHECK(rig.files.held.contains(key));
  rig.make_call = [](const std::function<void()>& call) { call(); };
  CHECK(rig.poll().empty());
  CHECK_FALSE(rig.files.held.contains(key));
  CHECK(rig.executor->in_flight() == 0);
}

TEST_CASE("copies that a lane has no memory for have failed") {
  TransferRig rig(2, 1);
  const ImageKey key = test::state_image(1);
  rig.compute(0, key);
  rig.lane->without_memory = true;
  rig.lane->refuse_stores = true;
  rig.execute({test::store_to(Medium::host, 1, key, 0), test::load_from(Medium::host, 2, key, 1),
               test::copy_down(3, key), test::store_to(Medium::file, 4, key, 0)});
  rig.lane->advance();
  const std::vector<TransferResult> results = rig.poll();
  CHECK(results.size() == 4);
  for (const TransferResult& result : results) CHECK(result.status == TransferStatus::failed);
  CHECK_FALSE(rig.host.find(key).valid());
  CHECK(rig.executor->in_flight() == 0);
}

TEST_CASE("an image that is published before its copy is done is found by the bytes in its file") {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    TransferRig rig(2, 1);
    rig.lane->lies = true;
    const ImageKey key = test::state_image(seed);
    rig.compute(0, key);
    rig.execute({test::store_to(Medium::host, 1, key, 0), test::copy_down(2, key)});
    CHECK(rig.poll() == std::vector<TransferResult>{{1, TransferStatus::done}});
    rig.files.finish_all();
    wrong += rig.files.wrong_images;
    rig.lane->advance();
  }
  CHECK(wrong == 20);
}
