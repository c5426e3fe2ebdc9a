/* record.h: what the program adds to the record of this process: marks, and how much work there is;
 * and a signal for a rank that the others wait for.
 *
 * Each process can keep a record: a file of fixed size with its last 16,384 events. Events are the
 * beginning and end of steps, backward passes, hooks and collectives, and the program's marks. The
 * file outlives the process: after a `kill -9` its last events are there. ddprun keeps records by
 * default, and says from them who holds the job up; ddp-why reads them afterwards, and makes a
 * trace of all ranks. docs/record.md shows how.
 *
 * Without ddprun set DDP_RECORD to a folder that exists. Each process then makes a file there, of 1
 * MiB and a few pages for each group and context. Where that fails, a warning says why, and the
 * program goes on without a record.
 *
 * An event takes about 50 ns, and ddp_grad_ready about 1 ns more than without a record.
 *
 * EXPERIMENTAL: what a mark holds may change.
 */
#ifndef DDP_RECORD_H
#define DDP_RECORD_H

#include "experimental.h"
#include "status.h"

DDP_EXTERN_C_BEGIN

/* A mark lasts from ddp_mark_begin to ddp_mark_end on the same thread. Marks nest. In a trace they
 * stand above the rank's own rows: "forward", "data", "optimizer". They cost about 100 ns each, so
 * they may stay in the program. Without a record both functions do nothing.
 *
 * name: at most 200 bytes count. libddp copies it. Each name takes a page of the file. After the
 * first thousand, new names are "(other)".
 *
 * Errors: INVALID_ARGUMENT (name is NULL).
 * Threads: any. Blocks: no. Collective: no. Callbacks: no.
 * Follows nvtxRangePushA and nvtxRangePop of NVIDIA's NVTX. */
DDP_API ddp_status ddp_mark_begin(const char* name, ddp_error** error);
/* Errors: none.
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_mark_end(ddp_error** error);

/* Says how much work there is, so that `ddprun --status` can show a rate and the time that is left.
 * Call it again when either changes. Without a record it does nothing.
 *
 * samples: how many this rank takes in a step; 0: unknown. steps: of the whole run; 0: unknown.
 *
 * Errors: INVALID_ARGUMENT (a negative number).
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_workload(int64_t samples, int64_t steps, ddp_error** error);

/* When a group breaks with an error that names this rank (ddp_error_rank), the process sends itself
 * this signal, with or without a record; with several groups that break for the same error, once
 * for each. So a rank that hangs shows where it is. signal: as for raise(); 0: none, the default.
 *
 *     Python   faulthandler.register(signal.SIGUSR1); ddp.set_blame_signal(signal.SIGUSR1)
 *     Java     Mark.blameSignal(3): a virtual machine prints all stacks at SIGQUIT
 *     C, C++   a handler that calls backtrace() and backtrace_symbols_fd() of <execinfo.h>
 *
 * Errors: INVALID_ARGUMENT (not a signal of this system).
 * Threads: any. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_blame_signal(int32_t signal, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_RECORD_H */
