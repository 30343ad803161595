// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/parts/image_cache.hpp>

#include "heap_counter.hpp"
#include "image_cache_model.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

using test::image_key;
using Images = std::vector<std::size_t>;

/// The tiers themselves: carries transfers out and refuses what no tier could do.
class Tiers {
 public:
  Tiers(const ImageCacheOptions& options, std::size_t images) : options_(options), images_(images) {}

  void execute(std::span<const Transfer> transfers) {
    for (const Transfer& transfer : transfers) {
      const std::size_t image = number(transfer.image);
      switch (transfer.kind) {
        case Transfer::Kind::drop:
          REQUIRE(transfer.from != Medium::remote);
          REQUIRE(held_[transfer.from].erase(image) == 1);
          break;
        case Transfer::Kind::load:
          REQUIRE(held_[transfer.from].contains(image));
          break;
        case Transfer::Kind::find:
          break;
        default:
          REQUIRE((transfer.to == Medium::remote || !held_[transfer.to].contains(image)));
          REQUIRE(coming_[transfer.to].insert(image).second);
          if (transfer.to == Medium::remote) break;
          REQUIRE(bytes(transfer.to) <= (transfer.to == Medium::host ? options_.host_bytes : options_.file_bytes));
      }
      if (transfer.kind != Transfer::Kind::drop) under_way_[transfer.id] = transfer;
    }
  }
  void end(const TransferResult& result) {
    const Transfer transfer = under_way_.at(result.id);
    under_way_.erase(result.id);
    if (transfer.kind != Transfer::Kind::store && transfer.kind != Transfer::Kind::copy) return;
    coming_[transfer.to].erase(number(transfer.image));
    if (result.status == TransferStatus::done) held_[transfer.to].insert(number(transfer.image));
  }
  [[nodiscard]] const std::set<std::size_t>& held(Medium medium) { return held_[medium]; }
  void attach(Medium medium, std::size_t image) { held_[medium].insert(image); }
  /// A find may say that the remote tier has an image, and nobody tells it to forget one.
  void know_remote(const ImageCache& cache) {
    for (std::size_t image = 0; image < images_; ++image) {
      std::optional<Medium> where;
      const ImageKey key = image_key(image, images_);
      static_cast<void>(cache.find({&key, 1}, {&where, 1}));
      if (where == Medium::remote) held_[Medium::remote].insert(image);
    }
  }
  void forget_remote() { held_[Medium::remote].clear(); }

 private:
  [[nodiscard]] std::size_t number(const ImageKey& key) const {
    for (std::size_t image = 0; image < images_; ++image)
      if (image_key(image, images_) == key) return image;
    FAIL("a transfer of an image that nobody named");
    return 0;
  }
  [[nodiscard]] std::int64_t bytes(Medium medium) {
    std::int64_t sum = 0;
    for (const auto* const images : {&held_[medium], &coming_[medium]})
      for (const std::size_t image : *images) {
        const ImageKey key = image_key(image, images_);
        sum += key.content == CacheContent::kv_block ? options_.kv_image_bytes
                                                     : options_.state_image_bytes[static_cast<std::size_t>(key.group)];
      }
    return sum;
  }

  ImageCacheOptions options_;
  std::size_t images_;
  std::map<Medium, std::set<std::size_t>> held_;
  std::map<Medium, std::set<std::size_t>> coming_;
  std::map<TransferId, Transfer> under_way_;
};

ImageCacheOptions random_options(test::Random& random) {
  constexpr std::array orders = {EvictionOrder::lru,  EvictionOrder::lru, EvictionOrder::lfu, EvictionOrder::fifo,
                                 EvictionOrder::slru, EvictionOrder::mru, EvictionOrder::filo};
  ImageCacheOptions options{.kv_image_bytes = random.between(1, 40),
                            .state_image_bytes = {random.between(1, 60), random.between(1, 60)},
                            .write_through = random.chance(50),
                            .queue_bytes = random.between(1, 300),
                            .eviction = orders[static_cast<std::size_t>(random.between(0, 6))],
                            .images_under_way_max = static_cast<std::size_t>(random.between(1, 40))};
  const int tiers = random.between32(1, 7);
  if ((tiers & 1) != 0) options.host_bytes = random.between(60, 300);
  if ((tiers & 2) != 0) options.file_bytes = random.between(60, 500);
  if ((tiers & 4) != 0) options.remote_bytes = random.between(60, 500);
  return options;
}

TransferStatus random_status(test::Random& random, int good) {
  if (random.chance(good)) return TransferStatus::done;
  if (random.chance(50)) return TransferStatus::no_room;
  return static_cast<TransferStatus>(random.between32(1, transfer_status_count - 1));
}

class Engine {
 public:
  explicit Engine(test::Random& random)
      : random_(random),
        options_(random_options(random)),
        images_(2 * static_cast<std::size_t>(random.between(2, 16))),
        cache_(options_),
        model_(options_, images_),
        tiers_(options_, images_),
        good_(random.between32(50, 100)) {}

  void step() {
    const auto draw = random_.between(0, 99);
    if (draw < 35)
      settle();
    else if (draw < 60)
      put();
    else if (draw < 75)
      get();
    else if (draw < 80)
      ask();
    else if (draw < 90)
      pin_or_unpin();
    else if (draw < 95)
      touch();
    else if (draw < 98)
      remove();
    else
      attach();
    compare();
  }

  /// All that is on the host goes to a tier that outlives it, as far as there is room.
  void drain() {
    for (bool again = true; again;) {
      again = !unanswered_.empty();
      std::vector<TransferResult> results;
      for (const TransferId id : unanswered_) results.push_back({id, TransferStatus::done});
      for (const TransferResult& result : results) tiers_.end(result);
      unanswered_.clear();
      take(cache_.settle(results));
      if (again) continue;
      take(cache_.drain());
      again = !unanswered_.empty();
      cache_.check_invariants();
    }
    REQUIRE(cache_.under_way() == 0);
    if (options_.host_bytes == 0 || options_.file_bytes == 0 || options_.remote_bytes > 0 || good_ < 100) return;
    for (const std::size_t image : tiers_.held(Medium::host)) {
      const std::int64_t left = options_.file_bytes - cache_.usage(Medium::file).bytes;
      REQUIRE((tiers_.held(Medium::file).contains(image) || left < 60));
    }
  }

 private:
  [[nodiscard]] std::size_t any_image() {
    return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(images_) - 1));
  }
  Images any_images() {
    Images images(static_cast<std::size_t>(random_.between(0, 6)));
    const std::size_t first = any_image();
    const bool leading = random_.chance(60);
    for (std::size_t i = 0; i < images.size(); ++i) images[i] = leading ? (first + i) % images_ : any_image();
    return images;
  }
  [[nodiscard]] std::vector<ImageKey> keys(const Images& images) const {
    std::vector<ImageKey> keys;
    for (const std::size_t image : images) keys.push_back(image_key(image, images_));
    return keys;
  }
  static std::vector<std::int32_t> places(const Images& images) {
    std::vector<std::int32_t> places;
    for (std::size_t i = 0; i < images.size(); ++i) places.push_back(static_cast<std::int32_t>(7 * i + images[i]));
    return places;
  }
  void take(const ImagePlan& plan) {
    tiers_.execute(plan.transfers);
    for (const Transfer& transfer : plan.transfers)
      if (transfer.kind != Transfer::Kind::drop) unanswered_.push_back(transfer.id);
  }
  template <class Call>
  ImagePlan counted(Call&& call) {
    const std::uint64_t before = test::heap_allocations();
    const ImagePlan plan = call();
    REQUIRE(test::heap_allocations() == before);
    return plan;
  }
  void same(const ImagePlan& plan, const test::ImageCacheModel::Plan& wanted) {
    REQUIRE(plan.transfers.size() <= cache_.transfers_max());
    REQUIRE(std::ranges::equal(plan.transfers, wanted.transfers));
    REQUIRE(std::ranges::equal(plan.ended, wanted.ended));
    take(plan);
  }

  void put() {
    const Images images = any_images();
    const auto named = keys(images);
    const auto at = places(images);
    const ImagePlan plan = counted([&] { return cache_.put(named, at); });
    same(plan, model_.put(images, at, plan.request));
  }
  void get() {
    const Images images = any_images();
    const auto named = keys(images);
    const auto at = places(images);
    tiers_.know_remote(cache_);
    const ImagePlan plan = counted([&] { return cache_.get(named, at); });
    same(plan, model_.get(images, at, plan.request));
    tiers_.forget_remote();
  }
  void ask() {
    const Images images = any_images();
    const auto named = keys(images);
    if (options_.remote_bytes == 0) {
      CHECK_THROWS_AS(static_cast<void>(cache_.ask(named)), InvalidState);
      return;
    }
    const ImagePlan plan = counted([&] { return cache_.ask(named); });
    same(plan, model_.ask(images, plan.request));
  }
  void settle() {
    std::vector<TransferResult> results;
    const auto most = static_cast<std::int64_t>(unanswered_.size());
    for (auto left = random_.between(0, std::min<std::int64_t>(most, 8)); left > 0; --left) {
      const auto at =
          static_cast<std::ptrdiff_t>(random_.between(0, static_cast<std::int64_t>(unanswered_.size()) - 1));
      results.push_back({unanswered_[static_cast<std::size_t>(at)], random_status(random_, good_)});
      unanswered_.erase(unanswered_.begin() + at);
    }
    if (!results.empty() && random_.chance(5)) {
      auto twice = results;
      twice.push_back({random_.chance(50) ? results.front().id : TransferId{1} << 40, TransferStatus::done});
      CHECK_THROWS_AS(static_cast<void>(cache_.settle(twice)), InvalidArgument);
    }
    for (const TransferResult& result : results) tiers_.end(result);
    const ImagePlan plan = counted([&] { return cache_.settle(results); });
    tiers_.forget_remote();
    same(plan, model_.settle(results));
  }
  void remove() {
    const Images images = any_images();
    const auto named = keys(images);
    const ImagePlan plan = counted([&] { return cache_.remove(named); });
    same(plan, model_.remove(images));
  }
  void pin_or_unpin() {
    if (!pinned_.empty() && random_.chance(60)) {
      const auto at = pinned_.begin() + random_.between(0, static_cast<std::int64_t>(pinned_.size()) - 1);
      cache_.unpin(keys(*at));
      model_.unpin(*at);
      pinned_.erase(at);
      return;
    }
    Images images = any_images();
    if (random_.chance(5)) {
      if (!model_.are_pinned(images)) CHECK_THROWS_AS(cache_.unpin(keys(images)), InvalidArgument);
      return;
    }
    const bool pinned = cache_.pin(keys(images));
    REQUIRE(model_.pin(images) == pinned);
    if (pinned) pinned_.push_back(std::move(images));
  }
  void touch() {
    const Images images = any_images();
    cache_.touch(keys(images));
    model_.touch(images);
  }
  void attach() {
    const std::size_t image = any_image();
    const Medium medium = options_.file_bytes > 0 ? Medium::file : Medium::host;
    if (medium == Medium::host && options_.host_bytes == 0) return;
    // A tier cannot have had an image that is being written into it.
    for (const TransferId id : model_.unanswered())
      if (std::ranges::find(unanswered_, id) != unanswered_.end()) return;
    const bool fits = cache_.attach(medium, image_key(image, images_));
    REQUIRE(model_.attach(medium, image) == fits);
    if (fits && !tiers_.held(medium).contains(image)) tiers_.attach(medium, image);
  }

  void compare() {
    cache_.check_invariants();
    REQUIRE(cache_.under_way() == model_.under_way());
    for (const Medium medium : {Medium::host, Medium::file, Medium::remote}) {
      const ImageTierUsage usage = cache_.usage(medium);
      const bool is_tier = usage != ImageTierUsage{};
      if (!is_tier) continue;
      REQUIRE(usage.images == model_.images_in(medium));
      REQUIRE(usage.bytes == model_.bytes_in(medium));
      if (medium != Medium::remote) REQUIRE(tiers_.held(medium).size() == static_cast<std::size_t>(usage.images));
    }
    Images all(images_);
    for (std::size_t image = 0; image < images_; ++image) all[image] = image;
    std::vector<std::optional<Medium>> where(images_);
    std::size_t leading = cache_.find(keys(all), where);
    for (const std::size_t image : all) {
      REQUIRE(where[image] == model_.where(image));
      if (image <= leading) REQUIRE(where[image].has_value() == (image < leading));
    }
    REQUIRE(cache_.find(keys(all)) == leading);
  }

  test::Random& random_;
  ImageCacheOptions options_;
  std::size_t images_;
  ImageCache cache_;
  test::ImageCacheModel model_;
  Tiers tiers_;
  int good_;
  std::vector<TransferId> unanswered_;
  std::vector<Images> pinned_;
};

}  // namespace

TEST_CASE("an image cache decides as the model does, in tiers that answer anything") {
  test::for_each_seed(3000, [](test::Random& random, std::uint64_t) {
    Engine engine(random);
    for (int step = 0; step < 150; ++step) engine.step();
    engine.drain();
  });
}
