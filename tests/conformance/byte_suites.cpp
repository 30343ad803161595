// SPDX-License-Identifier: Apache-2.0
// Suites of byte-level outcomes of the align copies, through plain host references.
#include "families.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace stateport::conformance {
namespace {

using Matrix = std::vector<std::vector<std::int64_t>>;

/// Tokens [bias, W) of src → [0, W - bias) of dst, in [token][channel] order.
void shift_tokens(const Matrix& src, Matrix& dst, std::size_t bias) {
  const Matrix tokens = src;  // src and dst may be one block
  for (std::size_t token = bias; token < tokens.size(); ++token) dst[token - bias] = tokens[token];
}

void require_shape(const Matrix& matrix, std::size_t rows, std::size_t columns, const char* field) {
  const auto is_row = [&](const auto& row) { return row.size() == columns; };
  if (matrix.size() == rows && std::ranges::all_of(matrix, is_row)) return;
  throw std::runtime_error(std::string("field ") + field + " must have " + std::to_string(rows) + " rows of " +
                           std::to_string(columns));
}

Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.empty() ? 0 : matrix[0].size(), std::vector<std::int64_t>(matrix.size()));
  for (std::size_t r = 0; r < matrix.size(); ++r)
    for (std::size_t c = 0; c < matrix[r].size(); ++c) result[c][r] = matrix[r][c];
  return result;
}

/// The same for [channel][token] order.
void shift_channels(const Matrix& src, Matrix& dst, std::size_t bias) {
  Matrix tokens = transposed(dst);
  shift_tokens(transposed(src), tokens, bias);
  dst = transposed(tokens);
}

void conv_shift_bytes(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("row " + std::to_string(i), [&] {
      const Json& row = rows[i];
      const auto src = row.at("src_tokens_major").get<Matrix>();
      const auto before = row.at("dst_before").get<Matrix>();
      const auto bias = row.at("bias").get<std::size_t>();
      const std::size_t channels = src.empty() ? 0 : src.front().size();
      require_shape(src, src.size(), channels, "src_tokens_major");
      require_shape(before, src.size(), channels, "dst_before");
      Matrix sd = before;
      shift_tokens(src, sd, bias);
      expect_equal(sd, row.at("expect_distinct"), "sd, another block");
      Matrix ds = transposed(before);
      shift_channels(transposed(src), ds, bias);
      expect_equal(transposed(ds), row.at("expect_distinct"), "ds, another block");
      Matrix same = src;
      shift_tokens(same, same, bias);
      expect_equal(same, row.at("expect_same_block"), "sd, the same block");
      Matrix same_ds = transposed(src);
      shift_channels(same_ds, same_ds, bias);
      expect_equal(transposed(same_ds), row.at("expect_same_block"), "ds, the same block");
    });
}

void overlap_memmove(const Json& value, Report& report) {
  report.run_case("rows moved in place", [&] {
    const auto bytes = value.at("bytes").get<std::size_t>();
    const auto shift = value.at("shift").get<std::size_t>();
    for (std::size_t row = 0; row < value.at("rows").get<std::size_t>(); ++row) {
      std::vector<std::uint8_t> buffer(bytes + shift);
      for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<std::uint8_t>(i * 31 + row);
      const std::vector<std::uint8_t> original = buffer;
      Matrix cells(1 + (bytes + shift - 1) / shift);
      for (std::size_t i = 0; i < buffer.size(); ++i) cells[i / shift].push_back(buffer[i]);
      shift_tokens(cells, cells, 1);
      for (std::size_t i = 0; i < bytes; ++i)
        if (cells[i / shift][i % shift] != original[i + shift]) throw std::runtime_error("byte " + std::to_string(i));
    }
  });
}

/// How one implementation splits a copy into 8-byte words; kept as an example of the data.
void u64_split(const Json& rows, Report& report) {
  constexpr std::int64_t words_step = 1024;
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("row " + std::to_string(i), [&] {
      const auto src = rows[i].at("src_mod").get<std::int64_t>();
      const auto dst = rows[i].at("dst_mod").get<std::int64_t>();
      const auto bytes = rows[i].at("bytes").get<std::int64_t>();
      const auto tiles = rows[i].at("tiles").get<std::int64_t>();
      const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
      Json got = {{"path", "bytes"}, {"n", bytes}};
      if (((src ^ dst) & 7) == 0) {
        const std::int64_t head = std::min((8 - dst % 8) % 8, bytes);
        const std::int64_t words = (bytes - head) / 8;
        const std::int64_t per_tile = up(up(words, tiles), words_step) * words_step;
        got = {{"path", "u64"},
               {"head", head},
               {"words", words},
               {"tail", bytes - head - words * 8},
               {"words_per_tile", per_tile},
               {"busy_tiles", per_tile == 0 ? 0 : up(words, per_tile)}};
      }
      expect_equal(got, rows[i].at("expect"), "split");
    });
}

void pointer_bits_to_int64(const Json& rows, Report& report) {
  for (const Json& row : rows)
    report.run_case(row.at("u64"), [&] {
      const std::uint64_t bits = std::stoull(row.at("u64").get<std::string>());
      expect_equal(std::to_string(std::bit_cast<std::int64_t>(bits)), row.at("i64"), "int64");
      expect_equal(std::to_string(std::bit_cast<std::uint64_t>(std::stoll(row.at("i64").get<std::string>()))),
                   row.at("u64"), "back");
    });
}

}  // namespace

void add_byte_suites(SuiteTable& table) {
  table.emplace("conv_shift_bytes", &conv_shift_bytes);
  table.emplace("overlap_memmove", &overlap_memmove);
  table.emplace("u64_split", &u64_split);
  table.emplace("pointer_bits_to_int64", &pointer_bits_to_int64);
}

}  // namespace stateport::conformance
