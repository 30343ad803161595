// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/host_tier.hpp>
#include <stateport/tiers/image.hpp>

#include "copy_lane.hpp"
#include "image_files.hpp"
#include "random.hpp"
#include "transfer_executor.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

/// TransferExecutor with copies and files that take their time.
namespace stateport::test {

inline ImageKey state_image(std::uint64_t prefix, std::int32_t group = 0) {
  return {.prefix = {{prefix, 7}}, .tokens = 16, .group = group};
}
inline ImageKey kv_image(std::uint64_t prefix) {
  return {.prefix = {{prefix, 7}}, .tokens = 16, .content = CacheContent::kv_block};
}
struct KeyOrder {
  bool operator()(const ImageKey& a, const ImageKey& b) const {
    const auto all = [](const ImageKey& key) {
      return std::tuple(key.prefix.words, key.tokens, key.content, key.group);
    };
    return all(a) < all(b);
  }
};

inline Transfer store_to(Medium to, TransferId id, const ImageKey& image, std::int32_t place) {
  return {.id = id, .kind = Transfer::Kind::store, .image = image, .to = to, .place = place};
}
inline Transfer load_from(Medium from, TransferId id, const ImageKey& image, std::int32_t place) {
  return {.id = id, .kind = Transfer::Kind::load, .image = image, .from = from, .to = Medium::device, .place = place};
}
inline Transfer copy_down(TransferId id, const ImageKey& image) {
  return {.id = id, .kind = Transfer::Kind::copy, .image = image, .from = Medium::host, .to = Medium::file};
}
inline Transfer drop_from(Medium from, const ImageKey& image) {
  return {.kind = Transfer::Kind::drop, .image = image, .from = from, .to = from};
}

/// The states of one group, or KV blocks, on the device. What an image of a key holds follows from the key.
class DeviceStates {
 public:
  DeviceStates(const StateSpec& spec, std::int32_t slots) : store_(resource_, spec, {.slots = slots}) {}

  [[nodiscard]] const StateStore& store() const { return store_; }
  void fill(std::int32_t slot, const ImageKey& key) {
    for (std::size_t i = 0; i < store_.tensors().size(); ++i) {
      const std::vector<std::byte> bytes = content(key, i, store_.tensors()[i].spec);
      copy_bytes(stream_, store_.tensors()[i].slot_data(SlotId{slot}), bytes.data(), bytes.size());
    }
    stream_.synchronize();
  }
  [[nodiscard]] bool holds(std::int32_t slot, const ImageKey& key) const {
    for (std::size_t i = 0; i < store_.tensors().size(); ++i) {
      const std::vector<std::byte> bytes = content(key, i, store_.tensors()[i].spec);
      std::vector<std::byte> held(bytes.size());
      copy_bytes(stream_, held.data(), store_.tensors()[i].slot_data(SlotId{slot}), held.size());
      stream_.synchronize();
      if (held != bytes) return false;
    }
    return true;
  }
  [[nodiscard]] static std::vector<std::byte> content(const ImageKey& key, std::size_t tensor,
                                                      const StateTensorSpec& spec) {
    Random random(key.prefix.words[0] * 1000003 + static_cast<std::uint64_t>(key.tokens) * 101 +
                  static_cast<std::uint64_t>(key.group) * 11 + static_cast<std::uint64_t>(key.content) * 5 + tensor);
    std::vector<std::byte> bytes(spec.natural_bytes());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.bits());
    return bytes;
  }

 private:
  DeviceResource resource_;
  Stream stream_ = Stream::default_stream();
  StateStore store_;
};

/// A stream whose work is done when the test says so.
class LateLane final : public tiers::CopyLane {
 public:
  explicit LateLane(std::unique_ptr<tiers::CopyLane> lane) : lane_(std::move(lane)) {}

  void to_host(const Stream& stream, std::size_t kind, CopyPlan plan) override {
    if (refuse_stores) throw BackendError("to_host", "refused by the test");
    ++launches;
    enqueue([this, stream, kind, copies = std::vector(plan.begin(), plan.end())] {
      lane_->to_host(stream, kind, copies);
      stream.synchronize();
    });
  }
  void to_device(const Stream& stream, std::size_t kind, CopyPlan plan) override {
    if (refuse_loads) throw BackendError("to_device", "refused by the test");
    ++launches;
    enqueue([this, stream, kind, copies = std::vector(plan.begin(), plan.end())] {
      lane_->to_device(stream, kind, copies);
      stream.synchronize();
    });
  }
  void mark(const Stream&) override {
    if (refuse_marks) throw BackendError("mark", "refused by the test");
    enqueue([this, mark = ++marks_] { reached_ = mark; });
  }
  std::uint64_t reached() override { return lies ? marks_ : reached_; }

  /// Work of the engine on the same stream.
  void enqueue(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Does the first `count` pieces of work.
  void advance(std::size_t count = SIZE_MAX) {
    for (; count > 0 && !work_.empty(); --count) {
      work_.front()();
      work_.pop_front();
    }
  }
  [[nodiscard]] std::size_t waiting() const { return work_.size(); }

  bool refuse_stores = false;
  bool refuse_loads = false;
  bool refuse_marks = false;
  bool lies = false;  ///< says that copies are done which are not
  int launches = 0;

 private:
  std::unique_ptr<tiers::CopyLane> lane_;
  std::deque<std::function<void()>> work_;
  std::uint64_t marks_ = 0;
  std::uint64_t reached_ = 0;
};

/// Files that are written and read when the test says so, and a record of what happened.
class SlowFiles final : public tiers::ImageFiles {
 public:
  using Verify = std::function<bool(const ImageKey&, std::span<const std::byte>)>;
  using Seal = std::function<void(const ImageKey&, std::span<std::byte>)>;
  SlowFiles(Verify verify, Seal seal) : verify_(std::move(verify)), seal_(std::move(seal)) {}

  bool write(std::span<const Image> images, std::uint64_t ticket) override {
    if (requests_.size() >= queue_max || images.size() > images_max) return false;
    ++write_requests;
    largest_file = std::max(largest_file, images.size());
    requests_.push_back({.ticket = ticket, .images = {images.begin(), images.end()}});
    return true;
  }
  bool read(const ImageKey& key, std::span<std::byte> image, std::uint64_t ticket) override {
    if (requests_.size() >= queue_max) return false;
    requests_.push_back({.ticket = ticket, .images = {{key, {}}}, .into = image});
    return true;
  }
  void remove(const ImageKey& key) override {
    for (Request& request : requests_) {
      const bool names_it = std::ranges::find(request.images, key, &Image::key) != request.images.end();
      if (names_it && request.into.empty()) request.forgotten.push_back(key);
      if (names_it && !request.into.empty() && request.kept.empty() && held.contains(key)) request.kept = held[key];
    }
    held.erase(key);
  }
  std::size_t poll(std::span<Completion> completions) override {
    const std::size_t count = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), count, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  /// Carries out request `i` of those that wait.
  void finish(std::size_t i, TransferStatus status = TransferStatus::done) {
    Request request = std::move(requests_[i]);
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!request.into.empty())
      status = finish_read(request, status);
    else
      finish_write(request, status);
    done_.push_back({request.ticket, status});
  }
  void finish_all() {
    while (!requests_.empty()) finish(0);
  }
  [[nodiscard]] std::size_t waiting() const { return requests_.size(); }

  std::map<ImageKey, std::vector<std::byte>, KeyOrder> held;
  std::map<ImageKey, std::deque<TransferStatus>, KeyOrder> read_answers;
  std::size_t queue_max = SIZE_MAX;
  std::size_t images_max = SIZE_MAX;  ///< of one file
  int wrong_images = 0;               ///< that came with other bytes than their keys say
  int write_requests = 0;
  std::size_t largest_file = 0;

 private:
  struct Request {
    std::uint64_t ticket;
    std::vector<Image> images;
    std::span<std::byte> into = {};
    std::vector<ImageKey> forgotten = {};  ///< of a write: removed since
    std::vector<std::byte> kept = {};      ///< of a read: what was removed since
  };
  TransferStatus finish_read(const Request& request, TransferStatus status) {
    const ImageKey& key = request.images[0].key;
    const auto found = held.find(key);
    const std::vector<std::byte>& bytes = !request.kept.empty() || found == held.end() ? request.kept : found->second;
    if (status == TransferStatus::done && bytes.empty()) status = TransferStatus::gone;
    if (status == TransferStatus::done)
      std::ranges::copy(bytes, request.into.begin());
    else
      std::ranges::fill(request.into, std::byte{0xEE});
    read_answers[key].push_back(status);
    return status;
  }
  void finish_write(const Request& request, TransferStatus status) {
    for (const Image& image : request.images) {
      if (!verify_(image.key, image.bytes)) ++wrong_images;
      if (status != TransferStatus::done || std::ranges::find(request.forgotten, image.key) != request.forgotten.end())
        continue;
      // A file has a header of its own.
      std::vector<std::byte>& bytes = held[image.key];
      bytes.assign(image.bytes.begin(), image.bytes.end());
      seal_(image.key, bytes);
    }
  }

  Verify verify_;
  Seal seal_;
  std::vector<Request> requests_;
  std::deque<Completion> done_;
};

/// Two groups of states and KV. A frame of host memory has one image of group 0, two of group 1 or three KV blocks.
class TransferRig {
 public:
  explicit TransferRig(std::size_t frames, std::size_t staging_frames = 0,
                       const tiers::TransferExecutor::Limits& limits = {})
      : layouts_(make_layouts()), host(memory_, host_options(frames, staging_frames)) {
    // What the memory held before would do for an image that never came.
    std::memset(host.data(), 0xA5, (frames + staging_frames) * host.frame_bytes());
    std::vector<const StateStore*> stores;
    std::vector<StateStore> views;
    std::vector<tiers::TransferExecutor::Kind> kinds;
    for (std::size_t kind = 0; kind < layouts_.size(); ++kind) {
      stores.push_back(&states[kind].store());
      views.push_back(view(kind));
      kinds.push_back({layouts_[kind], slots});
    }
    lane = std::make_unique<LateLane>(std::make_unique<tiers::DeviceLane>(stores, views));
    executor =
        std::make_unique<tiers::TransferExecutor>(host, kinds, *lane, staging_frames > 0 ? &files : nullptr, limits);
  }

  void execute(const std::vector<Transfer>& transfers) {
    executor->execute(stream, {transfers});
    executor->check_invariants();
  }
  std::vector<TransferResult> poll(std::size_t max = 1000) {
    std::vector<TransferResult> results(max);
    results.resize(executor->poll(stream, results));
    executor->check_invariants();
    return results;
  }
  /// The engine writes the state of `key` to a slot, in the order of its stream.
  void compute(std::int32_t slot, const ImageKey& key) {
    lane->enqueue([this, slot, key] { of(key).fill(slot, key); });
  }
  DeviceStates& of(const ImageKey& key) { return states[static_cast<std::size_t>(host.kind_of(key))]; }
  [[nodiscard]] const ImageLayout& layout(const ImageKey& key) const {
    return layouts_[static_cast<std::size_t>(host.kind_of(key))];
  }
  /// Whether the sections of an image are what its key says.
  [[nodiscard]] bool verify(const ImageKey& key, std::span<const std::byte> image) const {
    const ImageLayout& its = layout(key);
    for (std::size_t i = 0; i < its.spec().tensors().size(); ++i) {
      const std::vector<std::byte> bytes = DeviceStates::content(key, i, its.spec().tensors()[i]);
      if (!std::ranges::equal(image.subspan(its.section_offset(i), bytes.size()), bytes)) return false;
    }
    return true;
  }

  static constexpr std::int32_t slots = 8;

 private:
  static std::vector<StateSpec> specs() {
    const StateTensorSpec tensor{.shape = {2, 3, 5}};
    return {StateSpec(std::vector(5, tensor)), StateSpec(std::vector(2, tensor)), StateSpec({tensor})};
  }
  static std::vector<ImageLayout> make_layouts() {
    return {ImageLayout(specs()[0], {.model = ModelId(9), .group = 0}),
            ImageLayout(specs()[1], {.model = ModelId(9), .group = 1}),
            ImageLayout(specs()[2], {.model = ModelId(9), .content = CacheContent::kv_block})};
  }
  [[nodiscard]] HostTierOptions host_options(std::size_t frames, std::size_t staging_frames) const {
    return {.budget_bytes = frames * layouts_[0].image_bytes(),
            .staging_bytes = staging_frames * layouts_[0].image_bytes(),
            .state_image_bytes = {layouts_[0].image_bytes(), layouts_[1].image_bytes()},
            .kv_image_bytes = layouts_[2].image_bytes()};
  }
  [[nodiscard]] StateStore view(std::size_t kind) const {
    std::vector<StateTensorView> tensors;
    for (std::size_t i = 0; i < layouts_[kind].spec().tensors().size(); ++i)
      tensors.push_back(
          {.spec = layouts_[kind].spec().tensors()[i],
           .base = host.data() + layouts_[kind].section_offset(i),
           .slot_stride_bytes = static_cast<std::int64_t>(host.stride_bytes(static_cast<std::int32_t>(kind)))});
    return StateStore::view(tensors, host.places(static_cast<std::int32_t>(kind)));
  }

  std::vector<ImageLayout> layouts_;
  PinnedResource memory_;

 public:
  Stream stream = Stream::default_stream();
  HostTier host;
  std::array<DeviceStates, 3> states{DeviceStates(specs()[0], slots), DeviceStates(specs()[1], slots),
                                     DeviceStates(specs()[2], slots)};
  std::unique_ptr<LateLane> lane;
  SlowFiles files{[this](const ImageKey& key, std::span<const std::byte> image) { return verify(key, image); },
                  [this](const ImageKey& key, std::span<std::byte> image) { layout(key).seal(image, key); }};
  std::unique_ptr<tiers::TransferExecutor> executor;
};

}  // namespace stateport::test
