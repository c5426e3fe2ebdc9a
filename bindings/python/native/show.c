/* show.c: shows memory to other libraries: the buffer protocol and DLPack. */
#include "memory.h"

static const char* format_of(ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return "e";
        case DDP_F32:
            return "f";
        case DDP_F64:
            return "d";
        case DDP_I32:
            return "i";
        case DDP_I64:
            return "q";
        case DDP_U8:
            return "B";
        case DDP_C64:
            return "Zf";
        case DDP_C128:
            return "Zd";
        default:
            return NULL;
    }
}

int ddp_py_get_buffer(PyObject* self, Py_buffer* view, int flags) {
    DdpMemory* memory = (DdpMemory*)self;
    view->obj = NULL;
    if (!format_of(memory->dtype) && (flags & PyBUF_FORMAT) != 0) {
        PyErr_SetString(PyExc_BufferError, "bfloat16 has no letter in the buffer protocol; take it with from_dlpack");
        return -1;
    }
    if (memory->device.kind != DDP_DEVICE_CPU || ((flags & PyBUF_WRITABLE) != 0 && memory->readonly)) {
        PyErr_SetString(PyExc_BufferError, "the memory is read-only or not the CPU's");
        return -1;
    }
    view->obj = self;
    Py_INCREF(self);
    view->buf = memory->address;
    view->itemsize = (Py_ssize_t)ddp_dtype_size(memory->dtype);
    view->len = memory->count * view->itemsize;
    view->readonly = memory->readonly;
    view->format = (flags & PyBUF_FORMAT) != 0 ? (char*)(uintptr_t)format_of(memory->dtype) : NULL;
    view->ndim = memory->ndim;
    view->shape = (flags & PyBUF_ND) != 0 ? memory->shape : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? memory->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

/* What a consumer is given: the struct, its shape, and a reference to the Memory. */
typedef struct Shown {
    DdpDlManaged managed;
    int64_t shape[DDP_PY_MAX_DIMENSIONS];
} Shown;

static void drop_shown(DdpDlManaged* managed) {
    const PyGILState_STATE lock = PyGILState_Ensure(); /* consumers call it from any thread */
    Py_DECREF((PyObject*)managed->manager);
    PyGILState_Release(lock);
    free(managed);
}

static void drop_capsule(PyObject* capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return; /* taken over */
    DdpDlManaged* managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

static uint8_t code_of(ddp_dtype dtype) {
    if (dtype == DDP_BF16) return DDP_DL_BFLOAT;
    if (dtype == DDP_I32 || dtype == DDP_I64) return DDP_DL_INT;
    if (dtype == DDP_U8) return DDP_DL_UINT;
    return dtype == DDP_C64 || dtype == DDP_C128 ? DDP_DL_COMPLEX : DDP_DL_FLOAT;
}

PyObject* ddp_py_make_dlpack(PyObject* self, PyObject* args, PyObject* kwargs) {
    DdpMemory* memory = (DdpMemory*)self;
    (void)args;
    (void)kwargs; /* stream, max_version, dl_device, copy: version 0 of CPU memory answers all */
    if (memory->readonly) {
        PyErr_SetString(PyExc_BufferError, "the memory is read-only, which this version of DLPack cannot say");
        return NULL;
    }
    Shown* shown = calloc(1, sizeof *shown);
    if (!shown) return PyErr_NoMemory();
    DdpDlTensor* tensor = &shown->managed.tensor;
    tensor->data = memory->address;
    tensor->device.kind = memory->device.kind == DDP_DEVICE_CUDA ? DDP_DL_CUDA : DDP_DL_CPU;
    tensor->device.index = memory->device.index;
    tensor->ndim = memory->ndim;
    tensor->dtype.code = code_of(memory->dtype);
    tensor->dtype.bits = (uint8_t)(8 * ddp_dtype_size(memory->dtype));
    tensor->dtype.lanes = 1;
    for (int i = 0; i < memory->ndim; ++i) shown->shape[i] = memory->shape[i];
    tensor->shape = shown->shape;
    shown->managed.deleter = drop_shown;
    shown->managed.manager = self;
    Py_INCREF(self);
    PyObject* capsule = PyCapsule_New(&shown->managed, "dltensor", drop_capsule);
    if (!capsule) drop_shown(&shown->managed);
    return capsule;
}

PyObject* ddp_py_dlpack_device(PyObject* self, PyObject* unused) {
    const DdpMemory* memory = (const DdpMemory*)self;
    (void)unused;
    return Py_BuildValue("(ii)", memory->device.kind == DDP_DEVICE_CUDA ? DDP_DL_CUDA : DDP_DL_CPU,
                         (int)memory->device.index);
}
