// SPDX-License-Identifier: Apache-2.0
#include "report/report.hpp"

#include "report/json.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

using namespace stateport::replay;

namespace {

Report example() {
  Report report;
  report.run = {.workload = "x.jsonl",
                .model = "m",
                .memory_state = "2 layers",
                .slots = 3,
                .full_state_bytes = 1000,
                .checkpoint_bytes = 1000};
  report.replay.requests = 4;
  report.replay.requests_hit = 1;
  report.replay.input_tokens = 100;
  report.replay.hit_tokens = 25;
  report.replay.lost_hits[0] = 2;
  report.bookkeeping.bookkeeping_ns = {10, 40, 20, 30};
  report.bookkeeping.bookkeeping_ns_per_block = {1, 2, 3};
  report.replay.bookkeeping_ns_per_block = {7};
  report.mover = {.restores = 1, .verified = 1, .commits = 2, .copy_seconds = 2, .state_bytes = 100, .copy_bytes = 200};
  report.cache = {.state_evictions = 5, .dropped_checkpoints = 6};
  return report;
}

}  // namespace

TEST_CASE("the JSON has every promised key, with full-size accounting and the bytes really moved apart") {
  const nlohmann::json json = nlohmann::json::parse(to_json(example()));
  for (const char* key : {"requests", "input_tokens", "token_hit_rate", "request_hit_rate", "lost_hits", "restores",
                          "verified", "mismatches", "commits", "dropped_checkpoints", "evictions", "bytes_copied",
                          "copy_gb_per_s", "copy_share_of_memcpy", "bookkeeping_ns_p50", "bookkeeping_ns_p99",
                          "bookkeeping_ns_per_block_p50", "hashing_ns_per_block_p50", "wall_s"})
    CHECK_MESSAGE(json.contains(key), key);
  CHECK(json["token_hit_rate"] == 0.25);
  CHECK(json["request_hit_rate"] == 0.25);
  CHECK(json["lost_hits"]["no_checkpoint"] == 2);
  CHECK(json["bytes_copied"] == 6000);
  CHECK(json["bytes_moved"] == 600);
  CHECK(json["copy_gb_per_s"] == doctest::Approx(3e-7));
  CHECK(json["bookkeeping_ns_p50"] == 20);
  CHECK(json["bookkeeping_ns_per_block_p50"] == 2);
  CHECK(json["bookkeeping_ns_per_block_beside_copies_p50"] == 7);
  CHECK(json["evictions"] == 5);
  CHECK(json["dropped_checkpoints"] == 6);
}

TEST_CASE("the text names mismatches and an interruption") {
  Report report = example();
  CHECK(to_text(report).find("WRONG") == std::string::npos);
  report.replay.first_mismatch = "request 3: bad";
  report.replay.interrupted = true;
  CHECK(to_text(report).find("WRONG         request 3: bad") != std::string::npos);
  CHECK(to_text(report).find("interrupted") != std::string::npos);
  CHECK(to_text(Report{}).find("bookkeeping alone") != std::string::npos);
}

TEST_CASE("a report has the shares of tenants, where there are some") {
  Report report = example();
  CHECK_FALSE(nlohmann::json::parse(to_json(report)).contains("tenants"));
  report.run.tenants = {.flood = 3, .quiet_floor_bytes = 70, .flood_most_bytes = 90};
  report.replay.tenants = {TenantCounts{},
                           {.requests = 1, .input_tokens = 20, .hit_tokens = 10},
                           {.requests = 3, .input_tokens = 80, .hit_tokens = 15}};
  report.cache.tenant_bytes = {0, 71, 72};
  const nlohmann::json json = nlohmann::json::parse(to_json(report))["tenants"];
  REQUIRE(json.size() == 2);
  CHECK(json[0] == nlohmann::json{{"name", "quiet"},
                                  {"floor_bytes", 70},
                                  {"most_bytes", 0},
                                  {"requests", 1},
                                  {"input_tokens", 20},
                                  {"hit_tokens", 10},
                                  {"token_hit_rate", 0.5},
                                  {"bytes", 71}});
  CHECK(json[1]["name"] == "flood");
  CHECK(json[1]["floor_bytes"] == 0);
  CHECK(json[1]["most_bytes"] == 90);
  CHECK(json[1]["token_hit_rate"] == 0.1875);
  CHECK(json[1]["bytes"] == 72);
  CHECK(to_text(report).find("quiet         1 requests, 50.00 % of 20 tokens hit, 71 B at the end") !=
        std::string::npos);
}

TEST_CASE("a report of the align modes tells drafts, copies and publications") {
  Report report = example();
  report.run.drafts = 3;
  report.run.accept = 0.5;
  report.run.asynchronous = true;
  report.run.checkpoint = "boundaries";
  report.mover = {.restores = 1, .verified = 8, .commits = 7, .copy_seconds = 2, .state_bytes = 100, .copy_bytes = 200};
  report.run.schedule = {.concurrency = 64,
                         .running_max = 16,
                         .refresh = true,
                         .share_running = {.least_tokens = 128, .longest_commits = 9}};
  report.cache.awaited_tokens = 20;
  report.passes = PassCounts{.steps = 9,
                             .drafts_proposed = 27,
                             .drafts_accepted = 13,
                             .copies = 5,
                             .refused = 2,
                             .computed_prompt_tokens = 75,
                             .first_token_after_tokens = {40, 75, 55},
                             .planning_ns = {30, 10, 20}};
  const std::string text = to_text(report);
  for (const char* words :
       {"3 drafts, 0.50 kept, counters asynchronous", "9, 13 of 27 drafts kept", "7 states; 2 refused",
        "8 states, 1 of them continued from; 0 wrong", "planning      20 ns per step",
        "64 requests at a time, 16 of them running, looked up again when they run, waiting for 128 tokens of another",
        "75.00 % of prompt tokens; 20.00 % are reused after a wait", "after 55 computed prompt tokens (p50), 75 (p99)"})
    CHECK_MESSAGE(text.find(words) != std::string::npos, words);
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  for (const char* key : {"drafts", "accept", "counters", "steps", "drafts_proposed", "drafts_accepted", "copies",
                          "skipped_parts", "published", "refused", "planning_ns_p50", "planning_ns_p99"})
    CHECK_MESSAGE(json.contains(key), key);
  CHECK(json["counters"] == "async");
  CHECK(json["concurrency"] == 64);
  CHECK(json["max_running"] == 16);
  CHECK(json["step_tokens"] == 8192);
  CHECK(json["refresh"] == true);
  CHECK(json["share_running_tokens"] == 128);
  CHECK(json["share_running_passes"] == 9);
  CHECK(json["computed_prompt_tokens"] == 75);
  CHECK(json["computed_share"] == 0.75);
  CHECK(json["awaited_tokens"] == 20);
  CHECK(json["first_token_after_tokens_p50"] == 55);
  CHECK(json["first_token_after_tokens_p99"] == 75);
  CHECK(json["bytes_moved"] == 1000);
  CHECK(json["planning_ns_p50"] == 20);
}
