// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_PREFIX_TREE_H
#define STATEPORT_C_PREFIX_TREE_H

#include <stateport/c/copies.h>
#include <stateport/c/eviction.h>
#include <stateport/c/statistics.h>
#include <stateport/c/status.h>

/// Checkpoints found by tokens: stateport::PrefixTree. The conventions are in stateport/c/core.h, the rules in the
/// C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// A radix tree over tokens. It owns KV indices (numbers of the caller) and slots 0 … slots - 1.
typedef struct stateport_tree stateport_tree;
/// A pin on a path of a tree and the state at its end.
typedef struct stateport_tree_lock stateport_tree_lock;

/// Contents that a tree would evict, or evicts now. Arrays belong to the tree and stay until it changes.
typedef struct stateport_victim {
  size_t size;
  uint64_t node;
  int64_t end_tokens;     ///< of the prefix that ends at the node
  int32_t slot;           ///< state@end_tokens, or STATEPORT_NONE
  uint64_t prefix[2];     ///< of the slot's tag
  const int32_t* tokens;  ///< [count] of the node's segment, if it goes
  const int32_t* kv;      ///< [count]
  size_t count;           ///< 0: the state goes alone
} stateport_victim;

typedef struct stateport_tree_options {
  size_t size;
  int32_t page_size;  ///< tokens; 0: 1
  int32_t slots;
  int32_t chunk_size;           ///< tokens of a prefill chunk; 0: 1
  int32_t max_states_per_path;  ///< 0: no limit
  int32_t eviction;             ///< stateport_eviction
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint
  int64_t kv_indices;           ///< > 0: KV indices are below this, and one that the tree owns already is refused
  uint64_t hash_seed;           ///< a secret where tenants are not trusted
  int64_t state_bytes;          ///< hix, gdsf: memory of a state; 0: 4,096 times that of a token's KV
  int64_t kv_bytes_per_token;   ///< hix, gdsf; 0 with state_bytes
  /// Used instead of `eviction`, `state_bytes` and `kv_bytes_per_token` if given.
  const stateport_eviction_options* eviction_options;
  /// hix: distance of the positions whose history is kept, in tokens (rounded up to whole pages); 0: 64
  int32_t position_tokens;
  /// Null, or called for every state or node that is about to leave the tree: by evict, evict_demand, drop_state,
  /// match_with_live_slot, and by inserts that max_states_per_path limits; not by reset. `victim` and its arrays stay
  /// until it returns. Not 0 keeps the slot of the state: it is then the caller's, who copies it and gives it back with
  /// release_slots. A kept slot does not count as freed: evict goes on to meet its demand. The rules of callbacks are
  /// in stateport/c/core.h.
  int32_t (*on_victim)(const stateport_victim* victim, void* context);
  void* on_victim_context;  ///< handed to on_victim; must outlive the tree
} stateport_tree_options;

/// Keys of different namespaces never share a prefix. A null key is none; one of 0 bytes is a name.
typedef struct stateport_namespace {
  size_t size;
  const void* extra_key;  ///< for example the adapter
  size_t extra_key_bytes;
  const void* salt;  ///< for example the tenant
  size_t salt_bytes;
} stateport_namespace;

typedef struct stateport_match {
  size_t size;
  uint64_t node;               ///< for stateport_tree_lock_node; 0: the root, nothing is usable
  int64_t tokens;              ///< usable tokens
  int64_t walked_tokens;       ///< tokens whose KV is there
  int64_t branching_position;  ///< where a checkpoint would make the next request hit; 0: nowhere
  int32_t slot;                ///< state@tokens, or STATEPORT_NONE
  int32_t live_slot;           ///< where to copy it, if asked for
  int32_t lost;                ///< stateport_lost_hit: why not all of walked_tokens is usable
  uint64_t prefix[2];          ///< of the slot's tag
  uint64_t past[2];            ///< hix's knowledge of the prompt, for the inserts of the request; zeros: none
  uint64_t kv_node;            ///< the deepest node that ends within walked_tokens; 0: the root
} stateport_match;

typedef struct stateport_insert {
  size_t size;
  const int32_t* tokens;
  const int32_t* kv;  ///< [count]; [0, prev_tokens) are not read
  size_t count;       ///< only whole pages are kept
  const stateport_namespace* name_space;
  int64_t prev_tokens;  ///< tokens of a match, still locked, at the front
  int32_t slot;  ///< checkpoint to donate, tagged with the whole pages of `tokens`, or STATEPORT_NONE; 0 is a slot
  int32_t priority;
  stateport_flag chunked;  ///< not 0: a chunk of a prompt, which counts as no use
  // Facts about the request for hix; zeros: unknown. Impossible values are refused, such as a time after now.
  uint64_t past[2];                  ///< of its match; zeros: a new prompt, whose age counts from now
  const stateport_reuse_hint* hint;  ///< about its end
  int64_t request_tokens;            ///< expected length of the request; 0: it ends here, unless chunked
} stateport_insert;

typedef struct stateport_insert_result {
  size_t size;
  int64_t prefix_tokens;  ///< in the tree before; kv[prev_tokens, prefix_tokens) are freed
  uint64_t node;
  int32_t state_exists;  ///< not 0: the slot stays the caller's
} stateport_insert_result;

/// One lookup of several.
typedef struct stateport_lookup {
  size_t size;
  const int32_t* tokens;
  size_t count;
  const stateport_namespace* name_space;  ///< null: none
  int32_t* kv_out;                        ///< null, or [count]: gets the KV indices of the usable tokens
  stateport_flag again;                   ///< not 0: of a request that was looked up before
} stateport_lookup;

/// How much to free: counts of separate pools, or bytes of one memory that holds KV and states.
typedef struct stateport_evict_demand {
  size_t size;
  int64_t tokens;
  int64_t states;
  int64_t bytes;  ///< by `state_bytes` and `kv_bytes_per_token` of the tree's options
} stateport_evict_demand;

/// All that was freed, whichever demand freed it.
typedef struct stateport_evict_result {
  size_t size;
  int64_t tokens;
  int64_t states;
} stateport_evict_result;

/// Which demand a victim is for.
typedef enum stateport_victim_kind {
  STATEPORT_VICTIM_TOKENS = 0,
  STATEPORT_VICTIM_STATES,
  STATEPORT_VICTIM_BYTES
} stateport_victim_kind;

typedef struct stateport_tree_sizes {
  size_t size;
  int64_t evictable_tokens;
  int64_t protected_tokens;
  int64_t evictable_states;
  int64_t protected_states;
  int32_t free_slots;
} stateport_tree_sizes;

stateport_status stateport_tree_create(const stateport_tree_options* options, stateport_tree** out);
/// Locks may be destroyed later; the KV indices are the caller's again.
stateport_status stateport_tree_destroy(stateport_tree* tree);
stateport_status stateport_tree_describe(stateport_tree* tree, stateport_tree_sizes* out);

/// The clock of hix in seconds, before the calls whose time it is; never goes back. Without it every match counts for
/// a second.
stateport_status stateport_tree_set_time(stateport_tree* tree, double now_s);

/// The deepest prefix with a state. kv_out: null, or [count], gets the KV indices of the usable tokens.
stateport_status stateport_tree_match(stateport_tree* tree, const int32_t* tokens, size_t count,
                                      const stateport_namespace* name_space, int32_t* kv_out, stateport_match* out);
/// The same for a request that starts from the state, in `live_slot`, or in one that is taken if it is STATEPORT_NONE.
stateport_status stateport_tree_match_with_live_slot(stateport_tree* tree, const int32_t* tokens, size_t count,
                                                     const stateport_namespace* name_space, int32_t* kv_out,
                                                     int32_t live_slot, stateport_match* out);
/// The same for a request that was looked up before: hix counts it once. Its past is that of the first match.
stateport_status stateport_tree_match_again(stateport_tree* tree, const int32_t* tokens, size_t count,
                                            const stateport_namespace* name_space, int32_t* kv_out,
                                            stateport_match* out);
/// Several lookups in order, each as stateport_tree_match (or …_again) would answer it after those before it: all, or
/// none. out: [count].
stateport_status stateport_tree_match_many(stateport_tree* tree, const stateport_lookup* lookups, size_t count,
                                           stateport_match* out);
/// How the slot of a match compares with its content then: it matches while the match is locked.
stateport_status stateport_tree_check_restore(stateport_tree* tree, const stateport_match* match, int32_t* check);
/// Keeps a prefix.
stateport_status stateport_tree_insert(stateport_tree* tree, const stateport_insert* prefix,
                                       stateport_insert_result* out);
/// Keeps several in order. The first one that is refused ends the call: those before it are kept, `done` says how many,
/// and only their results are written. All structs and `out` [count] are read before the first one is kept.
stateport_status stateport_tree_insert_many(stateport_tree* tree, const stateport_insert* prefixes, size_t count,
                                            stateport_insert_result* out, size_t* done);
/// Makes the paths to these nodes, and their states, the ones used last, as matches that answer them would, in this
/// order: all, or none. Refuses a node that has been evicted. hix does not hear of it.
stateport_status stateport_tree_touch(stateport_tree* tree, const uint64_t* nodes, size_t count);
/// Frees at least as much as asked for, or all that is not locked. Writes what was freed to the outputs (or null). If
/// memory for the list of freed KV runs out, less is freed; STATEPORT_OUT_OF_MEMORY if that is nothing.
stateport_status stateport_tree_evict(stateport_tree* tree, int64_t tokens, int64_t states, int64_t* tokens_freed,
                                      int64_t* states_freed);
/// The same, also by bytes: of leaves and states, those that the policy gives up first, until the bytes suffice.
stateport_status stateport_tree_evict_demand(stateport_tree* tree, const stateport_evict_demand* demand,
                                             stateport_evict_result* out);
/// The next victims of the tree for one kind of demand (stateport_victim_kind), in order: at most `capacity`; their
/// number into `count`. Nothing changes.
stateport_status stateport_tree_peek_victims(stateport_tree* tree, int32_t kind, stateport_victim* out, size_t capacity,
                                             size_t* count);
/// Gives up the state of a node, which keeps its KV. Refuses a node that has been evicted, has no state, or a locked
/// one.
stateport_status stateport_tree_drop_state(stateport_tree* tree, uint64_t node);
/// KV indices that left the tree, oldest first, and are the caller's again: at most `capacity` of them, each once.
/// They wait here until they are taken: ask after match_with_live_slot, insert, evict and reset.
stateport_status stateport_tree_take_freed_kv(stateport_tree* tree, int32_t* out, size_t capacity, size_t* count);

/// Pins the path to a node of a match or an insert, and the state that it has or gets. Refuses a node that has been
/// evicted.
stateport_status stateport_tree_lock_node(stateport_tree* tree, uint64_t node, stateport_tree_lock** out);
/// Unpins.
stateport_status stateport_tree_lock_destroy(stateport_tree_lock* lock);
/// Several at once: all, or none. out: [count] handles, each ended on its own or with others.
stateport_status stateport_tree_lock_nodes(stateport_tree* tree, const uint64_t* nodes, size_t count,
                                           stateport_tree_lock** out);
/// Null handles are ignored; one that is named twice is refused.
stateport_status stateport_tree_locks_destroy(stateport_tree_lock* const* locks, size_t count);

/// Free slots for the caller; all, or STATEPORT_NO_CAPACITY.
stateport_status stateport_tree_allocate_slots(stateport_tree* tree, int32_t* out, size_t count);
stateport_status stateport_tree_release_slots(stateport_tree* tree, const int32_t* slots, size_t count);
/// Says that a slot of the caller holds the state after exactly these tokens, once the copy into it was enqueued.
stateport_status stateport_tree_tag_slot(stateport_tree* tree, int32_t slot, const int32_t* tokens, size_t count,
                                         const stateport_namespace* name_space);
/// Forgets everything: slots of the tree are free, locks hold nothing.
stateport_status stateport_tree_reset(stateport_tree* tree);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_tree_check(stateport_tree* tree);

#ifdef __cplusplus
}
#endif

#endif
