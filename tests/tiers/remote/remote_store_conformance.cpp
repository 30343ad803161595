// SPDX-License-Identifier: Apache-2.0
#include "remote_store_conformance.hpp"

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

namespace stateport::test {
namespace {

constexpr TransferStatus done = TransferStatus::done;
constexpr TransferStatus gone = TransferStatus::gone;

/// Memory that the store knows while this lives.
class Registered {
 public:
  Registered(RemoteStore& store, std::span<std::byte> memory) : store_(store), memory_(memory) {
    if (!memory_.empty()) store_.register_memory(memory_);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  ~Registered() {
    if (!memory_.empty()) store_.unregister_memory(memory_);
  }

 private:
  RemoteStore& store_;
  std::span<std::byte> memory_;
};

std::unique_ptr<RemoteStore> make_store(const MakeStore& make) {
  return make({});
}

/// `bytes` cut at the positions.
std::vector<RemotePiece> cut(std::span<std::byte> bytes, std::vector<std::size_t> at) {
  at.push_back(bytes.size());
  std::vector<RemotePiece> pieces;
  std::size_t begin = 0;
  for (const std::size_t end : at) {
    pieces.push_back({bytes.data() + begin, end - begin});
    begin = end;
  }
  return pieces;
}

/// Calls that must throw before they begin anything.
template <class Call>
void refuses(RemoteStore& store, std::string_view argument, Call&& call) {
  const RemoteStoreStatistics before = store.statistics();
  try {
    static_cast<void>(call());
    FAIL("not refused: " << std::string(argument));
  } catch (const InvalidArgument& refusal) {
    CHECK(refusal.argument() == argument);
  }
  std::array<Completion, 4> answers;
  CHECK(store.poll(answers) == 0);
  CHECK(store.statistics().accepted_requests == before.accepted_requests);
}

void empty_batches(RemoteStore& store) {
  CHECK(store.put_from({}));
  CHECK(store.get_into({}));
  CHECK(store.exists({}));
  CHECK(store.remove({}));
  std::array<Completion, 4> answers;
  CHECK(store.poll(answers) == 0);
  CHECK(store.poll({}) == 0);
}

void life_of_an_object(RemoteStore& store, RemoteStore& other) {
  const std::vector<std::byte> written = bytes_of_seed(1, 5000);
  std::vector<std::byte> read(5000);
  CHECK(exists(store, "conformance/life") == gone);
  CHECK(remove(store, "conformance/life") == gone);
  CHECK(get(store, "conformance/life", read).status == gone);
  CHECK(put(store, "conformance/life", written) == done);
  CHECK(exists(other, "conformance/life") == done);
  const Completion got = get(other, "conformance/life", read);
  CHECK(got.status == done);
  CHECK(got.bytes == 5000);
  CHECK(read == written);
  CHECK(remove(other, "conformance/life") == done);
  CHECK(exists(store, "conformance/life") == gone);
  CHECK(get(store, "conformance/life", read).status == gone);
}

void write_once(RemoteStore& store, RemoteStore& other) {
  const std::vector<std::byte> first = bytes_of_seed(2, 900);
  std::vector<std::byte> read(900);
  CHECK(put(store, "conformance/once", first) == done);
  CHECK(put(other, "conformance/once", bytes_of_seed(3, 900)) == done);
  CHECK(put(store, "conformance/once", bytes_of_seed(4, 700)) == done);
  CHECK(get(other, "conformance/once", read).bytes == 900);
  CHECK(read == first);
  CHECK(remove(store, "conformance/once") == done);
  CHECK(put(other, "conformance/once", bytes_of_seed(4, 700)) == done);
  CHECK(get(store, "conformance/once", read).bytes == 700);
  CHECK(remove(store, "conformance/once") == done);
}

void many_pieces(RemoteStore& store) {
  std::vector<std::byte> memory = bytes_of_seed(5, 100000);
  const std::vector<std::byte> written = memory;
  const Registered registered(store, memory);
  // Some without bytes, at the begin, in the middle and at the end; one byte; all sizes.
  std::vector<std::size_t> at = {0, 0, 1, 1, 2};
  for (std::size_t bytes = 3; at.back() + bytes < memory.size(); bytes += 7) at.push_back(at.back() + bytes);
  at.push_back(memory.size());
  std::vector<RemotePiece> pieces = cut(memory, at);
  pieces.front().address = nullptr;
  const RemoteObject object{7, "conformance/pieces", pieces};
  REQUIRE(store.put_from({&object, 1}));
  CHECK(answers_of(store, 1) == std::vector<Completion>{{7, done, 100000}});
  std::ranges::fill(memory, std::byte{0});
  const std::vector<RemotePiece> others = cut(memory, {10, 50000, 50000, 50001, 99999});
  const RemoteObject wanted{8, "conformance/pieces", others};
  REQUIRE(store.get_into({&wanted, 1}));
  CHECK(answers_of(store, 1) == std::vector<Completion>{{8, done, 100000}});
  CHECK(memory == written);
  CHECK(remove(store, "conformance/pieces") == done);
}

void other_sizes(RemoteStore& store) {
  const std::vector<std::byte> written = bytes_of_seed(6, 4097);
  CHECK(put(store, "conformance/size", written) == done);
  std::vector<std::byte> smaller(4096);
  CHECK(get(store, "conformance/size", smaller).status == TransferStatus::foreign_layout);
  std::vector<std::byte> larger(9000);
  CHECK(get(store, "conformance/size", larger).bytes == 4097);
  CHECK(std::equal(written.begin(), written.end(), larger.begin()));
  CHECK(remove(store, "conformance/size") == done);
}

void large_objects(RemoteStore& store) {
  for (const std::size_t bytes : {std::size_t{1}, (std::size_t{1} << 20) - 1, std::size_t{1} << 20,
                                  (std::size_t{1} << 20) + 1, (std::size_t{9} << 20) + 5}) {
    const std::vector<std::byte> written = bytes_of_seed(bytes, bytes);
    std::vector<std::byte> read(bytes);
    CHECK(put(store, "conformance/large", written) == done);
    CHECK(get(store, "conformance/large", read).bytes == bytes);
    CHECK(read == written);
    CHECK(remove(store, "conformance/large") == done);
  }
}

/// All kinds at once; each is answered once, under its own ticket.
void batches(RemoteStore& store) {
  constexpr std::size_t count = 40;
  std::vector<std::byte> memory = bytes_of_seed(8, count * 1000);
  const std::vector<std::byte> written = memory;
  const Registered registered(store, memory);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("conformance/batch" + std::to_string(i));
  std::vector<RemotePiece> pieces;
  for (std::size_t i = 0; i < count; ++i) pieces.push_back({memory.data() + i * 1000, 1000});
  std::vector<RemoteObject> objects;
  std::vector<RemoteKey> keys;
  for (std::size_t i = 0; i < count; ++i) {
    objects.push_back({100 + i, names[i], {&pieces[i], 1}});
    keys.push_back({300 + i, names[i]});
  }
  const auto all = [&](std::uint64_t first, std::uint64_t bytes, TransferStatus status) {
    std::vector<Completion> expected;
    for (std::size_t i = 0; i < count; ++i) expected.push_back({first + i, status, bytes});
    return expected;
  };
  REQUIRE(store.put_from(objects));
  CHECK(answers_of(store, count) == all(100, 1000, done));
  std::ranges::fill(memory, std::byte{0});
  REQUIRE(store.get_into(objects));
  REQUIRE(store.exists(keys));
  const std::vector<Completion> answers = answers_of(store, 2 * count);
  CHECK(std::vector(answers.begin(), answers.begin() + count) == all(100, 1000, done));
  CHECK(std::vector(answers.begin() + count, answers.end()) == all(300, 0, done));
  CHECK(memory == written);
  REQUIRE(store.remove(keys));
  CHECK(answers_of(store, count) == all(300, 0, done));
  REQUIRE(store.exists(keys));
  CHECK(answers_of(store, count) == all(300, 0, gone));
}

/// Several requests may have one key and one ticket.
void same_key_twice(RemoteStore& store) {
  std::vector<std::byte> memory = bytes_of_seed(9, 600);
  std::copy_n(memory.begin(), 300, memory.begin() + 300);
  const Registered registered(store, memory);
  const std::array<RemotePiece, 2> pieces = {{{memory.data(), 300}, {memory.data() + 300, 300}}};
  const std::array<RemoteObject, 2> objects = {
      {{5, "conformance/same", {&pieces[0], 1}}, {5, "conformance/same", {&pieces[1], 1}}}};
  REQUIRE(store.put_from(objects));
  CHECK(answers_of(store, 2) == std::vector<Completion>{{5, done, 300}, {5, done, 300}});
  REQUIRE(store.get_into(objects));
  CHECK(answers_of(store, 2) == std::vector<Completion>{{5, done, 300}, {5, done, 300}});
  CHECK(std::equal(memory.begin(), memory.begin() + 300, memory.begin() + 300));
  CHECK(remove(store, "conformance/same") == done);
}

/// What is removed while it is got is answered whole, or gone.
void remove_while_getting(RemoteStore& store, RemoteStore& other) {
  const std::vector<std::byte> written = bytes_of_seed(10, std::size_t{4} << 20);
  std::vector<std::byte> memory(written.size());
  const Registered registered(store, memory);
  const RemotePiece piece{memory.data(), memory.size()};
  const RemoteObject object{1, "conformance/race", {&piece, 1}};
  const RemoteKey key{2, "conformance/race"};
  for (int i = 0; i < 10; ++i) {
    REQUIRE(put(other, "conformance/race", written) == done);
    REQUIRE(store.get_into({&object, 1}));
    REQUIRE(other.remove({&key, 1}));
    const Completion got = answers_of(store, 1).front();
    CHECK(answers_of(other, 1).front().status == done);
    const bool whole = got.status == done && memory == written;
    CHECK((whole || got.status == gone));
  }
}

void limits(const MakeStore& make) {
  const std::unique_ptr<RemoteStore> store = make({.queue_bytes = 1000, .queue_requests = 3});
  std::vector<std::byte> memory = bytes_of_seed(11, 1001);
  const Registered registered(*store, memory);
  const std::array<RemotePiece, 3> pieces = {{{memory.data(), 500}, {memory.data(), 501}, {memory.data(), 1001}}};
  const std::array<RemoteObject, 3> objects = {{{1, "conformance/full1", {&pieces[0], 1}},
                                                {2, "conformance/full2", {&pieces[1], 1}},
                                                {3, "conformance/full3", {&pieces[2], 1}}}};
  CHECK_FALSE(store->put_from(std::span(objects).subspan(2)));
  CHECK_FALSE(store->put_from(std::span(objects).first(2)));
  const std::array<RemoteKey, 4> keys = {
      {{4, "conformance/full1"}, {5, "conformance/full2"}, {6, "conformance/full3"}, {7, "conformance/full4"}}};
  CHECK_FALSE(store->exists(keys));
  CHECK(store->statistics().refused_requests == 7);
  REQUIRE(store->exists(std::span(keys).first(3)));
  // Answers count until they are taken.
  CHECK_FALSE(store->put_from(std::span(objects).first(1)));
  for (const Completion& answer : answers_of(*store, 3)) CHECK(answer.status == gone);
  for (int i = 0; i < 3; ++i) {  // together more bytes than the queue takes at a time
    REQUIRE(store->put_from(std::span(objects).first(1)));
    CHECK(answers_of(*store, 1).front().status == done);
    CHECK(remove(*store, "conformance/full1") == done);
  }
  CHECK(store->statistics().refused_requests == 8);
}

/// The memory of requests that were given up is not touched any more.
void destruction(const MakeStore& make) {
  std::vector<std::byte> memory = bytes_of_seed(12, std::size_t{8} << 20);
  const std::unique_ptr<RemoteStore> other = make_store(make);
  REQUIRE(put(*other, "conformance/left", memory) == done);
  std::unique_ptr<RemoteStore> store = make_store(make);
  store->register_memory(memory);
  const RemotePiece piece{memory.data(), memory.size()};
  std::vector<RemoteObject> wanted(20, {1, "conformance/left", {&piece, 1}});
  REQUIRE(store->get_into(wanted));
  store.reset();
  std::ranges::fill(memory, std::byte{7});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{7}; }));
  // A put that was given up left nothing, or all.
  store = make_store(make);
  store->register_memory(memory);
  const RemoteObject object{1, "conformance/left2", {&piece, 1}};
  REQUIRE(store->put_from({&object, 1}));
  store.reset();
  std::vector<std::byte> read(memory.size());
  const Completion got = get(*other, "conformance/left2", read);
  const bool whole = got.status == done && read == memory;
  CHECK((whole || got.status == gone));
  static_cast<void>(remove(*other, "conformance/left2"));
  CHECK(remove(*other, "conformance/left") == done);
}

void bad_keys(RemoteStore& store) {
  const std::string longest(RemoteStore::key_bytes_max, 'k');
  const std::string longer(RemoteStore::key_bytes_max + 1, 'k');
  CHECK(exists(store, longest) == gone);
  const auto ask = [&store](std::string_view key) {
    const std::array<RemoteKey, 2> keys = {{{1, "conformance/good"}, {2, key}}};
    return [&store, keys] { return store.exists(keys); };
  };
  refuses(store, "key.size()", ask(""));
  refuses(store, "key.size()", ask(longer));
  refuses(store, "key", ask("two words"));
  refuses(store, "key", ask("line\n"));
  refuses(store, "key", ask(std::string_view("nul\0", 4)));
  refuses(store, "key", ask("caf\xc3\xa9"));
  refuses(store, "key.size()", [&] {
    const RemoteKey key{1, ""};
    return store.remove({&key, 1});
  });
}

void bad_objects(RemoteStore& store) {
  std::vector<std::byte> memory(100);
  const Registered registered(store, memory);
  const auto use = [&store](std::string_view key, std::vector<RemotePiece> pieces, bool reads) {
    return [=, &store] {
      const RemoteObject object{1, key, pieces};
      return reads ? store.get_into({&object, 1}) : store.put_from({&object, 1});
    };
  };
  const RemotePiece good{memory.data(), memory.size()};
  for (const bool reads : {false, true}) {
    refuses(store, "key.size()", use("", {good}, reads));
    refuses(store, "pieces", use("conformance/bad", {}, reads));
    refuses(store, "pieces", use("conformance/bad", {{memory.data(), 0}, {nullptr, 0}}, reads));
    refuses(store, "piece.address", use("conformance/bad", {good, {nullptr, 1}}, reads));
    refuses(store, "piece.bytes", use("conformance/bad", {good, {memory.data(), ~std::size_t{0}}}, reads));
  }
  CHECK(exists(store, "conformance/bad") == gone);
}

void registration(RemoteStore& store) {
  std::vector<std::byte> memory(3000);
  const std::span<std::byte> all(memory);
  refuses(store, "memory.size()", [&] { return store.register_memory({}), true; });
  refuses(store, "memory.size()", [&] { return store.unregister_memory(all), true; });
  store.register_memory(all.subspan(1000, 1000));
  for (const auto& other : {all, all.subspan(1000, 1000), all.subspan(1999, 5), all.subspan(999, 2)})
    refuses(store, "memory.size()", [&] { return store.register_memory(other), true; });
  refuses(store, "memory.size()", [&] { return store.unregister_memory(all.subspan(1000, 999)), true; });
  store.register_memory(all.first(1000));
  store.register_memory(all.subspan(2000));
  store.unregister_memory(all.subspan(1000, 1000));
  if (store.needs_registration()) {
    for (const auto& [begin, bytes] :
         std::vector<std::pair<std::size_t, std::size_t>>{{999, 2}, {1000, 1}, {1999, 2}}) {
      const RemotePiece piece{memory.data() + begin, bytes};
      const RemoteObject object{1, "conformance/unregistered", {&piece, 1}};
      refuses(store, "piece.bytes", [&] { return store.put_from({&object, 1}); });
      refuses(store, "piece.bytes", [&] { return store.get_into({&object, 1}); });
    }
  }
  store.unregister_memory(all.first(1000));
  store.unregister_memory(all.subspan(2000));
}

/// Many threads call two clients at a time, each with requests of its own. Whoever polls hands answers on.
void threads(RemoteStore& store, RemoteStore& other) {
  constexpr std::size_t count = 4;
  std::array<std::array<std::atomic<int>, count>, 2> answers = {};  // by client and ticket; 0: not yet
  std::array<int, count> wrong = {};
  const auto run = [&](std::size_t w) {
    const std::string key = "conformance/thread" + std::to_string(w % 2);
    const std::size_t at = w / 2;
    RemoteStore& mine = at == 0 ? store : other;
    std::vector<std::byte> bytes = bytes_of_seed(w % 2, 2000), read(2000);
    const Registered known_bytes(mine, bytes), known_read(mine, read);
    const auto answer = [&](bool accepted) {
      while (accepted && answers[at][w] == 0) {
        std::array<Completion, 2> some;
        const std::size_t taken = mine.poll(some);
        for (std::size_t i = 0; i < taken; ++i) answers[at].at(some[i].ticket) = static_cast<int>(some[i].status) + 1;
        std::this_thread::yield();
      }
      return answers[at][w].exchange(0) - 1;
    };
    const RemotePiece from{bytes.data(), bytes.size()}, to{read.data(), read.size()};
    const RemoteObject written{w, key, {&from, 1}}, wanted{w, key, {&to, 1}};
    const RemoteKey asked{w, key};
    for (int i = 0; i < 20; ++i) {
      const bool stored = answer(mine.put_from({&written, 1})) == static_cast<int>(done);
      const bool there = answer(mine.exists({&asked, 1})) == static_cast<int>(done);
      const bool got = answer(mine.get_into({&wanted, 1})) == static_cast<int>(done);
      wrong[w] += stored && there && got && read == bytes ? 0 : 1;
      static_cast<void>(mine.statistics());
    }
  };
  std::vector<std::thread> workers;
  for (std::size_t w = 0; w < count; ++w) workers.emplace_back(run, w);
  for (std::thread& worker : workers) worker.join();
  CHECK(wrong == std::array<int, count>{});
  CHECK(remove(store, "conformance/thread0") == done);
  CHECK(remove(store, "conformance/thread1") == done);
}

/// Clients put the same key at a time: one object is there afterwards, whole.
void writers_of_one_key(RemoteStore& store, RemoteStore& other) {
  std::vector<std::byte> a = bytes_of_seed(20, 300000);
  std::vector<std::byte> b = bytes_of_seed(21, 300000);
  const Registered first(store, a);
  const Registered second(other, b);
  const RemotePiece pa{a.data(), a.size()};
  const RemotePiece pb{b.data(), b.size()};
  for (int i = 0; i < 10; ++i) {
    const RemoteObject oa{1, "conformance/writers", {&pa, 1}};
    const RemoteObject ob{2, "conformance/writers", {&pb, 1}};
    REQUIRE(store.put_from({&oa, 1}));
    REQUIRE(other.put_from({&ob, 1}));
    CHECK(answers_of(store, 1).front().status == done);
    CHECK(answers_of(other, 1).front().status == done);
    std::vector<std::byte> read(300000);
    CHECK(get(store, "conformance/writers", read).status == done);
    CHECK((read == a || read == b));
    CHECK(remove(store, "conformance/writers") == done);
    CHECK(exists(other, "conformance/writers") == gone);
  }
}

void statistics(RemoteStore& store) {
  const RemoteStoreStatistics before = store.statistics();
  CHECK(put(store, "conformance/count", bytes_of_seed(1, 10)) == done);
  CHECK(exists(store, "conformance/count") == done);
  CHECK(remove(store, "conformance/count") == done);
  CHECK(exists(store, "conformance/count") == gone);
  const RemoteStoreStatistics after = store.statistics();
  CHECK(after.accepted_requests - before.accepted_requests == 4);
  CHECK(after.answers[0] - before.answers[0] == 3);
  CHECK(after.answers[static_cast<std::size_t>(gone)] - before.answers[static_cast<std::size_t>(gone)] == 1);
}

using Map = std::map<std::string, std::vector<std::byte>>;

/// A batch of different keys, so that answers do not depend on the order within it.
std::vector<std::string> some_keys(Random& random) {
  std::set<std::string> keys;
  const std::int64_t count = random.between(1, 6);
  while (std::ssize(keys) < count) keys.insert("conformance/map" + std::to_string(random.between(0, 11)));
  return {keys.begin(), keys.end()};
}

struct Batch {
  std::vector<std::string> keys;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<RemotePiece>> pieces;
  std::vector<RemoteObject> objects;
  std::vector<RemoteKey> named;
};

Batch some_batch(Random& random) {
  Batch batch{.keys = some_keys(random)};
  const std::size_t count = batch.keys.size();
  batch.memory.reserve(count);
  batch.pieces.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = static_cast<std::size_t>(random.between(1, random.chance(20) ? 200000 : 3000));
    batch.memory.push_back(bytes_of_seed(static_cast<std::uint64_t>(random.between(1, 1 << 30)), bytes));
    std::vector<std::size_t> at;
    for (std::int64_t cuts = random.between(0, 5); cuts > 0; --cuts)
      at.push_back(static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(bytes))));
    std::ranges::sort(at);
    batch.pieces.push_back(cut(batch.memory.back(), at));
    batch.objects.push_back({i, batch.keys[i], batch.pieces.back()});
    batch.named.push_back({i, batch.keys[i]});
  }
  return batch;
}

void put_batch(RemoteStore& store, const Batch& batch, Map& model) {
  REQUIRE(store.put_from(batch.objects));
  for (const Completion& answer : answers_of(store, batch.keys.size())) {
    CHECK(answer.status == done);
    CHECK(answer.bytes == batch.memory[answer.ticket].size());
    model.emplace(batch.keys[answer.ticket], batch.memory[answer.ticket]);
  }
}

void get_batch(RemoteStore& store, const Batch& batch, const Map& model) {
  REQUIRE(store.get_into(batch.objects));
  for (const Completion& answer : answers_of(store, batch.keys.size())) {
    const auto found = model.find(batch.keys[answer.ticket]);
    const std::vector<std::byte>& memory = batch.memory[answer.ticket];
    if (found == model.end()) {
      CHECK(answer == Completion{answer.ticket, gone, 0});
    } else if (found->second.size() > memory.size()) {
      CHECK(answer == Completion{answer.ticket, TransferStatus::foreign_layout, 0});
    } else {
      CHECK(answer == Completion{answer.ticket, done, found->second.size()});
      CHECK(std::ranges::equal(found->second, std::span(memory).first(found->second.size())));
    }
  }
}

void ask_batch(RemoteStore& store, const Batch& batch, Map& model, bool removes) {
  REQUIRE((removes ? store.remove(batch.named) : store.exists(batch.named)));
  for (const Completion& answer : answers_of(store, batch.keys.size())) {
    const std::string& key = batch.keys[answer.ticket];
    CHECK(answer == Completion{answer.ticket, model.contains(key) ? done : gone, 0});
    if (removes) model.erase(key);
  }
}

}  // namespace

std::vector<std::byte> bytes_of_seed(std::uint64_t seed, std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint64_t word = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::byte& byte : bytes) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    byte = static_cast<std::byte>(word >> 24);
  }
  return bytes;
}

std::vector<Completion> answers_of(RemoteStore& store, std::size_t count) {
  std::vector<Completion> answers(count);
  std::size_t taken = 0;
  while (taken < count) {
    const std::size_t got = store.poll(std::span(answers).subspan(taken));
    if (got == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    taken += got;
  }
  std::array<Completion, 1> more;
  CHECK(store.poll(more) == 0);
  std::ranges::stable_sort(answers, {}, &Completion::ticket);
  return answers;
}

TransferStatus put(RemoteStore& store, std::string_view key, std::span<const std::byte> bytes) {
  std::vector<std::byte> memory(bytes.begin(), bytes.end());
  const Registered registered(store, memory);
  const RemotePiece piece{memory.data(), memory.size()};
  const RemoteObject object{1, key, {&piece, 1}};
  REQUIRE(store.put_from({&object, 1}));
  return answers_of(store, 1).front().status;
}

Completion get(RemoteStore& store, std::string_view key, std::vector<std::byte>& bytes) {
  const Registered registered(store, bytes);
  const RemotePiece piece{bytes.data(), bytes.size()};
  const RemoteObject object{1, key, {&piece, 1}};
  REQUIRE(store.get_into({&object, 1}));
  return answers_of(store, 1).front();
}

TransferStatus exists(RemoteStore& store, std::string_view key) {
  const RemoteKey named{1, key};
  REQUIRE(store.exists({&named, 1}));
  return answers_of(store, 1).front().status;
}

TransferStatus remove(RemoteStore& store, std::string_view key) {
  const RemoteKey named{1, key};
  REQUIRE(store.remove({&named, 1}));
  return answers_of(store, 1).front().status;
}

void conforms(const MakeStore& make) {
  const std::unique_ptr<RemoteStore> store = make_store(make);
  const std::unique_ptr<RemoteStore> other = make_store(make);
  SUBCASE("an empty batch is accepted and has no answer") {
    empty_batches(*store);
  }
  SUBCASE("an object lives from its put to its removal, for all clients") {
    life_of_an_object(*store, *other);
  }
  SUBCASE("a put leaves what is there as it is") {
    write_once(*store, *other);
  }
  SUBCASE("pieces are gathered and scattered, also those without bytes") {
    many_pieces(*store);
  }
  SUBCASE("smaller memory is refused, and larger memory is filled in part") {
    other_sizes(*store);
  }
  SUBCASE("objects of one byte and of many MiB come back") {
    large_objects(*store);
  }
  SUBCASE("every request of a batch is answered once") {
    batches(*store);
  }
  SUBCASE("a batch may name a key twice") {
    same_key_twice(*store);
  }
  SUBCASE("an object that is removed while it is got is whole or gone") {
    remove_while_getting(*store, *other);
  }
  SUBCASE("a batch that does not fit into the queue is refused as a whole") {
    limits(make);
  }
  SUBCASE("destruction leaves no request that touches memory") {
    destruction(make);
  }
  SUBCASE("keys that no store takes are refused") {
    bad_keys(*store);
  }
  SUBCASE("objects without bytes and pieces without memory are refused") {
    bad_objects(*store);
  }
  SUBCASE("memory is registered once, and unregistered as it was registered") {
    registration(*store);
  }
  SUBCASE("threads share a client") {
    threads(*store, *other);
  }
  SUBCASE("of two writers of one key one object is kept") {
    writers_of_one_key(*store, *other);
  }
  SUBCASE("requests are counted by their answer") {
    statistics(*store);
  }
}

void behaves_like_a_map(const MakeStore& make, Random& random, int steps) {
  const std::array<std::unique_ptr<RemoteStore>, 2> clients = {make_store(make), make_store(make)};
  Map model;
  for (int step = 0; step < steps; ++step) {
    RemoteStore& store = *clients[random.chance(50) ? 0 : 1];
    Batch batch = some_batch(random);
    std::vector<std::unique_ptr<Registered>> registered;
    for (std::vector<std::byte>& memory : batch.memory)
      registered.push_back(std::make_unique<Registered>(store, memory));
    const std::int64_t what = random.between(0, 9);
    if (what < 3) {
      put_batch(store, batch, model);
    } else if (what < 7) {
      get_batch(store, batch, model);
    } else {
      ask_batch(store, batch, model, what < 9);
    }
  }
  for (const auto& [key, bytes] : model) CHECK(remove(*clients[0], key) == done);
}

}  // namespace stateport::test
