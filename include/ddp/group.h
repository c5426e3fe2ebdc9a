/* group.h: groups of ranks, their collectives, and ddp_work, the handle of an asynchronous
 * operation.
 *
 * A group is what NCCL calls a communicator and PyTorch a process group. All ranks call the same
 * collectives in the same order. Ranks compare their calls before data moves: a difference is
 * MISMATCH on every rank, not a hang.
 *
 * Collectives are asynchronous. They wait in the group's queue and run one after another, on
 * libddp's progress thread or on a thread of the program inside a libddp call. With "mpi" there may
 * be no progress thread: docs/backends.md, "Threads". During a context's synced step, nothing else
 * may use its group: docs/steps.md.
 *
 * FAILURE. If a rank dies, hangs, aborts, cannot join, or disagrees about a collective, every rank
 * gets the same error, which names that rank. A death is reported at once, a hang after the
 * timeout. "Every rank" means every one that reaches the store, where ranks meet. The group then
 * stays broken: every operation returns this error, whatever its "Errors:" says. docs/steps.md says
 * how to go on.
 */
#ifndef DDP_GROUP_H
#define DDP_GROUP_H

#include "store.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

enum {
    /* Sum in rank order. Without it, the last bits may differ between runs: docs/backends.md,
     * "Bits". */
    DDP_GROUP_DETERMINISTIC = 1u << 0,
    /* Do not compare calls: a disagreement may corrupt sums, or hang until the timeout. "gloo" and
     * "mpi" ignore it. */
    DDP_GROUP_NO_MATCH_CHECK = 1u << 1,
    /* Without a launcher make a group of one: docs/ddprun.md. */
    DDP_GROUP_OR_ALONE = 1u << 2,
    /* As DDP_STORE_INSECURE (store.h). */
    DDP_GROUP_INSECURE = 1u << 3
};

typedef struct ddp_group_options {
    size_t struct_size;
    int32_t rank;       /* 0 <= rank < world_size. -1 (default): from the environment */
    int32_t world_size; /* at least 1. -1 (default): likewise */
    /* Where ranks meet. "tcp://host:port": a store in rank 0. "file:///path": a file that all ranks
     * see. "etcd://host:port/name": a store on etcd. "env://" (NULL): the launcher says where.
     * docs/ddprun.md */
    const char* init_method;
    /* "shm", "tcp", "hierarchical", "gloo", "mpi", "nccl", your own (backend.h), or "auto" (NULL):
     * docs/backends.md. */
    const char* backend;
    /* "key=value,key=value": docs/backends.md. Unknown keys are an error */
    const char* backend_options;
    /* Bounds each wait of joining, and each collective once it heads the queue. 0: $DDP_TIMEOUT_MS,
     * or 300,000. */
    int64_t timeout_ms;
    /* Separates groups that share a store. NULL: "world". At most 256 bytes. The n-th group that a
     * rank creates under a name joins the other ranks' n-th under that name. */
    const char* group_name;
    /* instead of init_method; keep it open while the group, or one split from it, lives */
    ddp_store* store;
    const char* secret; /* the job secret, as in store.h */
    uint32_t flags;
    /* 0 or 1: one group. 2 to 64: join this many as one: round_robin.h (experimental) */
    uint32_t round_robin;
} ddp_group_options;

/* The facts that a launcher told this process: ddp_environment_get. */
typedef struct ddp_environment {
    size_t struct_size;
    int32_t rank;
    int32_t world_size;
    int32_t local_rank; /* on this machine, to choose a device */
    int32_t local_world_size;
    int64_t restart; /* restarts of the job */
    /* "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes" or "variables" */
    char launcher[32];
} ddp_environment;

/* GROUPS.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

DDP_API void ddp_group_options_init_sized(ddp_group_options* options, size_t size);
static inline void ddp_group_options_init(ddp_group_options* options) {
    ddp_group_options_init_sized(options, sizeof *options);
}

/* Joins a group and waits until every rank has joined. options NULL: defaults. Errors:
 * ALREADY_EXISTS (another process has this rank), MISMATCH (ranks differ in options or libddp
 * version), TIMEOUT, NOT_FOUND (unknown backend; no launcher), LIMIT, UNAVAILABLE,
 * PERMISSION_DENIED, RANK_FAILED. Threads: any. Blocks: at most timeout_ms for the store, and again
 * for the ranks (docs/limits.md, "Times"). Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_create(const ddp_group_options* options, ddp_group** group,
                                    ddp_error** error);

/* Frees the handle. If no context or round robin group holds the group, this rank leaves it and
 * aborts its works. Ranks that still need this rank get RANK_FAILED. A process that ends without
 * this call breaks the group. Threads: any, once. Blocks: at most 1 s (round robin: for each
 * group). Collective: no. Callbacks: no. */
DDP_API void ddp_group_free(ddp_group* group);

/* For a NULL group: -1, -1, NULL. A round robin group lists its backends: "shm,gloo". */
DDP_API int32_t ddp_group_rank(const ddp_group* group);
DDP_API int32_t ddp_group_world_size(const ddp_group* group);
DDP_API const char* ddp_group_backend(const ddp_group* group);

/* COLLECTIVES. `send` and `recv` hold `count` elements (0 is allowed) of `dtype`, or world_size *
 * count where the comments below index them by rank. They are CPU memory or, in a hook, memory of
 * the bucket's device (device.h), aligned to the element. Leave them alone until the work is done.
 * send NULL: the input is in `recv`. Otherwise they must not overlap. work NULL: the call waits,
 * and may run the operation itself. Free every work, even after a wait. Errors: UNSUPPORTED (op or
 * dtype) at once. The work ends with MISMATCH, RANK_FAILED, TIMEOUT or ABORTED. Threads: any, in
 * one order on all ranks. Blocks: if work is NULL, until done. Collective: yes. Callbacks: yes. */

/* recv = op over every rank's `send`, the same bits on each. */
DDP_API ddp_status ddp_allreduce(ddp_group* group, const void* send, void* recv, size_t count,
                                 ddp_dtype dtype, ddp_reduce_op op, ddp_work** work,
                                 ddp_error** error);
/* Sends the buffer of rank `root` to every rank, in place. */
DDP_API ddp_status ddp_broadcast(ddp_group* group, void* buffer, size_t count, ddp_dtype dtype,
                                 int32_t root, ddp_work** work, ddp_error** error);
/* recv[r * count .. (r + 1) * count) = send of rank r, for every r. send NULL: the input is at this
 * rank's place. */
DDP_API ddp_status ddp_allgather(ddp_group* group, const void* send, void* recv, size_t count,
                                 ddp_dtype dtype, ddp_work** work, ddp_error** error);
/* recv[0 .. count) = op over every rank's send[rank * count .. (rank + 1) * count). `send` must not
 * be NULL. */
DDP_API ddp_status ddp_reduce_scatter(ddp_group* group, const void* send, void* recv, size_t count,
                                      ddp_dtype dtype, ddp_reduce_op op, ddp_work** work,
                                      ddp_error** error);
/* Done when every rank has called it. */
DDP_API ddp_status ddp_barrier(ddp_group* group, ddp_work** work, ddp_error** error);

/* WORKS, and all else. A work is done when its operation has ended, successfully or not.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */

/* Waits until the work is done and returns its status. timeout_ms 0: the group's timeout, which
 * ends the operation. Otherwise TIMEOUT says that it is not done yet, and it goes on. INTERRUPTED
 * (interrupt.h) also ends it, and breaks the group. Threads: any. Blocks: yes, and if timeout_ms is
 * negative as ddp_work_test; may run queued operations and continuations. Collective: no.
 * Callbacks: yes. */
DDP_API ddp_status ddp_work_wait(ddp_work* work, int64_t timeout_ms, ddp_error** error);

/* *done: 1 if the work is done; the call then returns its status. May run continuations. If the
 * group has no progress thread, also runs queued operations, up to this one. Blocks: only in what
 * it runs. */
DDP_API ddp_status ddp_work_test(ddp_work* work, int32_t* done, ddp_error** error);

/* Frees the handle, at any time. The operation goes on. */
DDP_API void ddp_work_free(ddp_work* work);

/* Reads the environment as "env://" does, without joining.
 * Errors: NOT_FOUND (no launcher), INVALID_ARGUMENT (incomplete or malformed variables). */
DDP_API ddp_status ddp_environment_get(ddp_environment* environment, ddp_error** error);

/* DDP_OK, or the error that broke the group. */
DDP_API ddp_status ddp_group_status(ddp_group* group, ddp_error** error);

/* Breaks the group on every rank with ABORTED and this reason (NULL: none).
 * Threads: any. Blocks: for the store, at most 2 s. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_group_abort(ddp_group* group, const char* reason, ddp_error** error);

/* The store that the ranks met in, for the program's own keys. Free it with ddp_store_free; it may
 * outlive the group. With one rank, this call may open it. Errors: as ddp_store_create. Blocks:
 * while opening. */
DDP_API ddp_status ddp_group_store(ddp_group* group, ddp_store** store, ddp_error** error);

/* Divides a group: ranks of one color (>= 0) form a new group with the old one's options, ordered
 * by key, then by old rank. Color -1: *out is NULL. Errors: as ddp_group_create. Threads: one.
 * Blocks: as ddp_group_create. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_split(ddp_group* group, int32_t color, int32_t key, ddp_group** out,
                                   ddp_error** error);

/* A continuation: libddp calls it when a work has succeeded. Its collectives go to the front of the
 * queue. It may set *next to a work, which libddp then owns. */
typedef ddp_status (*ddp_work_fn)(void* user_data, ddp_work** next, ddp_error** error);

enum {
    /* The progress thread may run it too. Without this flag, a due continuation stops the queue
     * until the program announces a gradient, or tests or waits for a work. */
    DDP_WORK_ANY_THREAD = 1u << 0
};

/* Calls fn when `work` has succeeded, inside this call if it already has. *out is done after fn,
 * *next and destroy, with their result. If `work` fails, *out fails alike, without fn. Attach fn
 * before the group's next collective, or the order of fn's collectives is undefined. Blocks: only
 * in fn. */
DDP_API ddp_status ddp_work_then(ddp_work* work, ddp_work_fn fn, void* user_data,
                                 void (*destroy)(void* user_data), uint32_t flags, ddp_work** out,
                                 ddp_error** error);

/* A work that the program finishes, for a hook with its own transport. It fails with TIMEOUT after
 * timeout_ms (0: 300,000). */
DDP_API ddp_status ddp_work_create(int64_t timeout_ms, ddp_work** work, ddp_error** error);
/* Finishes it, with DDP_OK or an error and a message (may be NULL). Errors: INVALID_STATE (finished
 * already, or not of ddp_work_create). */
DDP_API ddp_status ddp_work_complete(ddp_work* work, ddp_status status, const char* message,
                                     ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_GROUP_H */
