#include "show.h"

#include "jax.h"

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
        PyErr_SetString(PyExc_BufferError,
                        "bfloat16 has no letter in the buffer protocol; take it with from_dlpack");
        return -1;
    }
    if (memory->device.kind != DDP_DEVICE_CPU ||
        ((flags & PyBUF_WRITABLE) != 0 && memory->readonly)) {
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

/* The struct that a consumer is given, its shape, and a reference to the Memory. */
typedef struct Shown {
    DdpDlManaged managed;
    int64_t shape[DDP_PY_MAX_DIMENSIONS];
} Shown;

static void drop_shown(DdpDlManaged* managed) {
    /* the interpreter is gone, and with it what the memory belonged to */
    if (!Py_IsInitialized()) return;
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

static int dlpack_device_of(const DdpMemory* memory) {
    return memory->device.kind == DDP_DEVICE_CUDA ? DDP_DL_CUDA : DDP_DL_CPU;
}

/* The consumer wants it on this device: (kind, number), or None. */
static int refuse_device(const DdpMemory* memory, PyObject* device) {
    int kind, index;
    if (device == Py_None) return 0;
    if (!PyTuple_Check(device)) {
        PyErr_SetString(PyExc_TypeError,
                        "dl_device: a tuple of DLPack's kind and number of a device is expected");
        return -1;
    }
    if (!PyArg_ParseTuple(device, "ii;dl_device: DLPack's kind and number of a device are expected",
                          &kind, &index))
        return -1;
    if (kind == dlpack_device_of(memory) && index == memory->device.index) return 0;
    PyErr_Format(PyExc_BufferError,
                 "the memory is on the device of DLPack's kind %d, number %d, and not of kind %d, "
                 "number %d: libddp copies "
                 "nothing there",
                 dlpack_device_of(memory), (int)memory->device.index, kind, index);
    return -1;
}

/* The consumer will use it in the order of this stream. libddp cannot make that wait for another
 * one, but the memory that it shows is there for all, or it says for which. */
static int refuse_stream(const DdpMemory* memory, PyObject* stream) {
    if (memory->device.kind != DDP_DEVICE_CUDA) {
        if (stream == Py_None) return 0;
        PyErr_SetString(PyExc_ValueError, "stream: memory of the CPU has none; None is expected");
        return -1;
    }
    int overflow = 0;
    const long long number =
        stream == Py_None ? DDP_DL_LEGACY_STREAM : PyLong_AsLongLongAndOverflow(stream, &overflow);
    if (PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "stream: the number of a stream or None is expected");
        return -1;
    }
    if (overflow || number == 0 || number < DDP_DL_NO_ORDER) {
        PyErr_Format(PyExc_ValueError,
                     "stream: %R is no stream of DLPack's; 1 is the legacy default stream, -1 asks "
                     "for no order",
                     stream);
        return -1;
    }
    if (number == DDP_DL_NO_ORDER || !memory->stream ||
        memory->stream == (unsigned long long)number)
        return 0;
    PyErr_Format(PyExc_BufferError,
                 "the memory is right in the order of the bucket's stream alone (%llu), not of "
                 "stream %lld: take and use it "
                 "where "
                 "that is the current stream, in PyTorch: with "
                 "torch.cuda.stream(torch.cuda.ExternalStream(bucket.stream))",
                 memory->stream, number);
    return -1;
}

/* Whether to show a copy: 1, 0, or -1 with an exception. copy: what the consumer says, None for
 * nothing.
 *
 * JAX says nothing, not even when it was asked for a copy, and computes on what it is given as if
 * that never changed, perhaps long after the call that gave it returned. Memory that libddp shows
 * does change, so JAX gets a copy. */
static int wants_copy(const DdpMemory* memory, PyObject* copy) {
    const int by_jax = ddp_py_called_by_jax();
    const int wanted = copy == Py_None ? by_jax : PyObject_IsTrue(copy);
    if (wanted < 0) return -1;
    if (by_jax && !wanted) {
        PyErr_SetString(PyExc_BufferError,
                        "copy=False: arrays of JAX never change, and memory of libddp does; take "
                        "it without copy=False");
        return -1;
    }
    if (wanted && memory->device.kind != DDP_DEVICE_CPU) {
        PyErr_Format(PyExc_BufferError,
                     "libddp makes no copies of memory of a GPU: take the memory as it is with "
                     "CuPy or PyTorch, and copy "
                     "that%s",
                     by_jax ? "; JAX may have the copy" : "");
        return -1;
    }
    return wanted;
}

/* Takes over the reference. */
static PyObject* capsule_of(DdpMemory* memory) {
    Shown* shown = calloc(1, sizeof *shown);
    if (!shown) {
        Py_DECREF((PyObject*)memory);
        return PyErr_NoMemory();
    }
    DdpDlTensor* tensor = &shown->managed.tensor;
    tensor->data = memory->address;
    tensor->device.kind = dlpack_device_of(memory);
    tensor->device.index = memory->device.index;
    tensor->ndim = memory->ndim;
    tensor->dtype.code = code_of(memory->dtype);
    tensor->dtype.bits = (uint8_t)(8 * ddp_dtype_size(memory->dtype));
    tensor->dtype.lanes = 1;
    for (int i = 0; i < memory->ndim; ++i) shown->shape[i] = memory->shape[i];
    tensor->shape = shown->shape;
    shown->managed.deleter = drop_shown;
    shown->managed.manager = memory;
    PyObject* capsule = PyCapsule_New(&shown->managed, "dltensor", drop_capsule);
    if (!capsule) drop_shown(&shown->managed);
    return capsule;
}

PyObject* ddp_py_make_dlpack(PyObject* self, PyObject* args, PyObject* kwargs) {
    /* Whatever max_version is, version 0 may be given. */
    static char* names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    DdpMemory* memory = (DdpMemory*)self;
    PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &max_version, &device,
                                     &copy))
        return NULL;
    if (refuse_device(memory, device) != 0 || refuse_stream(memory, stream) != 0) return NULL;
    const int copied = wants_copy(memory, copy);
    if (copied < 0) return NULL;
    if (copied) {
        DdpMemory* made = ddp_py_memory_copy(memory);
        return made ? capsule_of(made) : NULL;
    }
    if (memory->readonly) {
        PyErr_SetString(PyExc_BufferError,
                        "the memory is read-only, which this version of DLPack cannot say");
        return NULL;
    }
    Py_INCREF((PyObject*)memory);
    return capsule_of(memory);
}

PyObject* ddp_py_dlpack_device(PyObject* self, PyObject* unused) {
    const DdpMemory* memory = (const DdpMemory*)self;
    (void)unused;
    return Py_BuildValue("(ii)", dlpack_device_of(memory), (int)memory->device.index);
}
