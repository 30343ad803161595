// SPDX-License-Identifier: Apache-2.0
#include "cache_engine.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int32_t engine_random(engine* self, int32_t limit) {
  self->random = mix(self->random + 0x9e3779b97f4a7c15u);
  return limit <= 0 ? 0 : (int32_t)(self->random % (uint64_t)limit);
}

// --- The model -------------------------------------------------------------------------------------------------------

static void advance(engine_state* state, int32_t token) {
  uint64_t read = 0;
  for (int i = 0; i < engine_window; ++i) read = read * 131 + (uint64_t)state->conv[i];
  state->recurrent = mix(state->recurrent * 31 + read * 17 + (uint64_t)token + 1);
  for (int i = 1; i < engine_window; ++i) state->conv[i - 1] = state->conv[i];
  state->conv[engine_window - 1] = token;
}

static engine_state empty_state(void) {
  engine_state state;
  memset(&state, 0, sizeof state);
  return state;
}

static engine_state state_after(const int32_t* tokens, int64_t count) {
  engine_state state = empty_state();
  for (int64_t i = 0; i < count; ++i) advance(&state, tokens[i]);
  return state;
}

static int32_t sample(const engine_state* state) {
  return (int32_t)(state->recurrent % 5);
}

void engine_oracle(const int32_t* prompt, int32_t count, int32_t* tokens, int32_t end) {
  memcpy(tokens, prompt, (size_t)count * sizeof *tokens);
  for (int32_t at = count; at < end; ++at) {
    const engine_state state = state_after(tokens, at);
    tokens[at] = sample(&state);
  }
}

// --- Memory ----------------------------------------------------------------------------------------------------------

static void copy_state(const engine_state* conv, const engine_state* recurrent, int32_t shift, engine_state* to) {
  const engine_state conv_from = *conv;
  const engine_state recurrent_from = *recurrent;
  for (int i = 0; i + shift < engine_window + engine_drafts_max; ++i) to->conv[i] = conv_from.conv[i + shift];
  to->recurrent = recurrent_from.recurrent;
}

/// Copies run in any order: here, the last one first.
static void copy_all(engine_state* from, engine_state* to, const stateport_slot_copy* copies, size_t count) {
  for (size_t i = count; i-- > 0;) {
    const stateport_slot_copy* const copy = &copies[i];
    if (copy->dst_slot < 0) continue;
    engine_state* const dst = &to[copy->dst_slot];
    copy_state(copy->src_slot < 0 ? dst : &from[copy->src_slot],
               copy->recurrent_src_slot < 0 ? dst : &from[copy->recurrent_src_slot],
               copy->src_slot < 0 ? 0 : copy->conv_shift, dst);
  }
}

static int64_t kv_index(const engine* self, int row, int64_t position) {
  const int64_t per = self->plan.kv_tokens_per_id;
  CHECK(position / per < self->plan.kv_count[row]);
  return self->plan.kv[row][position / per] * per + position % per;
}

engine_state* engine_checkpoints(engine* self, size_t group) {
  return self->separate ? self->checkpoints : self->store[group];
}

uint64_t engine_kv(const int32_t* tokens, int64_t position) {
  const engine_state state = state_after(tokens, position + 1);
  return state.recurrent;
}

// --- A pass ----------------------------------------------------------------------------------------------------------

static void run_before(engine* self) {
  for (size_t i = 0; i < self->plan.fork_copy_count; ++i) {
    const stateport_slot_copy* const copy = &self->plan.fork_copies[i];
    memcpy(&self->kv[copy->dst_slot * self->block_tokens], &self->kv[copy->src_slot * self->block_tokens],
           (size_t)self->block_tokens * sizeof *self->kv);
    ++self->fork_copies;
  }
  for (size_t g = 0; g < self->groups; ++g) {
    const stateport_group_plan* const group = &self->plans[g];
    for (size_t i = 0; i < group->clear_count; ++i) self->store[g][group->clear[i]] = empty_state();
    copy_all(engine_checkpoints(self, g), self->store[g], group->copies, group->copy_count);
  }
}

/// The state that a row begins with, in one group. It must be the one after `start` of its tokens.
static engine_state read_state(engine* self, size_t g, int row, const int32_t* tokens, int64_t start) {
  const stateport_group_plan* const group = &self->plans[g];
  const engine_state wanted = state_after(tokens, start);
  engine_state state = empty_state();
  if (group->read_column[row] < 0) {
    CHECK(start == 0 && group->read_slot[row] == STATEPORT_NONE);
    // A kernel that reads the live slot all the same reads the empty state there.
    if (!self->align) CHECK(memcmp(&self->store[g][group->write_slot[row]], &state, sizeof state) == 0);
    return state;
  }
  CHECK(group->slots[row][group->read_column[row]] == group->read_slot[row]);
  const engine_state* const conv = &self->store[g][group->read_slot[row]];
  for (int i = 0; i < engine_window; ++i) state.conv[i] = conv->conv[i + group->read_bias[row]];
  state.recurrent = self->store[g][group->read_recurrent_slot[row]].recurrent;
  CHECK(memcmp(state.conv, wanted.conv, engine_window * sizeof *state.conv) == 0);
  CHECK(state.recurrent == wanted.recurrent);
  return state;
}

/// The state after `done` tokens of a row, where the plan wants it.
static void write_state(engine* self, size_t g, int row, const engine_row* of, int32_t done, const engine_state* state,
                        int32_t token) {
  const stateport_group_plan* const group = &self->plans[g];
  for (size_t i = 0; i < group->save_count; ++i) {
    const stateport_state_save* const save = &group->saves[i];
    if (save->row == row && save->offset == done)
      *(save->in_scratch ? &self->scratch[save->slot] : &engine_checkpoints(self, g)[save->slot]) = *state;
  }
  if (!self->align && of->drafts > 0) {
    self->steps[row][done - 1] = *state;
    return;
  }
  const int32_t draft = done - (of->tokens - of->drafts);
  if (draft < 0) return;
  const int32_t column = group->write_column[row];
  CHECK(group->slots[row][column] == group->write_slot[row] && column + draft < group->slot_count[row]);
  engine_state* const target = &self->store[g][group->write_slot[row]];
  if (draft == 0)
    *target = *state;
  else
    target->conv[engine_window + draft - 1] = token;
  self->store[g][group->slots[row][column + draft]].recurrent = state->recurrent;
}

/// Reads the KV of all earlier tokens, and writes that of this one.
static void attend(engine* self, int row, const int32_t* tokens, int64_t position, const engine_state* state) {
  const engine_state before = state_after(tokens, position);
  if (position > 0) CHECK(self->kv[kv_index(self, row, position - 1)] == before.recurrent);
  self->kv[kv_index(self, row, position)] = state->recurrent;
}

/// Fills the tokens that a row feeds: known ones, then drafts, each right or wrong by chance.
static void propose(engine* self, const engine_request* request, const engine_row* row, int32_t* fed) {
  memcpy(fed, request->tokens, (size_t)(row->start + row->tokens - row->drafts) * sizeof *fed);
  for (int32_t at = (int32_t)row->start + row->tokens - row->drafts; at < row->start + row->tokens; ++at) {
    const engine_state state = state_after(fed, at);
    fed[at] = engine_random(self, 3) > 0 ? sample(&state) : 4 - sample(&state);
  }
}

static void run_row(engine* self, int index, engine_row* row) {
  engine_request* const request = &self->requests[row->request];
  row->start = self->plan.start[index];
  row->sampled_at = request->known;
  row->sampled = 0;
  int32_t fed[engine_tokens_max];
  propose(self, request, row, fed);
  for (int64_t at = 0; at < row->start; ++at) {
    const engine_state wanted = state_after(fed, at + 1);
    CHECK(self->kv[kv_index(self, index, at)] == wanted.recurrent);
  }
  engine_state state = empty_state();
  for (size_t g = 0; g < self->groups; ++g) state = read_state(self, g, index, fed, row->start);
  const int32_t given = row->tokens - row->drafts;
  bool accepts = row->start + given == request->known;
  for (int32_t i = 0; i < row->tokens; ++i) {
    const int32_t token = fed[row->start + i];
    advance(&state, token);
    attend(self, index, fed, row->start + i, &state);
    for (size_t g = 0; g < self->groups; ++g) write_state(self, g, index, row, i + 1, &state, token);
    if (!accepts || i + 1 < given || request->known == request->end) continue;
    request->tokens[request->known++] = sample(&state);
    ++row->sampled;
    accepts = i + 1 < row->tokens && fed[row->start + i + 1] == request->tokens[request->known - 1];
  }
}

static void run_pass(engine* self, engine_pass* pass) {
  run_before(self);
  for (int i = 0; i < pass->rows; ++i)
    if (pass->row[i].request >= 0) run_row(self, i, &pass->row[i]);
  pass->has_run = true;
}

// --- Reports to the cache --------------------------------------------------------------------------------------------

static void run_after(engine* self, const stateport_group_commit* commits) {
  for (size_t g = 0; g < self->groups; ++g) {
    for (size_t i = 0; i < commits[g].step_count; ++i) {
      const stateport_step_commit* const step = &commits[g].steps[i];
      if (step->live_step >= 0) self->store[g][step->live_slot] = self->steps[step->row][step->live_step];
      if (step->kept_step >= 0) engine_checkpoints(self, g)[step->kept_slot] = self->steps[step->row][step->kept_step];
      ++self->step_commits;
    }
    engine_state* const kept = engine_checkpoints(self, g);
    copy_all(self->scratch, kept, commits[g].from_scratch, commits[g].from_scratch_count);
    copy_all(self->store[g], kept, commits[g].copies, commits[g].copy_count);
  }
}

static void set_up_plan(engine* self) {
  memset(self->plans, 0, sizeof self->plans);
  memset(&self->plan, 0, sizeof self->plan);
  self->plans[0].size = sizeof *self->plans;
  self->plan.size = sizeof self->plan;
  self->plan.groups = self->plans;
  self->plan.group_count = self->groups;
}

static void settle_row(engine* self, engine_row* row) {
  engine_request* const request = &self->requests[row->request];
  request->computed = (int32_t)row->start + row->tokens - row->drafts + (row->sampled > 1 ? row->sampled - 1 : 0);
  request->reported = row->sampled_at + row->sampled;
  stateport_running_request running = {.size = sizeof running};
  CHECK_OK(stateport_request_cache_request(self->cache, request->id, &running));
  CHECK(running.computed == request->computed && running.count == (size_t)request->reported);
  CHECK(memcmp(running.tokens, request->tokens, running.count * sizeof *running.tokens) == 0);
  if (request->reported < request->end) return;
  int32_t wanted[engine_tokens_max];
  engine_oracle(request->tokens, request->given, wanted, request->end);
  CHECK(memcmp(wanted, request->tokens, (size_t)request->end * sizeof *wanted) == 0);
  ++self->finished;
  engine_end(self, row->request, STATEPORT_FINISHED);
}

/// Commits the oldest pass, which is returned. Its requests go on once the pass behind it was enqueued.
static engine_pass commit(engine* self) {
  engine_pass settled = self->pass[0];
  int32_t counts[engine_requests] = {0};
  int32_t sampled[engine_requests * (1 + engine_drafts_max)];
  size_t total = 0;
  for (int i = 0; i < settled.rows; ++i) {
    const engine_row* const row = &settled.row[i];
    if (row->request < 0) continue;
    counts[i] = row->sampled;
    memcpy(sampled + total, self->requests[row->request].tokens + row->sampled_at,
           (size_t)row->sampled * sizeof *sampled);
    total += (size_t)row->sampled;
  }
  stateport_group_commit groups[engine_groups_max];
  memset(groups, 0, sizeof groups);
  groups[0].size = sizeof *groups;
  set_up_plan(self);
  stateport_pass_commit done = {
      .size = sizeof done, .groups = groups, .group_count = self->groups, .next = &self->plan};
  CHECK_OK(
      stateport_request_cache_commit(self->cache, settled.pass, counts, (size_t)settled.rows, sampled, total, &done));
  engine_carry_out(self, done.transfers, done.transfer_count);
  const bool waits = self->passes == 2 && !self->pass[1].has_run;
  CHECK(done.has_next == (waits ? 1 : 0) && (!waits || (self->plan.ready && self->plan.pass == self->pass[1].pass)));
  run_after(self, groups);
  self->published += done.published_states;
  self->pass[0] = self->pass[1];
  --self->passes;
  return settled;
}

static void settle_rows(engine* self, engine_pass* settled) {
  for (int i = 0; i < settled->rows; ++i)
    if (settled->row[i].request >= 0) settle_row(self, &settled->row[i]);
}

void engine_settle(engine* self) {
  while (self->passes > 0) {
    engine_pass settled = commit(self);
    settle_rows(self, &settled);
  }
}

// --- Scheduling ------------------------------------------------------------------------------------------------------

void engine_setup(cache_setup* self, int32_t combination, int32_t drafts, const stateport_state_group* groups) {
  *self = (cache_setup){
      .options = {.max_requests = engine_requests,
                  .max_request_tokens = engine_tokens_max,
                  .drafts = drafts,
                  .block_size_tokens = engine_block_tokens,
                  .hash = STATEPORT_HASH_XXH3_128,
                  .events = 1},
      .slots = {.layout_fingerprint = 42,
                .scan_alignment_tokens = combination == tree_slots ? 0 : 2,
                .decode_checkpoint_tokens = engine_block_tokens},
      .columns = {.groups = groups, .group_count = engine_groups_max},
  };
  set_combination(self, combination);
}

void engine_prompts(engine* self, int prompts, int32_t (*tokens)[engine_prompt_max], int32_t* counts) {
  for (int i = 0; i < prompts; ++i) {
    counts[i] = engine_block_tokens + 1 + engine_random(self, engine_prompt_max - engine_block_tokens);
    const int32_t shared = i == 0 ? 0 : engine_random(self, counts[0]);
    for (int32_t at = 0; at < counts[i]; ++at)
      tokens[i][at] = at < shared ? tokens[0][at] : 10 + engine_random(self, 90);
  }
}

void engine_make(engine* self, stateport_request_cache* cache, const stateport_request_cache_options* options,
                 uint64_t seed) {
  memset(self, 0, sizeof *self);
  self->cache = cache;
  self->drafts = options->drafts;
  self->block_tokens = options->block_size_tokens;
  self->align = options->columns != NULL;
  self->overlap = options->overlap != 0;
  self->random = seed;
  for (int i = 0; i < engine_requests; ++i) self->requests[i].id = STATEPORT_NONE;
  self->separate = options->slots != NULL && options->slots->separate_checkpoints != 0;
  memset(self->store, 0xee, sizeof self->store);
  memset(self->checkpoints, 0xee, sizeof self->checkpoints);
  memset(self->kv, 0xee, sizeof self->kv);
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(cache, &info));
  self->groups = info.groups;
  CHECK(info.groups <= engine_groups_max && info.scratch_slots <= engine_slots_max &&
        (int64_t)info.kv_blocks * options->block_size_tokens <= engine_kv_max);
  for (size_t g = 0; g < self->groups; ++g) {
    int32_t slots = 0;
    CHECK_OK(stateport_request_cache_state_slots(cache, g, &slots));
    CHECK(slots <= engine_slots_max);
    int32_t kept = 0;
    CHECK_OK(stateport_request_cache_checkpoint_slots(cache, g, &kept));
    CHECK(self->separate ? kept == options->slots->checkpoints && slots == options->max_requests : kept == slots);
  }
}

bool engine_start(engine* self, int index, const int32_t* prompt, int32_t count, int32_t end) {
  engine_request* const request = &self->requests[index];
  stateport_prompt asked = self->names;
  asked.size = sizeof asked;
  asked.tokens = prompt;
  asked.count = (size_t)count;
  stateport_started_request started = {.size = sizeof started};
  size_t done = 9;
  stateport_status status;
  ANSWER(status, stateport_request_cache_start(self->cache, &asked, 1, &started, &done));
  if (status == STATEPORT_NO_CAPACITY) {
    CHECK(done == 0);
    return false;
  }
  CHECK_OK(status);
  CHECK(done == 1 && started.reused_tokens < count);
  CHECK(started.breakpoint_count == asked.breakpoint_count);
  for (size_t i = 0; i < asked.breakpoint_count; ++i)
    CHECK(started.breakpoints[i] <= asked.breakpoints[i] && started.breakpoints[i] % engine_block_tokens == 0);
  CHECK((started.waits_for_request == STATEPORT_NONE) == (started.waits_for_tokens == 0));
  self->start = started;
  request->id = started.request;
  memcpy(request->tokens, prompt, (size_t)count * sizeof *prompt);
  request->known = request->reported = request->prompt = request->given = count;
  request->computed = (int32_t)started.reused_tokens;
  request->end = end;
  ++self->started;
  engine_carry_out(self, started.transfers, started.transfer_count);
  self->reused_tokens += started.reused_tokens;
  const bool asks = started.load_tokens == 0 && started.load_medium == STATEPORT_MEDIUM_REMOTE;
  request->loading = asks || started.load_tokens > 0;
  CHECK(!asks || (self->tiers != NULL && self->tiers->options.remote_bytes > 0 && started.load_bytes == 0));
  CHECK(started.load_tokens == 0 || (self->tiers != NULL && started.load_tokens > started.reused_tokens &&
                                     started.load_tokens < count && started.load_medium > STATEPORT_MEDIUM_DEVICE &&
                                     (started.load_bytes > 0) == (started.load_medium < STATEPORT_MEDIUM_ELSEWHERE)));
  CHECK((started.lost == STATEPORT_LOST_NOTHING || started.lost == STATEPORT_LOST_NEVER_STORED) ==
        (started.lost_tokens == 0));
  self->lost_tokens[started.lost] += started.lost_tokens;
  self->lost_tokens[STATEPORT_LOST_NEVER_STORED] += count - started.reused_tokens - started.lost_tokens;
  return true;
}

void engine_end(engine* self, int index, int32_t how) {
  stateport_ended_requests ended = {.size = sizeof ended};
  CHECK_OK(stateport_request_cache_end(self->cache, &self->requests[index].id, 1, how, NULL, &ended));
  CHECK(ended.copy_count == 0 || self->separate);
  CHECK(ended.copy_count > 0 || ended.transfer_count == 0);
  engine_carry_out(self, ended.transfers, ended.transfer_count);
  copy_all(self->store[0], engine_checkpoints(self, 0), ended.copies, ended.copy_count);
  self->requests[index].id = STATEPORT_NONE;
  for (int p = 0; p < self->passes; ++p)
    for (int i = 0; i < self->pass[p].rows; ++i)
      if (self->pass[p].row[i].request == index) self->pass[p].row[i].request = -1;
}

void engine_fork(engine* self, int index, const int32_t* tokens, int32_t count, const int* forks, int32_t fork_count) {
  const engine_request* const point = &self->requests[index];
  int64_t ids[engine_requests];
  CHECK_OK(stateport_request_cache_fork(self->cache, point->id, tokens, (size_t)(count * fork_count), ids,
                                        (size_t)fork_count));
  for (int i = 0; i < fork_count; ++i) {
    engine_request* const fork = &self->requests[forks[i]];
    *fork = *point;
    fork->id = ids[i];
    memcpy(fork->tokens + point->computed, tokens + i * count, (size_t)count * sizeof *tokens);
    fork->known = fork->reported = fork->given = point->computed + count;
    fork->prompt = count == 1 ? point->computed : fork->known;
    ++self->started;
  }
}

/// Number of tokens that the outstanding pass adds to a request, at least.
static int32_t under_way(const engine* self, int index) {
  if (self->passes == 0) return 0;
  for (int i = 0; i < self->pass[0].rows; ++i)
    if (self->pass[0].row[i].request == index) return self->pass[0].row[i].tokens - self->pass[0].row[i].drafts;
  return 0;
}

/// The row of a request in the next pass; no tokens: it waits.
static engine_row next_row(engine* self, int index, int32_t budget) {
  const engine_request* const request = &self->requests[index];
  engine_row row = {.request = index};
  const int32_t computed = request->computed + under_way(self, index);
  if (computed < request->prompt) {
    const int64_t left = request->prompt - computed < budget ? request->prompt - computed : budget;
    int64_t tokens = 0;
    CHECK_OK(stateport_request_cache_chunk(self->cache, &request->id, &left, 1, &tokens, NULL));
    row.tokens = (int32_t)tokens;
    return row;
  }
  int64_t one = 1;
  CHECK_OK(stateport_request_cache_chunk(self->cache, &request->id, &one, 1, &one, NULL));
  if (one == 0) return row;  // its forks have not begun
  if ((computed + 1 > request->reported ? computed + 1 : request->reported) >= request->end) return row;
  row.drafts = engine_random(self, self->drafts + 1);
  if (row.drafts > budget - 1) row.drafts = budget - 1;
  row.tokens = 1 + row.drafts;
  return row;
}

/// Plans for all that run; false: a row has no room.
static bool plan(engine* self, int32_t budget, engine_pass* pass) {
  pass->rows = 0;
  pass->has_run = false;
  int64_t ids[engine_requests];
  int32_t tokens[engine_requests];
  int32_t drafts[engine_requests];
  for (int index = 0; index < engine_requests && budget > 0; ++index) {
    if (self->requests[index].id == STATEPORT_NONE) continue;
    const engine_row row = next_row(self, index, budget);
    if (row.tokens == 0) continue;
    ids[pass->rows] = self->requests[index].id;
    tokens[pass->rows] = row.tokens;
    drafts[pass->rows] = row.drafts;
    pass->row[pass->rows++] = row;
    budget -= row.tokens;
  }
  const stateport_pass_batch batch = {
      .size = sizeof batch, .request = ids, .tokens = tokens, .drafts = drafts, .rows = (size_t)pass->rows};
  set_up_plan(self);
  CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &self->plan));
  engine_carry_out(self, self->plan.transfers, self->plan.transfer_count);
  CHECK(self->plan.rows == (size_t)pass->rows);
  pass->pass = self->plan.pass;
  return self->plan.rows_without_room == 0;
}

static int last_running(const engine* self) {
  for (int index = engine_requests; index-- > 0;)
    if (self->requests[index].id != STATEPORT_NONE) return index;
  return -1;
}

void engine_step(engine* self, int32_t budget) {
  engine_pass next;
  engine_settle_transfers(self, false);
  while (!plan(self, budget, &next)) {
    engine_settle_transfers(self, true);  // loads hold memory, and give it back when they fail
    engine_end(self, last_running(self), STATEPORT_PREEMPTED);
  }
  const bool ahead = self->passes == 1;
  CHECK(!ahead || self->overlap);
  self->planned_ahead += ahead;
  self->pass[self->passes++] = next;
  const bool ready = self->plan.ready != 0;
  CHECK(ready || ahead);
  // A plan that is complete runs before the commit of the pass before it; an incomplete one is completed by that
  // commit.
  engine_pass settled = {.rows = 0};
  if (!ready) settled = commit(self);
  run_pass(self, &self->pass[self->passes - 1]);
  if (ahead && ready) settled = commit(self);
  settle_rows(self, &settled);
  self->ready_ahead += ahead && ready;
  if (!self->overlap || next.rows == 0) engine_settle(self);
}

// --- Events ----------------------------------------------------------------------------------------------------------

/// Index of a stored content; `found` if there is none.
static int find_stored(const engine* self, const uint64_t* prefix, int32_t content, int32_t group, int32_t medium) {
  for (int at = 0; at < self->found; ++at)
    if (memcmp(self->stored[at].prefix, prefix, sizeof self->stored[at].prefix) == 0 &&
        self->stored[at].content == content && self->stored[at].group == group && self->stored[at].medium == medium)
      return at;
  return self->found;
}

static void apply_event(engine* self, const stateport_cache_event* event) {
  CHECK(event->sequence == self->last_event + 1 && (event->medium == STATEPORT_MEDIUM_DEVICE || self->tiers != NULL));
  self->last_event = event->sequence;
  if (event->kind == STATEPORT_EVENT_CLEARED) {
    self->found = 0;
    return;
  }
  const int at = find_stored(self, event->prefix, event->content, event->group, event->medium);
  if (event->kind == STATEPORT_EVENT_REMOVED) {
    CHECK(at < self->found);
    if (at < self->found) self->stored[at] = self->stored[--self->found];
    return;
  }
  CHECK(event->kind == STATEPORT_EVENT_STORED && event->tokens > 0 && self->found < engine_events_max);
  CHECK(at == self->found);
  const bool is_first = event->parent[0] == 0 && event->parent[1] == 0;
  // With tiers memory is so short that KV goes before that of later blocks does.
  const bool has_parent = event->content == STATEPORT_KV_BLOCK && event->tokens > self->block_tokens;
  if (has_parent && self->tiers == NULL)
    CHECK(find_stored(self, event->parent, STATEPORT_KV_BLOCK, 0, event->medium) < self->found);
  CHECK(is_first == !has_parent || event->medium != STATEPORT_MEDIUM_DEVICE);
  memcpy(self->stored[self->found].prefix, event->prefix, sizeof event->prefix);
  self->stored[self->found].content = event->content;
  self->stored[self->found].medium = event->medium;
  self->stored[self->found++].group = event->group;
}

void engine_read_events(engine* self) {
  enum { at_once = 100 };
  static stateport_cache_event events[at_once];
  size_t count = at_once;
  while (count == at_once) {
    events[0].size = sizeof *events;
    CHECK_OK(stateport_request_cache_take_events(self->cache, events, at_once, &count));
    for (size_t i = 0; i < count; ++i) apply_event(self, &events[i]);
  }
  CHECK_OK(stateport_request_cache_take_events(self->cache, events, at_once, &count));
  CHECK(count == 0);
}
