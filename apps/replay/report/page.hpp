// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/svg_plot.hpp"

#include <string>
#include <vector>

namespace stateport::replay {

/// What is written of a table: text alone.
struct Table {
  const char* id;
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};

/// Collects a page of HTML that fetches nothing.
class Page {
 public:
  void begin(const std::string& about, const char* heading);
  void section(const char* heading, const char* explanation);
  void plot(const Plot& plot) { text_ += to_svg(plot); }
  void table(const Table& table);
  /// Ends the page, and answers it.
  [[nodiscard]] std::string end();

 private:
  void row(const std::vector<std::string>& cells, const char* tag);

  std::string text_;
};

}  // namespace stateport::replay
