/* python.i: how ddp.i looks in Python. The module is ddp._ddp, private; the package's Python files are what users see.
 *
 * Handles, memory and callbacks are in bindings/python/native, written by hand against Python's C API; typemaps here only
 * call them. Generated with -threads: every call lets go of the interpreter lock, but for the few that are named below.
 */
%{
#include "callbacks.h"
#include "convert.h"
#include "failure.h"
#include "handle.h"
#include "interrupt.h"
#include "jax.h"
#include "memory_type.h"

/* The first result takes the place of the None that stands for a status. */
#if SWIG_VERSION >= 0x040300
#define DDP_PY_APPEND(result, object) SWIG_Python_AppendOutput(result, object, 1)
#else
#define DDP_PY_APPEND(result, object) SWIG_Python_AppendOutput(result, object)
#endif

/* From SWIG 4.4 on, the code of %init is in a function that returns an int. */
#if SWIG_VERSION >= 0x040400
#define DDP_PY_INIT_FAILED -1
#else
#define DDP_PY_INIT_FAILED NULL
#endif
%}

%init %{
    if (ddp_py_add_handle(m) != 0 || ddp_py_add_memory(m) != 0 || ddp_py_add_failure(m) != 0) return DDP_PY_INIT_FAILED;
    if (ddp_py_add_jax(m) != 0) return DDP_PY_INIT_FAILED;
    if (ddp_py_watch_interrupts() != 0) return DDP_PY_INIT_FAILED;
%}

/* FAILURE. A status is an exception or nothing; `error` carries it. arg1 is the object that the call is about, where a
 * callback's exception is kept until it comes out. */
%typemap(in, numinputs=0) ddp_error** error (ddp_error* failure = NULL) {
    if (!ddp_py_may_call()) SWIG_fail;
    $1 = &failure;
}
%typemap(argout) ddp_error** error {
    if (*$1 || ddp_py_was_interrupted()) {
        ddp_py_raise_about(*$1, (uintptr_t)arg1);
        Py_CLEAR($result);
        SWIG_fail;
    }
}
%typemap(out) ddp_status { $result = SWIG_Py_Void(); }
%typemap(out) ddp_status ddp_error_code, ddp_status last_error { $result = PyLong_FromLong($1); }

/* HANDLES */
%define ddp_handle_argument(TYPE)
%typemap(in) TYPE* (DdpHandle* held = NULL) {
    void* pointer = NULL;
    if (!ddp_py_enter($input, &ddp_py_ ## TYPE, &held, &pointer)) SWIG_fail;
    $1 = (TYPE*)pointer;
}
%typemap(freearg, noblock=1) TYPE* { ddp_py_leave(held$argnum); }
%typemap(typecheck, precedence=SWIG_TYPECHECK_POINTER) TYPE* { $1 = 1; }
%apply TYPE* { const TYPE* };
%enddef

%define ddp_handle(TYPE, FREE)
ddp_handle_argument(TYPE)
%typemap(in, numinputs=0) TYPE** (TYPE* made = NULL) { $1 = &made; }
%typemap(argout) TYPE** { $result = DDP_PY_APPEND($result, ddp_py_own(&ddp_py_ ## TYPE, made$argnum, (uintptr_t)arg1)); }
/* Frees when no call in another thread uses the handle any more. */
%exception FREE { ddp_py_close(held1); }
%enddef
%define ddp_borrowed_handle(TYPE)
ddp_handle_argument(TYPE)
%enddef

/* Only ddp_error_create gives a handle as its value. */
%typemap(out) ddp_error* { $result = ddp_py_own(&ddp_py_ddp_error, $1, 0); }

/* Part of the job, which it keeps from being freed. */
%typemap(out) ddp_group* ddp_elastic_group { $result = ddp_py_lend(&ddp_py_ddp_group, $1, held1); }

/* NUMBERS, LISTS, BYTES. As SWIG's OUTPUT, but 0 where the call fails before it writes. */
%define ddp_number_result(TYPE, NAME)
%typemap(in, numinputs=0) TYPE* NAME (TYPE number = 0) { $1 = &number; }
%typemap(argout) TYPE* NAME { $result = DDP_PY_APPEND($result, PyLong_FromLongLong(*$1)); }
%enddef
ddp_number_result(int32_t, done)
ddp_number_result(int32_t, used)
ddp_number_result(int32_t, exists)
ddp_number_result(int32_t, deleted)
ddp_number_result(int32_t, found)
ddp_number_result(int32_t, ranks)
ddp_number_result(int32_t, devices)
ddp_number_result(int32_t, norm)
ddp_number_result(int32_t, level)
ddp_number_result(uint32_t, any)
ddp_number_result(uint32_t, all)
ddp_number_result(ddp_param, param)
ddp_number_result(ddp_param, first)
ddp_number_result(int64_t, sum)
ddp_number_result(int64_t, count)
ddp_number_result(int64_t, begin)
ddp_number_result(int64_t, end)
%typemap(in, numinputs=0) double* value (double number = 0) { $1 = &number; }
%typemap(argout) double* value { $result = DDP_PY_APPEND($result, PyFloat_FromDouble(*$1)); }

%typemap(in) (const ddp_param* params, size_t count) (int32_t* list = NULL) {
    if (!ddp_py_int32_list($input, &list, &$2)) SWIG_fail;
    $1 = list;
}
%typemap(freearg, noblock=1) (const ddp_param* params, size_t count) { free(list$argnum); }

%apply (const ddp_param* params, size_t count) { (const int32_t* fragment_of, size_t count) };

%typemap(in) (const int64_t* extents, size_t count) (int64_t* list = NULL) {
    if (!ddp_py_int64_list($input, &list, &$2)) SWIG_fail;
    $1 = list;
}
%typemap(freearg, noblock=1) (const int64_t* extents, size_t count) { free(list$argnum); }
%typemap(in) (const uint64_t* caps, size_t count) (int64_t* list = NULL) {
    if (!ddp_py_int64_list($input, &list, &$2)) SWIG_fail;
    $1 = (uint64_t*)list;
}
%typemap(freearg, noblock=1) (const uint64_t* caps, size_t count) { free(list$argnum); }

/* One argument: (periods, group_sizes or None). */
%typemap(in) (const int64_t* periods, const int32_t* group_sizes, size_t count)
             (int64_t* periods = NULL, int32_t* sizes = NULL) {
    if (!ddp_py_hierarchy($input, &periods, &sizes, &$3)) SWIG_fail;
    $1 = periods;
    $2 = sizes;
}
%typemap(freearg, noblock=1) (const int64_t* periods, const int32_t* group_sizes, size_t count) {
    free(periods$argnum); free(sizes$argnum);
}

/* One argument: (send_counts, recv_counts). */
%typemap(in) (const uint64_t* send_counts, const uint64_t* recv_counts, size_t n)
             (int64_t* sent = NULL, int64_t* received = NULL) {
    if (!ddp_py_counts($input, &sent, &received, &$3)) SWIG_fail;
    $1 = (uint64_t*)sent;
    $2 = (uint64_t*)received;
}
%typemap(freearg, noblock=1) (const uint64_t* send_counts, const uint64_t* recv_counts, size_t n) {
    free(sent$argnum); free(received$argnum);
}

%typemap(in) (ddp_group* const* groups, size_t n) (DdpHandle** held = NULL, void** list = NULL) {
    if (!ddp_py_enter_list($input, &ddp_py_ddp_group, &held, &list, &$2)) SWIG_fail;
    $1 = (ddp_group**)list;
}
%typemap(argout) (ddp_group* const* groups, size_t n) ""
%typemap(freearg, noblock=1) (ddp_group* const* groups, size_t n) { ddp_py_leave_list(held$argnum, list$argnum, $2); }

%typemap(in) (const void* value, size_t size) (Py_buffer bytes = {0}) {
    if (!ddp_py_bytes($input, &bytes)) SWIG_fail;
    $1 = bytes.buf;
    $2 = (size_t)bytes.len;
}
%typemap(freearg, noblock=1) (const void* value, size_t size) { PyBuffer_Release(&bytes$argnum); }
%apply (const void* value, size_t size) {
    (const void* data, size_t size), (const void* expected, size_t expected_size), (const void* desired, size_t desired_size)
};

%define ddp_bytes_result(PARAMETERS, FREE)
%typemap(in, numinputs=0) PARAMETERS (void* bytes = NULL, size_t length = 0) { $1 = &bytes; $2 = &length; }
%typemap(argout) PARAMETERS {
    $result = DDP_PY_APPEND($result, PyBytes_FromStringAndSize((const char*)*$1, (Py_ssize_t)*$2));
}
%typemap(freearg, noblock=1) PARAMETERS { FREE(bytes$argnum); }
%enddef
%define DDP_VALUE_AND_SIZE (void** value, size_t* size) %enddef
%define DDP_KEYS_AND_SIZE (void** keys, size_t* size) %enddef
%define DDP_DATA_AND_SIZE (void** data, size_t* size) %enddef
ddp_bytes_result(DDP_VALUE_AND_SIZE, ddp_free)
ddp_bytes_result(DDP_KEYS_AND_SIZE, ddp_free)
ddp_bytes_result(DDP_DATA_AND_SIZE, ddp_free)

%typemap(in, numinputs=0) char** text (char* made = NULL) { $1 = &made; }
%typemap(argout) char** text { $result = DDP_PY_APPEND($result, *$1 ? PyUnicode_FromString(*$1) : SWIG_Py_Void()); }
%typemap(freearg, noblock=1) char** text { ddp_free(made$argnum); }

%typemap(in) (const char* const* keys, size_t count) (const char** list = NULL) {
    if (!ddp_py_text_list($input, &list, &$2)) SWIG_fail;
    $1 = list;
}
%typemap(freearg, noblock=1) (const char* const* keys, size_t count) { free(list$argnum); }

%typemap(in) (uint64_t* bytes, size_t capacity, size_t* count) (uint64_t* list = NULL, size_t number = 0) {
    if (!ddp_py_capacity($input, sizeof *list, (void**)&list, &$2)) SWIG_fail;
    $1 = list;
    $3 = &number;
}
%typemap(argout) (uint64_t* bytes, size_t capacity, size_t* count) {
    $result = DDP_PY_APPEND($result, ddp_py_uint64_result($1, *$3 < $2 ? *$3 : $2));
}
%typemap(freearg, noblock=1) (uint64_t* bytes, size_t capacity, size_t* count) { free(list$argnum); }
%typemap(in) (ddp_param* params, size_t capacity, size_t* count) (int32_t* list = NULL, size_t number = 0) {
    if (!ddp_py_capacity($input, sizeof *list, (void**)&list, &$2)) SWIG_fail;
    $1 = list;
    $3 = &number;
}
%typemap(argout) (ddp_param* params, size_t capacity, size_t* count) {
    $result = DDP_PY_APPEND($result, ddp_py_int32_result($1, *$3 < $2 ? *$3 : $2));
}
%typemap(freearg, noblock=1) (ddp_param* params, size_t capacity, size_t* count) { free(list$argnum); }

/* MEMORY is an address, or None; the Python files keep what is there alive. */
%typemap(in) void*, const void* {
    if (!ddp_py_address($input, (void**)&$1)) SWIG_fail;
}
%typemap(in) const int64_t* indices, char* text {
    void* address = NULL;
    if (!ddp_py_address($input, &address)) SWIG_fail;
    $1 = ($1_ltype)address;
}
%typemap(freearg) char* text ""
%typemap(out) void*, const void* { $result = ddp_py_from_address((const void*)$1); }
%typemap(in, numinputs=0) void** view (void* at = NULL), void** memory (void* at = NULL) { $1 = &at; }
%typemap(argout) void** view, void** memory { $result = DDP_PY_APPEND($result, ddp_py_from_address(*$1)); }
%typemap(in, numinputs=0) const int64_t** indices (const int64_t* at = NULL) { $1 = &at; }
%typemap(in, numinputs=0) const void** values (const void* at = NULL) { $1 = &at; }
%typemap(in, numinputs=0) size_t* count (size_t number = 0) { $1 = &number; }
%typemap(argout) const int64_t** indices, const void** values {
    $result = DDP_PY_APPEND($result, ddp_py_from_address((const void*)*$1));
}
%typemap(argout) size_t* count { $result = DDP_PY_APPEND($result, PyLong_FromSize_t(*$1)); }

/* Waits for the end inside the call unless the argument is true; then it comes back as a handle. */
%typemap(in) ddp_work** work (ddp_work* made = NULL) {
    $1 = PyObject_IsTrue($input) == 1 ? &made : NULL;
}
%typemap(argout) ddp_work** work {
    if ($1) $result = DDP_PY_APPEND($result, ddp_py_own(&ddp_py_ddp_work, *$1, (uintptr_t)arg1));
}

/* CALLBACKS: any callable, or None. */
%define ddp_callback(TYPE)
%typemap(in) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) (DdpCallback* callback = NULL) {
    if (!ddp_py_callback($input, (uintptr_t)arg1, &callback)) SWIG_fail;
    $1 = callback ? ddp_py_call_ ## TYPE : NULL;
    $2 = callback;
    $3 = callback ? ddp_py_callback_unused : NULL;
}
/* Not taken over where the call failed. */
%typemap(freearg, noblock=1) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) {
    if (callback$argnum && PyErr_Occurred()) ddp_py_callback_unused(callback$argnum);
}
%enddef
/* Python code never runs on a thread of libddp's own. */
%define ddp_no_foreign_thread(FUNCTION)
%exception FUNCTION {
    if (arg5 & DDP_WORK_ANY_THREAD) {
        ddp_py_fail(DDP_ERROR_UNSUPPORTED, "DDP_WORK_ANY_THREAD: a Python function runs only on threads inside a libddp call");
        SWIG_fail;
    }
    $action
}
%enddef
ddp_no_foreign_thread(ddp_work_then)
ddp_no_foreign_thread(ddp_hook_then)

ddp_callback(ddp_comm_hook_fn)
ddp_callback(ddp_bucket_fn)
ddp_callback(ddp_work_fn)
ddp_callback(ddp_buffer_hook_fn)
ddp_callback(ddp_reduced_fn)

/* Whether Python's signal handlers run in waits, which is so when the module is loaded. */
%typemap(in) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) {
    $1 = PyObject_IsTrue($input) == 1 ? ddp_py_interrupted : NULL;
    $2 = NULL;
    $3 = NULL;
}

/* A table of C functions, by address: made in C, or with ctypes. */
%typemap(in) const ddp_backend* backend {
    void* address = NULL;
    if (!ddp_py_address($input, &address)) SWIG_fail;
    $1 = (ddp_backend*)address;
}
%ignore ddp_backend_failure;
%ignore ddp_backend_host;
%ignore ddp_collective;
%ignore ddp_backend;

/* Too short to be worth letting go of the interpreter lock: they only read. */
%nothread ddp_status_name;
%nothread ddp_error_code;
%nothread ddp_error_message;
%nothread ddp_error_rank;
%nothread ddp_error_param;
%nothread ddp_error_bucket;
%nothread ddp_error_step;
%nothread ddp_dtype_size;
%nothread ddp_dtype_name;
%nothread ddp_group_rank;
%nothread ddp_group_world_size;
%nothread ddp_elastic_group;
%nothread ddp_shard_range;
%nothread ddp_layout_generation;
%nothread ddp_context_bucket_count;
%nothread ddp_context_param_bucket;
%nothread ddp_bucket_index;
%nothread ddp_bucket_is_last;
%nothread ddp_bucket_step;
%nothread ddp_bucket_dtype;
%nothread ddp_bucket_op;
%nothread ddp_bucket_device;
%nothread ddp_bucket_buffer;
%nothread ddp_bucket_count;
%nothread ddp_bucket_param_count;
%nothread ddp_bucket_gradient;
%nothread ddp_bucket_parameter;
/* These free by themselves, and let go of the lock there. */
%nothread ddp_store_free;
%nothread ddp_group_free;
%nothread ddp_work_free;
%nothread ddp_context_free;
%nothread ddp_layout_free;
%nothread ddp_averager_free;
%nothread ddp_optimizer_free;
%nothread ddp_elastic_free;
%nothread ddp_error_free;
