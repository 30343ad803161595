// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/remote_tier.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/tiers/in_process_store.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;
using enum TransferStatus;

namespace {

const StateSpec whole_spec = StateSpec::uniform(2, {.window = 3, .dim = 48}, {.shape = {24, 2, 32}});
const ModelLayout whole_layout(whole_spec, {.axis = 1, .bands = {{.extent = 48, .parts = 24}}},
                               {.axis = 0, .bands = {{.extent = 24, .parts = 24}}});
constexpr ObjectGrid grid{.head_groups = 4};
constexpr std::uint64_t plenty_bytes = 1 << 30;

ImageKey key_of(std::int64_t number) {
  return {.prefix = {{static_cast<std::uint64_t>(number), 1}}, .tokens = 64 * (number + 1)};
}

ObjectSet set_of(const ModelShard& rank, ModelId model = ModelId(1), ObjectEncoding encoding = {}) {
  return ObjectSet(whole_layout, rank, {.model = model, .grid = grid, .encoding = encoding});
}

/// The sections of an object of a key, as its writer knows them.
void fill(const ObjectSet& set, const ImageKey& key, std::span<std::byte> memory) {
  for (std::size_t object = 0; object < set.size(); ++object) {
    const std::string name = set.name(object, key);
    const std::span<std::byte> part = set.part(memory, object);
    for (std::size_t i = set.layout(object).header_bytes(); i < part.size(); ++i)
      part[i] = static_cast<std::byte>(std::hash<std::string>{}(name) >> (i % 7));
  }
}

bool is_filled(const ObjectSet& set, const ImageKey& key, std::span<const std::byte> memory) {
  std::vector<std::byte> expected(set.bytes());
  fill(set, key, expected);
  for (std::size_t object = 0; object < set.size(); ++object) {
    const ImageLayout& image = set.layout(object);
    for (std::size_t i = 0; i < image.spec().tensors().size(); ++i) {
      const std::size_t at = set.offset(object) + image.section_offset(i);
      if (std::memcmp(&memory[at], &expected[at], image.section_bytes(i)) != 0) return false;
    }
  }
  return true;
}

/// A rank that uses the shared store.
struct SetRank {
  ObjectSet set;
  InProcessStore store;
  RemoteTier tier;
  std::vector<std::byte> memory;
  std::uint64_t next = 1;

  SetRank(std::shared_ptr<InProcessObjects> objects, const ObjectSet& own, std::vector<ObjectSet> more = {},
          const InProcessStoreOptions& options = {})
      : set(own),
        store(std::move(objects), options),
        tier(store, with(own, std::move(more))),
        memory(tier.bytes(key_of(0))) {}

  static std::vector<ObjectSet> with(const ObjectSet& own, std::vector<ObjectSet> more) {
    more.insert(more.begin(), own);
    return more;
  }
  Completion answer() {
    Completion completions[2];
    REQUIRE(tier.poll(completions) == 1);
    REQUIRE(completions[0].ticket == next - 1);
    return completions[0];
  }
  TransferStatus write(const ImageKey& key) {
    fill(set, key, std::span(memory).first(set.bytes()));
    REQUIRE(tier.write(next++, key, std::span(memory).first(set.bytes())));
    return answer().status;
  }
  Completion read(const ImageKey& key) {
    std::ranges::fill(memory, std::byte{0xee});
    REQUIRE(tier.read(next++, key, memory));
    return answer();
  }
  TransferStatus find(const ImageKey& key) {
    REQUIRE(tier.find(next++, key));
    return answer().status;
  }
};

std::size_t below(Random& random, std::size_t bound) {
  return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(bound) - 1));
}

std::shared_ptr<InProcessObjects> make_objects(std::uint64_t bytes = plenty_bytes) {
  return std::make_shared<InProcessObjects>(bytes);
}

}  // namespace

TEST_CASE("what ranks of one number write, ranks of another number read") {
  const auto objects = make_objects();
  std::vector<std::unique_ptr<SetRank>> four, two;
  for (std::int32_t rank = 0; rank < 4; ++rank)
    four.push_back(std::make_unique<SetRank>(objects, set_of({0, 2, rank, 4})));
  for (std::int32_t rank = 0; rank < 2; ++rank)
    two.push_back(std::make_unique<SetRank>(objects, set_of({0, 2, rank, 2})));
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    CHECK(two[1]->find(key_of(1)) == gone);
    CHECK(two[1]->read(key_of(1)).status == gone);
    CHECK(four[static_cast<std::size_t>(rank)]->write(key_of(1)) == done);
  }
  for (const auto& rank : two) {
    CHECK(rank->find(key_of(1)) == done);
    CHECK(rank->read(key_of(1)).status == done);
    CHECK(is_filled(rank->set, key_of(1), rank->memory));
    CHECK(rank->read(key_of(2)).status == gone);
  }
}

TEST_CASE("an object that is not what its name says is refused with its reason, and can be written again") {
  const auto objects = make_objects();
  SetRank rank(objects, set_of({0, 2, 0, 2}));
  SetRank foreign(objects, set_of({0, 2, 0, 2}, ModelId(2)));
  REQUIRE(rank.write(key_of(2)) == done);
  REQUIRE(foreign.write(key_of(1)) == done);
  const std::string name = rank.set.name(1, key_of(1));
  const std::vector<std::byte> good = [&] {
    REQUIRE(rank.write(key_of(1)) == done);
    return *objects->read(name);
  }();
  const auto refused = [&](std::span<const std::byte> bytes) {
    REQUIRE(objects->overwrite(name, bytes));
    const TransferStatus status = rank.read(key_of(1)).status;
    CHECK_FALSE(objects->contains(name));
    CHECK(rank.find(key_of(1)) == gone);
    REQUIRE(rank.write(key_of(1)) == done);
    CHECK(rank.read(key_of(1)).status == done);
    return status;
  };
  CHECK(refused(*objects->read(rank.set.name(1, key_of(2)))) == wrong_position);
  CHECK(refused(*objects->read(foreign.set.name(1, key_of(1)))) == foreign_layout);
  CHECK(refused(*objects->read(rank.set.name(0, key_of(1)))) == foreign_layout);  // another head group
  CHECK(refused(std::span(good).first(good.size() / 2)) == damaged);
  std::vector<std::byte> longer = good;
  longer.resize(good.size() + 4096);
  CHECK(refused(longer) == foreign_layout);
  Random random(1);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> flipped = good;
    const ImageLayout& image = rank.set.layout(1);
    const std::size_t at =
        i < 25 ? below(random, image.header_bytes()) : image.section_offset(3) + below(random, image.section_bytes(3));
    flipped[at] ^= static_cast<std::byte>(1U << below(random, 8));
    CHECK(refused(flipped) == damaged);
  }
  CHECK(rank.tier.statistics().removed_objects > 0);
}

TEST_CASE("a read takes the first encoding that is whole") {
  const auto objects = make_objects();
  const ObjectSet fp32 = set_of({});
  const ObjectSet int8 = set_of({}, ModelId(1), {.recurrent = ElementType::int8_block32});
  SetRank small(objects, int8);
  SetRank both(objects, fp32, {int8});
  SetRank fp32_alone(objects, fp32);
  REQUIRE(small.write(key_of(1)) == done);
  CHECK(fp32_alone.read(key_of(1)).status == gone);
  CHECK(both.find(key_of(1)) == done);
  REQUIRE(fp32_alone.write(key_of(2)) == done);
  CHECK(both.find(key_of(2)) == done);
  CHECK(both.find(key_of(3)) == gone);
  const Completion as_int8 = both.read(key_of(1));
  CHECK(as_int8.status == done);
  CHECK(as_int8.encoding == 1);
  CHECK(as_int8.bytes == int8.bytes());
  CHECK(is_filled(int8, key_of(1), both.memory));
  REQUIRE(both.write(key_of(1)) == done);
  CHECK(both.read(key_of(1)).encoding == 0);
  CHECK(is_filled(fp32, key_of(1), both.memory));
  REQUIRE(objects->erase(fp32.name(2, key_of(1))));
  CHECK(both.read(key_of(1)).encoding == 1);
  REQUIRE(objects->erase(int8.name(0, key_of(1))));
  CHECK(both.read(key_of(1)).status == gone);
  REQUIRE(both.tier.remove(key_of(1)));
  REQUIRE(both.tier.remove(key_of(2)));
  Completion none;
  CHECK(both.tier.poll({&none, 1}) == 0);
  CHECK(objects->keys().empty());
}

TEST_CASE("a full store is answered, and a queue that has no room refuses") {
  const ObjectSet set = set_of({});
  SetRank too_small(make_objects(set.layout(0).image_bytes() - 1), set);
  CHECK(too_small.write(key_of(1)) == no_room);
  CHECK(too_small.read(key_of(1)).status == gone);

  SetRank unregistered(make_objects(), set, {}, {.needs_registration = true});
  CHECK_THROWS_WITH_AS(static_cast<void>(unregistered.tier.write(1, key_of(1), unregistered.memory)),
                       doctest::Contains("registered memory"), InvalidArgument);
  CHECK(unregistered.find(key_of(1)) == gone);

  // Room for one set at a time.
  SetRank narrow(make_objects(), set, {}, {.limits = {.queue_requests = 4}});
  for (std::int64_t i = 0; i < 3; ++i) {
    REQUIRE(narrow.tier.find(7, key_of(i)));
    CHECK_FALSE(narrow.tier.find(8, key_of(i)));
    CHECK_FALSE(narrow.tier.remove(key_of(i)));
    Completion answers[2];
    CHECK(narrow.tier.poll(answers) == 1);
    CHECK(answers[0] == Completion{7, gone, 0});
  }
  CHECK(narrow.tier.statistics().refused_finds == 3);
}

TEST_CASE("the queue of the store bounds what is under way, and the tier counts what it refuses") {
  const auto objects = make_objects();
  const ObjectSet set = set_of({});
  InProcessStore store(objects, {.limits = {.queue_bytes = 2 * set.bytes(), .queue_requests = 3 * set.size()}});
  RemoteTier tier(store, {set});
  std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(set.bytes()));
  for (std::size_t i = 0; i < memory.size(); ++i)
    CHECK(tier.write(i, key_of(static_cast<std::int64_t>(i)), memory[i]) == (i < 2));
  CHECK_FALSE(tier.read(8, key_of(1), memory[3]));
  CHECK(tier.find(9, key_of(1)));
  CHECK_FALSE(tier.find(10, key_of(1)));
  Completion answers[4];
  CHECK(tier.poll(answers) == 3);
  const RemoteTierStatistics statistics = tier.statistics();
  CHECK(statistics.refused_writes == 2);
  CHECK(statistics.refused_reads == 1);
  CHECK(statistics.refused_finds == 1);
  CHECK(statistics.write_answers[0] == 2);
  CHECK(statistics.find_answers[0] == 1);
  CHECK(statistics.written_bytes == 2 * set.bytes());
}

TEST_CASE("an object that is shorter is damaged though the memory holds its end already") {
  const auto objects = make_objects();
  SetRank rank(objects, set_of({}));
  REQUIRE(rank.write(key_of(1)) == done);
  REQUIRE(rank.read(key_of(1)).status == done);
  const std::string name = rank.set.name(1, key_of(1));
  const std::vector<std::byte> bytes = *objects->read(name);
  REQUIRE(objects->overwrite(name, std::span(bytes).first(bytes.size() - 4096)));
  REQUIRE(rank.tier.read(rank.next++, key_of(1), rank.memory));
  CHECK(rank.answer().status == damaged);
}

TEST_CASE("only the object that is wrong is removed, and written again") {
  const auto objects = make_objects();
  SetRank rank(objects, set_of({}));
  REQUIRE(rank.write(key_of(1)) == done);
  const std::string wrong = rank.set.name(2, key_of(1));
  std::vector<std::byte> bytes = *objects->read(wrong);
  bytes.back() ^= std::byte{1};
  bytes[rank.set.layout(2).header_bytes()] ^= std::byte{1};
  REQUIRE(objects->overwrite(wrong, bytes));
  CHECK(rank.read(key_of(1)).status == damaged);
  CHECK_FALSE(objects->contains(wrong));
  CHECK(objects->keys().size() == rank.set.size() - 1);
  CHECK(rank.tier.statistics().removed_objects == 1);
}

TEST_CASE("a tier refuses bad arguments, and names them") {
  const auto objects = make_objects();
  const ObjectSet set = set_of({});
  InProcessStore store(objects);
  const auto refused = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return {};
  };
  CHECK(refused([&] { RemoteTier(store, {}); }) == "sets.size()");
  const ObjectSet int8 = set_of({}, ModelId(1), {.recurrent = ElementType::int8_block32});
  InProcessStore few_bytes(objects, {.limits = {.queue_bytes = set.bytes() - 1}});
  CHECK(refused([&] { RemoteTier(few_bytes, {set}); }) == "queue_bytes");
  InProcessStore few_requests(objects, {.limits = {.queue_requests = 2 * set.size() - 1}});
  CHECK(refused([&] { RemoteTier(few_requests, {set, int8}); }) == "queue_requests");
  CHECK(refused([&] { RemoteTier(few_requests, {set}); }).empty());
  const ObjectSet whole(whole_layout, {}, {.model = ModelId(1), .grid = {.head_groups = 1}});
  CHECK(refused([&] { RemoteTier(store, {set, whole}); }) == "sets.size()");
  // Answers to others would be taken for its own.
  const RemoteKey other[] = {{.ticket = 1, .key = "another"}};
  REQUIRE(store.exists(other));
  CHECK_THROWS_WITH_AS(RemoteTier(store, {set}), doctest::Contains("without an answer = 1 (must be 0)"), InvalidState);
  Completion answer;
  REQUIRE(store.poll({&answer, 1}) == 1);
  RemoteTier tier(store, {set});
  std::vector<std::byte> memory(set.bytes());
  const auto write = [&](const ImageKey& key, std::span<std::byte> bytes) {
    return refused([&] { static_cast<void>(tier.write(1, key, bytes)); });
  };
  CHECK(write(key_of(1), std::span(memory).first(memory.size() - 1)) == "set.size()");
  CHECK(write({.tokens = -1}, memory) == "key.tokens");
  CHECK(write({.tokens = 1, .group = 1}, memory) == "key.group");
  CHECK(write({.tokens = 1, .content = CacheContent::kv_block}, memory) == "key.group");
  CHECK(refused([&] { static_cast<void>(tier.find(1, {.tokens = 1, .group = 1})); }) == "key.group");
  CHECK(refused([&] { static_cast<void>(tier.read(1, key_of(1), {})); }) == "set.size()");
  CHECK(refused([&] { static_cast<void>(tier.remove({.tokens = -2})); }) == "key.tokens");
  CHECK(objects->keys().empty());
}

TEST_CASE("random ranks, losses and damage never make a read answer what was not written") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    const auto objects = make_objects();
    std::vector<std::unique_ptr<SetRank>> ranks;
    for (const std::int32_t size : {1, 2, 4})
      for (std::int32_t rank = 0; rank < size; ++rank)
        ranks.push_back(std::make_unique<SetRank>(objects, set_of({0, 2, rank, size})));
    std::set<std::string> there, damaged_names;  // the model: names of whole objects, and of damaged ones
    for (int step = 0; step < 40; ++step) {
      SetRank& rank = *ranks[below(random, ranks.size())];
      const ImageKey key = key_of(random.between(0, 2));
      std::vector<std::string> names;
      for (std::size_t i = 0; i < rank.set.size(); ++i) names.push_back(rank.set.name(i, key));
      const auto any_in = [&](const std::set<std::string>& set) {
        return std::ranges::any_of(names, [&](const std::string& name) { return set.contains(name); });
      };
      const bool all_present = std::ranges::all_of(
          names, [&](const std::string& name) { return there.contains(name) || damaged_names.contains(name); });
      switch (random.between(0, 4)) {
        case 0:
          REQUIRE(rank.write(key) == done);
          for (const std::string& name : names)
            if (!damaged_names.contains(name)) there.insert(name);
          break;
        case 1: {
          const TransferStatus status = rank.read(key).status;
          REQUIRE(status == (!all_present ? gone : any_in(damaged_names) ? damaged : done));
          if (status == done) REQUIRE(is_filled(rank.set, key, rank.memory));
          for (const std::string& name : names) damaged_names.erase(name);
          break;
        }
        case 2:
          REQUIRE(rank.find(key) == (all_present ? done : gone));
          break;
        case 3:
          objects->erase(names[0]);
          there.erase(names[0]);
          damaged_names.erase(names[0]);
          break;
        default:
          if (!there.contains(names.back())) break;
          std::vector<std::byte> bytes = *objects->read(names.back());
          bytes[below(random, rank.set.layout(0).header_bytes())] ^= std::byte{64};
          REQUIRE(objects->overwrite(names.back(), bytes));
          there.erase(names.back());
          damaged_names.insert(names.back());
      }
      objects->check_invariants();
      std::set<std::string> expected = there;
      expected.insert(damaged_names.begin(), damaged_names.end());
      const std::vector<std::string> keys = objects->keys();
      REQUIRE(std::set<std::string>(keys.begin(), keys.end()) == expected);
    }
  });
}
