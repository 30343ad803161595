// SPDX-License-Identifier: Apache-2.0
// Machines that share checkpoints through a store, whatever their tensor-parallel sizes, layouts and element types.
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/resharder.hpp>
#include <stateport/tiers/in_process_store.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "random_layout.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"
#include "temporary_folder.hpp"
#include "transfer_keys.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

using namespace stateport;
using test::kv_image;
using test::Random;
using test::state_image;
using test::StoreImage;
using enum TransferStatus;

namespace {

constexpr std::int32_t heads = 24;

std::vector<TransferStatus> statuses_of_all(StateTiers& tiers, const Stream& stream) {
  std::vector<TransferResult> all, some(3);
  while (tiers.in_flight() > 0) {
    stream.synchronize();
    const std::size_t count = tiers.poll(stream, some);
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
    tiers.check_invariants();
  }
  std::ranges::sort(all, {}, &TransferResult::id);
  std::vector<TransferStatus> statuses;
  for (const TransferResult& result : all) statuses.push_back(result.status);
  return statuses;
}

/// A model, and how its KV is shared.
struct SharedModel {
  ModelLayout states;
  ModelLayout kv;
};

SharedModel random_model(Random& random) {
  const std::int64_t head_dim = random.between(1, 3);
  const std::int64_t state_dim = 32 * random.between(1, 2);
  const SplitBand per_head{.extent = heads * head_dim, .parts = heads};
  const std::int32_t groups = random.chance(50) ? 1 : 12;
  const SplitBand per_group{.extent = groups * state_dim, .parts = groups};
  const ConvShape conv{.window = 3, .dim = per_head.extent + 2 * per_group.extent};
  return {.states = ModelLayout(StateSpec::uniform(2, conv, {.shape = {heads, head_dim, state_dim}}),
                                {.axis = 1, .bands = {per_head, per_group, per_group}},
                                {.axis = 0, .bands = {{.extent = heads, .parts = heads}}}),
          .kv = ModelLayout(StateSpec({{.type = ElementType::bf16, .shape = {6, 12, 8}}}),
                            {{.axis = 1, .bands = {{.extent = 12, .parts = 12}}}})};
}

StateSpec as_ds(const StateSpec& spec) {
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  for (StateTensorSpec& tensor : tensors)
    if (tensor.kind == StateKind::conv) tensor.strides = ConvStrides::of(ConvLayout::ds, tensor.window(), tensor.dim());
  return StateSpec(std::move(tensors));
}

/// One rank of a machine: its store of states and KV, and its tiers.
struct TiersRank {
  Stream stream = Stream::default_stream();
  StoreImage states;
  StoreImage kv;
  StateStore state_store;
  StateStore kv_store;
  InProcessStore client;
  PinnedResource memory;
  StateTiers tiers;

  TiersRank(Random& random, const RemoteOptions& remote, bool is_ds, std::shared_ptr<InProcessObjects> objects,
            StateTiersOptions options)
      : states(random, spec_of(remote.states[0], is_ds), {.slots = 4}),
        kv(random, spec_of(*remote.kv, false), {.slots = 4}),
        state_store(states.upload(stream)),
        kv_store(kv.upload(stream)),
        client(std::move(objects), {.needs_registration = true}),
        tiers(memory, with_stores(std::move(options), remote)) {}

  static StateSpec spec_of(const SharedLayout& shared, bool is_ds) {
    const StateSpec spec = shared.layout.spec_of(shared.shard);
    return is_ds ? as_ds(spec) : spec;
  }
  StateTiersOptions with_stores(StateTiersOptions options, const RemoteOptions& remote) {
    options.states = {&state_store};
    options.kv = &kv_store;
    options.remote = remote;
    options.remote->store = &client;
    return options;
  }
  TransferStatus find(const ImageKey& key) {
    tiers.find(stream, {&key, 1});
    return statuses_of_all(tiers, stream).at(0);
  }
  TransferStatus put(const ImageKey& key, std::int32_t slot, Medium to = Medium::remote) {
    const SlotImage image{key, SlotId{slot}};
    tiers.put(stream, {&image, 1}, to);
    return statuses_of_all(tiers, stream).at(0);
  }
  TransferStatus get(const ImageKey& key, std::int32_t slot) {
    tiers.get(stream, key, SlotId{slot});
    return statuses_of_all(tiers, stream).at(0);
  }
  /// One transfer, and how it ended.
  TransferStatus run(Transfer transfer) {
    transfer.id = 1;
    tiers.execute(stream, {&transfer, 1});
    return statuses_of_all(tiers, stream).at(0);
  }
};

/// A tensor-parallel group.
struct Machine {
  std::vector<std::unique_ptr<TiersRank>> ranks;
  std::vector<ModelShard> shards;

  Machine(Random& random, const SharedModel& model, std::int32_t size, bool is_ds, RemoteOptions remote,
          const std::shared_ptr<InProcessObjects>& objects, const StateTiersOptions& options = {}) {
    for (std::int32_t rank = 0; rank < size; ++rank) {
      remote.states = {{model.states, {0, 2, rank, size}}};
      remote.kv = SharedLayout{model.kv, {0, 1, rank, size}};
      ranks.push_back(std::make_unique<TiersRank>(random, remote, is_ds, objects, options));
    }
  }
  [[nodiscard]] std::vector<ShardStore> stores(bool of_kv) const {
    std::vector<ShardStore> result;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      result.push_back({of_kv ? &ranks[rank]->kv_store : &ranks[rank]->state_store,
                        {0, of_kv ? 1 : 2, static_cast<std::int32_t>(rank), static_cast<std::int32_t>(ranks.size())}});
    return result;
  }
  /// The answer of every rank.
  template <class Call>
  TransferStatus all(Call&& call) {
    const TransferStatus first = call(*ranks[0]);
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) REQUIRE(call(*ranks[rank]) == first);
    return first;
  }
};

/// Its client fails when memory is to be unregistered.
class ClingingStore final : public RemoteStore {
 public:
  int refused = 0;

 private:
  void do_unregister(std::span<std::byte>) override {
    ++refused;
    throw BackendError("unregister_memory", "refused by the test");
  }
};

using Contents = std::vector<std::vector<std::byte>>;  // by tensor

/// What slot 0 of an image holds, which has no gaps.
Contents contents_of(StoreImage& image) {
  Contents contents;
  for (std::size_t i = 0; i < image.tensor_count(); ++i)
    contents.emplace_back(image.slot(i, 0), image.slot(i, 0) + image.tensor(i).natural_bytes());
  return contents;
}

/// A state or a KV block in one piece.
struct Whole {
  Stream stream = Stream::default_stream();
  StoreImage image;
  StateStore store;

  Whole(Random& random, const StateSpec& spec) : image(random, spec, {.slots = 1}), store(image.upload(stream)) {}
  [[nodiscard]] Contents contents() const {
    Contents contents;
    for (const StateTensorView& tensor : store.tensors()) {
      std::vector<std::byte>& bytes = contents.emplace_back(tensor.spec.natural_bytes());
      copy_bytes(stream, bytes.data(), tensor.slot_data(SlotId{0}), bytes.size());
    }
    stream.synchronize();
    return contents;
  }
};

}  // namespace

TEST_CASE("what one machine computed another one hits, whatever their sizes, layouts and element types") {
  test::for_each_seed(40, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const SharedModel model = random_model(random);
    constexpr std::pair<std::int32_t, std::int32_t> sizes[] = {{4, 2}, {2, 4}, {3, 1}, {1, 3}, {4, 4}, {6, 4}};
    const auto [writers, readers] = sizes[random.between(0, 5)];
    const bool int8 = random.chance(50);
    RemoteOptions remote{.grid = {.head_groups = 12, .layers_per_object = random.between32(0, 2)},
                         .staging_bytes = std::size_t{4} << 20};
    if (int8) remote.encodings = {{.recurrent = ElementType::int8_block32}};
    const auto objects = std::make_shared<InProcessObjects>(1 << 30);
    Machine a(random, model, writers, random.chance(50), remote, objects);
    if (int8 && random.chance(50)) remote.encodings.insert(remote.encodings.begin(), ObjectEncoding{});
    Machine b(random, model, readers, random.chance(50), remote, objects);

    // A state and a block of KV, unsharded, as the first machine computes them in its slots 1.
    Whole state(random, model.states.whole()), block(random, model.kv.whole());
    const SlotCopy into[] = {SlotCopy::whole(0, 1)}, out_of[] = {SlotCopy::whole(2, 0)};
    const ShardStore whole_state{&state.store, {}}, whole_block{&block.store, {}};
    Resharder(model.states, {&whole_state, 1}, a.stores(false)).copy_slots(stream, into);
    Resharder(model.kv, {&whole_block, 1}, a.stores(true)).copy_slots(stream, into);
    stream.synchronize();

    CHECK(b.all([](TiersRank& rank) { return rank.find(state_image(1)); }) == gone);
    CHECK(b.all([](TiersRank& rank) { return rank.get(state_image(1), 2); }) == gone);
    CHECK(a.all([](TiersRank& rank) { return rank.put(state_image(1), 1); }) == done);
    CHECK(a.all([](TiersRank& rank) { return rank.put(kv_image(1), 1); }) == done);
    for (const ImageKey& key : {state_image(1), kv_image(1)}) {
      CHECK(b.all([&](TiersRank& rank) { return rank.find(key); }) == done);
      CHECK(b.all([&](TiersRank& rank) { return rank.get(key, 2); }) == done);
    }
    CHECK(b.all([](TiersRank& rank) { return rank.get(state_image(2), 2); }) == gone);
    CHECK(b.all([](TiersRank& rank) { return rank.get(state_image(1), 2); }) == done);

    Whole got_state(random, model.states.whole()), got_block(random, model.kv.whole());
    const ShardStore back_state{&got_state.store, {}}, back_block{&got_block.store, {}};
    Resharder(model.states, b.stores(false), {&back_state, 1}).copy_slots(stream, out_of);
    Resharder(model.kv, b.stores(true), {&back_block, 1}).copy_slots(stream, out_of);
    stream.synchronize();
    CHECK(got_block.contents() == block.contents());
    // Rounded once, as the unsharded state would be.
    Contents expected = state.contents();
    if (int8) {
      StoreImage rounded(random, quantised(model.states.whole(), ElementType::int8_block32), {.slots = 1});
      StoreImage restored(random, model.states.whole(), {.slots = 1});
      const SlotCopy one[] = {SlotCopy::whole(0, 0)};
      test::reference::copy_slots(state.image, rounded, one);
      test::reference::copy_slots(rounded, restored, one);
      expected = contents_of(restored);
    }
    CHECK(got_state.contents() == expected);
  });
}

TEST_CASE("images of host memory and of files go to the remote tier, and come back from it") {
  Random random(7);
  const test::TemporaryFolder folder;
  const SharedModel model = random_model(random);
  const auto objects = std::make_shared<InProcessObjects>(1 << 30);
  const RemoteOptions remote{.grid = {.head_groups = 3}, .staging_bytes = std::size_t{4} << 20};
  Machine far(random, model, 1, true, remote, objects);
  Machine near(random, model, 1, false, remote, objects,
               {.host_budget_bytes = std::size_t{4} << 20,
                .files = FileTierOptions{.folder = folder.images(), .capacity_bytes = 64 << 20}});
  TiersRank& rank = *near.ranks[0];
  const ImageKey host_key = state_image(1), file_key = state_image(2), nowhere = state_image(3);
  REQUIRE(rank.put(host_key, 1, Medium::host) == done);
  REQUIRE(rank.put(file_key, 2, Medium::file) == done);
  CHECK(rank.run(test::copy_down(0, host_key, Medium::host, Medium::remote)) == done);
  CHECK(rank.run(test::copy_down(0, file_key, Medium::file, Medium::remote)) == done);
  CHECK(rank.run(test::copy_down(0, nowhere, Medium::host, Medium::remote)) == gone);
  CHECK(rank.run(test::copy_down(0, nowhere, Medium::file, Medium::remote)) == gone);
  const std::pair<ImageKey, std::int32_t> expected[] = {{host_key, 1}, {file_key, 2}};
  for (const auto& [key, slot] : expected) {
    TiersRank& reader = *far.ranks[0];
    REQUIRE(reader.get(key, 0) == done);
    Whole read(random, model.states.whole()), written(random, model.states.whole());
    const SlotCopy from_reader[] = {SlotCopy::whole(0, 0)}, from_writer[] = {SlotCopy::whole(slot, 0)};
    Resharder(model.states, far.stores(false)[0], ShardStore{&read.store, {}}).copy_slots(reader.stream, from_reader);
    Resharder(model.states, near.stores(false)[0], ShardStore{&written.store, {}}).copy_slots(rank.stream, from_writer);
    rank.stream.synchronize();
    CHECK(read.contents() == written.contents());
  }
}

TEST_CASE("a store that does not let go of memory does not end the program") {
  Random random(4);
  const SharedModel model = random_model(random);
  const RemoteOptions remote{.states = {{model.states}}, .kv = SharedLayout{model.kv}, .staging_bytes = 4 << 20};
  const TiersRank sample(random, remote, false, std::make_shared<InProcessObjects>(1 << 30), {});
  ClingingStore store;
  PinnedResource memory;
  {
    StateTiersOptions options{.states = {&sample.state_store}, .kv = &sample.kv_store, .remote = remote};
    options.remote->store = &store;
    const StateTiers tiers(memory, options);
  }
  CHECK(store.refused == 1);
}

TEST_CASE("a remote tier refuses options that do not fit, and calls that need one") {
  Random random(3);
  const SharedModel model = random_model(random);
  const auto objects = std::make_shared<InProcessObjects>(1 << 30);
  const RemoteOptions good{.states = {{model.states}}, .kv = SharedLayout{model.kv}, .staging_bytes = 4 << 20};
  const TiersRank sample(random, good, false, objects, {});
  InProcessStore client(objects, {.needs_registration = true});
  PinnedResource memory;
  const auto refused = [&](auto&& change) -> std::string {
    StateTiersOptions options{.states = {&sample.state_store}, .kv = &sample.kv_store, .remote = good};
    options.remote->store = &client;
    change(options);
    try {
      StateTiers(memory, options);
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return {};
  };
  CHECK(refused([](auto&) {}).empty());
  CHECK(refused([](auto& options) { options.remote->store = nullptr; }) == "remote.store");
  CHECK(refused([](auto& options) { options.remote->states.clear(); }) == "remote.states");
  CHECK(refused([](auto& options) { options.remote->kv.reset(); }) == "remote.kv");
  CHECK(refused([](auto& options) { options.kv = nullptr; }) == "remote.kv");
  CHECK(refused([](auto& options) { options.remote->encodings.clear(); }) == "remote.encodings");
  CHECK(refused([](auto& options) { options.remote->staging_bytes = 0; }) == "remote.staging_bytes");
  CHECK(refused([](auto& options) { options.remote->grid.head_groups = 5; }) == "shard.head_groups");
  CHECK(refused([](auto& options) { options.remote->states[0].shard = {0, 2, 0, 2}; }) == "grid.head_groups");
  InProcessStore narrow(objects, {.limits = {.queue_bytes = 1}});
  CHECK(refused([&](auto& options) { options.remote->store = &narrow; }) == "queue_bytes");
  CHECK(refused([](auto& options) { options.remote.reset(); }) == "host_budget_bytes");
  // The store of another refusal is not left registered.
  CHECK(refused([](auto&) {}).empty());

  StateTiers plain(memory, {.states = {&sample.state_store}, .host_budget_bytes = 8 << 20});
  CHECK(plain.remote() == nullptr);
  const ImageKey key = state_image(1);
  CHECK_THROWS_AS(plain.find(Stream::default_stream(), {&key, 1}), InvalidState);
}
