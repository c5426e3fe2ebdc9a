/* callbacks.h: Python functions that libddp calls. It does so only on a thread that is inside a
 * libddp call, which has let go of the interpreter lock: they take it. */
#ifndef DDP_PYTHON_CALLBACKS_H
#define DDP_PYTHON_CALLBACKS_H

#include "handle.h"
#include "unused.h"

/* For a callable; *callback is NULL for None. about: the context or work that the callback belongs
 * to; exceptions come out of calls about it, or about works that are made from it. */
int ddp_py_callback(PyObject* callable, uintptr_t about, DdpCallback** callback);

/* callable(group, bucket) -> None, or a work. */
ddp_status ddp_py_call_ddp_comm_hook_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                        ddp_work** work, ddp_error** error);
/* callable(group, bucket) */
ddp_status ddp_py_call_ddp_bucket_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                     ddp_error** error);
/* callable() -> None, or a work. */
ddp_status ddp_py_call_ddp_work_fn(void* user_data, ddp_work** next, ddp_error** error);
/* callable(group, [(address, shape, dtype), ...]) */
ddp_status ddp_py_call_ddp_buffer_hook_fn(void* user_data, ddp_group* group,
                                          const ddp_tensor* const* buffers, size_t count,
                                          ddp_error** error);
/* callable(param, used) */
ddp_status ddp_py_call_ddp_reduced_fn(void* user_data, ddp_param param, int32_t used,
                                      ddp_error** error);

#endif /* DDP_PYTHON_CALLBACKS_H */
