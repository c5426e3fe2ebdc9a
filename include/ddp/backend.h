/* backend.h: the interface of a transport. libddp's own backends use it, and so can yours.
 *
 * A backend moves bytes between the ranks of one group. It implements a few blocking functions; libddp provides
 * everything around them: queueing, the progress thread, works, order, checks that ranks agree, timeouts and the naming
 * of culprits. Register one with ddp_backend_register, or put it into a shared object libddp-NAME.so that exports
 *
 *     const ddp_backend *ddp_backend_entry(void);
 *
 * and lies in a folder named by DDP_MODULE_PATH (separated by colons) or beside libddp.so in "ddp/". A module need not
 * link against libddp: all that it needs comes through ddp_backend_host. A module that loads also where it cannot work may
 * export
 *
 *     ddp_status ddp_backend_usable(ddp_backend_failure* failure);
 *
 * which says whether groups can be created on this machine (a device, another library), and if not, why.
 */
#ifndef DDP_BACKEND_H
#define DDP_BACKEND_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* Grows when a backend built against an older header would no longer work. */
#define DDP_BACKEND_ABI_VERSION 1

/* What went wrong in a backend. Zero-filled by libddp before each call; the backend fills it before it returns an
 * error. */
typedef struct ddp_backend_failure {
    int32_t rank;      /* the rank that caused it; libddp sets -1 (unknown) before the call */
    char message[508]; /* a sentence, NUL-terminated, cut if need be */
} ddp_backend_failure;

/* What libddp offers a backend. Valid from create until destroy returns; the strings too. */
typedef struct ddp_backend_host {
    size_t struct_size;
    void* handle; /* first argument of the functions below */
    int32_t rank;
    int32_t world_size;
    const char* group_name; /* unique among the groups of the job: names for system resources may be derived from it */
    const char* options;    /* ddp_group_options.backend_options, "" for none; the backend rejects unknown keys */
    int64_t timeout_ms;
    uint32_t flags;     /* DDP_GROUP_* */
    uint32_t reserved0; /* 0 */
    /* The group's part of the store: keys are private to this group and generation. get waits; it returns early with
     * DDP_ERROR_ABORTED or RANK_FAILED when the group breaks. `*value` is freed with store_value_free. Threads: any. */
    ddp_status (*store_set)(void* handle, const char* key, const void* value, size_t size,
                            ddp_backend_failure* failure);
    ddp_status (*store_get)(void* handle, const char* key, int64_t timeout_ms, void** value, size_t* size,
                            ddp_backend_failure* failure);
    void (*store_value_free)(void* value);
    /* Writes to libddp's log. level: 1 error, 2 warning, 3 information, 4 debugging. Threads: any. */
    void (*log)(void* handle, int32_t level, const char* message);
    /* Not 0: the program wants the wait of the calling thread to end (interrupt.h); return DDP_ERROR_INTERRUPTED. For waits in
     * `create`, and in `run` and `match` of a backend with DDP_BACKEND_INTERRUPTIBLE: ask in those that sleep, about every 50 ms,
     * with no lock held. 0 on libddp's own threads. In structs of this size or larger. Threads: any. */
    int32_t (*interrupted)(void* handle);
} ddp_backend_host;

typedef int32_t ddp_collective_kind;
enum {
    DDP_COLLECTIVE_ALLREDUCE = 1,
    DDP_COLLECTIVE_BROADCAST = 2,
    DDP_COLLECTIVE_ALLGATHER = 3,
    DDP_COLLECTIVE_REDUCE_SCATTER = 4,
    DDP_COLLECTIVE_BARRIER = 5
};

/* One collective to carry out, as in group.h. */
typedef struct ddp_collective {
    size_t struct_size;
    ddp_collective_kind kind;
    ddp_dtype dtype;
    ddp_reduce_op op; /* never DDP_AVG: that arrives as DDP_SUM with a scale */
    int32_t root;
    const void*
        send; /* never NULL unless count is 0; equal to recv (allgather: to this rank's part of it) when in place */
    void* recv;
    size_t count;
    /* Multiply the reduced values by this, in f32 or f64, before the last rounding. For integers it is 1 or 1/world:
     * the sum is then divided by world, truncating toward zero. Always 1 unless the backend has
     * DDP_BACKEND_FUSES_SCALE. */
    double scale;
    int64_t timeout_ms; /* return DDP_ERROR_TIMEOUT after this long */
    ddp_device device;  /* where send and recv live; both the same */
    /* Device memory only, NULL otherwise: enqueue the operation on this stream of the device (a cudaStream_t for
     * DDP_DEVICE_CUDA), which comes after the work that fills `send`. `run` may return as soon as it is enqueued: what is
     * wrong later is for `check` to say, and timeout_ms is then watched by libddp. A rank may have several devices, and
     * nothing orders their streams with one another: connections that belong to a device are one for each, in the order of
     * their first use, which is the same on every rank. */
    void* stream;
    /* With DDP_BACKEND_COMPARES: the signature of this collective, signature_size bytes (at most 128; 0: do not compare).
     * If that of another rank differs, `run` copies the other's to `theirs`, its rank to failure->rank, touches no data
     * and returns DDP_ERROR_MISMATCH. */
    const void* signature;
    void* theirs;
    size_t signature_size;
    /* Add the bytes of gradients that this rank copies from or to memory of the backend's own. NULL: nobody asks. */
    uint64_t* copied_bytes;
} ddp_collective;

enum {
    DDP_BACKEND_FUSES_SCALE = 1u << 0,   /* honours ddp_collective.scale */
    DDP_BACKEND_ONE_THREAD = 1u << 1,    /* match and run need to come from one thread */
    DDP_BACKEND_DETERMINISTIC = 1u << 2, /* sums do not depend on how data is cut into operations */
    DDP_BACKEND_CUDA = 1u << 3,          /* takes memory of DDP_DEVICE_CUDA, in stream order: ddp_collective.stream */
    DDP_BACKEND_NEEDS_MATCH =
        1u << 4,                    /* ranks that disagree could end the process: DDP_GROUP_NO_MATCH_CHECK is ignored */
    DDP_BACKEND_COMPARES = 1u << 5, /* run compares ddp_collective.signature; match is not called */
    /* match and run may come only from a thread of the program's own that is inside a libddp call that waits: for a
     * library that the program uses too, and that must never be entered by two threads at once. Nothing then overlaps
     * with the program's work. Not together with DDP_BACKEND_ONE_THREAD, and not in a round robin group. */
    DDP_BACKEND_CALLER_THREAD = 1u << 6,
    /* With DDP_BACKEND_CUDA: takes no other memory. libddp then connects a second backend, chosen as by "auto", for host
     * memory, barriers, and for comparing ranks before operations on device memory; `match` and `ready` are not called. */
    DDP_BACKEND_DEVICE_ONLY = 1u << 7,
    /* match and run ask ddp_backend_host.interrupted while they wait. Without this (and without DDP_BACKEND_CALLER_THREAD) they
     * do not run on threads of the program's whose waits a check of ddp_set_interrupt_check can end. */
    DDP_BACKEND_INTERRUPTIBLE = 1u << 8
};

/* The functions of a backend. All but abort are called by one thread at a time, not always the same one unless
 * DDP_BACKEND_ONE_THREAD is set (then `match` and `run` come from the group's progress thread alone). With
 * DDP_BACKEND_CALLER_THREAD they come from threads that wait in ddp_work_wait, ddp_work_test, ddp_finalize and the like,
 * and `ready` is not called; `create` always runs on the thread that creates the group, `destroy` on any. */
typedef struct ddp_backend {
    size_t struct_size;
    int32_t abi_version; /* DDP_BACKEND_ABI_VERSION */
    int32_t reserved0;   /* 0 */
    const char* name;    /* lower case, as in ddp_group_options.backend */

    /* Connects this rank with the others; waits for them, at most host->timeout_ms. *transport is passed to all below.
     */
    ddp_status (*create)(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure);
    /* Releases everything. Never waits for another rank. */
    void (*destroy)(void* transport);
    /* DDP_BACKEND_* of this transport; may depend on host->options. */
    uint32_t (*capabilities)(void* transport);
    /* Makes a running and every later call fail within 100 ms with DDP_ERROR_ABORTED. Any thread, any number of times.
     */
    void (*abort)(void* transport);
    /* Carries out one collective and returns when this rank's part is complete, or (device memory) when it is enqueued. */
    ddp_status (*run)(void* transport, const ddp_collective* collective, ddp_backend_failure* failure);

    /* Optional (NULL: libddp uses an allgather). Compares `size` bytes (at most 128), the signature of the next
     * collective, with those of the ranks that this rank will exchange data with. Equal: DDP_OK. Different:
     * DDP_ERROR_MISMATCH, with the other bytes in `theirs` and their owner in *rank. */
    ddp_status (*match)(void* transport, const void* mine, void* theirs, size_t size, int64_t timeout_ms, int32_t* rank,
                        ddp_backend_failure* failure);

    /* Optional, both or none. Memory for buckets in which this transport works fastest, zeroed, aligned to 64 bytes.
     * Every rank calls allocate with the same sizes in the same order. `device` is that of the CPU unless the transport has
     * DDP_BACKEND_CUDA; with DDP_BACKEND_DEVICE_ONLY it never is. Device memory must be ready for every stream, and is
     * given back only when no stream uses it. */
    ddp_status (*allocate)(void* transport, size_t bytes, ddp_device device, void** memory,
                           ddp_backend_failure* failure);
    void (*deallocate)(void* transport, void* memory);

    /* Optional (NULL: collectives always run on the progress thread or on one that waits). Called before `run` with the
     * same collective, on the thread that starts it: tells the other ranks that this one has come, and sets *all_here to 1
     * if all have. Waits for them at most patience_ns nanoseconds. With 1 `run` follows at once on the same thread, which is
     * for transports that need less time than handing work to another thread does; with 0 it follows later. */
    ddp_status (*ready)(void* transport, const ddp_collective* collective, int64_t patience_ns, int32_t* all_here,
                        ddp_backend_failure* failure);

    /* Optional. Called now and then, by any thread and while `run` runs, as long as operations are enqueued that have not
     * ended, and once when they have: whether one of them, or the connection, has failed meanwhile. Does not wait. It must
     * say so before a stream goes on without a result. After an error libddp calls abort, which must end what is enqueued,
     * so that streams go on. */
    ddp_status (*check)(void* transport, ddp_backend_failure* failure);
} ddp_backend;

/* Makes a backend known by its name in this process. `backend` must stay valid until the process ends.
 * Errors: INVALID_ARGUMENT (a required function is NULL, or the name is malformed), ALREADY_EXISTS, UNSUPPORTED
 * (abi_version).
 * Threads: any. Blocks: no. Collective: no (but every rank that names it needs it). Callbacks: no. */
DDP_API ddp_status ddp_backend_register(const ddp_backend* backend, ddp_error** error);

/* 1 if a group could be created with this backend name (built in, registered, or a module that loads), else 0 with the
 * reason in *error.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API int32_t ddp_backend_available(const char* name, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_BACKEND_H */
