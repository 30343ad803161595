// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stateport::replay {

/// Numbers over named places that lie at equal distances.
struct Plot {
  enum class Kind : std::uint8_t {
    lines,    ///< a line for each series
    columns,  ///< a column for each place, of the series on top of each other
    beside,   ///< a column for each place and series
  };
  struct Series {
    std::string name;
    std::vector<double> values;  ///< one for each place, >= 0
  };
  struct Level {
    std::string name;
    double value = 0;
  };

  Kind kind = Kind::lines;
  std::string title;  ///< what a screen reader says
  std::string x_title;
  std::string y_title;  ///< with the unit
  std::vector<std::string> places;
  std::vector<Series> series;
  std::optional<Level> level;  ///< a dashed line across
  int decimals = 2;            ///< of the values that are shown when a mark is pointed at
};

/// An inline <svg> element, self-contained.
[[nodiscard]] std::string to_svg(const Plot& plot);

/// `text` with & < > " replaced, for HTML.
[[nodiscard]] std::string escape_html(const std::string& text);

}  // namespace stateport::replay
