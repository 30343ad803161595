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
/// of this cache asks for.
///
/// Ranks of a group make these calls at the same point of their sequence of calls.
#ifdef __cplusplus
extern "C" {
#endif

/// Which names of a namespace are compared.
typedef enum stateport_forget_by {
  STATEPORT_FORGET_NAME_SPACE,  ///< both
  STATEPORT_FORGET_EXTRA_KEY,   ///< that alone: an adapter, with the contents of all tenants
  STATEPORT_FORGET_SALT         ///< that alone: a tenant, with the contents of all adapters
} stateport_forget_by;

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
/// on contents of these namespaces have names with a random number of this cache: it shares them with no other cache,
/// nor do the ranks of a group name them alike in files, stores and events. A later process with the same epoch may
/// find the old contents in the remote tier, and in files after a crash before stateport_file_tier_wait returned, which
/// comes after the drops of the forgotten contents: start it with another epoch if they are wrong. After 1,024 calls
/// with different arguments, the next such call forgets all namespaces.
stateport_status stateport_request_cache_forget(stateport_request_cache* cache, const stateport_namespace* name_space,
                                                int32_t by);
/// stale: not 0: the request started before its contents were forgotten. An engine that has only new weights ends it as
/// preempted and starts it again. Refused: a request that does not run.
stateport_status stateport_request_cache_is_stale(stateport_request_cache* cache, int64_t request, uint8_t* stale);

#ifdef __cplusplus
}
#endif

#endif
