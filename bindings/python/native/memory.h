/* memory.h: an array as libddp and Python's array libraries both see it. */
#ifndef DDP_PYTHON_MEMORY_H
#define DDP_PYTHON_MEMORY_H

#include "base.h"
#include "dlpack_abi.h"

enum { DDP_PY_MAX_DIMENSIONS = 16 };

typedef struct DdpMemory {
    PyObject_HEAD char* address;
    ddp_dtype dtype;
    ddp_device device;
    /* For memory on a GPU: the only stream in whose order it is right. 0: any, because nothing is
     * under way there. */
    unsigned long long stream;
    int readonly;
    int ndim;
    Py_ssize_t shape[DDP_PY_MAX_DIMENSIONS];
    Py_ssize_t strides[DDP_PY_MAX_DIMENSIONS]; /* in bytes */
    Py_ssize_t count;
    /* The owner of the memory; one of the three. */
    DdpDlManaged* tensor;
    Py_buffer buffer;
    PyObject* owner;
} DdpMemory;

/* Fills in count and strides from dtype, ndim and shape. */
void ddp_py_memory_lay_out(DdpMemory* memory);

/* A Memory of its own with the same elements, of memory of the CPU. NULL with an exception. */
DdpMemory* ddp_py_memory_copy(const DdpMemory* memory);

/* Gives back what the memory belongs to. */
void ddp_py_let_go(DdpMemory* memory);

#endif /* DDP_PYTHON_MEMORY_H */
