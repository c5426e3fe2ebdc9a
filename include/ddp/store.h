/* store.h: the rendezvous store, a small key-value service through which the ranks of a job find
 * each other.
 *
 * Groups open their own store (group.h, init_method). This header is for programs that exchange a
 * few values, for launchers, and for tests. Semantics follow PyTorch's c10d Store, with these
 * differences: every write is acknowledged before the call returns, several threads may wait at
 * once over one connection, a server binds only the address that it was given, and clients prove
 * that they know the job secret.
 *
 * Keys have 1 to 1,024 bytes, values at most 64 MiB. A store holds at most 1 GiB. One call takes at
 * most 65,536 keys, and returns at most 256 MiB. More is DDP_ERROR_LIMIT. Values are bytes, not
 * text. Keys that begin with "ddp/" belong to libddp.
 */
#ifndef DDP_STORE_H
#define DDP_STORE_H

#include "types.h"

DDP_EXTERN_C_BEGIN

enum {
    /* Meet at any address without a job secret, or with a short one. Every process that reaches the
     * address can then join the job, and read and change what ranks exchange. DDP_INSECURE=1 in the
     * environment does the same. */
    DDP_STORE_INSECURE = 1u << 0
};

/* How to open a store. Fill it with ddp_store_options_init. */
typedef struct ddp_store_options {
    size_t struct_size;
    /* "tcp://host:port", "file:///absolute/path", "etcd://host:port/name" or
     * "etcds://host:port/name" (docs/ddprun.md, "A store on etcd"). Required, copied. For a tcp
     * server, the host is the address that it binds, and port 0 picks a free port, one of
     * DDP_PORTS if that is set (docs/backends.md; see ddp_store_port). Write an IPv6 address in
     * brackets. */
    const char* uri;
    /* 1: this process also runs the server (tcp only), until the handle is freed. 0: client only.
     */
    int32_t is_server;
    uint32_t flags;
    /* Milliseconds that opening may take, and the default bound of each later wait. 0: 300,000. */
    int64_t timeout_ms;
    /* The job secret: text, copied. A server and its clients must have the same one. It never
     * crosses the wire: it is the key of a TLS 1.3 handshake, from which come the keys of all that
     * follows. NULL: the environment variable DDP_SECRET, or else the content of the file that
     * DDP_SECRET_FILE names. Without these a tcp store uses a secret of this user, which libddp
     * keeps in a file, if all addresses of its host are loopback addresses. Elsewhere it needs at
     * least 16 bytes: docs/ddprun.md, "The job secret". Other stores need none. */
    const char* secret;
} ddp_store_options;

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_store_options_init_sized(ddp_store_options* options, size_t size);
static inline void ddp_store_options_init(ddp_store_options* options) {
    ddp_store_options_init_sized(options, sizeof *options);
}

/* Opens a store. *store: owned by the caller, freed with ddp_store_free. A tcp client retries, with
 * jittered pauses, until the server answers or timeout_ms has passed. A file store uses one file,
 * on a file system that all ranks share and that supports locks. If all processes of the job that
 * left a file are gone, libddp detects this and starts the file afresh. All ranks run as one user:
 * libddp creates the file with mode 0600, and refuses a file of another user or one that others may
 * open. Errors: INVALID_ARGUMENT (malformed uri, not a store file), UNAVAILABLE or TIMEOUT (no
 * server), PERMISSION_DENIED (wrong secret, none or a short one where one is needed, a secret file
 * or store file that others may open, or a port or path that may not be used), ALREADY_EXISTS (the
 * port is taken), UNSUPPORTED (no locks, or another libddp version), LIMIT (open files),
 * INTERRUPTED, IO. Threads: any. Blocks: at most timeout_ms. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_store_create(const ddp_store_options* options, ddp_store** store,
                                    ddp_error** error);

/* Closes the connection, after telling the server that this is intended, and ends the server if
 * this handle runs it. Calls that still wait in other threads return DDP_ERROR_ABORTED. Threads:
 * any. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_store_free(ddp_store* store);

/* The TCP port that the server listens on, also at a client. -1 for a file store, a store on etcd,
 * or NULL. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_store_port(const ddp_store* store);

/* All functions below share these rules. key: ends with a NUL. timeout_ms: the bound of the wait.
 * 0: the store's default. *value: `*size` bytes, followed by a NUL. The caller owns them and frees
 * them with ddp_free. Errors: INVALID_ARGUMENT, LIMIT, UNAVAILABLE (connection lost), TIMEOUT
 * (names the key), ABORTED, INTERRUPTED (interrupt.h), IO (the file). TIMEOUT also: a tcp server
 * does not answer within 10 s, or within the store's timeout_ms if that is less. Each MiB that is
 * sent or received adds 1 s, so that long values can cross a slow network. Threads: any. Blocks:
 * for one round trip, plus the stated wait. Collective: no. Callbacks: yes. */

/* Sets key to value, in place of the old value. value may be NULL if size is 0. */
DDP_API ddp_status ddp_store_set(ddp_store* store, const char* key, const void* value, size_t size,
                                 ddp_error** error);

/* Waits until key exists, then returns its value. */
DDP_API ddp_status ddp_store_get(ddp_store* store, const char* key, int64_t timeout_ms,
                                 void** value, size_t* size, ddp_error** error);

/* Waits until all `count` keys exist. The TIMEOUT message names the first missing key. */
DDP_API ddp_status ddp_store_wait(ddp_store* store, const char* const* keys, size_t count,
                                  int64_t timeout_ms, ddp_error** error);

/* Deletes a key. *deleted (may be NULL): 1 if it existed. */
DDP_API ddp_status ddp_store_delete(ddp_store* store, const char* key, int32_t* deleted,
                                    ddp_error** error);

/* Adds `amount` to the decimal integer under key, and returns the sum. A missing key counts as 0.
 * Atomic. INVALID_ARGUMENT: the value is not an integer, or the sum does not fit 64 bits. */
DDP_API ddp_status ddp_store_add(ddp_store* store, const char* key, int64_t amount, int64_t* sum,
                                 ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_STORE_H */
