// SPDX-License-Identifier: Apache-2.0
// Transfers with files, whose requests end when the test says so.
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;
using test::copy_down;
using test::drop_from;
using test::kv_image;
using test::load_from;
using test::state_image;
using test::store_to;
using test::TransferRig;
using enum Medium;
using enum TransferStatus;
using Results = std::vector<TransferResult>;

namespace {

/// Puts an image into a file, and nowhere else.
void put_into_file(TransferRig& rig, const ImageKey& key) {
  rig.compute(0, key);
  rig.execute({store_to(file, 1000, key, 0)});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{1000, done}});
}

}  // namespace

TEST_CASE("a copy to a file begins when the image is there, and host memory keeps it") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0), copy_down(2, a), copy_down(3, state_image(2))});
  CHECK(rig.poll() == Results{{3, gone}});
  CHECK(rig.files.waiting() == 0);
  rig.lane->advance();
  CHECK(rig.poll() == Results{{1, done}});
  CHECK(rig.files.waiting() == 1);
  rig.execute({load_from(host, 4, a, 5)});
  CHECK(rig.poll() == Results{{4, done}});
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{2, done}});
  CHECK(rig.files.wrong_images == 0);
  CHECK(rig.files.held.contains(a));
  CHECK(rig.host.find(a).valid());
  rig.lane->advance();
  CHECK(rig.of(a).holds(5, a));
}

TEST_CASE("an image that is dropped while a file is written of it stays until the file is there") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1), b = state_image(2);
  rig.compute(0, a);
  rig.execute({store_to(host, 1, a, 0), copy_down(2, a), drop_from(host, a), store_to(host, 3, b, 0)});
  rig.lane->advance();
  CHECK(rig.poll() == Results{{3, no_room}, {1, gone}});
  CHECK_FALSE(rig.host.find(a).valid());
  rig.execute({store_to(host, 4, b, 0)});
  CHECK(rig.poll() == Results{{4, no_room}});
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{2, done}});
  CHECK(rig.files.wrong_images == 0);
  rig.execute({store_to(host, 5, b, 0)});
  rig.lane->advance();
  CHECK(rig.poll() == Results{{5, done}});
}

TEST_CASE("a load from a file is answered when its copy is enqueued, and a bad file by its reason") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1);
  put_into_file(rig, a);
  rig.execute({load_from(file, 1, a, 3), load_from(file, 2, state_image(2), 4)});
  CHECK(rig.poll().empty());
  rig.files.finish(0);
  CHECK(rig.poll() == Results{{1, done}});
  rig.lane->advance();
  CHECK(rig.of(a).holds(3, a));
  CHECK(rig.poll().empty());
  rig.files.finish(0);
  CHECK(rig.poll() == Results{{2, gone}});
  for (const TransferStatus status : {damaged, foreign_layout, wrong_position, failed}) {
    rig.execute({load_from(file, 5, a, 5)});
    rig.files.finish(0, status);
    CHECK(rig.poll() == Results{{5, status}});
  }
  CHECK(rig.host.usage().staging_images == 0);
}

TEST_CASE("an image from a file that is not what its key says is not loaded") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1), b = state_image(2);
  put_into_file(rig, a);
  put_into_file(rig, b);
  rig.files.held[a] = rig.files.held[b];
  const int launches = rig.lane->launches;
  rig.execute({load_from(file, 1, a, 3)});
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{1, wrong_position}});
  CHECK(rig.lane->launches == launches);
  CHECK(rig.host.usage().staging_images == 0);
}

TEST_CASE("loads wait for staging memory in their order, and stores to files do not go before them") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1), b = state_image(2), c = state_image(3, 1);
  put_into_file(rig, a);
  put_into_file(rig, b);
  rig.execute({load_from(file, 1, a, 1), load_from(file, 2, b, 2), store_to(file, 3, c, 0)});
  CHECK(rig.poll() == Results{{3, no_room}});
  CHECK(rig.files.waiting() == 1);
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{1, done}});
  // The copy to the device still reads the staging memory.
  CHECK(rig.files.waiting() == 0);
  rig.lane->advance();
  CHECK(rig.poll().empty());
  CHECK(rig.files.waiting() == 1);
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{2, done}});
  rig.lane->advance();
  CHECK(rig.of(a).holds(1, a));
  CHECK(rig.of(b).holds(2, b));
}

TEST_CASE("blocks that wait behind each other share a file, up to its size, and a state has its own") {
  TransferRig rig(4, 1);
  const std::size_t block_bytes = rig.layout(kv_image(1)).image_bytes();
  TransferRig small(4, 1, {.kv_bytes_together = 3 * block_bytes});
  for (TransferRig* each : {&rig, &small}) {
    std::vector<Transfer> plan;
    for (std::int32_t i = 0; i < 7; ++i) {
      const ImageKey key = kv_image(static_cast<std::uint64_t>(i));
      each->compute(i, key);
      plan.push_back(store_to(host, 2 * plan.size() + 1, key, i));
    }
    each->compute(7, state_image(1));
    plan.push_back(store_to(host, 100, state_image(1), 7));
    for (std::uint64_t i = 0; i < 5; ++i) plan.push_back(copy_down(200 + i, kv_image(i)));
    plan.push_back(copy_down(300, state_image(1)));
    for (std::uint64_t i = 5; i < 7; ++i) plan.push_back(copy_down(200 + i, kv_image(i)));
    // Once more: it may not be in a file twice.
    plan.push_back(copy_down(400, kv_image(6)));
    each->execute(plan);
    each->lane->advance();
    CHECK(each->poll().size() == 8);
    CHECK(each->files.write_requests == (each == &rig ? 4 : 5));
    CHECK(each->files.largest_file == (each == &rig ? 5 : 3));
    each->files.finish_all();
    CHECK(each->poll().size() == 9);
    CHECK(each->files.held.size() == 8);
    CHECK(each->files.wrong_images == 0);
  }
}

TEST_CASE("all transfers of a file that fails fail, and host memory keeps their images") {
  TransferRig rig(4, 1);
  for (std::int32_t i = 0; i < 3; ++i) rig.compute(i, kv_image(static_cast<std::uint64_t>(i)));
  rig.execute(
      {store_to(host, 1, kv_image(0), 0), store_to(host, 2, kv_image(1), 1), store_to(file, 3, kv_image(2), 2)});
  rig.lane->advance();
  static_cast<void>(rig.poll());
  rig.files.finish_all();
  rig.execute({copy_down(4, kv_image(0)), copy_down(5, kv_image(1))});
  rig.files.finish(0, failed);
  CHECK(rig.poll() == Results{{3, done}, {4, failed}, {5, failed}});
  CHECK(rig.host.usage().images == 2);
  CHECK(rig.files.held.size() == 1);
}

TEST_CASE("what the files refuse waits for what they do, and has no room when they do nothing") {
  TransferRig rig(4, 4);
  for (std::int32_t i = 0; i < 4; ++i) rig.compute(i, state_image(static_cast<std::uint64_t>(i)));
  std::vector<Transfer> plan;
  for (std::int32_t i = 0; i < 4; ++i)
    plan.push_back(store_to(file, static_cast<TransferId>(i), state_image(static_cast<std::uint64_t>(i)), i));
  rig.execute(plan);
  rig.files.queue_max = 1;
  rig.lane->advance();
  CHECK(rig.poll().empty());
  CHECK(rig.files.waiting() == 1);
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{0, done}});
  CHECK(rig.files.waiting() == 1);
  rig.files.queue_max = 0;
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{1, done}, {2, no_room}, {3, no_room}});
  rig.execute({load_from(file, 4, state_image(0), 5)});
  CHECK(rig.poll() == Results{{4, no_room}});
  rig.files.queue_max = 1;
  rig.execute({load_from(file, 5, state_image(0), 5), load_from(file, 6, state_image(1), 6)});
  CHECK(rig.poll().empty());
  CHECK(rig.files.waiting() == 1);
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{5, done}});
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{6, done}});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  CHECK(rig.executor->in_flight() == 0);
  CHECK(rig.host.usage().staging_images == 0);
}

TEST_CASE("a file of many blocks that has no room is tried with each of them") {
  TransferRig rig(4, 1);
  for (std::int32_t i = 0; i < 3; ++i) rig.compute(i, kv_image(static_cast<std::uint64_t>(i)));
  rig.execute(
      {store_to(file, 1, kv_image(0), 0), store_to(file, 2, kv_image(1), 1), store_to(file, 3, kv_image(2), 2)});
  rig.files.images_max = 1;
  rig.lane->advance();
  CHECK(rig.poll().empty());
  CHECK(rig.files.waiting() == 3);
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{1, done}, {2, done}, {3, done}});
}

TEST_CASE("no store or copy to a file begins while more transfers are under way than the option says, but every load") {
  TransferRig rig(4, 4, {.transfers_max = 2});
  rig.compute(0, state_image(0));
  rig.execute({store_to(file, 1, state_image(0), 0), load_from(file, 2, state_image(1), 1),
               store_to(file, 3, state_image(2), 0), load_from(file, 4, state_image(3), 2)});
  CHECK(rig.poll() == Results{{3, no_room}});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{2, gone}, {4, gone}, {1, done}});
  rig.execute({store_to(file, 5, state_image(4), 0), store_to(file, 6, state_image(5), 0),
               store_to(file, 7, state_image(6), 0), store_to(host, 8, state_image(7), 0),
               copy_down(9, state_image(7))});
  CHECK(rig.poll() == Results{{7, no_room}, {9, no_room}});
}

TEST_CASE("a load of more images than may be under way gets them all") {
  TransferRig rig(2, 2, {.transfers_max = 1});
  std::vector<Transfer> loads;
  Results all;
  for (std::int32_t slot = 0; slot < TransferRig::slots; ++slot) {
    const auto id = static_cast<TransferId>(slot) + 1;
    put_into_file(rig, kv_image(id));
    loads.push_back(load_from(file, id, kv_image(id), slot));
    all.push_back({id, done});
  }
  rig.execute(loads);
  Results answers;
  for (std::int32_t round = 0; round < 2 * TransferRig::slots; ++round) {
    rig.files.finish_all();
    for (const TransferResult& result : rig.poll()) answers.push_back(result);
    rig.lane->advance();
  }
  CHECK(answers == all);
  for (std::int32_t slot = 0; slot < TransferRig::slots; ++slot)
    CHECK(rig.of(kv_image(1)).holds(slot, kv_image(static_cast<std::uint64_t>(slot) + 1)));
}

TEST_CASE("a drop of a file comes behind the loads and stores before it") {
  TransferRig rig(1, 1);
  const ImageKey a = state_image(1), b = state_image(2);
  put_into_file(rig, a);
  put_into_file(rig, b);
  // The second load waits for staging memory, and the drop for that load.
  rig.execute({load_from(file, 1, b, 1), load_from(file, 2, a, 2), drop_from(file, a)});
  CHECK(rig.files.held.contains(a));
  for (int round = 0; round < 4; ++round) {
    rig.files.finish_all();
    static_cast<void>(rig.poll());
    rig.lane->advance();
  }
  CHECK(rig.of(a).holds(2, a));
  CHECK_FALSE(rig.files.held.contains(a));
  CHECK(rig.executor->in_flight() == 0);
  // The same for a store whose copy is not done yet.
  rig.compute(0, a);
  rig.execute({store_to(file, 3, a, 0), drop_from(file, a)});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  rig.files.finish_all();
  CHECK(rig.poll() == Results{{3, done}});
  CHECK_FALSE(rig.files.held.contains(a));
}

TEST_CASE("a store behind a drop that waits takes it back, and makes up for it when it fails") {
  for (const TransferStatus status : {done, failed}) {
    TransferRig rig(1, 2);
    const ImageKey a = state_image(1);
    rig.compute(0, a);
    rig.execute({store_to(file, 1, a, 0), drop_from(file, a), store_to(file, 2, a, 0)});
    rig.lane->advance();
    CHECK(rig.poll().empty());
    rig.files.finish(0);
    rig.files.finish(0, status);
    CHECK(rig.poll() == Results{{1, done}, {2, status}});
    CHECK(rig.files.held.contains(a) == (status == done));
  }
}

TEST_CASE("what is under way with files may be given up") {
  TransferRig rig(2, 2);
  rig.compute(0, state_image(1));
  rig.execute({store_to(file, 1, state_image(1), 0), load_from(file, 2, state_image(2), 1)});
  rig.lane->advance();
  CHECK(rig.poll().empty());
  CHECK(rig.executor->in_flight() == 2);
}
