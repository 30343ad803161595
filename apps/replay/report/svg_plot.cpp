// SPDX-License-Identifier: Apache-2.0
#include "report/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

namespace stateport::replay {
namespace {

constexpr double width = 920;
constexpr double height = 360;
constexpr double left = 70;
constexpr double right = 190;  // for the legend
constexpr double top = 16;
constexpr double bottom = 52;
constexpr double inner_width = width - left - right;
constexpr double inner_height = height - top - bottom;
constexpr std::size_t labels_max = 12;

/// Okabe and Ito's: told apart by colour-blind readers too.
constexpr std::array colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#333333"};

const char* colour(std::size_t series) {
  return colours[series % colours.size()];
}

/// Draws one plot; `text_` is what it has so far.
class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot), step_(round_step(largest())) {
    top_value_ = step_ * std::max(1.0, std::ceil(largest() / step_ - 1e-9));
  }

  std::string draw() {
    add("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n", width, height,
        escape_html(plot_.title));
    add_axes();
    if (plot_.kind == Plot::Kind::lines)
      add_lines();
    else
      add_columns();
    add_level();
    add_legend();
    add("</svg>\n");
    return std::move(text_);
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void add_text(double x, double y, std::string_view anchor, const std::string& content) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escape_html(content));
  }

  [[nodiscard]] double largest() const {
    double most = plot_.level ? plot_.level->value : 0;
    for (std::size_t place = 0; place < plot_.places.size(); ++place) {
      double sum = 0;
      for (const Plot::Series& series : plot_.series) {
        sum += series.values[place];
        most = std::max(most, series.values[place]);
      }
      if (plot_.kind == Plot::Kind::columns) most = std::max(most, sum);
    }
    return most > 0 ? most : 1;
  }
  /// About five steps from 0 to `most`.
  [[nodiscard]] static double round_step(double most) {
    const double step = std::pow(10, std::floor(std::log10(most / 4)));
    for (const double factor : {1.0, 2.0, 5.0})
      if (most / (factor * step) <= 5 + 1e-9) return factor * step;
    return 10 * step;
  }

  [[nodiscard]] double x_of(double place) const {
    return left + (place + 0.5) * inner_width / static_cast<double>(std::max<std::size_t>(plot_.places.size(), 1));
  }
  [[nodiscard]] double y_of(double value) const { return height - bottom - value / top_value_ * inner_height; }

  void add_axes() {
    for (double value = 0; value <= top_value_ + step_ / 2; value += step_) {
      const double y = y_of(value);
      add("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", left, width - right, y, y,
          value == 0 ? "axis" : "grid");
      add_text(left - 8, y + 4, "end", fmt::format("{:g}", value));
    }
    const std::size_t every = (plot_.places.size() + labels_max - 1) / labels_max;
    for (std::size_t place = 0; place < plot_.places.size(); place += every)
      add_text(x_of(static_cast<double>(place)), height - bottom + 18, "middle", plot_.places[place]);
    add_text(left + inner_width / 2, height - 10, "middle", plot_.x_title);
    add("<g transform=\"translate(16 {:.1f}) rotate(-90)\">", top + inner_height / 2);
    add_text(0, 0, "middle", plot_.y_title);
    add("</g>\n");
  }

  [[nodiscard]] std::string hint(std::size_t series, std::size_t place) const {
    return fmt::format("<title>{}, {}: {:.{}f}</title>", escape_html(plot_.series[series].name),
                       escape_html(plot_.places[place]), plot_.series[series].values[place], plot_.decimals);
  }

  void add_lines() {
    for (std::size_t s = 0; s < plot_.series.size(); ++s) {
      const std::vector<double>& values = plot_.series[s].values;
      add("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"", colour(s));
      for (std::size_t place = 0; place < values.size(); ++place)
        add("{:.1f},{:.1f} ", x_of(static_cast<double>(place)), y_of(values[place]));
      add("\"/>\n");
      for (std::size_t place = 0; place < values.size(); ++place)
        add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\">{}</circle>\n", x_of(static_cast<double>(place)),
            y_of(values[place]), colour(s), hint(s, place));
    }
  }

  void add_columns() {
    const bool stacked = plot_.kind == Plot::Kind::columns;
    const double room = inner_width / static_cast<double>(std::max<std::size_t>(plot_.places.size(), 1));
    const double column =
        room * 0.8 / (stacked ? 1 : static_cast<double>(std::max<std::size_t>(plot_.series.size(), 1)));
    for (std::size_t place = 0; place < plot_.places.size(); ++place) {
      double below = 0;
      for (std::size_t s = 0; s < plot_.series.size(); ++s) {
        const double value = plot_.series[s].values[place];
        const double x =
            x_of(static_cast<double>(place)) - room * 0.4 + (stacked ? 0 : static_cast<double>(s) * column);
        if (value > 0)
          add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.2f}\" fill=\"{}\">{}</rect>\n", x,
              y_of(below + value), column, y_of(below) - y_of(below + value), colour(s), hint(s, place));
        if (stacked) below += value;
      }
    }
  }

  void add_level() {
    if (!plot_.level) return;
    const double y = y_of(plot_.level->value);
    add("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"level\"/>\n", left, width - right, y, y);
  }

  void add_legend() {
    constexpr double line = 20;
    const double x = width - right + 14;
    double y = top + 10;
    if (plot_.level) {
      add("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"level\"/>\n", x, x + 18, y - 4, y - 4);
      add_text(x + 24, y, "start", plot_.level->name);
      y += line;
    }
    // What lies on top in a column comes first.
    for (std::size_t i = 0; i < plot_.series.size(); ++i, y += line) {
      const std::size_t s = plot_.kind == Plot::Kind::columns ? plot_.series.size() - 1 - i : i;
      add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"10\" fill=\"{}\"/>\n", x, y - 9, colour(s));
      add_text(x + 24, y, "start", plot_.series[s].name);
    }
  }

  const Plot& plot_;
  double step_ = 1;
  double top_value_ = 1;
  std::string text_;
};

}  // namespace

std::string to_svg(const Plot& plot) {
  return Drawing(plot).draw();
}

std::string to_svg_file(const Plot& plot) {
  constexpr double title = 26;  // above the plot
  const std::string svg = to_svg(plot);
  const std::size_t end = svg.find('>') + 1;
  const std::string head = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 {:.0f} {:.0f} {:.0f}\" role=\"img\">\n<style>{}</style>\n"
      "<rect y=\"{:.0f}\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{:.0f}\" y=\"-8\">{}</text>",
      -title, width, height + title, svg_style, -title, left, escape_html(plot.title));
  return head + svg.substr(end);
}

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace stateport::replay
