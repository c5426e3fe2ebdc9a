/* memory.h: an array as libddp and Python's array libraries both see it.
 *
 * Memory(array, writable, stream) holds the memory of another library's array; Memory.at(address, dtype, shape, owner) shows
 * memory of libddp's to others. Both offer it through the buffer protocol and DLPack, without a copy unless one is asked for.
 */
#ifndef DDP_PYTHON_MEMORY_H
#define DDP_PYTHON_MEMORY_H

#include "dlpack_abi.h"
#include "handle.h"

enum { DDP_PY_MAX_DIMENSIONS = 16 };

typedef struct DdpMemory {
    PyObject_HEAD char* address;
    ddp_dtype dtype;
    ddp_device device;
    /* Of memory on a GPU that is right in the order of one stream alone: that stream. 0: of any, nothing is under way there. */
    unsigned long long stream;
    int readonly;
    int ndim;
    Py_ssize_t shape[DDP_PY_MAX_DIMENSIONS];
    Py_ssize_t strides[DDP_PY_MAX_DIMENSIONS]; /* in bytes */
    Py_ssize_t count;
    /* Whose memory it is; one of the three. */
    DdpDlManaged* tensor;
    Py_buffer buffer;
    PyObject* owner;
} DdpMemory;

/* Adds the type Memory to the module. */
int ddp_py_add_memory(PyObject* module);

/* Fills in count and strides from dtype, ndim and shape. */
void ddp_py_memory_lay_out(DdpMemory* memory);

/* A Memory of its own with the same elements, of memory of the CPU. NULL with an exception. */
DdpMemory* ddp_py_memory_copy(const DdpMemory* memory);

/* Take hold of `array`'s memory. 1; 0 if the array does not offer it in this way; -1 with an exception. `stream`: of an array on
 * a GPU, the stream in whose order libddp will use it, by DLPack's numbers. */
int ddp_py_take_dlpack(DdpMemory* memory, PyObject* array, unsigned long long stream);
int ddp_py_take_buffer(DdpMemory* memory, PyObject* array);
/* Whether it is an array of JAX, which nobody may write: version 0 of DLPack cannot say so, and memory of a GPU has no buffer
 * that does. */
int ddp_py_is_of_jax(PyObject* array);
/* Whether the Python function that is running is JAX's. */
int ddp_py_called_by_jax(void);
void ddp_py_let_go(DdpMemory* memory);

/* Show it to others. */
int ddp_py_get_buffer(PyObject* self, Py_buffer* view, int flags);
PyObject* ddp_py_make_dlpack(PyObject* self, PyObject* args, PyObject* kwargs);
PyObject* ddp_py_dlpack_device(PyObject* self, PyObject* unused);

#endif /* DDP_PYTHON_MEMORY_H */
