/* interrupt.h: ending a wait from outside, with Ctrl-C for example.
 *
 * A rank may wait long for other ranks: for one that is not started yet, or that sits at a breakpoint. Without a check a wait
 * ends only with its timeout. The bindings for Python, Julia and Java install a check when they are loaded, so that Ctrl-C (Java:
 * Thread.interrupt) ends a wait with the language's own exception. In C:
 *
 *     static volatile sig_atomic_t interrupted;
 *     static void on_sigint(int signal) { interrupted = 1; }
 *     static int32_t asked(void* user_data) { return interrupted; }
 *     ...
 *     signal(SIGINT, on_sigint);
 *     ddp_set_interrupt_check(asked, NULL, NULL, 0, &error);
 *
 * A call that the check has ended fails with DDP_ERROR_INTERRUPTED within 0.3 s.
 *
 *   - A call of store.h ends, and nothing else happens: the store can be used as before. As after a timeout, the caller does
 *     not know whether the store has carried the call out.
 *   - Every other call that waits breaks the group, as ddp_group_abort does: an operation that ranks do together cannot be left
 *     half-way. Each rank gets the same DDP_ERROR_INTERRUPTED; the message says which rank was interrupted and what it waited
 *     for ("rank 1 was interrupted while it waited for bucket 3 of step 7"), and ddp_error_rank has that rank.
 *   - This holds for ddp_work_wait too. Its caller expects, as from Ctrl-C in PyTorch, that training ends, and leaves the
 *     function that owns the buffers; so the operation must have let go of them by then. Only the wait for a work of
 *     ddp_work_create ends without breaking anything.
 */
#ifndef DDP_INTERRUPT_H
#define DDP_INTERRUPT_H

#include "status.h"

DDP_EXTERN_C_BEGIN

/* Says whether the program wants the wait of the calling thread to end: 0 no, anything else yes. libddp calls it about ten times
 * a second, on threads of the program that wait inside a libddp call, never on its own threads. Several threads may be inside it.
 * It must return soon, throw nothing, and call no function that waits for other ranks: those fail with INVALID_STATE. */
typedef int32_t (*ddp_interrupt_fn)(void* user_data);

enum {
    DDP_INTERRUPT_THIS_THREAD = 1u << 0 /* ask only on the thread that calls ddp_set_interrupt_check */
};

/* Installs the check of this process; fn NULL: none, which is the default. It replaces an earlier one, which may still be running
 * in other threads. flags: DDP_INTERRUPT_* or 0. destroy (may be NULL) is called exactly once when user_data is no longer needed,
 * but not if this call fails.
 * On a thread that a check can end, an operation of a backend without DDP_BACKEND_INTERRUPTIBLE runs on the group's progress
 * thread, which takes two wake-ups of a thread more. shm and mpi have it, gloo and hierarchical do not.
 * Errors: UNSUPPORTED (flags).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_set_interrupt_check(ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data),
                                           uint32_t flags, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_INTERRUPT_H */
