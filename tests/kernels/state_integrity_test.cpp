// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_integrity.hpp>

#include "heap_counter.hpp"
#include "integrity_states.hpp"
#include "launch_recorder.hpp"

#include <doctest/doctest.h>

#include <string>
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
  CHECK(states.faults() == StateFaults{{FaultKind::changed, 3, 2, read}});
  states.check(read, 3);
  CHECK(states.faults() == StateFaults{{FaultKind::changed, 3, 3, read}});
  const StateCheck other = reading(SlotId{2}, 8, reading_request);
  states.check(other, 4);
  CHECK(states.faults() == StateFaults{{FaultKind::other_state, -1, 4, other}});
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
