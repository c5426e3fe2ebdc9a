#include "failure.h"

#include <stdio.h>
#include <string.h>

enum { JNI_VERSION = JNI_VERSION_10 };

DdpJava ddp_java;
static JavaVM* machine;

static jclass find_class(JNIEnv* env, const char* name) {
    jclass found = (*env)->FindClass(env, name);
    return found ? (*env)->NewGlobalRef(env, found) : NULL;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void* reserved) {
    JNIEnv* env = NULL;
    (void)reserved;
    machine = vm;
    if ((*vm)->GetEnv(vm, (void**)&env, JNI_VERSION) != JNI_OK) return JNI_ERR;
    ddp_java.failures = find_class(env, "org/libddp/DdpException");
    ddp_java.callbacks = find_class(env, "org/libddp/Callback");
    ddp_java.threads = find_class(env, "java/lang/Thread");
    if (!ddp_java.failures || !ddp_java.callbacks || !ddp_java.threads) return JNI_ERR;
    ddp_java.make = (*env)->GetStaticMethodID(env, ddp_java.failures, "make",
                                              "(I[BIIIJ)Lorg/libddp/DdpException;");
    ddp_java.run =
        (*env)->GetStaticMethodID(env, ddp_java.callbacks, "run", "(Lorg/libddp/Callback;JJ[J)V");
    ddp_java.current =
        (*env)->GetStaticMethodID(env, ddp_java.threads, "currentThread", "()Ljava/lang/Thread;");
    ddp_java.interrupted = (*env)->GetMethodID(env, ddp_java.threads, "isInterrupted", "()Z");
    if (!ddp_java.make || !ddp_java.run || !ddp_java.current || !ddp_java.interrupted)
        return JNI_ERR;
    return ddp_set_interrupt_check(ddp_java_interrupted, NULL, NULL, 0, NULL) == DDP_OK
               ? JNI_VERSION
               : JNI_ERR;
}

JNIEnv* ddp_java_env(void) {
    JNIEnv* env = NULL;
    return (*machine)->GetEnv(machine, (void**)&env, JNI_VERSION) == JNI_OK ? env : NULL;
}

int32_t ddp_java_interrupted(void* user_data) {
    (void)user_data;
    JNIEnv* env = ddp_java_env();
    if (!env || (*env)->ExceptionCheck(env)) return 0;
    jobject thread = (*env)->CallStaticObjectMethod(env, ddp_java.threads, ddp_java.current);
    if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
    if (!thread) return 0;
    const jboolean yes = (*env)->CallBooleanMethod(env, thread, ddp_java.interrupted);
    if ((*env)->ExceptionCheck(env)) (*env)->ExceptionClear(env);
    (*env)->DeleteLocalRef(env, thread);
    return yes;
}

jbyteArray ddp_java_bytes(JNIEnv* env, const void* bytes, size_t size) {
    if (!bytes) return NULL;
    if (size > INT32_MAX - 8) {
        ddp_java_throw_named(env, "java/lang/OutOfMemoryError",
                             "libddp: a result is larger than a Java array can be");
        return NULL;
    }
    jbyteArray made = (*env)->NewByteArray(env, (jsize)size);
    if (made) (*env)->SetByteArrayRegion(env, made, 0, (jsize)size, bytes);
    return made;
}

void ddp_java_throw(JNIEnv* env, ddp_error* error) {
    if (!(*env)->ExceptionCheck(env)) {
        const char* message = ddp_error_message(error);
        jbyteArray text = ddp_java_bytes(env, message, strlen(message));
        jthrowable made = NULL;
        if (text) {
            made = (*env)->CallStaticObjectMethod(
                env, ddp_java.failures, ddp_java.make, (jint)ddp_error_code(error), text,
                (jint)ddp_error_rank(error), (jint)ddp_error_param(error),
                (jint)ddp_error_bucket(error), (jlong)ddp_error_step(error));
        }
        if (made && !(*env)->ExceptionCheck(env)) (*env)->Throw(env, made);
    }
    ddp_error_free(error);
}

void ddp_java_throw_named(JNIEnv* env, const char* class_name, const char* message) {
    jclass type = (*env)->FindClass(env, class_name);
    if (type) (*env)->ThrowNew(env, type, message);
}

void ddp_java_throw_state(JNIEnv* env, const char* name, const char* why) {
    char message[160];
    snprintf(message, sizeof message, "%s: %s", name, why);
    ddp_java_throw_named(env, "java/lang/IllegalStateException", message);
}

ddp_status ddp_java_fail(ddp_error** error, ddp_status status, const char* message) {
    if (error) *error = ddp_error_create(status, message);
    return status;
}
