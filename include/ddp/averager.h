/* averager.h: averages models that ranks train apart for some steps, for post-local SGD (builtin_hooks.h).
 *
 *     ddp_use_hook(ctx, "post_local_sgd", "start=100,subgroup=4", &error);
 *     ddp_averager_create(ctx, periods, sizes, count, 100, &averager, &error);
 *     each step: ... ddp_finalize; optimizer; ddp_averager_step(averager, NULL, &error);
 */
#ifndef DDP_AVERAGER_H
#define DDP_AVERAGER_H

#include "types.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_averager ddp_averager;

/* Averages the values (ddp_param_desc.data) of all floating-point and complex parameters over `group`, in place.
 * group NULL: the context's group. Integers, ignored parameters and parameters without data stay as they are.
 * Errors: INVALID_STATE (before ddp_commit, during a step), or the group's error.
 * Threads: one. Blocks: for all ranks of the group, at most its timeout an exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_average_parameters(ddp_context* context, ddp_group* group, ddp_error** error);

/* Creates an averager, owned by the caller. It uses the context, which must outlive it.
 *
 * periods: growing; the first is at least 1, and each is a multiple of the one before.
 * group_sizes: growing; each divides the next, and the last is the world size. NULL is allowed if count is 1.
 * count: 1 to 63. One period: every periods[0] steps, over all ranks (the periodic model averager). Several: every
 *     periods[i] steps, over group_sizes[i] consecutive ranks (the hierarchical one). If several periods end at once,
 *     only the longest counts.
 * warmup_steps: no averaging in the first warmup_steps steps.
 *
 * Steps count from 0, as in PyTorch. From step warmup_steps on, a single period averages when (step - warmup_steps) is
 * a multiple of it: first at step warmup_steps. Several periods look at the step number alone. Both rules agree if
 * warmup_steps is a multiple of the longest period.
 *
 * Errors: INVALID_ARGUMENT, INVALID_STATE (before ddp_commit, during a step), or the group's error.
 * Threads: one. Blocks: as ddp_group_split, if it needs smaller groups. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_averager_create(ddp_context* context, const int64_t* periods, const int32_t* group_sizes,
                                       size_t count, int64_t warmup_steps, ddp_averager** averager, ddp_error** error);

/* Counts a step, and averages if it is due. *ranks (may be NULL): over how many ranks it averaged; 0 if it did not. A
 * step that fails is not counted. Errors and facts as ddp_average_parameters; INVALID_STATE also if there are several
 * periods and the context got another group since ddp_averager_create, or if the context was freed. */
DDP_API ddp_status ddp_averager_step(ddp_averager* averager, int32_t* ranks, ddp_error** error);

/* The number of counted steps, to save and restore with a checkpoint. -1 for NULL. Every rank must set the same.
 * Errors: INVALID_ARGUMENT (negative).
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API int64_t ddp_averager_get_step(const ddp_averager* averager);
DDP_API ddp_status ddp_averager_set_step(ddp_averager* averager, int64_t step, ddp_error** error);

/* NULL is allowed. Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_averager_free(ddp_averager* averager);

DDP_EXTERN_C_END

#endif /* DDP_AVERAGER_H */
