/* ddp_torch.hpp: DistributedDataParallel for libtorch, the C++ API of PyTorch. Header-only, C++17,
 * for libtorch 1.13 and newer.
 *
 *     ddp::Group group;                                       rank and world size from the launcher
 *     Net net;                                                made by TORCH_MODULE, or a std::shared_ptr
 *     ddp::DistributedDataParallel model(net, group);         every rank starts from rank 0's weights
 *     torch::optim::SGD optimizer(net->parameters(), 0.1);
 *     each step:
 *         loss = criterion(model.forward(inputs), targets);
 *         loss.backward();                                    now every grad() is the mean over ranks
 *         optimizer.step();
 *
 * It follows torch.nn.parallel.DistributedDataParallel. Modules are on the CPU, on one GPU or on
 * several; on GPUs the host does not wait for gradients. Failures are ddp::Error, also out of
 * backward(). One thread at a time uses an object.
 */
#ifndef DDP_TORCH_HPP
#define DDP_TORCH_HPP

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
/* This header needs experimental functions. The program still chooses whether it sees the
 * experimental tier. */
#ifdef DDP_EXPERIMENTAL
#include "ddp/device.h"
#include "ddp/freeze.h"
#include "ddp/sparse.h"
#else
#define DDP_EXPERIMENTAL
#include "ddp/device.h"
#include "ddp/freeze.h"
#include "ddp/sparse.h"
#undef DDP_EXPERIMENTAL
#endif

/* The type of libtorch's devices that are DDP_DEVICE_CUDA. A backend of libtorch's own for such
 * devices defines it before it includes this header. */
#ifndef DDP_TORCH_DEVICE_TYPE
#define DDP_TORCH_DEVICE_TYPE c10::DeviceType::CUDA
#endif

namespace ddp {

/* The options of PyTorch's class, with its defaults. */
struct DistributedDataParallelOptions {
    double bucket_cap_mb = 25;           /* MiB; the first bucket holds at most 1 MiB */
    bool broadcast_buffers = true;       /* before each forward pass, buffers become rank 0's */
    bool find_unused_parameters = false; /* a forward pass may use some parameters only */
    bool gradient_as_bucket_view = false;
    bool static_graph = false;
    bool init_sync = true;
    /* names of parameters and buffers that stay each rank's own */
    std::vector<std::string> parameters_to_ignore;
    bool autotune = false; /* find the bucket cap in the first steps, instead of bucket_cap_mb */
    /* Ranks may run out of inputs: DistributedDataParallel::join(). The other two are its options
     * in PyTorch. */
    bool join = false;
    bool divide_by_initial_world_size = true;
    bool throw_on_early_termination = false;
};

namespace detail {

inline ddp_dtype dtype_of_tensor(const torch::Tensor& tensor, const std::string& name) {
    switch (tensor.scalar_type()) {
        case torch::kFloat:
            return DDP_F32;
        case torch::kDouble:
            return DDP_F64;
        case torch::kHalf:
            return DDP_F16;
        case torch::kBFloat16:
            return DDP_BF16;
        case torch::kInt:
            return DDP_I32;
        case torch::kLong:
            return DDP_I64;
        case torch::kByte:
        case torch::kBool:
            return DDP_U8;
        default:
            throw Error(DDP_ERROR_UNSUPPORTED,
                        name + " has type " + std::string(c10::toString(tensor.scalar_type())) +
                            ". Add its name to parameters_to_ignore, or use another type");
    }
}

template <class T, class = void>
struct is_range : std::false_type {};
template <class T>
struct is_range<T, std::void_t<decltype(std::declval<const T&>().begin())>> : std::true_type {};
template <class T, class = void>
struct is_tuple : std::false_type {};
template <class T>
struct is_tuple<T, std::void_t<decltype(std::tuple_size<T>::value)>> : std::true_type {};

/* Calls found(tensor) for each tensor of what a forward pass returned. */
template <class T, class Found>
void for_each_tensor(const T& value, const Found& found) {
    if constexpr (std::is_same_v<T, torch::Tensor>) {
        found(value);
    } else if constexpr (is_range<T>::value) {
        for (const auto& part : value) for_each_tensor(part, found);
    } else if constexpr (is_tuple<T>::value) {
        std::apply([&](const auto&... part) { (for_each_tensor(part, found), ...); }, value);
    } else if constexpr (!std::is_arithmetic_v<T>) {
        throw Error(DDP_ERROR_UNSUPPORTED,
                    "forward returns a type in which libddp finds no tensors. With "
                    "find_unused_parameters or "
                    "static_graph, return "
                    "tensors, or pairs, tuples and containers of them");
    }
}

inline bool on_device(const torch::Tensor& tensor) {
    return !tensor.device().is_cpu();
}

template <class Stream, class = void>
struct tells_handle : std::false_type {};
template <class Stream>
struct tells_handle<Stream, std::void_t<decltype(std::declval<const Stream&>().native_handle())>>
    : std::true_type {};

/* The cudaStream_t. libtorch's own function for it needs the headers of CUDA. */
template <class Stream>
void* handle_of(const Stream& stream) {
    if (stream.id() == 0) return nullptr;  // the default stream
    if constexpr (tells_handle<Stream>::value)
        return stream.native_handle();
    else
        throw Error(DDP_ERROR_UNSUPPORTED,
                    "the current stream of " + stream.device().str() +
                        " is not its default stream, and this libtorch does not tell its handle: "
                        "use the default stream, or a libtorch whose c10::Stream has "
                        "native_handle()");
}

/* `then` waits for all that is on `first` now. */
inline void order(const c10::Stream& first, const c10::Stream& then) {
    if (first == then) return;
    c10::Event event(first.device_type());
    event.record(first);
    event.block(then);
}

/* The devices but the CPU that a context's tensors are on. Its calls are in the order of libtorch's
 * current streams there. */
class Streams {
public:
    /* libddp's device of a tensor. */
    ddp_device add(const std::string& name, const torch::Tensor& tensor) {
        const c10::Device device = tensor.device();
        if (device.is_cpu()) return {DDP_DEVICE_CPU, 0};
        if (device.type() != DDP_TORCH_DEVICE_TYPE)
            throw Error(DDP_ERROR_UNSUPPORTED,
                        name + " is on " + device.str() +
                            ": DistributedDataParallel takes modules on the CPU and on NVIDIA "
                            "GPUs");
        if (find(device) == places_.end())
            places_.push_back({device, default_stream(device), current(device), current(device)});
        return {DDP_DEVICE_CUDA, device.index()};
    }
    bool empty() const { return places_.empty(); }

    /* Now the current streams are the program's. On a thread of autograd they may be others. */
    void remember() {
        for (Place& place : places_) place.programs = current(place.device);
    }
    std::vector<c10::Stream> programs() const {
        std::vector<c10::Stream> streams;
        for (const Place& place : places_) streams.push_back(place.programs);
        return streams;
    }
    /* Before calls of the context that take no stream: they are in the order of the program's. Not
     * in a step. */
    void enter(ddp_context* context) {
        for (Place& place : places_) {
            if (place.set == place.programs) continue;
            call(ddp_set_stream, context, DDP_DEVICE_CUDA,
                 static_cast<std::int32_t>(place.device.index()), handle_of(place.programs));
            place.set = place.programs;
        }
    }
    /* In a step, before calls that take no stream. */
    void catch_up() {
        for (const Place& place : places_) order(current(place.device), place.set);
    }
    /* The gradient of this tensor is complete in the order of the current stream. */
    void ready(ddp_context* context, ddp_param param, const torch::Tensor& tensor) {
        const bool device = on_device(tensor);
        call(ddp_grad_ready_on, context, param,
             device ? handle_of(current(tensor.device())) : nullptr);
    }
    /* The end of a step in which each gradient has been announced or marked. On devices nothing
     * waits for it but the current streams. */
    void finalize(ddp_context* context) {
        for (Place& place : places_) place.last = current(place.device);
        if (places_.empty()) {
            call(ddp_finalize, context);
        } else if (places_.size() == 1) {
            call(ddp_finalize_on, context, handle_of(places_[0].last));
        } else {
            call(ddp_finalize_enqueue, context);
            for (const Place& place : places_) order(place.set, place.last);
        }
    }
    /* The host waits until the devices have done what the context's tensors were used for. */
    void wait() const noexcept {
        for (const Place& place : places_) {
            try {
                const c10::impl::VirtualGuardImpl device(place.device.type());
                const c10::Stream now = current(place.device);
                device.synchronizeStream(now);
                if (place.last != now) device.synchronizeStream(place.last);
                if (place.set != now && place.set != place.last)
                    device.synchronizeStream(place.set);
            } catch (...) {
                // at the end of the process, say, when there is no device any more
            }
        }
    }

private:
    struct Place {
        c10::Device device;
        c10::Stream set;  // the one that the context knows
        c10::Stream programs;
        c10::Stream last;  // of the end of a step
    };

    static c10::Stream default_stream(const c10::Device& device) {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    static c10::Stream current(const c10::Device& device) {
        return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    }
    std::vector<Place>::iterator find(const c10::Device& device) {
        return std::find_if(places_.begin(), places_.end(),
                            [&](const Place& place) { return place.device == device; });
    }

    std::vector<Place> places_;
};

/* A tensor over memory of libddp's that `owner` keeps. */
inline torch::Tensor shown(void* memory, torch::IntArrayRef sizes, const c10::Device& device,
                           torch::ScalarType type, std::shared_ptr<void> owner) {
    return at::for_blob(memory, sizes)
        .deleter([owner = std::move(owner)](void*) {})
        .options(torch::TensorOptions(type).device(device))
        .target_device(device)
        .make_tensor();
}

/* Sends rank 0's buffers, those on devices in the order of streams. */
class Buffers {
public:
    Buffers(const Group& group, const std::vector<std::pair<std::string, torch::Tensor>>& named)
        : group_(group.get()) {
        for (const auto& [name, tensor] : named) {
            if (on_device(tensor))
                take_room(name, tensor);
            else
                on_cpu_.push_back(tensor);
        }
        if (!parts_.empty()) make_context(group);
    }
    ~Buffers() { streams_.wait(); }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    void send() {
        torch::NoGradGuard no_grad;
        for (torch::Tensor& buffer : on_cpu_) {
            torch::Tensor flat = buffer.detach().contiguous();
            call(ddp_broadcast, group_, flat.data_ptr(), static_cast<std::size_t>(flat.nbytes()),
                 DDP_U8, std::int32_t{0}, static_cast<ddp_work**>(nullptr));
            if (flat.data_ptr() != buffer.data_ptr()) buffer.detach().copy_(flat);
        }
        if (parts_.empty()) return;
        for (const Room& room : rooms_)
            if (room.buffer.device() != room.sent.device() ||
                room.buffer.scalar_type() != room.sent.scalar_type() ||
                room.buffer.sizes() != room.sent.sizes())
                throw Error(DDP_ERROR_INVALID_STATE,
                            room.name +
                                " has another device, type or shape now. Make a new "
                                "DistributedDataParallel after such a change");
        const bool mine = ddp_group_rank(group_) == 0;
        context_->step_begin();
        if (mine)
            for (Room& room : rooms_) room.sent.copy_(room.buffer.detach());
        for (std::size_t part = 0; part < parts_.size(); ++part)
            streams_.ready(context_->get(), static_cast<ddp_param>(part), parts_[part].memory);
        streams_.finalize(context_->get());
        if (!mine)
            for (Room& room : rooms_) room.buffer.detach().copy_(room.sent);
    }

private:
    /* The buffers of a device. */
    struct Part {
        c10::Device device;
        std::int64_t bytes;
        torch::Tensor memory;
    };
    struct Room {
        std::string name;
        torch::Tensor buffer;
        std::size_t part;
        std::int64_t start;
        torch::Tensor sent;  // its bytes in the part
    };

    void take_room(const std::string& name, const torch::Tensor& buffer) {
        constexpr std::int64_t aligned = 16;
        streams_.add(name, buffer);
        std::size_t part = 0;
        while (part < parts_.size() && parts_[part].device != buffer.device()) ++part;
        if (part == parts_.size()) parts_.push_back({buffer.device(), 0, {}});
        rooms_.push_back({name, buffer, part, parts_[part].bytes, {}});
        parts_[part].bytes +=
            (static_cast<std::int64_t>(buffer.nbytes()) + aligned - 1) / aligned * aligned;
    }

    /* All buffers of a device are one gradient, which a hook broadcasts: groups take memory of
     * devices in hooks only. */
    void make_context(const Group& group) {
        ddp_context_options options = Context::defaults();
        options.reduction = DDP_REDUCTION_SUM;
        options.flags = DDP_CONTEXT_NO_INITIAL_BROADCAST | DDP_CONTEXT_NO_BUFFER_BROADCAST |
                        DDP_CONTEXT_NO_REBUILD;
        context_ = std::make_unique<Context>(group, options);
        for (const Part& part : parts_)
            context_->add_param<std::uint8_t>("buffers on " + part.device.str(),
                                              {std::max<std::int64_t>(part.bytes, 1)}, nullptr,
                                              nullptr, {DDP_DEVICE_CUDA, part.device.index()});
        context_->commit();
        context_->set_comm_hook([](ddp_group* within, ddp_bucket* bucket) {
            ddp_work* work = nullptr;
            call(ddp_broadcast, within, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                 ddp_bucket_dtype(bucket), std::int32_t{0}, &work);
            return Work(work);
        });
        for (std::size_t part = 0; part < parts_.size(); ++part)
            parts_[part].memory =
                shown(context_->grad_view<void>(static_cast<ddp_param>(part)), {parts_[part].bytes},
                      parts_[part].device, torch::kByte, nullptr);
        for (Room& room : rooms_)
            room.sent =
                parts_[room.part]
                    .memory.narrow(0, room.start, static_cast<std::int64_t>(room.buffer.nbytes()))
                    .view(room.buffer.scalar_type())
                    .view(room.buffer.sizes());
    }

    ddp_group* group_;
    std::vector<torch::Tensor> on_cpu_;
    std::vector<Part> parts_;
    std::vector<Room> rooms_;
    Streams streams_;
    std::unique_ptr<Context> context_;
};

/* The steps of a DistributedDataParallel. Hooks in the autograd graph begin and end them. */
class Steps : public std::enable_shared_from_this<Steps> {
public:
    Steps(const torch::nn::Module& module, const Group& group,
          const DistributedDataParallelOptions& options)
        : options_(options),
          ignored_(options.parameters_to_ignore.begin(), options.parameters_to_ignore.end()),
          group_(group.get()),
          context_(group, context_options(options)) {
        find_sparse(module);
        for (const auto& item : module.named_parameters()) {
            const torch::Tensor& tensor = item.value();
            if (ignored_.count(item.key()) != 0) continue;
            add(item.key(), tensor);
            known_.push_back({item.key(), tensor, tensor.data_ptr(), tensor.scalar_type(),
                              tensor.requires_grad()});
        }
        if (parameters_.empty())
            throw Error(DDP_ERROR_INVALID_ARGUMENT,
                        "module: it has no parameter that requires a gradient, so there is nothing "
                        "to average");
        std::vector<std::pair<std::string, torch::Tensor>> buffers;
        for (const auto& item : module.named_buffers())
            if (item.value().defined() && ignored_.count(item.key()) == 0) {
                buffers.emplace_back(item.key(), item.value());
                add_untrained(item.key(), item.value());
            }
        streams_->enter(context_.get());
        context_.commit();
        take_copies();
        if (options.broadcast_buffers && !options.join && group.world_size() > 1)
            buffers_ = std::make_unique<Buffers>(group, buffers);
    }

    /* Buckets wait for devices before they are freed: layout_. Other ranks do not wait for that to
     * hear of a step that this one has not finished. */
    ~Steps() {
        if (open_ && missing_count_ != 0 && !streams_->empty() && ddp_group_world_size(group_) > 1)
            ddp_context_abort(context_.get(),
                              "its DistributedDataParallel went in the middle of a step", nullptr);
    }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;

    /* Not in the constructor: hooks refer to the object weakly. */
    void listen() {
        accumulated_.assign(parameters_.size(), false);
        never_ = frozen_ = missing_ = accumulated_;
        for (std::size_t index = 0; index < parameters_.size(); ++index) {
            nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[index]));
            nodes_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
                [weak = weak_from_this(), index](const torch::autograd::variable_list& outputs,
                                                 const torch::autograd::variable_list&) {
                    if (const auto self = weak.lock()) {
                        const std::lock_guard<std::recursive_mutex> lock(self->mutex_);
                        self->ready(index);
                    }
                    return outputs;
                }));
        }
    }

    void before_forward(const torch::nn::Module& module) {
        if (sync_ && buffers_) buffers_->send();
        if (!torch::GradMode::is_enabled()) return;
        streams_->remember();
        local_ = !sync_;
        fresh_ = sync_;
        watched_ = in_pass_ = false;  // after a backward pass that failed
        if (open_ && missing_count_ != expected_count_)
            report_missing("the backward pass before this forward pass");
        unused_.clear();
        if (!options_.join || !sync_ || open_) return;
        compare(module);
        begin();  // which sends buffers, and tells the ranks that have joined
    }

    /* This rank has no more inputs. */
    void join() {
        give_copies();
        streams_->remember();
        streams_->enter(context_.get());
        context_.join();
        take_copies();
    }

    template <class Output>
    void after_forward(const torch::nn::Module& module, const Output& output) {
        if (local_ || !torch::GradMode::is_enabled()) return;
        compare(module);
        if (may_miss()) watch(output);
        if (!options_.find_unused_parameters || options_.static_graph) return;
        std::vector<torch::autograd::Node*> todo;
        std::unordered_set<torch::autograd::Node*> seen;
        for_each_tensor(output, [&](const torch::Tensor& tensor) {
            if (!tensor.defined() || !tensor.requires_grad()) return;
            todo.push_back(tensor.is_leaf() ? torch::autograd::impl::grad_accumulator(tensor).get()
                                            : tensor.grad_fn().get());
        });
        while (!todo.empty()) {
            torch::autograd::Node* node = todo.back();
            todo.pop_back();
            if (!seen.insert(node).second) continue;
            for (const auto& edge : node->next_edges())
                if (edge.function) todo.push_back(edge.function.get());
        }
        for (std::size_t index = 0; index < nodes_.size(); ++index)
            if (seen.count(nodes_[index].get()) == 0)
                unused_.push_back(static_cast<ddp_param>(index));
    }

    void set_sync(bool sync) { sync_ = sync; }
    bool sync() const { return sync_; }
    Context& context() { return context_; }

private:
    /* Whether a backward pass may end without gradients of some parameters. In a static graph, the
     * first one shows which. */
    bool may_miss() const {
        return options_.static_graph ? !first_done_ : options_.find_unused_parameters;
    }

    template <class Output>
    void watch(const Output& output) {
        for_each_tensor(output, [this](const torch::Tensor& tensor) {
            if (!tensor.defined() || !tensor.requires_grad()) return;
            tensor.register_hook([weak = weak_from_this()](const torch::Tensor&) {
                const auto self = weak.lock();
                if (!self) return;
                const std::lock_guard<std::recursive_mutex> lock(self->mutex_);
                if (self->local_ || !self->may_miss() || self->watched_) return;
                self->watched_ = true;
                torch::autograd::Engine::get_default_engine().queue_callback([weak] {
                    if (const auto still = weak.lock()) still->finish_with_missing();
                });
            });
        });
    }

    void finish_with_missing() {
        const std::lock_guard<std::recursive_mutex> lock(mutex_);
        watched_ = false;
        if (!open_) begin();
        if (!marked_) mark(unused_);
        std::vector<ddp_param> missing;
        for (std::size_t index = 0; index < parameters_.size(); ++index) {
            if (missing_[index]) missing.push_back(static_cast<ddp_param>(index));
            if (options_.static_graph) never_[index] = missing_[index] && !accumulated_[index];
        }
        mark(missing);
        finish();
    }

    static ddp_context_options context_options(const DistributedDataParallelOptions& options) {
        if (!(options.bucket_cap_mb > 0))
            throw Error(DDP_ERROR_INVALID_ARGUMENT, "bucket_cap_mb: it must be above 0");
        ddp_context_options result = Context::defaults();
        constexpr std::uint64_t mib = 1 << 20;
        result.bucket_cap_bytes =
            std::max<std::uint64_t>(1, static_cast<std::uint64_t>(options.bucket_cap_mb * mib));
        result.first_bucket_cap_bytes = std::min(mib, result.bucket_cap_bytes);
        if (options.autotune) result.bucket_cap_bytes = result.first_bucket_cap_bytes = 0;
        result.flags = 0;
        if (!options.join || !options.broadcast_buffers)
            result.flags |= DDP_CONTEXT_NO_BUFFER_BROADCAST;
        if (options.join) result.flags |= DDP_CONTEXT_JOIN;
        if (options.join && !options.divide_by_initial_world_size)
            result.flags |= DDP_CONTEXT_DIVIDE_BY_PRESENT;
        if (options.join && options.throw_on_early_termination)
            result.flags |= DDP_CONTEXT_STOP_AT_FIRST_JOIN;
        if (options.autotune) result.flags |= DDP_CONTEXT_AUTOTUNE;
        if (options.find_unused_parameters && !options.static_graph)
            result.flags |= DDP_CONTEXT_FIND_UNUSED;
        if (options.static_graph) result.flags |= DDP_CONTEXT_STATIC_GRAPH;
        if (options.find_unused_parameters || options.static_graph)
            result.flags |= DDP_CONTEXT_ACCUMULATE;
        if (!options.init_sync) result.flags |= DDP_CONTEXT_NO_INITIAL_BROADCAST;
        return result;
    }

    /* A tensor that is not contiguous is registered as a copy. */
    ddp_param_desc describe(const std::string& name, const torch::Tensor& tensor) {
        const ddp_device device = streams_->add(name, tensor);
        if (tensor.layout() != torch::kStrided)
            throw Error(DDP_ERROR_UNSUPPORTED,
                        name +
                            " is sparse itself: DistributedDataParallel takes parameters and "
                            "buffers that are dense");
        const torch::Tensor flat = tensor.detach().contiguous();
        registered_.emplace_back(tensor, flat);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = flat.sizes().data();
        desc.ndim = static_cast<std::int32_t>(flat.dim());
        desc.dtype = dtype_of_tensor(flat, name);
        desc.data = flat.data_ptr();
        desc.device = device;
        return desc;
    }

    void add(const std::string& name, const torch::Tensor& parameter) {
        // rank 0's, as the others
        if (!parameter.requires_grad()) return add_untrained(name, parameter);
        ddp_param_desc desc = describe(name, parameter);
        const bool sparse = tables_.count(parameter.unsafeGetTensorImpl()) != 0;
        const bool through_host = sparse && on_device(parameter);  // libddp takes rows on the CPU
        if (sparse) desc.flags = DDP_PARAM_SPARSE;
        if (through_host) {
            desc.device = {DDP_DEVICE_CPU, 0};
            desc.data = nullptr;
        }
        ddp_param index = -1;
        call(ddp_register_param, context_.get(), &desc, &index);
        if (through_host) {
            registered_.pop_back();
            add_untrained(name + " (value)", parameter);
        }
        parameters_.push_back(parameter);
        names_.push_back(name);
        sparse_.push_back(sparse);
    }

    /* Parameters whose gradients are rows. */
    void find_sparse(const torch::nn::Module& module) {
        for (const auto& part : module.modules()) {
            if (const auto* one = part->as<torch::nn::EmbeddingImpl>()) {
                if (one->options.sparse()) tables_.insert(one->weight.unsafeGetTensorImpl());
            } else if (const auto* bag = part->as<torch::nn::EmbeddingBagImpl>()) {
                if (bag->options.sparse()) tables_.insert(bag->weight.unsafeGetTensorImpl());
            }
        }
    }

    void add_untrained(const std::string& name, const torch::Tensor& tensor) {
        const ddp_param_desc desc = describe(name, tensor);
        call(ddp_register_buffer, context_.get(), &desc);
    }

    void give_copies() {
        torch::NoGradGuard no_grad;
        for (auto& [tensor, flat] : registered_)
            if (flat.data_ptr() != tensor.data_ptr()) flat.copy_(tensor.detach());
    }
    void take_copies() {
        torch::NoGradGuard no_grad;
        for (auto& [tensor, flat] : registered_)
            if (flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat);
    }

    /* The module is what was registered. A program that changes it makes another
     * DistributedDataParallel. */
    void compare(const torch::nn::Module& module) {
        std::size_t next = 0, index = 0;
        std::vector<ddp_param> turned[2];
        for (const auto& item : module.named_parameters()) {
            const torch::Tensor& tensor = item.value();
            if (ignored_.count(item.key()) != 0) continue;
            const char* what = nullptr;
            if (next == known_.size() || item.key() != known_[next].name)
                what = "was not registered under this name";
            else if (!tensor.is_same(known_[next].tensor))
                what = "is another tensor";
            else if (tensor.scalar_type() != known_[next].type)
                what = "has another type";
            else if (tensor.data_ptr() != known_[next].memory)
                what = "lies in other memory";
            else if (!known_[next].trained && tensor.requires_grad())
                what = "requires a gradient";
            else if ((options_.static_graph || options_.join) &&
                     tensor.requires_grad() != known_[next].trained)
                what = "is frozen";
            if (what != nullptr) refuse(item.key(), what);
            if (known_[next].trained) {
                if (frozen_[index] == tensor.requires_grad())
                    turned[frozen_[index] ? 0 : 1].push_back(static_cast<ddp_param>(index));
                ++index;
            }
            ++next;
        }
        if (next != known_.size()) refuse(known_[next].name, "is gone");
        // a frozen parameter is an unused one
        if (options_.find_unused_parameters || open_) return;
        for (const int now : {0, 1}) {
            if (turned[now].empty()) continue;
            for (const ddp_param param : turned[now])
                frozen_[static_cast<std::size_t>(param)] = now == 1;
            call(ddp_set_frozen, context_.get(), turned[now].data(), turned[now].size(),
                 std::int32_t{now});
        }
    }

    [[noreturn]] static void refuse(const std::string& name, const std::string& what) {
        throw Error(DDP_ERROR_INVALID_STATE,
                    name + " " + what +
                        " now, and the module was registered as it was before. Make a new "
                        "DistributedDataParallel after such a change");
    }

    /* In the backward pass: the grad() of a parameter is complete. */
    void ready(std::size_t index) {
        if (local_ || !sync_) {
            if (local_ || (!fresh_ && !in_pass_)) {
                accumulated_[index] = true;
                return;
            }
        }
        if (!fresh_ && !in_pass_ && !watched_ && !stepped_)
            throw Error(DDP_ERROR_INVALID_STATE,
                        names_[index] +
                            " has got a gradient in a backward pass that no forward pass of this "
                            "DistributedDataParallel belongs to, so it is this rank's own. Call "
                            "model.forward(x), not "
                            "model->forward(x). While a guard of no_sync() lives, gradients may be "
                            "this rank's own");
        if (!in_pass_ && !watched_) {
            in_pass_ = true;
            torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
                if (const auto self = weak.lock()) self->end_of_pass();
            });
        }
        if (!open_ || !marked_) {
            const c10::MultiStreamGuard programs(streams_->programs());
            if (!open_) begin();
            if (!marked_) mark(unused_);
        }
        // the backward pass came here without a gradient
        if (watched_ && !parameters_[index].grad().defined()) return;
        if (!take_missing(index) && !never_[index])
            throw Error(DDP_ERROR_INVALID_STATE,
                        names_[index] +
                            " has got a gradient twice in one step, or was marked unused by the "
                            "last forward pass: each "
                            "forward pass has a backward pass of its own");
        announce(index);
    }

    void end_of_pass() {
        const std::lock_guard<std::recursive_mutex> lock(mutex_);
        in_pass_ = false;
        if (!open_ || watched_) return;  // finish_with_missing ends it
        if (missing_count_ != 0) report_missing("this backward pass");
        finish();
    }

    /* This step does not use these. What no_sync left in a grad() counts all the same. */
    void mark(const std::vector<ddp_param>& params) {
        marked_ = true;
        std::vector<ddp_param> unused;
        for (const ddp_param param : params) {
            const auto index = static_cast<std::size_t>(param);
            if (accumulated_[index] || (sparse_[index] && parameters_[index].grad().defined()))
                announce(index);
            else
                unused.push_back(param);
            take_missing(index);
        }
        if (unused.empty()) return;  // a context that does not look for them takes no list
        for (const ddp_param param : unused) lay_down(static_cast<std::size_t>(param));
        streams_->catch_up();
        context_.mark_unused(unused);
    }

    /* A gradient that this step does not use counts with the content of its grad(): the mean of
     * backward passes since zero_grad(). */
    void lay_down(std::size_t index) {
        torch::NoGradGuard no_grad;
        const torch::Tensor& grad = parameters_[index].grad();
        if (sparse_[index]) {
            if (grad.defined() && never_[index])
                throw Error(DDP_ERROR_UNSUPPORTED,
                            names_[index] +
                                " has rows of a step before, and with static_graph they would "
                                "not count in this one: call zero_grad() before each step");
            return;  // no rows
        }
        torch::Tensor& view = view_of(index);
        if (!grad.defined())
            view.zero_();
        else if (grad.data_ptr() != view.data_ptr())
            view.copy_(grad);
    }

    void announce(std::size_t index) {
        torch::NoGradGuard no_grad;
        const torch::Tensor& grad = parameters_[index].grad();
        if (sparse_[index]) return announce_rows(index, grad);
        torch::Tensor& view = view_of(index);
        if (!grad.defined()) {
            view.zero_();
        } else if (grad.layout() != torch::kStrided) {
            throw Error(DDP_ERROR_UNSUPPORTED,
                        names_[index] +
                            " has a sparse gradient. DistributedDataParallel takes those of "
                            "torch::nn::Embedding and EmbeddingBag with sparse(true)");
        } else if (grad.data_ptr() != view.data_ptr()) {
            view.copy_(grad);
        }
        streams_->ready(context_.get(), static_cast<ddp_param>(index), parameters_[index]);
    }

    /* Rows of a device go through the host, which waits for them. */
    void announce_rows(std::size_t index, const torch::Tensor& grad) {
        torch::Tensor indices = torch::empty({0}, torch::kLong), values;
        if (grad.defined()) {
            if (grad.layout() != torch::kSparse)
                throw Error(DDP_ERROR_UNSUPPORTED,
                            names_[index] +
                                " belongs to an embedding with sparse(true), and has a dense "
                                "gradient: the model uses it elsewhere, too. Make the embedding "
                                "with sparse(false)");
            const torch::Tensor rows = grad.detach().coalesce();
            indices = rows.indices()[0].to(torch::kCPU).contiguous();
            values = rows.values().to(torch::kCPU).contiguous();
        }
        const auto count = static_cast<std::size_t>(indices.numel());
        call(ddp_grad_ready_sparse, context_.get(), static_cast<ddp_param>(index),
             static_cast<const std::int64_t*>(indices.data_ptr<std::int64_t>()),
             count == 0 ? static_cast<const void*>(nullptr) : values.data_ptr(), count);
    }

    torch::Tensor reduced_rows(std::size_t index) {
        const std::int64_t* indices = nullptr;
        const void* values = nullptr;
        std::size_t count = 0;
        call(ddp_sparse_gradient, context_.get(), static_cast<ddp_param>(index), &indices, &values,
             &count);
        const torch::Tensor& parameter = parameters_[index];
        std::vector<std::int64_t> sizes = parameter.sizes().vec();
        sizes[0] = static_cast<std::int64_t>(count);
        const c10::Device cpu(torch::kCPU);
        torch::Tensor rows = torch::empty({1, sizes[0]}, torch::kLong);
        torch::Tensor content =
            torch::empty(sizes, torch::TensorOptions(parameter.scalar_type()).device(cpu));
        if (count != 0) {
            std::memcpy(rows.data_ptr(), indices, count * sizeof *indices);
            std::memcpy(content.data_ptr(), values, content.nbytes());
        }
        return torch::sparse_coo_tensor(rows.to(parameter.device()), content.to(parameter.device()),
                                        parameter.sizes());
    }

    /* Buckets may move here; a grad() that was in one is then memory like any other. */
    void begin() {
        if (options_.join) give_copies();  // of buffers, which it sends then
        streams_->enter(context_.get());
        context_.step_begin();
        if (options_.join) take_copies();
        open_ = true;
        marked_ = false;
        for (std::size_t index = 0; index < parameters_.size(); ++index)
            missing_[index] = !never_[index] && !frozen_[index];
        expected_count_ = missing_count_ =
            static_cast<std::size_t>(std::count(missing_.begin(), missing_.end(), true));
        for (std::size_t index = 0; index < never_.size(); ++index)
            if (never_[index]) lay_down(index);
    }

    bool take_missing(std::size_t index) {
        if (!missing_[index]) return false;
        missing_[index] = false;
        --missing_count_;
        return true;
    }

    void finish() {
        open_ = fresh_ = false;
        stepped_ = true;
        first_done_ = true;
        accumulated_.assign(parameters_.size(), false);
        streams_->finalize(context_.get());
        torch::NoGradGuard no_grad;
        const bool may_be_unused = options_.find_unused_parameters || options_.static_graph;
        for (std::size_t index = 0; index < parameters_.size(); ++index) {
            if (frozen_[index] || (may_be_unused && !context_.used(static_cast<ddp_param>(index))))
                continue;  // by no rank
            torch::Tensor& grad = parameters_[index].mutable_grad();
            if (sparse_[index]) {
                grad = reduced_rows(index);
                continue;
            }
            torch::Tensor& view = view_of(index);
            if (options_.gradient_as_bucket_view)
                grad = view;
            else if (!grad.defined())
                grad = torch::empty_like(parameters_[index]).copy_(view);  // with its strides
            else if (grad.data_ptr() != view.data_ptr())
                grad.copy_(view);
        }
    }

    /* A gradient's place in its bucket. Its memory stays as long as a tensor shows it. That of
     * devices is freed in an order that knows nothing of what the program does with it. */
    torch::Tensor& view_of(std::size_t index) {
        if (const std::int64_t generation = context_.layout_generation();
            generation != generation_) {
            views_.assign(parameters_.size(), torch::Tensor());
            layout_ = std::shared_ptr<void>(
                nullptr, [streams = streams_, layout = context_.hold_layout()](void*) mutable {
                    streams->wait();
                    layout.reset();
                });
            generation_ = generation;
        }
        if (!views_[index].defined())
            views_[index] = shown(context_.grad_view<void>(static_cast<ddp_param>(index)),
                                  parameters_[index].sizes(), parameters_[index].device(),
                                  parameters_[index].scalar_type(), layout_);
        return views_[index];
    }

    [[noreturn]] void report_missing(const std::string& when) const {
        std::string names;
        for (std::size_t index = 0; index < names_.size(); ++index)
            if (missing_[index]) names += (names.empty() ? "" : ", ") + names_[index];
        throw Error(DDP_ERROR_INVALID_STATE,
                    when + " gave no gradient for " + names +
                        ", so it was not finished. Freeze parameters that are not trained: "
                        "requires_grad_(false) before the model is wrapped. Where a forward "
                        "pass uses only some of the others, set find_unused_parameters, and "
                        "let the loss depend on everything that forward returns");
    }

    /* A parameter as it was registered. */
    struct Known {
        std::string name;
        torch::Tensor tensor;
        const void* memory;
        torch::ScalarType type;
        bool trained;
    };

    DistributedDataParallelOptions options_;
    std::unordered_set<std::string> ignored_;
    std::vector<Known> known_;
    std::unordered_set<const c10::TensorImpl*> tables_;
    ddp_group* group_;
    std::recursive_mutex mutex_;  // autograd has a thread for each device
    std::shared_ptr<Streams> streams_ = std::make_shared<Streams>();
    // a tensor, and what the context knows of it
    std::vector<std::pair<torch::Tensor, torch::Tensor>> registered_;
    Context context_;  // has pointers into these
    std::vector<std::string> names_;
    std::vector<torch::Tensor> parameters_;
    std::vector<bool> sparse_;
    std::unique_ptr<Buffers> buffers_;
    // PyTorch would drop them, and the hooks with them.
    std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>()))>
        nodes_;

    std::vector<torch::Tensor> views_;
    std::shared_ptr<void> layout_;
    std::int64_t generation_ = -1;  // of both

    bool sync_ = true;    // false in no_sync
    bool local_ = false;  // the last forward pass was in no_sync
    // a synced forward pass has been made, and no step has ended since
    bool fresh_ = false;
    bool stepped_ = false;           // a step has ended
    bool in_pass_ = false;           // end_of_pass will run
    bool open_ = false;              // a step has begun
    bool marked_ = false;            // ... and knows which parameters the forward pass did not use
    bool watched_ = false;           // finish_with_missing will end it
    bool first_done_ = false;        // static_graph: never_ is known
    std::vector<ddp_param> unused_;  // by the last forward pass
    std::vector<bool> missing_;      // no gradient yet in this step
    std::size_t missing_count_ = 0, expected_count_ = 0;  // now, and when the step began
    std::vector<bool> accumulated_;                       // got gradients in no_sync
    std::vector<bool> never_;                             // unused in each step of a static graph
    std::vector<bool> frozen_;                            // since it was registered
};

}  // namespace detail

template <class Module>
class DistributedDataParallel {
public:
    /* Registers the module's parameters and buffers. Collective. The group must outlive the object.
     */
    DistributedDataParallel(std::shared_ptr<Module> module, const Group& group,
                            const DistributedDataParallelOptions& options = {})
        : module_(std::move(module)),
          steps_(std::make_shared<detail::Steps>(*module_, group, options)) {
        steps_->listen();
    }
    DistributedDataParallel(const torch::nn::ModuleHolder<Module>& module, const Group& group,
                            const DistributedDataParallelOptions& options = {})
        : DistributedDataParallel(module.ptr(), group, options) {}

    /* The module's forward. With find_unused_parameters, what it returns is a tensor, or a pair,
     * tuple or container of such. */
    template <class... Args>
    auto forward(Args&&... args) {
        steps_->before_forward(*module_);
        auto output = module_->forward(std::forward<Args>(args)...);
        steps_->after_forward(*module_, output);
        return output;
    }

    const std::shared_ptr<Module>& module() const { return module_; }
    Module* operator->() const { return module_.get(); }
    /* Takes part in the other ranks' steps with gradients of zero until no rank has inputs: with
     * the option `join`, at the end of each epoch. All ranks then have the parameters of the one
     * that joined last. */
    void join() const { steps_->join(); }
    /* For hooks, statistics and plans. Steps begin and end in the backward pass. */
    Context& context() const { return steps_->context(); }

    /* While it lives, backward passes add to the grad() of this rank only. */
    class NoSync {
    public:
        explicit NoSync(std::shared_ptr<detail::Steps> steps)
            : steps_(std::move(steps)), before_(steps_->sync()) {
            steps_->set_sync(false);
        }
        ~NoSync() { steps_->set_sync(before_); }
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

    private:
        std::shared_ptr<detail::Steps> steps_;
        bool before_;
    };
    [[nodiscard]] NoSync no_sync() const { return NoSync(steps_); }

private:
    std::shared_ptr<Module> module_;
    std::shared_ptr<detail::Steps> steps_;
};

template <class Module, class... Rest>
DistributedDataParallel(const torch::nn::ModuleHolder<Module>&, const Group&, Rest...)
    -> DistributedDataParallel<Module>;
template <class Module, class... Rest>
DistributedDataParallel(std::shared_ptr<Module>, const Group&, Rest...)
    -> DistributedDataParallel<Module>;

}  // namespace ddp

#endif  // DDP_TORCH_HPP
