/* streams.cc: ddp_torch.hpp on a device that threads play (tests/bindings/python/played): its
 * streams are late, or stand still, and no processor can touch its memory. Forgotten orders give
 * NaN. Compiled with PLAYED.
 *
 *     DDP_TEST_DEVICE=played:0 ddprun -n 2 ./streams
 */
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "support/fake_device/fake_device.h"

namespace {

constexpr int kPart = 6;

template <class Result, class... Args>
Result played(const char* name, Args... args) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow((std::string("played::") + name).c_str(), "")
        .typed<Result(Args...)>()
        .call(args...);
}
std::int64_t waits() {
    return played<std::int64_t>("waits");
}

/* The current stream of a device does nothing while it lives, or for 0.2 s. */
class Gate {
public:
    Gate() : gate_(played<std::int64_t>("close_gate", std::int64_t{0})) {}
    ~Gate() { played<void>("open_gate", gate_); }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

private:
    std::int64_t gate_;
};
class Hold {
public:
    Hold()
        : gate_(std::make_unique<Gate>()), opens_([this] {
              std::this_thread::sleep_for(std::chrono::milliseconds(200));
              gate_.reset();
          }) {}
    ~Hold() { opens_.join(); }

private:
    std::unique_ptr<Gate> gate_;
    std::thread opens_;
};

struct NetImpl : torch::nn::Module {
    NetImpl() {
        seed(1);
        first = register_module("first", torch::nn::Linear(5, 8));
        norm = register_module("norm", torch::nn::BatchNorm1d(8));
        last = register_module("last", torch::nn::Linear(8, 4));
        to(torch::kDouble);
    }
    torch::Tensor forward(const torch::Tensor& x) {
        return last(torch::tanh(norm(first(x)).to(last->weight.device())));
    }
    torch::nn::Linear first{nullptr}, last{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

Net on_device() {
    Net net;
    put(*net, place());
    return net;
}

/* The same on all ranks, so that the mean is what one rank has. */
torch::Tensor inputs(int step) {
    seed(static_cast<std::uint64_t>(100 + step));
    return torch::randn({kPart, 5}, torch::kDouble);
}

torch::Tensor loss_of(const torch::Tensor& output) {
    return output.square().mean();
}

using Tensors = std::vector<torch::Tensor>;
Tensors parameters(const Net& net) {
    return net->parameters();
}
Tensors gradients(const Net& net) {
    Tensors found;
    for (const torch::Tensor& parameter : net->parameters()) found.push_back(parameter.grad());
    return found;
}

/* Bit for bit: the device runs the kernels of the CPU, and the mean of two equal numbers is
 * exact. */
void same(const Tensors& expected, const Tensors& found, const std::string& what) {
    expect(expected.size() == found.size(), what + ": their number");
    for (std::size_t i = 0; i < expected.size(); ++i)
        expect(torch::equal(expected[i].detach().cpu(), found[i].detach().cpu()),
               what + ": tensor " + std::to_string(i));
}

template <class Model>
void train(Model& model, const Tensors& parameters, const torch::Device& device, int steps,
           double factor = 1) {
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        (loss_of(model.forward(inputs(step).to(device))) * factor).backward();
        optimizer.step();
    }
}

void numbers(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options) {
    Net alone, net = on_device();
    if (group.rank() > 0) {
        torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.add_(1);  // rank 0's values count
    }
    ddp::DistributedDataParallel model(net, group, options);
    train(*alone, alone->parameters(), torch::kCPU, 4);
    train(model, net->parameters(), place(), 4);
    same(parameters(alone), parameters(net), "weights");
    same(gradients(alone), gradients(net), "gradients");
    same(alone->buffers(), net->buffers(), "buffers");
}

c10::Stream current() {
    return c10::impl::VirtualGuardImpl(place().type()).getStream(place());
}
void order(const c10::Stream& first, const c10::Stream& then) {
    c10::Event event(place().type());
    event.record(first);
    event.block(then);
}
/* Later work on this stream comes late. */
void be_late(const c10::Stream& stream) {
    fake::launch(place().index(), stream.native_handle(),
                 [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
}

/* With another stream of the first device as the current one. It begins after what is on this one,
 * and what follows here comes after it. */
class SideStream {
public:
    SideStream() : before_(current()), guard_(made()) { order(before_, current()); }
    ~SideStream() { order(current(), before_); }
    SideStream(const SideStream&) = delete;
    SideStream& operator=(const SideStream&) = delete;

    const c10::Stream& before() const { return before_; }

private:
    static c10::Stream made() {
        return c10::impl::VirtualGuardImpl(place().type()).getNewStream(place());
    }
    c10::Stream before_;
    c10::StreamGuard guard_;
};

void side_stream(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options,
                 bool from_the_start) {
    Net alone, net = on_device();
    train(*alone, alone->parameters(), torch::kCPU, 4);
    std::unique_ptr<SideStream> side;
    if (from_the_start) side = std::make_unique<SideStream>();
    ddp::DistributedDataParallel model(net, group, options);
    if (!from_the_start) side = std::make_unique<SideStream>();
    train(model, net->parameters(), place(), 4);
    same(parameters(alone), parameters(net), "weights of a side stream");
    same(gradients(alone), gradients(net), "gradients of a side stream");
}

/* A hook doubles gradients on the stream of their bucket, and takes its time. No communication makes
 * anybody wait for that. */
template <class Model>
void double_late(Model& model) {
    model.context().set_comm_hook([](ddp_group*, ddp_bucket* bucket) {
        const void* const numbers = ddp_bucket_buffer(bucket);
        const std::size_t count = ddp_bucket_count(bucket);
        fake::launch(ddp_bucket_device(bucket).index, ddp_bucket_stream(bucket), [numbers, count] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            auto* const gradients = fake::at<double>(numbers);
            for (std::size_t i = 0; i < count; ++i) gradients[i] *= 2;
        });
        return ddp::Work();
    });
}

void work_of_a_hook(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options,
                    bool on_a_side_stream, bool on_two_devices) {
    Net alone, net = on_device();
    if (on_two_devices) put(*net->last, device_of(1));
    train(*alone, alone->parameters(), torch::kCPU, 4, 2);
    ddp::DistributedDataParallel model(net, group, options);
    double_late(model);
    std::unique_ptr<SideStream> side;
    if (on_a_side_stream) side = std::make_unique<SideStream>();
    train(model, net->parameters(), place(), 4);
    same(parameters(alone), parameters(net), "weights of a hook");
    same(gradients(alone), gradients(net), "gradients of a hook");
}

/* The forward pass was on another stream than the backward pass and the optimizer are. */
void backward_on_a_side_stream(const ddp::Group& group,
                               const ddp::DistributedDataParallelOptions& options,
                               bool on_two_devices) {
    Net alone, net = on_device();
    if (on_two_devices) put(*net->last, device_of(1));
    train(*alone, alone->parameters(), torch::kCPU, 4, 2);
    ddp::DistributedDataParallel model(net, group, options);
    double_late(model);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
        const torch::Tensor loss = loss_of(model.forward(inputs(step).to(place())));
        const SideStream side;
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
    }
    same(parameters(alone), parameters(net), "weights of a backward pass on a side stream");
}

/* Its halves are on two devices. */
void two_devices(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options,
                 bool on_a_side_stream) {
    Net alone, net = on_device();
    put(*net->last, device_of(1));
    ddp::DistributedDataParallel model(net, group, options);
    std::unique_ptr<SideStream> side;
    if (on_a_side_stream) side = std::make_unique<SideStream>();
    train(*alone, alone->parameters(), torch::kCPU, 4);
    train(model, net->parameters(), place(), 4);
    same(parameters(alone), parameters(net), "weights on two devices");
    same(gradients(alone), gradients(net), "gradients on two devices");
}

/* On the thread of a device, other devices have other current streams than the program's. A gradient
 * of no_sync is on its way there when the thread of the second device announces it. */
struct PairImpl : torch::nn::Module {
    PairImpl() {
        seed(2);
        left = register_module("left", torch::nn::Linear(5, 4));
        right = register_module("right", torch::nn::Linear(5, 4));
        to(torch::kDouble);
    }
    torch::Tensor forward(const torch::Tensor& x, bool uses_left) {
        const torch::Tensor y = right(x.to(right->weight.device()));
        return uses_left ? y + left(x).to(y.device()) : y;
    }
    torch::nn::Linear left{nullptr}, right{nullptr};
};
TORCH_MODULE(Pair);

/* A rank uses no parameter, and lays down zeros late, on another stream than the forward pass had. */
struct PassImpl : torch::nn::Module {
    PassImpl() {
        seed(3);
        layer = register_module("layer", torch::nn::Linear(5, 5));
        to(torch::kDouble);
    }
    torch::Tensor forward(const torch::Tensor& x, bool uses) { return uses ? layer(x) : x * 1; }
    torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Pass);

void unused_on_a_side_stream(const ddp::Group& group) {
    Pass alone, net;
    put(*net, place());
    ddp::DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    ddp::DistributedDataParallel model(net, group, options);
    for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        const bool uses = step < 3 || group.rank() > 0;
        const torch::Tensor x = inputs(step).to(place()).requires_grad_();
        const torch::Tensor loss = loss_of(model.forward(x, uses));
        const SideStream side;
        const c10::Stream late = current();
        if (!uses) x.register_hook([late](const torch::Tensor&) { be_late(late); });
        loss.backward();
    }
    const double share = static_cast<double>(group.world_size() - 1) / group.world_size();
    loss_of(alone->forward(inputs(3), true)).backward();
    for (const auto& item : alone->named_parameters()) {
        const torch::Tensor& grad = net->named_parameters()[item.key()].grad();
        if (group.world_size() == 1)
            expect(!grad.defined(), item.key() + " that no rank uses");
        else
            expect(torch::allclose(item.value().grad() * share, grad.cpu()),
                   item.key() + " that rank 0 does not use");
    }
}

/* Values that are written late: before the model is made, in a step, and before a rank joins. */
void late_values(const ddp::Group& group) {
    Net alone, net = on_device();
    const auto add_late = [&](double number) {
        torch::NoGradGuard no_grad;
        be_late(current());
        for (auto& parameter : net->parameters()) parameter.add_(number);
    };
    ddp::DistributedDataParallelOptions options;
    options.join = true;
    std::unique_ptr<ddp::DistributedDataParallel<NetImpl>> model;
    {
        const SideStream side;
        add_late(group.rank() + 1);
        model = std::make_unique<ddp::DistributedDataParallel<NetImpl>>(net, group, options);
        for (auto& parameter : alone->parameters()) parameter.detach().add_(1);
        same(parameters(alone), parameters(net), "late weights of rank 0");
    }
    const torch::Tensor x = inputs(0).to(place());  // which waits
    loss_of(model->forward(x)).backward();
    net->eval();
    {
        const SideStream side;
        be_late(current());
        net->norm->running_mean.fill_(group.rank() + 5);
        loss_of(model->forward(x)).backward();
        expect(torch::equal(net->norm->running_mean.cpu(), torch::full({8}, 5, torch::kDouble)),
               "late buffers of rank 0");
    }
    {
        const SideStream side;
        add_late(group.rank() + 1);
        model->join();
        for (auto& parameter : alone->parameters()) parameter.detach().add_(group.world_size());
        same(parameters(alone), parameters(net), "late weights of the rank that joined last");
    }
}

void announced_by_another_device(const ddp::Group& group) {
    Pair alone, net;
    put(*net->left, place()), put(*net->right, device_of(1));
    const torch::Tensor x = inputs(0), there = x.to(place());
    ddp::DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    const SideStream side;
    ddp::DistributedDataParallel model(net, group, options);
    for (const bool uses_left : {true, false}) loss_of(alone->forward(x, uses_left)).backward();
    net->left->weight.register_hook([](const torch::Tensor& grad) {
        be_late(current());
        return grad * 1;
    });
    {
        const auto guard = model.no_sync();
        loss_of(model.forward(there, true)).backward();
    }
    loss_of(model.forward(there, false)).backward();
    for (const auto& item : alone->named_parameters())
        expect(torch::equal(item.value().grad(), net->named_parameters()[item.key()].grad().cpu()),
               item.key() + " that another device announced");
}

/* One half is on the CPU, and the other on a device that is not the current one. */
void beside_the_cpu(const ddp::Group& group) {
    Net alone, net;
    put(*net->last, device_of(1));
    ddp::DistributedDataParallel model(net, group);
    train(*alone, alone->parameters(), torch::kCPU, 4);
    train(model, net->parameters(), torch::kCPU, 4);
    same(parameters(alone), parameters(net), "weights on the CPU and a device");
}

/* In whole steps whose streams stand still. With several ranks the fake device's data goes through
 * the host, which waits in libddp; nothing in ddp_torch.hpp waits then. */
void the_host_does_not_wait(const ddp::Group& group,
                            const ddp::DistributedDataParallelOptions& options) {
    Net net = on_device();
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Tensors batches;
    for (int step = 0; step < 7; ++step) batches.push_back(inputs(step).to(place()));
    const auto step = [&](const torch::Tensor& x) {
        loss_of(model.forward(x)).backward();
        optimizer.step();
        optimizer.zero_grad();
    };
    for (int i = 0; i < 3; ++i) step(batches[i]);  // in which buckets are built anew
    const std::int64_t before = waits();
    {
        std::unique_ptr<Gate> gate;
        if (group.world_size() == 1) gate = std::make_unique<Gate>();
        for (int i = 3; i < 7; ++i) {
            if (i == 4) {
                const auto guard = model.no_sync();
                loss_of(model.forward(batches[i])).backward();
            } else {
                step(batches[i]);
            }
        }
        expect(waits() == before, "the host has waited in a step");
    }
    for (const torch::Tensor& parameter : net->parameters())
        expect(torch::isfinite(parameter.cpu()).all().item<bool>(), "weights are not finite");
}

void memory_is_freed(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options) {
    Net net = on_device();
    fake::settle();
    const std::size_t before = fake::live_bytes();
    {
        ddp::DistributedDataParallel model(net, group, options);
        for (int step = 0; step < 4; ++step)
            loss_of(model.forward(inputs(step).to(place()))).backward();
        expect(fake::live_bytes() > before, "buckets need memory");
        net->zero_grad();
    }
    for (int i = 0; i < 1000 && fake::live_bytes() != before; ++i) {  // libddp's threads hold the
        fake::settle();                                               // last operations longer
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    expect(fake::live_bytes() == before, "memory of the device is left");
}

/* The copies of the means out of the buckets are still to come. */
void buckets_outlive_the_model(const ddp::Group& group) {
    Net alone, net = on_device(), other = on_device();
    loss_of(alone->forward(inputs(0))).backward();
    const torch::Tensor x = inputs(0).to(place());
    std::unique_ptr<Hold> hold;
    {
        ddp::DistributedDataParallel model(net, group);
        hold = std::make_unique<Hold>();
        loss_of(model.forward(x)).backward();
    }
    ddp::DistributedDataParallel may_get_that_memory(other, group);
    same(gradients(alone), gradients(net), "gradients after their model");
}

/* The same, where that is on another stream than the current one. */
void buckets_outlive_the_model_of_a_side_stream(const ddp::Group& group) {
    Net alone, net = on_device(), other = on_device();
    loss_of(alone->forward(inputs(0))).backward();
    const torch::Tensor x = inputs(0).to(place());
    auto model = std::make_unique<ddp::DistributedDataParallel<NetImpl>>(net, group);
    const SideStream side;
    const Hold hold;
    loss_of(model->forward(x)).backward();
    {
        const c10::StreamGuard before(side.before());
        model.reset();
        ddp::DistributedDataParallel may_get_that_memory(other, group);
    }
    same(gradients(alone), gradients(net), "gradients of a side stream after their model");
}

/* An optimizer's step over gradients in buckets is still to come when nobody else has them. */
void gradients_outlive_the_model(const ddp::Group& group) {
    Net alone, net = on_device(), other = on_device();
    ddp::DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    torch::optim::SGD one(alone->parameters(), 0.1), all(net->parameters(), 0.1);
    loss_of(alone->forward(inputs(0))).backward();
    {
        ddp::DistributedDataParallel model(net, group, options);
        loss_of(model.forward(inputs(0).to(place()))).backward();
    }
    {
        const Hold hold;
        one.step(), all.step();
        all.zero_grad();
        ddp::DistributedDataParallel may_get_that_memory(other, group);
    }
    same(parameters(alone), parameters(net), "weights after the model");
}

/* Gradients of the step before lie in an old bucket when buckets move, and are still to be copied.
 */
void buckets_outlive_the_step_in_which_they_move(const ddp::Group& group, bool in_place) {
    Net alone, net = on_device();
    ddp::DistributedDataParallelOptions options;
    options.gradient_as_bucket_view = true;
    options.bucket_cap_mb = 0.0003;  // the second plan has other buckets
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD one(alone->parameters(), 0.1), all(net->parameters(), 0.1);
    const std::int64_t before = model.context().layout_generation();
    for (int step = 0; step < 3; ++step) {
        for (auto* optimizer : {&one, &all}) optimizer->zero_grad(!in_place);
        loss_of(alone->forward(inputs(step))).backward();
        const torch::Tensor x = inputs(step).to(place());
        const Hold hold;
        loss_of(model.forward(x)).backward();
        one.step(), all.step();
    }
    expect(model.context().layout_generation() != before, "buckets have moved");
    same(parameters(alone), parameters(net), "weights where buckets have moved");
}

/* A rank whose device stands still lets its model go in a step. Others do not wait for that device
 * to hear of it. */
void others_hear_of_a_lost_step_first(const ddp::Group& group) {
    if (group.world_size() == 1) return;
    const ddp::Group breaks = group_of_test();
    Net net = on_device();
    auto model = std::make_unique<ddp::DistributedDataParallel<NetImpl>>(net, breaks);
    const torch::Tensor x = inputs(0).to(place());
    double news = 0;
    if (group.rank() == 0) {
        torch::Tensor output = model->forward(x);
        const std::int64_t gate = played<std::int64_t>("close_gate", std::int64_t{0});
        // the gradients of some parameters are complete then
        net->norm->weight.register_hook(
            [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("on purpose"); });
        try {
            loss_of(output).backward();
            throw std::logic_error("a hook failed, and backward did not");
        } catch (const std::runtime_error&) {
        }
        std::thread listener([&] {
            ddp_error* error = nullptr;
            ddp::check(ddp_broadcast(group.get(), &news, 1, DDP_F64, 1, nullptr, &error), error);
            played<void>("open_gate", gate);
        });
        model.reset();
        listener.join();
    } else {
        try {
            loss_of(model->forward(x)).backward();
            loss_of(model->forward(x)).backward();  // errors of a step may come in the next one
        } catch (const ddp::Error& error) {
            news = error.status() == DDP_ERROR_ABORTED ? 1 : 2;
        }
        ddp_error* error = nullptr;
        ddp::check(ddp_broadcast(group.get(), &news, 1, DDP_F64, 1, nullptr, &error), error);
    }
    expect(news == 1, "the other ranks are told that the step was given up");
}

/* With several ranks buffers are sent in the order of streams, and changed ones are refused. */
void buffers(const ddp::Group& group) {
    if (group.world_size() == 1) return;
    Net net = on_device();
    ddp::DistributedDataParallel model(net, group);
    model.forward((inputs(0) + group.rank()).to(place()));
    const torch::Tensor own = net->norm->running_mean.clone();
    torch::Tensor of_all = own.cpu().contiguous();
    ddp_error* error = nullptr;
    ddp::check(
        ddp_broadcast(group.get(), of_all.data_ptr(), of_all.nbytes(), DDP_U8, 0, nullptr, &error),
        error);
    expect(group.rank() == 0 || !torch::equal(own.cpu(), of_all), "buffers are each rank's own");
    net->eval();
    {
        torch::NoGradGuard no_grad;
        model.forward(inputs(0).to(place()));
    }
    expect(torch::equal(net->norm->running_mean.cpu(), of_all), "buffers become rank 0's");
    net->norm->to(torch::kFloat);
    try {
        model.forward(inputs(0).to(place()));
        throw std::logic_error("a buffer has another type, and nobody says so");
    } catch (const ddp::Error& changed) {
        expect(changed.status() == DDP_ERROR_INVALID_STATE &&
                   std::string(changed.what()).find("norm.running_mean has another device, type") !=
                       std::string::npos,
               changed.what());
    }
}

void other_devices_are_refused(const ddp::Group& group) {
    Net net;
    put(*net, torch::kMeta);
    try {
        ddp::DistributedDataParallel model(net, group);
        throw std::logic_error("nobody says that there is no such device");
    } catch (const ddp::Error& error) {
        expect(error.status() == DDP_ERROR_UNSUPPORTED &&
                   std::string(error.what()).find("first.weight is on meta") != std::string::npos,
               error.what());
    }
}

}  // namespace

int main() {
    try {
        torch::set_num_threads(1);
        const ddp::Group group = group_of_test();
        ddp::DistributedDataParallelOptions plain, views, small, fixed, find;
        views.gradient_as_bucket_view = true;
        small.bucket_cap_mb = 0.0003;
        fixed.static_graph = true;
        find.find_unused_parameters = true;
        for (const auto& options : {plain, views, small, fixed, find}) {
            numbers(group, options);
            the_host_does_not_wait(group, options);
        }
        for (const auto& options : {plain, views}) {
            for (const bool side : {false, true}) two_devices(group, options, side);
            memory_is_freed(group, options);
        }
        for (const auto& options : {plain, views, small, find})
            for (const bool two : {false, true}) {
                for (const bool side : {false, true}) work_of_a_hook(group, options, side, two);
                backward_on_a_side_stream(group, options, two);
            }
        for (const auto& options : {plain, views, fixed, find})
            for (const bool from_the_start : {false, true})
                side_stream(group, options, from_the_start);
        beside_the_cpu(group);
        announced_by_another_device(group);
        if (group.world_size() == 1) {  // otherwise libddp itself waits for the streams
            buckets_outlive_the_model(group);
            buckets_outlive_the_model_of_a_side_stream(group);
            for (const bool in_place : {false, true})
                buckets_outlive_the_step_in_which_they_move(group, in_place);
        }
        gradients_outlive_the_model(group);
        unused_on_a_side_stream(group);
        late_values(group);
        buffers(group);
        other_devices_are_refused(group);
        others_hear_of_a_lost_step_first(group);
        std::puts("all held");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "streams: %s\n", error.what());
        return 1;
    }
}
