/* averager.h: averages models that ranks train apart for some steps, for post-local SGD
 * (builtin_hooks.h), SlowMo and DiLoCo.
 *
 *     ddp_use_hook(ctx, "post_local_sgd", "start=100,subgroup=4", &error);
 *     ddp_averager_create(ctx, periods, sizes, count, 100, &averager, &error);
 *     ddp_averager_set_outer(averager, &options, &error);      only for an outer optimizer
 *     each step: ... ddp_finalize; optimizer; ddp_averager_step(averager, NULL, &error);
 *
 * EXPERIMENTAL: the outer optimizer may become an object of its own, with other options.
 */
#ifndef DDP_AVERAGER_H
#define DDP_AVERAGER_H

#include "experimental.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_averager ddp_averager;

/* Averages the values (ddp_param_desc.data) of all floating-point and complex parameters over
 * `group`, in place. group NULL: the context's group. Integers and ignored parameters stay as they
 * are. Errors: INVALID_STATE (before ddp_commit, during a step; a floating-point or complex
 * parameter has no data and is not DDP_PARAM_IGNORED), or the group's error. Threads: one. Blocks:
 * for all ranks of the group, at most its timeout an exchange. Collective: yes. Callbacks: no. */
DDP_API ddp_status ddp_average_parameters(ddp_context* context, ddp_group* group,
                                          ddp_error** error);

/* Creates an averager, owned by the caller. It uses the context: after ddp_context_free, calls that
 * need the context return INVALID_STATE.
 *
 * periods: growing; the first is at least 1, and each is a multiple of the one before. group_sizes:
 * growing; each divides the next, and the last is the world size. NULL is allowed if count is 1.
 * count: 1 to 63. One period: every periods[0] steps, over all ranks (the periodic model averager).
 * Several: every
 *     periods[i] steps, over group_sizes[i] consecutive ranks (the hierarchical one). If several
 *     periods end at once,
 *     only the longest counts.
 * warmup_steps: no averaging in the first warmup_steps steps.
 *
 * Steps count from 0, as in PyTorch. From step warmup_steps on, a single period averages when (step
 * - warmup_steps) is a multiple of it: first at step warmup_steps. Several periods look at the step
 * number alone. Both rules agree if warmup_steps is a multiple of the longest period.
 *
 * Errors: INVALID_ARGUMENT, INVALID_STATE (as ddp_average_parameters), or the group's error.
 * Threads: one. Blocks: as ddp_group_split, if it needs smaller groups. Collective: yes. Callbacks:
 * no. */
DDP_API ddp_status ddp_averager_create(ddp_context* context, const int64_t* periods,
                                       const int32_t* group_sizes, size_t count,
                                       int64_t warmup_steps, ddp_averager** averager,
                                       ddp_error** error);

/* Counts a step, and averages if it is due. *ranks (may be NULL): over how many ranks it averaged
 * what it changed; 0 if it changed nothing. A step that fails is not counted, and x and u are those
 * of the last outer step. Errors and facts as ddp_average_parameters;
 * INVALID_STATE also if there are several periods and the context got another group since
 * ddp_averager_create, or if the context was freed. */
DDP_API ddp_status ddp_averager_step(ddp_averager* averager, int32_t* ranks, ddp_error** error);

/* The number of counted steps, to save and restore with a checkpoint. -1 for NULL. Every rank must
 * set the same. Errors: INVALID_ARGUMENT (negative). Threads: one. Blocks: no. Collective: no.
 * Callbacks: no. */
DDP_API int64_t ddp_averager_get_step(const ddp_averager* averager);
DDP_API ddp_status ddp_averager_set_step(ddp_averager* averager, int64_t step, ddp_error** error);

/* An outer optimizer steps whenever an averager has averaged over all ranks. With x the outer
 * parameters, a the average and d = x - a:
 *
 *     SGD        u = momentum * u + d                        x = x - learning_rate * u
 *     NESTEROV   u = momentum * u + d                        x = x - learning_rate * (d + momentum * u)
 *     SLOWMO     u = momentum * u + d / inner_learning_rate  x = x - learning_rate * inner_learning_rate * u
 *
 * Then every rank continues from x, with the same bits. SGD and NESTEROV are torch.optim.SGD with d
 * as the gradient. NESTEROV is the outer optimizer of DiLoCo (Douillard et al., 2023). SLOWMO is
 * that of SlowMo (Wang et al., ICLR 2020, section 2.2): learning_rate is alpha there, momentum is
 * beta, and inner_learning_rate is gamma. With momentum 0 and learning_rate 1 each of them is the
 * plain average, without any error of rounding. */
typedef int32_t ddp_outer_kind;
enum { DDP_OUTER_NONE = 0, DDP_OUTER_SGD = 1, DDP_OUTER_NESTEROV = 2, DDP_OUTER_SLOWMO = 3 };

typedef struct ddp_outer_options {
    size_t struct_size;
    ddp_outer_kind kind; /* (DDP_OUTER_NESTEROV) */
    uint32_t reserved0;
    double learning_rate; /* finite, at least 0 (0.7) */
    double momentum;      /* 0 <= momentum < 1 (0.9) */
    /* SLOWMO: of the model's own optimizer; finite, more than 0 (0). Others ignore it */
    double inner_learning_rate;
    int32_t fragments;    /* STREAMING: divides the period (1) */
    ddp_dtype sent_dtype; /* DDP_BF16, DDP_U8: outer gradients; 0: values in their own type (0) */
    int64_t delay;        /* in steps; 0 <= delay < period / fragments (0) */
    double alpha;         /* 0 <= alpha < 1 (0) */
} ddp_outer_options;

/* STREAMING (Streaming DiLoCo, Douillard et al., 2025). The parameters form `fragments` fragments,
 * which take turns: one every period / fragments steps, so each fragment has a turn in a period. In
 * its turn a copy of the fragment leaves for the other ranks, and the rank goes on with its steps.
 * `delay` steps later ddp_averager_step waits for the mean, does the outer step of the fragment,
 * and mixes:
 *
 *     parameter = alpha * parameter + (1 - alpha) * x
 *
 * alpha is the weight of the rank's own parameter, as in the paper: with 0 the parameter becomes x,
 * without the rank's own steps since the copy. x and u have the same bits on every rank. With
 * several fragments, a delay or an alpha the parameters differ between ranks, and
 * ddp_averager_go_back makes them x. At most one fragment is on its way. One fragment with delay 0
 * and alpha 0 is the whole model at once.
 *
 * Fragments are runs of parameters in the order of registration, of which the largest has as few
 * bytes as possible, or those of ddp_averager_set_fragments. A copy takes as many bytes as its
 * fragment, where the parameters are. With DDP_BF16 the outer gradients d travel instead, rounded.
 * With DDP_U8 they travel in 8 bits: a byte an element, and 4 for each block of 256, as the hook
 * quantize sends int8 (docs/hooks.md, "Sums in 8 bits"). Each rank rounds its d to nearest, the sum
 * is in f32 in rank order (f64 for f64), and the mean is rounded once more. x and u get the rounded
 * mean, the same on every rank; what rounding takes is lost. A NaN or an infinity in d makes the
 * mean of that parameter NaN, in runs of 25 MiB. The copy of a fragment is then of f32 (f64).
 *
 * A fragment on its way is dropped, and waits for its next turn, if the context gets another
 * group, and by ddp_averager_set_step, ddp_averager_state_load, ddp_averager_go_back,
 * ddp_averager_set_fragments, and ddp_averager_set_outer with another kind, delay or number of
 * fragments. If only some ranks drop it, the next turn fails with MISMATCH. */

/* Fills `options` with the defaults. Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void ddp_outer_options_init_sized(ddp_outer_options* options, size_t size);
static inline void ddp_outer_options_init(ddp_outer_options* options) {
    ddp_outer_options_init_sized(options, sizeof *options);
}

/* Sets the outer optimizer of an averager. options NULL: the defaults, which are those of DiLoCo.
 * Every rank must set the same between the same steps. If ranks differ, the next average over all
 * ranks fails with MISMATCH.
 *
 * The next average over all ranks is plain, of all parameters at once, and becomes x; u begins at
 * zero. From then on each is followed by an outer step. Averages over fewer ranks stay plain.
 * Warm-up steps (ddp_averager_create) come before x.
 *
 * With the kind that is set already, only the rates change: x and u stay, unless momentum becomes
 * 0, which forgets u. So a program that changes its learning rate calls this again, for SLOWMO with
 * each change of the inner one. Another number of fragments cuts them anew. Another kind begins
 * anew, and DDP_OUTER_NONE ends it.
 *
 * The parameters are those of ddp_average_parameters. A complex number is two numbers. x and u are
 * in CPU memory, in f64 for f64 and c128, and in f32 for all other types: 4 or 8 bytes a number for
 * x, and again for u unless momentum is 0. x is rounded where it becomes a parameter of f16 or
 * bf16, and kept unrounded. If parameters are on a device, the average goes to the CPU and x comes
 * back, and ddp_averager_step waits for both. A NaN in an average stays in u.
 *
 * Errors: INVALID_ARGUMENT (unknown kind, a number out of range, more fragments than parameters or
 * a number of them that does not divide the period), UNSUPPORTED (several periods with fragments,
 * delay, alpha or sent_dtype), INVALID_STATE (during a step; the context was freed), OUT_OF_MEMORY.
 * ddp_averager_step then also has TIMEOUT and UNAVAILABLE (a device). Threads: one. Blocks: no.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_averager_set_outer(ddp_averager* averager, const ddp_outer_options* options,
                                          ddp_error** error);

/* Says which parameters form which fragment; otherwise runs of them do. Fragments whose parameters
 * are spread over the depth of the model, such as layers 0, 3, 6 and 1, 4, 7, are the strided
 * pattern of the paper.
 *
 * fragment_of[i]: the fragment of parameter i, from 0 to options.fragments - 1, for each of `count`
 * registered parameters. The numbers of parameters that are not averaged do not count. Every rank
 * must set the same. Errors: INVALID_ARGUMENT (count; a number out of range; a fragment without a
 * parameter), INVALID_STATE (no outer optimizer; during a step; the context was freed). Threads:
 * one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_averager_set_fragments(ddp_averager* averager, const int32_t* fragment_of,
                                              size_t count, ddp_error** error);

/* Takes the model back to its last outer step: every parameter becomes its outer parameter x, and
 * the number of counted steps is that right after the last outer step, of any fragment. So all
 * ranks have the same parameters, at the end of the training for example. Until there is an x
 * nothing changes. Call it on every rank after the same step. Errors: INVALID_STATE (no outer
 * optimizer; during a step; the context was freed), TIMEOUT and UNAVAILABLE (a device). Threads:
 * one. Blocks: for devices. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_averager_go_back(ddp_averager* averager, ddp_error** error);

/* Saves the number of counted steps, x, u, and the mean of a fragment on its way, for which it
 * waits. They are the same on every rank after the same step, so one file is enough for all. The
 * rates, the fragments and the parameters themselves are not in it. x is in it by the names
 * "outer:NAME".
 *
 * *data: `*size` bytes in the safetensors format, in the byte order of this machine. The caller
 * owns it and frees it with ddp_free. Errors: INVALID_STATE (during a step, the context was freed),
 * OUT_OF_MEMORY, the group's error. Threads: one. Blocks: for a fragment on its way, until the
 * other ranks have sent theirs, at most the group's timeout. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_averager_state_save(ddp_averager* averager, void** data, size_t* size,
                                           ddp_error** error);

/* Loads a saved state, on each rank of any world size. Set the outer optimizer first, with the same
 * kind. Together with each rank's parameters of the same moment, training continues with the same
 * bits. If they differ between ranks and were not saved, call ddp_averager_go_back: training
 * continues from x. On an error nothing has changed. Errors: INVALID_ARGUMENT (not such a
 * file, cut short or damaged; of another kind; of parameters with other names, shapes or types; a
 * fragment is on its way that has other parameters here), INVALID_STATE (during a step, the context
 * was freed), OUT_OF_MEMORY. Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_averager_state_load(ddp_averager* averager, const void* data, size_t size,
                                           ddp_error** error);

/* NULL is allowed. Threads: any, once. Blocks: at most 1 s. Collective: no. Callbacks: no. */
DDP_API void ddp_averager_free(ddp_averager* averager);

DDP_EXTERN_C_END

#endif /* DDP_AVERAGER_H */
