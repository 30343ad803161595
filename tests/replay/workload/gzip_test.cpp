// SPDX-License-Identifier: Apache-2.0
#include "workload/gzip.hpp"

#include "random.hpp"
#include "workload/trace.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <istream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

using namespace stateport::replay;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

/// One member.
std::string compressed(const std::string& text) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string plain = text;
  std::string bytes(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

std::string decompressed(const std::string& bytes) {
  std::stringbuf source(bytes);
  const auto reader = make_gzip_reader(source);
  std::istream stream(reader.get());
  stream.exceptions(std::ios::badbit);
  std::string text;
  for (char character = 0; stream.get(character);) text += character;
  return text;
}

std::string random_text(Random& random, std::int64_t bytes) {
  std::string text;
  while (std::ssize(text) < bytes) text += static_cast<char>(random.between(0, random.chance(50) ? 255 : 3));
  return text;
}

}  // namespace

TEST_CASE("texts of any size come back, of one member or several") {
  for_each_seed(40, [](Random& random, std::uint64_t) {
    constexpr std::int64_t piece_bytes = 65536;  // of the reader
    std::string whole;
    std::string bytes;
    for (std::int64_t members = random.between(1, 3); members > 0; --members) {
      const std::int64_t size = random.chance(50) ? random.between(0, 3) * piece_bytes + random.between(-1, 1)
                                                  : random.between(0, 3 * piece_bytes);
      const std::string text = random_text(random, size);
      whole += text;
      bytes += compressed(text);
    }
    CHECK((decompressed(bytes) == whole));
  });
}

TEST_CASE("bytes that are missing, changed or of something else are refused") {
  const std::string bytes = compressed("a text that is long enough to have a body of its own");
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK_THROWS_WITH_AS((void)decompressed(bytes.substr(0, size)), "gzip: the file ends too early",
                         std::runtime_error);
  }
  std::string damaged = bytes;
  damaged[damaged.size() - 5] = static_cast<char>(damaged[damaged.size() - 5] ^ 1);
  CHECK_THROWS_WITH_AS((void)decompressed(damaged), "gzip: incorrect data check", std::runtime_error);
  CHECK_THROWS_WITH_AS((void)decompressed(bytes + "more"), "gzip: incorrect header check", std::runtime_error);
}

TEST_CASE("every format may be compressed, and damage ends the reading of it") {
  const std::string row = "7\n";
  std::string csv = "Request tokens\n";
  while (csv.size() < 300'000) csv += row;
  for (const std::string& text :
       {std::string(R"({"input_length":7,"hash_ids":[]})"), csv, std::string("ContextTokens\n7\n"),
        std::string(R"([{"conversations":[{"from":"human","tokens":7}]}])")}) {
    std::istringstream plain(text);
    std::istringstream bytes(compressed(text));
    const Trace expected = read_trace(plain);
    const Trace trace = read_trace(bytes);
    CHECK(trace.format == expected.format);
    CHECK(trace.workload.size() == expected.workload.size());
    CHECK(trace.workload.request(0).input_tokens == 7);
    CHECK(trace.description() == expected.description() + " in gzip");
    std::istringstream cut(compressed(text).substr(0, compressed(text).size() - 1));
    CHECK_THROWS_WITH_AS((void)read_trace(cut, {.skip_bad = true}), "gzip: the file ends too early",
                         std::runtime_error);
  }
}
