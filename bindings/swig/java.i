/* java.i: how ddp.i looks in Java: the class ddp, with a static method for every function. It and all that is generated here is
 * private to the package org.libddp, whose other files, in bindings/java, are what users see.
 *
 * Handles are guarded in Java (Handle.java), with a count of the calls that use one; text crosses as UTF-8 bytes, because
 * Java's own native text is another encoding; memory is an address. Results come back in arrays of one element.
 */
%{
#include "callbacks.h"
#include "convert.h"
#include "failure.h"
#include "memory.h"
%}

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    Natives.load();
  }
%}

/* STRUCTS are closed by who makes them, and by nobody else. */
%typemap(javaclassmodifiers) SWIGTYPE, SWIGTYPE*, SWIGTYPE&, SWIGTYPE[] "final class"
%typemap(javainterfaces) SWIGTYPE "AutoCloseable"
%typemap(javafinalize) SWIGTYPE ""
%typemap(javadestruct, methodname="delete", methodmodifiers="private synchronized") SWIGTYPE {
    if (swigCPtr != 0) {
      if (swigCMemOwn) {
        swigCMemOwn = false;
        $jnicall;
      }
      swigCPtr = 0;
    }
  }
%typemap(javacode) SWIGTYPE %{
  @Override
  public void close() {
    delete();
  }
%}
%ignore ddp_tensor::shape;
%ignore ddp_param_desc::shape;
%ignore ddp_context_options::bucket_caps;
%ignore ddp_backend_failure;
%ignore ddp_backend_host;
%ignore ddp_collective;
%ignore ddp_backend;

/* FAILURE. Thrown last of all, so that what the call made has been freed or given back by then. */
%typemap(in, numinputs=0) ddp_error** error (ddp_error* failure = NULL) { $1 = &failure; }
%typemap(argout) ddp_error** error {
    if (*$1) ddp_java_throw(jenv, *$1);
}

/* HANDLES. Entering never throws, so that each is left exactly once; the markers say what was wrong. */
%define ddp_handle_argument(TYPE)
%typemap(jni) TYPE* "jlong"
%typemap(jtype) TYPE* "long"
%typemap(jstype) TYPE* %{Handle<Kind.TYPE>%}
%typemap(javain, pre="    long at_$javainput = Handle.enter($javainput);",
         post="      Handle.leave($javainput, at_$javainput);") TYPE* "at_$javainput"
%typemap(javaout) TYPE* { return Handle.borrowed($jnicall); }
%typemap(in) TYPE* {
    if (!ddp_java_handle(jenv, $input, "$1_name")) return $null;
    $1 = ($1_ltype)(uintptr_t)$input;
}
%typemap(out) TYPE* { $result = (jlong)(uintptr_t)$1; }
%apply TYPE* { const TYPE* };
%enddef

%define ddp_handle(TYPE, FREE)
ddp_handle_argument(TYPE)
%apply void** result { TYPE** };
%ignore FREE;
%enddef
%define ddp_borrowed_handle(TYPE)
ddp_handle_argument(TYPE)
%enddef
%typemap(javaout) ddp_group* ddp_elastic_group { return Handle.part(elastic, $jnicall); }
%typemap(javaout) ddp_error* ddp_error_create { return Handle.own(Kind.ERROR, $jnicall); }
%pragma(java) modulecode=%{
  static void ddp_store_free(Handle<Kind.ddp_store> store) { Handle.close(store); }
  static void ddp_group_free(Handle<Kind.ddp_group> group) { Handle.close(group); }
  static void ddp_work_free(Handle<Kind.ddp_work> work) { Handle.close(work); }
  static void ddp_context_free(Handle<Kind.ddp_context> context) { Handle.close(context); }
  static void ddp_layout_free(Handle<Kind.ddp_layout> layout) { Handle.close(layout); }
  static void ddp_averager_free(Handle<Kind.ddp_averager> averager) { Handle.close(averager); }
  static void ddp_optimizer_free(Handle<Kind.ddp_optimizer> optimizer) { Handle.close(optimizer); }
  static void ddp_elastic_free(Handle<Kind.ddp_elastic> elastic) { Handle.close(elastic); }
  static void ddp_error_free(Handle<Kind.ddp_error> error) { Handle.close(error); }
%}
%typemap(jni) jobject buffer "jobject"
%typemap(jtype) jobject buffer "java.nio.Buffer"
%typemap(jstype) jobject buffer "java.nio.Buffer"
%typemap(javain) jobject buffer "$javainput"
%typemap(jni) jobject ddp_java_show "jobject"
%typemap(jtype) jobject ddp_java_show "java.nio.ByteBuffer"
%typemap(jstype) jobject ddp_java_show "java.nio.ByteBuffer"
%typemap(javaout) jobject ddp_java_show { return $jnicall; }
%typemap(in, numinputs=0) JNIEnv* env { $1 = jenv; }

/* Memory of the caller's is an address, which Java keeps alive; memory of libddp's comes back as one. */
%typemap(jni) void* "jlong"
%typemap(jtype) void* "long"
%typemap(jstype) void* "long"
%typemap(javain) void* "$javainput"
%typemap(javaout) void* { return $jnicall; }
%typemap(in) void* { $1 = ($1_ltype)(uintptr_t)$input; }
%typemap(out) void* { $result = (jlong)(uintptr_t)$1; }
%apply void* { const void*, const int64_t* indices, char* text, const ddp_backend* backend };
%typemap(freearg) char* text ""

/* RESULTS in arrays of one element, or null: not wanted. Without an array for its work, a collective ends inside the call. */
%typemap(jni) void** result "jlongArray"
%typemap(jtype) void** result "long[]"
%typemap(jstype) void** result "long[]"
%typemap(javain) void** result "$javainput"
%typemap(in) void** result ($*1_ltype made = 0) { $1 = $input ? ($1_ltype)&made : NULL; }
%typemap(argout) void** result {
    if ($input) ddp_java_give(jenv, $input, (jlong)(uintptr_t)made$argnum);
}
%apply void** result { void** view, void** memory, const int64_t** indices, const void** values, size_t* count };
%apply int64_t { uint64_t };

/* TEXT AND BYTES */
%typemap(jni) const char* "jbyteArray"
%typemap(jtype) const char* "byte[]"
%typemap(jstype) const char* "String"
%typemap(javain) const char* "Text.bytes(\"$javainput\", $javainput)"
%typemap(javaout) const char* { return Text.of($jnicall); }
%typemap(in) const char* (char* text = NULL) {
    if (!ddp_java_text(jenv, $input, &text)) return $null;
    $1 = text;
}
%typemap(freearg, noblock=1) const char* { free(text$argnum); }
%typemap(out) const char* { $result = ddp_java_bytes(jenv, $1, $1 ? strlen($1) : 0); }

%define ddp_list_argument(PATTERN, JNI, JAVA, JSTYPE, CONVERTED)
%typemap(jni) PATTERN JNI
%typemap(jtype) PATTERN JAVA
%typemap(jstype) PATTERN JSTYPE
%typemap(javain) PATTERN CONVERTED
%enddef
%define DDP_BYTES (const void* value, size_t size) %enddef
ddp_list_argument(DDP_BYTES, "jbyteArray", "byte[]", "byte[]", "$javainput")
%typemap(in) DDP_BYTES (void* copy = NULL) {
    if (!ddp_java_copy_bytes(jenv, $input, &copy, &$2)) return $null;
    $1 = copy;
}
%typemap(freearg, noblock=1) DDP_BYTES { free(copy$argnum); }
%apply DDP_BYTES {
    (const void* data, size_t size), (const void* expected, size_t expected_size), (const void* desired, size_t desired_size)
};

%define ddp_bytes_result(PARAMETERS, FREE)
ddp_list_argument(PARAMETERS, "jobjectArray", "byte[][]", "byte[][]", "$javainput")
%typemap(in) PARAMETERS (void* bytes = NULL, size_t length = 0) { $1 = ($1_ltype)&bytes; $2 = &length; }
%typemap(argout) PARAMETERS { ddp_java_give_bytes(jenv, $input, 0, bytes$argnum, length$argnum); }
%typemap(freearg, noblock=1) PARAMETERS { FREE(bytes$argnum); }
%enddef
%define DDP_VALUE_AND_SIZE (void** value, size_t* size) %enddef
%define DDP_KEYS_AND_SIZE (void** keys, size_t* size) %enddef
%define DDP_DATA_AND_SIZE (void** data, size_t* size) %enddef
ddp_bytes_result(DDP_VALUE_AND_SIZE, ddp_free)
ddp_bytes_result(DDP_KEYS_AND_SIZE, ddp_free)
ddp_bytes_result(DDP_DATA_AND_SIZE, ddp_free)
ddp_list_argument(char** text, "jobjectArray", "byte[][]", "byte[][]", "$javainput")
%typemap(in) char** text (char* made = NULL) { $1 = &made; }
%typemap(argout) char** text { ddp_java_give_bytes(jenv, $input, 0, made$argnum, made$argnum ? strlen(made$argnum) : 0); }
%typemap(freearg, noblock=1) char** text { ddp_free(made$argnum); }

/* LISTS */
%define DDP_KEY_LIST (const char* const* keys, size_t count) %enddef
ddp_list_argument(DDP_KEY_LIST, "jobjectArray", "byte[][]", "java.util.Collection<String>", "Text.list(\"keys\", $javainput)")
%typemap(in) DDP_KEY_LIST (char** list = NULL) {
    if (!ddp_java_texts(jenv, $input, &list, &$2)) return $null;
    $1 = ($1_ltype)list;
}
%typemap(freearg, noblock=1) DDP_KEY_LIST { ddp_java_texts_free(list$argnum, $2); }

%define ddp_number_list(PARAMETERS, JNI, JAVA, COPY)
ddp_list_argument(PARAMETERS, JNI, JAVA, JAVA, "$javainput")
%typemap(in) PARAMETERS ($1_ltype list = NULL) {
    if (!COPY(jenv, $input, (void**)&list, &$2)) return $null;
    $1 = list;
}
%typemap(freearg, noblock=1) PARAMETERS { free(list$argnum); }
%enddef
%define DDP_PARAMS (const ddp_param* params, size_t count) %enddef
%define DDP_FRAGMENTS (const int32_t* fragment_of, size_t count) %enddef
%define DDP_EXTENTS (const int64_t* extents, size_t count) %enddef
%define DDP_CAPS (const uint64_t* caps, size_t count) %enddef
ddp_number_list(DDP_PARAMS, "jintArray", "int[]", ddp_java_copy_ints)
ddp_number_list(DDP_FRAGMENTS, "jintArray", "int[]", ddp_java_copy_ints)
ddp_number_list(DDP_EXTENTS, "jlongArray", "long[]", ddp_java_copy_longs)
ddp_number_list(DDP_CAPS, "jlongArray", "long[]", ddp_java_copy_longs)

/* One argument: the periods and the sizes, or null. */
%define DDP_HIERARCHY (const int64_t* periods, const int32_t* group_sizes, size_t count) %enddef
ddp_list_argument(DDP_HIERARCHY, "jobjectArray", "Object[]", "Object[]", "$javainput")
%typemap(in) DDP_HIERARCHY (void* periods = NULL, void* sizes = NULL) {
    if (!ddp_java_hierarchy(jenv, $input, &periods, &sizes, &$3)) return $null;
    $1 = periods;
    $2 = sizes;
}
%typemap(freearg, noblock=1) DDP_HIERARCHY { free(periods$argnum); free(sizes$argnum); }

/* One argument: the counts to send, and those to receive. */
%define DDP_COUNTS (const uint64_t* send_counts, const uint64_t* recv_counts, size_t n) %enddef
ddp_list_argument(DDP_COUNTS, "jobjectArray", "long[][]", "long[][]", "$javainput")
%typemap(in) DDP_COUNTS (void* sent = NULL, void* received = NULL) {
    if (!ddp_java_counts(jenv, $input, &sent, &received, &$3)) return $null;
    $1 = sent;
    $2 = received;
}
%typemap(freearg, noblock=1) DDP_COUNTS { free(sent$argnum); free(received$argnum); }

%define DDP_GROUPS (ddp_group* const* groups, size_t n) %enddef
%typemap(jni) DDP_GROUPS "jlongArray"
%typemap(jtype) DDP_GROUPS "long[]"
%typemap(jstype) DDP_GROUPS "java.util.List<Handle<Kind.ddp_group>>"
%typemap(javain, pre="    long[] at_$javainput = Handle.enterAll($javainput);",
         post="      Handle.leaveAll($javainput, at_$javainput);") DDP_GROUPS "at_$javainput"
%typemap(in) DDP_GROUPS (void* list = NULL) {
    if (!ddp_java_handles(jenv, $input, "groups", &list, &$2)) return $null;
    $1 = (ddp_group**)list;
}
%typemap(argout) DDP_GROUPS ""
%typemap(freearg, noblock=1) DDP_GROUPS { free(list$argnum); }

/* list[0] says by its length how many there is room for, and is replaced by those that there are. */
%define ddp_number_list_result(PARAMETERS, ELEMENTS, ROOM, GIVE)
ddp_list_argument(PARAMETERS, "jobjectArray", ELEMENTS, ELEMENTS, "$javainput")
%typemap(in) PARAMETERS (void* list = NULL, size_t number = 0) {
    if (!ROOM(jenv, $input, sizeof *$1, &list, &$2)) return $null;
    $1 = list;
    $3 = &number;
}
%typemap(argout) PARAMETERS { GIVE(jenv, $input, list$argnum, number$argnum < $2 ? number$argnum : $2); }
%typemap(freearg, noblock=1) PARAMETERS { free(list$argnum); }
%enddef
%define DDP_SIZES_RESULT (uint64_t* bytes, size_t capacity, size_t* count) %enddef
%define DDP_PARAMS_RESULT (ddp_param* params, size_t capacity, size_t* count) %enddef
ddp_number_list_result(DDP_SIZES_RESULT, "long[][]", ddp_java_room, ddp_java_give_longs)
ddp_number_list_result(DDP_PARAMS_RESULT, "int[][]", ddp_java_room, ddp_java_give_ints)

/* CALLBACKS: a Callback, or null. */
%define ddp_callback(TYPE)
%typemap(jni) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) "jobject"
%typemap(jtype) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) "Callback"
%typemap(jstype) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) "Callback"
%typemap(javain) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) "$javainput"
%typemap(in) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) (DdpCallback* callback = NULL) {
    if (!ddp_java_callback(jenv, $input, &callback)) return $null;
    $1 = callback ? ddp_java_call_ ## TYPE : NULL;
    $2 = callback;
    $3 = callback ? ddp_java_callback_unused : NULL;
}
/* Not taken over where the call failed. */
%typemap(freearg, noblock=1) (TYPE fn, void* user_data, void (*destroy)(void* user_data)) {
    if (callback$argnum && result != DDP_OK) ddp_java_callback_unused(callback$argnum);
}
%enddef
ddp_callback(ddp_comm_hook_fn)
ddp_callback(ddp_bucket_fn)
ddp_callback(ddp_work_fn)
ddp_callback(ddp_buffer_hook_fn)
ddp_callback(ddp_reduced_fn)

/* Whether Thread.interrupt ends waits, which is so when the library is loaded. */
%typemap(jni) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) "jboolean"
%typemap(jtype) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) "boolean"
%typemap(jstype) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) "boolean"
%typemap(javain) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) "$javainput"
%typemap(in) (ddp_interrupt_fn fn, void* user_data, void (*destroy)(void* user_data)) {
    $1 = $input ? ddp_java_interrupted : NULL;
    $2 = NULL;
    $3 = NULL;
}

/* Java code never runs on a thread of libddp's own. */
%define ddp_no_foreign_thread(FUNCTION, ERROR)
%exception FUNCTION {
    if (arg5 & DDP_WORK_ANY_THREAD)
        result = ddp_java_fail(ERROR, DDP_ERROR_UNSUPPORTED,
                               "DDP_WORK_ANY_THREAD: a Java function runs only on threads inside a libddp call");
    else
        $action
}
%enddef
ddp_no_foreign_thread(ddp_work_then, arg7)
ddp_no_foreign_thread(ddp_hook_then, arg6)

/* Used by Handle.java and Memory.java. */
void ddp_java_free(int32_t kind, void* pointer);
void* ddp_java_address(JNIEnv* env, jobject buffer);
jobject ddp_java_show(JNIEnv* env, void* memory, int64_t bytes);
void ddp_java_copy(void* to, const void* from, int64_t bytes);
