// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/elastic_store.hpp>

#include <stateport/core/model/error.hpp>

#include "elastic_arrangement.hpp"

#include <algorithm>

namespace stateport {
namespace {

/// Addresses, with memory for the tensors that stay.
Buffer reserve(ElasticResource& resource, const kernels::ElasticArrangement& arrangement, const Stream& stream) {
  Buffer memory(resource, arrangement.bytes, MemoryResource::max_alignment, stream);
  if (arrangement.fixed_bytes == 0) return memory;
  if (!resource.map(memory.as<std::byte>() + arrangement.fixed_offset, arrangement.fixed_bytes))
    throw OutOfMemory("ElasticStore, for tensors that stay", arrangement.fixed_bytes,
                      resource.limit_bytes() - resource.mapped_bytes());
  return memory;
}

StateStore view_of(const kernels::ElasticArrangement& arrangement, std::byte* base, std::int32_t slots) {
  std::vector<StateTensorView> tensors = arrangement.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].base = base + arrangement.offsets[i];
  return StateStore::view(tensors, slots);
}

}  // namespace

ElasticStore::ElasticStore(ElasticResource& resource, const StateSpec& spec, const StoreOptions& options,
                           const Stream& stream)
    : ElasticStore(resource, kernels::arrange_elastic(spec, options, resource.granularity()), options.slots, stream) {}

ElasticStore::ElasticStore(ElasticResource& resource, const kernels::ElasticArrangement& arrangement,
                           std::int32_t slots, const Stream& stream)
    : resource_(&resource),
      memory_(reserve(resource, arrangement, stream)),
      store_(view_of(arrangement, memory_.as<std::byte>(), slots)),
      extent_{.count = static_cast<std::int32_t>(arrangement.extent_slots)},
      fixed_bytes_(static_cast<std::int64_t>(arrangement.fixed_bytes)),
      is_mapped_(static_cast<std::size_t>(arrangement.extents)),
      ranges_(arrangement.moving.size()) {
  for (const auto& [offset, bytes] : arrangement.moving) {
    moving_.push_back({.base = memory_.as<std::byte>() + offset, .bytes = bytes});
    extent_.bytes += static_cast<std::int64_t>(bytes);
  }
}

ElasticStore::~ElasticStore() = default;

bool ElasticStore::is_mapped(std::int32_t extent) const {
  require(extent >= 0 && extent < extents(), "extent", extent, "must be below extents()");
  return is_mapped_[static_cast<std::size_t>(extent)];
}

std::span<const MemoryRange> ElasticStore::ranges_of(std::int32_t extent) {
  for (std::size_t i = 0; i < moving_.size(); ++i)
    ranges_[i] = {.address = moving_[i].base + static_cast<std::size_t>(extent) * moving_[i].bytes,
                  .bytes = moving_[i].bytes};
  return ranges_;
}

bool ElasticStore::map(std::int32_t extent) {
  require(!is_mapped(extent), "extent", extent, "must not be mapped");
  if (!resource_->map(ranges_of(extent))) return false;
  is_mapped_[static_cast<std::size_t>(extent)] = true;
  ++mapped_extents_;
  return true;
}

void ElasticStore::unmap(std::int32_t extent) {
  require(is_mapped(extent), "extent", extent, "must be mapped");
  const std::span<const MemoryRange> ranges = ranges_of(extent);
  const auto note_unmapped = [&] {
    is_mapped_[static_cast<std::size_t>(extent)] = false;
    --mapped_extents_;
  };
  try {
    resource_->unmap(ranges);
  } catch (const BackendError&) {
    // The system may have refused the way back, too. An extent with holes cannot be used.
    if (!std::ranges::all_of(
            ranges, [&](const MemoryRange& range) { return resource_->is_mapped(range.address, range.bytes); }))
      note_unmapped();
    throw;
  }
  note_unmapped();
}

}  // namespace stateport
