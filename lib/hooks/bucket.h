// The ddp_bucket of the C ABI: a bucket as a hook sees it. The reducer fills it in; built-in hooks
// read it directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collective.h"
#include "ddp/hook.h"
#include "device/stream.h"
#include "kernels/dtype.h"

namespace libddp {

// A range of a bucket's elements, which one collective reduces.
struct BucketSection {
    std::size_t begin = 0, count = 0;
    // The elements of each rank's part: the parts stand one after another, and each rank gets the
    // result of its own. Null: every rank gets the whole.
    std::shared_ptr<const std::vector<std::uint64_t>> counts{};
    Collective::Take take{};  // of its collective; empty: nobody looks at the result meanwhile
};

// A parameter's gradient inside a bucket, and its value.
struct BucketTensor {
    ddp_param param = -1;
    void* gradient = nullptr;  // of the bucket's type
    void* value = nullptr;
    ddp_dtype value_dtype = DDP_F32;  // the bucket may be a narrower copy
    const std::int64_t* shape = nullptr;
    std::int32_t ndim = 0;
    std::int64_t count = 0;
    // this rank has no gradient for it in this step: zeros stand here, or a mean of earlier steps
    bool absent = false;
    // the elements whose result this rank gets
    std::int64_t first_owned = 0, owned = 0;
};

}  // namespace libddp

struct ddp_bucket {
    std::int32_t index = 0;
    bool is_last = false;
    bool mean = true;  // what a hook should compute: mean or sum
    std::int64_t step = 0;
    ddp_dtype dtype = DDP_F32;
    ddp_device device{DDP_DEVICE_CPU, 0};
    libddp::StreamPtr stream;  // in whose order the buffer is written and read; null on the CPU
    // on a device: in whose order the buffer is filled before, and emptied after
    libddp::StreamPtr home;
    libddp::EventPtr done;  // on a device: where that stream is when the result is there
    void* buffer = nullptr;
    std::size_t count = 0;  // elements, gaps included
    std::vector<libddp::BucketTensor> tensors;
    // Null: all, and every rank gets the result.
    std::shared_ptr<const std::vector<libddp::BucketSection>> sections;
    // set_buffer: where the hook left the result; null: in `buffer`.
    void* result = nullptr;
    ddp_dtype result_dtype = DDP_F32;

    // Where a parameter's gradient begins in the buffer, in elements.
    std::size_t first_element(const libddp::BucketTensor& tensor) const {
        const auto bytes =
            static_cast<const std::byte*>(tensor.gradient) - static_cast<const std::byte*>(buffer);
        return static_cast<std::size_t>(bytes) / libddp::dtype_size(dtype);
    }
    // Where the elements begin whose result this rank gets: in a tensor's memory, and where the hook
    // left the result.
    std::byte* first_owned(void* memory, const libddp::BucketTensor& tensor) const {
        return static_cast<std::byte*>(memory) +
               static_cast<std::size_t>(tensor.first_owned) * libddp::dtype_size(dtype);
    }
    const std::byte* owned_result(const libddp::BucketTensor& tensor) const {
        const std::size_t first =
            first_element(tensor) + static_cast<std::size_t>(tensor.first_owned);
        return static_cast<const std::byte*>(result) + first * libddp::dtype_size(result_dtype);
    }
    // The operation that an allreduce of the buffer applies. The link that runs it divides a mean.
    ddp_reduce_op op() const { return mean ? DDP_AVG : DDP_SUM; }
};
