// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_EPOCHS_H
#define STATEPORT_C_CACHE_EPOCHS_H

#include <stateport/c/prefix_tree.h>
#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>

/// Contents of a request cache that no later prompt may find, because the weights changed or somebody wants them gone:
/// stateport::CacheEpochs. The conventions are in stateport/c/core.h.
///
/// Nothing waits for requests that run: they go on with the KV and the states that they hold, and are stale from then
/// on. A stale request publishes nothing. All other contents of the device, of the host and of files are gone at once.
/// The next answer with transfers names the drops. Contents of the remote tier stay there, under names that no prompt
/// of this cache asks for. Nor does one of another cache that adopted the records of this one, a later process or
/// another machine: stateport_state_tiers_share_forgotten keeps them in the store.
///
/// Ranks of a group make these calls at the same point of their sequence of calls.
#ifdef __cplusplus
extern "C" {
#endif

/// Which names of a namespace are compared.
typedef enum stateport_forget_by {
  STATEPORT_FORGET_NAME_SPACE,  ///< both
  STATEPORT_FORGET_EXTRA_KEY,   ///< that alone: an adapter, with the contents of all tenants
  STATEPORT_FORGET_SALT,        ///< that alone: a tenant, with the contents of all adapters
  STATEPORT_FORGET_ALL          ///< neither: the contents of all namespaces
} stateport_forget_by;

/// A call of stateport_request_cache_forget, from which other caches and later processes learn of it. 32 bytes for
/// ever.
typedef struct stateport_forget_record {
  uint64_t cache;    ///< a random number of the cache that was told
  uint64_t call;     ///< the calls of that cache are numbered from 1
  uint64_t names;    ///< hashes of the names that were compared: of extra_key times 2^32, and of salt; 0: none
  int32_t by;        ///< stateport_forget_by
  int32_t reserved;  ///< 0
} stateport_forget_record;

/// The weights change: no later start finds anything that was made before, neither on the device nor in a tier, a file
/// or a store. epoch: the number of the new weights; 0: the current number plus 1. current: null, or the new epoch.
/// Refused: a number that is not greater than the current one.
stateport_status stateport_request_cache_advance_epoch(stateport_request_cache* cache, uint64_t epoch,
                                                       uint64_t* current);
/// The number of the weights, at first stateport_request_cache_options.epoch. Caches with equal numbers find each
/// other's contents in a shared store: so equal numbers must mean equal weights.
stateport_status stateport_request_cache_epoch(stateport_request_cache* cache, uint64_t* epoch);
/// The same as an advance, for the contents of some namespaces: an adapter gets new weights, or a tenant leaves. The
/// epoch stays. name_space: null: the one without names. by: stateport_forget_by.
///
/// Files: contents of earlier processes go as well, of any namespace, unless a request has used them since. From then
/// on contents of these namespaces have other names, which follow from the record of this call: the cache shares them
/// with those that adopt it, and with no others. A later process with the same epoch that does not adopt the record may
/// find the old contents in the remote tier, and in files after a crash before stateport_file_tier_wait returned, which
/// comes after the drops of the forgotten contents. After 1,024 calls with different arguments, those of adopted
/// records included, the next such call forgets all namespaces, and the cache is alone
/// (stateport_request_cache_adopt_forgotten).
///
/// For weights of an adapter that machines change at different times, name the version in the extra_key instead.
stateport_status stateport_request_cache_forget(stateport_request_cache* cache, const stateport_namespace* name_space,
                                                int32_t by);
/// All that this cache has forgotten by name, and all namespaces at once where a reset forgot while requests ran: of
/// each cache and each arguments the last call, at most 1,024. An engine keeps them for later processes, and hands them
/// to other caches. At most `capacity` into `out`, and into `count` how many there are.
stateport_status stateport_request_cache_forgotten(stateport_request_cache* cache, stateport_forget_record* out,
                                                   size_t capacity, size_t* count);
/// Forgets the contents that these calls of other caches forgot, as if they had been made here, unless their records
/// are here already. Prompts then have the names that they have in those caches. Call it before files are attached and
/// requests start. The ranks of a group give the records of the first rank's forget to all others. adopted: 0: together
/// there are more than 1,024, or were once; all namespaces are forgotten, and this cache is alone: it shares names with
/// no other cache from then on, and adopts nothing. Null: not wanted. Refused: a record that no cache has made.
stateport_status stateport_request_cache_adopt_forgotten(stateport_request_cache* cache,
                                                         const stateport_forget_record* records, size_t count,
                                                         uint8_t* adopted);
/// stale: not 0: the request started before its contents were forgotten. An engine that has only new weights ends it as
/// preempted and starts it again. Refused: a request that does not run.
stateport_status stateport_request_cache_is_stale(stateport_request_cache* cache, int64_t request, uint8_t* stale);

#ifdef __cplusplus
}
#endif

#endif
