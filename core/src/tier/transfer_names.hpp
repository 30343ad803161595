// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <string_view>

namespace stateport {

[[nodiscard]] constexpr std::string_view name(Medium medium) noexcept {
  switch (medium) {
    case Medium::device:
      return "device";
    case Medium::host:
      return "host";
    case Medium::file:
      return "file";
    case Medium::remote:
      return "remote";
    case Medium::elsewhere:
      return "elsewhere";
  }
  return "?";
}

[[nodiscard]] constexpr std::string_view name(TransferStatus status) noexcept {
  switch (status) {
    case TransferStatus::done:
      return "done";
    case TransferStatus::no_room:
      return "no_room";
    case TransferStatus::gone:
      return "gone";
    case TransferStatus::damaged:
      return "damaged";
    case TransferStatus::foreign_layout:
      return "foreign_layout";
    case TransferStatus::wrong_position:
      return "wrong_position";
    case TransferStatus::failed:
      return "failed";
  }
  return "?";
}

}  // namespace stateport
