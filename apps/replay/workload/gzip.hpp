// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <streambuf>

namespace stateport::replay {

/// A reader of the gzip data in `compressed`, which must outlive it: one member or several in a row. Reading throws
/// std::runtime_error for damaged or missing bytes, and for bytes of something else behind the last member. Throws
/// std::runtime_error if zlib was missing when this was built.
[[nodiscard]] std::unique_ptr<std::streambuf> make_gzip_reader(std::streambuf& compressed);

}  // namespace stateport::replay
