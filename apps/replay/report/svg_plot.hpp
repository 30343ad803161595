// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

/// How a page, or a file of its own, shows the classes that a plot uses.
inline constexpr std::string_view svg_style =
    "svg text{font:13px system-ui,sans-serif;fill:#333}\n"
    ".grid{stroke:#e4e4e4}.axis{stroke:#888}.level{stroke:#000;stroke-width:1.5;stroke-dasharray:6 4}\n";

/// An inline <svg> element for a page with svg_style.
[[nodiscard]] std::string to_svg(const Plot& plot);
/// The same as a file of its own, with its title above it.
[[nodiscard]] std::string to_svg_file(const Plot& plot);

/// `text` with & < > " replaced, for HTML.
[[nodiscard]] std::string escape_html(const std::string& text);

}  // namespace stateport::replay
