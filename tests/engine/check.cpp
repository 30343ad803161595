// SPDX-License-Identifier: Apache-2.0
#include "check.hpp"

#include "no_cache.hpp"
#include "request_engine_cache.hpp"
#include "scheduler.hpp"
#include "temporary_folder.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace stateport::engine {
namespace {

/// Where a hasty engine does not get on, each try takes a minute.
constexpr std::chrono::minutes hasty_shrink_max{3};

std::optional<std::string> difference(const Answer& answer, const Answer& expected) {
  for (std::size_t i = 0; i < answer.tokens.size(); ++i)
    if (i >= expected.tokens.size() || answer.tokens[i] != expected.tokens[i])
      return "token " + std::to_string(i) + " differs";
  if (answer.complete && answer.tokens.size() != expected.tokens.size()) return "tokens are missing";
  if (answer.complete && answer.state != expected.state) return "the final state differs";
  return std::nullopt;
}

/// Makes a problem shorter that fails.
class Shrinking {
 public:
  Shrinking(Problem problem, std::string_view cache) : problem_(std::move(problem)), cache_(cache) {}

  Problem run() {
    while (drop_items(&Schedule::requests) || drop_items(&Schedule::events) || drop_tokens()) {
    }
    return std::move(problem_);
  }

 private:
  /// Takes the shorter problem if it still fails, and there is time to see it.
  bool replace(Problem shorter) {
    const bool is_late = std::chrono::steady_clock::now() - begin_ > hasty_shrink_max;
    if ((is_late && shorter.schedule.cache.tiers.hasty) || !engine::difference(shorter, cache_)) return false;
    problem_ = std::move(shorter);
    return true;
  }

  template <class Item>
  bool drop_items(std::vector<Item> Schedule::*list) {
    bool dropped = false;
    for (std::size_t i = (problem_.schedule.*list).size(); i-- > 0;) {
      Problem shorter = problem_;
      auto& items = shorter.schedule.*list;
      items.erase(items.begin() + static_cast<std::ptrdiff_t>(i));
      dropped |= replace(std::move(shorter));
    }
    return dropped;
  }

  bool cut_request(std::size_t index, std::size_t prompt_tokens, std::int32_t new_tokens) {
    if (prompt_tokens == 0 || new_tokens == 0) return false;
    Problem shorter = problem_;
    PlannedRequest& request = shorter.schedule.requests[index];
    request.prompt.resize(prompt_tokens);
    if (std::cmp_less_equal(prompt_tokens, request.fork_at)) request.fork_of = -1;
    std::erase_if(request.breakpoints, [&](std::int64_t at) { return std::cmp_greater(at, prompt_tokens); });
    request.new_tokens = new_tokens;
    shorter.answers[static_cast<std::size_t>(request.id)] =
        answer_alone(target_model(shorter.schedule), request.prompt, new_tokens);
    return replace(std::move(shorter));
  }

  /// Prompts and answers lose half of their tokens, or one.
  bool drop_tokens() {
    bool dropped = false;
    for (std::size_t i = 0; i < problem_.schedule.requests.size(); ++i)
      for (const bool half : {true, false}) {
        const auto fewer = [half](auto tokens) { return half ? tokens / 2 : tokens - 1; };
        const auto request = [&]() -> const PlannedRequest& { return problem_.schedule.requests[i]; };
        dropped |= cut_request(i, request().prompt.size(), fewer(request().new_tokens));
        dropped |= cut_request(i, fewer(request().prompt.size()), request().new_tokens);
      }
    return dropped;
  }

  Problem problem_;
  std::string_view cache_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// `first`: the fault that was found before the problem was made shorter.
std::string tell(const Problem& problem, std::string_view cache, const std::string& first) {
  std::ostringstream reported;
  reported << "cache " << cache << ", " << problem.schedule;
  const auto found = engine::difference(problem, cache);
  try {
    static_cast<void>(serve(problem.schedule, cache, &reported));
  } catch (const std::exception&) {
    // the fault that `found` already describes
  }
  reported << "  " << found.value_or("it fails only now and then; at first: " + first) << '\n';
  return reported.str();
}

/// Thousands of runs write files: in memory, where the system has a folder there. Disks are not tested here.
std::filesystem::path parent_of_images() {
  const std::filesystem::path memory = "/dev/shm";
  std::error_code ignored;
  return ::access(memory.c_str(), W_OK) == 0 && std::filesystem::is_directory(memory, ignored)
             ? memory
             : std::filesystem::temp_directory_path();
}

/// `keep`: the engine writes its cache to the folder at the end.
Served serve_in(const std::string& folder, const Schedule& schedule, std::string_view cache_name, std::ostream* log,
                bool keep) {
  std::optional<Model> draft;
  if (schedule.cache.drafts > 0) draft.emplace(draft_model(schedule));
  const auto make = [&](std::uint64_t epoch) {
    CacheOptions options = schedule.cache;
    options.epoch = epoch;
    return make_cache(cache_name, options, folder);
  };
  Scheduler scheduler(schedule, draft ? &*draft : nullptr, make, log);
  std::vector<Answer> answers = scheduler.run();
  if (keep) scheduler.keep();
  return {.answers = std::move(answers), .counts = scheduler.counts()};
}

}  // namespace

std::vector<std::string_view> cache_names() {
  return {"none", "slots", "tree", "tree-copy", "align", "all", "tree-align", "tree-all"};
}

std::string_view cache_of_seed(std::uint64_t seed) {
  constexpr std::array<std::string_view, 8> caches = {"tree",  "slots", "align",      "tree-copy",
                                                      "slots", "all",   "tree-align", "tree-all"};
  return caches[seed % caches.size()];
}

std::unique_ptr<EngineCache> make_cache(std::string_view name, const CacheOptions& options, const std::string& folder) {
  if (name == "none") return std::make_unique<NoCache>(options);
  const auto names = cache_names();
  if (std::ranges::find(names, name) != names.end()) return std::make_unique<RequestEngineCache>(name, options, folder);
  throw std::invalid_argument("no cache has the name " + std::string(name));
}

Served serve(const Schedule& given, std::string_view cache_name, std::ostream* log) {
  Schedule schedule = given;
  if (cache_name == "none") {
    schedule.cache.overlap = false;
    schedule.cache.tiers = {};
    schedule.other_engine = OtherEngine::none;
  }
  std::optional<test::TemporaryFolder> folder;
  if (schedule.cache.tiers.files > 0) folder.emplace(parent_of_images());
  const std::string images = folder ? folder->images() : "";
  if (schedule.other_engine != OtherEngine::none)
    static_cast<void>(serve_in(images, other_schedule(schedule), cache_name, nullptr, true));
  return serve_in(images, schedule, cache_name, log, false);
}

std::optional<std::string> difference(const Problem& problem, std::string_view cache, CacheCounts* counts) {
  try {
    const Served served = serve(problem.schedule, cache);
    if (counts != nullptr) *counts += served.counts;
    for (const PlannedRequest& request : problem.schedule.requests) {
      const auto id = static_cast<std::size_t>(request.id);
      const Answer& answer = served.answers[id];
      const bool is_first = std::ranges::all_of(answer.began, [](const Began& began) { return began.weights == 0; });
      const auto found = is_first ? difference(answer, problem.answers[id])
                                  : difference(answer, answer_in_epochs(problem.schedule, request, answer));
      if (found) return "request " + std::to_string(id) + ": " + *found;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

Problem shrink(Problem problem, std::string_view cache) {
  return Shrinking(std::move(problem), cache).run();
}

std::optional<std::string> check(const Problem& problem, std::string_view cache, CacheCounts& counts) {
  const auto found = difference(problem, cache, &counts);
  if (!found) return std::nullopt;
  return tell(shrink(problem, cache), cache, *found);
}

std::optional<FoundFault> find_fault(Fault fault, std::string_view cache, std::uint64_t seeds, const Draw& draw) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Problem problem = draw_problem(seed, draw);
    problem.schedule.cache.fault = fault;
    problem.schedule.cache.tiers.hasty = false;  // found once, found again
    const auto first = difference(problem, cache);
    if (!first) continue;
    const std::size_t drawn = problem.schedule.causes();
    FoundFault found{.seed = seed, .shortest = shrink(std::move(problem), cache), .reported = {}, .drawn = drawn};
    found.reported = tell(found.shortest, cache, *first);
    return found;
  }
  return std::nullopt;
}

}  // namespace stateport::engine
