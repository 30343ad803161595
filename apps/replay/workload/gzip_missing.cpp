// SPDX-License-Identifier: Apache-2.0
#include "workload/gzip.hpp"

#include <stdexcept>

namespace stateport::replay {

std::unique_ptr<std::streambuf> make_gzip_reader(std::streambuf&) {
  throw std::runtime_error("gzip: zlib was missing when this program was built (Debian package: zlib1g-dev)");
}

}  // namespace stateport::replay
