/* failure.h: libddp's errors as Java's exceptions. convert.h and callbacks.h include this, and
 * never the other way round. */
#ifndef DDP_JAVA_FAILURE_H
#define DDP_JAVA_FAILURE_H

#include <jni.h>

#include "ddp/ddp.h"

/* The machine's threads: NULL on one that Java does not know. */
JNIEnv* ddp_java_env(void);

/* Classes and methods that C calls, found when the library is loaded. */
typedef struct DdpJava {
    jclass failures;  /* DdpException */
    jmethodID make;   /* static DdpException make(int, byte[], int, int, int, long) */
    jclass callbacks; /* Callback */
    jmethodID run;    /* static void run(Callback, long, long, long[]) */
    jclass threads;   /* Thread */
    jmethodID current, interrupted;
} DdpJava;
extern DdpJava ddp_java;

/* A new byte[], or null for NULL. */
jbyteArray ddp_java_bytes(JNIEnv* env, const void* bytes, size_t size);

/* Throws and frees `error`. */
void ddp_java_throw(JNIEnv* env, ddp_error* error);
/* An exception of Java's own. */
void ddp_java_throw_named(JNIEnv* env, const char* class_name, const char* message);
/* IllegalStateException "name: why". */
void ddp_java_throw_state(JNIEnv* env, const char* name, const char* why);

/* A ddp_interrupt_fn: whether the calling thread is interrupted, which it stays. */
int32_t ddp_java_interrupted(void* user_data);

/* Gives *error a new object. Returns the status. */
ddp_status ddp_java_fail(ddp_error** error, ddp_status status, const char* message);

#endif /* DDP_JAVA_FAILURE_H */
