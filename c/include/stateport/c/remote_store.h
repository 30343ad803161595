// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_REMOTE_STORE_H
#define STATEPORT_C_REMOTE_STORE_H

#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// Stores that many machines share: stateport::RemoteStore. From and to memory of the host. No stream, no runtime.
#ifdef __cplusplus
extern "C" {
#endif

/// Values of bytes under keys, put and got in batches, asynchronously. It decides nothing: the store behind it has its
/// own capacity and eviction, and an object may vanish at any time. A key is 1 to 1,024 characters from '!' to '~'.
/// Every request that is accepted is answered by poll exactly once, in any order. No call waits for the network but
/// those that make and destroy a store.
typedef struct stateport_remote_store stateport_remote_store;
/// The objects that in-process stores share.
typedef struct stateport_remote_objects stateport_remote_objects;

/// A part of an object in memory of the host. 16 bytes for ever.
typedef struct stateport_remote_piece {
  void* address;
  size_t bytes;
} stateport_remote_piece;

/// A value to put, the bytes of its pieces one behind the other; or where one that is got goes. 40 bytes for ever.
typedef struct stateport_remote_object {
  uint64_t ticket;  ///< any number, by which the answer names the request
  const char* key;  ///< key_bytes characters; nothing needs to end them
  size_t key_bytes;
  const stateport_remote_piece* pieces;
  size_t piece_count;
} stateport_remote_object;

/// 24 bytes for ever.
typedef struct stateport_remote_key {
  uint64_t ticket;
  const char* key;
  size_t key_bytes;
} stateport_remote_key;

/// 24 bytes for ever.
typedef struct stateport_remote_completion {
  uint64_t ticket;
  int32_t status;    ///< stateport_transfer_status
  int32_t reserved;  ///< 0
  uint64_t bytes;    ///< of an object that was put or got: its size. 0 unless done
} stateport_remote_completion;

/// How much may be accepted and not answered. 0: the default.
typedef struct stateport_remote_limits {
  size_t size;
  uint64_t queue_bytes;     ///< of all pieces; 0: 1 GiB
  uint64_t queue_requests;  ///< 0: 65536
} stateport_remote_limits;

/// A server of Valkey or Redis. Where the library was built with hiredis; TLS, with hiredis_ssl.
typedef struct stateport_valkey_options {
  size_t size;
  /// "valkey://[[user]:password@]host[:port][/database]"; with TLS "valkeys://…". Null: the members below count alone.
  /// A member below that is set replaces its part of the URL.
  const char* url;
  const char* host;  ///< null: 127.0.0.1
  int32_t port;      ///< 0: 6379
  int32_t database;
  const char* unix_socket;  ///< a path; host and port are not used then
  const char* user;
  const char* password;  ///< in no text that the library gives
  stateport_flag tls;    ///< not 0: the server's certificate is verified
  int32_t lanes;         ///< connections, each with a thread; 0: 2
  const char* ca_file;   ///< null: the authorities of the system
  const char* certificate_file;
  const char* key_file;
  const char* server_name;   ///< that the certificate must be of; null: host
  double connect_timeout_s;  ///< 0: 5
  double silence_timeout_s;  ///< without a byte from or to the server; 0: 10
  uint64_t piece_bytes;      ///< larger objects are cut into values of this size; 0: 4 MiB
  double lifetime_s;         ///< the server forgets an object this long after its put; 0: never by age
  const char* prefix;        ///< of all names on the server; null: "stateport"
  uint64_t queue_bytes;      ///< these two as in stateport_remote_limits
  uint64_t queue_requests;
} stateport_valkey_options;

/// A Mooncake Store. Where the library was built with Mooncake's C interface.
typedef struct stateport_mooncake_options {
  size_t size;
  const char* local_hostname;   ///< of this machine, as the others reach it; null: 127.0.0.1
  const char* metadata_server;  ///< null: P2PHANDSHAKE
  const char* master;           ///< null: 127.0.0.1:50051
  const char* protocol;         ///< null: tcp
  const char* devices;          ///< of the network, for rdma
  uint64_t segment_bytes;       ///< of this machine's memory that the store may use; 0: none
  uint64_t buffer_bytes;        ///< of the client's own; 0: 128 MiB
  uint64_t replicas;            ///< 0: 1
  int32_t lanes;                ///< threads that wait for the client; 0: 1
  uint64_t queue_bytes;         ///< these two as in stateport_remote_limits
  uint64_t queue_requests;
} stateport_mooncake_options;

/// A client of any store, in any language. put, get, exists and remove carry a batch of 1 to 64 requests out, and wait
/// for that: a thread of the library calls them. answers[i] belongs to objects[i] or keys[i]. The function sets its
/// status (stateport_transfer_status) and, of an object that was got, its bytes; an answer that it does not set is
/// `failed`. Arguments were checked, and are valid during the call alone; a zero follows each key. All calls come one
/// at a time. In a call the handle of the store itself is refused with STATEPORT_INVALID_STATE.
typedef struct stateport_remote_callbacks {
  size_t size;
  void* context;
  stateport_flag needs_registration;  ///< not 0: pieces outside of registered memory are refused
  int32_t (*register_memory)(void* memory, size_t bytes, void* context);    ///< 0: done. Null: nothing to do
  int32_t (*unregister_memory)(void* memory, size_t bytes, void* context);  ///< the same
  void (*put)(const stateport_remote_object* objects, size_t count, stateport_remote_completion* answers,
              void* context);
  void (*get)(const stateport_remote_object* objects, size_t count, stateport_remote_completion* answers,
              void* context);
  void (*exists)(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers, void* context);
  void (*remove)(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers, void* context);
  /// The last call: memory of the callers may not be touched after it. Null: nothing to do.
  void (*destroy)(void* context);
  uint64_t queue_bytes;  ///< these two as in stateport_remote_limits
  uint64_t queue_requests;
} stateport_remote_callbacks;

typedef struct stateport_remote_store_info {
  size_t size;
  stateport_flag needs_registration;
  uint64_t accepted_requests;
  uint64_t refused_requests;  ///< the queue was full
  uint64_t answers[7];        ///< by stateport_transfer_status
} stateport_remote_store_info;

typedef struct stateport_valkey_info {
  size_t size;
  uint64_t connections;
  uint64_t failed_attempts;   ///< to connect
  uint64_t lost_connections;  ///< with a request under way
  uint64_t damaged_objects;   ///< found, and removed
  char last_error[200];       ///< of the last answer that was failed, no room or damaged
} stateport_valkey_info;

/// Objects in memory of this process, the least recently used one evicted first.
stateport_status stateport_remote_objects_create(uint64_t capacity_bytes, stateport_remote_objects** out);
stateport_status stateport_remote_objects_destroy(stateport_remote_objects* objects);

/// A store over memory of this process, for tests: poll carries requests out. `limits` may be null.
stateport_status stateport_remote_store_in_process(stateport_remote_objects* objects,
                                                   const stateport_remote_limits* limits, int32_t needs_registration,
                                                   stateport_remote_store** out);
/// Connects. STATEPORT_INVALID_STATE: the library was built without hiredis, or without hiredis_ssl for TLS.
stateport_status stateport_remote_store_valkey(const stateport_valkey_options* options, stateport_remote_store** out);
/// Connects. STATEPORT_INVALID_STATE: the library was built without Mooncake.
stateport_status stateport_remote_store_mooncake(const stateport_mooncake_options* options,
                                                 stateport_remote_store** out);
stateport_status stateport_remote_store_callbacks(const stateport_remote_callbacks* callbacks,
                                                  stateport_remote_store** out);
/// Gives up requests without an answer. Their memory is not touched any more when this returns, unless something else
/// still uses the store.
stateport_status stateport_remote_store_destroy(stateport_remote_store* store);

/// Makes memory known to the store, for the network's hardware.
stateport_status stateport_remote_store_register(stateport_remote_store* store, void* memory, size_t bytes);
/// As it was registered; no request that is not answered may use it.
stateport_status stateport_remote_store_unregister(stateport_remote_store* store, void* memory, size_t bytes);

/// Batches are accepted as a whole. STATEPORT_NO_CAPACITY: a queue is full, and there is no answer. The bytes of pieces
/// must stay as they are (put), or may hold anything (get), until the answer; everything else may go after the call.
/// Answers to put: done (it was stored, or was there already, which is then left as it is), no room, failed.
stateport_status stateport_remote_store_put(stateport_remote_store* store, const stateport_remote_object* objects,
                                            size_t count);
/// Answers: done (the first `bytes` bytes of the pieces are the object), gone, damaged, foreign layout (it is larger
/// than the pieces), failed. After another one than done the pieces hold anything.
stateport_status stateport_remote_store_get(stateport_remote_store* store, const stateport_remote_object* objects,
                                            size_t count);
/// Answers: done (it is there), gone, failed.
stateport_status stateport_remote_store_exists(stateport_remote_store* store, const stateport_remote_key* keys,
                                               size_t count);
/// Answers: done (it was there, and is not any more), gone, failed.
stateport_status stateport_remote_store_remove(stateport_remote_store* store, const stateport_remote_key* keys,
                                               size_t count);
stateport_status stateport_remote_store_poll(stateport_remote_store* store, stateport_remote_completion* out,
                                             size_t capacity, size_t* count);
stateport_status stateport_remote_store_describe(stateport_remote_store* store, stateport_remote_store_info* out);
/// STATEPORT_INVALID_ARGUMENT: the store is not one of Valkey.
stateport_status stateport_remote_store_describe_valkey(stateport_remote_store* store, stateport_valkey_info* out);

#ifdef __cplusplus
}
#endif

#endif
