/* group.h: groups of ranks, their collective operations, and work, the handle of an operation under way.
 *
 * A group is what NCCL calls a communicator and PyTorch a process group. Collectives are asynchronous: they are queued,
 * run strictly in the order of the calls on the group's own progress thread (or on a thread that waits for them, which
 * lends itself), and are finished when their ddp_work is. (In a round robin group several run at once:
 * ddp_group_round_robin.) Every rank must call the same collectives in the same order;
 * before data moves, ranks compare what they are about to do, and a difference is DDP_ERROR_MISMATCH on every
 * rank instead of a hang. A backend may ask that operations run only on threads that wait inside a libddp call (mpi, in
 * some programs: docs/backends.md); then nothing is communicated while no thread waits.
 *
 * FAILURE. A rank that dies, hangs, disagrees or aborts becomes the same error on every rank of the group. It names the
 * rank. From then on the group is broken: every operation returns that error, and only ddp_group_free is of
 * use. A death is noticed at once through the store, a rank that is stuck when the timeout has passed.
 */
#ifndef DDP_GROUP_H
#define DDP_GROUP_H

#include "store.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

enum {
    /* Reduce so that the result does not depend on how data is cut into buckets: each element is summed in rank order.
     * The backend "hierarchical" sums in rank order on each host, rounds to the dtype, and then sums over hosts in the
     * order of their lowest ranks: its bits depend on which ranks share a host, and are not those of "shm" or "gloo". */
    DDP_GROUP_DETERMINISTIC = 1u << 0,
    /* Do not compare what ranks are about to do before each collective. Saves one small message an operation; a disagreement
     * between ranks may then hang until the timeout or corrupt sums. A backend that would not survive one, as gloo, compares
     * all the same. */
    DDP_GROUP_NO_MATCH_CHECK = 1u << 1,
    /* Where no launcher started this process, make a group of one instead of failing with NOT_FOUND: the same program then
     * runs with and without a launcher. For rank, world_size, init_method and store that all come from the environment; where
     * one of them is given the flag has no effect. Variables that are incomplete or malformed stay INVALID_ARGUMENT, so that a
     * job with a mistake in them does not become many jobs of one. Ranks may differ in this flag. */
    DDP_GROUP_OR_ALONE = 1u << 2
};

/* How to join a group. Fill with ddp_group_options_init. Strings are copied. */
typedef struct ddp_group_options {
    size_t struct_size;
    /* This process's rank, 0 <= rank < world_size. -1: from the environment. */
    int32_t rank;
    /* Number of ranks, at least 1. -1: from the environment. */
    int32_t world_size;
    /* Where ranks meet.
     *   "env://" (NULL): the environment that ddprun, torchrun, Open MPI, PMI, Slurm or a Kubernetes indexed job made.
     * DDP_STORE overrides the address, and DDP_STORE_HOSTED=launcher says that the launcher runs the server, not rank
     * 0. "tcp://host:port": rank 0 runs a store server there. "file:///path": a file that all ranks see. With rank 0
     * and world_size 1 given and no init_method the group is alone and nothing is opened. */
    const char* init_method;
    /* "auto" (NULL): "shm" if all ranks are on one host, "gloo" if each is on its own, "hierarchical" otherwise. Or one
     * of these, or the name of a registered backend or of a module libddp-NAME.so (backend.h). See docs/backends.md. */
    const char* backend;
    /* Options of the backend, "key=value,key=value"; NULL for none. Unknown keys are an error. docs/backends.md lists
     * them. */
    const char* backend_options;
    /* The bound in milliseconds of joining, and of each collective once it runs. 0: the environment variable
     * DDP_TIMEOUT_MS if set, which ddprun --timeout sets, else 300,000. */
    int64_t timeout_ms;
    /* Keeps groups apart that use one store; ranks that give the same name meet. NULL: "world". When a process creates
     * a group of the same name again, it meets the ranks that created theirs as often. At most 256 bytes. */
    const char* group_name;
    /* Meet in this store, which the caller keeps open as long as the group lives, instead of init_method. NULL: none.
     */
    ddp_store* store;
    /* The job secret (store.h). NULL: DDP_SECRET, else none. */
    const char* secret;
    uint32_t flags; /* DDP_GROUP_* */
    /* Join so many groups of the same ranks, at most 64, and take turns among them: see ddp_group_round_robin. 0 or 1:
     * one group. */
    uint32_t round_robin;
} ddp_group_options;

/* Fills `options` with the defaults (rank and world_size -1, all else 0).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_group_options_init(ddp_group_options* options);

/* What a launcher told this process. Set struct_size first. */
typedef struct ddp_environment {
    size_t struct_size;
    int32_t rank;
    int32_t world_size;
    int32_t local_rank;       /* among the processes of this machine; chooses a device, say */
    int32_t local_world_size; /* processes on this machine */
    int64_t restart;          /* how often the launcher has started the job again */
    char launcher[32];        /* "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes" or "variables" */
} ddp_environment;

/* Reads the environment as "env://" does, without joining anything; for a program that wants to know where it runs
 * (DDP_GROUP_OR_ALONE is for one that runs alone when nobody launched it). docs/ddprun.md lists the variables. Errors: NOT_FOUND (no launcher's variables), INVALID_ARGUMENT
 * (incomplete or malformed ones, named: a rank without a world size, an address without a rank).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_environment_get(ddp_environment* environment, ddp_error** error);

/* Joins a group and waits until every rank has.
 * options: NULL takes the defaults. *group: owned by the caller, freed with ddp_group_free.
 * Errors: INVALID_ARGUMENT (names the field or variable), ALREADY_EXISTS (another process has this rank), MISMATCH
 * (ranks chose another backend, options, world size, round_robin or libddp version), TIMEOUT (names the ranks that did not come),
 * UNAVAILABLE, PERMISSION_DENIED, RANK_FAILED, OUT_OF_MEMORY, LIMIT (open files, threads), NOT_FOUND (unknown backend; no environment,
 * without DDP_GROUP_OR_ALONE), UNSUPPORTED. Whatever one rank lacks while it joins is the same error on all ranks, and ddp_error_rank
 * names that rank. While ranks are missing, the lowest one that is there says which on standard error, after 5 s and then every 30 s.
 * Threads: any. Blocks: at most timeout_ms, a little longer to learn why. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_create(const ddp_group_options* options, ddp_group** group, ddp_error** error);

/* Divides a group: ranks that give the same color (>= 0) form a new group, ordered by key, then by rank. A rank that
 * gives color -1 joins none and receives NULL. The new groups inherit backend, options, flags and timeout, and what is
 * made of a round robin group is one too.
 * Threads: one. Blocks: as ddp_group_create. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_split(ddp_group* group, int32_t color, int32_t key, ddp_group** out, ddp_error** error);

/* ROUND ROBIN. Makes one group of n groups (1 to 64) of the same ranks, whose collectives take turns: each runs on the
 * next of the n, so that n run at the same time. For links that one group cannot fill.
 *
 * - Collectives may end in another order than they were called: wait for the work of each. ddp_barrier is one for all n
 *   groups: done when everything before it is done on this rank, and every rank has come.
 * - A context sends bucket i through group i modulo n; its hook is given that group, and all that the hook starts with
 *   it, in continuations too, stays there. Hooks are called in bucket order, one at a time, as ever; but continuations
 *   for buckets of different groups may run at the same time, on different threads.
 * - What a continuation starts runs on the group of the work that it continues, a barrier too. It may not wait for
 *   another of its collectives inside itself, unless it has DDP_WORK_ANY_THREAD: two ranks could wait for each other
 *   until the timeout.
 * - A failure in one of the groups breaks all of them, with one error on every rank.
 *
 * groups: kept alive; the caller may free its handles at once, or go on and use the groups by themselves, in the same
 * order on every rank. None may be part of another round robin group that is still alive. *out: owned by the caller,
 * freed with ddp_group_free, which may take 1 s for each of the n. ddp_group_backend names every backend, separated by
 * commas.
 * Errors: INVALID_ARGUMENT (names the group: NULL, given twice, of another rank or world size than the first, itself or
 * part of a round robin group), MISMATCH (ranks give another number of groups, others, or in another order; this and
 * every later error breaks the groups), TIMEOUT, or what broke one of them.
 * Threads: one. Blocks: as a collective. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_group_round_robin(ddp_group* const* groups, size_t n, ddp_group** out, ddp_error** error);

/* Leaves the group. Work under way is aborted; contexts that use the group keep it alive until they are freed. Peers
 * that still wait for this rank get DDP_ERROR_RANK_FAILED saying that it left. A process that exits without this breaks
 * the group for all who are in it: the error says that the process exited and with which status, or, if it was killed,
 * crashed or called _exit, that the rank died.
 * Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_group_free(ddp_group* group);

/* Breaks the group on every rank with DDP_ERROR_ABORTED and this reason (copied; NULL: none given). Waiting calls
 * return.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_group_abort(ddp_group* group, const char* reason, ddp_error** error);

/* Facts about a group; -1 or NULL for a NULL group. Strings are owned by the group.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API int32_t ddp_group_rank(const ddp_group* group);
DDP_API int32_t ddp_group_world_size(const ddp_group* group);
DDP_API const char* ddp_group_backend(const ddp_group* group);

/* DDP_OK while the group works, else the error that broke it.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_group_status(ddp_group* group, ddp_error** error);

/* The store the ranks met in, for the program's own keys. *store is owned by the caller (ddp_store_free) and may
 * outlive the group.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_group_store(ddp_group* group, ddp_store** store, ddp_error** error);

/* COLLECTIVES. With work == NULL the call may run the operation on its own thread. `send` and `recv` are memory of the
 * CPU (in a communication hook of a bucket on a device: or both of that device, see ddp_bucket_stream in device.h) of
 * `dtype`, at least `count` elements unless said otherwise, aligned to the element, untouched by the caller until the work is done. `send` may be NULL, which means "in place": the input is
 * in `recv`; otherwise the two must not overlap. count may be 0. *work: owned by the caller (ddp_work_free); with work
 * == NULL the call waits for the end itself. Errors at once: INVALID_ARGUMENT, UNSUPPORTED (op on this dtype, or dtype
 * on this backend), or what broke the group. Errors of the work: MISMATCH, RANK_FAILED, TIMEOUT, ABORTED.
 * Threads: any, but the order of calls must be the same on every rank. Blocks: no (work == NULL: until done).
 * Collective: yes. Callbacks: yes. */

/* Memory in which collectives of this group are fastest, for CPU data: of shared memory if the group's backend works in
 * it, ordinary memory otherwise. Zeroed, aligned to 64 bytes, at least `bytes` long. Where `send` and `recv` of every rank lie
 * in such memory, a backend in shared memory copies nothing. As ncclMemAlloc and MPI_Alloc_mem. *memory: owned by the
 * caller, freed with ddp_mem_free, and may outlive the group. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_mem_alloc(ddp_group* group, size_t bytes, void** memory, ddp_error** error);
/* Frees it; not while a collective uses it. NULL is allowed. Errors: INVALID_ARGUMENT (not of ddp_mem_alloc).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_mem_free(void* memory, ddp_error** error);

/* recv = op over ranks of send. The same bits on every rank. */
DDP_API ddp_status ddp_allreduce(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                 ddp_reduce_op op, ddp_work** work, ddp_error** error);
/* buffer of rank `root` to every rank, in place. */
DDP_API ddp_status ddp_broadcast(ddp_group* group, void* buffer, size_t count, ddp_dtype dtype, int32_t root,
                                 ddp_work** work, ddp_error** error);
/* recv[r * count .. (r + 1) * count) = send of rank r; recv holds world * count elements. In place: this rank's input
 * stands at its own position in recv. */
DDP_API ddp_status ddp_allgather(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                 ddp_work** work, ddp_error** error);
/* recv[0 .. count) = op over ranks of send[rank * count .. (rank + 1) * count); send holds world * count elements and
 * recv count. `send` may not be NULL. */
DDP_API ddp_status ddp_reduce_scatter(ddp_group* group, const void* send, void* recv, size_t count, ddp_dtype dtype,
                                      ddp_reduce_op op, ddp_work** work, ddp_error** error);
/* Done when every rank has called it. A TIMEOUT names the ranks that did not. */
DDP_API ddp_status ddp_barrier(ddp_group* group, ddp_work** work, ddp_error** error);

/* WORK. Freeing a work does not cancel it. */

/* *done: 1 once the operation is finished, well or badly. The status is the operation's own.
 * Threads: any. Blocks: no, unless operations run only on threads inside a libddp call: then it runs those up to this
 * one. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_work_test(ddp_work* work, int32_t* done, ddp_error** error);

/* Waits for the end and returns how it went. timeout_ms: 0 waits as long as the operation may take by the group's own
 * timeout; otherwise DDP_ERROR_TIMEOUT after that time, and the operation goes on. Where operations run only on threads
 * inside a libddp call, one that has begun on this thread is carried to its end, be it later than timeout_ms.
 * Where the program ends the wait (interrupt.h), the operation ends too and the group breaks: INTERRUPTED.
 * Threads: any. Blocks: yes, and may run queued operations and continuations meanwhile. Collective: no. Callbacks:
 * yes. */
DDP_API ddp_status ddp_work_wait(ddp_work* work, int64_t timeout_ms, ddp_error** error);

/* A continuation. It may start further collectives; if it sets `*next` (ownership passes to libddp), the result of
 * ddp_work_then is finished when that one is. Collectives started in a continuation run before whatever was queued
 * after the operation it continues, on every rank, so that chains never get out of step. On failure it returns a status
 * and may set *error to an object from ddp_error_create (ownership passes). */
typedef ddp_status (*ddp_work_fn)(void* user_data, ddp_work** next, ddp_error** error);

enum {
    /* The continuation may run on the group's progress thread. Without this flag it runs only on a thread that is
     * inside a libddp call (ddp_grad_ready, ddp_finalize, ddp_work_wait, ddp_work_test, ...), and the group's queue
     * waits for one. */
    DDP_WORK_ANY_THREAD = 1u << 0
};

/* Calls fn after `work` finished without error; *out finishes after fn (and its *next) did. If `work` fails, fn is not
 * called and *out fails in the same way. destroy (may be NULL) is called exactly once when user_data is no longer
 * needed, but not if this function fails. flags: DDP_WORK_*.
 * Threads: any. Blocks: no; fn may run inside this call if `work` is already done. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_work_then(ddp_work* work, ddp_work_fn fn, void* user_data, void (*destroy)(void* user_data),
                                 uint32_t flags, ddp_work** out, ddp_error** error);

/* A work that the program finishes itself, for a hook with a transport of its own. Waits on it are bounded by
 * timeout_ms (0: 300,000).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_work_create(int64_t timeout_ms, ddp_work** work, ddp_error** error);
/* Finishes such a work: status DDP_OK or an error with a message (NULL: none). INVALID_STATE if it is already finished
 * or is not of ddp_work_create.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_work_complete(ddp_work* work, ddp_status status, const char* message, ddp_error** error);

/* Lets go of the handle. NULL is allowed. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_work_free(ddp_work* work);

DDP_EXTERN_C_END

#endif /* DDP_GROUP_H */
