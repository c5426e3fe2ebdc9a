/* builtin_hooks.h: communication hooks that come with libddp, and the state that some of them keep.
 *
 * They use only what hook.h offers to everybody. One hook is installed at a time. Installing
 * another replaces it, between steps. If ranks install different hooks, the next step fails with
 * DDP_ERROR_MISMATCH.
 *
 * LOSSY HOOKS. powersgd, onebit, topk, chunks and, if asked for, quantize have error feedback: this
 * rank keeps what a step leaves out, and adds it to the next step's gradient. It keeps this for
 * each parameter, so that another layout of the buckets changes nothing (but the rank that keeps
 * what quantize leaves out of sums, and what chunks chooses). While this rank has no gradient for a
 * parameter (unused, frozen, skipped), what it keeps for it waits.
 *
 * If a parameter's gradient holds a NaN or an infinity on any rank, all of it becomes NaN on every
 * rank. What is kept for the parameter stays as it was before that step. Gradients of integers and
 * complex numbers, and of sparse and factored parameters, are reduced as without a hook. f16 and
 * bf16 are computed in f32.
 */
#ifndef DDP_BUILTIN_HOOKS_H
#define DDP_BUILTIN_HOOKS_H

#include "hook.h"

DDP_EXTERN_C_BEGIN

/* Installs a hook by name. options: "key=value,key=value". NULL or "": the defaults, in
 * parentheses.
 *
 *   name                   what ranks send                                     options
 *   allreduce              the gradients: libddp's default
 *   fp16, bf16             the gradients in that precision
 *   fp16(NAME), bf16(NAME) what NAME sends for gradients in that precision     those of NAME
 *   powersgd               two thin matrices for each matrix                   rank (1), start (1000), min_rate (2),
 *                                                                              seed (0),
 *                                                                              error_feedback (1),
 *                                                                              warm_start (1),
 *                                                                              epsilon (0),
 *                                                                              orthogonalization
 *                                                                              (auto),
 *                                                                              stats_interval
 *                                                                              (10000)
 *   batched_powersgd       the same for each bucket as one square matrix       the same
 *   quantize               8 bits an element, a scale for each block; each     type (int8), block (256),
 *                          rank adds up a share                                rounding (nearest),
 *                                                                              error_feedback (0),
 *                                                                              min_elements (0)
 *   quantize_per_tensor    8 bits an element, a range for each parameter       min_elements (0)
 *   quantize_per_channel   8 bits an element, a range for each block           block (512), min_elements (0)
 *   onebit                 1 bit an element, two levels for each block         block (512), min_elements (1024)
 *   topk                   the largest elements with their places              ratio (0.01), min_elements (1024)
 *   chunks                 the largest chunks of each bucket, the same on       chunk (512), ratio (0.1),
 *                          every rank                                          momentum (0), warmup (1000)
 *   post_local_sgd         the gradients; from step `start` on only within     start (1000), subgroup (1)
 *                          `subgroup` consecutive ranks: see averager.h
 *   noop                   nothing: each rank keeps its own gradients. Shows what communication costs
 *
 * docs/hooks.md explains every option. Parameters with fewer than min_elements elements are reduced
 * as without a hook. Every rank must install the same hook with the same options. chunks reduces
 * gradients in CPU memory: a step with others fails with DDP_ERROR_UNSUPPORTED. post_local_sgd
 * with a subgroup that is neither 1 nor the world size is collective, and blocks as
 * ddp_group_split. Errors: INVALID_ARGUMENT (unknown name or option, value out of range; the old
 * hook stays), INVALID_STATE (during a step). Threads: one. Blocks: no, except as above.
 * Collective: no, except as above. Callbacks: no. */
DDP_API ddp_status ddp_use_hook(ddp_context* context, const char* name, const char* options,
                                ddp_error** error);

/* The installed hook's name: "powersgd", "fp16(allreduce)", "user". Valid until another is
 * installed. NULL for NULL. Threads: any between steps. Blocks: no. Collective: no. Callbacks: yes.
 */
DDP_API const char* ddp_hook_name(const ddp_context* context);

enum {
    /* Load only what is the same on every rank, for another world size. What this rank had kept of
     * its own gradients starts at zero. */
    DDP_HOOK_STATE_SHARED_ONLY = 1u << 0
};

/* Saves the state of this rank's hook. Every rank must save its own. If a hook of the same name
 * loads it, in a context with the same parameters, training continues as if it had never stopped.
 * Hooks of whole buckets also need the same plan to continue bit for bit (plan.h).
 *
 * *data: `*size` bytes in the safetensors format, readable by its tools, in the byte order of this
 * machine. The caller owns it and frees it with ddp_free. A hook without state gives a file without
 * arrays. The file does not depend on where the gradients lay: a context with parameters of the CPU
 * loads what was saved with parameters on a device, and the other way round.
 *
 * Where state lies on a device, the call waits until the device has reached the end of the last
 * step. Errors: INVALID_STATE (before ddp_commit, during a step), OUT_OF_MEMORY, TIMEOUT and
 * UNAVAILABLE (a device). Threads: one. Blocks: for devices, at most the group's timeout for each
 * array. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_hook_state_save(ddp_context* context, void** data, size_t* size,
                                       ddp_error** error);

/* Loads a saved state. flags: DDP_HOOK_STATE_*. Every rank must load between the same steps. On an
 * error the hook is as it was before. Errors: INVALID_ARGUMENT (not such a file, cut short or
 * damaged; of another hook, version, world or rank; of parameters with other names, shapes or
 * types), INVALID_STATE, OUT_OF_MEMORY, UNSUPPORTED (unknown flags), TIMEOUT and UNAVAILABLE (a
 * device). Threads: one. Blocks: as ddp_hook_state_save. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_hook_state_load(ddp_context* context, const void* data, size_t size,
                                       uint32_t flags, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_BUILTIN_HOOKS_H */
