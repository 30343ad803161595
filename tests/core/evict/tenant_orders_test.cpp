// SPDX-License-Identifier: Apache-2.0
// Victims where tenants have shares, against a scan.
#include "evict/victim_order.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

using namespace stateport;
using stateport::detail::TenantId;
using stateport::detail::TenantLedger;
using stateport::detail::TenantOwners;

namespace {

constexpr std::size_t order_quotas = 3;

PrefixHash tenant_name_of(TenantId tenant) {
  return {{tenant, 7}};
}

struct TenantSource {
  struct Candidate {
    std::uint64_t tick = 0;
    std::int32_t value = 0;
    TenantId tenant = 0;
    bool member = false;
    bool locked = false;
  };
  [[nodiscard]] bool eligible(std::uint32_t index) const { return all[index].member && !all[index].locked; }
  [[nodiscard]] std::uint64_t tick(std::uint32_t index) const { return all[index].tick; }
  [[nodiscard]] VictimKey key(std::uint32_t index) const { return {by_last_use ? 0 : all[index].value, tick(index)}; }
  [[nodiscard]] TenantId tenant(std::uint32_t index) const { return all[index].tenant; }
  [[nodiscard]] static std::int64_t bytes(std::uint32_t) { return 10; }

  bool by_last_use;
  std::vector<Candidate> all;
};

/// Each candidate that exists has ten bytes of its tenant.
class SharedOrder {
 public:
  SharedOrder(test::Random& random, const VictimTraits& traits, std::size_t count)
      : random_(random), source_{traits.by_last_use && traits.draws == 0, {}}, order_(traits, &ledger_) {
    source_.all.resize(count);
    order_.reserve(count);
    for (TenantId tenant = 1; tenant <= order_quotas; ++tenant) {
      ledger_[tenant].used = true;
      ledger_[tenant].name = tenant_name_of(tenant);
    }
  }

  void step() {
    const auto index = static_cast<std::uint32_t>(random_.between(0, std::ssize(source_.all) - 1));
    TenantSource::Candidate& candidate = source_.all[index];
    switch (random_.between(0, 5)) {
      case 0:
        if (!candidate.member) break;
        candidate.tick = ++clock_;
        candidate.value += random_.between32(0, 3);
        order_.used(source_, index);
        break;
      case 1:
        candidate.locked = !candidate.locked;
        if (!candidate.locked && candidate.member) order_.offer_again(source_, index);
        break;
      case 2:
        add(index);
        break;
      case 3: {
        detail::TenantAccount& account = ledger_[static_cast<TenantId>(random_.between(1, order_quotas))];
        account.floor_bytes = random_.chance(70) ? random_.between(0, 200) : 0;
        account.most_bytes = random_.chance(50) ? account.floor_bytes + random_.between(1, 200) : 0;
        if (random_.chance(20)) change_accounts();
        break;
      }
      default:
        evict();
    }
    order_.check_invariants(source_);
  }

  std::int64_t evicted = 0;
  std::int64_t refused = 0;  ///< though there were candidates

 private:
  void add(std::uint32_t index) {
    TenantSource::Candidate& candidate = source_.all[index];
    if (candidate.member) return;
    // A candidate that is not erased when it goes, and comes back as another tenant's.
    candidate = {.tick = ++clock_,
                 .value = candidate.value,
                 .tenant = static_cast<TenantId>(random_.between(0, order_quotas)),
                 .member = true};
    ledger_[candidate.tenant].kv_bytes += 10;
    order_.offer_newest(source_, index);
  }

  [[nodiscard]] TenantLedger::Turn turn_of(std::uint32_t index) const {
    const detail::TenantAccount& account = ledger_[source_.tenant(index)];
    const bool own = source_.tenant(index) == asker_;
    const bool within = account.bytes() - 10 < account.floor_bytes && account.floor_bytes > 0;
    if (within && !own) return TenantLedger::Turn::never;
    if (account.most_bytes > 0 && account.bytes() + (own ? 10 : 0) > account.most_bytes)
      return TenantLedger::Turn::first;
    return within ? TenantLedger::Turn::last : TenantLedger::Turn::by_worth;
  }
  /// Each candidate of a tenant goes to another account.
  void change_accounts() {
    const auto from = static_cast<TenantId>(random_.between(0, order_quotas));
    const auto to = static_cast<TenantId>(random_.between(0, order_quotas));
    for (TenantSource::Candidate& candidate : source_.all)
      if (candidate.tenant == from) candidate.tenant = to;
    ledger_[to].kv_bytes += std::exchange(ledger_[from].kv_bytes, 0);
    if (from == to) return;
    ledger_.accounts_changed();
  }
  /// The smallest turn, then the smallest key.
  [[nodiscard]] std::optional<std::uint32_t> scan() const {
    using Ranked = std::tuple<TenantLedger::Turn, VictimKey, std::uint32_t>;
    std::vector<Ranked> ranked;
    for (std::uint32_t index = 0; index < source_.all.size(); ++index)
      if (source_.eligible(index) && turn_of(index) != TenantLedger::Turn::never)
        ranked.emplace_back(turn_of(index), source_.key(index), index);
    if (ranked.empty()) return std::nullopt;
    return std::get<2>(*std::ranges::min_element(ranked));
  }

  void evict() {
    asker_ = random_.chance(15) ? TenantLedger::nobody : static_cast<TenantId>(random_.between(0, order_quotas));
    ledger_.ask({.tenant = asker_, .name = tenant_name_of(asker_)});
    const auto victim = order_.next(source_);
    const auto wanted = scan();
    REQUIRE(victim.has_value() == wanted.has_value());
    // A victim that was drawn before stays the first of its tenant.
    if (order_.strategy() != VictimStrategy::draw) REQUIRE(victim == wanted);
    if (victim) REQUIRE(turn_of(*victim) == turn_of(*wanted));
    refused += !victim;
    if (!victim || random_.chance(20)) return;  // not taken: it is named again
    ++evicted;
    ledger_[source_.tenant(*victim)].kv_bytes -= 10;
    source_.all[*victim].member = false;
    if (random_.chance(70)) order_.erase(source_, *victim);
  }

  test::Random& random_;
  TenantLedger ledger_{order_quotas, 1000};
  TenantSource source_;
  VictimOrder<> order_;
  TenantId asker_ = TenantLedger::nobody;
  std::uint64_t clock_ = 0;
};

void agree_with_tenant_scan(const VictimTraits& traits) {
  std::int64_t evicted = 0, refused = 0, seeds = 0;
  test::for_each_seed(300, [&](test::Random& random, std::uint64_t) {
    SharedOrder shared(random, traits, static_cast<std::size_t>(random.between(1, 40)));
    for (int step = 0; step < 400; ++step) shared.step();
    evicted += shared.evicted;
    refused += shared.refused;
    ++seeds;
  });
  if (seeds < 300) return;
  CHECK(evicted > 1000);
  CHECK(refused > 100);
}

}  // namespace

TEST_CASE("of the tenants' first candidates the one whose turn it is goes, by any strategy") {
  agree_with_tenant_scan({.by_last_use = true});
  agree_with_tenant_scan({});
  agree_with_tenant_scan({.draws = 40});  // all are compared
}

TEST_CASE("a draw that another tenant's victim goes before is named again") {
  TenantLedger ledger(1, 1000);
  ledger[1].used = true;
  TenantSource source{false, std::vector<TenantSource::Candidate>(60)};
  VictimOrder<> order({.draws = 2}, &ledger);
  order.reserve(60);
  for (std::uint32_t index = 0; index < 60; ++index) {
    source.all[index] = {.tick = index, .value = index < 30 ? 5 : 100, .tenant = TenantId{index >= 30}, .member = true};
    ledger[source.all[index].tenant].kv_bytes += 10;
    order.offer(source, index);
  }
  // The best of a draw of the second tenant, then it is better than all of the first.
  for (int i = 0; i < 10; ++i) order.erase(source, *order.next(source));
  source.all[*order.next(source)].member = false;
  ledger[0].floor_bytes = 1000;  // all of the first tenant is within its floor
  const auto first = order.next(source);
  REQUIRE(first);
  CHECK(source.tenant(*first) == 1);
  CHECK(order.next(source) == first);
  ledger[0].floor_bytes = 0;
  CHECK(source.tenant(*order.next(source)) == 0);
  ledger[0].floor_bytes = 1000;
  CHECK(order.next(source) == first);
}

TEST_CASE("the bytes of numbers follow their owners") {
  TenantLedger ledger(2, 1000);
  ledger[1].used = true;
  ledger[1].name = tenant_name_of(1);
  TenantOwners owners(ledger, &detail::TenantAccount::state_bytes, 8, 8, 10);
  ledger.ask({.tenant = ledger.find(tenant_name_of(1)), .name = tenant_name_of(1)});
  owners.take(3);
  owners.take(4);
  ledger.ask({.tenant = ledger.find(tenant_name_of(2)), .name = tenant_name_of(2)});
  owners.take(5);
  CHECK(ledger[1].state_bytes == 16);
  CHECK(ledger[0].state_bytes == 8);
  owners.move(4, 9);
  CHECK(owners.of(9) == 1);
  CHECK(owners.of(4) == TenantLedger::nobody);
  CHECK(owners.bytes_of(tenant_name_of(1)) == 16);
  ledger[2].used = true;
  ledger[2].name = tenant_name_of(2);
  owners.classify(tenant_name_of(2), 2);
  CHECK(owners.of(5) == 2);
  CHECK(ledger[2].state_bytes == 8);
  CHECK(ledger[0].state_bytes == 0);
  owners.classify(tenant_name_of(1), TenantLedger::others);
  CHECK(ledger[0].state_bytes == 16);
  owners.give(9);
  CHECK(ledger[0].state_bytes == 8);
  owners.reset();
  CHECK(ledger[0].bytes() + ledger[1].bytes() + ledger[2].bytes() == 0);
}
