/* memory_type.h: the type Memory.
 *
 * Memory(array, writable, stream) holds the memory of another library's array; Memory.at(address,
 * dtype, shape, owner) shows memory of libddp's to others. Both offer it through the buffer
 * protocol and DLPack, without a copy unless one is asked for.
 */
#ifndef DDP_PYTHON_MEMORY_TYPE_H
#define DDP_PYTHON_MEMORY_TYPE_H

#include "base.h"

/* Adds the type to the module. */
int ddp_py_add_memory(PyObject* module);

#endif /* DDP_PYTHON_MEMORY_TYPE_H */
