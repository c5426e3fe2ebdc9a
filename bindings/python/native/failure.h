/* failure.h: libddp's errors as Python's exceptions. */
#ifndef DDP_PYTHON_FAILURE_H
#define DDP_PYTHON_FAILURE_H

#include "handle.h"

/* Adds set_error_factory(f) to the module: f(status, message, rank, param, bucket, step) makes an exception. */
int ddp_py_add_failure(PyObject* module);

/* Raises and frees `error`, which is NULL only where a signal handler raised during the call: its exception is raised instead, with
 * the error as its context. Where a callback of the object `about` raised an exception that has not come out yet, that
 * one is raised, with the error as its cause. */
void ddp_py_raise(ddp_error* error, uintptr_t about);

/* Raises an error of the binding's own. */
void ddp_py_fail(ddp_status status, const char* message);

/* Takes the exception that was raised, with its traceback. */
PyObject* ddp_py_fetch_exception(void);

/* A callback raised: keeps the exception in the list, and returns what it tells libddp. */
ddp_status ddp_py_keep_exception(PyObject* list, ddp_error** error);

#endif /* DDP_PYTHON_FAILURE_H */
