/* store.h: the rendezvous store, a small key-value service through which the ranks of a job find each other.
 *
 * A group opens a store by itself (group.h, init_method); this header is for programs that want to exchange a few
 * values of their own, for launchers, and for tests. Semantics follow PyTorch's c10d Store, with these differences:
 * every write is acknowledged before the call returns, several threads may wait at once over one connection, a
 * server binds only the address it was given, and clients prove that they know the job secret.
 *
 * Keys are 1 to 1,024 bytes; values at most 64 MiB; a server holds at most 1 GiB (DDP_ERROR_LIMIT beyond). Values are
 * bytes, not text. Keys that begin with "ddp/" belong to libddp.
 */
#ifndef DDP_STORE_H
#define DDP_STORE_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* How to open a store. Fill with ddp_store_options_init. */
typedef struct ddp_store_options {
    size_t struct_size;
    /* "tcp://host:port" or "file:///absolute/path". Copied. Required. For a tcp server, port 0 picks a free port
     * (ddp_store_port tells it) and the host is the address it binds; an IPv6 address is written in brackets. */
    const char* uri;
    /* 1: this process also runs the server (tcp only). The server ends when the handle is freed. 0: client only. */
    int32_t is_server;
    int32_t reserved0; /* must be 0 */
    /* Milliseconds that opening may take and the default bound of each later wait. 0: 300,000. */
    int64_t timeout_ms;
    /* The job secret (text; copied). A server and its clients must have the same one; it never crosses the wire: both
     * sides answer an HMAC-SHA-256 challenge. NULL: the environment variable DDP_SECRET if set, else none. */
    const char* secret;
} ddp_store_options;

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_store_options_init(ddp_store_options* options);

/* Opens a store. A tcp client retries, with jittered pauses, until the server answers or timeout_ms has passed. A file
 * store uses one file on a file system that all ranks share and that supports locks; a stale file left by
 * a job whose processes are all gone is detected and started afresh.
 * *store: owned by the caller, freed with ddp_store_free.
 * Errors: INVALID_ARGUMENT (malformed uri), UNAVAILABLE or TIMEOUT (no server), PERMISSION_DENIED (wrong secret, or a
 * port or path that may not be used), ALREADY_EXISTS (the port is taken), IO.
 * Threads: any. Blocks: at most timeout_ms. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_store_create(const ddp_store_options* options, ddp_store** store, ddp_error** error);

/* Closes the connection, after telling the server that this end was intended, and ends the server if this handle
 * runs it. Calls in other threads that still wait return DDP_ERROR_ABORTED.
 * Threads: any. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_store_free(ddp_store* store);

/* The TCP port that the server listens on, or -1 for a file store or NULL.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_store_port(const ddp_store* store);

/* All functions below share these rules. `key`: NUL-terminated. `timeout_ms`: the bound of the wait; 0 takes
 * the store's default, and a negative value does not wait. Errors: INVALID_ARGUMENT, LIMIT, UNAVAILABLE
 * (connection lost), TIMEOUT (names the key), ABORTED. Bytes that a function returns in `*value` are owned by the
 * caller and freed with ddp_store_value_free; `*size` counts them; a NUL follows them that is not counted.
 * Threads: any. Blocks: for one round trip, plus what is said. Collective: no. Callbacks: yes. */

/* Sets key to value, replacing what was there. value may be NULL when size is 0. */
DDP_API ddp_status ddp_store_set(ddp_store* store, const char* key, const void* value, size_t size, ddp_error** error);

/* Waits until key exists, then returns its value. */
DDP_API ddp_status ddp_store_get(ddp_store* store, const char* key, int64_t timeout_ms, void** value, size_t* size,
                                 ddp_error** error);

/* Sets key to `desired` if its value is `expected`, or if it does not exist and expected_size is 0. Atomic. Returns the
 * value that the key has afterwards: equal to `desired` if and only if somebody set it so. */
DDP_API ddp_status ddp_store_compare_set(ddp_store* store, const char* key, const void* expected, size_t expected_size,
                                         const void* desired, size_t desired_size, void** value, size_t* size,
                                         ddp_error** error);

/* Adds `amount` to the decimal integer stored under key (absent counts as 0) and returns the sum. Atomic.
 * INVALID_ARGUMENT if the value is not an integer or the sum does not fit 64 bits. */
DDP_API ddp_status ddp_store_add(ddp_store* store, const char* key, int64_t amount, int64_t* sum, ddp_error** error);

/* Appends bytes to the value under key, creating it if needed. Atomic. */
DDP_API ddp_status ddp_store_append(ddp_store* store, const char* key, const void* value, size_t size,
                                    ddp_error** error);

/* *exists: 1 if all `count` keys exist now, else 0. Does not wait. */
DDP_API ddp_status ddp_store_check(ddp_store* store, const char* const* keys, size_t count, int32_t* exists,
                                   ddp_error** error);

/* Waits until all `count` keys exist. The TIMEOUT message names the first key that is missing. */
DDP_API ddp_status ddp_store_wait(ddp_store* store, const char* const* keys, size_t count, int64_t timeout_ms,
                                  ddp_error** error);

/* Sets `count` keys in one round trip, all or none. */
DDP_API ddp_status ddp_store_multi_set(ddp_store* store, const char* const* keys, const void* const* values,
                                       const size_t* sizes, size_t count, ddp_error** error);

/* Waits until all keys exist and returns their values in one round trip. values[0..count) and sizes[0..count) are the
 * caller's arrays; each values[i] is freed with ddp_store_value_free. */
DDP_API ddp_status ddp_store_multi_get(ddp_store* store, const char* const* keys, size_t count, int64_t timeout_ms,
                                       void** values, size_t* sizes, ddp_error** error);

/* Deletes a key. *deleted (may be NULL): 1 if it existed. */
DDP_API ddp_status ddp_store_delete(ddp_store* store, const char* key, int32_t* deleted, ddp_error** error);

/* The number of keys, libddp's own included. */
DDP_API ddp_status ddp_store_num_keys(ddp_store* store, int64_t* count, ddp_error** error);

/* The keys that begin with `prefix` (NULL or "" for all), sorted, each followed by a NUL: `*size` bytes in `*keys`. */
DDP_API ddp_status ddp_store_list_keys(ddp_store* store, const char* prefix, void** keys, size_t* size,
                                       ddp_error** error);

/* First-in first-out queues, in a name space apart from the keys. pop waits for an element. */
DDP_API ddp_status ddp_store_queue_push(ddp_store* store, const char* queue, const void* value, size_t size,
                                        ddp_error** error);
DDP_API ddp_status ddp_store_queue_pop(ddp_store* store, const char* queue, int64_t timeout_ms, void** value,
                                       size_t* size, ddp_error** error);
DDP_API ddp_status ddp_store_queue_size(ddp_store* store, const char* queue, int64_t* count, ddp_error** error);

/* Waits until `count` callers have reached the barrier `name`. A name can be used again once all have left. */
DDP_API ddp_status ddp_store_barrier(ddp_store* store, const char* name, int64_t count, int64_t timeout_ms,
                                     ddp_error** error);

/* Frees bytes returned by this store's functions. NULL is allowed. */
DDP_API void ddp_store_value_free(void* value);

DDP_EXTERN_C_END

#endif /* DDP_STORE_H */
