// SPDX-License-Identifier: Apache-2.0
// Faults of engines, re-enacted one by one. Each is answered with its kind, tensor, pass, slot and request, however the
// state was published and is read; without the fault nothing is answered.
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>

#include "device_array.hpp"
#include "integrity_states.hpp"
#include "slot_kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

using namespace stateport;
using test::Bytes;
using test::FaultKind;
using test::IntegrityStates;
using test::published;
using test::Random;
using test::read_tensor;
using test::reading;
using test::StateFaults;
using test::write_tensor;

namespace {

enum class TensorsOf : std::uint8_t { words, odd };

IntegrityStates states_of(Random& random, TensorsOf tensors) {
  const bool words = tensors == TensorsOf::words;
  return IntegrityStates(random, words ? test::word_spec() : test::odd_live_spec(),
                         words ? test::word_spec() : test::odd_spec());
}

// The state of each scene: live slot 1 becomes the checkpoint in slot 3, which later becomes live slot 5. Slot 6 holds
// another checkpoint, which nobody touches.
constexpr SlotId source_slot{1};
constexpr SlotId victim{3};
constexpr SlotId target_slot{5};
constexpr SlotId bystander{6};
constexpr RequestId maker{11};
constexpr RequestId user{(std::int64_t{2} << 32) + 12};
constexpr StateCheck made = published(victim, 7, maker);
constexpr StateCheck bystander_made = published(bystander, 5, maker);
constexpr StateCheck bystander_read = reading(bystander, 5, user);

/// Something that happens to the checkpoint after its publication.
struct Damage {
  std::string_view name;
  TensorsOf tensors;
  std::int32_t tensor;  ///< the first that it changes
  void (*happens)(IntegrityStates&);
};

/// Writes bytes of one tensor of the checkpoint, as they come from `change`.
void change(IntegrityStates& states, std::size_t tensor, void (*change)(Bytes&)) {
  Bytes bytes = read_tensor(states.kept, tensor, victim);
  change(bytes);
  write_tensor(states.kept, tensor, victim, bytes);
}
void overwrite(IntegrityStates& states, std::size_t tensor, std::size_t at, std::size_t count, std::uint8_t seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((seed + 37 * i) % 64);  // finite in every type
  write_tensor(states.kept, tensor, victim, bytes, at);
}
std::uint32_t word_at(const Bytes& bytes, std::size_t word) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + 4 * word, 4);
  return value;
}
void set_word(Bytes& bytes, std::size_t word, std::uint32_t value) {
  std::memcpy(bytes.data() + 4 * word, &value, 4);
}
void save(IntegrityStates& states, SlotId from, SlotId to, LayerRange layers = all_layers) {
  const SlotCopy copy = SlotCopy::whole(from, to);
  states.save.copy_slots(states.stream, {&copy, 1}, layers);
}
void shift_in_place(IntegrityStates& states, LayerRange layers) {
  const SlotCopy shift{.src_slot = victim.value(), .dst_slot = victim.value(), .conv_shift = 1};
  SlotCopier(states.kept).copy_shifted(states.stream, {&shift, 1}, layers);
}

const Damage damages[] = {
    {"a late write of the request that had the slot before, into its first word", TensorsOf::words, 1,
     [](IntegrityStates& s) { overwrite(s, 1, 0, 4, 9); }},
    {"a late write into the last word", TensorsOf::words, 3, [](IntegrityStates& s) { overwrite(s, 3, 252, 4, 9); }},
    {"a late write into the last word of the last tensor", TensorsOf::words, 5,
     [](IntegrityStates& s) { overwrite(s, 5, 124, 4, 9); }},
    {"a bit of a conv state flips", TensorsOf::words, 0,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 0, victim, 101, 3); }},
    {"the lowest bit of a number flips", TensorsOf::words, 3,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 3, victim, 128, 0); }},
    {"the sign of a number flips", TensorsOf::words, 1,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 1, victim, 7, 7); }},
    {"the slot is used again too early, by kernels", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       Random random(99);
       test::fill_slot(random, s.kept, victim);
     }},
    {"the slot is used again too early, by a copy", TensorsOf::words, 0,
     [](IntegrityStates& s) { save(s, SlotId{2}, victim); }},
    {"all copies of a plan go one slot too far", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       SlotCopy plan[] = {SlotCopy::whole(4, 1), SlotCopy::whole(0, 2)};
       for (SlotCopy& copy : plan) ++copy.dst_slot;
       s.save.copy_slots(s.stream, plan);
     }},
    {"another request's copy of one layer ends here", TensorsOf::words, 2,
     [](IntegrityStates& s) { save(s, SlotId{2}, victim, {.begin = 1, .end = 2}); }},
    {"another request's copy of the last layers ends here", TensorsOf::words, 4,
     [](IntegrityStates& s) { save(s, SlotId{2}, victim, {.begin = 2, .end = 3}); }},
    {"a restore copies in the wrong direction", TensorsOf::words, 0,
     [](IntegrityStates& s) { save(s, target_slot, victim); }},
    {"two layers are exchanged", TensorsOf::words, 1,
     [](IntegrityStates& s) {
       const Bytes first = read_tensor(s.kept, 1, victim);
       const Bytes second = read_tensor(s.kept, 3, victim);
       write_tensor(s.kept, 1, victim, second);
       write_tensor(s.kept, 3, victim, first);
     }},
    {"a layer is written into another one", TensorsOf::words, 3,
     [](IntegrityStates& s) { write_tensor(s.kept, 3, victim, read_tensor(s.kept, 1, victim)); }},
    {"a tensor is rotated by one word", TensorsOf::words, 3,
     [](IntegrityStates& s) { change(s, 3, [](Bytes& bytes) { std::ranges::rotate(bytes, bytes.begin() + 4); }); }},
    {"two words are exchanged", TensorsOf::words, 1,
     [](IntegrityStates& s) {
       change(s, 1, [](Bytes& bytes) { std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + 200); });
     }},
    {"halves of one word are exchanged", TensorsOf::words, 5,
     [](IntegrityStates& s) {
       change(s, 5, [](Bytes& bytes) { std::swap_ranges(bytes.begin() + 8, bytes.begin() + 10, bytes.begin() + 10); });
     }},
    {"one word grows by what another one shrinks", TensorsOf::words, 3,
     [](IntegrityStates& s) {
       change(s, 3, [](Bytes& bytes) {
         set_word(bytes, 3, word_at(bytes, 3) + 1);
         set_word(bytes, 40, word_at(bytes, 40) - 1);
       });
     }},
    {"the same bits flip in two words", TensorsOf::words, 1,
     [](IntegrityStates& s) {
       change(s, 1, [](Bytes& bytes) {
         set_word(bytes, 0, word_at(bytes, 0) ^ 0x00010001u);
         set_word(bytes, 1, word_at(bytes, 1) ^ 0x00010001u);
       });
     }},
    {"a tensor is cleared in part", TensorsOf::words, 5,
     [](IntegrityStates& s) {
       change(s, 5, [](Bytes& bytes) { std::fill_n(bytes.begin(), bytes.size() / 2, std::byte{0}); });
     }},
    {"the slot is cleared for a new request", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       s.save.clear_slots(s.stream, {&victim, 1});
     }},
    {"conv states are shifted by one token in place", TensorsOf::words, 0,
     [](IntegrityStates& s) { shift_in_place(s, all_layers); }},
    {"a ds conv state is shifted by one token in place", TensorsOf::words, 2,
     [](IntegrityStates& s) { shift_in_place(s, {.begin = 1, .end = 2}); }},
    {"fp16 is taken for bf16 and converted", TensorsOf::words, 5,
     [](IntegrityStates& s) {
       change(s, 5, [](Bytes& bytes) {
         for (std::size_t at = 0; at < bytes.size(); at += 2)
           test::reference::store(bytes.data() + at, ElementType::fp16,
                                  test::reference::load(bytes.data() + at, ElementType::bf16));
       });
     }},
    {"DMA into the slot before writes 16 bytes too much", TensorsOf::words, 4,
     [](IntegrityStates& s) {
       Bytes bytes(48 + 16, std::byte{0x33});
       write_tensor(s.kept, 4, SlotId{victim.value() - 1}, bytes);
     }},
    {"DMA into the slot behind begins 16 bytes too early", TensorsOf::words, 4,
     [](IntegrityStates& s) {
       const Bytes bytes(48 + 16, std::byte{0x33});
       write_tensor(s.kept, 4, victim, bytes, 48 - 16);
     }},
    {"a kernel has a slot stride that is too large", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       const StateTensorView& tensor = s.kept.tensors()[0];
       const auto stride = static_cast<std::size_t>(tensor.slot_stride_bytes);
       write_tensor(s.kept, 0, SlotId{0}, Bytes(192, std::byte{0x33}), 2 * (stride + 48));
     }},
    {"a graph is replayed with old slots", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       test::DeviceArray plan(std::vector{SlotCopy::whole(SlotId{2}, victim)});
       s.save.copy_slots_on_device(s.stream, plan.data(), 1);
       s.stream.synchronize();
     }},
    {"the image of an old state is loaded", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       for (std::size_t i = 0; i < s.kept.tensors().size(); ++i)
         write_tensor(s.kept, i, victim, read_tensor(s.kept, i, SlotId{7}));
     }},
    {"an image is loaded up to its middle", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       for (std::size_t i = 0; i < 3; ++i) write_tensor(s.kept, i, victim, read_tensor(s.kept, i, SlotId{7}));
     }},
    {"the memory is given to KV", TensorsOf::words, 1, [](IntegrityStates& s) { overwrite(s, 1, 64, 128, 1); }},
    {"freed memory is poisoned", TensorsOf::words, 0,
     [](IntegrityStates& s) {
       for (std::size_t i = 0; i < s.kept.tensors().size(); ++i)
         write_tensor(s.kept, i, victim, Bytes(read_tensor(s.kept, i, victim).size(), std::byte{0xFF}));
     }},
    {"a NaN comes into a state that was finite", TensorsOf::words, 3,
     [](IntegrityStates& s) { change(s, 3, [](Bytes& bytes) { set_word(bytes, 11, 0x7FC00000u); }); }},
    {"half of the heads are those of another request", TensorsOf::words, 1,
     [](IntegrityStates& s) {
       Bytes bytes = read_tensor(s.kept, 1, SlotId{7});
       bytes.resize(bytes.size() / 2);
       write_tensor(s.kept, 1, victim, bytes, bytes.size());
     }},
    {"a decode step runs in place on the checkpoint", TensorsOf::words, 1,
     [](IntegrityStates& s) {
       for (const std::size_t tensor : {1u, 3u})
         change(s, tensor, [](Bytes& bytes) {
           for (std::size_t at = 0; at < bytes.size(); at += 4) {
             const float decayed = 0.999f * test::reference::load(bytes.data() + at, ElementType::fp32);
             test::reference::store(bytes.data() + at, ElementType::fp32, decayed);
           }
         });
     }},
    {"a bit of an element between gaps flips", TensorsOf::odd, 0,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 0, victim, (17 + 2 * 3) * 2 + 1, 0); }},
    {"a value of a block changes", TensorsOf::odd, 1,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 1, victim, 524, 0); }},
    {"a scale at an odd address changes", TensorsOf::odd, 1,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 1, victim, 525 + 2 * 7, 1); }},
    {"the last scale changes", TensorsOf::odd, 5,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 5, victim, 271, 7); }},
    {"the last two bytes change, of which no word is whole", TensorsOf::odd, 2,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 2, victim, 89, 2); }},
    {"the last byte changes, which is a word alone", TensorsOf::odd, 3,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 3, victim, 36, 5); }},
    {"the high half of a number of 8 bytes changes", TensorsOf::odd, 4,
     [](IntegrityStates& s) { test::flip_bit(s.kept, 4, victim, 11 * 8 + 7, 4); }},
    {"a conv state with gaps is shifted by one token", TensorsOf::odd, 0,
     [](IntegrityStates& s) { shift_in_place(s, {.begin = 0, .end = 1}); }},
    {"another request's state is quantised into the last layer", TensorsOf::odd, 4,
     [](IntegrityStates& s) { save(s, SlotId{2}, victim, {.begin = 2, .end = 3}); }},
};

enum class Read : std::uint8_t { copied, in_place, transferred };

/// A scene with the damage, or without one. `copies`: whether a copy makes the checkpoint, or kernels of the engine.
StateFaults play(const Damage& damage, bool happens, bool copies, Read read, const StateCheck& check) {
  Random random(20261129);
  IntegrityStates states = states_of(random, damage.tensors);
  states.check(bystander_made, 1);
  if (copies)
    states.publish(made, source_slot, 1);
  else
    states.check(made, 1);
  CHECK(states.faults() == StateFaults{});
  if (happens) damage.happens(states);
  if (read == Read::copied)
    states.restore(check, target_slot, 2);
  else
    states.check(check, 2);
  states.check(bystander_read, 2);
  return states.faults();
}

}  // namespace

TEST_CASE("every fault of an engine is answered with its tensor, pass, slot and request") {
  CHECK(std::size(damages) >= 40);
  for (const Damage& damage : damages) {
    CAPTURE(std::string(damage.name));
    for (const bool copies : {true, false})
      for (const Read read : {Read::copied, Read::in_place, Read::transferred}) {
        const StateCheck check = reading(victim, 7, read == Read::transferred ? RequestId{} : user);
        CHECK(play(damage, false, copies, read, check) == StateFaults{});
        CHECK(play(damage, true, copies, read, check) ==
              StateFaults{test::fault(FaultKind::changed, damage.tensor, 2, check)});
      }
  }
}

TEST_CASE("the exchange of two checkpoints is a fault of both") {
  Random random(5);
  IntegrityStates states = states_of(random, TensorsOf::words);
  const StateCheck all[] = {made, bystander_made};
  states.check(all, 1);
  for (std::size_t i = 0; i < states.kept.tensors().size(); ++i) {
    const Bytes first = read_tensor(states.kept, i, victim);
    write_tensor(states.kept, i, victim, read_tensor(states.kept, i, bystander));
    write_tensor(states.kept, i, bystander, first);
  }
  const StateCheck reads[] = {reading(victim, 7, user), bystander_read};
  states.check(reads, 2);
  CHECK(states.faults() ==
        StateFaults{test::fault(FaultKind::changed, 0, 2, reads[0]), test::fault(FaultKind::changed, 0, 2, reads[1])});
}

TEST_CASE("what lies between elements, between slots and in other slots is no fault") {
  Random random(6);
  IntegrityStates states = states_of(random, TensorsOf::odd);
  states.publish(made, source_slot, 1);
  test::flip_bit(states.kept, 0, victim, 2, 0);
  test::flip_bit(states.kept, 4, victim, 3 * 8, 0);
  for (const std::size_t tensor : {1u, 2u, 3u})
    write_tensor(states.kept, tensor, victim, Bytes(1, std::byte{0x77}),
                 read_tensor(states.kept, tensor, victim).size());
  for (const std::int32_t slot : {2, 4}) test::fill_slot(random, states.kept, SlotId{slot});
  states.restore(reading(victim, 7, user), target_slot, 2);
  CHECK(states.faults() == StateFaults{});
}

namespace {

/// Publications and reads whose order or numbers are wrong.
struct Mistake {
  std::string_view name;
  /// Answers what must be found. Without `wrong`: does what is right, of which nothing must be.
  StateFaults (*happens)(IntegrityStates&, bool wrong);
};

const StateCheck read_victim = reading(victim, 7, user);

/// The checkpoint with another number was published in the slot before.
void publish_older(IntegrityStates& states) {
  states.publish(published(victim, 4, maker), SlotId{0}, 1);
}

const Mistake mistakes[] = {
    {"a preempted request reads the slot of its checkpoint, which holds another one by now",
     [](IntegrityStates& s, bool wrong) {
       s.publish(made, source_slot, 1);
       if (wrong) s.publish(published(victim, 8, maker), SlotId{2}, 2);
       s.restore(read_victim, target_slot, 3);
       return StateFaults{test::fault(FaultKind::other_state, -1, 3, read_victim)};
     }},
    {"the copy of a checkpoint and its check are left out: the slot holds an older one",
     [](IntegrityStates& s, bool wrong) {
       publish_older(s);
       if (!wrong) s.publish(made, source_slot, 2);
       s.restore(read_victim, target_slot, 3);
       return StateFaults{test::fault(FaultKind::other_state, -1, 3, read_victim)};
     }},
    {"a slot is read in which nothing was ever published",
     [](IntegrityStates& s, bool wrong) {
       if (!wrong) s.publish(made, source_slot, 1);
       s.check(read_victim, 3);
       return StateFaults{test::fault(FaultKind::other_state, -1, 3, read_victim)};
     }},
    {"a pass reads the checkpoint before the commit that makes it",
     [](IntegrityStates& s, bool wrong) {
       publish_older(s);
       if (!wrong) s.publish(made, source_slot, 2);
       s.restore(read_victim, target_slot, 2);
       if (wrong) s.publish(made, source_slot, 2);
       return StateFaults{test::fault(FaultKind::other_state, -1, 2, read_victim)};
     }},
    {"a request reads the slot of another request's checkpoint",
     [](IntegrityStates& s, bool wrong) {
       s.publish(made, source_slot, 1);
       s.check(bystander_made, 1);
       const StateCheck check = reading(wrong ? bystander : victim, 7, user);
       s.restore(check, target_slot, 2);
       return StateFaults{test::fault(FaultKind::other_state, -1, 2, check)};
     }},
    {"equal bytes of another publication are another state",
     [](IntegrityStates& s, bool wrong) {
       s.publish(made, source_slot, 1);
       if (wrong) s.publish(published(victim, 8, maker), source_slot, 1);
       s.check(read_victim, 2);
       return StateFaults{test::fault(FaultKind::other_state, -1, 2, read_victim)};
     }},
    {"one answer publishes a slot twice: the first checkpoint is gone",
     [](IntegrityStates& s, bool wrong) {
       const StateCheck both[] = {published(victim, wrong ? 7 : 6, maker), published(victim, wrong ? 8 : 7, maker)};
       s.check(both, 1);
       s.check(read_victim, 2);
       return StateFaults{test::fault(FaultKind::other_state, -1, 2, read_victim)};
     }},
    {"the kernels that make the checkpoint run after its check, on another stream",
     [](IntegrityStates& s, bool wrong) {
       Random random(7);
       if (!wrong) test::fill_slot(random, s.kept, victim);
       s.check(made, 1);
       if (wrong) test::fill_slot(random, s.kept, victim);
       s.restore(read_victim, target_slot, 2);
       return StateFaults{test::fault(FaultKind::changed, 0, 2, read_victim)};
     }},
    {"the kernel of the last layer runs after the check",
     [](IntegrityStates& s, bool wrong) {
       if (!wrong) overwrite(s, 5, 0, 128, 3);
       s.check(made, 1);
       if (wrong) overwrite(s, 5, 0, 128, 3);
       s.check(read_victim, 2);
       return StateFaults{test::fault(FaultKind::changed, 5, 2, read_victim)};
     }},
    {"the copy of the checkpoint is not on the stream of its check, and runs later",
     [](IntegrityStates& s, bool wrong) {
       if (!wrong) save(s, source_slot, victim);
       s.check(made, 1);
       if (wrong) save(s, source_slot, victim);
       s.restore(read_victim, target_slot, 2);
       return StateFaults{test::fault(FaultKind::changed, 0, 2, read_victim)};
     }},
    {"half of the layers are copied after the check",
     [](IntegrityStates& s, bool wrong) {
       save(s, source_slot, victim, {.begin = 0, .end = wrong ? 2 : 3});
       s.check(made, 1);
       save(s, source_slot, victim, {.begin = 2, .end = 3});
       s.restore(read_victim, target_slot, 2);
       return StateFaults{test::fault(FaultKind::changed, 4, 2, read_victim)};
     }},
    {"the checkpoint is copied into another slot than it is published in, over another checkpoint",
     [](IntegrityStates& s, bool wrong) {
       s.check(bystander_made, 1);
       s.begin({&made, 1}, 2);
       const SlotCopy copy = SlotCopy::whole(source_slot, wrong ? bystander : victim);
       s.integrity.copy_slots(s.stream, s.save, {&copy, 1});
       s.integrity.end(s.stream);
       s.restore(bystander_read, target_slot, 3);
       return StateFaults{test::fault(FaultKind::changed, 0, 3, bystander_read)};
     }},
    {"a transfer writes a new state into the slot before the old one is read out",
     [](IntegrityStates& s, bool wrong) {
       s.publish(made, source_slot, 1);
       const StateCheck demotes = reading(victim, 7);
       const StateCheck both[] = {demotes, published(victim, 8, maker)};
       if (wrong) save(s, SlotId{2}, victim);
       s.begin(both, 2);
       save(s, SlotId{2}, victim);
       s.integrity.end(s.stream);
       return StateFaults{test::fault(FaultKind::changed, 0, 2, demotes)};
     }},
};

}  // namespace

TEST_CASE("every publication that is missed, mistaken or too early is answered") {
  for (const Mistake& mistake : mistakes) {
    CAPTURE(std::string(mistake.name));
    Random random(8);
    IntegrityStates right = states_of(random, TensorsOf::words);
    mistake.happens(right, false);
    CHECK(right.faults() == StateFaults{});
    IntegrityStates wrong = states_of(random, TensorsOf::words);
    const StateFaults expected = mistake.happens(wrong, true);
    CHECK(wrong.faults() == expected);
  }
}

TEST_CASE("an infinity or a NaN is found in every type, when a state is published and when it is read") {
  constexpr float broken[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()};
  for (const TensorsOf tensors : {TensorsOf::words, TensorsOf::odd})
    for (std::int32_t tensor = 0; tensor < 6; ++tensor)
      for (const float value : broken)
        for (const bool copies : {true, false}) {
          CAPTURE(tensor);
          CAPTURE(value);
          CAPTURE(copies);
          Random random(9);
          IntegrityStates states = states_of(random, tensors);
          const auto index = static_cast<std::size_t>(tensor);
          const StateTensorSpec& live = states.live.tensors()[index].spec;
          const StateTensorSpec& kept = states.kept.tensors()[index].spec;
          const auto elements = [&](const StateTensorSpec& spec) {
            return spec.kind == StateKind::conv ? std::pair<std::int64_t, std::int64_t>{1, 2}
                                                : std::pair<std::int64_t, std::int64_t>{0, spec.element_count() - 1};
          };
          const bool looked_at =
              kept.type != ElementType::fp64 && kept.type != ElementType::fp8 && kept.type != ElementType::int8;
          if (looked_at && copies) {
            const auto [t, c] = elements(live);
            Bytes bytes = read_tensor(states.live, index, source_slot);
            test::reference::store(bytes.data() + test::reference::element_index(live, t, c) *
                                                      static_cast<std::int64_t>(element_bytes(live.type)),
                                   live.type, value);
            write_tensor(states.live, index, source_slot, bytes);
            states.publish(made, source_slot, 1);
          } else if (looked_at) {
            const auto [t, c] = elements(kept);
            Bytes bytes = read_tensor(states.kept, index, victim);
            // The last scale of blocks, else an element.
            const std::int64_t at = in_blocks(kept.type) ? static_cast<std::int64_t>(bytes.size()) - 2
                                                         : test::reference::element_index(kept, t, c) *
                                                               static_cast<std::int64_t>(element_bytes(kept.type));
            test::reference::store(bytes.data() + at, in_blocks(kept.type) ? ElementType::fp16 : kept.type, value);
            write_tensor(states.kept, index, victim, bytes);
            states.check(made, 1);
          } else {
            write_tensor(states.kept, index, victim,
                         Bytes(read_tensor(states.kept, index, victim).size(), std::byte{0xFF}));
            states.check(made, 1);
          }
          const StateCheck check = reading(victim, 7, user);
          states.restore(check, target_slot, 2);
          CHECK(states.faults() == (looked_at ? StateFaults{test::fault(FaultKind::not_finite, tensor, 1, made),
                                                            test::fault(FaultKind::not_finite, tensor, 2, check)}
                                              : StateFaults{}));
        }
}

TEST_CASE("numbers that are almost infinite are numbers, and the first tensor with a NaN is named") {
  Random random(10);
  IntegrityStates states = states_of(random, TensorsOf::words);
  const auto fill = [&](std::size_t tensor, std::uint16_t low, std::uint16_t high) {
    Bytes bytes = read_tensor(states.kept, tensor, victim);
    for (std::size_t word = 0; word < bytes.size() / 4; ++word)
      set_word(bytes, word, low | static_cast<std::uint32_t>(high) << 16);
    write_tensor(states.kept, tensor, victim, bytes);
  };
  fill(0, 0x7F7F, 0xFF7F);
  fill(1, 0xFFFF, 0x7F7F);
  fill(2, 0xFBFF, 0x7BFF);
  fill(3, 0xFFFF, 0xFF7F);
  fill(5, 0x7BFF, 0xFBFF);
  states.check(made, 1);
  CHECK(states.faults() == StateFaults{});
  fill(5, 0x7C00, 0);
  fill(2, 0, 0x7C01);
  states.check(made, 2);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::not_finite, 2, 2, made)});
  fill(0, 0x7F80, 0);
  fill(2, 0, 0);
  states.check(made, 3);
  CHECK(states.faults() == StateFaults{test::fault(FaultKind::not_finite, 0, 3, made)});
}
