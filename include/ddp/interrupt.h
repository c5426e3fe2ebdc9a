/* interrupt.h: ends a wait from outside, for example with Ctrl-C.
 *
 * A rank may wait long for another one that is not started yet, or that sits at a breakpoint.
 * Without an interrupt check, only the timeout ends the wait. The bindings for Python, Julia and
 * Java install a check when they are loaded: Ctrl-C (Java: Thread.interrupt) ends a wait with the
 * language's own exception. In C:
 *
 *     static volatile sig_atomic_t interrupted;
 *     static void on_sigint(int signal) { interrupted = 1; }
 *     static int32_t asked(void* user_data) { return interrupted; }
 *     ...
 *     signal(SIGINT, on_sigint);
 *     ddp_set_interrupt_check(asked, NULL, NULL, 0, &error);
 *
 * The interrupted call fails with DDP_ERROR_INTERRUPTED within 0.3 s; docs/limits.md lists the
 * waits that take longer.
 *
 * - A call of store.h only ends, and the store stays usable. As after a timeout, the caller does
 *   not know whether the
 *     store carried out the call.
 * - Every other call breaks the group, as ddp_group_abort does: ranks cannot leave a common
 *   operation half-way. Each
 *     rank gets the same DDP_ERROR_INTERRUPTED. The message names the interrupted rank and what it
 *     waited for ("rank 1
 *     was interrupted while it waited for bucket 3 of step 7"), and ddp_error_rank returns that
 *     rank.
 * - ddp_work_wait breaks the group too. As after Ctrl-C in PyTorch, its caller expects training to
 *   end, and leaves
 *     the function that owns the buffers, so the operation must stop using them. Only a wait for a
 *     work of
 *     ddp_work_create ends without breaking anything.
 */
#ifndef DDP_INTERRUPT_H
#define DDP_INTERRUPT_H

#include "status.h"

DDP_EXTERN_C_BEGIN

/* Says whether the program wants the calling thread's wait to end: 0 no, anything else yes. libddp
 * calls it about ten times a second, on threads of the program that wait inside a libddp call,
 * never on its own threads. Several threads may be inside it. It must return soon, throw nothing,
 * and call no function that waits for other ranks or for a store: such a function, ddp_group_create
 * included, fails with INVALID_STATE. libddp does not call it while the process exits. */
typedef int32_t (*ddp_interrupt_fn)(void* user_data);

enum {
    /* ask only on the thread that calls ddp_set_interrupt_check */
    DDP_INTERRUPT_THIS_THREAD = 1u << 0
};

/* Installs the check of this process. fn NULL: none, the default. It replaces an earlier check,
 * which may still run in other threads. flags: DDP_INTERRUPT_* or 0. destroy (may be NULL) is
 * called exactly once when user_data is no longer needed, but not if this call fails.
 *
 * Where a check can end a thread's waits, operations of a backend without DDP_BACKEND_INTERRUPTIBLE
 * run on the group's progress thread. This costs two more thread wake-ups. All of libddp's own
 * backends but gloo have it.
 *
 * Errors: UNSUPPORTED (unknown flags).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_set_interrupt_check(ddp_interrupt_fn fn, void* user_data,
                                           void (*destroy)(void* user_data), uint32_t flags,
                                           ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_INTERRUPT_H */
