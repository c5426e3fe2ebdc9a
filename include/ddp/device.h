/* device.h: parameters in the memory of devices other than the CPU.
 *
 *     desc.device = (ddp_device){DDP_DEVICE_CUDA, 1};   for each parameter; a model may lie on several devices
 *     ddp_register_param; ddp_commit
 *     each step:
 *         forward; backward enqueued on `stream`, and for each gradient:  ddp_grad_ready_on(ctx, param, stream, &error);
 *         ddp_finalize_on(ctx, stream, &error);          the optimizer may follow on `stream` at once
 *         optimizer enqueued on `stream`
 *
 * A kind of device is a module, libddp-cuda.so for DDP_DEVICE_CUDA, which is loaded when it is first asked for. Buckets lie on
 * the device of their parameters, and libddp works there on streams of its own, which it orders with the caller's by events.
 * It never synchronises a device. Where the group's backend takes no device memory, data goes through pinned memory of the
 * host, chunk by chunk.
 *
 * STREAMS are passed as void*: a cudaStream_t for DDP_DEVICE_CUDA, of the device of the parameter. NULL is the device's
 * legacy default stream. A stream that is being captured into a graph is refused (INVALID_STATE): communication cannot be
 * part of a graph; call libddp between graphs. Functions that take no stream are ordered with the stream of ddp_set_stream.
 *
 * ddp_finalize and ddp_wait_param wait on the host until the gradients are there; ddp_finalize_on, ddp_finalize_enqueue and
 * ddp_wait_param_on make streams wait. A context may hold parameters of the CPU as well. Sparse and factored ones must be of the CPU.
 */
#ifndef DDP_DEVICE_H
#define DDP_DEVICE_H

#include "types.h"

DDP_EXTERN_C_BEGIN

/* *devices: how many devices of this kind there are, at least 1. The CPU is one.
 * Errors: UNSUPPORTED (no module for this kind: says where it was looked for), UNAVAILABLE (no device: says why).
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_device_count(ddp_device_kind kind, int32_t* devices, ddp_error** error);

/* A line about a device: its name, memory, driver. *text is owned by the caller and freed with ddp_text_free (plan.h).
 * Errors: as ddp_device_count; UNSUPPORTED also if there is no such index.
 * Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_device_describe(ddp_device_kind kind, int32_t index, char** text, ddp_error** error);

/* The stream with which functions of this context that take none are ordered on this device, until another is set: what
 * ddp_commit, ddp_step_begin, ddp_mark_unused, ddp_grad_ready, ddp_average_parameters and the like read and write there
 * comes after what is on the stream when they are called, and before what is enqueued on it after they return. At first
 * NULL, the legacy default stream. It must live until another is set or the context is freed. Where views are new
 * (ddp_commit, a ddp_step_begin that moves them) the host waits until they may be used by every stream.
 * Errors: INVALID_ARGUMENT (the CPU), INVALID_STATE (in the middle of a step), UNSUPPORTED (no such device), UNAVAILABLE.
 * Threads: one. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_stream(ddp_context* context, ddp_device_kind kind, int32_t index, void* stream,
                                  ddp_error** error);

/* ddp_grad_ready for a parameter on a device: this step's gradient is complete when `stream` comes to this point. The
 * stream must live until the end of the step. For a parameter of the CPU `stream` is ignored. Errors: as ddp_grad_ready;
 * INVALID_STATE also for a stream that is being captured.
 * Threads: any, several at once for different parameters. Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_grad_ready_on(ddp_context* context, ddp_param param, void* stream, ddp_error** error);

/* ddp_finalize that waits for no device: when it returns everything is enqueued, and what is enqueued from then on on each
 * device's stream of ddp_set_stream sees the reduced gradients of that device. What was on that stream before comes before the
 * reduction, for gradients that were not announced. Gradients on the CPU are reduced when it returns. A callback of
 * ddp_set_reduced_callback runs when its gradient is in order on that stream.
 *
 * The host still waits for other ranks where their operations are compared before they run (not with
 * DDP_GROUP_NO_MATCH_CHECK), where device memory goes through the host, and where the step ends with an exchange of which
 * parameters were used. An operation that fails or times out later breaks the group: the next call says so.
 * Errors: as ddp_finalize; INVALID_STATE also for a stream that is being captured.
 * Threads: one, no ddp_grad_ready at the same time. Blocks: as said. Collective: yes when synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize_enqueue(ddp_context* context, ddp_error** error);

/* The same with this stream, for a context whose parameters lie on one device (and the CPU). Errors and facts as
 * ddp_finalize_enqueue; INVALID_ARGUMENT also if they lie on several. */
DDP_API ddp_status ddp_finalize_on(ddp_context* context, void* stream, ddp_error** error);

/* ddp_wait_param that waits for no device, so that the optimizer follows parameter by parameter while later buckets still
 * travel: when it returns, what is enqueued from then on on `stream`, of the parameter's device, sees the final gradient. For a
 * parameter of the CPU it is ddp_wait_param, and `stream` is ignored. In an unsynced step there is nothing to wait for: the gradient
 * is in the order of the stream on which it was announced, and of no other. ddp_finalize, or one of the two above, must follow. The
 * program sees to it that what it enqueues there comes before what the next step does with the gradient, ddp_step_begin
 * included.
 *
 * Callbacks of ddp_set_reduced_callback run as in ddp_finalize_enqueue, on this device in the order of `stream`. The host
 * still waits where ddp_finalize_enqueue says so, as far as that is about this bucket and those before it; for all of them if
 * this rank did not use the parameter.
 * Errors: as ddp_wait_param; INVALID_STATE also for a stream that is being captured.
 * Threads: one. Blocks: as said. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_wait_param_on(ddp_context* context, ddp_param param, void* stream, ddp_error** error);

/* The stream of a bucket on a device, in a communication hook and its continuations: the gradients are there in its order,
 * and so must the result be. Collectives that the hook starts on memory of this device are enqueued in its order, and their continuations
 * run when they are enqueued. NULL for a bucket of the CPU, or NULL.
 * Threads: any, while the bucket is valid. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API void* ddp_bucket_stream(const ddp_bucket* bucket);

DDP_EXTERN_C_END

#endif /* DDP_DEVICE_H */
