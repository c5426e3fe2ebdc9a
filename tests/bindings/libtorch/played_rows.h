/* played_rows.h: sparse tensors on the device that threads play. Each operation waits, and works on
 * copies on the CPU. */
#pragma once

#include <ATen/SparseTensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

namespace played_rows {

inline at::Tensor moved(const at::Tensor& tensor, const at::Device& device) {
    if (!tensor.is_sparse()) return tensor.to(device);
    return at::_sparse_coo_tensor_unsafe(tensor._indices().to(device), tensor._values().to(device),
                                         tensor.sizes())
        ._coalesced_(tensor.is_coalesced());
}

inline void write(const at::Tensor& target, const at::Tensor& result) {
    if (!target.is_sparse()) {
        target.copy_(result);
        return;
    }
    const at::Tensor made = moved(result, target.device());
    auto* rows = at::sparse::get_sparse_impl(target);
    rows->set_indices_and_values_unsafe(made._indices(), made._values());
    rows->set_coalesced(made.is_coalesced());
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
    torch::jit::drop(*stack, arguments.size());
    at::Device device(at::kCPU);
    torch::jit::Stack copies;
    for (const auto& value : arguments) {
        if (value.isTensor() && value.toTensor().defined()) {
            const at::Tensor& tensor = value.toTensor();
            if (!tensor.device().is_cpu()) device = tensor.device();
            copies.emplace_back(moved(tensor, at::kCPU));
        } else if (value.isDevice()) {
            device = value.toDevice();
            copies.emplace_back(at::Device(at::kCPU));
        } else {
            copies.push_back(value);
        }
    }
    op.callBoxed(&copies);
    for (std::size_t i = 0; i < copies.size(); ++i) {
        const auto* alias = schema.returns()[i].alias_info();
        if (!copies[i].isTensor()) {
            stack->push_back(copies[i]);
        } else if (!alias) {
            stack->emplace_back(moved(copies[i].toTensor(), device));
        } else {
            for (std::size_t k = 0; k < arguments.size(); ++k)
                if (const auto* of = schema.arguments()[k].alias_info(); of && *of == *alias) {
                    write(arguments[k].toTensor(), copies[i].toTensor());
                    stack->push_back(arguments[k]);
                    break;
                }
        }
    }
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

inline at::Tensor clone(const at::Tensor& tensor, std::optional<at::MemoryFormat>) {
    return moved(moved(tensor, at::kCPU), tensor.device());
}

inline at::Tensor& copy(at::Tensor& target, const at::Tensor& source, bool) {
    write(target, moved(source, at::kCPU));
    return target;
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
    m.impl("clone", &clone);
    m.impl("copy_", &copy);
    m.impl("_sparse_coo_tensor_with_dims_and_tensors",
           &at::native::new_with_dims_and_tensor_sparse_symint);
    m.impl("_indices", &at::native::_indices_sparse);
    m.impl("_values", &at::native::_values_sparse);
    m.impl("indices", &at::native::indices_sparse);
    m.impl("values", &at::native::values_sparse);
    m.impl("_nnz", &at::native::_nnz_sparse);
    m.impl("is_coalesced", &at::native::is_coalesced_sparse);
    m.impl("_coalesced_", &at::native::_coalesced_sparse_);
    m.impl("sparse_dim", &at::native::sparse_dim_sparse);
    m.impl("dense_dim", &at::native::dense_dim_sparse);
}

}  // namespace played_rows
