// SPDX-License-Identifier: Apache-2.0
#include "workload/generator.hpp"

#include <stateport/core/model/error.hpp>

#include "workload/token_stream.hpp"

#include <array>
#include <queue>
#include <random>
#include <vector>

namespace stateport::replay {
namespace {

/// A distribution given by its values at 0, 1/8 … 8/8 of the population, linear in between.
using Quantiles = std::array<std::int64_t, 9>;

/// Draws from the engine that the standard fixes bit by bit; the standard's distributions are not fixed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  [[nodiscard]] std::uint64_t bits() { return engine_(); }
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  [[nodiscard]] bool percent(std::uint64_t chance) { return below(100) < chance; }
  [[nodiscard]] std::int64_t from(const Quantiles& quantiles) {
    const std::uint64_t random = bits();
    const std::size_t interval = random >> 61;
    const auto fraction = static_cast<std::int64_t>((random >> 29) & 0xffff'ffffU);
    const std::int64_t width = quantiles[interval + 1] - quantiles[interval];
    return quantiles[interval] + ((width * fraction) >> 32);
  }
  /// 0 … count - 1, smaller ones likelier: a few prompts get most of the traffic.
  [[nodiscard]] std::uint64_t popular(std::uint64_t count) {
    const std::uint64_t first = below(count);
    return below(first + 1);
  }

 private:
  std::mt19937_64 engine_;
};

/// Parameters of a kind of workload. Lengths in tokens, times in ms.
struct Profile {
  std::uint64_t system_prompts;  ///< 0: none
  Quantiles system_tokens;
  std::uint64_t tasks;  ///< shared texts after the system prompt (documents, repositories); 0: none
  Quantiles task_tokens;
  Quantiles turns;
  Quantiles message_tokens;
  Quantiles output_tokens;
  Quantiles think_ms;
  std::uint64_t edit_percent;        ///< chance that a turn replaces the last message instead of following it
  std::int64_t context_tokens;       ///< longer conversations are compacted to a summary
  std::int64_t session_interval_ms;  ///< mean time between two new sessions; 0: all begin at once
  /// > 0: a prompt ends with a text of this length that asks for an answer, and the next prompt has another one there.
  std::int64_t asking_tokens = 0;
  Quantiles reasoning_tokens = {};  ///< before an answer; the next prompt does not have them
  std::int64_t samples = 1;         ///< requests with the prompt of a turn, each with an answer of its own
};

constexpr Quantiles one_turn = {1, 1, 1, 1, 1, 1, 1, 1, 1};
constexpr std::int64_t groups_at_once = 64;
constexpr std::int64_t samples_of_group = 16;
constexpr std::int64_t agents_at_once = 64;

constexpr Profile chat{.system_prompts = 8,
                       .system_tokens = {300, 600, 900, 1200, 1600, 2200, 3000, 4200, 6000},
                       .tasks = 0,
                       .task_tokens = {},
                       .turns = {1, 1, 2, 3, 4, 6, 8, 12, 24},
                       .message_tokens = {10, 30, 60, 120, 250, 500, 1000, 2500, 8000},
                       .output_tokens = {20, 100, 180, 260, 350, 450, 600, 900, 2000},
                       .think_ms = {2000, 6000, 12000, 20000, 30000, 45000, 75000, 150000, 600000},
                       .edit_percent = 8,
                       .context_tokens = 64000,
                       .session_interval_ms = 1500};
constexpr Profile agent{.system_prompts = 2,
                        .system_tokens = {8000, 9000, 10000, 11000, 12000, 14000, 16000, 18000, 20000},
                        .tasks = 12,
                        .task_tokens = {500, 1000, 2000, 4000, 6000, 9000, 13000, 18000, 24000},
                        .turns = {4, 10, 16, 24, 32, 42, 54, 70, 110},
                        .message_tokens = {40, 100, 200, 400, 700, 1200, 2200, 4500, 16000},
                        .output_tokens = {30, 60, 100, 150, 220, 320, 500, 900, 3000},
                        .think_ms = {200, 500, 900, 1500, 2500, 4000, 8000, 20000, 120000},
                        .edit_percent = 4,
                        .context_tokens = 120000,
                        .session_interval_ms = 12000};
constexpr Profile shared_prompt{.system_prompts = 3,
                                .system_tokens = {200, 300, 400, 500, 700, 900, 1200, 1600, 2000},
                                .tasks = 60,
                                .task_tokens = {1000, 2000, 3000, 4500, 6000, 9000, 13000, 20000, 40000},
                                .turns = {1, 1, 1, 1, 1, 1, 1, 1, 2},
                                .message_tokens = {10, 20, 40, 60, 90, 140, 220, 400, 1500},
                                .output_tokens = {10, 40, 80, 120, 180, 260, 380, 600, 1500},
                                .think_ms = {2000, 4000, 8000, 12000, 20000, 30000, 50000, 90000, 300000},
                                .edit_percent = 0,
                                .context_tokens = 64000,
                                .session_interval_ms = 200};

constexpr Profile chat_template{.system_prompts = 8,
                                .system_tokens = chat.system_tokens,
                                .tasks = 0,
                                .task_tokens = {},
                                .turns = chat.turns,
                                .message_tokens = chat.message_tokens,
                                .output_tokens = chat.output_tokens,
                                .think_ms = chat.think_ms,
                                .edit_percent = 8,
                                .context_tokens = 64000,
                                .session_interval_ms = 1500,
                                .asking_tokens = 8,
                                .reasoning_tokens = {0, 100, 200, 350, 550, 800, 1200, 2000, 6000}};

constexpr Profile grpo{.system_prompts = 0,
                       .system_tokens = {},
                       .tasks = 0,
                       .task_tokens = {},
                       .turns = one_turn,
                       .message_tokens = {300, 600, 900, 1200, 1600, 2000, 2600, 3500, 6000},
                       .output_tokens = {20, 100, 200, 300, 450, 600, 900, 1400, 3000},
                       .think_ms = {},
                       .edit_percent = 0,
                       .context_tokens = 64000,
                       .session_interval_ms = 0,
                       .samples = samples_of_group};
constexpr Profile burst{.system_prompts = 1,
                        .system_tokens = {8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192, 8192},
                        .tasks = 0,
                        .task_tokens = {},
                        .turns = one_turn,
                        .message_tokens = {100, 300, 500, 700, 950, 1250, 1600, 2200, 3800},
                        .output_tokens = agent.output_tokens,
                        .think_ms = {},
                        .edit_percent = 0,
                        .context_tokens = 64000,
                        .session_interval_ms = 0};

const Profile& profile_of(WorkloadKind kind) {
  switch (kind) {
    case WorkloadKind::chat:
      return chat;
    case WorkloadKind::agent:
      return agent;
    case WorkloadKind::chat_template:
      return chat_template;
    case WorkloadKind::shared_prompt:
      return shared_prompt;
    case WorkloadKind::grpo:
      return grpo;
    case WorkloadKind::burst:
      return burst;
  }
  throw InvalidArgument("kind", "?", "chat, agent, template, shared-prompt, grpo or burst");
}

struct Session {
  TokenStream stream;
  TokenStream::Mark opening;       ///< after the shared texts: where a compacted conversation starts again
  TokenStream::Mark last_message;  ///< before the message of the last turn
  std::int64_t turns_left;
};

class Generator {
 public:
  explicit Generator(const GeneratorOptions& options)
      : profile_(profile_of(options.kind)), draw_(options.seed), workload_(options.block_size_tokens) {
    // The lengths of the shared texts are part of the workload's character, so they are drawn once.
    for (std::uint64_t i = 0; i < profile_.system_prompts; ++i)
      system_prompts_.push_back({draw_.bits(), draw_.from(profile_.system_tokens)});
    for (std::uint64_t i = 0; i < profile_.tasks; ++i)
      tasks_.push_back({draw_.bits(), draw_.from(profile_.task_tokens)});
  }

  Workload run(std::int64_t requests) {
    while (static_cast<std::int64_t>(workload_.size()) < requests) {
      if (due_.empty() || next_session_ms_ <= due_.top().at_ms) start_session();
      const Turn turn = due_.top();
      due_.pop();
      take_turn(turn, requests);
    }
    return std::move(workload_);
  }

 private:
  // Names of the texts of a template.
  static constexpr std::uint64_t asking_text = 1;    ///< at the end of a prompt
  static constexpr std::uint64_t answered_text = 2;  ///< before an answer of an earlier turn

  struct Text {
    std::uint64_t content;
    std::int64_t tokens;
  };
  struct Turn {
    std::int64_t at_ms;
    std::size_t session;
    /// Earliest first; ties by session, so the order is total.
    friend bool operator<(const Turn& a, const Turn& b) {
      return a.at_ms != b.at_ms ? a.at_ms > b.at_ms : a.session > b.session;
    }
  };

  void start_session() {
    Session session{.stream = TokenStream(workload_.block_size_tokens()), .turns_left = draw_.from(profile_.turns)};
    if (!system_prompts_.empty()) append(session, system_prompts_[draw_.popular(system_prompts_.size())]);
    if (!tasks_.empty()) append(session, tasks_[draw_.popular(tasks_.size())]);
    session.opening = session.last_message = session.stream.mark();
    due_.push({next_session_ms_, sessions_.size()});
    sessions_.push_back(std::move(session));
    const auto interval = static_cast<std::uint64_t>(profile_.session_interval_ms);
    next_session_ms_ += static_cast<std::int64_t>(draw_.below(2 * interval + 1));
  }

  /// `requests`: of the whole workload, at most.
  void take_turn(const Turn& turn, std::int64_t requests) {
    Session& session = sessions_[turn.session];
    TokenStream& stream = session.stream;
    if (draw_.percent(profile_.edit_percent)) stream.rewind(session.last_message);
    if (stream.tokens() > profile_.context_tokens) {
      stream.rewind(session.opening);
      append(session, {draw_.bits(), draw_.from(profile_.output_tokens)});
    }
    session.last_message = stream.mark();
    append(session, {draw_.bits(), draw_.from(profile_.message_tokens)});
    const TokenStream::Mark asked = stream.mark();
    const bool is_rewritten = profile_.asking_tokens > 0;
    append(session, {asking_text, profile_.asking_tokens});
    Request request{.arrival_ms = turn.at_ms,
                    .input_tokens = stream.tokens(),
                    .output_tokens = draw_.from(profile_.output_tokens),
                    .session = static_cast<std::int64_t>(turn.session),
                    .left_at_tokens = is_rewritten ? asked.tokens : 0};
    const std::int64_t answer_tokens = request.output_tokens;
    if (is_rewritten) request.output_tokens += draw_.from(profile_.reasoning_tokens);
    workload_.add(request, stream.full_blocks());
    for (std::int64_t sample = 1; sample < profile_.samples && std::ssize(workload_) < requests; ++sample) {
      request.output_tokens = draw_.from(profile_.output_tokens);
      workload_.add(request, stream.full_blocks());
    }
    if (is_rewritten) stream.rewind(asked);
    append(session, {answered_text, profile_.asking_tokens});
    append(session, {draw_.bits(), answer_tokens});
    if (--session.turns_left > 0) {
      constexpr std::int64_t ms_per_output_token = 15;
      const std::int64_t answered_ms = turn.at_ms + request.output_tokens * ms_per_output_token;
      due_.push({answered_ms + draw_.from(profile_.think_ms), turn.session});
    } else {
      stream = TokenStream(workload_.block_size_tokens());  // a finished session needs no memory
    }
  }

  static void append(Session& session, const Text& text) { session.stream.append(text.content, text.tokens); }

  const Profile& profile_;
  Draw draw_;
  Workload workload_;
  std::vector<Text> system_prompts_;
  std::vector<Text> tasks_;
  std::vector<Session> sessions_;
  std::priority_queue<Turn> due_;
  std::int64_t next_session_ms_ = 0;
};

}  // namespace

std::string_view name(WorkloadKind kind) noexcept {
  switch (kind) {
    case WorkloadKind::chat:
      return "chat";
    case WorkloadKind::agent:
      return "agent";
    case WorkloadKind::chat_template:
      return "template";
    case WorkloadKind::shared_prompt:
      return "shared-prompt";
    case WorkloadKind::grpo:
      return "grpo";
    case WorkloadKind::burst:
      return "burst";
  }
  return "?";
}

std::optional<std::int64_t> requests_at_once(WorkloadKind kind) noexcept {
  if (kind == WorkloadKind::grpo) return groups_at_once * samples_of_group;
  if (kind == WorkloadKind::burst) return agents_at_once;
  return std::nullopt;
}

Workload generate_workload(const GeneratorOptions& options) {
  require(options.requests >= 0, "requests", options.requests, "not negative");
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "at least 1");
  return Generator(options).run(options.requests);
}

}  // namespace stateport::replay
