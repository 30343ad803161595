// SPDX-License-Identifier: Apache-2.0
#include "serve/busy_rows.hpp"

#include <algorithm>

namespace stateport::detail {
namespace {

/// A fork that begins inside a block writes to a copy of it.
void copy_last_block(const RequestBook& book, const RequestIndex& index, Pass& pass, const RowPlan& row) {
  const std::int64_t size = book.options.block_size_tokens;
  if (row.start % size == 0) return;
  const std::int64_t first = row.start - row.start % size;
  const KvIndex from = index.kv_of(book.point_of(row.request)).at(first);
  pass.fork_copies.push_back(
      SlotCopy::whole(static_cast<std::int32_t>(from / size), static_cast<std::int32_t>(row.kv.at(first) / size)));
}

/// The first pass of a request that continues from a checkpoint reads it. Its commit moves the state that the request
/// reads, so it is not quiet, and no second pass is placed before that commit.
void check_hit(RequestBook& book, const Pass& pass, std::size_t index) {
  const RequestId id = pass.rows[index].request;
  const RequestRecord& record = book.record(id);
  if (record.begun || record.is_fork || record.computed == 0 || pass.inserts) return;
  for (std::size_t g = 0; g < book.groups; ++g) book.checks->read(g, book.hit_of(id, g), id, pass.id);
}

}  // namespace

BusyRows::BusyRows(RequestBook& book, RequestIndex& index, RequestForks& forks, TenantMarks* marks)
    : book_(book), index_(index), forks_(forks), marks_(marks) {}

RowPart BusyRows::reserve(Pass& pass, RequestId request, std::int64_t upto) {
  book_.ask(request);
  const bool is_fork = book_.record(request).is_fork;
  const bool room = (!is_fork || forks_.take_memory(request)) && index_.reserve(request, upto);
  index_.note_memory(request);
  ++(room ? pass.busy_rows : pass.without_room);
  if (!room && marks_ != nullptr) book_.records[request.index()].quiet_until = 0;  // it may have new KV
  return room ? RowPart::busy : RowPart::none;
}

void BusyRows::place_late(Pass& pass) {
  pass.ready = true;
  for (std::size_t i = 0; i < pass.rows.size(); ++i)
    if (const RequestId id = pass.rows[i].request; pass.runs(i))
      pass.place(i, book_.record(id).computed, book_.states.of(id), book_.in_columns);
  place(pass);
}

/// The index has its part in placing a row: it may change the state that the row finds, in a copy.
void BusyRows::place(Pass& pass) {
  if (marks_ != nullptr) marks_->place_drafts(pass);
  if (pass.busy_rows == 0) return;
  pass.save_ranges.assign(pass.rows.size() * book_.groups, SaveRange{});
  pass.states.resize(pass.rows.size() * book_.groups);
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.is_busy(i)) continue;
    const std::span states = std::span(pass.states).subspan(i * book_.groups, book_.groups);
    std::ranges::copy(pass.rows[i].states, states.begin());
    pass.rows[i].states = states;
    book_.ask(pass.rows[i].request);
    if (book_.checks) check_hit(book_, pass, i);
    index_.place(pass, i);
    if (marks_ != nullptr) marks_->place(pass, i);
    if (!forks_.any() || !book_.record(pass.rows[i].request).is_fork) continue;
    copy_last_block(book_, index_, pass, pass.rows[i]);
    pass.quiet = false;  // from the next pass on the fork reads its own state
  }
  for (std::size_t g = 0; g < book_.groups; ++g) pass.quiet &= pass.clear[g].empty() && pass.copies[g].empty();
  pass.quiet &= pass.saves.empty();
}

void BusyRows::drop_newest() {
  Pass& pass = book_.passes.newest();
  if (marks_ != nullptr) marks_->forget(pass);
  if (book_.checks) book_.checks->drop_pass(pass.id);
  index_.unplace(pass);
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (!pass.is_busy(i)) continue;
    index_.note_memory(pass.rows[i].request);
    // The next plan has to name the memory that this one was to clear.
    if (marks_ != nullptr) book_.records[pass.rows[i].request.index()].quiet_until = 0;
  }
  book_.passes.pop_newest();
}

}  // namespace stateport::detail
