// The tests' own devices (support/fake_device) as org.libddp.FakeDevice sees them.
#include "support/fake_device/fake_device.h"

#include <jni.h>

namespace {

void* pointer(jlong address) {
    return reinterpret_cast<void*>(address);  // NOLINT: that is how Java holds it
}
jlong number(void* memory) {
    return reinterpret_cast<jlong>(memory);
}

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_org_libddp_FakeDevice_allocate(JNIEnv*, jclass, jint device, jlong bytes) {
    return number(fake::allocate(device, static_cast<std::size_t>(bytes)));
}
JNIEXPORT void JNICALL Java_org_libddp_FakeDevice_release(JNIEnv*, jclass, jlong memory) {
    fake::release(pointer(memory));
}
JNIEXPORT jobject JNICALL Java_org_libddp_FakeDevice_show(JNIEnv* env, jclass, jlong memory, jlong bytes) {
    return env->NewDirectByteBuffer(fake::alias(pointer(memory)), bytes);
}
JNIEXPORT jlong JNICALL Java_org_libddp_FakeDevice_makeStream(JNIEnv*, jclass, jint device) {
    return number(fake::make_stream(device));
}
JNIEXPORT void JNICALL Java_org_libddp_FakeDevice_freeStream(JNIEnv*, jclass, jlong stream) {
    fake::free_stream(pointer(stream));
}
JNIEXPORT void JNICALL Java_org_libddp_FakeDevice_await(JNIEnv*, jclass, jint device, jlong stream) {
    fake::wait(device, pointer(stream));
}
}
