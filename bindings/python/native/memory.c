#include "memory.h"

#include <string.h>

void ddp_py_memory_lay_out(DdpMemory* memory) {
    memory->count = 1;
    Py_ssize_t stride = (Py_ssize_t)ddp_dtype_size(memory->dtype);
    for (int i = memory->ndim - 1; i >= 0; --i) {
        memory->strides[i] = stride;
        stride *= memory->shape[i];
        memory->count *= memory->shape[i];
    }
}

/* JAX, PyTorch and others use arrays as they are only if they are aligned well. */
enum { ALIGNMENT = 64 };

/* Copies elements, without the interpreter lock. */
static void copy_elements(DdpMemory* to, const DdpMemory* from) {
    const size_t bytes = (size_t)to->count * ddp_dtype_size(to->dtype);
    if (bytes == 0) return;
    Py_BEGIN_ALLOW_THREADS memmove(to->address, from->address, bytes);
    Py_END_ALLOW_THREADS
}

DdpMemory* ddp_py_memory_copy(const DdpMemory* memory) {
    const Py_ssize_t bytes = memory->count * (Py_ssize_t)ddp_dtype_size(memory->dtype);
    PyTypeObject* type = Py_TYPE((PyObject*)memory);
    DdpMemory* made = (DdpMemory*)PyType_GenericAlloc(type, 0);
    if (!made) return NULL;
    made->owner = PyByteArray_FromStringAndSize(NULL, bytes + ALIGNMENT);
    if (!made->owner) {
        Py_DECREF((PyObject*)made);
        return NULL;
    }
    const uintptr_t start = (uintptr_t)PyByteArray_AsString(made->owner);
    made->address = (char*)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    made->dtype = memory->dtype;
    made->ndim = memory->ndim;
    memcpy(made->shape, memory->shape, sizeof made->shape);
    ddp_py_memory_lay_out(made);
    copy_elements(made, memory);
    return made;
}

void ddp_py_let_go(DdpMemory* memory) {
    if (memory->tensor && memory->tensor->deleter) memory->tensor->deleter(memory->tensor);
    memory->tensor = NULL;
    PyBuffer_Release(&memory->buffer);
    Py_CLEAR(memory->owner);
}
