// SPDX-License-Identifier: Apache-2.0
// The block-table planner of the host.
#include "check.h"

#include <string.h>

enum { columns = 4, blocks = 8, block_tokens = 4, requests = 2 };

static stateport_align_planner* make_planner(int32_t mode, int32_t drafts) {
  const stateport_align_group group = {.size = sizeof group,
                                       .block_size_tokens = block_tokens,
                                       .blocks = blocks,
                                       .conv_window = conv_window,
                                       .retention_tokens = 2 * block_tokens};
  const stateport_align_options options = {.size = sizeof options,
                                           .drafts = drafts,
                                           .max_requests = requests,
                                           .groups = &group,
                                           .group_count = 1,
                                           .mode = mode};
  stateport_align_planner* planner = NULL;
  CHECK_OK(stateport_align_planner_create(&options, &planner));
  return planner;
}

typedef struct {
  int32_t request;
  int32_t computed;
  int32_t scheduled;
  int32_t drafts;
  int32_t row[columns];
} step;

static stateport_align_batch batch_of(const step* from) {
  return (stateport_align_batch){.size = sizeof(stateport_align_batch),
                                 .request = &from->request,
                                 .computed = &from->computed,
                                 .scheduled = &from->scheduled,
                                 .drafts = &from->drafts,
                                 .rows = 1};
}

static stateport_block_table table_of(const step* from) {
  return (stateport_block_table){.size = sizeof(stateport_block_table),
                                 .ids = from->row,
                                 .id_count = columns,
                                 .row_stride = columns,
                                 .columns = columns};
}

/// The only copy of the last step, or one of all STATEPORT_NONE.
static stateport_slot_copy planned(stateport_align_planner* planner) {
  const stateport_slot_copy* copies = NULL;
  size_t count = 99;
  CHECK_OK(stateport_align_planner_plan(planner, 0, &copies, &count));
  CHECK(count <= 1);
  const stateport_slot_copy none = {STATEPORT_NONE, STATEPORT_NONE, 0, STATEPORT_NONE};
  return count == 1 ? copies[0] : none;
}

static bool published(stateport_align_planner* planner, int32_t block, int64_t tokens) {
  uint8_t answer = 9;
  CHECK_OK(stateport_align_planner_publish(planner, 0, &block, &tokens, 1, &answer));
  return answer == 1;
}

void test_align_planner(void) {
  stateport_align_planner* planner = make_planner(STATEPORT_ALIGN_MODE_ALIGN, 1);
  const int64_t computed = 0;
  step at = {.request = 1, .scheduled = block_tokens, .row = {2, 3, 5, 6}};
  CHECK_OK(stateport_align_planner_add_requests(planner, &at.request, &computed, 1));
  stateport_align_arrays arrays = {.size = sizeof arrays};
  CHECK_OK(stateport_align_planner_arrays(planner, 0, &arrays));
  CHECK(arrays.columns[1] == -1 && arrays.accepted[1] == 1 && arrays.src_columns == NULL);

  // A prefill of one block ends in column 0, and its end is a boundary that needs no copy.
  stateport_align_batch batch = batch_of(&at);
  const stateport_block_table table = table_of(&at);
  stateport_align_step done = {.size = sizeof done, .copies = 9};
  CHECK_OK(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done));
  CHECK(done.copies == 0 && arrays.columns[1] == 0);
  int32_t sampled = 1;
  CHECK_OK(stateport_align_planner_accept(planner, &at.request, &sampled, 1));
  CHECK_OK(stateport_align_planner_post_step(planner, &batch, &table, 1, &done));
  CHECK(published(planner, 2, block_tokens) && !published(planner, 2, block_tokens - 1));
  CHECK(!published(planner, 3, block_tokens));

  // The step after it runs in column 1: the state moves there. Its draft is kept.
  at.computed = block_tokens;
  at.scheduled = 2;
  at.drafts = 1;
  CHECK_OK(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done));
  const stateport_slot_copy moved = {2, 3, 0, 2};
  const stateport_slot_copy seen = planned(planner);
  CHECK(done.copies == 1 && memcmp(&seen, &moved, sizeof moved) == 0 && arrays.columns[1] == 1);
  sampled = 2;
  CHECK_OK(stateport_align_planner_accept(planner, &at.request, &sampled, 1));
  const int32_t rows[] = {1, -1};
  int32_t accepted[] = {9, 9};
  CHECK_OK(stateport_align_planner_gather_accepted(planner, 0, rows, 2, accepted));
  CHECK(accepted[0] == 2 && accepted[1] == 1);
  // The same step from the count after it: 4 + 2 tokens.
  stateport_align_batch after = {.size = sizeof after, .request = &at.request, .rows = 1};
  const int32_t new_computed = block_tokens + 2;
  after.computed = &new_computed;
  CHECK_OK(stateport_align_planner_post_step_advanced(planner, &after, &table, 1, &done));
  CHECK(done.copies == 0 && planned(planner).dst_slot == STATEPORT_NONE);

  CHECK_OK(stateport_align_planner_check(planner));
  CHECK_OK(stateport_align_planner_forget(planner, &at.request, 1));
  CHECK(arrays.columns[1] == -2);
  CHECK_OK(stateport_align_planner_destroy(planner));

  // The other modes plan no copies; mode all remembers the column of a step of drafts, after the step.
  planner = make_planner(STATEPORT_ALIGN_MODE_ALL, 1);
  CHECK_OK(stateport_align_planner_add_requests(planner, &at.request, &computed, 1));
  CHECK_OK(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done));
  CHECK_OK(stateport_align_planner_post_step(planner, &batch, &table, 1, &done));
  CHECK_OK(stateport_align_planner_arrays(planner, 0, &arrays));
  CHECK(done.copies == 0 && arrays.columns[1] == 1);
  CHECK_OK(stateport_align_planner_destroy(planner));
  planner = make_planner(STATEPORT_ALIGN_MODE_NONE, 1);
  CHECK_OK(stateport_align_planner_add_requests(planner, &at.request, &computed, 1));
  CHECK_OK(stateport_align_planner_arrays(planner, 0, &arrays));
  CHECK_OK(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done));
  CHECK_OK(stateport_align_planner_post_step(planner, &batch, &table, 1, &done));
  CHECK(done.copies == 0 && arrays.columns[1] == -1);
  CHECK_OK(stateport_align_planner_destroy(planner));
}

void test_align_retention(void) {
  stateport_align_planner* planner = make_planner(STATEPORT_ALIGN_MODE_ALIGN, 0);
  // Every second column, and the one that ends last before token 5.
  const int64_t boundary = block_tokens + 1;
  uint8_t keep[columns] = {9, 9, 9, 9};
  CHECK_OK(stateport_align_planner_retention(planner, 0, 0, &boundary, 1, keep, columns));
  CHECK(keep[0] == 1 && keep[1] == 1 && keep[2] == 0 && keep[3] == 1);
  CHECK_OK(stateport_align_planner_retention(planner, 0, 0, NULL, 0, keep, columns));
  CHECK(keep[0] == 0 && keep[1] == 1);

  stateport_chunk_checkpoint chunk = {
      .size = sizeof chunk, .end = 2 * block_tokens + 2, .position = 2 * block_tokens, .hash_block = 2, .alignment = 2};
  int32_t column = 9;
  int64_t offset = 9;
  CHECK_OK(stateport_align_planner_checkpoint_in(planner, 0, &chunk, &column, &offset));
  CHECK(column == 1 && offset == 2 * block_tokens);
  chunk.alignment = 3;
  CHECK_OK(stateport_align_planner_checkpoint_in(planner, 0, &chunk, &column, &offset));
  CHECK(column == STATEPORT_NONE && offset == 0);
  chunk.hash_block = 0;
  CHECK_REFUSED(stateport_align_planner_checkpoint_in(planner, 0, &chunk, &column, &offset), STATEPORT_INVALID_ARGUMENT,
                "hash_block = 0");
  chunk.hash_block = 2;
  CHECK_REFUSED(stateport_align_planner_checkpoint_in(planner, 0, &chunk, &column, NULL), STATEPORT_INVALID_ARGUMENT,
                "offset = null");

  // A block can be published if the caller says that it wrote the block's state, until the caller takes that back.
  const int32_t two[] = {3, 4};
  const int64_t tokens[] = {8, 12};
  uint8_t answers[2] = {9, 9};
  CHECK_OK(stateport_align_planner_wrote(planner, 0, two, tokens, 2));
  CHECK_OK(stateport_align_planner_publish(planner, 0, two, tokens, 2, answers));
  CHECK(answers[0] == 1 && answers[1] == 1);
  const int64_t unknown = -1;
  CHECK_OK(stateport_align_planner_wrote(planner, 0, two, &unknown, 1));
  CHECK_OK(stateport_align_planner_publish(planner, 0, two, tokens, 2, answers));
  CHECK(answers[0] == 0 && answers[1] == 1);
  const int32_t half_wrong[] = {4, blocks};
  CHECK_REFUSED(stateport_align_planner_wrote(planner, 0, half_wrong, (const int64_t[]){4, 4}, 2),
                STATEPORT_INVALID_ARGUMENT, "blocks = 8");
  const int32_t null_too[] = {4, 0};
  CHECK_REFUSED(stateport_align_planner_publish(planner, 0, null_too, tokens, 2, answers), STATEPORT_INVALID_ARGUMENT,
                "blocks = 0");
  CHECK_REFUSED(stateport_align_planner_wrote(planner, 0, two, (const int64_t[]){4, -2}, 2), STATEPORT_INVALID_ARGUMENT,
                "tokens = -2");
  CHECK_REFUSED(stateport_align_planner_publish(planner, 1, two, tokens, 2, answers), STATEPORT_INVALID_ARGUMENT,
                "group = 1");
  CHECK(published(planner, 4, 12));
  CHECK_OK(stateport_align_planner_destroy(planner));
}

void test_align_planner_refusals(void) {
  stateport_align_planner* planner = make_planner(STATEPORT_ALIGN_MODE_ALIGN, 1);
  const int32_t both[] = {0, 2};
  const int64_t counts[] = {4, 4};
  CHECK_REFUSED(stateport_align_planner_add_requests(planner, both, counts, 2), STATEPORT_INVALID_ARGUMENT,
                "requests = 2");
  CHECK_REFUSED(stateport_align_planner_add_requests(planner, (const int32_t[]){0, 1}, (const int64_t[]){4, -1}, 2),
                STATEPORT_INVALID_ARGUMENT, "computed = -1");
  stateport_align_arrays arrays = {.size = sizeof arrays};
  CHECK_OK(stateport_align_planner_arrays(planner, 0, &arrays));
  CHECK(arrays.columns[0] == -2);
  CHECK_OK(stateport_align_planner_add_requests(planner, both, counts, 1));
  CHECK_REFUSED(stateport_align_planner_forget(planner, both, 2), STATEPORT_INVALID_ARGUMENT, "request = 2");
  CHECK(arrays.columns[0] == 0);

  step at = {.computed = block_tokens, .scheduled = 1, .row = {2, blocks, 5, 6}};
  stateport_align_batch batch = batch_of(&at);
  stateport_block_table table = table_of(&at);
  stateport_align_step done = {.size = sizeof done};
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "block id = 8");
  at.row[1] = 3;
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, &table, 0, &done), STATEPORT_INVALID_ARGUMENT,
                "tables = 0");
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, NULL, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "tables = null");
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, &table, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  table.id_count = columns - 1;
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "ids = 3");
  table = table_of(&at);
  batch.computed = NULL;
  CHECK_REFUSED(stateport_align_planner_pre_step(planner, &batch, &table, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "computed = null");
  batch = batch_of(&at);
  batch.rows = -1;
  CHECK_REFUSED(stateport_align_planner_post_step(planner, &batch, &table, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "rows = -1");
  batch.rows = 1;
  const int32_t twice[] = {0, 0};
  CHECK_REFUSED(stateport_align_planner_accept(planner, twice, (const int32_t[]){1, 1}, 2), STATEPORT_INVALID_ARGUMENT,
                "named twice");
  CHECK_REFUSED(stateport_align_planner_accept(planner, twice, (const int32_t[]){3}, 1), STATEPORT_INVALID_ARGUMENT,
                "sampled = 3");
  CHECK(arrays.columns[0] == 0 && arrays.accepted[0] == 1);
  const stateport_slot_copy* copies = NULL;
  size_t count = 0;
  CHECK_REFUSED(stateport_align_planner_plan(planner, 1, &copies, &count), STATEPORT_INVALID_ARGUMENT, "group = 1");
  CHECK_REFUSED(stateport_align_planner_plan(planner, 0, NULL, &count), STATEPORT_INVALID_ARGUMENT, "copies = null");
  CHECK_OK(stateport_align_planner_check(planner));
  CHECK_OK(stateport_align_planner_destroy(planner));

  stateport_align_group group = {.size = sizeof group, .block_size_tokens = 4, .blocks = 4, .retention_tokens = -2};
  stateport_align_options options = {
      .size = sizeof options, .max_requests = 1, .groups = &group, .group_count = 1, .mode = 3};
  CHECK_REFUSED(stateport_align_planner_create(&options, &planner), STATEPORT_INVALID_ARGUMENT, "mode = 3");
  options.mode = STATEPORT_ALIGN_MODE_ALIGN;
  CHECK_REFUSED(stateport_align_planner_create(&options, &planner), STATEPORT_INVALID_ARGUMENT,
                "retention_tokens = -2");
  options.group_count = 0;
  CHECK_REFUSED(stateport_align_planner_create(&options, &planner), STATEPORT_INVALID_ARGUMENT, "groups = 0");
}
