// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <stateport/backends/host_resource.hpp>

#include "schedule.hpp"

#include <doctest/doctest.h>

#include <numeric>

using namespace stateport;
using namespace stateport::engine;

TEST_CASE("a state is continued bit for bit where it was taken") {
  const Answer whole = answer_alone(target_model(1), {5, 6, 7, 8, 9}, 10);
  HostResource memory;
  KvStore kv(memory, 20, Model::attention_layers);
  std::vector<KvIndex> row(20);
  std::iota(row.rbegin(), row.rend(), 0);
  ModelState state = Model::empty_state();
  ModelState taken;
  for (std::size_t i = 0; i + 1 < whole.tokens.size(); ++i) {
    if (i == 8) taken = state;
    static_cast<void>(target_model(1).feed(whole.tokens[i], state, kv, std::span(row).first(i + 1)));
  }
  CHECK(state == whole.state);
  for (std::size_t i = 8; i + 1 < whole.tokens.size(); ++i)
    static_cast<void>(target_model(1).feed(whole.tokens[i], taken, kv, std::span(row).first(i + 1)));
  CHECK(taken == whole.state);
}

TEST_CASE("a model's answer depends on every layer's state and on the KV") {
  const std::vector<Token> prompt = {1, 2, 3, 4, 5, 6};
  const Answer expected = answer_alone(target_model(2), prompt, 1);
  HostResource memory;
  KvStore kv(memory, 8, Model::attention_layers);
  const std::vector<KvIndex> row = {0, 1, 2, 3, 4, 5, 6};
  ModelState state = Model::empty_state();
  for (std::size_t i = 0; i < prompt.size(); ++i)
    static_cast<void>(target_model(2).feed(prompt[i], state, kv, std::span(row).first(i + 1)));
  const auto next = [&](ModelState from) {
    return target_model(2).feed(expected.tokens.back(), from, kv, std::span(row).first(7));
  };
  const Hidden right = next(state);
  for (std::size_t layer = 0; layer < Model::state_layers; ++layer) {
    ModelState wrong = state;
    wrong.layers[layer].conv = Model::empty_state().layers[layer].conv;
    CHECK(next(wrong) != right);
    wrong = state;
    wrong.layers[layer].recurrent = Model::empty_state().layers[layer].recurrent;
    CHECK(next(wrong) != right);
  }
  KvStore::Numbers key = kv.read(0, 0, KvStore::Part::key);
  key[0] += 1.0f;
  kv.write(0, 0, KvStore::Part::key, key);
  CHECK(next(state) != right);
}

TEST_CASE("a draft model is near its target and not the same") {
  int same = 0;
  const Problem problem = draw_problem(3);
  const Model draft = draft_model(problem.schedule);
  for (Token first = 0; first < 40; ++first) {
    const Answer a = answer_alone(target_model(3), {first, 1, 2}, 1);
    const Answer b = answer_alone(draft, {first, 1, 2}, 1);
    same += a.tokens.back() == b.tokens.back() ? 1 : 0;
  }
  CHECK(same > 5);
  CHECK(same < 40);
}
