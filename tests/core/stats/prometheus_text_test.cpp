// SPDX-License-Identifier: Apache-2.0
#include "stats/prometheus_text.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include "prometheus_samples.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <utility>

using namespace stateport;
using stateport::detail::PrometheusText;
using stateport::test::PrometheusSamples;

TEST_CASE("the text has a family for each begin, and escapes the values of labels") {
  PrometheusText text("a:b_1");
  text.begin_gauge("g", "Help.");
  text.add(std::int64_t{-3});
  text.add(std::numeric_limits<std::int64_t>::max(), {{"path", "C:\\d"}, {"said", "\"x\"\ny"}});
  text.add(0.25, {{"path", ""}});
  text.begin_counter("c_total", "Help.");
  text.add(std::int64_t{7});
  const std::string all = std::move(text).take();
  CHECK(all == R"(# HELP a:b_1_g Help.
# TYPE a:b_1_g gauge
a:b_1_g -3
a:b_1_g{path="C:\\d",said="\"x\"\ny"} 9223372036854775807
a:b_1_g{path=""} 0.25
# HELP a:b_1_c_total Help.
# TYPE a:b_1_c_total counter
a:b_1_c_total 7
)");
  CHECK(PrometheusSamples(all).families().size() == 2);
}

TEST_CASE("buckets of a histogram add up, with its labels before le") {
  DurationHistogram seconds;
  for (const double value : {0.0001, 0.25, 0.25, 1000.0}) seconds.add(value);
  PrometheusText text("p");
  text.begin_histogram("s", "Help.");
  text.add(seconds, {{"tier", "file"}});
  text.add(DurationHistogram{}, {{"tier", "host"}});
  const PrometheusSamples samples(std::move(text).take());
  CHECK(samples["p_s_bucket{tier=\"file\",le=\"0.000244140625\"}"] == 1);
  CHECK(samples["p_s_bucket{tier=\"file\",le=\"0.125\"}"] == 1);
  CHECK(samples["p_s_bucket{tier=\"file\",le=\"0.25\"}"] == 3);
  CHECK(samples["p_s_bucket{tier=\"file\",le=\"64\"}"] == 3);
  CHECK(samples["p_s_bucket{tier=\"file\",le=\"+Inf\"}"] == 4);
  CHECK(samples["p_s_count{tier=\"file\"}"] == 4);
  CHECK(samples["p_s_sum{tier=\"file\"}"] == doctest::Approx(1000.5001));
  CHECK(samples["p_s_count{tier=\"host\"}"] == 0);
}

TEST_CASE("a prefix that no name of a metric begins with is refused") {
  for (const char* const prefix : {"", "1a", "a b", "a-b", "a{", "\xc3\xa4"})
    CHECK_THROWS_WITH_AS(static_cast<void>(to_prometheus(CacheStats{}, prefix)), doctest::Contains("prefix"),
                         InvalidArgument);
  CHECK_NOTHROW(static_cast<void>(to_prometheus(CacheStats{}, "vllm:stateport_1")));
}
