// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace stateport::test {

/// Reads the text exposition format of Prometheus as strictly as it is specified, for families that have a HELP and a
/// TYPE. Fails the test for anything else.
class PrometheusSamples {
 public:
  explicit PrometheusSamples(const std::string& text) {
    REQUIRE((!text.empty() && text.back() == '\n'));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) read(line);
    end_family();
  }

  /// By name and labels, as they stand in the text.
  [[nodiscard]] double operator[](const std::string& sample) const {
    const auto found = samples_.find(sample);
    REQUIRE_MESSAGE(found != samples_.end(), sample);
    return found->second;
  }
  [[nodiscard]] bool has(const std::string& sample) const { return samples_.contains(sample); }
  [[nodiscard]] const std::set<std::string>& families() const { return families_; }

 private:
  void read(const std::string& line) {
    static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) \S.*)");
    static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
    static const std::regex sample(
        R"rx(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*",?)+\})? ([-+.0-9eE]+|[+-]Inf|NaN))rx");
    std::smatch part;
    if (std::regex_match(line, part, help)) {
      end_family();
      family_ = part[1];
      REQUIRE_MESSAGE(families_.insert(family_).second, family_);
      type_.clear();
    } else if (std::regex_match(line, part, type)) {
      REQUIRE(part[1] == family_);
      REQUIRE(type_.empty());
      type_ = part[2];
      // OpenMetrics and the client for Python take the name of a counter without this.
      const bool is_total = family_.ends_with("_total");
      REQUIRE_MESSAGE(is_total == (type_ == "counter"), family_);
    } else {
      REQUIRE_MESSAGE(std::regex_match(line, part, sample), line);
      add(part[1], part[2], std::strtod(part[5].str().c_str(), nullptr));
    }
  }

  void add(const std::string& name, const std::string& labels, double value) {
    REQUIRE(!type_.empty());
    REQUIRE_MESSAGE(samples_.emplace(name + labels, value).second, (name + labels));
    if (type_ != "histogram") {
      REQUIRE(name == family_);
      REQUIRE((type_ == "gauge" || value >= 0));
      return;
    }
    static const std::regex bucket(R"rx((.*?),?le="([^"]*)"\})rx");
    std::smatch part;
    if (name == family_ + "_bucket") {
      REQUIRE(std::regex_match(labels, part, bucket));
      Series& series = series_[part[1] == "{" ? "" : part[1].str() + "}"];
      const double bound = part[2] == "+Inf" ? INFINITY : std::stod(part[2]);
      REQUIRE(bound > series.bound);
      REQUIRE(value >= series.count);
      series.bound = bound;
      series.count = value;
    } else if (name == family_ + "_count") {
      REQUIRE(std::isinf(series_[labels].bound));
      REQUIRE(series_[labels].count == value);
      series_[labels].is_counted = true;
    } else {
      REQUIRE(name == family_ + "_sum");
    }
  }

  void end_family() {
    for (const auto& [labels, series] : series_) REQUIRE(series.is_counted);
    series_.clear();
  }

  struct Series {
    double bound = -INFINITY;
    double count = 0;
    bool is_counted = false;
  };

  std::string family_;
  std::string type_;
  std::map<std::string, Series> series_;  ///< of the family, by labels
  std::set<std::string> families_;
  std::map<std::string, double> samples_;
};

}  // namespace stateport::test
