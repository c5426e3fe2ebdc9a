/* jax.h: what is JAX's. */
#ifndef DDP_PYTHON_JAX_H
#define DDP_PYTHON_JAX_H

#include "base.h"

/* Whether it is an array of JAX, which nobody may write: version 0 of DLPack cannot say so, and
 * memory of a GPU has no buffer that does. */
int ddp_py_is_of_jax(PyObject* array);
/* Whether the Python function that is running is JAX's. */
int ddp_py_called_by_jax(void);

/* Adds the function jax_target to the module. 0, or -1 with an exception. */
int ddp_py_add_jax(PyObject* module);

#endif /* DDP_PYTHON_JAX_H */
