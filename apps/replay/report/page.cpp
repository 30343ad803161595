// SPDX-License-Identifier: Apache-2.0
#include "report/page.hpp"

#include <fmt/format.h>

#include <iterator>
#include <string_view>
#include <utility>

namespace stateport::replay {
namespace {

constexpr std::string_view style =
    "body{font:15px/1.45 system-ui,sans-serif;color:#222;background:#fff;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2.5rem 0 .3rem}p{margin:.2rem 0 .8rem;color:#444}\n"
    "svg{width:100%;height:auto;display:block}\n"
    ".table{overflow-x:auto;border:1px solid #ddd;margin:.6rem 0}\n"
    "table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}\n"
    "th,td{padding:.2rem .6rem;text-align:right;white-space:nowrap}\n"
    "th:first-child,td:first-child{text-align:left}tbody tr:nth-child(even){background:#f6f6f6}\n"
    "thead th{border-bottom:1px solid #bbb}\n"
    "#run td{text-align:left;white-space:normal}\n";

}  // namespace

void Page::begin(const std::string& about, const char* heading) {
  fmt::format_to(std::back_inserter(text_),
                 "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width\">\n<title>stateport-replay: {}</title>\n"
                 "<style>\n{}{}</style>\n</head>\n<body>\n<h1>{}</h1>\n",
                 escape_html(about), style, svg_style, escape_html(heading));
}

void Page::section(const char* heading, const char* explanation) {
  fmt::format_to(std::back_inserter(text_), "<h2>{}</h2>\n<p>{}</p>\n", escape_html(heading), escape_html(explanation));
}

void Page::table(const Table& table) {
  fmt::format_to(std::back_inserter(text_), "<div class=\"table\"><table id=\"{}\">\n", table.id);
  if (!table.head.empty()) {
    text_ += "<thead>";
    row(table.head, "th");
    text_ += "</thead>\n";
  }
  text_ += "<tbody>\n";
  for (const auto& cells : table.rows) row(cells, "td");
  text_ += "</tbody></table></div>\n";
}

std::string Page::end() {
  text_ += "</body>\n</html>\n";
  return std::move(text_);
}

void Page::row(const std::vector<std::string>& cells, const char* tag) {
  text_ += "<tr>";
  for (const std::string& cell : cells)
    fmt::format_to(std::back_inserter(text_), "<{0}>{1}</{0}>", tag, escape_html(cell));
  text_ += "</tr>\n";
}

}  // namespace stateport::replay
