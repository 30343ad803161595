// SPDX-License-Identifier: Apache-2.0
// Checkpoints that somebody overwrites are named and taken back, over a cache in slots and the small model's states.
#include "device.h"

#include <math.h>
#include <string.h>

enum { block = 4, prompt_tokens = 9, live_slots = 2 };

typedef struct checked_engine {
  stateport_spec* spec;
  stateport_store* store;
  stateport_copier* copier;
  stateport_request_cache* cache;
  stateport_integrity* integrity;
} checked_engine;

static stateport_request_cache* make_cache(int integrity) {
  const stateport_slot_layout slots = {.size = sizeof slots, .checkpoints = 4, .placement = STATEPORT_PLACE_LAST};
  const stateport_request_cache_options options = {.size = sizeof options,
                                                   .slots = &slots,
                                                   .max_requests = live_slots,
                                                   .max_request_tokens = 16,
                                                   .block_size_tokens = block,
                                                   .kv_tokens = 64,
                                                   .unchecked_layout = 1,
                                                   .integrity = integrity};
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&options, &cache));
  return cache;
}

static checked_engine make_engine(void) {
  checked_engine engine = {.spec = small_spec(), .cache = make_cache(1)};
  int32_t slots = 0;
  CHECK_OK(stateport_request_cache_checkpoint_slots(engine.cache, 0, &slots));
  const stateport_store_options options = {.size = sizeof options, .slots = slots};
  CHECK_OK(stateport_store_create(engine.spec, &options, NULL, &engine.store));
  CHECK_OK(stateport_copier_create(engine.store, engine.store, &engine.copier));
  CHECK_OK(stateport_integrity_create(&engine.store, 1, NULL, &engine.integrity));
  return engine;
}

static void destroy_engine(const checked_engine* self) {
  CHECK_OK(stateport_integrity_destroy(self->integrity));
  CHECK_OK(stateport_copier_destroy(self->copier));
  CHECK_OK(stateport_request_cache_destroy(self->cache));
  CHECK_OK(stateport_store_destroy(self->store));
  CHECK_OK(stateport_spec_destroy(self->spec));
}

/// The checks of the last answer.
static const stateport_state_check* take(const checked_engine* self, size_t* count) {
  const stateport_state_check* checks = NULL;
  *count = 99;
  CHECK_OK(stateport_request_cache_take_checks(self->cache, &checks, count));
  CHECK_ONCE(stateport_integrity_begin(self->integrity, NULL, checks, *count), STATEPORT_OK, NULL);
  return checks;
}

static size_t poll(const checked_engine* self, const stateport_state_fault** faults) {
  size_t count = 99;
  CHECK_OK(stateport_integrity_wait(self->integrity, NULL));
  CHECK_OK(stateport_integrity_poll(self->integrity, faults, &count));
  return count;
}

typedef struct checked_pass {
  int64_t request;
  int64_t reused;
  int32_t live;  ///< its slot
  uint64_t pass;
  size_t faults;
  stateport_state_fault fault;  ///< the first one
} checked_pass;

/// Starts the prompt and plans its pass, whose restores are checked.
static checked_pass plan(const checked_engine* self) {
  const int32_t tokens[prompt_tokens] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = prompt_tokens};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &done));
  const int32_t next = started.reused_tokens == 0 ? 2 * block : 1;
  stateport_group_plan group = {.size = sizeof group};
  stateport_pass_plan planned = {.size = sizeof planned, .groups = &group, .group_count = 1};
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &started.request, .tokens = &next, .rows = 1};
  CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &planned));
  CHECK(planned.rows_without_room == 0);
  size_t count = 0;
  const stateport_state_check* const checks = take(self, &count);
  CHECK(count == (size_t)(started.reused_tokens > 0));
  if (count == 1)
    CHECK(checks[0].kind == STATEPORT_CHECK_READ && checks[0].group == 0 && checks[0].request == started.request &&
          checks[0].pass == planned.pass && checks[0].content > 0 && checks[0].slot == group.copies[0].src_slot);
  CHECK_ONCE(stateport_integrity_copy(self->integrity, NULL, self->copier, group.copies, group.copy_count, 0),
             STATEPORT_OK, NULL);
  CHECK_ONCE(stateport_integrity_end(self->integrity, NULL), STATEPORT_OK, NULL);
  checked_pass pass = {
      .request = started.request, .reused = started.reused_tokens, .live = group.write_slot[0], .pass = planned.pass};
  const stateport_state_fault* faults = NULL;
  pass.faults = poll(self, &faults);
  if (pass.faults > 0) pass.fault = faults[0];
  return pass;
}

/// The pass ran and left the live state `seed`. Returns the slot of the checkpoint, or -1; writes the faults.
static int32_t commit(const checked_engine* self, const checked_pass* pass, unsigned seed, bool infinite,
                      stateport_state_fault* fault, size_t* faults) {
  fill_slot(self->store, pass->live, seed);
  const float infinity = -INFINITY;
  if (infinite) write_slot(self->store, 3, pass->live, &infinity, sizeof infinity);
  const int32_t sampled = 0;
  stateport_group_commit group = {.size = sizeof group};
  stateport_pass_commit committed = {.size = sizeof committed, .groups = &group, .group_count = 1};
  CHECK_OK(stateport_request_cache_commit(self->cache, pass->pass, &sampled, 1, NULL, 0, &committed));
  size_t count = 0;
  const stateport_state_check* const checks = take(self, &count);
  CHECK(count == (size_t)committed.published_states);
  const int32_t slot = count > 0 ? checks[0].slot : -1;
  if (count > 0)
    CHECK(checks[0].kind == STATEPORT_CHECK_PUBLISHED && checks[0].request == pass->request &&
          checks[0].pass == pass->pass);
  CHECK_ONCE(stateport_integrity_copy(self->integrity, NULL, self->copier, group.copies, group.copy_count, 0),
             STATEPORT_OK, NULL);
  CHECK_ONCE(stateport_integrity_end(self->integrity, NULL), STATEPORT_OK, NULL);
  const stateport_state_fault* found = NULL;
  *faults = poll(self, &found);
  if (*faults > 0) *fault = found[0];
  return slot;
}

static void end(const checked_engine* self, int64_t request, int32_t how) {
  CHECK_OK(stateport_request_cache_end(self->cache, &request, 1, how, NULL, NULL));
  CHECK_OK(stateport_request_cache_check(self->cache));
}

static stateport_integrity_usage usage_of(stateport_request_cache* cache) {
  stateport_integrity_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_integrity_usage(cache, &usage));
  return usage;
}

/// Computes 8 tokens of the prompt, behind which it leaves a checkpoint.
static int32_t serve(const checked_engine* self, bool infinite, stateport_state_fault* fault, size_t* faults) {
  checked_pass pass = plan(self);
  CHECK(pass.reused == 0 && pass.faults == 0);
  const int32_t slot = commit(self, &pass, 1, infinite, fault, faults);
  end(self, pass.request, STATEPORT_FINISHED);
  return slot;
}

/// Starts the prompt again and does not run it.
static checked_pass look(const checked_engine* self) {
  const checked_pass pass = plan(self);
  CHECK_OK(stateport_request_cache_cancel(self->cache, pass.pass));
  end(self, pass.request, STATEPORT_PREEMPTED);
  return pass;
}

static void find_changed_state(void) {
  const checked_engine engine = make_engine();
  stateport_state_fault fault;
  size_t faults = 99;
  const int32_t slot = serve(&engine, false, &fault, &faults);
  CHECK(slot >= 0 && faults == 0);
  checked_pass pass = look(&engine);
  CHECK(pass.reused == 8 && pass.faults == 0);
  CHECK(slot_holds(engine.store, pass.live, 1));

  const unsigned char wrong = 200;
  write_slot(engine.store, 2, slot, &wrong, 1);
  pass = look(&engine);
  CHECK(pass.reused == 8 && pass.faults == 1);
  CHECK(pass.fault.kind == STATEPORT_FAULT_CHANGED && pass.fault.tensor == 2 && pass.fault.check.slot == slot &&
        pass.fault.check.request == pass.request && pass.fault.check.pass == pass.pass);
  int32_t withdrawn = 99;
  CHECK_OK(stateport_request_cache_withdraw(engine.cache, &pass.fault, 1, &withdrawn));
  CHECK(withdrawn == 1);
  const stateport_integrity_usage usage = usage_of(engine.cache);
  CHECK(usage.published == 1 && usage.reads == 2 && usage.changed == 1 && usage.other_state == 0 &&
        usage.not_finite == 0 && usage.withdrawn_states == 1 && usage.unchecked_states == 0 && usage.checks_max > 0);
  CHECK(serve(&engine, false, &fault, &faults) >= 0);
  pass = look(&engine);
  CHECK(pass.reused == 8 && pass.faults == 0);
  destroy_engine(&engine);
}

static void find_infinity(void) {
  const checked_engine engine = make_engine();
  stateport_state_fault fault = {.kind = -1};
  size_t faults = 0;
  const int32_t slot = serve(&engine, true, &fault, &faults);
  CHECK(faults == 1 && fault.kind == STATEPORT_FAULT_NOT_FINITE && fault.tensor == 3 && fault.check.slot == slot);
  int32_t withdrawn = 99;
  CHECK_OK(stateport_request_cache_withdraw(engine.cache, &fault, 1, &withdrawn));
  CHECK(withdrawn == 1);
  CHECK(usage_of(engine.cache).not_finite == 1);
  CHECK(serve(&engine, false, &fault, &faults) >= 0);
  CHECK(faults == 0);
  destroy_engine(&engine);
}

static void refuse_checks(void) {
  const checked_engine engine = make_engine();
  const stateport_state_check right = {.content = 1, .request = STATEPORT_NONE};
  stateport_integrity* made = NULL;
  const stateport_integrity_options negative = {.size = sizeof negative, .checks_max = -1};
  const stateport_integrity_options one = {.size = sizeof one, .checks_max = 1};
  CHECK_REFUSED(stateport_integrity_create(&engine.store, 1, &negative, &made), STATEPORT_INVALID_ARGUMENT,
                "checks_max = -1");
  CHECK_REFUSED(stateport_integrity_create(NULL, 0, NULL, &made), STATEPORT_INVALID_ARGUMENT, "stores = 0");
  CHECK_REFUSED(stateport_integrity_create(NULL, 1, NULL, &made), STATEPORT_INVALID_ARGUMENT, "stores = null");
  CHECK(made == NULL);
  CHECK_OK(stateport_integrity_create(&engine.store, 1, &one, &made));
  const stateport_state_check two[] = {right, right};
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, two, 2), STATEPORT_INVALID_ARGUMENT, "checks = 2");
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, NULL, 1), STATEPORT_INVALID_ARGUMENT, "checks = null");
  stateport_state_check bad = right;
  bad.kind = 2;
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, &bad, 1), STATEPORT_INVALID_ARGUMENT, "checks.kind = 2");
  bad = right;
  bad.reserved = 1;
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, &bad, 1), STATEPORT_INVALID_ARGUMENT, "reserved = 1");
  bad = right;
  bad.group = 1;
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, &bad, 1), STATEPORT_INVALID_ARGUMENT, "group = 1");
  bad = right;
  bad.slot = 99;
  CHECK_REFUSED(stateport_integrity_begin(made, NULL, &bad, 1), STATEPORT_INVALID_ARGUMENT, "slot = 99");
  CHECK_REFUSED(stateport_integrity_end(made, NULL), STATEPORT_INVALID_STATE, "begin");
  CHECK_REFUSED(stateport_integrity_copy(made, NULL, engine.copier, NULL, 0, 0), STATEPORT_INVALID_STATE, "begin");
  size_t count = 0;
  const stateport_state_fault* faults = NULL;
  CHECK_REFUSED(stateport_integrity_poll(made, NULL, &count), STATEPORT_INVALID_ARGUMENT, "faults = null");
  CHECK_REFUSED(stateport_integrity_poll(made, &faults, NULL), STATEPORT_INVALID_ARGUMENT, "count = null");
  CHECK_OK(stateport_integrity_destroy(made));
  destroy_engine(&engine);
}

static void refuse_withdrawals(void) {
  const checked_engine engine = make_engine();
  size_t count = 0;
  const stateport_state_check* checks = NULL;
  CHECK_REFUSED(stateport_request_cache_take_checks(engine.cache, NULL, &count), STATEPORT_INVALID_ARGUMENT,
                "checks = null");
  CHECK_REFUSED(stateport_request_cache_take_checks(engine.cache, &checks, NULL), STATEPORT_INVALID_ARGUMENT,
                "count = null");
  int32_t withdrawn = 9;
  stateport_state_fault fault = {.kind = 3};
  CHECK_REFUSED(stateport_request_cache_withdraw(engine.cache, &fault, 1, &withdrawn), STATEPORT_INVALID_ARGUMENT,
                "faults.kind = 3");
  fault = (stateport_state_fault){.check = {.kind = 2}};
  CHECK_REFUSED(stateport_request_cache_withdraw(engine.cache, &fault, 1, &withdrawn), STATEPORT_INVALID_ARGUMENT,
                "faults.check.kind = 2");
  CHECK_REFUSED(stateport_request_cache_withdraw(engine.cache, NULL, 1, &withdrawn), STATEPORT_INVALID_ARGUMENT,
                "faults = null");
  CHECK_REFUSED(stateport_request_cache_withdraw(engine.cache, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT,
                "withdrawn = null");
  CHECK(withdrawn == 9);
  stateport_request_cache* const plain = make_cache(0);
  CHECK_REFUSED(stateport_request_cache_take_checks(plain, &checks, &count), STATEPORT_INVALID_STATE, "integrity");
  CHECK_REFUSED(stateport_request_cache_withdraw(plain, NULL, 0, &withdrawn), STATEPORT_INVALID_STATE, "integrity");
  stateport_integrity_usage usage = {.size = sizeof usage};
  CHECK_REFUSED(stateport_request_cache_integrity_usage(plain, &usage), STATEPORT_INVALID_STATE, "integrity");
  CHECK_OK(stateport_request_cache_destroy(plain));
  destroy_engine(&engine);
}

void test_integrity(void) {
  find_changed_state();
  find_infinity();
  refuse_checks();
  refuse_withdrawals();
}
