// The module on any machine.
#include "util/module.h"

#include <ddp/ddp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "device/device.h"
#include "util/error.h"

namespace libddp {
namespace {

TEST(CudaModule, LoadsAndSaysItsVersion) {
    const ddp_device_module& module = device_module(DDP_DEVICE_CUDA);
    EXPECT_STREQ(module.build, build_identity());
    EXPECT_STREQ(module.name, "cuda");
}

TEST(CudaModule, FindsAGpuOrSaysWhyNot) {
    try {
        EXPECT_GE(device_count(DDP_DEVICE_CUDA), 1);
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_UNAVAILABLE);
        EXPECT_NE(error.info().message.find("no device: "), std::string::npos)
            << error.info().message;
    }
}

// Without a GPU or a driver no pointer is the device's.
TEST(CudaModule, MemoryOfTheHostIsTheCpus) {
    device_module(DDP_DEVICE_CUDA);
    const auto memory = std::make_unique<int>(1);
    EXPECT_TRUE(is_cpu(device_of(memory.get())));
}

TEST(CudaModule, TheBackendIsThereOrSaysWhyNot) {
    ddp_error* error = nullptr;
    if (ddp_backend_available("nccl", &error) == 1) return;
    const std::string message = ddp_error_message(error);
    EXPECT_TRUE(message.find("no device: ") != std::string::npos ||
                message.find("libnccl.so.2") != std::string::npos)
        << message;
    ddp_error_free(error);
}

}  // namespace
}  // namespace libddp
