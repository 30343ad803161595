// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/tiers/remote_tier.hpp>

#include "lane_store.hpp"
#include "random.hpp"
#include "remote/forget_object.hpp"
#include "remote/forget_request.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

using namespace stateport;
using stateport::tiers::ForgetObject;
using stateport::tiers::ForgetRequest;
using stateport::tiers::ForgetShare;
using test::for_each_seed;
using test::LaneStore;
using test::ObjectsLane;
using test::Random;
using enum TransferStatus;

namespace {

const ModelId shared_model(7);
constexpr std::uint64_t objects_bytes = 1 << 20;

std::unique_ptr<RequestCache> sharing_cache() {
  return make_request_cache({.layout = SlotLayout{.layout_fingerprint = 1, .checkpoints = 1},
                             .max_requests = 1,
                             .max_request_tokens = 8,
                             .block_size_tokens = 4,
                             .kv_tokens = 8});
}

ObjectSet shared_set(const ModelId& id) {
  const ModelLayout layout(StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {2, 2, 2}}),
                           {.axis = 1, .bands = {{.extent = 8}}}, {.axis = 0, .bands = {{.extent = 2}}});
  return ObjectSet(layout, {}, {.model = id});
}

/// A cache over a store that machines share.
struct SharingMachine {
  explicit SharingMachine(const std::shared_ptr<InProcessObjects>& objects, const InProcessStoreOptions& options = {},
                          const ModelId& id = shared_model)
      : store(objects, options), tier(store, {shared_set(id)}) {}

  /// Until the exchange has ended.
  TransferStatus share() {
    for (;;) {
      if (const auto status = tier.share_forgotten(cache->epochs())) return *status;
      std::array<Completion, 1> none;
      REQUIRE(tier.poll(none) == 0);
    }
  }
  void forget(const std::string& tenant) { cache->epochs().forget({.salt = tenant}, ForgetBy::salt); }
  [[nodiscard]] std::size_t records() const { return cache->epochs().forgotten().size(); }

  std::unique_ptr<RequestCache> cache = sharing_cache();
  InProcessStore store;
  RemoteTier tier;
};

std::shared_ptr<InProcessObjects> new_objects(std::uint64_t bytes = objects_bytes) {
  return std::make_shared<InProcessObjects>(bytes);
}

using RecordRow = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;  // cache, call, salt

std::set<RecordRow> rows_of(std::span<const ForgetRecord> records) {
  std::set<RecordRow> rows;
  for (const ForgetRecord& record : records) rows.insert({record.cache, record.call, record.salt});
  return rows;
}

std::set<RecordRow> rows_of(const InProcessObjects& objects, std::size_t copy) {
  const auto object = objects.read(ForgetObject::name(shared_model, copy));
  const auto count = object ? ForgetObject::check(*object) : std::nullopt;
  std::vector<ForgetRecord> records;
  for (std::size_t i = 0; i < count.value_or(0); ++i) records.push_back(ForgetObject::record(*object, i));
  return rows_of(records);
}

}  // namespace

TEST_CASE("what one machine forgets, later processes and other machines forget") {
  const auto objects = new_objects();
  SharingMachine one(objects);
  CHECK(one.share() == done);
  CHECK(objects->keys().empty());
  SharingMachine other(objects);
  other.forget("bob");
  one.forget("ann");
  CHECK(one.share() == done);
  CHECK(other.share() == done);
  CHECK(other.records() == 2);
  CHECK(one.records() == 1);
  CHECK(one.share() == done);
  CHECK(one.records() == 2);
  SharingMachine later(objects);
  CHECK(later.share() == done);
  CHECK(rows_of(later.cache->epochs().forgotten()) == rows_of(one.cache->epochs().forgotten()));
  SharingMachine foreign(objects, {}, ModelId(8));
  CHECK(foreign.share() == done);
  CHECK(foreign.records() == 0);
  // It needs no more than the other one's call.
  one.forget("ann");
  CHECK(one.share() == done);
  CHECK(later.share() == done);
  CHECK(later.records() == 2);
  CHECK(rows_of(*objects, 0) == rows_of(later.cache->epochs().forgotten()));
  CHECK(rows_of(*objects, 1) == rows_of(*objects, 0));
}

TEST_CASE("what is forgotten while records are exchanged belongs to the exchange") {
  const auto objects = new_objects();
  SharingMachine one(objects);
  one.forget("ann");
  CHECK_FALSE(one.tier.share_forgotten(one.cache->epochs()));
  one.forget("bob");
  CHECK(one.share() == done);
  CHECK(rows_of(*objects, 0).size() == 2);
}

TEST_CASE("records that a store has lost or damaged come back from a cache that knows them") {
  const auto objects = new_objects();
  SharingMachine one(objects);
  one.forget("ann");
  REQUIRE(one.share() == done);
  const auto rows = rows_of(*objects, 0);
  REQUIRE(rows.size() == 1);
  for (std::size_t copy = 0; copy < ForgetObject::copies; ++copy) {
    const std::string name = ForgetObject::name(shared_model, copy);
    const std::vector<std::byte> good = *objects->read(name);
    for (std::size_t bad = 0; bad <= good.size(); bad += bad < 32 ? 1 : 7) {
      std::vector<std::byte> bytes = good;
      if (bad < good.size())
        bytes[bad] ^= std::byte{4};
      else
        bytes.pop_back();
      REQUIRE(objects->overwrite(name, bytes));
      CHECK_FALSE(ForgetObject::check(bytes));
      SharingMachine later(objects);
      CHECK(later.share() == done);
      CHECK(rows_of(later.cache->epochs().forgotten()) == rows);
      CHECK(rows_of(*objects, copy) == rows);
    }
    REQUIRE(objects->overwrite(name, std::vector<std::byte>(2 * ForgetObject::bytes_max)));
    REQUIRE(one.share() == done);
    CHECK(rows_of(*objects, copy) == rows);
    REQUIRE(objects->erase(name));
    REQUIRE(SharingMachine(objects).share() == done);
    CHECK(rows_of(*objects, copy) == rows);
  }
}

TEST_CASE("a record of an object that no cache can have made makes the object damaged") {
  std::vector<std::byte> object(ForgetObject::bytes_max);
  for (const ForgetRecord& bad :
       {ForgetRecord{.cache = 1, .call = 0}, ForgetRecord{.cache = 1, .call = 1, .salt = 1, .by = ForgetBy::all}}) {
    const std::array records = {ForgetRecord{.cache = 1, .call = 1}, bad};
    CHECK_FALSE(ForgetObject::check(std::span(object).first(ForgetObject::write(records, object))));
    CHECK(ForgetObject::check(std::span(object).first(ForgetObject::write(std::span(records).first(1), object))) == 1);
  }
}

TEST_CASE("too many records are not stored, and the caches that meet them forget everything") {
  const auto objects = new_objects();
  SharingMachine one(objects);
  SharingMachine other(objects);
  for (std::uint32_t i = 1; i <= CacheEpochs::records_max; ++i)
    CHECK(one.cache->epochs().adopt(std::array{ForgetRecord{.cache = 1, .call = i, .salt = i, .by = ForgetBy::salt}}));
  CHECK(one.share() == done);
  CHECK(rows_of(*objects, 1).size() == CacheEpochs::records_max);
  other.forget("ann");
  CHECK(other.share() == no_room);
  CHECK(other.records() == 1);
  CHECK(other.cache->epochs().forgotten()[0].by == ForgetBy::all);
  CHECK(rows_of(*objects, 1).size() == CacheEpochs::records_max);
  CHECK(other.share() == no_room);
  CHECK(one.share() == done);
}

TEST_CASE("an exchange says that the store has no room, and begins when its queue has") {
  const auto tiny = new_objects(10);
  SharingMachine one(tiny);
  CHECK(one.share() == done);
  one.forget("ann");
  CHECK(one.share() == no_room);
  SharingMachine busy(new_objects(), {.limits = {.queue_requests = 2}});
  busy.forget("ann");
  const ImageKey key{.prefix = {{1, 2}}, .tokens = 4};
  for (std::uint64_t ticket = 0; ticket < 2; ++ticket) REQUIRE(busy.tier.find(ticket, key));
  CHECK_FALSE(busy.tier.share_forgotten(busy.cache->epochs()));
  std::array<Completion, 2> two;
  CHECK(busy.tier.poll(two) == 2);
  CHECK(busy.share() == done);
}

namespace {

/// A store that fails where memory is not registered.
class StrictStore final : public RemoteStore {
 public:
  explicit StrictStore(std::shared_ptr<InProcessObjects> objects) {
    serve_in_poll(std::make_unique<Lane>(std::move(objects), known_));
  }
  [[nodiscard]] bool needs_registration() const noexcept override { return true; }
  [[nodiscard]] std::size_t registrations() const noexcept { return known_.size(); }

 private:
  using Known = std::vector<std::span<std::byte>>;
  class Lane final : public RemoteLane {
   public:
    Lane(std::shared_ptr<InProcessObjects> objects, const Known& known) : lane_(std::move(objects)), known_(known) {}
    void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
      for (const RemoteObject& object : objects)
        for (const RemotePiece& piece : object.pieces)
          if (std::ranges::none_of(known_, [&](const std::span<std::byte> memory) {
                return memory.data() <= piece.address && piece.address + piece.bytes <= memory.data() + memory.size();
              }))
            throw BackendError("carry_out", "memory that is not registered");
      lane_.carry_out(call, objects, answers);
    }

   private:
    ObjectsLane lane_;
    const Known& known_;
  };
  void do_register(std::span<std::byte> memory) override { known_.push_back(memory); }
  void do_unregister(std::span<std::byte> memory) override {
    std::erase_if(known_, [&](const std::span<std::byte> known) { return known.data() == memory.data(); });
  }

  Known known_;
};

}  // namespace

TEST_CASE("a store that moves only registered memory knows that of the records") {
  const auto objects = new_objects();
  StrictStore store(objects);
  const auto cache = sharing_cache();
  cache->epochs().forget({.salt = "ann"}, ForgetBy::salt);
  {
    RemoteTier tier(store, {shared_set(shared_model)});
    CHECK_FALSE(tier.share_forgotten(cache->epochs()));
    std::array<Completion, 1> none;
    REQUIRE(tier.poll(none) == 0);
    CHECK(tier.share_forgotten(cache->epochs()) == done);
  }
  CHECK(rows_of(*objects, 0).size() == 1);
  CHECK(store.registrations() == 0);
}

namespace {

/// A store whose calls fail from some call on.
class EndingLane final : public RemoteLane {
 public:
  EndingLane(std::shared_ptr<InProcessObjects> objects, int good) : lane_(std::move(objects)), good_(good) {}
  void carry_out(RemoteCall call, std::span<const RemoteObject> objects, std::span<Completion> answers) override {
    if (--good_ < 0) throw BackendError("carry_out", "the server is gone");
    lane_.carry_out(call, objects, answers);
  }

 private:
  ObjectsLane lane_;
  int good_;
};

}  // namespace

TEST_CASE("an exchange that fails is answered, and what it has read is forgotten") {
  const auto objects = new_objects();
  SharingMachine before(objects);
  before.forget("bob");
  REQUIRE(before.share() == done);
  constexpr int needed = 10;  // both are read, and after each of two writes again
  for (int good = 0; good <= needed; ++good) {
    CAPTURE(good);
    LaneStore store(std::make_unique<EndingLane>(objects, good));
    RemoteTier tier(store, {shared_set(shared_model)});
    const auto cache = sharing_cache();
    cache->epochs().forget({.salt = "ann"}, ForgetBy::salt);
    std::optional<TransferStatus> status;
    while (!(status = tier.share_forgotten(cache->epochs()))) std::this_thread::yield();
    CHECK(status == (good < needed ? failed : done));
    CHECK(cache->epochs().forgotten().size() >= (good == 0 ? 1u : 2u));
    SharingMachine later(objects);
    CHECK(later.share() == done);
    const auto rows = rows_of(later.cache->epochs().forgotten());
    for (const RecordRow& row : rows_of(before.cache->epochs().forgotten())) CHECK(rows.contains(row));
  }
}

TEST_CASE("machines that exchange records at the same time all end with the same") {
  const auto objects = new_objects();
  constexpr std::size_t machines = 3;
  std::array<std::unique_ptr<RequestCache>, machines> caches;
  std::atomic<std::size_t> not_done = 0;
  const auto serve = [&](std::size_t machine) {
    LaneStore store(LaneStore::lanes_over(objects, 2));
    RemoteTier tier(store, {shared_set(shared_model)});
    caches[machine] = sharing_cache();
    for (std::size_t round = 0; round < 10; ++round) {
      caches[machine]->epochs().forget({.salt = std::to_string(10 * machine + round % 4)}, ForgetBy::salt);
      std::optional<TransferStatus> status;
      while (!(status = tier.share_forgotten(caches[machine]->epochs()))) std::this_thread::yield();
      not_done += *status != done;  // others wrote all the time
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t machine = 0; machine < machines; ++machine) threads.emplace_back(serve, machine);
  for (std::thread& thread : threads) thread.join();
  MESSAGE(not_done.load(), " exchanges were given up");
  for (int round = 0; round < 2; ++round)
    for (auto& cache : caches) {
      SharingMachine alone(objects);
      alone.cache = std::move(cache);
      CHECK(alone.share() == done);
      cache = std::move(alone.cache);
    }
  const auto rows = rows_of(caches[0]->epochs().forgotten());
  CHECK(rows.size() == 4 * machines);
  for (const auto& cache : caches) CHECK(rows_of(cache->epochs().forgotten()) == rows);
  CHECK(rows_of(*objects, 0) == rows);
  CHECK(rows_of(*objects, 1) == rows);
}

namespace {

/// A client of the store, one call at a time.
struct Sharer {
  /// False: the exchange has ended.
  bool step(RemoteLane& lane, bool fails, bool is_lost) {
    if (!request) {
      share.known.clear();
      for (const ForgetRecord& record : own.all()) share.known.add(record);
      share.state = ForgetShare::State::under_way;
      request = std::make_unique<ForgetRequest>(shared_model, share);
    }
    std::string name;
    RemotePiece piece;
    const RemoteObject object = request->object(0, name, piece);
    Completion answer{.status = failed};
    if (!is_lost) lane.carry_out(request->call(), {&object, 1}, {&answer, 1});
    if (fails || is_lost) answer.status = failed;
    if (request->call() == RemoteCall::get && answer.status == done) answer.status = request->verify(0, answer.bytes);
    request->note(0, answer);
    if (request->finish(answer) == ForgetRequest::End::anew) return true;
    request.reset();
    REQUIRE(share.state == ForgetShare::State::ended);
    for (const ForgetRecord& record : share.known.all()) own.add(record);
    return false;
  }

  detail::ForgetRecords own{CacheEpochs::records_max};
  ForgetShare share;
  std::unique_ptr<ForgetRequest> request;
};

/// Clients that exchange, forget, fail and end at any time, and a store that loses objects.
struct Crowd {
  explicit Crowd(Random& of) : random(of), clients(static_cast<std::size_t>(of.between(1, 4))) {}

  std::size_t any(std::size_t count) {
    return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(count) - 1));
  }
  void forget(std::size_t client) {
    const auto salt = static_cast<std::uint32_t>(random.between(1, 3));
    clients[client].own.add({.cache = client + 1, .call = ++calls, .salt = salt, .by = ForgetBy::salt});
  }
  [[nodiscard]] detail::ForgetRecords stored() const {
    detail::ForgetRecords records(CacheEpochs::records_max);
    for (std::size_t copy = 0; copy < ForgetObject::copies; ++copy)
      for (const auto& [cache, call, salt] : rows_of(*objects, copy))
        records.add({.cache = cache, .call = call, .salt = salt, .by = ForgetBy::salt});
    return records;
  }

  Random& random;
  std::shared_ptr<InProcessObjects> objects = new_objects();
  ObjectsLane lane{objects};
  std::vector<Sharer> clients;
  std::uint64_t calls = 0;
};

}  // namespace

TEST_CASE("records that one client at a time has stored are there at every moment, wherever it ends") {
  std::int64_t ended = 0;
  for_each_seed(300, [&](Random& random, std::uint64_t) {
    Crowd crowd(random);
    detail::ForgetRecords published(CacheEpochs::records_max);
    for (int exchange = 0; exchange < 30; ++exchange) {
      const std::size_t turn = crowd.any(crowd.clients.size());
      Sharer& client = crowd.clients[turn];
      if (random.chance(60)) crowd.forget(turn);
      for (bool goes_on = true; goes_on;) {
        goes_on = client.step(crowd.lane, random.chance(3), random.chance(3));
        const detail::ForgetRecords stored = crowd.stored();
        for (const ForgetRecord& record : published.all()) REQUIRE(stored.holds(record));
        if (!goes_on || !random.chance(4)) continue;
        client.request.reset();  // the process ends
        REQUIRE(client.share.status == failed);
        client.own.clear();
        goes_on = false;
        ++ended;
      }
      if (client.share.status != done) continue;
      REQUIRE(rows_of(*crowd.objects, 0) == rows_of(client.own.all()));
      REQUIRE(rows_of(*crowd.objects, 1) == rows_of(client.own.all()));
      for (const ForgetRecord& record : client.own.all()) published.add(record);
    }
  });
  CHECK(ended > 0);
}

TEST_CASE("a client that has read the objects long ago takes no record away that another one has stored") {
  const auto objects = new_objects();
  ObjectsLane lane(objects);
  const auto end = [&](Sharer& client) {
    while (client.step(lane, false, false)) {
    }
    CHECK(client.share.status == done);
  };
  Sharer first;
  first.own.add({.cache = 1, .call = 1, .by = ForgetBy::all});
  end(first);
  Sharer slow;
  slow.own.add({.cache = 2, .call = 1, .by = ForgetBy::all});
  for (int call = 0; call < 2; ++call) REQUIRE(slow.step(lane, false, false));
  first.own.add({.cache = 3, .call = 1, .by = ForgetBy::all});
  end(first);
  end(slow);
  CHECK(rows_of(*objects, 0).size() == 3);
  CHECK(rows_of(*objects, 1).size() == 3);
}

TEST_CASE("whatever clients and the store do, exchanges end, and then all have what any client knows") {
  for_each_seed(300, [&](Random& random, std::uint64_t) {
    Crowd crowd(random);
    for (int step = 0; step < 200; ++step) {
      const std::size_t turn = crowd.any(crowd.clients.size());
      if (random.chance(10)) crowd.forget(turn);
      static_cast<void>(crowd.clients[turn].step(crowd.lane, random.chance(3), random.chance(3)));
      const std::string name = ForgetObject::name(shared_model, crowd.any(ForgetObject::copies));
      if (random.chance(5)) static_cast<void>(crowd.objects->erase(name));
      if (random.chance(5)) static_cast<void>(crowd.objects->overwrite(name, std::vector<std::byte>(40)));
    }
    const auto end = [&](Sharer& client) {
      for (int calls = 0; client.step(crowd.lane, false, false); ++calls) REQUIRE(calls < 200);
    };
    for (Sharer& client : crowd.clients)
      if (client.request != nullptr) end(client);
    detail::ForgetRecords all(CacheEpochs::records_max);
    for (int round = 0; round < 2; ++round)
      for (Sharer& client : crowd.clients) {
        end(client);
        CHECK(client.share.status == done);
        for (const ForgetRecord& record : client.own.all()) all.add(record);
      }
    for (const Sharer& client : crowd.clients) CHECK(rows_of(client.own.all()) == rows_of(all.all()));
    CHECK(rows_of(*crowd.objects, 0) == rows_of(all.all()));
    CHECK(rows_of(*crowd.objects, 1) == rows_of(all.all()));
  });
}
