/* interrupt.h: Ctrl-C while a call of libddp's waits. */
#ifndef DDP_PYTHON_INTERRUPT_H
#define DDP_PYTHON_INTERRUPT_H

#include "base.h"

/* Installs the check. Called once, when the module is loaded. 0, or -1 with an exception. */
int ddp_py_watch_interrupts(void);

/* A ddp_interrupt_fn: runs Python's signal handlers if this is the main thread, and keeps what they
 * raise. */
int32_t ddp_py_interrupted(void* user_data);

/* The exception that a handler raised during the call that ends now: a new reference, or NULL. */
PyObject* ddp_py_take_interrupt(void);
/* Whether there is something. */
int ddp_py_was_interrupted(void);

/* Takes the exception that was raised, with its traceback. */
PyObject* ddp_py_fetch_exception(void);

#endif /* DDP_PYTHON_INTERRUPT_H */
