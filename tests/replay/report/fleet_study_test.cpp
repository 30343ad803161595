// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_study.hpp"

#include <stateport/core/model/error.hpp>

#include "../fleet_world.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace stateport::replay;
using namespace stateport::replay::test;

namespace {

bool always() {
  return true;
}

double value(const FleetAnswer& answer, const char* name) {
  return figure(answer.figures, name).value;
}

}  // namespace

TEST_CASE("figures are those of the counts") {
  FleetCounts counts;
  counts.requests = 4;
  counts.requests_hit = 1;
  counts.input_tokens = 1000;
  counts.hit_tokens = {100, 50, 0, 250};
  counts.waited_s = 2;
  counts.end_s = 10;
  counts.first_token_s = {4, 1, 3, 2};
  counts.uncached_first_token_s = {8, 5, 7, 6};
  counts.failed_loads = 1;
  counts.rerouted_requests = 2;
  counts.remote.added_bytes = 80;
  counts.nodes = {
      {.requests = 3, .link_bytes = 30, .asked_images = 8, .found_images = 4, .lost_images = 2, .link_busy_s = 5},
      {.requests = 1, .link_bytes = 10, .asked_images = 4, .found_images = 2, .link_busy_s = 1}};
  const std::vector<FleetFigure> figures = figures_of(counts, 10);
  const auto value = [&](const char* name) { return figure(figures, name).value; };
  CHECK(value("token_hit_rate") == doctest::Approx(0.4));
  CHECK(value("device_token_hit_rate") == doctest::Approx(0.1));
  CHECK(value("host_token_hit_rate") == doctest::Approx(0.05));
  CHECK(value("file_token_hit_rate") == 0);
  CHECK(value("remote_token_hit_rate") == doctest::Approx(0.25));
  CHECK(value("request_hit_rate") == doctest::Approx(0.25));
  CHECK(value("first_token_p50_s") == 2);
  CHECK(value("first_token_p99_s") == 4);
  CHECK(value("uncached_first_token_p90_s") == 8);
  CHECK(value("saved_per_request_s") == doctest::Approx((40.0 - 2) / 4));
  CHECK(value("waited_per_request_s") == doctest::Approx(0.5));
  CHECK(value("link_bytes_mean") == 20);
  CHECK(value("link_bytes_max") == 30);
  CHECK(value("link_busy_mean") == doctest::Approx(0.3));
  CHECK(value("link_busy_max") == doctest::Approx(0.5));
  CHECK(value("busiest_node_load") == doctest::Approx(1.5));
  CHECK(value("asked_images_per_request") == 3);
  CHECK(value("found_images_per_request") == doctest::Approx(1.5));
  CHECK(value("lost_images_per_request") == doctest::Approx(0.5));
  CHECK(value("failed_load_rate") == doctest::Approx(0.25));
  CHECK(value("rerouted_rate") == doctest::Approx(0.5));
  CHECK(value("stored_bytes_per_request") == 20);
  CHECK_THROWS(static_cast<void>(figure(figures, "no such figure")));
}

TEST_CASE("a fleet without requests has figures of zero") {
  FleetQuestion question = small_fleet(3, Route::prefix);
  question.remote_bytes = 4 * gib;
  const std::vector<FleetAnswer> answers = ask_fleet(Workload(512), question, always);
  for (const FleetFigure& each : answers.front().figures) {
    CAPTURE(each.name);
    CHECK(each.value == 0);
  }
}

TEST_CASE("a fleet answers for each route, without errors if all of it is simulated") {
  const Workload workload = made_up(WorkloadKind::chat, 200);
  FleetQuestion question = small_fleet(4, Route::prefix);
  question.routes = {Route::round_robin, Route::session, Route::prefix};
  question.samples = 5;
  const std::vector<FleetAnswer> answers = ask_fleet(workload, question, always);
  REQUIRE(answers.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(answers[i].route == question.routes[i]);
    CHECK(answers[i].counts.requests == 200);
    for (const FleetFigure& each : answers[i].figures) CHECK(each.error == 0);
  }
  CHECK(value(answers[0], "token_hit_rate") < value(answers[1], "token_hit_rate"));
}

TEST_CASE("who is not to go on gets no answer") {
  int requests = 0;
  const auto twenty = [&] { return ++requests < 20; };
  CHECK(ask_fleet(made_up(WorkloadKind::chat, 200), small_fleet(2, Route::session), twenty).empty());
  CHECK(requests == 20);
}

TEST_CASE("the error of samples is that of their mean") {
  const Workload workload = made_up(WorkloadKind::chat, 600);
  FleetQuestion question = small_fleet(8, Route::session);
  question.sample_nodes = 2;
  std::vector<double> rates;
  for (std::uint64_t seed = 5; seed < 9; ++seed) {
    question.seed = seed;
    question.samples = 1;
    rates.push_back(value(ask_fleet(workload, question, always).front(), "token_hit_rate"));
  }
  question.seed = 5;
  question.samples = 4;
  const FleetAnswer all = ask_fleet(workload, question, always).front();
  const double mean = (rates[0] + rates[1] + rates[2] + rates[3]) / 4;
  double squares = 0;
  for (const double rate : rates) squares += (rate - mean) * (rate - mean);
  CHECK(value(all, "token_hit_rate") == doctest::Approx(mean));
  CHECK(figure(all.figures, "token_hit_rate").error == doctest::Approx(std::sqrt(squares / 3 / 4)));
  CHECK(squares > 0);
  CHECK(value(ask_fleet(workload, question, always).front(), "token_hit_rate") == value(all, "token_hit_rate"));
}

TEST_CASE("a sample has its part of the nodes and of the remote store") {
  const Workload workload = made_up(WorkloadKind::chat, 600);
  FleetQuestion question = small_fleet(8, Route::session);
  question.remote_bytes = 800 * gib;
  question.sample_nodes = 2;
  const Conversations conversations = find_conversations(workload);
  const Crowd crowd = make_crowd(workload, conversations, {.part = 0.25});
  const FleetOptions options = fleet_options(question, crowd, Route::session);
  CHECK(options.nodes == 2);
  CHECK(options.remote_bytes == 200 * gib);
  CHECK(options.node.cache.tiers.write_through);
  CHECK_FALSE(options.node.cache.events);
  question.sample_nodes = 8;  // all of them
  CHECK(fleet_options(question, crowd, Route::prefix).remote_bytes == 800 * gib);
  CHECK(fleet_options(question, crowd, Route::prefix).node.cache.events);
}

// Samples underestimate the error now and then, so not every seed covers the value.
TEST_CASE("the error of samples covers the whole fleet with most seeds") {
  constexpr double t = 2.57;  // the 97.5 % quantile of Student's distribution with 5 degrees of freedom
  const Workload workload = made_up(WorkloadKind::chat, 600, 3);
  FleetQuestion question = small_fleet(16, Route::prefix);
  question.remote_bytes = 100 * gib;
  question.samples = 6;
  const FleetAnswer whole = ask_fleet(workload, question, always).front();
  question.sample_nodes = 8;
  int covered = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    question.seed = 100 * seed;
    const FleetAnswer sampled = ask_fleet(workload, question, always).front();
    const FleetFigure& rate = figure(sampled.figures, "token_hit_rate");
    covered += std::abs(rate.value - value(whole, "token_hit_rate")) <= t * rate.error;
  }
  CHECK(covered > 4);
}

TEST_CASE("no samples are refused") {
  FleetQuestion question = small_fleet(2, Route::session);
  question.samples = 0;
  CHECK_THROWS_WITH_AS(static_cast<void>(ask_fleet(made_up(WorkloadKind::chat, 5), question, always)),
                       doctest::Contains("samples"), stateport::InvalidArgument);
}
