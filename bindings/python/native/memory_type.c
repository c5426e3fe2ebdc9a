#include "memory_type.h"

#include "jax.h"
#include "show.h"
#include "take.h"

static PyTypeObject* memory_type;

static PyObject* new_memory(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static char* names[] = {"array", "writable", "stream", NULL};
    PyObject* array;
    int writable = 1;
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|pK", names, &array, &writable, &stream))
        return NULL;
    if (stream == 0) stream = DDP_DL_LEGACY_STREAM; /* as CUDA has it; in DLPack 0 is no stream */
    if (writable && ddp_py_is_of_jax(array)) {
        PyErr_SetString(PyExc_TypeError,
                        "arrays of JAX are immutable, and libddp has to write into this one: "
                        "register the parameter by shape, "
                        "dtype and device instead and take its view, or pass a copy of another "
                        "library's (docs/python.md, JAX)");
        return NULL;
    }
    DdpMemory* memory = (DdpMemory*)PyType_GenericAlloc(type, 0);
    if (!memory) return NULL;
    int taken = ddp_py_take_dlpack(memory, array, stream);
    if (taken == 0) taken = ddp_py_take_buffer(memory, array);
    if (taken == 0)
        PyErr_Format(PyExc_TypeError,
                     "an array with __dlpack__ or the buffer protocol is expected, not %R",
                     Py_TYPE(array));
    if (taken == 1 && writable && memory->readonly) {
        PyErr_SetString(PyExc_ValueError,
                        "the array is read-only, and libddp has to write into it");
        taken = -1;
    }
    if (taken == 1) return (PyObject*)memory;
    Py_DECREF((PyObject*)memory);
    return NULL;
}

/* Memory.at(address, dtype, shape, owner, readonly=False, device=(0, 0), stream=0) */
static PyObject* at(PyObject* self, PyObject* args) {
    unsigned long long address, stream = 0;
    int dtype, readonly = 0, kind = DDP_DEVICE_CPU, index = 0;
    PyObject *shape, *owner;
    (void)self;
    if (!PyArg_ParseTuple(args, "KiO!O|p(ii)K", &address, &dtype, &PyTuple_Type, &shape, &owner,
                          &readonly, &kind, &index, &stream))
        return NULL;
    if (PyTuple_Size(shape) > DDP_PY_MAX_DIMENSIONS || ddp_dtype_size(dtype) == 0) {
        PyErr_SetString(PyExc_ValueError, "too many dimensions, or an unknown dtype");
        return NULL;
    }
    DdpMemory* memory = (DdpMemory*)PyType_GenericAlloc(memory_type, 0);
    if (!memory) return NULL;
    memory->address = (char*)(uintptr_t)address;
    memory->dtype = dtype;
    memory->readonly = readonly;
    memory->device.kind = kind;
    memory->device.index = index;
    memory->stream = stream;
    memory->ndim = (int)PyTuple_Size(shape);
    for (int i = 0; i < memory->ndim; ++i)
        memory->shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    Py_INCREF(owner);
    memory->owner = owner;
    if (!PyErr_Occurred()) {
        ddp_py_memory_lay_out(memory);
        return (PyObject*)memory;
    }
    Py_DECREF((PyObject*)memory);
    return NULL;
}

static void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    ddp_py_let_go((DdpMemory*)self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject* get_address(PyObject* self, void* unused) {
    (void)unused;
    return PyLong_FromVoidPtr(((DdpMemory*)self)->address);
}
static PyObject* get_dtype(PyObject* self, void* unused) {
    (void)unused;
    return PyLong_FromLong(((DdpMemory*)self)->dtype);
}
static PyObject* get_count(PyObject* self, void* unused) {
    (void)unused;
    return PyLong_FromSsize_t(((DdpMemory*)self)->count);
}
static PyObject* get_readonly(PyObject* self, void* unused) {
    (void)unused;
    return PyBool_FromLong(((DdpMemory*)self)->readonly);
}
static PyObject* get_device(PyObject* self, void* unused) {
    const DdpMemory* memory = (const DdpMemory*)self;
    (void)unused;
    return Py_BuildValue("(ii)", (int)memory->device.kind, (int)memory->device.index);
}
static PyObject* get_shape(PyObject* self, void* unused) {
    const DdpMemory* memory = (const DdpMemory*)self;
    (void)unused;
    PyObject* shape = PyTuple_New(memory->ndim);
    for (int i = 0; shape && i < memory->ndim; ++i)
        PyTuple_SetItem(shape, i, PyLong_FromSsize_t(memory->shape[i]));
    return shape;
}

static PyMethodDef methods[] = {
    {"at", at, METH_VARARGS | METH_STATIC,
     "at(address, dtype, shape, owner, readonly=False, device=(0, 0), stream=0): memory kept alive "
     "by owner; on a GPU, "
     "in the order of this stream alone, unless 0."},
    {"__dlpack__", (PyCFunction)(void (*)(void))ddp_py_make_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None): as a DLPack capsule "
     "of version 0, "
     "without a copy unless copy is True or it is JAX that asks. A bucket on a GPU is shown only "
     "to its own stream, "
     "Bucket.stream, or with stream=-1 for no "
     "order."},
    {"__dlpack_device__", ddp_py_dlpack_device, METH_NOARGS, "DLPack's device kind and index."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef getters[] = {
    {"address", get_address, NULL, "Where it lies.", NULL},
    {"dtype", get_dtype, NULL, "A DDP_F32 or the like.", NULL},
    {"count", get_count, NULL, "The number of elements.", NULL},
    {"shape", get_shape, NULL, "Row-major.", NULL},
    {"readonly", get_readonly, NULL, "Whether it must not be written.", NULL},
    {"device", get_device, NULL, "The kind and index of the device.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, (void*)new_memory},
    {Py_tp_dealloc, (void*)dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_bf_getbuffer, (void*)ddp_py_get_buffer},
    {0, NULL},
};
static PyType_Spec spec = {"ddp._ddp.Memory", sizeof(DdpMemory), 0, Py_TPFLAGS_DEFAULT, slots};

int ddp_py_add_memory(PyObject* module) {
    memory_type = (PyTypeObject*)PyType_FromSpec(&spec);
    return memory_type ? PyModule_AddObjectRef(module, "Memory", (PyObject*)memory_type) : -1;
}
