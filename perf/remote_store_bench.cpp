// SPDX-License-Identifier: Apache-2.0
// The cost of a RemoteStore beyond the copy of an object's bytes: one object of 64 MiB in process, against memcpy into
// memory that is new each time (put) or warm (get); and 1,000 questions in one batch.
#include <stateport/tiers/in_process_store.hpp>

#include "comparison.hpp"

#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::perf {
namespace {

constexpr std::size_t object_bytes = std::size_t{64} << 20;
constexpr int rounds = 31;

void require_true(bool ok) {
  if (!ok) throw std::runtime_error("the store refuses a request");
}

class Bench {
 public:
  Bench() : memory_(object_bytes), copy_(object_bytes) {
    std::uint64_t word = 1;
    for (std::byte& byte : memory_) byte = static_cast<std::byte>((word = word * 6364136223846793005ULL + 1) >> 56);
  }

  void put() {
    const RemoteObject object{1, "object", {&piece_, 1}};
    require_true(store_.put_from({&object, 1}));
    take_one();
  }
  void get() {
    const RemotePiece piece{copy_.data(), copy_.size()};
    const RemoteObject object{1, "object", {&piece, 1}};
    require_true(store_.get_into({&object, 1}));
    take_one();
  }
  void remove() {
    const RemoteKey key{1, "object"};
    require_true(store_.remove({&key, 1}));
    take_one();
  }
  void copy() {
    std::memcpy(copy_.data(), memory_.data(), object_bytes);
    benchmark::ClobberMemory();
  }
  void copy_to_new() {
    std::vector<std::byte> copy(memory_.begin(), memory_.end());
    benchmark::DoNotOptimize(copy.data());
  }

 private:
  void take_one() {
    Completion answer;
    require_true(store_.poll({&answer, 1}) == 1 && answer.status == TransferStatus::done);
  }

  std::vector<std::byte> memory_;
  std::vector<std::byte> copy_;
  RemotePiece piece_{memory_.data(), memory_.size()};
  InProcessStore store_{std::make_shared<InProcessObjects>(std::uint64_t{1} << 30)};
};

void put_in_process(benchmark::State& state) {
  Bench bench;
  const Timer timer = [&bench](const Contender& contender, int round) {
    const double time_ns = wall_time_ns(contender, round);
    if (contender.name == "ours") bench.remove();
    return time_ns;
  };
  report(state, {{"ours", [&](int) { bench.put(); }}, {"memcpy_to_new", [&](int) { bench.copy_to_new(); }}},
         object_bytes, rounds, timer);
}

void get_in_process(benchmark::State& state) {
  Bench bench;
  bench.put();
  report(state, {{"ours", [&](int) { bench.get(); }}, {"memcpy", [&](int) { bench.copy(); }}}, object_bytes, rounds);
}

void ask_1000_in_process(benchmark::State& state) {
  constexpr std::size_t count = 1000;
  const auto objects = std::make_shared<InProcessObjects>(std::uint64_t{1} << 30);
  InProcessStore store(objects);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i)
    names.push_back("stateport/1/0123456789abcdef/state/0/4096/fedcba9876543210/" + std::to_string(i));
  std::vector<RemoteKey> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back({i, names[i]});
  std::vector<Completion> answers(count);
  report(state, {{"ours",
                  [&](int) {
                    require_true(store.exists(keys));
                    require_true(store.poll(answers) == count);
                  }},
                 {"bare_lookups", [&](int) {
                    for (const RemoteKey& key : keys) benchmark::DoNotOptimize(objects->contains(key.key));
                  }}});
}

BENCHMARK(put_in_process)->Iterations(1)->UseManualTime();
BENCHMARK(get_in_process)->Iterations(1)->UseManualTime();
BENCHMARK(ask_1000_in_process)->Iterations(1)->UseManualTime();

}  // namespace
}  // namespace stateport::perf

BENCHMARK_MAIN();
