// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/state_integrity.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "integrity_states.hpp"
#include "launch_recorder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;
using test::FaultKind;
using test::IntegrityStates;
using test::published;
using test::Random;
using test::reading;
using test::StateFaults;

namespace {

constexpr RequestId writing_request{3};
constexpr RequestId reading_request{4};

}  // namespace

TEST_CASE("a checkpoint that nobody touched passes, however it is published and read") {
  Random random(1);
  for (const bool words : {true, false}) {
    IntegrityStates states(random, words ? test::word_spec() : test::odd_live_spec(),
                           words ? test::word_spec() : test::odd_spec());
    states.publish(published(SlotId{2}, 7, writing_request), SlotId{1}, 1);
    states.restore(reading(SlotId{2}, 7, reading_request), SlotId{5}, 2);
    states.check(reading(SlotId{2}, 7), 2);
    states.check(reading(SlotId{2}, 7, reading_request), 3);
    states.check(published(SlotId{4}, 8, writing_request), 3);
    states.check(reading(SlotId{4}, 8, reading_request), 4);
    CHECK(states.faults() == StateFaults{});
    CHECK(states.integrity.checked() == 6);
  }
}

TEST_CASE("a fault names what is wrong, the tensor, the pass and the check") {
  Random random(2);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  states.publish(published(SlotId{2}, 7, writing_request), SlotId{1}, 1);
  test::flip_bit(states.kept, 3, SlotId{2}, 17, 6);
  const StateCheck read = reading(SlotId{2}, 7, reading_request);
  states.restore(read, SlotId{5}, 2);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::changed, 3, 2, read)});
  states.check(read, 3);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::changed, 3, 3, read)});
  const StateCheck other = reading(SlotId{2}, 8, reading_request);
  states.check(other, 4);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::other_state, -1, 4, other)});
  CHECK(states.faults() == StateFaults{});
}

TEST_CASE("copies are summed where their bytes are the words of the checkpoint, and other states by themselves") {
  Random random(3);
  IntegrityStates words(random, test::word_spec(), test::word_spec());
  IntegrityStates odd(random, test::odd_live_spec(), test::odd_spec());
  for (IntegrityStates* states : {&words, &odd}) {
    const bool fused = states == &words;
    const test::LaunchRecorder recorder;
    states->publish(published(SlotId{2}, 7, writing_request), SlotId{1}, 1);
    const std::vector<std::string>& launches = recorder.record().launches;
    CHECK(launches.front() == (fused ? "stateport::copy_slots_with_sums" : "stateport::copy_slots"));
    CHECK(std::ranges::count(launches, "stateport::sum_slots") == (fused ? 0 : 1));
    CHECK(recorder.record().fences == 0);
  }
  CHECK(words.faults() == StateFaults{});
  CHECK(odd.faults() == StateFaults{});
}

TEST_CASE("the checks of a slot take its copies one by one") {
  Random random(4);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  states.publish(published(SlotId{2}, 7, writing_request), SlotId{1}, 1);
  const StateCheck reads[] = {reading(SlotId{2}, 7, RequestId{8}), reading(SlotId{2}, 7, RequestId{9}),
                              reading(SlotId{2}, 7, RequestId{10})};
  states.begin(reads, 2);
  for (const std::int32_t to : {4, 5}) {
    const SlotCopy copy = SlotCopy::whole(2, to);
    states.integrity.copy_slots(states.stream, states.load, {&copy, 1});
    if (to == 4) test::flip_bit(states.kept, 1, SlotId{2}, 8, 0);
    if (to == 5) test::flip_bit(states.kept, 0, SlotId{2}, 8, 0);
  }
  states.integrity.end(states.stream);
  CHECK(states.faults() ==
        StateFaults{test::fault(FaultKind::changed, 1, 2, reads[1]), test::fault(FaultKind::changed, 0, 2, reads[2])});
}

TEST_CASE("copies of parts of a state are not taken for copies of it") {
  Random random(5);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  const StateCheck made[] = {published(SlotId{2}, 7, writing_request), published(SlotId{3}, 8, writing_request)};
  states.begin(made, 1);
  const SlotCopy parts[] = {{.src_slot = 1, .dst_slot = 2, .recurrent_src_slot = 5},
                            {.src_slot = -1, .dst_slot = 3, .recurrent_src_slot = 4}};
  states.integrity.copy_slots(states.stream, states.save, parts);
  states.integrity.end(states.stream);
  const StateCheck reads[] = {reading(SlotId{2}, 7, reading_request), reading(SlotId{3}, 8, reading_request)};
  states.check(reads, 2);
  CHECK(states.faults() == StateFaults{});
}

TEST_CASE("within one store a copy may read one checkpoint and make another") {
  Random random(6);
  DeviceResource resource;
  const Stream stream = Stream::default_stream();
  const StateStore store(resource, test::word_spec(), {.slots = 8});
  for (std::int32_t slot = 0; slot < 8; ++slot) test::fill_slot(random, store, SlotId{slot});
  SlotCopier copier(store);
  StateIntegrity integrity(std::vector{&store});
  const StateCheck first = published(SlotId{3}, 1, writing_request);
  integrity.begin(stream, {&first, 1});
  integrity.end(stream);
  for (const bool damaged : {false, true}) {
    if (damaged) test::flip_bit(store, 4, SlotId{3}, 0, 0);
    const StateCheck both[] = {reading(SlotId{3}, 1, reading_request), published(SlotId{4}, 2, reading_request)};
    integrity.begin(stream, both);
    const SlotCopy copy = SlotCopy::whole(3, 4);
    integrity.copy_slots(stream, copier, {&copy, 1});
    integrity.end(stream);
    const StateCheck again = reading(SlotId{4}, 2, reading_request);
    integrity.begin(stream, {&again, 1});
    integrity.end(stream);
    const StateFaults expected = {test::fault(FaultKind::changed, 4, 0, both[0])};
    CHECK(test::faults_after(integrity, stream) == (damaged ? expected : StateFaults{}));
  }
}

TEST_CASE("each group has its store and its slots") {
  Random random(7);
  DeviceResource resource;
  const Stream stream = Stream::default_stream();
  const StateStore few(resource, StateSpec::uniform(1, {}, {.shape = {2, 4, 8}}), {.slots = 3});
  const StateStore many(resource, test::odd_spec(), {.slots = 5});
  for (const StateStore* store : {&few, &many})
    for (std::int32_t slot = 0; slot < store->slots(); ++slot) test::fill_slot(random, *store, SlotId{slot});
  StateIntegrity integrity(std::vector{&few, &many});
  const StateCheck made[] = {published(SlotId{2}, 1, writing_request, 0), published(SlotId{2}, 1, writing_request, 1),
                             published(SlotId{4}, 2, writing_request, 1)};
  integrity.begin(stream, made);
  integrity.end(stream);
  CHECK(test::faults_after(integrity, stream) == StateFaults{});
  test::flip_bit(few, 0, SlotId{2}, 5, 5);
  test::flip_bit(many, 5, SlotId{4}, 5, 5);
  const StateCheck reads[] = {reading(SlotId{4}, 2, RequestId{7}, 1), reading(SlotId{2}, 1, RequestId{8}, 1),
                              reading(SlotId{2}, 1, RequestId{9}, 0)};
  integrity.begin(stream, reads);
  integrity.end(stream);
  CHECK(test::faults_after(integrity, stream) ==
        StateFaults{test::fault(FaultKind::changed, 5, 0, reads[0]), test::fault(FaultKind::changed, 0, 0, reads[2])});
}

TEST_CASE("images in pinned memory are checked as other checkpoints") {
  Random random(8);
  DeviceResource device;
  PinnedResource pinned;
  const Stream stream = Stream::default_stream();
  const StoreOptions options{.slots = 4, .layout = StoreLayout::slot_major};
  const StateStore live(device, test::word_spec(), options);
  const StateStore kept(pinned, test::word_spec(), options);
  for (std::int32_t slot = 0; slot < 4; ++slot) test::fill_slot(random, live, SlotId{slot});
  SlotCopier save(live, kept);
  SlotCopier load(kept, live);
  StateIntegrity integrity(std::vector{&kept});
  const auto copy = [&](const StateCheck& check, SlotCopier& copier, SlotId from, SlotId to) {
    integrity.begin(stream, {&check, 1});
    const SlotCopy row = SlotCopy::whole(from, to);
    integrity.copy_slots(stream, copier, {&row, 1});
    integrity.end(stream);
  };
  const StateCheck read = reading(SlotId{1}, 9, reading_request);
  copy(published(SlotId{1}, 9, writing_request), save, SlotId{0}, SlotId{1});
  copy(read, load, SlotId{1}, SlotId{2});
  CHECK(test::faults_after(integrity, stream) == StateFaults{});
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(test::read_tensor(live, i, SlotId{2}) == test::read_tensor(live, i, SlotId{0}));
  test::flip_bit(kept, 2, SlotId{1}, 3, 3);
  copy(read, load, SlotId{1}, SlotId{2});
  CHECK(test::faults_after(integrity, stream) == StateFaults{test::fault(FaultKind::changed, 2, 0, read)});
}

TEST_CASE("plans and lists of any length are checked") {
  Random random(9);
  for (const bool words : {true, false}) {
    constexpr std::int32_t slots = 300;
    IntegrityStates states(random, words ? test::word_spec() : test::odd_live_spec(),
                           words ? test::word_spec() : test::odd_spec(), slots, {.checks_max = slots + 10});
    std::vector<StateCheck> made;
    std::vector<StateCheck> reads;
    std::vector<SlotCopy> copies;
    std::vector<SlotCopy> back;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      const auto content = static_cast<std::uint64_t>(slot + 1);
      made.push_back(published(SlotId{slot}, content, writing_request));
      reads.push_back(reading(SlotId{slot}, content, RequestId{slot}));
      copies.push_back(SlotCopy::whole(slots - 1 - slot, slot));
      back.push_back(SlotCopy::whole(slot, slot));
    }
    states.begin(made, 1);
    states.integrity.copy_slots(states.stream, states.save, copies);
    states.integrity.end(states.stream);
    CHECK(states.faults() == StateFaults{});
    for (const std::int32_t slot : {0, 191, 192, 299}) test::flip_bit(states.kept, 3, SlotId{slot}, 30, 1);
    for (const bool by_copies : {true, false}) {
      states.begin(reads, 2);
      if (by_copies) states.integrity.copy_slots(states.stream, states.load, back);
      states.integrity.end(states.stream);
      StateFaults expected;
      for (const std::size_t slot : {0u, 191u, 192u, 299u})
        expected.push_back(test::fault(FaultKind::changed, 3, 2, reads[slot]));
      CHECK(states.faults() == expected);
    }
    CHECK(states.integrity.checked() == 3 * slots);
  }
}

TEST_CASE("poll answers what is settled, in the order of begin") {
  Random random(10);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  const StateCheck list[] = {reading(SlotId{1}, 5), reading(SlotId{2}, 5, reading_request), reading(SlotId{3}, 5),
                             published(SlotId{4}, 6, writing_request), reading(SlotId{4}, 6)};
  states.begin(list, 4);
  states.integrity.wait(states.stream);
  const auto early = states.integrity.poll();
  CHECK(StateFaults(early.begin(), early.end()) == StateFaults{test::fault(FaultKind::other_state, -1, 4, list[0])});
  CHECK(states.integrity.checked() == 1);
  states.integrity.end(states.stream);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::other_state, -1, 4, list[1]),
                                       test::fault(FaultKind::other_state, -1, 4, list[2])});
  CHECK(states.integrity.checked() == 5);
}

TEST_CASE("checks of transfers alone leave nothing to end") {
  Random random(15);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  states.check(published(SlotId{1}, 5, writing_request), 1);
  const StateCheck transfers[] = {reading(SlotId{1}, 5), reading(SlotId{1}, 5)};
  states.begin(transfers, 2);
  const test::LaunchRecorder recorder;
  test::fill_slot(random, states.kept, SlotId{1});
  states.integrity.end(states.stream);
  CHECK(recorder.record().launches.empty());
  CHECK(states.faults() == StateFaults{});
  CHECK(states.integrity.checked() == 3);
}

TEST_CASE("checks that nobody polled make room, and no fault is lost") {
  Random random(11);
  IntegrityStates states(random, test::word_spec(), test::word_spec(), 8, {.checks_max = 3});
  StateFaults all;
  const auto fail = [&](std::int32_t checks, std::uint64_t pass) {
    std::vector<StateCheck> reads;
    for (std::int32_t i = 0; i < checks; ++i) reads.push_back(reading(SlotId{i}, pass, reading_request));
    states.check(reads, pass);
    for (const StateCheck& read : reads) all.push_back(test::fault(FaultKind::other_state, -1, pass, read));
  };
  fail(2, 1);
  fail(2, 2);
  CHECK_THROWS_WITH_AS(fail(3, 3), doctest::Contains("poll() is due"), InvalidState);
  CHECK(states.integrity.checked() == 0);
  const StateFaults last = {all.back()};
  all.pop_back();
  CHECK(states.faults() == all);
  CHECK(states.integrity.checked() == 3);
  CHECK(states.faults() == last);
  CHECK(states.integrity.checked() == 4);
  all.clear();
  fail(3, 4);
  CHECK(states.faults() == all);
  CHECK(states.integrity.checked() == 7);
}

TEST_CASE("no call allocates or waits") {
  Random random(12);
  IntegrityStates states(random, test::word_spec(), test::word_spec(), 64, {.checks_max = 40});
  const auto serve = [&](std::uint64_t pass) {
    StateCheck checks[] = {published(SlotId{2}, pass, writing_request), published(SlotId{3}, pass, writing_request),
                           reading(SlotId{2}, pass)};
    const SlotCopy copy = SlotCopy::whole(1, 2);
    states.begin(checks, pass);
    states.integrity.copy_slots(states.stream, states.save, {&copy, 1});
    states.integrity.end(states.stream);
    for (StateCheck& check : checks) check = reading(SlotId{60}, 99);
    states.check(checks, pass);
    return states.integrity.poll().size();
  };
  std::uint64_t pass = 0;
  const auto serve_passes = [&] {
    std::size_t faults = 0;
    for (int i = 0; i < 50; ++i) faults += serve(++pass);
    return faults;
  };
  std::uint64_t launches = 0;
  {
    const test::LaunchRecorder recorder;
    CHECK(serve_passes() <= 150);
    CHECK(recorder.record().fences == 0);
    CHECK(recorder.record().allocations == 0);
    launches = recorder.record().launches.size();
  }
  const std::uint64_t before = test::heap_allocations();
  const std::uint64_t memory_before = test::memory_allocations();
  const std::size_t faults = serve_passes();
  CHECK(test::heap_allocations() - before <= launches);  // Kokkos makes a string of each launch's label
  CHECK(test::memory_allocations() == memory_before);
  states.integrity.wait(states.stream);
  CHECK(faults + states.integrity.poll().size() >= 150);
}

TEST_CASE("wrong arguments are named, and change nothing") {
  Random random(13);
  DeviceResource resource;
  const StateStore* const none = nullptr;
  CHECK_THROWS_WITH_AS(StateIntegrity(std::span<const StateStore* const>{}), doctest::Contains("stores = 0"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(StateIntegrity({&none, 1}), doctest::Contains("stores = nullptr"), InvalidArgument);
  IntegrityStates states(random, test::word_spec(), test::word_spec(), 8, {.checks_max = 4});
  const StateStore* const kept = &states.kept;
  CHECK_THROWS_WITH_AS(StateIntegrity({&kept, 1}, {.checks_max = 0}), doctest::Contains("checks_max = 0"),
                       InvalidArgument);
  const StateCheck good = published(SlotId{2}, 7, writing_request);
  const auto refused = [&](StateCheck second, const char* text) {
    const StateCheck both[] = {good, second};
    CHECK_THROWS_WITH_AS(states.begin(both, 1), doctest::Contains(text), InvalidArgument);
  };
  refused(reading(SlotId{}, 7), "slot = -1");
  refused(reading(SlotId{8}, 7), "slot = 8");
  refused(reading(SlotId{1}, 0), "content = 0");
  refused(reading(SlotId{1}, 7, {}, -1), "group = -1");
  refused(reading(SlotId{1}, 7, {}, 1), "group = 1");
  const std::vector<StateCheck> five(5, good);
  CHECK_THROWS_WITH_AS(states.begin(five, 1), doctest::Contains("checks = 5"), InvalidArgument);
  const SlotCopy copy = SlotCopy::whole(1, 2);
  CHECK_THROWS_WITH_AS(states.integrity.copy_slots(states.stream, states.save, {&copy, 1}),
                       doctest::Contains("begin() comes first"), InvalidState);
  CHECK_THROWS_WITH_AS(states.integrity.end(states.stream), doctest::Contains("begin() comes first"), InvalidState);

  states.begin({&good, 1}, 1);
  CHECK_THROWS_WITH_AS(states.begin({}, 1), doctest::Contains("end() of the checks before"), InvalidState);
  CHECK_THROWS_WITH_AS(states.integrity.copy_slots(states.stream, states.save, {&copy, 1}, 1),
                       doctest::Contains("group = 1"), InvalidArgument);
  SlotCopier other(states.live);
  CHECK_THROWS_WITH_AS(states.integrity.copy_slots(states.stream, other, {&copy, 1}), doctest::Contains("copier"),
                       InvalidArgument);
  const StateStore part = StateStore::view(states.kept.tensors(), 7);
  SlotCopier to_part(states.live, part);
  CHECK_THROWS_WITH_AS(states.integrity.copy_slots(states.stream, to_part, {&copy, 1}), doctest::Contains("copier"),
                       InvalidArgument);
  std::vector<StateTensorView> moved(states.kept.tensors().begin(), states.kept.tensors().end());
  for (StateTensorView& tensor : moved) tensor.base += tensor.slot_stride_bytes;
  const StateStore next_slots = StateStore::view(moved, 7);
  SlotCopier to_next(states.live, next_slots);
  CHECK_THROWS_WITH_AS(states.integrity.copy_slots(states.stream, to_next, {&copy, 1}), doctest::Contains("copier"),
                       InvalidArgument);
  const SlotCopy outside[] = {copy, SlotCopy::whole(1, 8)};
  CHECK_THROWS_AS(states.integrity.copy_slots(states.stream, states.save, outside), InvalidArgument);
  states.integrity.copy_slots(states.stream, states.save, {&copy, 1});
  states.integrity.end(states.stream);
  states.check(reading(SlotId{2}, 7, reading_request), 2);
  CHECK(states.faults() == StateFaults{});
  CHECK(states.integrity.checked() == 2);
  CHECK(test::read_tensor(states.kept, 1, SlotId{2}) == test::read_tensor(states.live, 1, SlotId{1}));
}

TEST_CASE("an answer without checks launches nothing, and a moved object goes on") {
  Random random(14);
  IntegrityStates states(random, test::word_spec(), test::word_spec());
  states.check(published(SlotId{2}, 7, writing_request), 1);
  StateIntegrity moved(std::move(states.integrity));
  {
    const test::LaunchRecorder recorder;
    moved.begin(states.stream, {});
    moved.end(states.stream);
    CHECK(recorder.record().launches.empty());
  }
  const StateCheck read = reading(SlotId{2}, 7, reading_request);
  test::flip_bit(states.kept, 0, SlotId{2}, 0, 0);
  moved.begin(states.stream, {&read, 1});
  moved.end(states.stream);
  CHECK(test::faults_after(moved, states.stream) == StateFaults{test::fault(FaultKind::changed, 0, 0, read)});
}
