/* check.h: numbers that go bad: NaN and infinity in gradients, and replicas that drift apart. It
 * explains fields and flags of ddp_context_options (context.h). docs/check.md has examples, also of
 * loss scaling in mixed precision.
 *
 * NAN AND INFINITY. A NaN in one rank's gradient is in every rank's model one step later, where
 * nobody can tell whence it came. With one of these flags libddp looks at every gradient on its way
 * into its bucket, before it meets others, and at every result before ddp_finalize or
 * ddp_wait_param returns. The two flags exclude each other.
 *   DDP_CONTEXT_REFUSE_NONFINITE  The context breaks with NONFINITE, at once on every rank. The call that announced
 *                                 the gradient is the first to return the error.
 *   DDP_CONTEXT_SKIP_NONFINITE    All ranks skip the step. Each synced step ends with an allreduce of one byte.
 * The error names the rank, the parameter, the step, and the first bad element. If the gradients of
 * all ranks are finite but the result is not, as when 16-bit numbers overflow in the sum, it names
 * no rank (ddp_error_rank: -1).
 *
 * libddp looks at gradients of unsynced steps in the next synced step. It does not look at
 * integers, nor on a rank whose weight is 0. It looks at memory of the CPU only: with a parameter
 * on a device ddp_commit returns UNSUPPORTED.
 *
 * A SKIPPED STEP has no result. All ranks agree to skip it before any gradient gets one. Then
 * ddp_finalize returns NONFINITE, with one message on all ranks, and the step has ended; context
 * and group stay usable. Leave the optimizer out, and go on with the next step. Gradients then
 * hold:
 *   copy                          what the program has written, bad numbers too
 *   view, in place                zeros
 *   frozen, skipped, unused       what they held before (participation.h)
 *   sparse                        no rows
 * ddp_wait_param waits for the agreement, and so for all buckets. It too returns NONFINITE, and
 * ddp_finalize must still follow. The reduced callback is not called. Hooks see zeros in place of
 * bad gradients, so what they keep stays finite. ddp_hook_then is UNSUPPORTED: its function would
 * have updated the model before the ranks agree. The first ddp_wait_param of a step is collective:
 * it ends when every rank has called it or ddp_finalize.
 *
 * DRIFT. With verify_interval n, ddp_finalize compares a hash of each parameter's value over ranks
 * in every n-th synced step, the first included, before a result of the step can change it.
 * DDP_CONTEXT_VERIFY_BUFFERS compares buffers too; use it only if the program keeps them equal at
 * ddp_finalize. If values differ, the context breaks with MISMATCH on every rank. The error names
 * the step, the first parameter or buffer that differs, and the ranks in the minority. If there is
 * no majority, as with two ranks, it names all of them, and ddp_error_rank is -1. verify_interval 0
 * compares nothing. A parameter without `data` is not compared, nor is anything where ranks may
 * differ: with the hooks noop and post_local_sgd, with ddp_hook_then, and with KEEP_LOCAL_UNUSED.
 * It reads memory of the CPU only, as above. */
#ifndef DDP_CHECK_H
#define DDP_CHECK_H

#include "context.h"

#endif /* DDP_CHECK_H */
