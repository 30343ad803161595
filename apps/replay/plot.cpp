// SPDX-License-Identifier: Apache-2.0
// stateport-plot: reads the description of a plot (JSON, see `help`) from the standard input and writes it as SVG to
// the standard output.
#include "report/svg_plot.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr const char* help =
    "usage: stateport-plot < plot.json > plot.svg\n"
    "{\"title\": TEXT, \"x\": TEXT, \"y\": TEXT, \"places\": [TEXT, ...], \"series\": {NAME: [NUMBER, ...], ...}}\n"
    "draws a line for each series, which has a number >= 0 for each place.\n";

stateport::replay::Plot read_plot(std::istream& in) {
  const auto json = nlohmann::ordered_json::parse(in);
  stateport::replay::Plot plot{.title = json.at("title").get<std::string>(),
                               .x_title = json.at("x").get<std::string>(),
                               .y_title = json.at("y").get<std::string>(),
                               .places = json.at("places").get<std::vector<std::string>>()};
  for (const auto& [name, values] : json.at("series").items()) {
    plot.series.push_back({name, values.get<std::vector<double>>()});
    if (plot.series.back().values.size() != plot.places.size())
      throw std::invalid_argument("series " + name + " has another number of values than there are places");
  }
  return plot;
}

}  // namespace

int main(int argc, char**) {
  constexpr int failed = 2;
  if (argc > 1) {
    fmt::print(stderr, "{}", help);
    return failed;
  }
  try {
    fmt::print("{}", stateport::replay::to_svg_file(read_plot(std::cin)));
  } catch (const std::exception& error) {
    fmt::print(stderr, "stateport-plot: {}\n", error.what());
    return failed;
  }
  return 0;
}
