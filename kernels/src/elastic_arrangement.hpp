// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::kernels {

/// Where the tensors of an ElasticStore lie, relative to the start of its addresses.
struct ElasticArrangement {
  struct Moving {
    std::size_t offset = 0;
    std::size_t bytes = 0;  ///< of one extent; extent e begins `e * bytes` after the offset
  };

  std::vector<StateTensorView> tensors;  ///< in the order of the spec; without a base
  std::vector<std::size_t> offsets;      ///< of the tensors
  std::vector<Moving> moving;            ///< ascending; a whole image in slot_major
  std::int64_t extent_slots = 0;
  std::int64_t extents = 0;
  std::size_t fixed_offset = 0;
  std::size_t fixed_bytes = 0;  ///< tensors that stay; whole granules
  std::size_t bytes = 0;        ///< of all addresses
};

/// `granularity`: a power of two. Throws InvalidArgument: slots < 1, more bytes than memory has.
[[nodiscard]] ElasticArrangement arrange_elastic(const StateSpec& spec, const StoreOptions& options,
                                                 std::size_t granularity);

/// The stride of slots with `bytes`: the multiple of the largest power of two, up to `granularity`, that wastes less
/// than 1/16 of the bytes. At least a multiple of 16.
[[nodiscard]] std::size_t elastic_stride(std::size_t bytes, std::size_t granularity) noexcept;

}  // namespace stateport::kernels
