// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/handover.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/resharder.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stateport {

class HandoverEnd::Impl {
 public:
  Impl(MemoryResource& resource, const SharedLayout& shared, const StateStore& store, const ObjectSetOptions& options,
       std::int32_t count)
      : set(shared.layout, shared.shard, options),
        places(checked_places(count)),
        buffer(resource, set.bytes() * static_cast<std::size_t>(count), ImageLayout::alignment_bytes) {
    empty_places();
    std::vector<StateStore> views;
    for (std::size_t object = 0; object < set.size(); ++object)
      views.push_back(set.view(object, buffer.as<std::byte>(), set.bytes(), places));
    std::vector<ShardStore> objects;
    for (std::size_t object = 0; object < set.size(); ++object) objects.push_back({&views[object], set.shard(object)});
    const ShardStore rank{&store, shared.shard};
    pack.emplace(shared.layout, std::span(&rank, 1), objects);
    unpack.emplace(shared.layout, objects, std::span(&rank, 1));
  }

  [[nodiscard]] std::int32_t checked_places(std::int32_t count) const {
    require(count >= 1, "places", count, "must be at least 1");
    require(set.bytes() <= static_cast<std::size_t>(PTRDIFF_MAX) / static_cast<std::size_t>(count), "places", count,
            "take more than memory has");
    return count;
  }

  /// The memory may still hold images of an end that had it before.
  void empty_places() {
    std::byte* at = buffer.as<std::byte>();
    for (std::int32_t place = 0; place < places; ++place, at += set.bytes())
      for (std::size_t object = 0; object < set.size(); ++object)
        std::fill_n(at + set.offset(object), set.layout(object).header_bytes(), std::byte{});
  }

  ObjectSet set;
  std::int32_t places;
  Buffer buffer;
  std::optional<Resharder> pack;
  std::optional<Resharder> unpack;
};

HandoverEnd::HandoverEnd(MemoryResource& memory, const SharedLayout& shared, const StateStore& store,
                         const ObjectSetOptions& options, std::int32_t places)
    : impl_(std::make_unique<Impl>(memory, shared, store, options, places)) {}
HandoverEnd::HandoverEnd(HandoverEnd&&) noexcept = default;
HandoverEnd& HandoverEnd::operator=(HandoverEnd&&) noexcept = default;
HandoverEnd::~HandoverEnd() = default;

const ObjectSet& HandoverEnd::set() const noexcept {
  return impl_->set;
}
std::int32_t HandoverEnd::places() const noexcept {
  return impl_->places;
}
std::span<std::byte> HandoverEnd::memory() const noexcept {
  return {impl_->buffer.as<std::byte>(), impl_->set.bytes() * static_cast<std::size_t>(impl_->places)};
}
std::span<std::byte> HandoverEnd::place(std::int32_t place) const {
  require(place >= 0 && place < impl_->places, "place", place, "is no place of this end");
  return memory().subspan(static_cast<std::size_t>(place) * impl_->set.bytes(), impl_->set.bytes());
}

void HandoverEnd::pack(const Stream& stream, CopyPlan plan) {
  impl_->pack->copy_slots(stream, plan);
}
void HandoverEnd::seal(std::int32_t place, const ImageKey& key) {
  impl_->set.seal(this->place(place), key);
}
TransferStatus HandoverEnd::check(std::int32_t place, const ImageKey& key) const {
  return impl_->set.check(this->place(place), key);
}
void HandoverEnd::unpack(const Stream& stream, CopyPlan plan) {
  impl_->unpack->copy_slots(stream, plan);
}

}  // namespace stateport
