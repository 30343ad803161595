// SPDX-License-Identifier: Apache-2.0
#include "workload.hpp"

#include <algorithm>
#include <utility>

namespace stateport::soak {

Workload::Workload(test::Random& random, const WorkloadOptions& options)
    : random_(random), options_(options), conversations_(static_cast<std::size_t>(options.conversations)) {
  for (Tokens& prompt : system_prompts_) append(prompt, random_.between(4, 60));
}

/// Few different ones: prompts that are not the same share beginnings by chance, too.
void Workload::append(Tokens& tokens, std::int64_t count) {
  for (; count > 0; --count) tokens.push_back(random_.between32(0, 9));
}

void Workload::begin(Conversation& conversation) {
  // The lower of two draws: the first system prompts are more popular.
  const auto last = std::ssize(system_prompts_) - 1;
  const auto popular = std::min(random_.between(0, last), random_.between(0, last));
  conversation.tokens = system_prompts_[static_cast<std::size_t>(popular)];
  conversation.names = {.tenant = random_.chance(40) ? random_.between32(1, Names::tenants - 1) : 0};
  if (!random_.chance(8)) return;
  conversation.names.media = random_.between32(0, 5);
  conversation.names.media_at = random_.between(0, std::ssize(conversation.tokens));
}

Workload::Request Workload::next() {
  const std::int64_t last = options_.conversations - 1;
  Request request;
  request.conversation = static_cast<std::size_t>(std::min(random_.between(0, last), random_.between(0, last)));
  Conversation& conversation = conversations_[request.conversation];
  const bool is_edited = random_.chance(10);
  if (is_edited && conversation.tokens.size() > 1)
    conversation.tokens.resize(static_cast<std::size_t>(random_.between(1, std::ssize(conversation.tokens) - 1)));
  const std::int64_t own = random_.between(1, 30);
  if (conversation.tokens.empty() || std::ssize(conversation.tokens) + own > options_.tokens_max || random_.chance(8))
    begin(conversation);
  append(conversation.tokens, own);
  if (conversation.names.media_at >= std::ssize(conversation.tokens)) conversation.names.media_at = -1;
  conversation.turn = ++turns_;
  request.prompt = conversation.tokens;
  request.names = conversation.names;
  request.output = random_.between(1, options_.output_max);
  request.turn = conversation.turn;
  return request;
}

void Workload::ended(const Request& request, const Tokens& tokens) {
  Conversation& conversation = conversations_[request.conversation];
  if (conversation.turn == request.turn) conversation.tokens = tokens;
}

}  // namespace stateport::soak
