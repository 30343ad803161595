// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/histogram.hpp>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace stateport::detail {

/// Writes metrics in the text exposition format of Prometheus (version 0.0.4), one family after the other.
class PrometheusText {
 public:
  struct Label {
    std::string_view name;
    std::string_view value;
  };
  using Labels = std::initializer_list<Label>;

  /// All names of metrics begin with `prefix` and an underscore. Throws InvalidArgument for a prefix that no name of a
  /// metric can begin with.
  explicit PrometheusText(std::string_view prefix);

  /// Begins a family, whose samples follow.
  void begin_counter(std::string_view metric, std::string_view help) { begin(metric, "counter", help); }
  void begin_gauge(std::string_view metric, std::string_view help) { begin(metric, "gauge", help); }
  void begin_histogram(std::string_view metric, std::string_view help) { begin(metric, "histogram", help); }

  /// Samples of the family that was begun last.
  void add(std::int64_t value, Labels labels = {}) { add_sample({}, labels, {}, value); }
  void add(double value, Labels labels = {}) { add_sample({}, labels, {}, value); }
  template <class Bounds>
  void add(const Histogram<Bounds>& histogram, Labels labels = {}) {
    std::int64_t reached = 0;
    for (int bucket = 0; bucket < Histogram<Bounds>::buckets; ++bucket) {
      reached += histogram.count(bucket);
      add_bucket(Histogram<Bounds>::upper(bucket), reached, labels);
    }
    add_sample("_sum", labels, {}, histogram.sum());
    add_sample("_count", labels, {}, histogram.total());
  }

  [[nodiscard]] std::string take() && { return std::move(text_); }

 private:
  void begin(std::string_view metric, std::string_view type, std::string_view help);
  void add_bucket(double bound, std::int64_t count, Labels labels);
  /// `bound`: the label le, if it is not empty. No template: shared libraries export names that begin with stateport.
  void add_sample(std::string_view suffix, Labels labels, std::string_view bound, std::int64_t value);
  void add_sample(std::string_view suffix, Labels labels, std::string_view bound, double value);
  void begin_sample(std::string_view suffix, Labels labels, std::string_view bound);

  std::string prefix_;
  std::string name_;  ///< of the family
  std::string text_;
};

}  // namespace stateport::detail
