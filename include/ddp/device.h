/* device.h: parameters in the memory of devices other than the CPU.
 *
 *     desc.device = (ddp_device){DDP_DEVICE_CUDA, 1};   for each parameter; a model may lie on several devices
 *     ddp_register_param; ddp_commit
 *     each step:
 *         forward; backward enqueued on `stream`; for each gradient:  ddp_grad_ready_on(ctx, param, stream, &error);
 *         ddp_finalize_on(ctx, stream, &error);          the optimizer may follow on `stream` at once
 *         optimizer enqueued on `stream`
 *
 * Each kind of device is a module, libddp-cuda.so for DDP_DEVICE_CUDA, which libddp loads when it
 * is first needed. Buckets lie on the device of their parameters. libddp works there on its own
 * streams, orders them with the caller's by events, and never synchronises a device. If the group's
 * backend takes no device memory, data goes through pinned host memory, chunk by chunk.
 *
 * STREAMS. A stream is a void*: for DDP_DEVICE_CUDA a cudaStream_t of the parameter's device. NULL
 * is the device's legacy default stream. Functions that take no stream use that of ddp_set_stream.
 *
 * GRAPHS. A whole synced step may be captured into a graph (cudaStreamBeginCapture), and other work
 * with it: ddp_step_begin, ddp_grad_ready_on, ddp_finalize_async, ddp_wait_param_on, and
 * ddp_finalize_on or ddp_finalize_enqueue, all on streams of one capture, that of ddp_set_stream
 * included. The capture reduces nothing, and counts as a step. Every rank must capture the same
 * steps; ddp_finalize_on compares that, and waits for the other ranks. Nothing else of the group
 * may run meanwhile. Each launch of the graph then reduces what is in the same memory again.
 *
 * libddp sees no launch: it neither counts it nor compares ranks. Every rank must launch its graphs
 * in the same order, and streams that libddp is given later must come after them. After
 * ddp_set_frozen, ddp_use_hook, another plan or group, capture again: launches go on with what was
 * there. Once the group of several ranks has broken, launches leave NaN in all gradients (in
 * integers -1). Another rank may have used wrong numbers before it hears of it, so ddp_barrier must
 * return OK after the last launch, before parameters are saved or used elsewhere.
 *
 * Run two steps at least outside of a graph before. The context must have parameters on one device,
 * a backend with DDP_BACKEND_CAPTURES (nccl without algorithm=direct and
 * DDP_GROUP_DETERMINISTIC), or one rank; the hook allreduce, fp16 or bf16; and nothing that the
 * host decides from step to step: no DDP_CONTEXT_FIND_UNUSED, weights, join, buffers,
 * rebuild_interval, norms or callbacks. Otherwise the first gradient is UNSUPPORTED, and the
 * message says why. The memory of the buckets and the communicator live as long as the graph, also
 * after the context and the group. Destroy the graph before a process makes another group over
 * nccl. A context whose capture fails in the middle of a step must be freed, which breaks its
 * group.
 *
 * ddp_finalize and ddp_wait_param wait on the host until the gradients are there. ddp_finalize_on,
 * ddp_finalize_enqueue and ddp_wait_param_on make streams wait. A context may also hold CPU
 * parameters; sparse and factored ones must be on the CPU.
 *
 * EXPERIMENTAL: functions with a stream may merge, once there is a second kind of device.
 */
#ifndef DDP_DEVICE_H
#define DDP_DEVICE_H

#include "experimental.h"
#include "types.h"

DDP_EXTERN_C_BEGIN

/* *devices: the number of devices of this kind, at least 1. The CPU counts as one device. Errors:
 * UNSUPPORTED (no module for this kind; says where libddp looked), UNAVAILABLE (no device; says
 * why). Threads: any. Blocks: no. Collective: no. Callbacks: yes. */
DDP_API ddp_status ddp_device_count(ddp_device_kind kind, int32_t* devices, ddp_error** error);

/* ddp_grad_ready for a parameter on a device: this step's gradient is complete when `stream`
 * reaches this point. The stream must live until the end of the step. For a CPU parameter `stream`
 * is ignored. Errors: as ddp_grad_ready; INVALID_STATE and UNSUPPORTED also for a step that is
 * partly captured, or cannot be (GRAPHS).
 * Threads: any, several at once for different parameters. Blocks: as ddp_grad_ready. Collective:
 * no. Callbacks: no. */
DDP_API ddp_status ddp_grad_ready_on(ddp_context* context, ddp_param param, void* stream,
                                     ddp_error** error);

/* ddp_put for a parameter on a device: copies a gradient from memory of that device to its place,
 * and announces it, both in the order of `stream`. What the program enqueues on `stream` afterwards
 * may overwrite `gradient`, so it suits a library that reuses memory in the order of its stream.
 * For a CPU parameter it is ddp_put, and `stream` is ignored. Errors: as ddp_put; INVALID_ARGUMENT
 * also for memory of another device or of the CPU, INVALID_STATE also for a stream that is being
 * captured. Threads: any, several at once for different parameters. Blocks: as ddp_grad_ready.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_put_on(ddp_context* context, ddp_param param, const void* gradient,
                              uint32_t flags, void* stream, ddp_error** error);

/* The reverse of ddp_put_on, between steps: copies the gradient from its place to `memory` of the
 * same device, which has room for as many elements, in the order of `stream`. The copy comes after
 * the mean of the last step, and all that libddp enqueues later comes after the copy. For a CPU
 * parameter libddp copies at once, and `stream` is ignored. Errors: INVALID_STATE (during a step;
 * a stream that is being captured), INVALID_ARGUMENT (no such parameter, sparse or ignored; memory
 * of elsewhere, or that overlaps the place); those of a broken group. Threads: one. Blocks: no.
 * Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_get_on(ddp_context* context, ddp_param param, void* memory, void* stream,
                              ddp_error** error);

/* ddp_finalize that does not wait for the device, for a context whose parameters lie on one device
 * and perhaps the CPU. When it returns, everything is enqueued: what the program enqueues on
 * `stream` afterwards sees the reduced gradients, and gradients on the CPU are reduced. For
 * gradients that were not announced, the reduction comes after what was on `stream` before. A
 * callback of ddp_set_reduced_callback runs when its gradient is in order on `stream`.
 *
 * With a backend that takes device memory the host does not wait for other ranks, so a rank may be
 * one step ahead of them: ranks are compared behind what they enqueue. A rank that does something
 * else, or does not come, is the error of the next ddp_finalize_on, ddp_finalize or ddp_barrier at
 * the latest. After the last step call one of these before the parameters are used; groups that a
 * hook makes have barriers of their own. The host does wait where device memory goes through it,
 * where the step ends with an exchange of which parameters were used, and in the first steps, until
 * ranks have connected and agreed on a plan. An operation that fails or times out later breaks the
 * group; the next call returns the error.
 *
 * Errors: as ddp_finalize; those of GRAPHS; INVALID_ARGUMENT also for parameters on several
 * devices. Threads: one, no ddp_grad_ready at the same time. Blocks: as above. Collective: yes when
 * synced. Callbacks: no. */
DDP_API ddp_status ddp_finalize_on(ddp_context* context, void* stream, ddp_error** error);

/* Sets the stream on this device for functions that take none: ddp_commit, ddp_step_begin,
 * ddp_mark_unused, ddp_grad_ready, ddp_average_parameters and others. Their reads and writes on the
 * device come after what is on the stream when they are called, and before what the program
 * enqueues on it after they return. At first it is NULL, the legacy default stream. It must live
 * until another is set or the context is freed. Where views are new (ddp_commit, a ddp_step_begin
 * that moves them), the host waits until every stream may use them. Errors: INVALID_ARGUMENT (the
 * CPU), INVALID_STATE (during a step), UNSUPPORTED (no such device), UNAVAILABLE. Threads: one.
 * Blocks: no. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_set_stream(ddp_context* context, ddp_device_kind kind, int32_t index,
                                  void* stream, ddp_error** error);

/* ddp_finalize_on for parameters on any number of devices, with each device's stream of
 * ddp_set_stream. Errors and facts as ddp_finalize_on. */
DDP_API ddp_status ddp_finalize_enqueue(ddp_context* context, ddp_error** error);

/* ddp_wait_param that does not wait for the device: the optimizer can follow parameter by parameter
 * while later buckets still travel. What the program enqueues on `stream` (of the parameter's
 * device) afterwards sees the final gradient. For a CPU parameter it is ddp_wait_param, and
 * `stream` is ignored. In an unsynced step there is nothing to wait for: the gradient is in the
 * order of the stream on which it was announced, and of no other.
 *
 * ddp_finalize, ddp_finalize_on or ddp_finalize_enqueue must follow. The program must order what it
 * enqueues on `stream` before what the next step, ddp_step_begin included, does with the gradient.
 *
 * Callbacks of ddp_set_reduced_callback run as in ddp_finalize_on, on this device in the order of
 * `stream`. The host waits where ddp_finalize_on does, for this bucket and those before it; for all
 * buckets if this rank did not use the parameter.
 *
 * Errors: as ddp_wait_param; those of GRAPHS.
 * Threads: one. Blocks: as above. Collective: no. Callbacks: no. */
DDP_API ddp_status ddp_wait_param_on(ddp_context* context, ddp_param param, void* stream,
                                     ddp_error** error);

/* The stream of a bucket on a device, for a communication hook and its continuations. The gradients
 * are there in its order, and the result must be too. Collectives that the hook starts on memory of
 * this device are enqueued in its order, and their continuations run once they are enqueued. NULL
 * for a CPU bucket or NULL. Threads: any, while the bucket is valid. Blocks: no. Collective: no.
 * Callbacks: yes. */
DDP_API void* ddp_bucket_stream(const ddp_bucket* bucket);

DDP_EXTERN_C_END

#endif /* DDP_DEVICE_H */
