#include "support/test_device.h"

#include <cstring>

#include "support/fake_device/fake_device.h"

extern "C" {

int test_device_is_fake() {
    return 1;
}
void* test_device_allocate(int device, std::size_t bytes) {
    return fake::allocate(device, bytes);
}
void test_device_write(void* memory, const void* from, std::size_t bytes) {
    std::memcpy(fake::alias(memory), from, bytes);
}
void test_device_read(void* to, const void* memory, std::size_t bytes) {
    std::memcpy(to, fake::alias(memory), bytes);
}
void* test_device_make_stream(int device) {
    return fake::make_stream(device);
}
void test_device_free_stream(void* stream) {
    fake::free_stream(stream);
}
void test_device_wait(int device, void* stream) {
    fake::wait(device, stream);
}
}
