// SPDX-License-Identifier: Apache-2.0
// Stores that machines share: in process, in functions of the caller's, and refusals of all.
#include <stateport.h>

#include "device.h"

#include <string.h>

enum { object_bytes = 1000, answers_max = 8 };

static unsigned char memory[object_bytes];
static unsigned char found[object_bytes];

static stateport_remote_store* in_process(stateport_remote_objects* objects, int32_t needs_registration) {
  stateport_remote_limits limits = {.size = sizeof limits, .queue_bytes = 2 * object_bytes};
  stateport_remote_store* store = NULL;
  CHECK_OK(stateport_remote_store_in_process(objects, &limits, needs_registration, &store));
  return store;
}

static stateport_remote_key key_of(uint64_t ticket, const char* key) {
  return (stateport_remote_key){.ticket = ticket, .key = key, .key_bytes = strlen(key)};
}

static stateport_remote_object object_of(uint64_t ticket, const char* key, const stateport_remote_piece* pieces,
                                         size_t count) {
  return (stateport_remote_object){
      .ticket = ticket, .key = key, .key_bytes = strlen(key), .pieces = pieces, .piece_count = count};
}

/// The only answer there is, which may take its time.
static void check_answer(stateport_remote_store* store, uint64_t ticket, int32_t status, uint64_t bytes) {
  stateport_remote_completion out[answers_max];
  size_t count = 0;
  while (count == 0) CHECK_OK(stateport_remote_store_poll(store, out, answers_max, &count));
  CHECK(count == 1 && out[0].ticket == ticket && out[0].status == status && out[0].bytes == bytes &&
        out[0].reserved == 0);
  CHECK_OK(stateport_remote_store_poll(store, NULL, 0, &count));
  CHECK(count == 0);
}

static void check_exists(stateport_remote_store* store, const char* key, int32_t status) {
  const stateport_remote_key named = key_of(5, key);
  CHECK_OK(stateport_remote_store_exists(store, &named, 1));
  check_answer(store, 5, status, 0);
}

/// Two pieces out, three pieces in.
static void move_an_object(stateport_remote_store* store, stateport_remote_store* other) {
  for (size_t i = 0; i < object_bytes; ++i) memory[i] = (unsigned char)(i * 31 + i / 256);
  const stateport_remote_piece out[] = {{memory, 100}, {memory + 100, object_bytes - 100}};
  const stateport_remote_piece in[] = {{found, 1}, {NULL, 0}, {found + 1, object_bytes - 1}};
  const stateport_remote_object put = object_of(1, "an-object", out, 2);
  const stateport_remote_object get = object_of(2, "an-object", in, 3);
  check_exists(store, "an-object", STATEPORT_TRANSFER_GONE);
  CHECK_OK(stateport_remote_store_put(store, &put, 1));
  check_answer(store, 1, STATEPORT_TRANSFER_DONE, object_bytes);
  check_exists(other, "an-object", STATEPORT_TRANSFER_DONE);
  memset(found, 0, sizeof found);
  CHECK_OK(stateport_remote_store_get(other, &get, 1));
  check_answer(other, 2, STATEPORT_TRANSFER_DONE, object_bytes);
  CHECK(memcmp(memory, found, sizeof found) == 0);
  const stateport_remote_object small = object_of(3, "an-object", in, 1);
  CHECK_OK(stateport_remote_store_get(store, &small, 1));
  check_answer(store, 3, STATEPORT_TRANSFER_FOREIGN_LAYOUT, 0);
  const stateport_remote_key named = key_of(4, "an-object");
  CHECK_OK(stateport_remote_store_remove(store, &named, 1));
  check_answer(store, 4, STATEPORT_TRANSFER_DONE, 0);
  CHECK_OK(stateport_remote_store_remove(other, &named, 1));
  check_answer(other, 4, STATEPORT_TRANSFER_GONE, 0);
}

/// A client that hands everything on to another store, as one written in another language would.
typedef struct Client {
  stateport_remote_store* store;
  stateport_remote_store* self;
  int calls;
  int registered;
  int refuses;
  int32_t status;  ///< of every answer, if not 0
  int ends;
} Client;

static int32_t client_register(void* where, size_t bytes, void* context) {
  Client* const client = context;
  client->registered += where != NULL && bytes > 0 ? 1 : 0;
  return client->refuses;
}
static int32_t client_unregister(void* where, size_t bytes, void* context) {
  ((Client*)context)->registered -= where != NULL && bytes > 0 ? 1 : 0;
  return 0;
}
/// Waits for the answers of the other store.
static void wait_for(Client* client, size_t count, stateport_remote_completion* answers) {
  ++client->calls;
  size_t taken = 9;
  CHECK_REFUSED(stateport_remote_store_poll(client->self, NULL, 0, &taken), STATEPORT_INVALID_STATE, "callback");
  for (size_t done = 0; done < count; done += taken)
    CHECK_OK(stateport_remote_store_poll(client->store, answers + done, count - done, &taken));
  for (size_t i = 0; i < count; ++i)
    if (client->status != 0) answers[i].status = client->status;
}
static void client_put(const stateport_remote_object* objects, size_t count, stateport_remote_completion* answers,
                       void* context) {
  CHECK(answers[0].status == STATEPORT_TRANSFER_FAILED && answers[0].ticket == objects[0].ticket);
  CHECK_OK(stateport_remote_store_put(((Client*)context)->store, objects, count));
  wait_for(context, count, answers);
}
static void client_get(const stateport_remote_object* objects, size_t count, stateport_remote_completion* answers,
                       void* context) {
  CHECK_OK(stateport_remote_store_get(((Client*)context)->store, objects, count));
  wait_for(context, count, answers);
}
static void client_exists(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers,
                          void* context) {
  CHECK(keys[0].key[keys[0].key_bytes] == '\0');
  CHECK_OK(stateport_remote_store_exists(((Client*)context)->store, keys, count));
  wait_for(context, count, answers);
}
static void client_remove(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers,
                          void* context) {
  CHECK_OK(stateport_remote_store_remove(((Client*)context)->store, keys, count));
  wait_for(context, count, answers);
}
static void answer_nothing(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers,
                           void* context) {
  CHECK(keys != NULL && answers != NULL);
  ((Client*)context)->calls += (int)count;
}
static void client_destroy(void* context) {
  ++((Client*)context)->ends;
}

static stateport_remote_callbacks functions_of(Client* client) {
  return (stateport_remote_callbacks){.size = sizeof(stateport_remote_callbacks),
                                      .context = client,
                                      .register_memory = client_register,
                                      .unregister_memory = client_unregister,
                                      .put = client_put,
                                      .get = client_get,
                                      .exists = client_exists,
                                      .remove = client_remove,
                                      .destroy = client_destroy,
                                      .queue_bytes = 2 * object_bytes,
                                      .queue_requests = 3};
}

static void test_callbacks(stateport_remote_objects* objects) {
  Client client = {.store = in_process(objects, 0)};
  const stateport_remote_callbacks functions = functions_of(&client);
  CHECK_OK(stateport_remote_store_callbacks(&functions, &client.self));
  move_an_object(client.self, client.self);
  CHECK(client.calls == 7);
  CHECK_OK(stateport_remote_store_register(client.self, memory, sizeof memory));
  CHECK(client.registered == 1);
  CHECK_OK(stateport_remote_store_unregister(client.self, memory, sizeof memory));
  CHECK(client.registered == 0);
  client.refuses = 1;
  CHECK_REFUSED(stateport_remote_store_register(client.self, memory, 10), STATEPORT_BACKEND_ERROR, "register_memory");
  // A full queue.
  const stateport_remote_piece piece = {memory, sizeof memory};
  stateport_remote_object many[3];
  for (size_t i = 0; i < 3; ++i) many[i] = object_of(i, "another", &piece, 1);
  CHECK_REFUSED(stateport_remote_store_put(client.self, many, 3), STATEPORT_NO_CAPACITY, "queue");
  // Answers that are none.
  const stateport_remote_key named = key_of(9, "another");
  client.status = 77;
  CHECK_OK(stateport_remote_store_exists(client.self, &named, 1));
  check_answer(client.self, 9, STATEPORT_TRANSFER_FAILED, 0);
  CHECK(client.ends == 0);
  CHECK_OK(stateport_remote_store_destroy(client.self));
  CHECK(client.ends == 1);
  stateport_remote_callbacks silent = functions;
  silent.exists = answer_nothing;
  CHECK_OK(stateport_remote_store_callbacks(&silent, &client.self));
  CHECK_OK(stateport_remote_store_exists(client.self, &named, 1));
  check_answer(client.self, 9, STATEPORT_TRANSFER_FAILED, 0);
  CHECK_OK(stateport_remote_store_destroy(client.self));
  CHECK_OK(stateport_remote_store_destroy(client.store));
}

void test_remote_store(void) {
  stateport_remote_objects* objects = NULL;
  CHECK_OK(stateport_remote_objects_create(10 * object_bytes, &objects));
  stateport_remote_store* const store = in_process(objects, 0);
  stateport_remote_store* const other = in_process(objects, 0);
  move_an_object(store, other);
  test_callbacks(objects);
  stateport_remote_store_info info = {.size = sizeof info};
  CHECK_OK(stateport_remote_store_describe(store, &info));
  CHECK(info.accepted_requests == 4 && info.refused_requests == 0 && info.needs_registration == 0);
  CHECK(info.answers[STATEPORT_TRANSFER_DONE] == 2 && info.answers[STATEPORT_TRANSFER_GONE] == 1 &&
        info.answers[STATEPORT_TRANSFER_FOREIGN_LAYOUT] == 1);
  // Stores live on when the objects over them are destroyed.
  CHECK_OK(stateport_remote_objects_destroy(objects));
  check_exists(store, "an-object", STATEPORT_TRANSFER_GONE);
  CHECK_OK(stateport_remote_store_destroy(store));
  CHECK_OK(stateport_remote_store_destroy(other));
}

static void refuse_arguments(stateport_remote_store* store) {
  const stateport_remote_piece piece = {memory, sizeof memory};
  const stateport_remote_piece nowhere = {NULL, 5};
  const stateport_remote_object outside = object_of(1, "key", &piece, 1);
  const stateport_remote_object null = object_of(1, "key", &nowhere, 1);
  const stateport_remote_object empty = object_of(1, "key", NULL, 0);
  const stateport_remote_object pieces = object_of(1, "key", NULL, 2);
  const stateport_remote_key none = {.ticket = 1, .key = NULL, .key_bytes = 3};
  const stateport_remote_key words = key_of(1, "two words");
  size_t count = 0;
  CHECK_REFUSED(stateport_remote_store_put(store, &outside, 1), STATEPORT_INVALID_ARGUMENT, "registered");
  CHECK_REFUSED(stateport_remote_store_get(store, &null, 1), STATEPORT_INVALID_ARGUMENT, "piece.address");
  CHECK_REFUSED(stateport_remote_store_put(store, &empty, 1), STATEPORT_INVALID_ARGUMENT, "pieces");
  CHECK_REFUSED(stateport_remote_store_get(store, &pieces, 1), STATEPORT_INVALID_ARGUMENT, "pieces");
  CHECK_REFUSED(stateport_remote_store_put(store, NULL, 1), STATEPORT_INVALID_ARGUMENT, "objects");
  CHECK_REFUSED(stateport_remote_store_exists(store, &none, 1), STATEPORT_INVALID_ARGUMENT, "key");
  CHECK_REFUSED(stateport_remote_store_remove(store, &words, 1), STATEPORT_INVALID_ARGUMENT, "key");
  CHECK_REFUSED(stateport_remote_store_exists(store, NULL, 1), STATEPORT_INVALID_ARGUMENT, "keys");
  CHECK_REFUSED(stateport_remote_store_poll(store, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out");
  CHECK_REFUSED(stateport_remote_store_poll(store, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "count");
  CHECK_REFUSED(stateport_remote_store_register(store, NULL, 5), STATEPORT_INVALID_ARGUMENT, "memory");
  CHECK_REFUSED(stateport_remote_store_unregister(store, memory, 5), STATEPORT_INVALID_ARGUMENT, "registered");
  CHECK_REFUSED(stateport_remote_store_describe(store, NULL), STATEPORT_INVALID_ARGUMENT, "out");
  stateport_valkey_info info = {.size = sizeof info};
  CHECK_REFUSED(stateport_remote_store_describe_valkey(store, &info), STATEPORT_INVALID_ARGUMENT, "Valkey");
  CHECK_OK(stateport_remote_store_put(store, NULL, 0));
  CHECK_OK(stateport_remote_store_exists(store, NULL, 0));
}

/// Whichever of the two clients was built: no text shows the password, and nothing is made.
static void refuse_options(void) {
  stateport_remote_store* store = NULL;
  stateport_valkey_options valkey = {.size = sizeof valkey, .url = "http://:hunter2@host"};
  CHECK_REFUSED(stateport_remote_store_valkey(&valkey, &store), STATEPORT_INVALID_ARGUMENT, "url");
  CHECK(strstr(stateport_last_error(), "hunter2") == NULL);
  valkey = (stateport_valkey_options){.size = sizeof valkey, .password = "hunter2", .port = -1};
  CHECK_REFUSED(stateport_remote_store_valkey(&valkey, &store), STATEPORT_INVALID_ARGUMENT, "port");
  CHECK(strstr(stateport_last_error(), "hunter2") == NULL);
  valkey = (stateport_valkey_options){.size = sizeof valkey, .ca_file = "/ca.pem"};
  CHECK_REFUSED(stateport_remote_store_valkey(&valkey, &store), STATEPORT_INVALID_ARGUMENT, "tls");
  valkey = (stateport_valkey_options){.size = sizeof valkey, .unix_socket = "/no/such/socket", .password = "hunter2"};
  CHECK(stateport_remote_store_valkey(&valkey, &store) != STATEPORT_OK);
  CHECK(strstr(stateport_last_error(), "hunter2") == NULL);
  stateport_mooncake_options mooncake = {.size = sizeof mooncake, .master = ""};
  CHECK_REFUSED(stateport_remote_store_mooncake(&mooncake, &store), STATEPORT_INVALID_ARGUMENT, "master");
  Client client = {0};
  stateport_remote_callbacks functions = functions_of(&client);
  functions.remove = NULL;
  CHECK_REFUSED(stateport_remote_store_callbacks(&functions, &store), STATEPORT_INVALID_ARGUMENT, "remove");
  CHECK_REFUSED(stateport_remote_store_callbacks(NULL, &store), STATEPORT_INVALID_ARGUMENT, "callbacks");
  CHECK(store == NULL && client.ends == 0);
}

#ifdef STATEPORT_TEST_MEMORY
/// Answers that nothing is there, and allocates nothing.
static void answer_gone(const stateport_remote_key* keys, size_t count, stateport_remote_completion* answers,
                        void* context) {
  CHECK(keys != NULL && context != NULL);
  for (size_t i = 0; i < count; ++i) answers[i].status = STATEPORT_TRANSFER_GONE;
}

/// A store that was not made has not ended, and no answer is lost.
void test_remote_store_without_memory(void) {
  Client client = {0};
  stateport_remote_callbacks functions = functions_of(&client);
  functions.exists = answer_gone;
  CHECK_OK(stateport_remote_store_callbacks(&functions, &client.self));
  CHECK(client.ends == 0);
  const stateport_remote_key named = key_of(7, "absent");
  for (int asked = 0; asked < 3; ++asked) {
    CHECK_OK(stateport_remote_store_exists(client.self, &named, 1));
    check_answer(client.self, 7, STATEPORT_TRANSFER_GONE, 0);
  }
  CHECK_OK(stateport_remote_store_destroy(client.self));
  CHECK(client.ends == 1);
}
#endif

void test_remote_store_refusals(void) {
  stateport_remote_objects* objects = NULL;
  CHECK_OK(stateport_remote_objects_create(object_bytes, &objects));
  stateport_remote_store* const store = in_process(objects, 1);
  refuse_arguments(store);
  refuse_options();
  stateport_remote_store* made = NULL;
  CHECK_REFUSED(stateport_remote_store_in_process(NULL, NULL, 0, &made), STATEPORT_INVALID_HANDLE, "objects");
  CHECK_REFUSED(stateport_remote_store_in_process(objects, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "out");
  void* const wrong = objects;
  CHECK_REFUSED(stateport_remote_store_destroy(wrong), STATEPORT_INVALID_HANDLE, "remote store");
  CHECK_OK(stateport_remote_store_destroy(store));
  CHECK_OK(stateport_remote_store_destroy(NULL));
  CHECK_REFUSED(stateport_remote_store_destroy(store), STATEPORT_INVALID_HANDLE, "destroyed");
  CHECK_OK(stateport_remote_objects_destroy(objects));
  CHECK_OK(stateport_remote_objects_destroy(NULL));
}
