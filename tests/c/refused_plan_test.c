// SPDX-License-Identifier: Apache-2.0
// A plan that is refused, or runs out of memory, leaves every array of the last plan and of the last commit as it was.
#include "check.h"
#include "combination.h"

#include <string.h>

enum { block_tokens = 4, prompt_tokens = 24, request_tokens_max = 64, first_tokens = 5, bytes_max = 4096 };

/// The last answers of the cache: a plan and a commit.
typedef struct {
  stateport_group_plan group;
  stateport_pass_plan plan;
  stateport_group_commit group_commit;
  stateport_pass_commit commit;
  unsigned char bytes[bytes_max];
  size_t used;
} told_arrays;

static size_t append(unsigned char* to, size_t used, const void* array, size_t bytes) {
  if (bytes == 0) return used;
  CHECK(used + bytes <= bytes_max);
  if (used + bytes > bytes_max) return used;
  memcpy(to + used, array, bytes);
  return used + bytes;
}

static size_t append_plan(const stateport_pass_plan* plan, unsigned char* to, size_t used) {
  const size_t rows = plan->rows;
  if (rows == 0) return used;
  const stateport_group_plan* group = plan->groups;
  used = append(to, used, plan->room, rows * sizeof *plan->room);
  used = append(to, used, plan->start, rows * sizeof *plan->start);
  used = append(to, used, plan->kv_count, rows * sizeof *plan->kv_count);
  for (size_t row = 0; row < rows; ++row) {
    used = append(to, used, plan->kv[row], (size_t)plan->kv_count[row] * sizeof *plan->kv[row]);
    used = append(to, used, group->slots[row], (size_t)group->slot_count[row] * sizeof *group->slots[row]);
  }
  used = append(to, used, group->clear, group->clear_count * sizeof *group->clear);
  used = append(to, used, group->copies, group->copy_count * sizeof *group->copies);
  const int32_t* const columns[] = {group->read_column, group->read_bias,           group->write_column,
                                    group->read_slot,   group->read_recurrent_slot, group->write_slot};
  for (size_t i = 0; i < sizeof columns / sizeof *columns; ++i)
    used = append(to, used, columns[i], rows * sizeof *columns[i]);
  return append(to, used, group->saves, group->save_count * sizeof *group->saves);
}

static size_t append_commit(const stateport_group_commit* group, unsigned char* to, size_t used) {
  used = append(to, used, group->steps, group->step_count * sizeof *group->steps);
  used = append(to, used, group->from_scratch, group->from_scratch_count * sizeof *group->from_scratch);
  return append(to, used, group->copies, group->copy_count * sizeof *group->copies);
}

static size_t append_told(const told_arrays* reported, unsigned char* to) {
  return append_commit(&reported->group_commit, to, append_plan(&reported->plan, to, 0));
}

static stateport_status plan_into(stateport_request_cache* cache, const int64_t* requests, const int32_t* counts,
                                  size_t rows, told_arrays* out) {
  const stateport_pass_batch batch = {.size = sizeof batch, .request = requests, .tokens = counts, .rows = rows};
  *out = (told_arrays){.group = {.size = sizeof out->group}};
  out->plan = (stateport_pass_plan){.size = sizeof out->plan, .groups = &out->group, .group_count = 1};
  const stateport_status status = stateport_request_cache_plan(cache, &batch, &out->plan);
  if (status == STATEPORT_OK) out->used = append_told(out, out->bytes);
  return status;
}

/// The check is of the plans before this one, those that ran out of memory among them.
static stateport_status plan_again(const told_arrays* reported, stateport_request_cache* cache, const int64_t* requests,
                                   const int32_t* counts, size_t rows) {
  unsigned char now[bytes_max];
  CHECK(append_told(reported, now) == reported->used && memcmp(now, reported->bytes, reported->used) == 0);
  told_arrays out;
  return plan_into(cache, requests, counts, rows, &out);
}

static void commit_into(stateport_request_cache* cache, told_arrays* reported) {
  const int32_t none = 0;
  const uint64_t pass = reported->plan.pass;
  *reported = (told_arrays){.group_commit = {.size = sizeof reported->group_commit}};
  reported->commit =
      (stateport_pass_commit){.size = sizeof reported->commit, .groups = &reported->group_commit, .group_count = 1};
  CHECK_OK(stateport_request_cache_commit(cache, pass, &none, 1, NULL, 0, &reported->commit));
  reported->used = append_told(reported, reported->bytes);
}

static stateport_request_cache* make_cache(int32_t kind) {
  const stateport_state_group group = {
      .size = sizeof group, .block_size_tokens = block_tokens, .blocks = 60, .layout_fingerprint = 42};
  cache_setup setup = {
      .options = {.max_requests = 2,
                  .max_request_tokens = request_tokens_max,
                  .block_size_tokens = block_tokens,
                  .kv_tokens = 4 * request_tokens_max},
      .slots = {.layout_fingerprint = 42,
                .checkpoints = 20,
                .scan_alignment_tokens = block_tokens,
                .placement = STATEPORT_PLACE_EVERY},
      .columns = {.mode = STATEPORT_ALIGN_MODE_ALL, .groups = &group, .group_count = 1},
  };
  set_combination(&setup, kind);
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  return cache;
}

/// `committed`: the arrays of a commit must stay as they are; else those of a plan.
static void refuse_plans(int32_t kind, bool committed) {
  stateport_request_cache* cache = make_cache(kind);
  int32_t tokens[prompt_tokens];
  int64_t requests[2];
  for (int32_t request = 0; request < 2; ++request) {
    for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = request * prompt_tokens + i;
    const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = prompt_tokens};
    stateport_started_request started = {.size = sizeof started};
    size_t done = 0;
    CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
    requests[request] = started.request;
  }
  const int32_t first = first_tokens;
  told_arrays reported;
  CHECK_OK(plan_into(cache, requests, &first, 1, &reported));
  CHECK(reported.group.save_count == 1 && reported.used > 0);
  if (committed) commit_into(cache, &reported);
  if (committed) CHECK(reported.group_commit.from_scratch_count == (kind == hash_slots));

  const int32_t rest = committed ? prompt_tokens - first_tokens : prompt_tokens;
  const int64_t twice[] = {requests[0], requests[0]};
  CHECK_REFUSED(plan_again(&reported, cache, twice, (const int32_t[]){rest, rest}, 2), STATEPORT_INVALID_ARGUMENT,
                "twice");
  const int32_t past_prompt[] = {rest, prompt_tokens + 1};
  CHECK_REFUSED(plan_again(&reported, cache, requests, past_prompt, 2), STATEPORT_INVALID_ARGUMENT, "tokens = 25");
#ifdef STATEPORT_TEST_MEMORY
  // Tokens that a row claims beyond its request take no memory: the number of allocations is the same, whatever a row
  // claims.
  const int32_t usual = memory_calls_apart;
  memory_calls_apart = 1;
  const int64_t before = memory_failures;
  CHECK_REFUSED(plan_again(&reported, cache, requests, past_prompt, 2), STATEPORT_INVALID_ARGUMENT, "tokens = 25");
  const int64_t of_text = memory_failures - before;
  const int32_t claimed[] = {rest, request_tokens_max};
  CHECK_REFUSED(plan_again(&reported, cache, requests, claimed, 2), STATEPORT_INVALID_ARGUMENT, "tokens = 64");
  CHECK(memory_failures - before == 2 * of_text);
  memory_calls_apart = usual;
#endif
  CHECK_OK(plan_again(&reported, cache, requests, (const int32_t[]){rest, prompt_tokens}, 2));
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
}

void test_refused_plans(void) {
  for (int32_t kind = 0; kind < combinations; ++kind)
    for (int committed = 0; committed < 2; ++committed) refuse_plans(kind, committed != 0);
}
