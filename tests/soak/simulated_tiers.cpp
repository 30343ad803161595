// SPDX-License-Identifier: Apache-2.0
#include "simulated_tiers.hpp"

#include "violation.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stateport::soak {

namespace {

/// Of a hundred transfers.
constexpr int failing = 3;
/// Polls in a hundred that answer something.
constexpr int answering = 60;

}  // namespace

void SharedImages::put(const ImageKey& key, const Image& image) {
  if (const auto old = images.find(key); old != images.end()) {
    must(old->second.kv == image.kv && old->second.state.recurrent == image.state.recurrent,
         "two engines store different images under one key");
    return;
  }
  images.emplace(key, image);
  order.push_back(key);
  while (order.size() > capacity_images) {
    images.erase(order.front());
    order.pop_front();
  }
}

SimulatedTiers::SimulatedTiers(test::Random& random, MarkWorld& world, std::shared_ptr<Images> files,
                               std::shared_ptr<SharedImages> remote, FaultCounts& counts)
    : random_(random), world_(world), files_(std::move(files)), remote_(std::move(remote)), counts_(counts) {}

Images& SimulatedTiers::tier(Medium medium) {
  if (medium == Medium::host) return host_;
  return medium == Medium::file ? *files_ : remote_->images;
}

void SimulatedTiers::take(TransferPlan transfers) {
  for (const Transfer& transfer : transfers) begin(transfer);
}

void SimulatedTiers::begin(const Transfer& transfer) {
  if (transfer.kind == Transfer::Kind::drop) {
    must(transfer.from != Medium::remote, "a drop of an image that others may need");
    tier(transfer.from).erase(transfer.image);
    return;
  }
  Moving moving{.transfer = transfer};
  if (transfer.kind == Transfer::Kind::store) {
    read_device(transfer, moving.image);
    moving.is_there = true;
  } else if (transfer.kind != Transfer::Kind::find) {
    const Images& from = tier(transfer.from);
    const auto found = from.find(transfer.image);
    moving.is_there = found != from.end() && (transfer.from != Medium::remote || !remote_->is_away);
    if (moving.is_there) moving.image = found->second;
  }
  moving_.push_back(std::move(moving));
}

void SimulatedTiers::read_device(const Transfer& transfer, Image& image) {
  if (transfer.image.content == CacheContent::state) {
    image.state = world_.checkpoint(static_cast<std::size_t>(transfer.image.group), transfer.place);
    must(image.state.recurrent_tokens == transfer.image.tokens, "a store of a state after other tokens");
    return;
  }
  const auto block = world_.block(transfer.place);
  image.kv.assign(block.begin(), block.end());
  must(image.kv.back() != 0, "a store of KV that was never written");
}

void SimulatedTiers::poll(std::vector<TransferResult>& results, bool all) {
  if (!all && !random_.chance(answering)) return;
  for (std::int64_t most = all ? std::ssize(moving_) : random_.between(1, 20); most > 0 && !moving_.empty(); --most) {
    const auto at = static_cast<std::size_t>(random_.between(0, std::ssize(moving_) - 1));
    results.push_back({.id = moving_[at].transfer.id, .status = end(moving_[at])});
    std::swap(moving_[at], moving_.back());
    moving_.pop_back();
  }
}

TransferStatus SimulatedTiers::end(const Moving& moving) {
  constexpr std::array reasons = {TransferStatus::no_room, TransferStatus::gone, TransferStatus::damaged,
                                  TransferStatus::failed};
  const Transfer& transfer = moving.transfer;
  const bool fails = random_.chance(failing);
  const auto reason = reasons[static_cast<std::size_t>(random_.between(0, std::ssize(reasons) - 1))];
  counts_.failed_transfers += fails;
  if (transfer.kind == Transfer::Kind::find) {
    if (fails || remote_->is_away) return TransferStatus::failed;
    return remote_->images.contains(transfer.image) ? TransferStatus::done : TransferStatus::gone;
  }
  const bool store_is_away = transfer.to == Medium::remote && remote_->is_away;
  const bool done = !fails && moving.is_there && !store_is_away;
  write(transfer, done ? &moving.image : nullptr);
  if (done) return TransferStatus::done;
  if (!moving.is_there) return TransferStatus::gone;
  return store_is_away ? TransferStatus::failed : reason;
}

/// Without an image a load leaves rubbish.
void SimulatedTiers::write(const Transfer& transfer, const Image* image) {
  if (transfer.kind != Transfer::Kind::load) {
    if (image == nullptr) return;
    if (transfer.to == Medium::remote) return remote_->put(transfer.image, *image);
    must(tier(transfer.to).emplace(transfer.image, *image).second, "a tier gets an image that it has");
    return;
  }
  if (transfer.image.content == CacheContent::state) {
    world_.checkpoint(static_cast<std::size_t>(transfer.image.group), transfer.place) =
        image == nullptr ? StateMark{} : image->state;
    return;
  }
  const auto block = world_.block(transfer.place);
  std::ranges::fill(block, 0);
  if (image != nullptr) std::ranges::copy(image->kv, block.begin());
}

std::vector<ImageKey> SimulatedTiers::found() {
  std::vector<ImageKey> keys;
  for (const auto& [key, image] : *files_) keys.push_back(key);
  return keys;
}

void SimulatedTiers::strike() {
  if (remote_->is_away || random_.chance(30)) {
    remote_->is_away = !remote_->is_away;
    counts_.store_absences += remote_->is_away;
    return;
  }
  for (std::int64_t count = random_.between(1, 20); count > 0 && !remote_->order.empty(); --count) {
    const auto at = static_cast<std::size_t>(random_.between(0, std::ssize(remote_->order) - 1));
    counts_.vanished_images += static_cast<std::int64_t>(remote_->images.erase(remote_->order[at]));
  }
}

void SimulatedTiers::check_invariants() const {
  must(remote_->images.size() <= remote_->order.size(), "the shared store has more images than were put");
}

}  // namespace stateport::soak
