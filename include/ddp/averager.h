/* averager.h: averaging of models that are trained apart for some steps, for post-local SGD (builtin_hooks.h).
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

/* Averages the values (ddp_param_desc.data) of all floating-point parameters over `group`, NULL: the context's, in place.
 * Integers, ignored parameters and those without data are left alone. Errors: INVALID_STATE (before ddp_commit, in the
 * middle of a step), or what broke the group.
 * Threads: one. Blocks: for all ranks of the group, at most its timeout an exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_average_parameters(ddp_context* context, ddp_group* group, ddp_error** error);

/* An averager. With one period: the periodic model averager, over all ranks. With several: the hierarchical one: every
 * periods[i] steps, models are averaged over group_sizes[i] consecutive ranks; where several periods end at once, only
 * the longest counts. periods: at least 1, growing, each a multiple of the one before. group_sizes: growing, each
 * divides the next; the last is the world size. NULL: only if count is 1. warmup_steps: no averaging in the first so
 * many steps. *averager is owned by the caller; it uses the context, which must live longer.
 *
 * Steps count from 0, as in PyTorch. From step warmup_steps on, a single period averages when (step - warmup_steps) is a
 * multiple of it, at step warmup_steps for the first time; several periods look at step itself. The two ways agree where
 * warmup_steps is a multiple of the longest period.
 *
 * Errors: INVALID_ARGUMENT, INVALID_STATE (before ddp_commit, in the middle of a step), or what broke the group.
 * Threads: one. Blocks: as ddp_group_split, where smaller groups are made. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_averager_create(ddp_context* context, const int64_t* periods, const int32_t* group_sizes,
                                       size_t count, int64_t warmup_steps, ddp_averager** averager, ddp_error** error);
/* NULL is allowed. Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_averager_free(ddp_averager* averager);

/* Counts a step and averages if it is time. *ranks (may be NULL): over how many ranks; 0: not this time. A step that
 * fails is not counted. Errors and facts as ddp_average_parameters; INVALID_STATE also if there are several periods and
 * the context got another group after the averager was made. */
DDP_API ddp_status ddp_averager_step(ddp_averager* averager, int32_t* ranks, ddp_error** error);

/* How many steps were counted, to save and restore with a checkpoint. -1 for NULL. Errors: INVALID_ARGUMENT (negative).
 * Threads: one. Blocks: no. Collective: no, but every rank must set the same. Callbacks: no. */
DDP_API int64_t ddp_averager_get_step(const ddp_averager* averager);
DDP_API ddp_status ddp_averager_set_step(ddp_averager* averager, int64_t step, ddp_error** error);

DDP_EXTERN_C_END

#endif /* DDP_AVERAGER_H */
