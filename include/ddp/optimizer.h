/* optimizer.h: optimizers for programs that have none. Nobody has to use them.
 *
 *     ddp_optimizer_create(ctx, "adamw", "lr=1e-3,weight_decay=0.1", &optimizer, &error);
 *     ddp_optimizer_set(optimizer, bias, "weight_decay", 0, &error);
 *     each step:
 *         ddp_optimizer_set(optimizer, -1, "lr", rate, &error);      a schedule
 *         backward; ddp_grad_ready; ddp_finalize
 *         ddp_optimizer_step(optimizer, 1, &error);
 *         ddp_publish                                                with DDP_CONTEXT_SHARD
 *
 * Without DDP_CONTEXT_SHARD every rank updates all parameters, and with it its own pieces
 * (shard.h). The values are the same, bit for bit.
 *
 * The optimizers, with their options and the defaults of those. g is the gradient times scale, x
 * the value, and t the number of the update. Names are those of torch.optim.
 *
 *   sgd: lr (1e-3), momentum (0), weight_decay (0), nesterov (0 or 1)
 *     b = momentum b + g + weight_decay x
 *     x = x - lr b;  nesterov: x = x - lr (g + weight_decay x + momentum b)
 *   adamw (Loshchilov and Hutter 2019): lr (1e-3), beta1 (0.9), beta2 (0.999), eps (1e-8),
 *   weight_decay (0.01)
 *     m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *     a = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
 *     x = x - lr weight_decay x - lr a
 *   lamb (You et al. 2020, algorithm 2): as adamw, with eps (1e-6)
 *     u = a + weight_decay x
 *     x = x - lr |x| / |u| u                  norms over the whole parameter; 1 if either is 0
 *   muon (Jordan et al. 2024): lr (1e-3), momentum (0.95), weight_decay (0.1), nesterov (1),
 *   ns_steps (5), eps (1e-7), match_rms_adamw (0), adamw (0)
 *     b = momentum b + (1 - momentum) g
 *     u = b;  nesterov: u = momentum b + (1 - momentum) g
 *     x = x - lr weight_decay x - lr max(1, rows / columns)^(1/2) NS(u)
 *     NS: ns_steps Newton-Schulz iterations from u / max(|u|, eps), in the type of the state.
 *     match_rms_adamw: 0.2 max(rows, columns)^(1/2) instead of the root.
 *
 * muon sees a parameter of more than two dimensions as shape[0] rows. Parameters of fewer, and
 * those with adamw=1, set before the first step (embeddings, the last layer), are under adamw, with
 * adamw_lr (3e-4), adamw_beta1 (0.9), adamw_beta2 (0.95), adamw_eps (1e-10) and adamw_weight_decay
 * (0). With DDP_CONTEXT_SHARD a matrix under muon must be DDP_OWNER_WHOLE or DDP_OWNER_REPLICATED.
 *
 * State and arithmetic are f64 for values of f64, and f32 for all others. A value of f16 or bf16
 * has a MASTER of f32, which is rounded into the value. If the program changes such a value, its
 * master becomes the new value at the next step. The type of the gradient may be another.
 *
 * ON DEVICES (device.h) values and state stay there, and kernels step them, with the bits of the
 * CPU: sgd, adamw and lamb. Their work is enqueued after what is on the streams of ddp_set_stream,
 * and before what the program enqueues on them later. The host waits for lamb only, whose norms it
 * compares. If a step ends with ddp_finalize_on on another stream, the program orders that stream
 * itself. A step cannot be part of a graph.
 *
 * A parameter that no rank used in a step (ddp_param_used), that is frozen, skipped or ignored,
 * stays as it is, and so does its state and its t.
 *
 * EXPERIMENTAL: other optimizers will be added.
 */
#ifndef DDP_OPTIMIZER_H
#define DDP_OPTIMIZER_H

#include "context.h"
#include "experimental.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_optimizer ddp_optimizer;

/* Makes an optimizer of all parameters of the context, owned by the caller, with state of zeros.
 * It uses the context: after ddp_context_free, calls that need the context return INVALID_STATE. A
 * context steps one optimizer.
 *
 * name: one of those above. options: "key=value,key=value", or NULL for the defaults.
 *
 * Errors: INVALID_ARGUMENT (unknown name or key, a number out of range), MISMATCH (other ranks have
 * another name or other options), INVALID_STATE (before ddp_commit, during a step, a parameter has
 * no data), UNSUPPORTED (DDP_CONTEXT_KEEP_LOCAL_UNUSED, DDP_CONTEXT_JOIN without
 * DDP_CONTEXT_SHARD; a parameter that is sparse, factored, or not of a real floating-point type;
 * muon and a parameter on a device), OUT_OF_MEMORY, or the group's error.
 * Threads: one. Blocks: for all ranks, at most the group's timeout. Collective: yes. Callbacks: no.
 */
DDP_API ddp_status ddp_optimizer_create(ddp_context* context, const char* name, const char* options,
                                        ddp_optimizer** optimizer, ddp_error** error);

/* Changes an option of one parameter, or of all (param -1), from the next step on. Every rank sets
 * the same for all parameters, whoever owns them. Errors: INVALID_ARGUMENT (nothing has changed),
 * INVALID_STATE (during a step, the context was freed), OUT_OF_MEMORY, or with
 * ddp_optimizer_in_step what broke the group. Threads: one. Blocks: no.
 * Collective: no, but compared: see ddp_optimizer_step. Callbacks: no. */
DDP_API ddp_status ddp_optimizer_set(ddp_optimizer* optimizer, ddp_param param, const char* key,
                                     double value, ddp_error** error);

/* Updates the values once from the means that ddp_finalize gave, each multiplied by `scale`: 1, the
 * factor of a clipped norm, or 1 / the scale of the loss. After a step that all ranks skip
 * (DDP_ERROR_NONFINITE) or discard there is nothing to apply: do not call it.
 *
 * Ranks compare all options, `scale`, and without DDP_CONTEXT_SHARD every t, with the next
 * operation of the context, which is that of ddp_publish or of the next step. If they differ, it
 * fails with MISMATCH.
 *
 * Errors: INVALID_ARGUMENT (scale is not finite, or negative), INVALID_STATE (no step has ended
 * since the last call, or without means; after ddp_publish; unsynced steps wait;
 * ddp_context_set_group has made other pieces; a matrix under muon has several owners; an earlier
 * call failed in the middle; the context was freed), UNSUPPORTED (DDP_CONTEXT_JOIN: call
 * ddp_optimizer_in_step): then nothing has changed. OUT_OF_MEMORY, or the group's error: then later
 * calls are refused. Threads: one. Blocks: only lamb, on devices and where several ranks own
 * elements of one parameter, at most the group's timeout. Collective: in the latter case yes,
 * otherwise no, but compared. Callbacks: no. */
DDP_API ddp_status ddp_optimizer_step(ddp_optimizer* optimizer, double scale, ddp_error** error);

/* Steps the optimizer in each synced step from the next one on, instead of ddp_optimizer_step and
 * ddp_publish: bucket by bucket as with ddp_set_update (shard.h), whose rules hold and which it
 * replaces. After ddp_finalize ddp_wait_value gives the new values. scale: as there. Call it again
 * to change that; options change by ddp_optimizer_set. The context keeps the optimizer until
 * ddp_set_update takes it out, also after ddp_optimizer_free.
 *
 * Ranks compare all options and `scale` in the next step, before any value has changed. If they
 * differ, it fails with MISMATCH.
 *
 * Errors: INVALID_ARGUMENT (scale is not finite, or negative), INVALID_STATE (no
 * DDP_CONTEXT_SHARD; during a step; ddp_context_set_group has made other pieces; several ranks own
 * elements of a matrix under muon or of a parameter under lamb; ddp_optimizer_step failed in the
 * middle; the context was freed), UNSUPPORTED (as of ddp_set_update), or what broke the group: then
 * nothing has changed. Threads: one. Blocks: no. Collective: no, but compared. Callbacks: no. */
DDP_API ddp_status ddp_optimizer_in_step(ddp_optimizer* optimizer, double scale, ddp_error** error);

/* State of elements of one parameter: "momentum_buffer", "exp_avg", "exp_avg_sq", "master", or
 * "step", which is t. */
typedef struct ddp_optimizer_state {
    size_t struct_size;
    ddp_param param;
    ddp_dtype dtype;
    int64_t first;     /* elements of the parameter before them */
    int64_t count;     /* elements; of "step": 1 */
    const char* name;  /* lives as long as libddp */
    void* data;        /* may be read and written between steps; valid until ddp_optimizer_free */
    ddp_device device; /* that has data; the order is that of its stream of ddp_set_stream */
} ddp_optimizer_state;

/* The number of states of this rank, for all of its pieces. It grows where ddp_optimizer_set asks
 * for more (momentum). -1 for NULL. Threads: any between steps. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API int32_t ddp_optimizer_state_count(ddp_optimizer* optimizer);

/* State `index`, in the order of parameters. The caller sets state->struct_size. To save a state:
 * copy each with its parameter, name, first and count. To load one: make the optimizer, and write
 * all of them before the first step, on every rank. Errors: INVALID_ARGUMENT. Threads: any between
 * steps. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_optimizer_state_get(ddp_optimizer* optimizer, int32_t index,
                                           ddp_optimizer_state* state, ddp_error** error);

/* NULL is allowed. Threads: any, once. Blocks: no. Collective: no. Callbacks: no. */
DDP_API void ddp_optimizer_free(ddp_optimizer* optimizer);

DDP_EXTERN_C_END

#endif /* DDP_OPTIMIZER_H */
