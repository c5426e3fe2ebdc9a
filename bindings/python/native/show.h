/* show.h: shows memory to other libraries: the buffer protocol and DLPack. */
#ifndef DDP_PYTHON_SHOW_H
#define DDP_PYTHON_SHOW_H

#include "memory.h"

int ddp_py_get_buffer(PyObject* self, Py_buffer* view, int flags);
PyObject* ddp_py_make_dlpack(PyObject* self, PyObject* args, PyObject* kwargs);
PyObject* ddp_py_dlpack_device(PyObject* self, PyObject* unused);

#endif /* DDP_PYTHON_SHOW_H */
