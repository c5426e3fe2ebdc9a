/* device_module.h: what libddp asks of a kind of device. A shared object libddp-NAME.so (NAME:
 * "cuda" for DDP_DEVICE_CUDA) implements it and exports
 *
 *     const ddp_device_module *ddp_device_entry(void);
 *
 * It is loaded the first time that somebody asks for a device of this kind, and never unloaded. It
 * must load, and tell its build, on machines that have no such device and no driver. It is no
 * public interface: module and library come from one build, which `build` proves. Arithmetic on
 * devices is a table of its own: kernels/device_kernels.h.
 *
 * RULES FOR EVERY FUNCTION
 * - Any thread may call it, several at once. It leaves the calling thread's current device as it
 *   was.
 * - `device` is the index of a device, 0 to count - 1. `stream` is a stream of that device: one of
 *   stream_create, or the caller's own (for CUDA a cudaStream_t; NULL is the legacy default
 *   stream).
 * - "Enqueues" means: returns without waiting for the device, never waits for other streams, and
 *   never synchronises the device. Operations that are enqueued on one stream run in order. Arrays
 *   of arguments (segments, inputs, parts) are read before the call returns; the memory that they
 *   name when the stream comes to it.
 * - An error is a status and a sentence in *failure, which libddp has emptied before. An error that
 *   an earlier operation left behind asynchronously is reported by whichever function sees it.
 *   UNSUPPORTED: this device cannot do it.
 * - Pointers to device memory are good for arithmetic on the host, but not for access.
 */
#ifndef LIBDDP_DEVICE_MODULE_H
#define LIBDDP_DEVICE_MODULE_H

#include "ddp/types.h"

DDP_EXTERN_C_BEGIN

typedef struct ddp_device_failure {
    char message[512]; /* a sentence, NUL-terminated, cut if need be */
} ddp_device_failure;

typedef int32_t ddp_copy_kind;
enum { DDP_COPY_TO_HOST = 1, DDP_COPY_TO_DEVICE = 2 };

#define DDP_NO_PART_OF_CAPTURES UINT64_MAX

typedef struct ddp_device_module {
    size_t struct_size;
    const char* build; /* build_identity() of util/module.h; others are refused */
    const char* name;  /* "cuda" */
    ddp_device_kind kind;
    int32_t reserved0;

    /* How many devices there are, at least 1. Otherwise UNAVAILABLE, and the message says why there
     * is none ("no device: no driver is loaded"). */
    ddp_status (*count)(int32_t* count, ddp_device_failure* failure);
    /* Which device a pointer belongs to; {DDP_DEVICE_CPU, 0} for anything that is no memory of such
     * a device, and for memory of the host. */
    ddp_status (*device_of)(const void* pointer, ddp_device* device, ddp_device_failure* failure);

    /* MEMORY. Aligned to 256 bytes. bytes >= 1. Errors: OUT_OF_MEMORY. */

    /* Device memory, which holds zeros, for work enqueued on `stream` from now on; others must be
     * ordered after it. */
    ddp_status (*allocate)(int32_t device, void* stream, size_t bytes, void** memory,
                           ddp_device_failure* failure);
    /* Frees it when `stream` has come to this point. Never fails, never waits. */
    void (*deallocate)(int32_t device, void* stream, void* memory);
    /* Pinned memory of the host, from and to which every device of this kind copies without a
     * detour. Not zeroed. May take long, and is used for what lives long. */
    ddp_status (*allocate_host)(size_t bytes, void** memory, ddp_device_failure* failure);
    /* No copy uses it any more. */
    void (*deallocate_host)(void* memory);

    /* STREAMS AND EVENTS */

    /* A stream with the highest priority, that is not ordered with the legacy default stream of
     * itself. */
    ddp_status (*stream_create)(int32_t device, void** stream, ddp_device_failure* failure);
    /* Work that is still on it ends as usual; does not wait. */
    void (*stream_destroy)(int32_t device, void* stream);
    /* *capture: a number of its own for the capture of the stream into a graph; 0 if it is not being
     * captured, DDP_NO_PART_OF_CAPTURES if it could not even be asked without taking part in the
     * capture of another one. What is enqueued on a captured stream becomes part of the graph, and
     * an event that is recorded there is only for streams to wait for, which become captured, too. */
    ddp_status (*stream_capture)(int32_t device, void* stream, uint64_t* capture,
                                 ddp_device_failure* failure);
    /* The graph into which the stream is being captured keeps `kept`: release(kept) is called when
     * nobody has the graph any more, on any thread, and must not call the device. */
    ddp_status (*capture_keep)(int32_t device, void* stream, void* kept,
                               void (*release)(void* kept), ddp_device_failure* failure);
    /* An event, for order and not for time. One that was never recorded counts as done. */
    ddp_status (*event_create)(int32_t device, void** event, ddp_device_failure* failure);
    void (*event_destroy)(int32_t device, void* event);
    /* Enqueues: the event is done when the stream has come to this point. Replaces what was
     * recorded before; who waits for that already is not affected. */
    ddp_status (*event_record)(int32_t device, void* event, void* stream,
                               ddp_device_failure* failure);
    /* Enqueues: what follows on `stream` waits for the event, which may be of another device of
     * this kind. */
    ddp_status (*stream_wait)(int32_t device, void* stream, void* event,
                              ddp_device_failure* failure);
    /* *done: 1 if the event is done. Does not wait. */
    ddp_status (*event_query)(int32_t device, void* event, int32_t* done,
                              ddp_device_failure* failure);
    /* The host waits for the event, at most so long (libddp gives 100 ms at most, again and again).
     * *done: 0 if the time has passed. Light on the processor: sleeps after a moment of looking. */
    ddp_status (*event_wait)(int32_t device, void* event, int64_t timeout_ns, int32_t* done,
                             ddp_device_failure* failure);

    /* Enqueues: bytes of this device to pinned memory of the host, or back. */
    ddp_status (*copy)(int32_t device, void* stream, void* dst, const void* src, size_t bytes,
                       ddp_copy_kind kind, ddp_device_failure* failure);

} ddp_device_module;

typedef const ddp_device_module* ddp_device_entry_fn(void);

DDP_EXTERN_C_END

#endif /* LIBDDP_DEVICE_MODULE_H */
