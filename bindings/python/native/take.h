/* take.h: takes hold of arrays of other libraries. */
#ifndef DDP_PYTHON_TAKE_H
#define DDP_PYTHON_TAKE_H

#include "memory.h"

/* Take hold of `array`'s memory. 1; 0 if the array does not offer it in this way; -1 with an
 * exception. `stream`: of an array on a GPU, the stream in whose order libddp will use it, by
 * DLPack's numbers. */
int ddp_py_take_dlpack(DdpMemory* memory, PyObject* array, unsigned long long stream);
int ddp_py_take_buffer(DdpMemory* memory, PyObject* array);

#endif /* DDP_PYTHON_TAKE_H */
