// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/image_cache.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

using Kind = Transfer::Kind;
using Status = TransferStatus;
using Keys = std::vector<ImageKey>;
using Names = std::vector<std::string>;

ImageKey kv(std::uint64_t number) {
  return {.prefix = {{number, 0}}, .content = CacheContent::kv_block};
}
Keys kvs(std::uint64_t first, std::uint64_t last) {
  Keys keys;
  for (std::uint64_t number = first; number <= last; ++number) keys.push_back(kv(number));
  return keys;
}
std::vector<std::int32_t> places(const Keys& keys) {
  std::vector<std::int32_t> numbers;
  for (const ImageKey& key : keys) numbers.push_back(static_cast<std::int32_t>(key.prefix.words[0]));
  return numbers;
}
const char* name_of(Medium medium) {
  return std::vector{"device", "host", "file", "remote"}[static_cast<std::size_t>(medium)];
}

/// A cache, and the transfers that it has named and that are not answered.
class Watched {
 public:
  explicit Watched(const ImageCacheOptions& options) : cache(options) {}

  /// The transfers of the plan as text: "store 3 host", "copy 3 host file", "drop 3 host".
  Names took(const ImagePlan& plan) {
    Names names;
    if (plan.request.valid()) request = plan.request;
    for (const Transfer& transfer : plan.transfers) {
      const std::string image = std::to_string(transfer.image.prefix.words[0]);
      const auto kind = static_cast<std::size_t>(transfer.kind);
      std::string text = std::vector{"store ", "load ", "copy ", "drop ", "find "}[kind] + image;
      if (transfer.kind == Kind::copy || transfer.kind == Kind::load) text += std::string(" ") + name_of(transfer.from);
      if (transfer.kind != Kind::load) text += std::string(" ") + name_of(transfer.to);
      if (transfer.kind != Kind::drop) under_way.push_back(transfer);
      names.push_back(text);
    }
    for (const EndedImages& images : plan.ended) ended.push_back(images);
    cache.check_invariants();
    return names;
  }
  Names put(const Keys& keys) { return took(cache.put(keys, places(keys))); }
  Names get(const Keys& keys) { return took(cache.get(keys, places(keys))); }
  /// Ends the oldest transfer.
  Names end(Status status = Status::done) {
    const TransferResult result{under_way.front().id, status};
    under_way.erase(under_way.begin());
    return took(cache.settle({&result, 1}));
  }
  /// Ends all transfers, and those that follow from them.
  Names end_all() {
    Names names;
    while (!under_way.empty())
      for (std::string& name : end()) names.push_back(std::move(name));
    return names;
  }
  /// Of the last request; -1: it has not ended.
  std::int64_t missing() const {
    for (const EndedImages& images : ended)
      if (images.request == request) return images.missing;
    return -1;
  }
  std::string where(std::uint64_t number) const {
    std::optional<Medium> where;
    const ImageKey key = kv(number);
    cache.find({&key, 1}, {&where, 1});
    return where ? name_of(*where) : "nowhere";
  }

  ImageCache cache;
  std::vector<Transfer> under_way;
  std::vector<EndedImages> ended;
  RequestId request;
};

constexpr ImageCacheOptions host_of(std::int64_t images) {
  return {.host_bytes = images * 10, .kv_image_bytes = 10};
}

}  // namespace

TEST_CASE("an image is there once its store is done, and is loaded from there") {
  Watched watched(host_of(4));
  CHECK(watched.get({kv(1)}).empty());
  CHECK(watched.missing() == 1);
  CHECK(watched.put({kv(1), kv(2)}) == Names{"store 2 host", "store 1 host"});
  CHECK(watched.under_way[1].place == 1);
  CHECK(watched.cache.find(kvs(1, 2)) == 0);
  CHECK(watched.put({kv(1)}).empty());
  CHECK(watched.missing() == 0);  // it is on its way
  CHECK(watched.end().empty());
  CHECK(watched.cache.find(kvs(1, 2)) == 0);
  CHECK(watched.end().empty());
  CHECK(watched.ended.back().missing == 0);
  CHECK(watched.cache.find(kvs(1, 3)) == 2);
  CHECK(watched.get(kvs(1, 3)) == Names{"load 1 host", "load 2 host"});
  CHECK(watched.under_way[0].request == watched.request);
  watched.end_all();
  CHECK(watched.missing() == 1);
  CHECK(watched.cache.usage(Medium::host).read_images == 2);
}

TEST_CASE("a full tier evicts the images that were unused for longest, the last ones of a call first") {
  Watched watched(host_of(4));
  watched.put(kvs(1, 3));
  watched.put({kv(4)});
  watched.end_all();
  watched.cache.touch({});
  watched.cache.touch(kvs(2, 3));
  CHECK(watched.put({kv(5)}) == Names{"drop 1 host", "store 5 host"});
  watched.end_all();
  CHECK(watched.put(kvs(6, 8)) ==
        Names{"drop 4 host", "store 8 host", "drop 3 host", "store 7 host", "drop 2 host", "store 6 host"});
}

TEST_CASE("images that are pinned or read stay, and a put without room is refused") {
  Watched watched(host_of(2));
  watched.put(kvs(1, 2));
  watched.end_all();
  CHECK_FALSE(watched.cache.pin(kvs(1, 3)));
  CHECK(watched.cache.pin(kvs(1, 2)));
  CHECK(watched.put({kv(3)}).empty());
  CHECK(watched.missing() == 1);
  watched.cache.unpin({{kv(2)}});
  CHECK(watched.get({kv(2)}) == Names{"load 2 host"});
  CHECK(watched.put({kv(3)}).empty());  // waits for the end of the load
  CHECK(watched.missing() == -1);
  CHECK(watched.cache.under_way() == 2);
  CHECK(watched.end() == Names{"drop 2 host", "store 3 host"});
  CHECK(watched.end().empty());
  CHECK(watched.missing() == 0);
}

TEST_CASE("with write-back the images that a tier evicts go to the next one, and then make room") {
  Watched watched({.host_bytes = 20, .file_bytes = 30, .kv_image_bytes = 10});
  watched.put(kvs(1, 2));
  watched.end_all();
  CHECK(watched.put({kv(3)}) == Names{"copy 2 host file"});
  CHECK(watched.where(2) == "host");
  CHECK(watched.end() == Names{"drop 2 host", "store 3 host"});
  CHECK(watched.where(2) == "file");
  CHECK(watched.end().empty());
  CHECK(watched.missing() == 0);
  CHECK(watched.get(kvs(2, 3)) == Names{"load 2 file", "load 3 host"});
  watched.end_all();
  // An image that a slower tier has comes to the fastest again, and costs no second copy when it leaves.
  CHECK(watched.put({kv(2)}) == Names{"copy 1 host file"});
  CHECK(watched.end() == Names{"drop 1 host", "store 2 host"});
  CHECK(watched.put({kv(4), kv(5)}) == Names{"copy 3 host file"});
  watched.end_all();
  CHECK(watched.cache.usage(Medium::host).evicted_images == 4);
}

TEST_CASE("with write-through an image goes to the slowest tier at once, and stays") {
  Watched watched({.host_bytes = 20, .file_bytes = 30, .kv_image_bytes = 10, .write_through = true});
  CHECK(watched.put({kv(1)}) == Names{"store 1 host"});
  CHECK(watched.end() == Names{"copy 1 host file"});
  CHECK(watched.missing() == 0);
  watched.put({kv(2)});
  CHECK(watched.put({kv(3)}).empty());  // 1 and 2 are under way
  CHECK(watched.end() == Names{"drop 1 host", "store 3 host"});
  CHECK(watched.where(1) == "file");
}

TEST_CASE("a copy takes the place of older images alone") {
  Watched watched({.host_bytes = 20, .file_bytes = 10, .kv_image_bytes = 10});
  CHECK(watched.cache.attach(Medium::file, kv(9)));
  watched.put(kvs(1, 2));
  watched.end_all();
  watched.cache.touch({{kv(9)}});
  // 2 is older than 9.
  CHECK(watched.put({kv(3)}) == Names{"drop 2 host", "store 3 host"});
  watched.end_all();
  watched.cache.touch(kvs(1, 3));
  CHECK(watched.put({kv(4)}) == Names{"drop 9 file", "copy 3 host file"});
}

TEST_CASE("a store that finds no room is tried again with more of it, and given up at the end") {
  Watched watched({.file_bytes = 160, .kv_image_bytes = 10});
  watched.put(kvs(1, 16));
  watched.end_all();
  CHECK(watched.put({kv(20)}) == Names{"drop 16 file", "store 20 file"});
  CHECK(watched.end(Status::no_room) == Names{"drop 15 file", "store 20 file"});
  CHECK(watched.end(Status::no_room) == Names{"drop 14 file", "store 20 file"});
  CHECK(watched.end().empty());
  CHECK(watched.missing() == 0);
  CHECK(watched.put({kv(21)}) == Names{"drop 13 file", "store 21 file"});  // the room stays free for a while
  watched.end_all();
  watched.put({kv(22)});
  Names names;
  while (!watched.under_way.empty()) {
    REQUIRE(names.size() < 100);
    for (const std::string& name : watched.end(Status::no_room)) names.push_back(name);
  }
  CHECK(watched.missing() == 1);
  CHECK(watched.cache.usage(Medium::file).images == 0);
  CHECK(watched.put({kv(23)}) == Names{"store 23 file"});
}

TEST_CASE("images that find no room together make room for themselves, and not for each of them again") {
  Watched watched({.file_bytes = 2560, .kv_image_bytes = 10});
  watched.put(kvs(1, 256));
  watched.end_all();
  REQUIRE(watched.cache.usage(Medium::file).images == 256);
  watched.put(kvs(301, 348));
  REQUIRE(watched.under_way.size() == 48);
  std::vector<TransferResult> results;
  for (const Transfer& store : std::exchange(watched.under_way, {})) results.push_back({store.id, Status::no_room});
  watched.took(watched.cache.settle(results));
  watched.end_all();
  CHECK(watched.missing() == 0);
  CHECK(watched.cache.usage(Medium::file).images >= 256 - 16);
}

TEST_CASE(
    "an image that files refuse while loads are under way waits for the end of one, once, and evicts nothing then") {
  Watched watched({.file_bytes = 40, .kv_image_bytes = 10});
  watched.put(kvs(1, 3));
  watched.end_all();
  watched.get({kv(1)});
  watched.put({kv(4)});
  std::swap(watched.under_way[0], watched.under_way[1]);
  CHECK(watched.end(Status::no_room).empty());
  CHECK(watched.put({kv(2)}).empty());
  watched.get({kv(1)});
  CHECK(watched.end() == Names{"store 4 file"});  // a load has ended
  CHECK(watched.cache.find(kvs(1, 3)) == 3);
  std::swap(watched.under_way[0], watched.under_way[1]);
  CHECK(watched.end(Status::no_room) == Names{"drop 3 file", "store 4 file"});  // another one is under way
  watched.end_all();
  CHECK(watched.where(4) == "file");
}

TEST_CASE("a remote tier that has no room is not asked again, and nothing is forgotten for it") {
  Watched watched({.remote_bytes = 40, .kv_image_bytes = 10});
  watched.put(kvs(1, 3));
  watched.end_all();
  watched.put({kv(4)});
  CHECK(watched.end(Status::no_room).empty());
  CHECK(watched.missing() == 1);
  CHECK(watched.cache.find(kvs(1, 3)) == 3);
}

TEST_CASE("bytes on their way to files are bounded, and those to the host are not") {
  Watched watched(
      {.host_bytes = 100, .file_bytes = 100, .kv_image_bytes = 10, .write_through = true, .queue_bytes = 20});
  CHECK(watched.put(kvs(1, 5)).size() == 5);
  for (int i = 0; i < 5; ++i) watched.end();
  CHECK(watched.under_way.size() == 2);
  CHECK(watched.cache.under_way() == 5);
  CHECK(watched.end() == Names{"copy 3 host file"});
  watched.end_all();
  CHECK(watched.cache.usage(Medium::file).images == 5);
}

TEST_CASE("an image larger than the queue goes alone") {
  Watched watched({.file_bytes = 100, .kv_image_bytes = 10, .queue_bytes = 1});
  CHECK(watched.put(kvs(1, 2)) == Names{"store 2 file"});
  CHECK(watched.end() == Names{"store 1 file"});
}

TEST_CASE("a tier forgets an image that it could not read, and a slower one is asked next") {
  for (const Status status : {Status::gone, Status::damaged, Status::failed, Status::foreign_layout}) {
    Watched watched({.host_bytes = 20, .file_bytes = 30, .kv_image_bytes = 10, .write_through = true});
    watched.put({kv(1)});
    watched.end_all();
    CHECK(watched.get({kv(1)}) == Names{"load 1 host"});
    CHECK(watched.end(status) == Names{"drop 1 host"});
    CHECK(watched.missing() == 1);
    CHECK(watched.get({kv(1)}) == Names{"load 1 file"});
    CHECK(watched.end(status) == Names{"drop 1 file"});
    CHECK(watched.where(1) == "nowhere");
    CHECK(watched.cache.usage(Medium::file).lost_images == 1);
  }
}

TEST_CASE("a copy whose source is damaged forgets it, and one that failed keeps it") {
  Watched watched({.host_bytes = 20, .file_bytes = 30, .kv_image_bytes = 10, .write_through = true});
  watched.put({kv(1)});
  watched.end();
  CHECK(watched.end(Status::failed).empty());
  CHECK(watched.where(1) == "host");
  watched.put({kv(2)});
  watched.end();
  CHECK(watched.end(Status::damaged) == Names{"drop 2 host"});
  CHECK(watched.cache.usage(Medium::host).lost_images == 1);
}

TEST_CASE("a pinned image that could not be moved down stays, and any other goes") {
  for (const bool pinned : {false, true}) {
    Watched watched({.host_bytes = 20, .file_bytes = 30, .kv_image_bytes = 10});
    watched.put(kvs(1, 2));
    watched.end_all();
    CHECK(watched.put({kv(3)}) == Names{"copy 2 host file"});
    if (pinned) CHECK(watched.cache.pin({{kv(2)}}));
    CHECK(watched.end(Status::failed) == (pinned ? Names{"copy 1 host file"} : Names{"drop 2 host", "store 3 host"}));
  }
}

TEST_CASE("a find tells which images the remote tier has") {
  Watched watched({.host_bytes = 20, .remote_bytes = 20, .kv_image_bytes = 10});
  watched.put({kv(1)});
  watched.end_all();
  CHECK(watched.took(watched.cache.ask(kvs(1, 3))) == Names{"find 3 remote", "find 2 remote"});
  watched.end(Status::gone);
  CHECK(watched.missing() == -1);
  CHECK(watched.end().empty());
  CHECK(watched.missing() == 1);
  CHECK(watched.where(2) == "remote");
  CHECK(watched.get({kv(2)}) == Names{"load 2 remote"});
  watched.end_all();
  const ImageTierUsage usage = watched.cache.usage(Medium::remote);
  CHECK(usage.asked_images == 2);
  CHECK(usage.found_images == 1);
  // Nobody tells the remote tier to forget an image.
  watched.took(watched.cache.ask(kvs(4, 5)));
  CHECK(watched.end_all().empty());
  CHECK(watched.where(2) == "nowhere");
}

TEST_CASE("an image that is removed on its way is forgotten when it arrives, unless it is put again") {
  Watched watched(host_of(4));
  watched.put(kvs(1, 3));
  watched.end();
  CHECK(watched.took(watched.cache.remove(kvs(1, 3))) == Names{"drop 3 host"});
  CHECK(watched.put({kv(1)}).empty());
  CHECK(watched.end_all() == Names{"drop 2 host"});
  CHECK(watched.where(1) == "host");
  CHECK(watched.ended.back().missing == 1);
}

TEST_CASE("an image that waits and is removed never begins") {
  Watched watched({.file_bytes = 100, .kv_image_bytes = 10, .queue_bytes = 10});
  watched.put(kvs(1, 2));
  watched.took(watched.cache.remove({{kv(1)}}));
  CHECK(watched.end().empty());
  CHECK(watched.missing() == 1);
  CHECK(watched.cache.under_way() == 0);
}

TEST_CASE("drain copies to files what they do not have") {
  Watched watched({.host_bytes = 40, .file_bytes = 30, .remote_bytes = 100, .kv_image_bytes = 10, .queue_bytes = 10});
  watched.put(kvs(1, 4));
  watched.end_all();
  CHECK(watched.took(watched.cache.drain()).size() == 1);
  watched.end_all();
  CHECK(watched.cache.usage(Medium::file).images == 3);
  CHECK(watched.cache.usage(Medium::host).images == 4);
  watched.took(watched.cache.drain());
  watched.end_all();
  CHECK(watched.took(watched.cache.drain()).empty());
  Watched alone(host_of(4));
  alone.put({kv(1)});
  alone.end_all();
  CHECK(alone.took(alone.cache.drain()).empty());
}

TEST_CASE("images from before are attached as far as there is room") {
  Watched watched({.file_bytes = 20, .kv_image_bytes = 10});
  CHECK(watched.cache.attach(Medium::file, kv(1)));
  CHECK(watched.cache.attach(Medium::file, kv(1)));
  CHECK(watched.cache.attach(Medium::file, kv(2)));
  CHECK_FALSE(watched.cache.attach(Medium::file, kv(3)));
  CHECK(watched.put({kv(4)}) == Names{"drop 1 file", "store 4 file"});
}

TEST_CASE("a put or a get with more images than may be under way says how many are missing") {
  ImageCacheOptions options = host_of(9);
  options.images_under_way_max = 2;
  Watched watched(options);
  CHECK(watched.put(kvs(1, 3)) == Names{"store 3 host", "store 2 host"});
  watched.end_all();
  CHECK(watched.missing() == 1);
  watched.put({kv(1)});
  watched.end_all();
  CHECK(watched.get(kvs(1, 3)) == Names{"load 1 host", "load 2 host"});
  watched.end_all();
  CHECK(watched.missing() == 1);
}

TEST_CASE("an image cache says what is wrong with its options and arguments") {
  const auto refused = [](ImageCacheOptions options, const std::function<void(ImageCacheOptions&)>& change,
                          const char* text) {
    change(options);
    CHECK_THROWS_WITH_AS(ImageCache{options}, text, InvalidArgument);
  };
  const ImageCacheOptions good{.host_bytes = 100, .kv_image_bytes = 10, .state_image_bytes = {20}};
  refused(
      good, [](auto& o) { o.host_bytes = 19; }, "host_bytes = 19 (must be 0, or at least the bytes of an image)");
  refused(
      good, [](auto& o) { o.file_bytes = -1; }, "file_bytes = -1 (must be 0, or at least the bytes of an image)");
  refused(
      good, [](auto& o) { o.host_bytes = 0; }, "host_bytes = 0 (must be positive, or file_bytes or remote_bytes)");
  refused(
      good, [](auto& o) { o.kv_image_bytes = -5; }, "kv_image_bytes = -5 (must not be negative)");
  refused(
      good, [](auto& o) { o.state_image_bytes = {0}; }, "state_image_bytes = 0 (must be positive)");
  refused(
      good, [](auto& o) { o.state_image_bytes = {}, o.kv_image_bytes = 0; },
      "kv_image_bytes = 0 (is 0, and there are no state_image_bytes either)");
  refused(
      good, [](auto& o) { o.queue_bytes = 0; }, "queue_bytes = 0 (must be positive)");
  refused(
      good, [](auto& o) { o.images_under_way_max = 0; }, "images_under_way_max = 0 (must be from 1 to 2^31 - 2)");
  refused(
      good, [](auto& o) { o.eviction = EvictionOrder::hix; },
      "eviction = hix (ranks by facts that a key alone does not tell)");

  Watched watched(good);
  ImageCache& cache = watched.cache;
  const Keys one = {kv(1)};
  const std::vector<std::int32_t> bad = {-1};
  const auto call = [](auto&& body, const char* text) { CHECK_THROWS_WITH_AS(body(), text, InvalidArgument); };
  call([&] { static_cast<void>(cache.put(one, {})); }, "places = 0 (must be as many as images)");
  call([&] { static_cast<void>(cache.get(one, bad)); }, "places = -1 (must not be negative)");
  const auto touch = [&](ImageKey key) { cache.touch({&key, 1}); };
  call([&] { touch({.tokens = -3}); }, "images.tokens = -3 (must not be negative)");
  call([&] { touch({.group = 1}); }, "images.group = 1 (has no state_image_bytes)");
  call([&] { touch({.content = CacheContent::kv_block, .group = 1}); }, "images.group = 1 (must be 0 for KV)");
  std::vector<std::optional<Medium>> where(2);
  call([&] { static_cast<void>(cache.find(one, where)); }, "where = 2 (must be as many as images)");
  call([&] { static_cast<void>(cache.attach(Medium::file, kv(1))); }, "medium = 2 (is no tier of this cache)");
  call([&] { static_cast<void>(cache.attach(Medium::device, kv(1))); }, "medium = 0 (is no tier of this cache)");
  call([&] { cache.unpin(one); }, "images = 0 (is the index of an image that is not pinned, or not as often)");
  const TransferResult none{7, Status::done};
  call([&] { static_cast<void>(cache.settle({&none, 1})); }, "results = 1 (are more than transfers under way)");
  watched.put({kv(1), kv(2)});
  call([&] { static_cast<void>(cache.settle({&none, 1})); }, "results.id = 7 (is not under way)");
  const std::vector twice(2, TransferResult{watched.under_way.front().id, Status::done});
  call([&] { static_cast<void>(cache.settle(twice)); }, "results.id = 1 (is named twice)");
  CHECK_THROWS_WITH_AS(static_cast<void>(cache.ask(one)), "ask: there is no remote tier", InvalidState);
  watched.end_all();
  CHECK(cache.pin(kvs(1, 2)));
  call(
      [&] {
        cache.unpin(Keys{kv(1), kv(2), kv(1)});
      },
      "images = 2 (is the index of an image that is not pinned, or not as often)");
  cache.unpin(kvs(1, 2));
  ImageCache states({.file_bytes = 50, .state_image_bytes = {10, 20}});
  call([&] { states.touch(one); }, "images.content = kv_block (has no kv_image_bytes)");
  CHECK(cache.usage(Medium::elsewhere) == ImageTierUsage{});
}

TEST_CASE("the construction of an image cache fails for memory, and leaves nothing behind") {
  CHECK(test::fail_each_allocation([](std::uint64_t) { ImageCache{host_of(4)}; }, [](std::uint64_t) {}) > 10);
}
