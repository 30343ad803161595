// SPDX-License-Identifier: Apache-2.0
#include "workload/gzip.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cstddef>
#include <stdexcept>

namespace stateport::replay {
namespace {

constexpr int gzip_windows = MAX_WBITS + 16;  // zlib: 16 more than the size of the window asks for gzip's header

class GzipReader final : public std::streambuf {
 public:
  explicit GzipReader(std::streambuf& compressed) : compressed_(compressed) {
    if (inflateInit2(&inflater_, gzip_windows) != Z_OK) throw std::runtime_error("gzip: zlib could not start");
  }
  ~GzipReader() override { inflateEnd(&inflater_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

 protected:
  int_type underflow() override {
    inflater_.next_out = out_.data();
    inflater_.avail_out = static_cast<uInt>(out_.size());
    while (inflater_.avail_out == out_.size() && fill()) inflate_some();
    const std::size_t count = out_.size() - inflater_.avail_out;
    char* const begin = reinterpret_cast<char*>(out_.data());
    setg(begin, begin, begin + count);
    return count == 0 ? traits_type::eof() : traits_type::to_int_type(*begin);
  }

 private:
  /// False: there are no more bytes. Throws if there should be.
  bool fill() {
    if (inflater_.avail_in > 0) return true;
    const auto count = compressed_.sgetn(reinterpret_cast<char*>(in_.data()), static_cast<std::streamsize>(in_.size()));
    inflater_.next_in = in_.data();
    inflater_.avail_in = static_cast<uInt>(count);
    if (count == 0 && in_member_) throw std::runtime_error("gzip: the file ends too early");
    return count > 0;
  }
  void inflate_some() {
    if (!in_member_) inflateReset(&inflater_);
    in_member_ = true;
    const int result = inflate(&inflater_, Z_NO_FLUSH);
    if (result == Z_STREAM_END)
      in_member_ = false;
    else if (result != Z_OK)
      throw std::runtime_error(fmt::format("gzip: {}", inflater_.msg != nullptr ? inflater_.msg : "damaged data"));
  }

  std::streambuf& compressed_;
  z_stream inflater_ = {};
  bool in_member_ = false;
  std::array<Bytef, std::size_t{1} << 16> in_;
  std::array<Bytef, std::size_t{1} << 16> out_;
};

}  // namespace

std::unique_ptr<std::streambuf> make_gzip_reader(std::streambuf& compressed) {
  return std::make_unique<GzipReader>(compressed);
}

}  // namespace stateport::replay
