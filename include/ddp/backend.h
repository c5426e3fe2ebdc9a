/* backend.h: the interface of a transport. libddp's own backends use it, and so can yours.
 *
 * A backend moves bytes between the ranks of one group. It implements a few blocking functions;
 * libddp provides the rest: queueing, the progress thread, works, order, checks that ranks agree,
 * timeouts, errors that name the rank. Register one with ddp_backend_register, or put it into a
 * shared object libddp-NAME.so that exports
 *
 *     const ddp_backend *ddp_backend_entry(void);
 *
 * and lies in a folder of DDP_MODULE_PATH (separated by colons) or in "ddp/" beside libddp.so. A
 * module need not link against libddp: ddp_backend_host has all that it needs. A module that also
 * loads where it cannot work may export
 *
 *     ddp_status ddp_backend_usable(ddp_backend_failure* failure);
 *
 * which says whether groups can be created on this machine (a device, another library), and if not,
 * why.
 *
 * libddp and a module may know different versions of this header. libddp calls no function of a
 * ddp_backend that it does not know, or that struct_size does not cover. A module asks struct_size
 * before it reads a field of ddp_backend_host or ddp_collective that an older libddp lacks.
 */
#ifndef DDP_BACKEND_H
#define DDP_BACKEND_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* Grows when backends built against an older header would no longer work. */
#define DDP_BACKEND_ABI_VERSION 1

/* The cause of a failure. The backend fills it before it returns an error. */
typedef struct ddp_backend_failure {
    int32_t rank;      /* the rank that caused it; libddp sets -1 (unknown) before each call */
    char message[508]; /* a sentence, cut if need be, with a NUL; libddp sets "" before each call */
} ddp_backend_failure;

/* The services of libddp for a backend. The struct and its strings are valid from create until
 * destroy returns. */
typedef struct ddp_backend_host {
    size_t struct_size;
    void* handle; /* the first argument of the functions below */
    int32_t rank;
    int32_t world_size;
    /* unique among the groups of the job: system resources may be named after it */
    const char* group_name;
    /* ddp_group_options.backend_options, "" for none; reject unknown keys */
    const char* options;
    int64_t timeout_ms;
    uint32_t flags;     /* DDP_GROUP_* */
    uint32_t reserved0; /* 0 */
    /* The group's part of the store. Keys are private to this group and generation. store_get waits
     * for the key, at most timeout_ms (0: the group's timeout; negative: no wait), and returns
     * early if the group breaks, for example with DDP_ERROR_ABORTED or RANK_FAILED. Free `*value`
     * with store_value_free. A group of one rank has no store (INVALID_STATE). Threads: any. */
    ddp_status (*store_set)(void* handle, const char* key, const void* value, size_t size,
                            ddp_backend_failure* failure);
    ddp_status (*store_get)(void* handle, const char* key, int64_t timeout_ms, void** value,
                            size_t* size, ddp_backend_failure* failure);
    void (*store_value_free)(void* value);
    /* Writes to libddp's log. level: 1 error, 2 warning, 3 information, 4 debugging. Threads: any.
     */
    void (*log)(void* handle, int32_t level, const char* message);
    /* Not 0: the program wants the calling thread's wait to end (interrupt.h); return
     * DDP_ERROR_INTERRUPTED. Call it in waits that sleep, about every 50 ms, without a lock: in
     * `create`, and with DDP_BACKEND_INTERRUPTIBLE in `run` and `match`. 0 on libddp's own threads.
     * Exists if struct_size covers it. Threads: any. */
    int32_t (*interrupted)(void* handle);
    /* Deletes a key of the group's part of the store, for all ranks. DDP_OK also if there is none.
     * Keys that a backend leaves go when every rank has let go of the group. Exists if struct_size
     * covers it. Threads: any. */
    ddp_status (*store_delete)(void* handle, const char* key, ddp_backend_failure* failure);
} ddp_backend_host;

typedef int32_t ddp_collective_kind;
enum {
    DDP_COLLECTIVE_ALLREDUCE = 1,
    DDP_COLLECTIVE_BROADCAST = 2,
    DDP_COLLECTIVE_ALLGATHER = 3,
    DDP_COLLECTIVE_REDUCE_SCATTER = 4,
    DDP_COLLECTIVE_BARRIER = 5,
    DDP_COLLECTIVE_ALL_TO_ALL = 6 /* only with DDP_BACKEND_ALL_TO_ALL; never in place */
};

enum { DDP_BACKEND_BLOCK_BYTES = 65536 }; /* see ddp_collective.take */

/* One collective to carry out, as in group.h. */
typedef struct ddp_collective {
    size_t struct_size;
    ddp_collective_kind kind;
    ddp_dtype dtype;
    ddp_reduce_op op; /* never DDP_AVG: an average arrives as DDP_SUM with a scale */
    int32_t root;
    /* NULL only if count is 0. In place: equal to recv, or for allgather to this rank's part of
     * recv. */
    const void* send;
    void* recv;
    size_t count;
    /* Multiply the reduced values by this in f32 or f64, before the last rounding. For integers it
     * is 1, or 1/world: then divide the sum by world, and truncate toward zero. Always 1 without
     * DDP_BACKEND_FUSES_SCALE. */
    double scale;
    int64_t timeout_ms; /* return DDP_ERROR_TIMEOUT after this long */
    ddp_device device;  /* where send and recv both live */
    /* NULL for CPU memory. For device memory: enqueue the operation on this stream of the device (a
     * cudaStream_t for DDP_DEVICE_CUDA), which comes after the work that fills `send`. `run` may
     * return once it is enqueued: `check` then reports later failures, and libddp watches
     * timeout_ms. A rank may have several devices, whose streams are not ordered with each other.
     * Keep one connection for each device, in the order of first use, which is the same on every
     * rank. */
    void* stream;
    /* With DDP_BACKEND_COMPARES: the signature of this collective, signature_size bytes (at most
     * 128; 0: do not compare). If another rank's signature differs, `run` copies it to `theirs` and
     * the rank to failure->rank, touches no data, and returns DDP_ERROR_MISMATCH. */
    const void* signature;
    void* theirs;
    size_t signature_size;
    /* Add the bytes of gradients that this rank copies from or to the backend's own memory. NULL:
     * do not count. */
    uint64_t* copied_bytes;
    /* With DDP_BACKEND_COUNTS, for REDUCE_SCATTER and ALLGATHER: the elements of each rank's part,
     * world_size numbers, the same on every rank. The parts stand one after another, `count` is
     * their sum, and the operation is in place: `recv` of a reduce_scatter is this rank's part of
     * `send`, whose other parts hold anything afterwards; `send` of an allgather is this rank's
     * part of `recv`. NULL: every part has `count` elements.
     * For ALL_TO_ALL: world_size * world_size numbers, the same on every rank, which libddp has
     * compared. Rank i sends counts[i * world_size + j] elements to rank j, and `count` is the sum
     * of all. `send` may also be NULL if this rank sends nothing, and `recv` if it gets nothing. */
    const uint64_t* counts;
    /* With DDP_BACKEND_GIVES, in CPU memory. data: `bytes` bytes, where they are now. offset: where
     * they belong in recv, in bytes. Call it from any thread.
     *   ALLGATHER with counts: for the parts of the other ranks, once for each byte, instead of
     *                          copying them to recv
     *   ALLREDUCE:             for each block of DDP_BACKEND_BLOCK_BYTES of the result, which is
     *                          final in recv, on exactly one of the ranks, which you choose: best
     *                          the one that has it in a cache. The last block may be shorter.
     *   REDUCE_SCATTER with counts: for each such block of this rank's result, in order, one after
     *                          another. libddp acts on it at once and may write there, so nobody
     *                          else may read it any more, and it must be right even if another rank
     *                          has failed meanwhile.
     * NULL: nobody asks. */
    void (*take)(void* taker, const void* data, size_t offset, size_t bytes);
    void* taker;
    /* With DDP_BACKEND_CARRIES: two words of this rank's. Before `run` returns DDP_OK it replaces
     * them by the OR of all ranks' words. All ranks give some, or none. NULL: none. */
    uint64_t* carried;
} ddp_collective;

enum {
    DDP_BACKEND_FUSES_SCALE = 1u << 0,   /* applies ddp_collective.scale */
    DDP_BACKEND_ONE_THREAD = 1u << 1,    /* match and run must come from one thread */
    DDP_BACKEND_DETERMINISTIC = 1u << 2, /* sums do not depend on how data is cut into operations */
    /* takes memory of DDP_DEVICE_CUDA, in stream order: ddp_collective.stream */
    DDP_BACKEND_CUDA = 1u << 3,
    /* Ranks that disagree could end the process, so libddp ignores DDP_GROUP_NO_MATCH_CHECK. */
    DDP_BACKEND_NEEDS_MATCH = 1u << 4,
    /* run compares ddp_collective.signature; libddp does not call match */
    DDP_BACKEND_COMPARES = 1u << 5,
    /* match and run may come only from a thread of the program that waits inside a libddp call. For
     * a library that the program uses too, and that two threads must never enter at once. Nothing
     * then overlaps with the program's work. Not with DDP_BACKEND_ONE_THREAD, and not in a round
     * robin group. */
    DDP_BACKEND_CALLER_THREAD = 1u << 6,
    /* With DDP_BACKEND_CUDA: takes no other memory. libddp connects a second backend, chosen as by
     * "auto", for host memory, for barriers, and to compare ranks. It does not call `match` and
     * `ready`. Not with DDP_BACKEND_ONE_THREAD or DDP_BACKEND_CALLER_THREAD. */
    DDP_BACKEND_DEVICE_ONLY = 1u << 7,
    /* match and run call ddp_backend_host.interrupted while they wait. Without this flag and
     * DDP_BACKEND_CALLER_THREAD, they do not run on threads of the program whose waits an interrupt
     * check can end (ddp_set_interrupt_check). A backend with DDP_BACKEND_DEVICE_ONLY needs this
     * flag as well as the backend of its host side. */
    DDP_BACKEND_INTERRUPTIBLE = 1u << 8,
    /* With DDP_BACKEND_CUDA: ddp_collective.stream may be captured into a graph. The operation then
     * only enqueues there, and each launch of the graph runs it again, with the same memory, while
     * the transport lives. */
    DDP_BACKEND_CAPTURES = 1u << 9,
    /* run knows ddp_collective.counts. Otherwise libddp carries such operations out with allreduce
     * and broadcasts. */
    DDP_BACKEND_COUNTS = 1u << 10,
    /* run knows ddp_collective.take. Otherwise libddp calls it, once the operation is done. */
    DDP_BACKEND_GIVES = 1u << 11,
    /* run knows ddp_collective.carried. Otherwise libddp sends such words with a collective of
     * their own. */
    DDP_BACKEND_CARRIES = 1u << 12,
    /* run knows DDP_COLLECTIVE_ALL_TO_ALL, with and without counts. Otherwise libddp carries it out
     * with a broadcast from each rank. */
    DDP_BACKEND_ALL_TO_ALL = 1u << 13
};

/* The functions of a backend. One thread at a time calls `match`, `run` and `ready`, not always the
 * same one. With DDP_BACKEND_ONE_THREAD only the group's progress thread calls `match` and `run`.
 * With DDP_BACKEND_CALLER_THREAD only threads do that wait in ddp_work_wait, ddp_work_test,
 * ddp_finalize and similar calls. With either flag `ready` is not called. `create` runs on the
 * thread that creates the group, `destroy` on any thread. */
typedef struct ddp_backend {
    size_t struct_size;
    int32_t abi_version; /* DDP_BACKEND_ABI_VERSION */
    int32_t reserved0;   /* 0 */
    const char* name;    /* as in ddp_group_options.backend: 1 to 64 of a-z 0-9 - _, not "auto" */

    /* Connects this rank with the others. Waits for them, at most host->timeout_ms. libddp passes
     * *transport to all functions below. */
    ddp_status (*create)(const ddp_backend_host* host, void** transport,
                         ddp_backend_failure* failure);
    /* Releases everything. Never waits for another rank. */
    void (*destroy)(void* transport);
    /* The DDP_BACKEND_* flags of this transport. They may depend on host->options. */
    uint32_t (*capabilities)(void* transport);
    /* Makes a running call and every later one fail with DDP_ERROR_ABORTED within 100 ms. Any
     * thread, any number of times. */
    void (*abort)(void* transport);
    /* Carries out one collective. Returns when this rank's part is complete; for device memory,
     * when it is enqueued. */
    ddp_status (*run)(void* transport, const ddp_collective* collective,
                      ddp_backend_failure* failure);

    /* Optional (NULL: libddp uses an allgather). Compares the signature of the next collective,
     * `size` bytes (at most 128), with those of the ranks that this rank will exchange data with.
     * Equal: DDP_OK. Different: copies the other one to `theirs` and its rank to *rank, and returns
     * DDP_ERROR_MISMATCH. */
    ddp_status (*match)(void* transport, const void* mine, void* theirs, size_t size,
                        int64_t timeout_ms, int32_t* rank, ddp_backend_failure* failure);

    /* Optional, both or none. Memory in which this transport works fastest, zeroed, aligned to 64
     * bytes: for buckets, and on the CPU for ddp_mem_alloc. Called on any thread, one call at a
     * time, also while `run` runs. For buckets every rank calls allocate with the same sizes in the
     * same order. `device` is the CPU unless the transport has DDP_BACKEND_CUDA, and never the CPU
     * with DDP_BACKEND_DEVICE_ONLY. Device memory must be ready for every stream; libddp gives it
     * back only when no stream uses it. */
    ddp_status (*allocate)(void* transport, size_t bytes, ddp_device device, void** memory,
                           ddp_backend_failure* failure);
    void (*deallocate)(void* transport, void* memory);

    /* Optional (NULL: collectives always run on the progress thread or on a thread that waits).
     * Called before `run` with the same collective, on the thread that starts it. Tells the other
     * ranks that this one has come, and waits for them at most patience_ns nanoseconds. *all_here:
     * 1 if all have come; `run` then follows at once on the same thread. 0: `run` follows later.
     * For transports that are faster than handing work to another thread. */
    ddp_status (*ready)(void* transport, const ddp_collective* collective, int64_t patience_ns,
                        int32_t* all_here, ddp_backend_failure* failure);

    /* Optional. Says whether an enqueued operation, or the connection, has failed. Called now and
     * then while enqueued operations have not ended, and once when they have; on any thread, also
     * while `run` runs. Does not wait. It must report a failure before a stream goes on without a
     * result. After an error libddp calls abort, which must end what is enqueued, so that streams
     * go on. */
    ddp_status (*check)(void* transport, ddp_backend_failure* failure);

    /* Optional. This rank takes part in nothing more: lets the other ranks know, so that whoever
     * waits for it fails at once. libddp calls it at most once, when the group is freed. Afterwards
     * it calls only `abort`, `deallocate` and `destroy`. `destroy` may come much later: memory of
     * `allocate` that the program holds stays valid until then. Never waits for another rank. */
    void (*leave)(void* transport);
} ddp_backend;

/* Makes a backend known by its name in this process. `backend` must stay valid until the process
 * ends. Every rank that names it needs it. Errors: INVALID_ARGUMENT (a required function is NULL,
 * or the name is malformed), ALREADY_EXISTS, UNSUPPORTED (abi_version, struct_size). Threads: any.
 * Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_backend_register(const ddp_backend* backend, ddp_error** error);

/* 1 if a group can be created with this backend name: built in, registered, or a module that loads
 * and is usable here. Else 0, with the reason in *error. Threads: any. Blocks: no. Collective: no.
 * Callbacks: no. */
DDP_API int32_t ddp_backend_available(const char* name, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_BACKEND_H */
