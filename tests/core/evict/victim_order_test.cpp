// SPDX-License-Identifier: Apache-2.0
#include "evict/victim_order.hpp"

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <vector>

using namespace stateport;

namespace {

/// Candidates 1 … n: the list of a linked recency begins and ends at node 0.
struct Source {
  struct Node {
    std::uint32_t older = LinkedRecency::none;
    std::uint32_t newer = LinkedRecency::none;
    std::uint64_t tick = 0;
    std::int32_t value = 0;
    bool member = false;
    bool locked = false;
  };
  explicit Source(std::uint32_t count, bool by_last_use) : by_last_use(by_last_use), nodes(count + 1) {
    nodes[0].older = nodes[0].newer = 0;
  }

  [[nodiscard]] Node& node(std::uint32_t index) const { return nodes[index]; }
  [[nodiscard]] bool eligible(std::uint32_t index) const { return nodes[index].member && !nodes[index].locked; }
  [[nodiscard]] std::uint64_t tick(std::uint32_t index) const { return nodes[index].tick; }
  [[nodiscard]] VictimKey key(std::uint32_t index) const {
    return {by_last_use ? 0 : nodes[index].value, nodes[index].tick};
  }
  /// All that are eligible, in order of eviction.
  [[nodiscard]] std::vector<std::uint32_t> ranked() const {
    std::vector<std::uint32_t> all;
    for (std::uint32_t index = 1; index < nodes.size(); ++index)
      if (eligible(index)) all.push_back(index);
    std::ranges::stable_sort(all, [this](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
    return all;
  }

  bool by_last_use;
  mutable std::vector<Node> nodes;
};

/// An order under random calls.
template <class Recency>
class Ordered {
 public:
  Ordered(test::Random& random, const VictimTraits& traits, std::uint32_t count)
      : random_(random), traits_(traits), source_(count, traits.by_last_use), order_(traits) {
    order_.reserve(count + 1);
  }

  void step() {
    const auto index = static_cast<std::uint32_t>(random_.between(1, std::ssize(source_.nodes) - 1));
    Source::Node& node = source_.nodes[index];
    switch (random_.between(0, 6)) {
      case 0:
        use(index);
        break;
      case 1:
        node.locked = random_.chance(50);
        if (!node.locked && node.member) order_.offer_again(source_, index);
        break;
      case 2:
        if (!node.locked) break;
        node.locked = false;
        if (node.member) order_.offer_again(source_, index);
        break;
      case 3:
        if (node.member) break;
        node = {.tick = ++clock_, .value = node.value, .member = true};
        order_.offer_newest(source_, index);
        break;
      case 4:
        if (random_.chance(70)) break;
        node.member = false;
        order_.erase(source_, index);
        break;
      case 5:
        peek();
        break;
      default:
        if (random_.chance(5)) clear();
    }
    order_.check_invariants(source_);
    const std::vector<std::uint32_t> ranked = source_.ranked();
    REQUIRE(order_.next(source_) == (ranked.empty() ? std::nullopt : std::optional(ranked.front())));
    for (const std::uint32_t member : ranked) REQUIRE(order_.contains(source_, member));
  }

 private:
  void use(std::uint32_t index) {
    Source::Node& node = source_.nodes[index];
    node.tick = ++clock_;
    if (traits_.key_may_shrink)
      node.value = random_.between32(0, 3);
    else
      node.value += random_.between32(0, 3);
    order_.used(source_, index);
  }
  void peek() {
    std::vector<std::uint32_t> next(static_cast<std::size_t>(random_.between(0, 60)));
    std::vector<std::uint32_t> ranked = source_.ranked();
    REQUIRE(order_.peek(source_, next) == std::min(next.size(), ranked.size()));
    next.resize(std::min(next.size(), ranked.size()));
    ranked.resize(next.size());
    REQUIRE(next == ranked);
  }
  void clear() {
    for (Source::Node& node : source_.nodes) node = {};
    source_.nodes[0].older = source_.nodes[0].newer = 0;
    order_.clear();
  }

  test::Random& random_;
  VictimTraits traits_;
  Source source_;
  VictimOrder<Recency> order_;
  std::uint64_t clock_ = 0;
};

template <class Recency>
void agree_with_scan(const VictimTraits& traits) {
  test::for_each_seed(200, [&](test::Random& random, std::uint64_t) {
    Ordered<Recency> ordered(random, traits, static_cast<std::uint32_t>(random.between(1, 60)));
    for (int step = 0; step < 300; ++step) ordered.step();
  });
}

}  // namespace

TEST_CASE("the traits of a policy choose how its victims are found") {
  CHECK(strategy_of({}) == VictimStrategy::heap);
  CHECK(strategy_of({.key_may_shrink = true}) == VictimStrategy::heap);
  CHECK(strategy_of({.by_last_use = true}) == VictimStrategy::list);
  CHECK(strategy_of({.by_last_use = true, .draws = 1}) == VictimStrategy::draw);
  CHECK(strategy_of(make_eviction_policy(EvictionOrder::lru)->traits()) == VictimStrategy::list);
  CHECK(strategy_of(make_eviction_policy(EvictionOrder::lfu)->traits()) == VictimStrategy::heap);
  CHECK(strategy_of(make_eviction_policy(EvictionOrder::hix)->traits()) == VictimStrategy::draw);
}

TEST_CASE("a victim order agrees with a scan, peeks included, whatever its strategy") {
  agree_with_scan<LazyRecency>({.by_last_use = true});
  agree_with_scan<LinkedRecency>({.by_last_use = true});
  agree_with_scan<LazyRecency>({});
  agree_with_scan<LinkedRecency>({.key_may_shrink = true});
  agree_with_scan<LinkedRecency>({.draws = 60});
}

TEST_CASE("a peek at the victims of a draw tells them and changes none") {
  test::for_each_seed(500, [](test::Random& random, std::uint64_t) {
    const auto count = static_cast<std::uint32_t>(random.between(1, 40));
    const VictimTraits traits{.draws = random.between32(1, 6)};
    VictimOrder<> peeked(traits);
    VictimOrder<> twin(traits);
    peeked.reserve(count + 1);
    twin.reserve(count + 1);
    Source source(count, false);
    for (std::uint32_t index = 1; index <= count; ++index) {
      source.nodes[index].member = true;
      source.nodes[index].value = random.between32(0, 9);
      peeked.offer(source, index);
      twin.offer(source, index);
    }
    while (peeked.contains(source, peeked.next(source).value_or(0))) {
      static_cast<void>(twin.next(source));
      const auto some = static_cast<std::uint32_t>(random.between(1, count));
      if (random.chance(30)) source.nodes[some].locked = true;
      std::vector<std::uint32_t> foretold(static_cast<std::size_t>(random.between(1, 5)));
      const std::uint64_t before = test::heap_allocations();
      const std::size_t found = peeked.peek(source, foretold);
      REQUIRE(test::heap_allocations() == before);
      foretold.resize(found);
      peeked.check_invariants(source);
      for (const std::uint32_t index : foretold) {
        REQUIRE(peeked.next(source) == index);
        REQUIRE(twin.next(source) == index);
        source.nodes[index].member = false;
        peeked.erase(source, index);
        twin.erase(source, index);
      }
    }
  });
}
