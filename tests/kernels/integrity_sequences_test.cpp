// SPDX-License-Identifier: Apache-2.0
// Random service against a model that knows all bytes: no fault is missed, and none is made up.
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_integrity.hpp>

#include "integrity_states.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace stateport;
using test::Bytes;
using test::FaultKind;
using test::IntegrityStates;
using test::Random;
using test::StateFaults;

namespace {

/// All tensors of a slot, without gaps.
using State = std::vector<Bytes>;

State state_in(const StateStore& store, SlotId slot) {
  State state;
  for (std::size_t i = 0; i < store.tensors().size(); ++i)
    state.push_back(test::packed(store.tensors()[i].spec, test::read_tensor(store, i, slot)));
  return state;
}

/// What must be found. It keeps whole states where StateIntegrity has sums.
class IntegrityModel {
 public:
  explicit IntegrityModel(const StateStore& kept) : kept_(kept), slots_(static_cast<std::size_t>(kept.slots())) {}

  /// `copies_are_summed`: a check whose copy is seen looks at the bytes of that moment, others at those of end().
  void begin(CheckPlan checks, std::uint64_t pass, bool copies_are_summed) {
    copies_are_summed_ = copies_are_summed;
    open_.clear();
    for (std::size_t i = 0; i < checks.size(); ++i) {
      Open open{.check = test::in_pass(checks[i], pass)};
      const bool transfer = checks[i].kind == StateCheck::Kind::read && !checks[i].request.valid();
      open.is_settled = transfer && std::ranges::none_of(checks.first(i), [&](const StateCheck& before) {
                          return before.kind == StateCheck::Kind::published && before.slot == checks[i].slot;
                        });
      if (open.is_settled) {
        open.looked_at = state_in(kept_, checks[i].slot);
        open.fault = fault_of(open);
      }
      open_.push_back(open);
    }
  }
  /// A copy of a whole state, from or to a slot of the store; called after it ran.
  void copied(StateCheck::Kind kind, SlotId slot, const State& bytes) {
    if (!copies_are_summed_) return;
    const auto open = std::ranges::find_if(open_, [&](const Open& other) {
      return other.check.kind == kind && other.check.slot == slot && !other.looked_at;
    });
    if (open != open_.end()) open->looked_at = bytes;
  }
  void end() {
    for (Open& open : open_) {
      if (!open.is_settled) {
        if (!open.looked_at) open.looked_at = state_in(kept_, open.check.slot);
        Slot& slot = slots_[open.check.slot.index()];
        if (open.check.kind == StateCheck::Kind::published) slot = {open.check.content, *open.looked_at};
        open.fault = fault_of(open);
      }
      if (open.fault) expected.push_back(*open.fault);
    }
  }

  StateFaults expected;

 private:
  struct Slot {
    std::uint64_t content = 0;
    State state;
  };
  struct Open {
    StateCheck check;
    bool is_settled = false;  ///< by begin()
    std::optional<State> looked_at;
    std::optional<StateFault> fault;
  };

  [[nodiscard]] std::optional<StateFault> fault_of(const Open& open) const {
    const Slot& slot = slots_[open.check.slot.index()];
    StateFault fault{.kind = FaultKind::other_state, .check = open.check};
    if (slot.content != open.check.content) return fault;
    for (std::size_t i = 0; i < slot.state.size(); ++i)
      if (slot.state[i] != (*open.looked_at)[i]) {
        fault.kind = FaultKind::changed;
        fault.tensor = static_cast<std::int32_t>(i);
        return fault;
      }
    for (std::size_t i = 0; i < slot.state.size(); ++i)
      if (test::has_no_number(kept_.tensors()[i].spec, slot.state[i])) {
        fault.kind = FaultKind::not_finite;
        fault.tensor = static_cast<std::int32_t>(i);
        return fault;
      }
    return {};
  }

  const StateStore& kept_;
  std::vector<Slot> slots_;
  bool copies_are_summed_ = false;
  std::vector<Open> open_;
};

/// An engine that makes, reads and breaks checkpoints at random.
class RandomService {
 public:
  RandomService(Random& random, bool words)
      : random_(random),
        words_(words),
        states_(random, words ? test::word_spec() : test::odd_live_spec(), words ? test::word_spec() : test::odd_spec(),
                slots, {.checks_max = 24}),
        model_(states_.kept),
        contents_(slots) {}

  void pass() {
    ++pass_;
    const std::vector<StateCheck> checks = draw_checks();
    if (random_.chance(30)) damage();
    model_.begin(checks, pass_, words_);
    states_.begin(checks, pass_);
    if (random_.chance(20)) damage();
    for (std::int32_t calls = random_.between32(0, 2); calls > 0; --calls) {
      copy(checks);
      if (random_.chance(20)) damage();
    }
    model_.end();
    states_.integrity.end(states_.stream);
    if (random_.chance(70)) compare(states_.integrity.poll());
  }
  void finish() {
    compare(states_.faults());
    REQUIRE(answered_ == model_.expected.size());
  }
  [[nodiscard]] const StateFaults& faults() const { return model_.expected; }

 private:
  static constexpr std::int32_t slots = 7;

  SlotId draw_slot() { return SlotId{random_.between32(0, slots - 1)}; }

  std::vector<StateCheck> draw_checks() {
    std::vector<StateCheck> checks;
    for (std::int32_t i = random_.between32(0, 6); i > 0; --i) {
      const SlotId slot = draw_slot();
      std::uint64_t& content = contents_[slot.index()];
      const RequestId request{random_.between(0, 99)};
      if (random_.chance(40)) {
        content = ++last_content_;
        checks.push_back(test::published(slot, content, random_.chance(90) ? request : RequestId{}));
      } else if (content != 0 || random_.chance(10)) {
        const std::uint64_t read = random_.chance(90) && content != 0 ? content : last_content_ + 1;
        checks.push_back(test::reading(slot, read, random_.chance(70) ? request : RequestId{}));
      }
    }
    return checks;
  }

  /// A plan of restores or of checkpoints: most of them those of the checks.
  void copy(const std::vector<StateCheck>& checks) {
    const bool restores = random_.chance(50);
    const auto kind = restores ? StateCheck::Kind::read : StateCheck::Kind::published;
    std::vector<SlotCopy> plan;
    const auto add = [&](SlotId kept, SlotId live) {
      const SlotCopy copy = restores ? SlotCopy::whole(kept, live) : SlotCopy::whole(live, kept);
      const auto writes_it = [&](const SlotCopy& other) { return other.dst_slot == copy.dst_slot; };
      if (std::ranges::none_of(plan, writes_it)) plan.push_back(copy);
    };
    for (const StateCheck& check : checks)
      if (check.kind == kind && random_.chance(80)) add(check.slot, draw_slot());
    if (random_.chance(10)) add(draw_slot(), draw_slot());
    if (random_.chance(10) && !plan.empty()) {
      // A part of a state is no copy of it.
      plan.back().recurrent_src_slot = random_.chance(50) ? -1 : (plan.back().src_slot + 1) % slots;
    }
    SlotCopier& copier = restores ? states_.load : states_.save;
    states_.integrity.copy_slots(states_.stream, copier, plan);
    for (const SlotCopy& copy : plan)
      if (copy.src_slot == copy.recurrent_src_slot) {
        const SlotId slot{restores ? copy.src_slot : copy.dst_slot};
        model_.copied(kind, slot, state_in(states_.kept, slot));
      }
  }

  /// Changes some bytes, or none, of the checkpoints or the live states.
  void damage() {
    const StateStore& store = random_.chance(70) ? states_.kept : states_.live;
    const auto tensor = static_cast<std::size_t>(random_.between(0, 5));
    const SlotId slot = draw_slot();
    Bytes bytes = test::read_tensor(store, tensor, slot);
    const auto draw = [&] {
      return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(bytes.size()) - 1));
    };
    switch (random_.between(0, 5)) {
      case 0:
        bytes[draw()] ^= std::byte{1} << random_.between(0, 7);
        break;
      case 1:
        std::swap(bytes[draw()], bytes[draw()]);
        break;
      case 2:
        bytes = test::read_tensor(store, tensor, draw_slot());
        break;
      case 3: {
        const std::size_t begin = draw();
        const std::size_t count = std::min<std::size_t>(bytes.size() - begin, 1 + draw());
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), count, std::byte{0});
        break;
      }
      case 4:
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.bits());
        break;
      default:
        bytes = test::finite_bytes(random_, store.tensors()[tensor].spec);
    }
    test::write_tensor(store, tensor, slot, bytes);
  }

  /// The next faults are these.
  void compare(std::span<const StateFault> faults) {
    for (const StateFault& fault : faults) {
      REQUIRE(answered_ < model_.expected.size());
      REQUIRE(fault == model_.expected[answered_]);
      ++answered_;
    }
  }

  Random& random_;
  bool words_;
  IntegrityStates states_;
  IntegrityModel model_;
  std::vector<std::uint64_t> contents_;
  std::uint64_t last_content_ = 0;
  std::uint64_t pass_ = 0;
  std::size_t answered_ = 0;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

}  // namespace

TEST_CASE("random service with random damage is answered as the model says") {
  std::map<FaultKind, int> faults;
  test::for_each_seed(150, [&](Random& random, std::uint64_t seed) {
    RandomService service(random, seed % 2 == 0);
    for (int i = 0; i < 60; ++i) service.pass();
    service.finish();
    for (const StateFault& fault : service.faults()) ++faults[fault.kind];
  });
  for (const FaultKind kind : {FaultKind::changed, FaultKind::other_state, FaultKind::not_finite})
    CHECK(faults[kind] > 0);
}

TEST_CASE("restores of checkpoints that nobody touches raise no alarm") {
  const std::uint64_t restores = number_from("STATEPORT_TEST_RESTORES", test::seeds_of_build(20000));
  constexpr std::int32_t slots = 64;
  constexpr std::int32_t each = 32;
  Random random(20261129);
  const StateSpec spec({{.layer = 0, .kind = StateKind::conv, .type = ElementType::bf16, .shape = {2, 8, 1}},
                        {.layer = 0, .type = ElementType::fp32, .shape = {1, 2, 8}}});
  IntegrityStates states(random, spec, spec, slots);
  std::vector<std::uint64_t> contents(slots);
  std::uint64_t last_content = 0;
  std::uint64_t done = 0;
  std::vector<StateCheck> checks;
  std::vector<SlotCopy> plan;
  const auto pass = [&](SlotCopier& copier) {
    states.begin(checks, done);
    states.integrity.copy_slots(states.stream, copier, plan);
    states.integrity.end(states.stream);
    checks.clear();
    plan.clear();
  };
  const auto publish = [&](SlotId slot) {
    contents[slot.index()] = ++last_content;
    checks.push_back(test::published(slot, last_content, RequestId{1}));
    plan.push_back(SlotCopy::whole(random.between32(0, slots - 1), slot.value()));
  };
  for (std::int32_t slot = 0; slot < slots; ++slot) publish(SlotId{slot});
  pass(states.save);
  for (std::uint64_t round = 0; done < restores; ++round) {
    const std::int32_t first_target = random.between32(0, slots - 1);
    for (std::int32_t i = 0; i < each; ++i, ++done) {
      const SlotId slot{random.between32(0, slots - 1)};
      checks.push_back(test::reading(slot, contents[slot.index()], RequestId{2}));
      // Some passes read a state where it lies.
      if (random.chance(90)) plan.push_back(SlotCopy::whole(slot.value(), (first_target + i) % slots));
    }
    pass(states.load);
    for (std::int32_t i = 0; i < 2; ++i) publish(SlotId{(random.between32(0, slots / 2 - 1)) * 2 + i});
    pass(states.save);
    if (round % 4 == 0) REQUIRE(states.integrity.poll().empty());
  }
  REQUIRE(states.faults().empty());
  CHECK(static_cast<std::uint64_t>(states.integrity.checked()) == done + last_content);
  MESSAGE(done << " restores without an alarm");
}
