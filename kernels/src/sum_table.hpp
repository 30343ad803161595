// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/kernels/state_store.hpp>

#include "copy_table.hpp"
#include "state_sums.hpp"

#include <cstdint>

namespace stateport::kernels {

/// How one tensor of a SumTable is summed.
struct SumRule {
  ExponentMask exponents;
  std::uint64_t scales_begin = 0;  ///< int8_block32: the byte of a slot where its scales begin; 0: other types
};

/// The tiles of a SumTable as a kernel sees them. Tensors without gaps are in mode bytes, and their elements are bytes;
/// conv states with gaps are in mode elements. The source of each route is the store.
struct SumTableView {
  CopyTableView tiles;
  const SumRule* rules = nullptr;  ///< [tensors]
};

/// The tiles and rules by which kernels sum the slots of one store, in device memory.
class SumTable {
 public:
  /// Throws InvalidArgument as CopyTable.
  SumTable(const StateStore& store, std::size_t tile_bytes_max);

  [[nodiscard]] SumTableView view() const noexcept { return {.tiles = tiles_.view(), .rules = rules_.as<SumRule>()}; }

 private:
  CopyTable tiles_;
  DeviceResource resource_;
  Buffer rules_;
};

}  // namespace stateport::kernels
