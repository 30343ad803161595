// SPDX-License-Identifier: Apache-2.0
#include "file/make_file_tier.hpp"

#include "file/file_tier_impl.hpp"

#include <memory>
#include <utility>

namespace stateport {

FileTier make_file_tier(const FileTierOptions& options, std::vector<ImageLayout> layouts, FileCalls& calls) {
  return FileTier(std::make_unique<FileTier::Impl>(options, std::move(layouts), calls));
}

}  // namespace stateport
