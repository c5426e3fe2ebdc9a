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
 * It follows torch.nn.parallel.DistributedDataParallel. Modules are on the CPU, and gradients are
 * dense. Failures are ddp::Error, also out of backward(). One thread at a time uses an object.
 */
#ifndef DDP_TORCH_HPP
#define DDP_TORCH_HPP

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
/* This header needs one experimental function. The program still chooses whether it sees the
 * experimental tier. */
#ifdef DDP_EXPERIMENTAL
#include "ddp/freeze.h"
#else
#define DDP_EXPERIMENTAL
#include "ddp/freeze.h"
#undef DDP_EXPERIMENTAL
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

/* The steps of a DistributedDataParallel. Hooks in the autograd graph begin and end them. */
class Steps : public std::enable_shared_from_this<Steps> {
public:
    Steps(const torch::nn::Module& module, const Group& group,
          const DistributedDataParallelOptions& options)
        : options_(options),
          ignored_(options.parameters_to_ignore.begin(), options.parameters_to_ignore.end()),
          group_(group.get()),
          context_(group, context_options(options)) {
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
        for (const auto& item : module.named_buffers())
            if (item.value().defined() && ignored_.count(item.key()) == 0) {
                buffers_.push_back(item.value());
                add_untrained(item.key(), item.value());
            }
        context_.commit();
        take_copies();
    }

    /* Not in the constructor: hooks refer to the object weakly. */
    void listen() {
        accumulated_.assign(parameters_.size(), false);
        never_ = frozen_ = missing_ = accumulated_;
        for (std::size_t index = 0; index < parameters_.size(); ++index) {
            nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[index]));
            nodes_.back()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
                [weak = weak_from_this(), index](const torch::autograd::variable_list& outputs,
                                                 const torch::autograd::variable_list&) {
                    if (const auto self = weak.lock()) self->ready(index);
                    return outputs;
                }));
        }
    }

    void before_forward() {
        if (sync_ && options_.broadcast_buffers) send_buffers();
        if (!torch::GradMode::is_enabled()) return;
        local_ = !sync_;
        fresh_ = sync_;
        watched_ = in_pass_ = false;  // after a backward pass that failed
        if (open_) report_missing("the backward pass before this forward pass");
        unused_.clear();
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
                if (!self || self->local_ || !self->may_miss() || self->watched_) return;
                self->watched_ = true;
                torch::autograd::Engine::get_default_engine().queue_callback([weak] {
                    if (const auto still = weak.lock()) still->finish_with_missing();
                });
            });
        });
    }

    void finish_with_missing() {
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
        result.flags = DDP_CONTEXT_NO_BUFFER_BROADCAST;
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
        if (!tensor.device().is_cpu() || tensor.layout() != torch::kStrided)
            throw Error(DDP_ERROR_UNSUPPORTED,
                        name + ": DistributedDataParallel takes dense tensors on the CPU only");
        const torch::Tensor flat = tensor.detach().contiguous();
        registered_.emplace_back(tensor, flat);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = flat.sizes().data();
        desc.ndim = static_cast<std::int32_t>(flat.dim());
        desc.dtype = dtype_of_tensor(flat, name);
        desc.data = flat.data_ptr();
        return desc;
    }

    void add(const std::string& name, const torch::Tensor& parameter) {
        // rank 0's, as the others
        if (!parameter.requires_grad()) return add_untrained(name, parameter);
        const ddp_param_desc desc = describe(name, parameter);
        ddp_param index = -1;
        call(ddp_register_param, context_.get(), &desc, &index);
        parameters_.push_back(parameter);
        names_.push_back(name);
    }

    void add_untrained(const std::string& name, const torch::Tensor& tensor) {
        const ddp_param_desc desc = describe(name, tensor);
        call(ddp_register_buffer, context_.get(), &desc);
    }

    void take_copies() {
        torch::NoGradGuard no_grad;
        for (auto& [tensor, flat] : registered_)
            if (flat.data_ptr() != tensor.data_ptr()) tensor.detach().copy_(flat);
    }

    /* The context would send them at the beginning of a step. A forward pass may have no backward
     * pass, and then there must be no step that misses gradients. */
    void send_buffers() {
        torch::NoGradGuard no_grad;
        for (torch::Tensor& buffer : buffers_) {
            torch::Tensor flat = buffer.detach().contiguous();
            call(ddp_broadcast, group_, flat.data_ptr(), static_cast<std::size_t>(flat.nbytes()),
                 DDP_U8, std::int32_t{0}, static_cast<ddp_work**>(nullptr));
            if (flat.data_ptr() != buffer.data_ptr()) buffer.detach().copy_(flat);
        }
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
            else if (options_.static_graph && tensor.requires_grad() != known_[next].trained)
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
        if (!open_) begin();
        if (!marked_) mark(unused_);
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
            if (accumulated_[index])
                announce(index);
            else
                unused.push_back(param);
            take_missing(index);
        }
        if (unused.empty()) return;  // a context that does not look for them takes no list
        for (const ddp_param param : unused) lay_down(static_cast<std::size_t>(param));
        context_.mark_unused(unused);
    }

    /* A gradient that this step does not use counts with the content of its grad(): the mean of
     * backward passes since zero_grad(). */
    void lay_down(std::size_t index) {
        torch::NoGradGuard no_grad;
        const torch::Tensor& grad = parameters_[index].grad();
        torch::Tensor& view = view_of(index);
        if (!grad.defined())
            view.zero_();
        else if (grad.data_ptr() != view.data_ptr())
            view.copy_(grad);
    }

    void announce(std::size_t index) {
        const torch::Tensor grad = parameters_[index].grad().defined()
                                       ? parameters_[index].grad()
                                       : torch::zeros_like(parameters_[index]);
        if (grad.layout() != torch::kStrided)
            throw Error(
                DDP_ERROR_UNSUPPORTED,
                names_[index] + " has a sparse gradient. DistributedDataParallel takes dense ones");
        torch::NoGradGuard no_grad;
        torch::Tensor& view = view_of(index);
        if (grad.data_ptr() != view.data_ptr()) view.copy_(grad);
        context_.grad_ready(static_cast<ddp_param>(index));
    }

    /* Buckets may move here; a grad() that was in one is then memory like any other. */
    void begin() {
        context_.step_begin();
        open_ = true;
        marked_ = false;
        for (std::size_t index = 0; index < parameters_.size(); ++index)
            missing_[index] = !never_[index] && !frozen_[index];
        missing_count_ =
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
        context_.finalize();
        torch::NoGradGuard no_grad;
        const bool may_be_unused = options_.find_unused_parameters || options_.static_graph;
        for (std::size_t index = 0; index < parameters_.size(); ++index) {
            if (frozen_[index] || (may_be_unused && !context_.used(static_cast<ddp_param>(index))))
                continue;  // by no rank
            torch::Tensor& view = view_of(index);
            torch::Tensor& grad = parameters_[index].mutable_grad();
            if (options_.gradient_as_bucket_view)
                grad = view;
            else if (!grad.defined())
                grad = torch::empty_like(parameters_[index]).copy_(view);  // with its strides
            else if (grad.data_ptr() != view.data_ptr())
                grad.copy_(view);
        }
    }

    /* A gradient's place in its bucket. Its memory stays as long as a tensor shows it. */
    torch::Tensor& view_of(std::size_t index) {
        if (const std::int64_t generation = context_.layout_generation();
            generation != generation_) {
            views_.assign(parameters_.size(), torch::Tensor());
            layout_ = context_.hold_layout();
            generation_ = generation;
        }
        if (!views_[index].defined())
            views_[index] = torch::from_blob(
                context_.grad_view<void>(static_cast<ddp_param>(index)), parameters_[index].sizes(),
                [layout = layout_](void*) {}, parameters_[index].options().requires_grad(false));
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
    ddp_group* group_;
    // a tensor, and what the context knows of it
    std::vector<std::pair<torch::Tensor, torch::Tensor>> registered_;
    Context context_;  // has pointers into these
    std::vector<std::string> names_;
    std::vector<torch::Tensor> parameters_, buffers_;
    // PyTorch would drop them, and the hooks with them.
    std::vector<decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>()))>
        nodes_;

    std::vector<torch::Tensor> views_;
    std::shared_ptr<ddp_layout> layout_;
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
    std::size_t missing_count_ = 0;
    std::vector<bool> accumulated_;  // got gradients in no_sync
    std::vector<bool> never_;        // unused in each step of a static graph
    std::vector<bool> frozen_;       // since it was registered
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
        steps_->before_forward();
        auto output = module_->forward(std::forward<Args>(args)...);
        steps_->after_forward(*module_, output);
        return output;
    }

    const std::shared_ptr<Module>& module() const { return module_; }
    Module* operator->() const { return module_.get(); }
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
