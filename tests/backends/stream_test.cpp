// SPDX-License-Identifier: Apache-2.0
#include <stateport/backends/stream.hpp>

#include <doctest/doctest.h>

using stateport::Stream;

TEST_CASE("all Streams that name one native stream are equal") {
  const Stream stream = Stream::create();
  CHECK(stream == Stream{stream});
  CHECK(Stream::default_stream() == Stream::default_stream());
  CHECK(Stream::from_native(Stream::default_stream().native()) == Stream::default_stream());
  CHECK_FALSE(stream == Stream::create());
}
