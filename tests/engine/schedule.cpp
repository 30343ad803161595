// SPDX-License-Identifier: Apache-2.0
#include "schedule.hpp"

#include <stateport/backends/host_resource.hpp>

#include "random_numbers.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <ostream>
#include <set>

namespace stateport::engine {
namespace {

constexpr std::uint64_t model_count = 4;
constexpr std::array types = {ElementType::fp32, ElementType::fp16, ElementType::bf16};
constexpr std::int32_t prompt_tokens_max = 44;
constexpr std::int32_t new_tokens_max = 16;

/// A prompt that begins as an earlier one, or goes on after its answer, or stands alone.
std::vector<Token> draw_prompt(test::Random& random, const Problem& problem) {
  std::vector<Token> prompt;
  if (!problem.answers.empty() && random.chance(75)) {
    const std::int64_t last = std::ssize(problem.answers) - 1;
    prompt = problem.answers[static_cast<std::size_t>(random.between(0, last))].tokens;
    if (random.chance(60)) prompt.resize(static_cast<std::size_t>(random.between(1, std::ssize(prompt))));
    if (std::ssize(prompt) > prompt_tokens_max) prompt.resize(prompt_tokens_max);
  }
  const std::int64_t own = random.between(prompt.empty() ? 1 : 0, random.chance(70) ? 8 : 20);
  for (std::int64_t i = 0; i < own; ++i) prompt.push_back(random.between32(0, static_cast<Token>(vocabulary) - 1));
  return prompt;
}

CacheOptions draw_cache(test::Random& random, std::int32_t drafts, bool overlap) {
  CacheOptions options{.max_running = random.between32(1, 4), .drafts = drafts};
  options.block_size = random.between32(std::max(2, drafts + 1), 8);
  options.overlap = overlap;
  // The counts of tokens lag one batch behind.
  if (overlap) options.block_size = std::max(options.block_size, 2 * drafts + 1);
  options.checkpoints = random.between32(1, 6);
  options.alignment = random.chance(60) ? 1 : random.chance(50) ? options.block_size : 2;
  options.state_groups = random.between32(1, 2);
  options.conv_layout = random.chance(50) ? ConvLayout::sd : ConvLayout::ds;
  return options;
}

void draw_events(test::Random& random, Schedule& schedule) {
  const auto requests = static_cast<std::int32_t>(schedule.requests.size());
  for (std::int64_t count = random.between(0, 6); count > 0; --count) {
    PlannedEvent event{.step = random.between32(0, 12 * requests), .request = random.between32(0, requests - 1)};
    event.kind = random.chance(65)   ? PlannedEvent::Kind::preempt
                 : random.chance(50) ? PlannedEvent::Kind::abort
                                     : PlannedEvent::Kind::reset;
    schedule.events.push_back(event);
  }
}

/// The device has room for two checkpoints, the host for eight and files for 64, or there is less.
void draw_tiers(test::Random& random, Schedule& schedule) {
  CacheOptions& cache = schedule.cache;
  cache.checkpoints = 2;
  cache.type = types[static_cast<std::size_t>(random.between(0, 2))];
  cache.eviction = random.chance(60)   ? EvictionOrder::lru
                   : random.chance(50) ? EvictionOrder::hix
                                       : EvictionOrder::gdsf;
  cache.model = schedule.seed % model_count;
  cache.tiers = {.host = 8, .files = 64, .seed = random.bits()};
  if (random.chance(20)) cache.tiers.host = 0;
  if (random.chance(20)) cache.tiers.host = random.between32(1, 7);
  if (random.chance(10)) cache.tiers.files = cache.tiers.host > 0 ? 0 : 3;
  cache.tiers.write_through = cache.tiers.files > 0 && random.chance(30);
  cache.tiers.short_queue = random.chance(20);
  cache.tiers.slow_files = random.chance(20);
  cache.tiers.damage = random.chance(30);
  cache.tiers.hasty = random.chance(20);
  if (cache.tiers.files == 0 || random.chance(70)) return;
  const bool of_type = cache.type != ElementType::fp32 && random.chance(70);
  schedule.other_engine = of_type ? OtherEngine::other_type : OtherEngine::other_layout;
}

void draw_restarts(test::Random& random, Schedule& schedule) {
  const auto requests = static_cast<std::int32_t>(schedule.requests.size());
  for (std::int64_t count = random.between(0, 2); count > 0; --count)
    schedule.events.push_back({.kind = random.chance(70) ? PlannedEvent::Kind::restart : PlannedEvent::Kind::crash,
                               .step = random.between32(1, 10 * requests)});
}

/// Behind all other draws, so that a seed is the same schedule without them.
void draw_names(test::Random& random, Schedule& schedule) {
  if (random.chance(60)) schedule.cache.tail = random.between32(1, 2 * schedule.cache.block_size);
  if (random.chance(50)) schedule.cache.named_saves = random.between32(1, 3);
  for (PlannedRequest& request : schedule.requests) {
    std::set<std::int64_t> named;
    for (std::int64_t count = random.between(0, 4); count > 0; --count)
      named.insert(random.between(1, std::ssize(request.prompt)));
    request.breakpoints.assign(named.begin(), named.end());
  }
}

/// The request comes with the one before it, and shares its prompt or the beginning of it.
void draw_burst(test::Random& random, const PlannedRequest& before, PlannedRequest& request) {
  request.arrival_step = before.arrival_step + random.between32(0, 1);
  const std::vector<Token> own = std::exchange(request.prompt, before.prompt);
  if (random.chance(40)) return;
  request.prompt.resize(static_cast<std::size_t>(random.between(1, std::ssize(request.prompt))));
  const auto added = std::min<std::ptrdiff_t>(std::ssize(own), random.between32(0, 6));
  request.prompt.insert(request.prompt.end(), own.begin(), own.begin() + added);
}

/// The request goes on from a token of the answer of an earlier one, of the same tenant: with one token, or with
/// several.
void draw_fork(test::Random& random, const Problem& problem, PlannedRequest& request) {
  std::int32_t other = request.id;
  while (other >= 2 && (other == request.id || random.chance(50))) other -= 2;
  const PlannedRequest& planned = problem.schedule.requests[static_cast<std::size_t>(other)];
  const std::int64_t prompt = std::ssize(planned.prompt);
  if (prompt > prompt_tokens_max) return;
  request.fork_of = other;
  request.fork_at = random.between(prompt, prompt + planned.new_tokens - 1);
  request.arrival_step = planned.arrival_step;
  request.prompt = problem.answers[static_cast<std::size_t>(other)].tokens;
  request.prompt.resize(static_cast<std::size_t>(request.fork_at));
  for (std::int64_t own = random.chance(60) ? 1 : random.between(2, 8); own > 0; --own)
    request.prompt.push_back(random.between32(0, static_cast<Token>(vocabulary) - 1));
}

/// Behind all other draws, too.
void draw_waits(test::Random& random, CacheOptions& cache) {
  cache.refresh = random.chance(70);
  cache.share = {.least_tokens = random.between(0, 3) * cache.block_size,
                 .longest_commits = random.chance(70) ? 1000 : random.between32(1, 20)};
  cache.max_running = random.between32(2, 6);
  if (random.chance(50)) cache.kv_tokens = cache.max_running * cache.max_tokens;
}

/// Behind all other draws, too.
void draw_weights(test::Random& random, Schedule& schedule) {
  const auto requests = static_cast<std::int32_t>(schedule.requests.size());
  for (std::int64_t count = random.between(1, 6); count > 0; --count)
    schedule.events.push_back(
        {.kind = schedule.cache.tenants && random.chance(50) ? PlannedEvent::Kind::forget : PlannedEvent::Kind::weights,
         .step = random.between32(1, 12 * requests),
         .request = random.between32(0, 5)});
}

/// Twenty requests arrive, then the weights change, and so on.
void draw_rollouts(test::Random& random, Schedule& schedule) {
  schedule.cache.max_running = 8;
  schedule.cache.checkpoints = 16;
  schedule.cache.kv_tokens = 10 * schedule.cache.max_tokens;
  std::int32_t step = 0;
  for (PlannedRequest& request : schedule.requests) {
    request.arrival_step = step += random.between32(0, 2);
    if (request.id % 20 == 19)
      schedule.events.push_back({.kind = PlannedEvent::Kind::weights, .step = ++step, .request = 0});
  }
}

const char* name(PlannedEvent::Kind kind) {
  switch (kind) {
    case PlannedEvent::Kind::weights:
      return "weights";
    case PlannedEvent::Kind::forget:
      return "forget";
    case PlannedEvent::Kind::preempt:
      return "preempt";
    case PlannedEvent::Kind::abort:
      return "abort";
    case PlannedEvent::Kind::restart:
      return "restart";
    case PlannedEvent::Kind::crash:
      return "crash";
    default:
      return "reset";
  }
}

}  // namespace

const Model& target_model(std::uint64_t seed, ElementType type) {
  static const std::vector<Model> models = [] {
    std::vector<Model> all;
    for (const ElementType each : types)
      for (std::uint64_t number = 1; number <= model_count; ++number)
        all.push_back(Model({.seed = number, .type = each}));
    return all;
  }();
  const auto at = static_cast<std::uint64_t>(std::ranges::find(types, type) - types.begin());
  return models.at(at * model_count + seed % model_count);
}

Model draft_model(const Schedule& schedule) {
  return Model({.seed = schedule.seed % model_count + 1, .noise = schedule.draft_noise, .type = schedule.cache.type});
}

Answer answer_alone(const Model& model, const std::vector<Token>& prompt, std::int32_t new_tokens) {
  Answer answer{.tokens = prompt, .state = Model::empty_state(), .complete = true};
  const std::size_t end = prompt.size() + static_cast<std::size_t>(new_tokens);
  HostResource memory;
  KvStore kv(memory, end, Model::attention_layers, model.type());
  std::vector<KvIndex> row(end);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t fed = 0; answer.tokens.size() < end; ++fed) {
    const Hidden hidden = model.feed(answer.tokens[fed], answer.state, kv, std::span(row).first(fed + 1));
    if (fed + 1 == answer.tokens.size()) answer.tokens.push_back(model.sample(hidden));
  }
  return answer;
}

Answer answer_in_epochs(const Schedule& schedule, const PlannedRequest& request, const Answer& answer) {
  const auto end = static_cast<std::int64_t>(request.prompt.size()) + request.new_tokens;
  Answer expected{.tokens = request.prompt, .state = Model::empty_state()};
  for (std::size_t i = 0; i < answer.began.size(); ++i) {
    const bool is_last = i + 1 == answer.began.size();
    const std::int64_t upto = is_last ? end : answer.began[i + 1].known;
    const std::uint64_t version = schedule.seed + answer.began[i].weights;
    expected = answer_alone(target_model(version, schedule.cache.type), expected.tokens,
                            static_cast<std::int32_t>(upto - std::ssize(expected.tokens)));
  }
  return expected;
}

Problem draw_problem(std::uint64_t seed, const Draw& draw) {
  test::Random random(seed);
  Problem problem;
  Schedule& schedule = problem.schedule;
  schedule.seed = seed;
  const std::int32_t drawn = draw.trees ? random.between32(2, 6) : random.chance(25) ? 0 : random.between32(1, 4);
  schedule.cache = draw_cache(random, draw.drafts.value_or(drawn), draw.overlap || (draw.tiers && random.chance(40)));
  schedule.cache.trees = draw.trees;
  schedule.cache.tenants = draw.tenants;
  schedule.cache.held = draw.held;
  schedule.cache.integrity = draw.integrity || draw.damage;
  if (draw.damage) schedule.cache.damage = seed;
  if (draw.tiers) draw_tiers(random, schedule);
  schedule.draft_noise = random.chance(50) ? 0.02f : 0.2f;
  const std::int32_t count = draw.rollouts ? 100 : draw.tiers ? random.between32(6, 20) : random.between32(2, 8);
  std::int32_t longest = 0;
  for (std::int32_t id = 0; id < count; ++id) {
    PlannedRequest request{.id = id, .arrival_step = random.between32(0, 10 * id), .prompt = {}};
    request.prompt = draw_prompt(random, problem);
    request.new_tokens = random.between32(1, new_tokens_max);
    if (draw.tiers && id > 0 && random.chance(25)) {
      // Two that load the same at a time.
      request.prompt = schedule.requests.back().prompt;
      request.arrival_step = schedule.requests.back().arrival_step;
    }
    if (draw.bursts && id > 0 && random.chance(60)) draw_burst(random, schedule.requests.back(), request);
    if (draw.forks && id > 1 && random.chance(60)) draw_fork(random, problem, request);
    longest = std::max(longest, static_cast<std::int32_t>(request.prompt.size()) + request.new_tokens);
    problem.answers.push_back(answer_alone(target_model(schedule), request.prompt, request.new_tokens));
    schedule.requests.push_back(std::move(request));
  }
  CacheOptions& cache = schedule.cache;
  cache.max_tokens = longest + cache.drafts;
  cache.kv_tokens = cache.max_tokens + 2 * cache.block_size + random.between32(0, 2 * cache.max_tokens);
  schedule.budget_tokens = random.between32(2 * cache.block_size, 32);
  draw_events(random, schedule);
  if (draw.tiers) draw_restarts(random, schedule);
  if (draw.named) draw_names(random, schedule);
  if (draw.weights) draw_weights(random, schedule);
  if (draw.bursts) draw_waits(random, cache);
  if (draw.forks) {
    cache.max_running = random.between32(3, 8);
    if (random.chance(60)) cache.kv_tokens = cache.max_running * cache.max_tokens;
  }
  if (draw.rollouts) draw_rollouts(random, schedule);
  if (draw.arena)
    cache.arena = {.kv_blocks = random.between32(1, 6),
                   .state_slots = random.between32(1, 2),
                   .more = random.between32(0, 2),
                   .seed = seed};
  return problem;
}

Schedule other_schedule(const Schedule& schedule) {
  Schedule other = schedule;
  other.other_engine = OtherEngine::none;
  CacheOptions& cache = other.cache;
  if (schedule.other_engine == OtherEngine::other_type)
    cache.type = cache.type == ElementType::fp16 ? ElementType::bf16 : ElementType::fp16;
  else
    cache.conv_layout = cache.conv_layout == ConvLayout::sd ? ConvLayout::ds : ConvLayout::sd;
  return other;
}

std::ostream& operator<<(std::ostream& out, const Schedule& schedule) {
  const CacheOptions& cache = schedule.cache;
  out << "seed " << schedule.seed << ": running " << cache.max_running << ", drafts " << cache.drafts
      << (cache.trees ? " in trees" : "") << ", block " << cache.block_size << ", kv " << cache.kv_tokens
      << ", checkpoints " << cache.checkpoints << ", alignment " << cache.alignment << ", tail " << cache.tail
      << ", named saves " << cache.named_saves << (cache.overlap ? ", overlap" : "")
      << (cache.refresh ? ", refresh" : "") << ", share " << cache.share.least_tokens << " for "
      << cache.share.longest_commits << (cache.arena.kv_blocks > 0 ? ", arena" : "")
      << (cache.integrity ? ", integrity" : "") << (cache.damage > 0 ? ", writes to checkpoints" : "") << ", groups "
      << cache.state_groups << ", budget " << schedule.budget_tokens << ", noise " << schedule.draft_noise;
  if (cache.tiers.any())
    out << ", " << name(cache.type) << ", host " << cache.tiers.host << ", files " << cache.tiers.files
        << (cache.tiers.write_through ? ", write through" : "") << (cache.tiers.short_queue ? ", short queue" : "")
        << (cache.tiers.slow_files ? ", slow files" : "") << (cache.tiers.damage ? ", damage" : "")
        << (cache.tiers.hasty ? ", hasty" : "");
  if (schedule.other_engine != OtherEngine::none)
    out << ", behind one of another " << (schedule.other_engine == OtherEngine::other_type ? "type" : "layout");
  out << '\n';
  for (const PlannedRequest& request : schedule.requests) {
    out << "  request " << request.id << " at step " << request.arrival_step << ", " << request.new_tokens
        << " new tokens after";
    for (const Token token : request.prompt) out << ' ' << token;
    for (const std::int64_t at : request.breakpoints) out << ", named " << at;
    if (request.fork_of >= 0) out << ", fork of " << request.fork_of << " at " << request.fork_at;
    out << '\n';
  }
  for (const PlannedEvent& event : schedule.events) {
    out << "  step " << event.step << ": " << name(event.kind);
    if (event.request >= 0) out << " request " << event.request;
    out << '\n';
  }
  return out;
}

}  // namespace stateport::engine
