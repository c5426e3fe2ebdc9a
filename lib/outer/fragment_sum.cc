#include "outer/fragment_sum.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "comm/link.h"
#include "device/memory.h"
#include "hooks/compressed_sum.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp {
namespace {

// In the state of an averager.
constexpr const char* kFragment = "fragment";
constexpr const char* kDue = "due";
constexpr const char* kSent = "sent";
constexpr const char* kMean = "mean";

constexpr ddp_codec kInt8{DDP_CODEC_INT8, 0, 256, 0};

}  // namespace

bool has_average(const Param& p) {
    return p.bytes > 0 && !p.ignored && is_floating(p.dtype);
}

std::vector<SumBatch> batches_of(const Context& context, const std::vector<std::int32_t>& params) {
    std::map<ddp_dtype, std::vector<SumBatch>> by_dtype;
    for (const std::int32_t id : params) {
        const Param& p = context.model().table[id];
        auto& devices = by_dtype[p.dtype];
        const StreamPtr stream = context.model().streams.stream(p.device);
        auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const SumBatch& b) { return b.stream == stream; });
        if (found == devices.end()) found = devices.insert(devices.end(), {p.dtype, stream, {}});
        found->params.push_back(id);
    }
    std::vector<SumBatch> batches;
    for (const auto& [dtype, devices] : by_dtype)
        batches.insert(batches.end(), devices.begin(), devices.end());
    return batches;
}

ddp_dtype number_dtype(ddp_dtype sent_dtype, ddp_dtype stored) {
    if (sent_dtype == 0) return stored;
    return sent_dtype == DDP_U8 ? compute_dtype(dtype_of_parts(stored)) : sent_dtype;
}

void FragmentSum::submit(const std::shared_ptr<Group>& group, const OpTag& tag) {
    group_ = group;
    sent_ = true;
    if (group->world() == 1) return;
    for (const Part& part : parts_) {
        const OpTag tag_of_part = tag.on(part.stream).keeping(part.memory);
        facts_.sent_dtype == DDP_U8 ? submit_in_8_bits(*group, part, tag_of_part)
                                    : submit_whole(*group, part, tag_of_part);
    }
}

void FragmentSum::submit_whole(Group& group, const Part& part, const OpTag& tag) {
    for (std::size_t begin = 0; begin < part.bytes; begin += kMessageBytes) {
        const std::size_t bytes = std::min(kMessageBytes, part.bytes - begin);
        works_.push_back(
            group.submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, part.memory.get() + begin,
                          bytes / dtype_size(part.dtype), part.dtype, DDP_AVG, 0,
                          part.stream ? part.stream->device() : ddp_device{DDP_DEVICE_CPU, 0}},
                         tag));
    }
}

// A sum goes on in continuations, which run as long as its link is there: a group of several links
// may be gone earlier.
void FragmentSum::submit_in_8_bits(Group& group, const Part& part, const OpTag& tag) {
    std::vector<CompressedSum::Item> items;
    std::size_t used = 0;
    const auto flush = [&] {
        const auto sum = std::make_shared<CompressedSum>();
        works_.push_back(sum->start(*group.link(works_.size()),
                                    {kInt8, part.dtype, DDP_AVG, 0, nullptr}, items, part.stream,
                                    sum, tag));
        items.clear();
        used = 0;
    };
    for (const Numbers& numbers : part.numbers)
        for (std::size_t begin = 0; begin < numbers.bytes; begin += kMessageBytes) {
            const std::size_t bytes = std::min(kMessageBytes, numbers.bytes - begin);
            if (used + bytes > kMessageBytes) flush();
            items.push_back({part.memory.get() + numbers.offset + begin, nullptr,
                             bytes / dtype_size(part.dtype),
                             static_cast<std::uint32_t>(numbers.param), 0});
            used += bytes;
        }
    if (used > 0) flush();
}

void FragmentSum::wait() const {
    for (const WorkPtr& work : works_) {
        work->wait(std::nullopt);
        if (!work->result().ok()) throw Error(work->result());
    }
}

std::byte* FragmentSum::mean(std::int32_t param, HostCopies& copies,
                             std::vector<std::byte>& fetched) const {
    for (const Part& part : parts_)
        for (const Numbers& numbers : part.numbers) {
            if (numbers.param != param) continue;
            std::byte* const there = part.memory.get() + numbers.offset;
            if (!part.stream) return there;
            fetched.resize(numbers.bytes);
            copies.out(*part.stream, fetched.data(), there, numbers.bytes);
            return fetched.data();
        }
    return nullptr;
}

std::vector<std::int32_t> FragmentSum::params() const {
    std::vector<std::int32_t> params;
    for (const Part& part : parts_)
        for (const Numbers& numbers : part.numbers) params.push_back(numbers.param);
    std::sort(params.begin(), params.end());
    return params;
}

void FragmentSum::save(HookState& state, std::int64_t timeout_ms,
                       std::vector<std::vector<std::byte>>& fetched) const {
    wait();
    state.numbers[kFragment] = facts_.fragment;
    state.numbers[kDue] = facts_.due;
    state.numbers[kSent] = facts_.sent_dtype;
    HostCopies copies(timeout_ms);
    for (const Part& part : parts_)
        for (const Numbers& numbers : part.numbers) {
            const ddp_dtype dtype = dtype_of_parts(part.dtype);
            const auto count = static_cast<std::int64_t>(numbers.bytes / dtype_size(dtype));
            state.arrays.push_back({numbers.param,
                                    kMean,
                                    dtype,
                                    {count},
                                    true,
                                    mean(numbers.param, copies, fetched.emplace_back()),
                                    numbers.bytes});
        }
}

std::optional<FragmentSum> FragmentSum::load(const HookState& state, const ParamTable& table) {
    const auto number = [&](const char* key) {
        const auto found = state.numbers.find(key);
        return found == state.numbers.end() ? -1 : found->second;
    };
    if (number(kFragment) < 0) return std::nullopt;
    const auto sent = static_cast<ddp_dtype>(number(kSent));
    if (number(kSent) != 0 && number(kSent) != DDP_BF16 && number(kSent) != DDP_U8)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state is damaged (numbers); nothing was loaded");
    std::vector<Part> parts;
    for (const HookState::Array& array : state.arrays) {
        if (array.key != kMean) continue;
        const Param& p = table[array.param];
        const ddp_dtype own = dtype_of_parts(p.dtype), dtype = number_dtype(sent, own);
        if (array.dtype != dtype || array.bytes / dtype_size(dtype) != p.bytes / dtype_size(own))
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "the state is damaged (the size of an array); nothing was loaded");
        parts.push_back({dtype,
                         nullptr,
                         allocate_zeroed(array.bytes),
                         {{array.param, 0, array.bytes}},
                         array.bytes});
        std::memcpy(parts.back().memory.get(), array.data, array.bytes);
    }
    return FragmentSum({static_cast<std::int32_t>(number(kFragment)), number(kDue), sent},
                       std::move(parts));
}

}  // namespace libddp
