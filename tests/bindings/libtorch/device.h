/* device.h: where the tests of ddp_torch.hpp have their modules: on the device DDP_TEST_DEVICE, the
 * CPU if there is none. With PLAYED, threads play "played:0" and "played:1". */
#pragma once

#ifdef PLAYED
#define DDP_TORCH_DEVICE_TYPE c10::DeviceType::PrivateUse1
#endif
#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>
#include <cstdlib>
#include <ddp_torch.hpp>
#include <stdexcept>
#include <string>

#ifdef PLAYED
/* The device is also one of Python's. There is no Python here. */
extern "C" {
void Py_IncRef(void*) {}
void Py_DecRef(void*) {}
int Py_IsInitialized(void) {
    return 0;
}
int PyGILState_Ensure(void) {
    return 0;
}
void PyGILState_Release(int) {}
}
[[maybe_unused]] static const bool named = [] {
    c10::register_privateuse1_backend("played");
    return true;
}();
#endif

inline void expect(bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error(what);
}

/* torch::manual_seed wants a generator of each device. */
inline void seed(std::uint64_t value) {
    at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(value);
}

inline torch::Device device_of(int index) {
    const char* const name = std::getenv("DDP_TEST_DEVICE");
    torch::Device device(name ? name : "cpu");
    if (!device.is_cpu()) device.set_index(static_cast<c10::DeviceIndex>(index));
    return device;
}
inline const torch::Device& place() {
    static const torch::Device device = device_of(0);
    return device;
}

/* Moves a module that nothing has used yet. libtorch's own function moves none to PrivateUse1. */
inline void put(torch::nn::Module& module, const torch::Device& device) {
#ifdef PLAYED
    struct Tensor : c10::TensorImpl {
        static void become(c10::TensorImpl* old, c10::TensorImpl* made) {
            copy_tensor_metadata(made, old, old->version_counter(), true);
        }
    };
    torch::NoGradGuard no_grad;
    auto tensors = module.parameters();
    for (const torch::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
    for (const torch::Tensor& tensor : tensors) {
        const torch::Tensor made = tensor.detach().to(device);
        Tensor::become(tensor.unsafeGetTensorImpl(), made.unsafeGetTensorImpl());
    }
#else
    module.to(device);
#endif
}

inline ddp::Group group_of_test() {
    ddp_group_options options = ddp::Group::defaults();
    options.backend = std::getenv("DDP_TEST_BACKEND");
    return ddp::Group(options);
}
