/* callbacks.h: Java functions that libddp calls. It does so only on a thread that is inside a
 * libddp call, which came from Java. */
#ifndef DDP_JAVA_CALLBACKS_H
#define DDP_JAVA_CALLBACKS_H

#include <jni.h>

#include "ddp/ddp.h"

typedef struct DdpCallback DdpCallback;

/* For an object of the class Callback; NULL for null. 1, or 0 with an exception. */
int ddp_java_callback(JNIEnv* env, jobject object, DdpCallback** callback);

/* The `destroy` of libddp's functions: on any thread. On one that Java does not know, the object is
 * let go of by the next ddp_java_callback or ddp_java_free. */
void ddp_java_callback_unused(void* callback);

/* The arguments of Callback.run: */
ddp_status ddp_java_call_ddp_comm_hook_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                          ddp_work** work, ddp_error** error); /* group, bucket */
ddp_status ddp_java_call_ddp_bucket_fn(void* user_data, ddp_group* group, ddp_bucket* bucket,
                                       /* group, bucket */
                                       ddp_error** error);
/* 0, 0 */
ddp_status ddp_java_call_ddp_work_fn(void* user_data, ddp_work** next, ddp_error** error);
ddp_status ddp_java_call_ddp_buffer_hook_fn(void* user_data, ddp_group* group,
                                            const ddp_tensor* const* buffers, size_t count,
                                            ddp_error** error); /* group, 0 */
ddp_status ddp_java_call_ddp_reduced_fn(void* user_data, ddp_param param, int32_t used,
                                        ddp_error** error); /* param, used */

/* Frees what a handle of this kind (Kind.java) owns. */
void ddp_java_free(int32_t kind, void* pointer);

#endif /* DDP_JAVA_CALLBACKS_H */
