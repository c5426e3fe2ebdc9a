#include "callbacks.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "failure.h"

struct DdpCallback {
    jobject object;    /* global reference */
    DdpCallback* next; /* among the unused */
};

static _Atomic(DdpCallback*) unused = NULL;

static void drop(JNIEnv* env, DdpCallback* callback) {
    (*env)->DeleteGlobalRef(env, callback->object);
    free(callback);
}

static void drop_unused(JNIEnv* env) {
    if (!atomic_load_explicit(&unused, memory_order_relaxed)) return;
    DdpCallback* each = atomic_exchange(&unused, NULL);
    while (each) {
        DdpCallback* next = each->next;
        drop(env, each);
        each = next;
    }
}

int ddp_java_callback(JNIEnv* env, jobject object, DdpCallback** callback) {
    drop_unused(env);
    *callback = NULL;
    if (!object) return 1;
    DdpCallback* made = calloc(1, sizeof *made);
    if (made) made->object = (*env)->NewGlobalRef(env, object);
    if (made && made->object) {
        *callback = made;
        return 1;
    }
    free(made);
    ddp_java_throw_named(env, "java/lang/OutOfMemoryError", "libddp: memory outside the Java heap");
    return 0;
}

void ddp_java_callback_unused(void* callback) {
    DdpCallback* mine = callback;
    JNIEnv* env = ddp_java_env();
    if (env) {
        drop(env, mine);
        return;
    }
    mine->next = atomic_load(&unused);
    while (!atomic_compare_exchange_weak(&unused, &mine->next, mine)) {
    }
}

/* Calls run(callback, first, second, out) and reads out: a work, and an error. References made
 * meanwhile are dropped, as the call that this happens in may make many callbacks. */
static ddp_status run_in_frame(JNIEnv* env, const DdpCallback* callback, jlong first, jlong second,
                               ddp_work** work, ddp_error** error) {
    jlong out[2] = {0, 0};
    jlongArray results = (*env)->NewLongArray(env, 2);
    if (results) {
        (*env)->CallStaticVoidMethod(env, ddp_java.callbacks, ddp_java.run, callback->object, first,
                                     second, results);
    }
    if ((*env)->ExceptionCheck(env)) { /* run itself found no memory, or no stack */
        (*env)->ExceptionClear(env);
        return ddp_java_fail(error, DDP_ERROR_CALLBACK,
                             "a Java function could not be called: memory or stack is exhausted");
    }
    (*env)->GetLongArrayRegion(env, results, 0, 2, out);
    ddp_error* failure = (ddp_error*)(uintptr_t)out[1];
    if (!failure) {
        if (work && out[0]) *work = (ddp_work*)(uintptr_t)out[0];
        return DDP_OK;
    }
    const ddp_status status = ddp_error_code(failure);
    if (error)
        *error = failure;
    else
        ddp_error_free(failure);
    return status;
}

static ddp_status run(const DdpCallback* callback, jlong first, jlong second, ddp_work** work,
                      ddp_error** error) {
    JNIEnv* env = ddp_java_env();
    if (!env)
        return ddp_java_fail(error, DDP_ERROR_UNSUPPORTED,
                             "a Java function runs only on threads inside a libddp call");
    if ((*env)->PushLocalFrame(env, 8) != 0) {
        (*env)->ExceptionClear(env);
        return ddp_java_fail(error, DDP_ERROR_CALLBACK,
                             "a Java function could not be called: memory is exhausted");
    }
    const ddp_status status = run_in_frame(env, callback, first, second, work, error);
    (*env)->PopLocalFrame(env, NULL);
    return status;
}

ddp_status ddp_java_call_ddp_comm_hook_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                          ddp_work** work, ddp_error** error) {
    return run(user_data, (jlong)(uintptr_t)group, (jlong)(uintptr_t)bucket, work, error);
}

ddp_status ddp_java_call_ddp_bucket_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                       ddp_error** error) {
    return run(user_data, (jlong)(uintptr_t)group, (jlong)(uintptr_t)bucket, NULL, error);
}

ddp_status ddp_java_call_ddp_work_fn(void* user_data, ddp_work** next, ddp_error** error) {
    return run(user_data, 0, 0, next, error);
}

ddp_status ddp_java_call_ddp_buffer_hook_fn(void* user_data, ddp_group* group,
                                            const ddp_tensor* const* buffers, size_t count,
                                            ddp_error** error) {
    (void)buffers;
    (void)count; /* those that were registered, in the same order: Java knows them */
    return run(user_data, (jlong)(uintptr_t)group, 0, NULL, error);
}

ddp_status ddp_java_call_ddp_reduced_fn(void* user_data, ddp_param param, int32_t used,
                                        ddp_error** error) {
    return run(user_data, param, used, NULL, error);
}

/* The numbers are those of Kind.java. */
void ddp_java_free(int32_t kind, void* pointer) {
    switch (kind) {
        case 1:
            ddp_store_free(pointer);
            break;
        case 2:
            ddp_group_free(pointer);
            break;
        case 3:
            ddp_work_free(pointer);
            break;
        case 4:
            ddp_context_free(pointer);
            break;
        case 5:
            ddp_layout_free(pointer);
            break;
        case 6:
            ddp_averager_free(pointer);
            break;
        case 7:
            ddp_error_free(pointer);
            break;
        case 8:
            ddp_mem_free(pointer, NULL);
            break;
        case 9:
            ddp_elastic_free(pointer);
            break;
        case 10:
            ddp_optimizer_free(pointer);
            break;
        default:
            break;
    }
    JNIEnv* env = ddp_java_env();
    if (env) drop_unused(env);
}
