/* group.h: groups of ranks, their collectives, and works, the handles of operations under way.
 *
 * A group is NCCL's communicator and PyTorch's process group. All ranks call the same collectives in the same order.
 * Ranks compare them before data moves: a difference is MISMATCH on every rank, not a hang. Collectives are
 * asynchronous. They run in the order of the calls, on the group's progress thread or on threads that wait for them (on
 * these alone with "mpi" in some programs: docs/backends.md).
 *
 * FAILURE. If a rank dies, hangs, disagrees or aborts, every rank gets the same error, which names that rank: at once
 * after a death, after the timeout for a hang. The group is then broken: every operation returns that error, which
 * error lists omit. Only ddp_group_free is of use.
 */
#ifndef DDP_GROUP_H
#define DDP_GROUP_H

#include "store.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

enum {
    /* Sum in rank order, so that results do not depend on how data is cut into buckets. Those of "hierarchical" depend
     * on which ranks share a host: docs/backends.md. */
    DDP_GROUP_DETERMINISTIC = 1u << 0,
    /* Do not compare ranks, which saves one small message each. A disagreement may then hang until the timeout or
     * corrupt sums. Backends that would not survive one, such as "gloo", still compare. */
    DDP_GROUP_NO_MATCH_CHECK = 1u << 1,
    /* Without a launcher's variables make a group of one, not NOT_FOUND. No effect if rank, world_size, init_method or
     * store is given. Ranks may differ in this flag. */
    DDP_GROUP_OR_ALONE = 1u << 2
};

typedef struct ddp_group_options {
    size_t struct_size;
    int32_t rank;       /* 0 <= rank < world_size. -1 (default): from the environment */
    int32_t world_size; /* at least 1. -1 (default): from the environment */
    /* Where ranks meet: "tcp://host:port", where rank 0 runs a store server; "file:///path", which all ranks see;
     * "env://" (NULL), as ddprun, torchrun, Open MPI, PMI, Slurm or a Kubernetes indexed job says. DDP_STORE overrides
     * that address; DDP_STORE_HOSTED=launcher: rank 0 runs no server. With NULL, rank 0 and world_size 1 nothing is
     * opened. */
    const char* init_method;
    /* "shm", "gloo", "hierarchical", one registered, or NAME of a module libddp-NAME.so (backend.h). "auto" (NULL)
     * chooses by where ranks are: docs/backends.md. */
    const char* backend;
    const char* backend_options; /* "key=value,key=value": docs/backends.md. Unknown keys are an error */
    int64_t timeout_ms; /* bounds joining, and each collective once it runs. 0: DDP_TIMEOUT_MS if set, else 300,000 */
    /* Keeps groups in one store apart. NULL: "world". At most 256 bytes. The n-th group that a process creates under a
     * name meets the n-th of the other ranks. */
    const char* group_name;
    ddp_store* store;   /* meet here instead; the caller keeps it open while the group lives. NULL: none */
    const char* secret; /* the job secret (store.h). NULL: DDP_SECRET, else none */
    uint32_t flags;
    uint32_t round_robin; /* join this many groups, at most 64, as one: ddp_group_round_robin. 0 or 1: one */
} ddp_group_options;

/* What a launcher told this process. Set struct_size first. */
typedef struct ddp_environment {
    size_t struct_size;
    int32_t rank;
    int32_t world_size;
    int32_t local_rank; /* on this machine; chooses a device, for example */
    int32_t local_world_size;
    int64_t restart;   /* restarts of the job so far */
    char launcher[32]; /* "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes" or "variables" */
} ddp_environment;

/* GROUPS.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

DDP_API void ddp_group_options_init(ddp_group_options* options);

/* Joins a group and waits until every rank has. options: NULL takes the defaults. If a rank cannot join, all get the
 * same error, which names it.
 * Errors: ALREADY_EXISTS (another process has this rank), MISMATCH (ranks differ in backend, its options, flags, world
 * size, round_robin or libddp version), TIMEOUT (names the missing ranks), NOT_FOUND (unknown backend; no launcher),
 * LIMIT (open files, threads), UNAVAILABLE, PERMISSION_DENIED, RANK_FAILED.
 * Threads: any. Blocks: at most timeout_ms, a little longer to learn the cause. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_create(const ddp_group_options* options, ddp_group** group, ddp_error** error);

/* Leaves the group and aborts work under way, unless a context keeps it alive. Ranks that still wait for this one get
 * RANK_FAILED. A process that ends without this call breaks the group; the error says how it ended.
 * Threads: any, once. Blocks: at most 1 s (round robin: each). Collective: no. Callbacks: no. */
DDP_API void ddp_group_free(ddp_group* group);

/* -1 or NULL for NULL. The backends of a round robin group are separated by commas. */
DDP_API int32_t ddp_group_rank(const ddp_group* group);
DDP_API int32_t ddp_group_world_size(const ddp_group* group);
DDP_API const char* ddp_group_backend(const ddp_group* group);

/* COLLECTIVES. `send` and `recv` are CPU memory of at least `count` elements (0 is allowed) of `dtype`, aligned to the
 * element; in a communication hook both may be on the bucket's device (device.h). Leave them alone until the work is
 * done. send NULL: the input is in `recv`. Otherwise they must not overlap. work NULL: the call waits, and may run the
 * operation itself. Errors at once: UNSUPPORTED (op on this dtype, dtype on this backend). Errors of the work:
 * MISMATCH, RANK_FAILED, TIMEOUT, ABORTED.
 * Threads: any, in one order on all ranks. Blocks: if work is NULL, until done. Collective: yes. Callbacks: yes. */

/* recv = op over ranks of send, the same bits on every rank. */
DDP_API ddp_status ddp_allreduce(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                 ddp_reduce_op op, ddp_work** work, ddp_error** error);
/* Sends the buffer of rank `root` to every rank, in place. */
DDP_API ddp_status ddp_broadcast(ddp_group* group, void* buffer, size_t count, ddp_dtype dtype, int32_t root,
                                 ddp_work** work, ddp_error** error);
/* recv[r * count .. (r + 1) * count) = send of rank r. In place: the input is at its own position in recv. */
DDP_API ddp_status ddp_allgather(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                 ddp_work** work, ddp_error** error);
/* recv[0 .. count) = op over ranks of send[rank * count .. (rank + 1) * count). `send` holds world size * count
 * elements, and is not NULL. */
DDP_API ddp_status ddp_reduce_scatter(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                      ddp_reduce_op op, ddp_work** work, ddp_error** error);
/* Done when every rank has called it. */
DDP_API ddp_status ddp_barrier(ddp_group* group, ddp_work** work, ddp_error** error);

/* WORKS, and all else.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

/* Waits for the end and returns the operation's status. timeout_ms 0: as long as the group's timeout allows. Otherwise
 * TIMEOUT after that time, and the operation goes on. INTERRUPTED (interrupt.h) ends it and breaks the group.
 * Threads: any. Blocks: yes; may run queued operations and continuations. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_work_wait(ddp_work* work, int64_t timeout_ms, ddp_error** error);

/* *done: 1 once the operation has ended, well or badly; the call then returns its status. Runs operations up to this
 * one if only waiting threads run them. */
DDP_API ddp_status ddp_work_test(ddp_work* work, int32_t* done, ddp_error** error);

/* Frees the handle. The operation goes on. */
DDP_API void ddp_work_free(ddp_work* work);

/* Reads the environment as "env://" does, without joining. docs/ddprun.md lists ddprun's variables.
 * Errors: NOT_FOUND (no launcher), INVALID_ARGUMENT (names incomplete or malformed variables). */
DDP_API ddp_status ddp_environment_get(ddp_environment* environment, ddp_error** error);

/* DDP_OK while the group works, else the error that broke it. */
DDP_API ddp_status ddp_group_status(ddp_group* group, ddp_error** error);

/* Breaks the group on every rank with ABORTED and this reason, or NULL. Waiting calls return. */
DDP_API ddp_status ddp_group_abort(ddp_group* group, const char* reason, ddp_error** error);

/* The store that the ranks met in, for the program's own keys. It may outlive the group. */
DDP_API ddp_status ddp_group_store(ddp_group* group, ddp_store** store, ddp_error** error);

/* Divides a group: ranks of one color (>= 0) form a new group, ordered by key, then by rank. Color -1 receives NULL.
 * The new group inherits backend, options, flags, timeout and round robin.
 * Threads: one. Blocks: as ddp_group_create. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_split(ddp_group* group, int32_t color, int32_t key, ddp_group** out, ddp_error** error);

/* Like ncclMemAlloc: CPU memory in which this group's collectives are fastest (docs/backends.md, "shm"). Zeroed,
 * aligned to 64 bytes, may outlive the group. Free it with ddp_mem_free. */
DDP_API ddp_status ddp_mem_alloc(ddp_group* group, size_t bytes, void** memory, ddp_error** error);
/* NULL is allowed, memory in use is not. */
DDP_API ddp_status ddp_mem_free(void* memory, ddp_error** error);

/* A continuation. Its collectives run before those queued after the operation that it continues, on every rank. If it
 * sets `*next`, which libddp then owns, the result of ddp_work_then finishes with that work. */
typedef ddp_status (*ddp_work_fn)(void* user_data, ddp_work** next, ddp_error** error);

enum {
    /* The group's progress thread may run the continuation. Without this flag the queue waits for a thread in
     * ddp_grad_ready, ddp_finalize, ddp_work_wait, ddp_work_test or the like. */
    DDP_WORK_ANY_THREAD = 1u << 0
};

/* Calls fn after `work` succeeds, inside this call if it is done already. *out finishes after fn and its *next. If
 * `work` fails, *out fails in the same way, without fn. flags: DDP_WORK_*. */
DDP_API ddp_status ddp_work_then(ddp_work* work, ddp_work_fn fn, void* user_data, void (*destroy)(void* user_data),
                                 uint32_t flags, ddp_work** out, ddp_error** error);

/* A work that the program finishes, for a hook with its own transport. timeout_ms bounds waits for it; 0: 300,000. */
DDP_API ddp_status ddp_work_create(int64_t timeout_ms, ddp_work** work, ddp_error** error);
/* Finishes it, well or with an error and a message (may be NULL). Errors: INVALID_STATE (finished, or not of
 * ddp_work_create). */
DDP_API ddp_status ddp_work_complete(ddp_work* work, ddp_status status, const char* message, ddp_error** error);

/* Makes one group of n groups (1 to 64) of the same ranks, for links that one cannot fill: each collective runs on the
 * next, so n run at once (docs/backends.md, "Round robin"). Collectives may finish out of order; continuations may run
 * at the same time, and may wait for collectives that they start only with DDP_WORK_ANY_THREAD. A failure in one group
 * breaks all.
 * groups: kept alive; the caller may free or use its handles, in the same order on every rank.
 * Errors: INVALID_ARGUMENT (names the group: NULL, given twice, of other ranks, already round robin), UNSUPPORTED (a
 * backend that needs waiting threads), MISMATCH (ranks give different groups or orders; this and later errors break
 * them), TIMEOUT.
 * Threads: one. Blocks: as a collective. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_round_robin(ddp_group* const* groups, size_t n, ddp_group** out, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_GROUP_H */
