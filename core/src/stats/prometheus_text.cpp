// SPDX-License-Identifier: Apache-2.0
#include "stats/prometheus_text.hpp"

#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace stateport::detail {
namespace {

bool may_begin_a_name(std::string_view prefix) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
  };
  const auto is_inside = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !prefix.empty() && is_letter(prefix.front()) && std::ranges::all_of(prefix, is_inside);
}

void append_label(std::string& text, std::string_view name, std::string_view value) {
  text += text.back() == '{' ? "" : ",";
  text.append(name).append("=\"");
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  text += '"';
}

}  // namespace

PrometheusText::PrometheusText(std::string_view prefix) : prefix_(prefix) {
  require(may_begin_a_name(prefix), "prefix", prefix, "must be letters, digits, _ and :, and begin with no digit");
}

void PrometheusText::begin(std::string_view metric, std::string_view type, std::string_view help) {
  name_ = fmt::format("{}_{}", prefix_, metric);
  fmt::format_to(std::back_inserter(text_), "# HELP {0} {2}\n# TYPE {0} {1}\n", name_, type, help);
}

void PrometheusText::add_bucket(double bound, std::int64_t count, Labels labels) {
  add_sample("_bucket", labels, std::isinf(bound) ? "+Inf" : fmt::format("{}", bound), count);
}

void PrometheusText::begin_sample(std::string_view suffix, Labels labels, std::string_view bound) {
  text_.append(name_).append(suffix);
  if (labels.size() == 0 && bound.empty()) return;
  text_ += '{';
  for (const Label& label : labels) append_label(text_, label.name, label.value);
  if (!bound.empty()) append_label(text_, "le", bound);
  text_ += '}';
}

void PrometheusText::add_sample(std::string_view suffix, Labels labels, std::string_view bound, std::int64_t value) {
  begin_sample(suffix, labels, bound);
  fmt::format_to(std::back_inserter(text_), " {}\n", value);
}

void PrometheusText::add_sample(std::string_view suffix, Labels labels, std::string_view bound, double value) {
  begin_sample(suffix, labels, bound);
  fmt::format_to(std::back_inserter(text_), " {}\n", value);
}

}  // namespace stateport::detail
