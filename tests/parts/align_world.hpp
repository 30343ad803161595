// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/parts/align_planner.hpp>

#include "align/column_table.hpp"
#include "random.hpp"

#include <cstdint>
#include <map>
#include <vector>

namespace stateport::test {

/// How an engine of the oracle behaves.
struct WorldOptions {
  bool older_split = false;  ///< the split rule that poisons blocks
  bool checked = true;       ///< ask PublicationCheck; false: register every block below a boundary, as engines did
};

/// A small engine over block tables in which every state is a symbol: the hash of the token prefix it stands for.
/// Requests come, are prefilled in chunks, decode with drafts, are preempted, resumed from cached blocks and end; the
/// cache is reset now and then. Compares every state that a forward reads, and every state that is published, with the
/// request's tokens.
class AlignWorld {
 public:
  AlignWorld(Random& random, const WorldOptions& options) : random_(random), options_(options), planner_(draw()) {
    for (std::size_t g = 0; g < planner_.options().groups.size(); ++g) groups_.emplace_back();
    for (Group& group : groups_) group.blocks.resize(block_count);
    for (std::int32_t slot = 0; slot < planner_.options().max_requests; ++slot) requests_.emplace_back(Request{});
  }

  /// One step of the whole batch, after random arrivals, preemptions and resets.
  void step();

  std::int64_t wrong_reads = 0;
  std::int64_t wrong_publications = 0;
  std::int64_t writes_to_published = 0;
  std::int64_t publications = 0;
  std::int64_t refusals = 0;
  std::int64_t hits = 0;

 private:
  using Symbol = std::uint64_t;
  static constexpr std::size_t block_count = 160;
  static constexpr std::int64_t sequence_tokens = 90;
  static constexpr Symbol garbage = 0;

  struct Block {
    std::vector<Symbol> conv;  ///< [i]: the state after i more tokens of the window
    Symbol recurrent = garbage;
    std::int32_t owners = 0;
    Symbol key = garbage;  ///< published under this prefix
  };
  struct Group {
    std::vector<Block> blocks;
    std::map<Symbol, std::int32_t> cache;
  };
  struct Request {
    bool running = false;
    bool began = false;
    std::vector<Symbol> prefix;  ///< symbol of the first n tokens
    std::int64_t prompt = 0;     ///< tokens to prefill: the prompt, or after a preemption all that are known
    std::int64_t computed = 0;
    std::int64_t previous_start = -1, previous_scheduled = 0;
    std::int32_t scheduled = 0, drafts = 0, sampled = 0;
    std::vector<detail::ColumnTable> rows;  ///< per group
  };

  AlignOptions draw();

  [[nodiscard]] std::int64_t block_size(std::size_t g) const { return planner_.options().groups[g].block_size_tokens; }

  /// Two families of sequences share their first tokens.
  void new_sequence(Request& request);
  void start(std::size_t slot);

  /// The longest prefix whose state every group has; takes the blocks.
  std::int64_t hit_of(Request& request);
  void give_back(std::size_t g, const std::vector<BlockId>& released) {
    for (const BlockId id : released) --groups_[g].blocks[id.index()].owners;
  }

  void leave(std::size_t slot);

  /// A forced preemption shows up only as resumed, when the request starts again.
  void preempt(std::size_t slot, bool forced);
  void reset_cache();

  /// Decides the tokens of the request's step; false: it waits.
  bool schedule(Request& r);
  void make_room(Request& r);

  /// A block without an owner, if possible one that is not cached. Its content becomes unknown.
  BlockId take_block(std::size_t g);
  void run(const std::vector<std::size_t>& batch);

  Block& written(std::size_t g, std::int32_t id) {
    Block& block = groups_[g].blocks[static_cast<std::size_t>(id)];
    if (block.key != garbage || block.owners != 1) ++writes_to_published;
    return block;
  }

  void copy_blocks();

  /// Reads state@computed where the planner says it is, and writes the states of the step's tokens.
  void forward(std::size_t slot);
  void after(std::size_t slot);
  void publish(const Request& r, std::size_t g);

  Random& random_;
  WorldOptions options_;
  std::int64_t grid_ = 1;  ///< tokens between the positions where every group has a boundary
  bool asynchronous_ = false;
  bool drops_block_ = false;
  AlignPlanner planner_;
  std::vector<Group> groups_;
  std::vector<Request> requests_;
};

}  // namespace stateport::test
