#include "interrupt.h"

/* Both belong to the main thread, the only one on which Python runs signal handlers. */
static unsigned long main_thread;
static PyObject* raised;

static int on_main_thread(void) {
    return PyThread_get_thread_ident() == main_thread;
}

PyObject* ddp_py_fetch_exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

int32_t ddp_py_interrupted(void* user_data) {
    (void)user_data;
    if (!on_main_thread() || !Py_IsInitialized()) return 0;
    const PyGILState_STATE lock = PyGILState_Ensure();
    if (!raised && PyErr_CheckSignals() != 0) raised = ddp_py_fetch_exception();
    const int32_t yes = raised != NULL;
    PyGILState_Release(lock);
    return yes;
}

int ddp_py_was_interrupted(void) {
    return on_main_thread() && raised;
}

PyObject* ddp_py_take_interrupt(void) {
    if (!ddp_py_was_interrupted()) return NULL;
    PyObject* taken = raised;
    raised = NULL;
    return taken;
}

/* The module may be loaded by another thread than the main one. */
static int find_main_thread(void) {
    PyObject* threading = PyImport_ImportModule("threading");
    PyObject* thread = threading ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject* number = thread ? PyObject_GetAttrString(thread, "ident") : NULL;
    if (number) main_thread = PyLong_AsUnsignedLong(number);
    Py_XDECREF(number);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    return PyErr_Occurred() ? -1 : 0;
}

int ddp_py_watch_interrupts(void) {
    if (find_main_thread() != 0) return -1;
    const uint32_t flags = on_main_thread() ? DDP_INTERRUPT_THIS_THREAD : 0;
    if (ddp_set_interrupt_check(ddp_py_interrupted, NULL, NULL, flags, NULL) == DDP_OK) return 0;
    PyErr_NoMemory();
    return -1;
}
