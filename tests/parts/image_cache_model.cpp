// SPDX-License-Identifier: Apache-2.0
#include "image_cache_model.hpp"

#include <algorithm>
#include <utility>

namespace stateport::test {

ImageKey image_key(std::size_t image, std::size_t images) {
  const bool is_state = image >= images / 2;
  // Prefixes of KV and states agree, as an engine's do.
  return {.prefix = {{image % (images / 2), 0}},
          .tokens = 0,
          .content = is_state ? CacheContent::state : CacheContent::kv_block,
          .group = is_state ? static_cast<std::int32_t>(image % 2) : 0};
}

ImageCacheModel::ImageCacheModel(const ImageCacheOptions& options, std::size_t images)
    : options_(options), device_(SIZE_MAX), images_(images) {
  if (options.host_bytes > 0) tiers_.push_back({.medium = Medium::host, .capacity = options.host_bytes});
  if (options.file_bytes > 0) tiers_.push_back({.medium = Medium::file, .capacity = options.file_bytes});
  if (options.remote_bytes > 0) tiers_.push_back({.medium = Medium::remote, .capacity = options.remote_bytes});
  for (Image& image : images_) image.in.resize(tiers_.size());
}

std::int64_t ImageCacheModel::bytes_of(std::size_t image) const {
  const ImageKey key = image_key(image, images_.size());
  return key.content == CacheContent::kv_block ? options_.kv_image_bytes
                                               : options_.state_image_bytes[static_cast<std::size_t>(key.group)];
}
bool ImageCacheModel::is_somewhere(std::size_t image) const {
  return std::ranges::count(images_[image].in, true) > 0;
}
bool ImageCacheModel::is_known(std::size_t image) const {
  const Image& i = images_[image];
  return is_somewhere(image) || i.task != Task::none || i.pins > 0 || i.reads > 0;
}
std::size_t ImageCacheModel::waiting_for() const {
  std::size_t left = 0;
  for (const auto& [id, request] : requests_) left += request.left;
  return left;
}
std::size_t ImageCacheModel::tier_of(Medium medium) const {
  return static_cast<std::size_t>(std::ranges::find(tiers_, medium, &Tier::medium) - tiers_.begin());
}

std::int64_t ImageCacheModel::held(std::size_t tier, bool without_leaving) const {
  std::int64_t bytes = 0;
  for (std::size_t image = 0; image < images_.size(); ++image) {
    const Image& i = images_[image];
    if (i.in[tier] && !(without_leaving && i.task == Task::move && i.from == tier)) bytes += bytes_of(image);
    if (i.task != Task::none && !i.waits && i.to == tier) bytes += bytes_of(image);
  }
  return bytes;
}
std::size_t ImageCacheModel::loads(std::size_t tier) const {
  return static_cast<std::size_t>(std::ranges::count_if(under_way_, [&](const auto& entry) {
    const Transfer& transfer = entry.second.transfer;
    return transfer.kind == Transfer::Kind::load && transfer.from == tiers_[tier].medium;
  }));
}
bool ImageCacheModel::is_busy(std::size_t tier) const {
  return loads(tier) > 0 || std::ranges::any_of(images_, [&](const Image& image) {
           if (image.task == Task::none) return false;
           return (image.task != Task::store && image.from == tier) || (image.to == tier && !image.waits);
         });
}

std::vector<std::int64_t> ImageCacheModel::rank(std::size_t image) const {
  const Image& i = images_[image];
  const auto used = static_cast<std::int64_t>(i.used);
  const auto made = static_cast<std::int64_t>(i.made);
  switch (options_.eviction) {
    case EvictionOrder::lfu:
      return {i.hits, used};
    case EvictionOrder::fifo:
      return {made};
    case EvictionOrder::slru:
      return {i.hits >= 2 ? 1 : 0, used};
    case EvictionOrder::mru:
      return {-used};
    case EvictionOrder::filo:
      return {-made};
    default:
      return {used};
  }
}
std::vector<std::size_t> ImageCacheModel::candidates(std::size_t tier) const {
  std::vector<std::size_t> candidates;
  for (std::size_t image = 0; image < images_.size(); ++image) {
    const Image& i = images_[image];
    if (i.in[tier] && i.pins == 0 && i.reads == 0 && i.task == Task::none) candidates.push_back(image);
  }
  std::ranges::sort(candidates, [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  return candidates;
}

void ImageCacheModel::use(std::size_t image) {
  Image& i = images_[image];
  i.used = ++tick_;
  if (i.hits++ == 0) i.made = tick_;
}
void ImageCacheModel::part(RequestId request, bool good) {
  Request& r = requests_.at(request);
  r.missing += good ? 0 : 1;
  if (--r.left > 0) return;
  plan_.ended.push_back({request, r.missing});
  requests_.erase(request);
}
void ImageCacheModel::name(Transfer transfer, std::size_t image) {
  transfer.id = ++last_;
  transfer.image = image_key(image, images_.size());
  plan_.transfers.push_back(transfer);
  under_way_[last_] = {transfer, image};
}
void ImageCacheModel::begin(std::size_t image, Task task, std::size_t from, std::size_t to) {
  images_[image].task = task;
  images_[image].has_waited = false;
  images_[image].from = from;
  images_[image].to = to;
  images_[image].waits = true;
  tiers_[to].queue.push_back(image);
}
void ImageCacheModel::leave(std::size_t image, std::size_t tier) {
  images_[image].in[tier] = false;
  const Medium medium = tiers_[tier].medium;
  if (medium == Medium::remote) return;
  plan_.transfers.push_back(
      {.kind = Transfer::Kind::drop, .image = image_key(image, images_.size()), .from = medium, .to = medium});
}

int ImageCacheModel::make_room(std::size_t tier, std::size_t image) {
  const std::int64_t room = tiers_[tier].capacity - bytes_of(image);
  const std::int64_t most = std::max<std::int64_t>(room - tiers_[tier].gap, 0);
  const bool copies = images_[image].task == Task::copy || images_[image].task == Task::move;
  if (held(tier, false) <= most) return 1;
  std::int64_t need = held(tier, true) - most;
  if (need <= 0) return 0;
  std::vector<std::size_t> victims;
  for (const std::size_t chosen : candidates(tier)) {
    if (need <= 0) break;
    if (copies && !(rank(chosen) < rank(image))) return -1;
    victims.push_back(chosen);
    need -= bytes_of(chosen);
  }
  if (need > 0) return is_busy(tier) ? 0 : -1;
  for (const std::size_t chosen : victims) {
    if (tier + 1 < tiers_.size() && !images_[chosen].in[tier + 1])
      begin(chosen, Task::move, tier, tier + 1);
    else
      leave(chosen, tier);
  }
  return held(tier, false) <= most ? 1 : 0;
}
int ImageCacheModel::turn(std::size_t tier, std::size_t image) {
  const Image& i = images_[image];
  if (i.unwanted || (i.task != Task::store && !i.in[i.from])) return -1;
  if (tiers_[tier].medium != Medium::host) {
    std::int64_t queued = 0;
    for (std::size_t other = 0; other < images_.size(); ++other)
      if (images_[other].task != Task::none && !images_[other].waits && images_[other].to == tier)
        queued += bytes_of(other);
    if (queued > 0 && queued + bytes_of(image) > options_.queue_bytes) return 0;
  }
  if (tiers_[tier].writes_wait) return 0;
  return make_room(tier, image);
}
void ImageCacheModel::refuse(std::size_t tier, std::size_t image) {
  Image& i = images_[image];
  if (!i.unwanted) tiers_[tier].gap = 0;
  const bool stores = i.task == Task::store;
  if (!stores || i.unwanted || is_somewhere(image) || tier + 1 == tiers_.size())
    return end_task(image, stores && is_somewhere(image));
  begin(image, Task::store, device_, tier + 1);
}
void ImageCacheModel::end_task(std::size_t image, bool arrived) {
  Image& i = images_[image];
  if (i.task == Task::move && i.in[i.from] && (arrived || (i.pins == 0 && i.reads == 0))) leave(image, i.from);
  const Task task = std::exchange(i.task, Task::none);
  i.waits = false;
  i.unwanted = false;
  if (task == Task::store) part(i.request, arrived);
  if (task == Task::store && options_.write_through && i.in[i.to] && !i.in.back())
    begin(image, Task::copy, i.to, tiers_.size() - 1);
}

void ImageCacheModel::forget_unknown() {
  for (std::size_t image = 0; image < images_.size(); ++image)
    if (!is_known(image)) images_[image].hits = 0;
}

ImageCacheModel::Plan ImageCacheModel::run(RequestId request) {
  forget_unknown();
  for (bool again = true; again;) {
    again = false;
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
      while (!tiers_[tier].queue.empty()) {
        const std::size_t image = tiers_[tier].queue.front();
        const int room = turn(tier, image);
        if (room == 0) break;
        tiers_[tier].queue.pop_front();
        again = true;
        if (room < 0) {
          refuse(tier, image);
          continue;
        }
        Image& i = images_[image];
        const bool stores = i.task == Task::store;
        i.waits = false;
        name({.kind = stores ? Transfer::Kind::store : Transfer::Kind::copy,
              .from = stores ? Medium::device : tiers_[i.from].medium,
              .to = tiers_[tier].medium,
              .place = stores ? i.place : -1,
              .request = stores ? i.request : RequestId{}},
             image);
      }
  }
  if (request.valid()) part(request, true);
  forget_unknown();
  return std::exchange(plan_, {});
}

ImageCacheModel::Plan ImageCacheModel::put(const std::vector<std::size_t>& images,
                                           const std::vector<std::int32_t>& places, RequestId request) {
  requests_[request] = {};
  for (std::size_t n = images.size(); n-- > 0;) {
    Image& i = images_[images[n]];
    use(images[n]);
    if (i.in.front()) continue;
    if (i.task != Task::none) {
      if (i.unwanted && i.task != Task::store)
        ++requests_[request].missing;
      else
        i.unwanted = false;
      continue;
    }
    if (waiting_for() - 1 == options_.images_under_way_max) {
      if (!is_somewhere(images[n])) ++requests_[request].missing;
      forget_unknown();
      continue;
    }
    ++requests_[request].left;
    i.request = request;
    i.place = places[n];
    begin(images[n], Task::store, device_, 0);
  }
  return run(request);
}

ImageCacheModel::Plan ImageCacheModel::get(const std::vector<std::size_t>& images,
                                           const std::vector<std::int32_t>& places, RequestId request) {
  requests_[request] = {};
  std::size_t n = 0;
  for (; n < images.size(); ++n) {
    if (!is_somewhere(images[n]) || waiting_for() - 1 == options_.images_under_way_max) break;
    ++requests_[request].left;
    ++images_[images[n]].reads;
    name({.kind = Transfer::Kind::load,
          .from = *where(images[n]),
          .to = Medium::device,
          .place = places[n],
          .request = request},
         images[n]);
  }
  requests_[request].missing = static_cast<std::int64_t>(images.size() - n);
  while (n-- > 0) use(images[n]);
  return run(request);
}

ImageCacheModel::Plan ImageCacheModel::ask(const std::vector<std::size_t>& images, RequestId request) {
  requests_[request] = {};
  for (std::size_t n = images.size(); n-- > 0;) {
    if (!is_somewhere(images[n]) && waiting_for() - 1 == options_.images_under_way_max) {
      ++requests_[request].missing;
      continue;
    }
    use(images[n]);
    if (is_somewhere(images[n])) continue;
    ++requests_[request].left;
    ++images_[images[n]].reads;
    name({.kind = Transfer::Kind::find, .from = Medium::remote, .to = Medium::remote, .request = request}, images[n]);
  }
  return run(request);
}

ImageCacheModel::Plan ImageCacheModel::remove(const std::vector<std::size_t>& images) {
  for (const std::size_t image : images) {
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
      if (images_[image].in[tier]) leave(image, tier);
    images_[image].unwanted = images_[image].task != Task::none;
  }
  return run();
}

void ImageCacheModel::arrived(const UnderWay& part, TransferStatus status) {
  Image& i = images_[part.image];
  Tier& tier = tiers_[i.to];
  if (status == TransferStatus::no_room && !i.unwanted) {
    const std::int64_t most = tier.capacity - bytes_of(part.image);
    const bool waits = tier.medium != Medium::host && loads(i.to) > 0 && !i.has_waited;
    tier.writes_wait = tier.writes_wait || waits;
    i.has_waited = i.has_waited || waits;
    if (waits || (tier.medium != Medium::remote && (tier.gap_grew || tier.gap < most))) {
      if (!waits && !tier.gap_grew) {
        tier.gap = std::min(most, tier.gap + std::max<std::int64_t>(tier.capacity / 16, 1));
        tier.gap_grew = true;
      }
      i.waits = true;
      tier.queue.push_front(part.image);
      return;
    }
  }
  const bool done = status == TransferStatus::done;
  const bool wanted = !i.unwanted;
  if (done) {
    i.in[i.to] = true;
    tier.gap = std::max<std::int64_t>(tier.gap - bytes_of(part.image) / 16, 0);
    if (!wanted) leave(part.image, i.to);
  }
  const bool lost = status == TransferStatus::gone || status == TransferStatus::damaged ||
                    status == TransferStatus::foreign_layout || status == TransferStatus::wrong_position;
  if (i.task != Task::store && lost && i.in[i.from]) leave(part.image, i.from);
  i.waits = true;  // it does not count as coming any more
  end_task(part.image, done && wanted);
}

ImageCacheModel::Plan ImageCacheModel::settle(const std::vector<TransferResult>& results) {
  for (Tier& tier : tiers_) tier.gap_grew = false;
  for (const TransferResult& result : results) {
    const UnderWay part = under_way_.at(result.id);
    under_way_.erase(result.id);
    const bool done = result.status == TransferStatus::done;
    Image& i = images_[part.image];
    switch (part.transfer.kind) {
      case Transfer::Kind::load: {
        const std::size_t tier = tier_of(part.transfer.from);
        --i.reads;
        tiers_[tier].writes_wait = false;
        if (!done && i.in[tier]) leave(part.image, tier);
        this->part(part.transfer.request, done);
        break;
      }
      case Transfer::Kind::find: {
        const std::size_t remote = tiers_.size() - 1;
        const bool comes = i.task != Task::none && i.to == remote;
        if (done && !comes && !i.in[remote] && make_room(remote, part.image) == 1) i.in[remote] = true;
        --i.reads;
        this->part(part.transfer.request, is_somewhere(part.image));
        break;
      }
      default:
        arrived(part, result.status);
    }
    forget_unknown();
  }
  return run();
}

bool ImageCacheModel::pin(const std::vector<std::size_t>& images) {
  if (!std::ranges::all_of(images, [&](std::size_t image) { return is_somewhere(image); })) return false;
  for (const std::size_t image : images) ++images_[image].pins;
  return true;
}
bool ImageCacheModel::are_pinned(const std::vector<std::size_t>& images) const {
  return std::ranges::all_of(
      images, [&](std::size_t image) { return std::ranges::count(images, image) <= images_[image].pins; });
}
void ImageCacheModel::unpin(const std::vector<std::size_t>& images) {
  for (const std::size_t image : images) --images_[image].pins;
  forget_unknown();
}
void ImageCacheModel::touch(const std::vector<std::size_t>& images) {
  for (std::size_t n = images.size(); n-- > 0;)
    if (is_known(images[n])) use(images[n]);
}
bool ImageCacheModel::attach(Medium medium, std::size_t image) {
  const std::size_t tier = tier_of(medium);
  Image& i = images_[image];
  if (i.in[tier]) return true;
  if (held(tier, false) + bytes_of(image) > tiers_[tier].capacity) return false;
  if (i.task != Task::none && i.to == tier) return true;
  i.in[tier] = true;
  use(image);
  return true;
}
std::optional<Medium> ImageCacheModel::where(std::size_t image) const {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
    if (images_[image].in[tier]) return tiers_[tier].medium;
  return std::nullopt;
}
std::size_t ImageCacheModel::under_way() const {
  const auto waiting = std::ranges::count_if(images_, [](const Image& image) { return image.waits; });
  return under_way_.size() + static_cast<std::size_t>(waiting);
}
std::int64_t ImageCacheModel::images_in(Medium medium) const {
  const std::size_t tier = tier_of(medium);
  return std::ranges::count_if(images_, [&](const Image& image) { return image.in[tier]; });
}
std::int64_t ImageCacheModel::bytes_in(Medium medium) const {
  return held(tier_of(medium), false);
}
std::vector<TransferId> ImageCacheModel::unanswered() const {
  std::vector<TransferId> ids;
  for (const auto& [id, part] : under_way_) ids.push_back(id);
  return ids;
}

}  // namespace stateport::test
