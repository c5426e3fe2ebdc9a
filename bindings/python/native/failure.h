/* failure.h: libddp's errors as Python's exceptions. */
#ifndef DDP_PYTHON_FAILURE_H
#define DDP_PYTHON_FAILURE_H

#include "base.h"

/* Adds set_error_factory(f) to the module: f(status, message, rank, param, bucket, step) makes an
 * exception. */
int ddp_py_add_failure(PyObject* module);

/* Raises and frees `error`, which is NULL only where a signal handler raised during the call: its
 * exception is raised instead, with the error as its context. of_callbacks: a list, or NULL. Where
 * it holds an exception of a callback that has not come out yet, that one is raised, with the error
 * as its cause. */
void ddp_py_raise(ddp_error* error, PyObject* of_callbacks);

/* Raises an error of the binding's own. */
void ddp_py_fail(ddp_status status, const char* message);

/* A callback raised: keeps the exception in the list, and returns what it tells libddp. */
ddp_status ddp_py_keep_exception(PyObject* list, ddp_error** error);

#endif /* DDP_PYTHON_FAILURE_H */
