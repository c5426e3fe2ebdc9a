/* averaging.cc: ddp_torch.hpp beside one process that has the whole batch.
 *
 *     ddprun -n 3 ./averaging            DDP_TEST_DEVICE=cuda:0 is the device, which all ranks may
 *                                        share; DDP_TEST_BACKEND=nccl a backend of libddp
 *     ./averaging ONE TWO                prints how far apart two files with weights of
 *                                        libtorch_mnist are
 */
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device.h"
#ifdef PLAYED
#include "played_rows.h"
#endif

namespace {

constexpr int kSteps = 4, kPart = 6;
// rounding; one gradient that is not averaged moves weights by 0.01
constexpr double kBound = 1e-12;

/* With a weight that is used twice, a buffer, and branches. */
struct NetImpl : torch::nn::Module {
    NetImpl() {
        seed(1);
        first = register_module("first", torch::nn::Linear(5, 8));
        twice = register_module("twice", torch::nn::Linear(8, 8));
        left = register_module("left", torch::nn::Linear(8, 4));
        right = register_module("right", torch::nn::Linear(8, 4));
        never = register_module("never", torch::nn::Linear(8, 4));
        turned = register_parameter("turned", torch::randn({4, 8}).t());  // not contiguous
        seen = register_buffer("seen", torch::zeros({5}));
        to(torch::kDouble);
        put(*this, place());
    }
    std::pair<torch::Tensor, std::vector<torch::Tensor>> forward(const torch::Tensor& x) {
        seen.add_(x.detach().mean(0));
        torch::Tensor y = torch::tanh(twice(torch::tanh(twice(torch::tanh(first(x))))));
        y = y + (x.narrow(1, 0, 4).matmul(turned.t()));
        std::vector<torch::Tensor> outputs;
        if (uses_left) outputs.push_back(left(y));
        if (uses_right) outputs.push_back(right(y));
        return {y, outputs};
    }

    torch::nn::Linear first{nullptr}, twice{nullptr}, left{nullptr}, right{nullptr}, never{nullptr};
    torch::Tensor turned, seen;
    bool uses_left = true, uses_right = true;
};
TORCH_MODULE(Net);

torch::Tensor loss_of(const std::pair<torch::Tensor, std::vector<torch::Tensor>>& output) {
    torch::Tensor loss = output.first.square().mean();
    for (const torch::Tensor& tensor : output.second) loss = loss + tensor.square().mean();
    return loss;
}

/* The inputs of all ranks, for one step. */
torch::Tensor inputs(const ddp::Group& group, int step) {
    seed(static_cast<std::uint64_t>(100 + step));
    return torch::randn({kPart * group.world_size(), 5}, torch::kDouble).to(place());
}
torch::Tensor mine(const ddp::Group& group, const torch::Tensor& all) {
    return all.narrow(0, kPart * group.rank(), kPart);
}

ddp::DistributedDataParallelOptions finding_unused() {
    ddp::DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    return options;
}

double distance(Net& a, Net& b) {
    double most = 0;
    const auto others = b->named_parameters();
    for (const auto& item : a->named_parameters())
        most = std::max(most, (item.value() - others[item.key()]).abs().max().item<double>());
    return most;
}

void without(Net& net, const std::vector<std::string>& names) {
    for (auto& item : net->named_parameters())
        for (const std::string& name : names)
            if (item.key().rfind(name, 0) == 0) item.value().set_requires_grad(false);
}

void zero(Net& net, bool in_place) {
    for (torch::Tensor& parameter : net->parameters()) {
        torch::Tensor& grad = parameter.mutable_grad();
        if (!grad.defined()) continue;
        if (in_place)
            grad.detach_().zero_();
        else
            grad = torch::Tensor();
    }
}

/* Some steps, alone on everything and together on parts. */
void compare_zeroed(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options,
                    bool find, bool same, bool in_place) {
    Net alone, net;
    if (!find) without(alone, {"never"}), without(net, {"never"});
    if (group.rank() > 0) {
        torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) parameter.add_(1);  // rank 0's values count
        net->turned.add_(1);
    }
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD one(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        all(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
        const torch::Tensor x = inputs(group, step);
        alone->uses_right = net->uses_right = !find || (!same && step % 2 == 0);
        zero(alone, in_place), zero(net, in_place);
        loss_of(alone->forward(x)).backward();
        loss_of(model.forward(mine(group, x))).backward();
        if (find && !in_place) {
            expect(!net->never->weight.grad().defined(),
                   "a parameter that no rank uses has a gradient");
        }
        one.step(), all.step();
    }
    expect(distance(alone, net) <= (group.world_size() == 1 ? 0 : kBound),
           "weights differ by " + std::to_string(distance(alone, net)));
}

void compare(const ddp::Group& group, const ddp::DistributedDataParallelOptions& options, bool find,
             bool same = false) {
    for (const bool in_place : {false, true}) compare_zeroed(group, options, find, same, in_place);
}

/* A gradient that lies in a bucket outlives the bucket. */
void gradients_outlive(const ddp::Group& group) {
    Net net;
    without(net, {"never"});
    std::vector<torch::Tensor> kept;
    {
        ddp::DistributedDataParallelOptions options;
        options.gradient_as_bucket_view = true;
        ddp::DistributedDataParallel model(net, group, options);
        for (int step = 0; step < 3; ++step) {
            zero(net, false);
            loss_of(model.forward(mine(group, inputs(group, step)))).backward();
            for (const torch::Tensor& parameter : net->parameters())
                if (parameter.grad().defined()) kept.push_back(parameter.grad());
        }
    }
    for (const torch::Tensor& grad : kept)
        expect(torch::isfinite(grad).all().item<bool>(), "a gradient of a step before");
}

void no_sync(const ddp::Group& group) {
    Net alone, net;
    without(alone, {"never"}), without(net, {"never"});
    ddp::DistributedDataParallel model(net, group);
    const torch::Tensor first = inputs(group, 0), second = inputs(group, 1);
    (loss_of(alone->forward(first)) + loss_of(alone->forward(second))).backward();
    {
        const auto guard = model.no_sync();
        loss_of(model.forward(mine(group, first))).backward();
    }
    loss_of(model.forward(mine(group, second))).backward();
    for (const auto& item : net->named_parameters()) {
        const torch::Tensor expected = alone->named_parameters()[item.key()].grad();
        if (!expected.defined()) continue;
        expect((item.value().grad() - expected).abs().max().item<double>() < kBound,
               item.key() + " after no_sync");
    }
}

/* A layer that only the steps in no_sync use takes part in the mean all the same. */
void no_sync_of_branches(const ddp::Group& group) {
    Net net, other;
    ddp::DistributedDataParallel model(net, group, finding_unused());
    const torch::Tensor first = inputs(group, 0), second = inputs(group, 1);
    {
        const auto guard = model.no_sync();
        loss_of(model.forward(mine(group, first))).backward();
    }
    net->uses_right = false;
    loss_of(model.forward(mine(group, second))).backward();
    loss_of(other->forward(first)).backward();
    expect((net->right->weight.grad() - other->right->weight.grad()).abs().max().item<double>() <
               kBound,
           "a layer that only no_sync used");
}

/* The loss depends on a part of what forward returns. */
void part_of_the_output(const ddp::Group& group) {
    Net net, other;
    ddp::DistributedDataParallel model(net, group, finding_unused());
    for (int step = 0; step < 2; ++step) {
        const torch::Tensor x = inputs(group, step);
        model.forward(mine(group, x)).second[0].mean().backward();
        other->forward(x).second[0].mean().backward();
        expect(!net->right->weight.grad().defined(),
               "a layer behind an output that the loss does not use");
        expect((net->left->weight.grad() - other->left->weight.grad()).abs().max().item<double>() <
                   kBound,
               "a layer behind an output that the loss uses");
    }
}

/* A parameter that only some ranks use. */
void some_ranks(const ddp::Group& group) {
    Net net, other;
    ddp::DistributedDataParallel model(net, group, finding_unused());
    net->uses_right = group.rank() == 0;
    const torch::Tensor x = inputs(group, 0);
    loss_of(model.forward(mine(group, x))).backward();
    loss_of(other->forward(x.narrow(0, 0, kPart))).backward();  // what rank 0 did
    expect((net->right->weight.grad() - other->right->weight.grad() / group.world_size())
                   .abs()
                   .max()
                   .item<double>() < kBound,
           "a gradient of one rank only");
}

void buffers(const ddp::Group& group) {
    Net net;
    without(net, {"never"});
    ddp::DistributedDataParallel model(net, group);
    const auto kind = torch::TensorOptions(torch::kDouble).device(place());
    model.forward(torch::full({2, 5}, 1.0 + group.rank(), kind));
    expect(net->seen[0].item<double>() == 1 + group.rank(),
           "a buffer is each rank's own after a forward pass");
    model.forward(torch::zeros({2, 5}, kind));
    expect(net->seen[0].item<double>() == 1, "a buffer becomes rank 0's before a forward pass");
}

void failed_backward(const ddp::Group& group) {
    Net net, other;
    ddp::DistributedDataParallel model(net, group, finding_unused());
    const torch::Tensor x = inputs(group, 0);
    torch::Tensor loss = loss_of(model.forward(mine(group, x)));
    loss.register_hook([](const torch::Tensor&) { throw std::runtime_error("on purpose"); });
    try {
        loss.backward();
        throw std::logic_error("a hook failed, and backward did not");
    } catch (const std::runtime_error&) {
    }
    loss_of(model.forward(mine(group, x))).backward();
    loss_of(other->forward(x)).backward();
    expect(
        (net->left->weight.grad() - other->left->weight.grad()).abs().max().item<double>() < kBound,
        "the step after a backward pass that failed");
}

/* Waits in the store, which works whatever has become of the group. */
void meet(const ddp::Group& group, const std::string& where) {
    ddp_error* error = nullptr;
    ddp_store* store = nullptr;
    ddp::check(ddp_group_store(group.get(), &store, &error), error);
    int64_t here = 0;
    const std::string all = where + "/all";
    const char* const key = all.c_str();
    ddp_status met = ddp_store_add(store, (where + "/here").c_str(), 1, &here, &error);
    if (met == DDP_OK && here == group.world_size()) met = ddp_store_set(store, key, "", 0, &error);
    if (met == DDP_OK) met = ddp_store_wait(store, &key, 1, 60'000, &error);
    ddp_store_free(store);
    ddp::check(met, error);
}

/* A type of the program's own. */
struct Own {
    torch::Tensor y;
};
struct ReturnsOwnImpl : torch::nn::Module {
    ReturnsOwnImpl() { layer = register_module("layer", torch::nn::Linear(5, 1)); }
    Own forward(const torch::Tensor& x) { return {layer(x)}; }
    torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(ReturnsOwn);

void fails(const std::function<void()>& body, const std::string& with) {
    try {
        body();
    } catch (const ddp::Error& error) {
        expect(std::string(error.what()).find(with) != std::string::npos,
               std::string("the message: ") + error.what());
        return;
    }
    throw std::runtime_error("no error: " + with);
}

/* A module that is no longer what was registered, and one that is called directly. */
void changes(const ddp::Group& group) {
    const torch::Tensor x = mine(group, inputs(group, 0));
    Net net;
    without(net, {"never"});
    ddp::DistributedDataParallel model(net, group);
    fails([&] { loss_of(net->forward(x)).backward(); }, "model.forward(x), not model->forward(x)");
    loss_of(model.forward(x)).backward();
    Net other;
    for (const bool trained : {false, true, false}) {
        net->right->weight.set_requires_grad(trained), net->right->bias.set_requires_grad(trained);
        zero(net, false), zero(other, false);
        loss_of(model.forward(x)).backward();
        loss_of(other->forward(inputs(group, 0))).backward();
        expect(net->right->weight.grad().defined() == trained,
               "a frozen layer has no gradient, a thawed one has");
        expect((net->left->weight.grad() - other->left->weight.grad()).abs().max().item<double>() <
                   kBound,
               "the mean beside a frozen layer");
    }
    net->right->weight.set_requires_grad(true), net->right->bias.set_requires_grad(true);
    net->to(torch::kFloat);
    fails([&] { model.forward(x.to(torch::kFloat)); }, "has another ");
    net->to(torch::kDouble);
    if (place().is_cpu())  // a device's allocator may find the same memory
        fails([&] { model.forward(x); }, "lies in other memory now");
}

/* The stream of a libtorch that does not tell its handle. */
struct OldStream {
    std::int64_t number;
    std::int64_t id() const { return number; }
    torch::Device device() const { return {torch::kCUDA, 1}; }
};

void errors(const ddp::Group& group) {
    expect(ddp::detail::handle_of(OldStream{0}) == nullptr, "the default stream");
    fails([] { ddp::detail::handle_of(OldStream{7}); },
          "the current stream of cuda:1 is not its default stream");
    Net net;
    ddp::DistributedDataParallel model(net, group);
    const torch::Tensor x = mine(group, inputs(group, 0));
    fails([&] { loss_of(model.forward(x)).backward(); },
          "this backward pass gave no gradient for never.weight, never.bias");
    fails([&] { model.forward(x); }, "never.weight, never.bias");
    changes(group);

    Net frozen;
    without(frozen, {""});
    fails([&] { ddp::DistributedDataParallel refused(frozen, group); },
          "no parameter that requires a gradient");
    ReturnsOwn own;
    put(*own, place());
    const torch::Tensor y = torch::ones({1, 5}).to(place());
    ddp::DistributedDataParallel taken(own, group);
    taken.forward(y).y.sum().backward();
    ddp::DistributedDataParallel refusing(own, group, finding_unused());
    fails([&] { refusing.forward(y); }, "forward returns a type");

    ddp::DistributedDataParallelOptions options;
    options.bucket_cap_mb = 0;
    fails([&] { ddp::DistributedDataParallel refused(net, group, options); }, "bucket_cap_mb");
    // `model` is freed in a step that has begun, which breaks the group: no rank may need that any
    // more
    meet(group, "errors");
}

#ifdef PLAYED  // which has no EmbeddingBag
using Bags = torch::nn::Embedding;
torch::Tensor sums(Bags& bags, const torch::Tensor& x) {
    return bags(x).sum(1);
}
Bags bags_of(bool sparse) {
    return Bags(torch::nn::EmbeddingOptions(12, 3).sparse(sparse));
}
#else
using Bags = torch::nn::EmbeddingBag;
torch::Tensor sums(Bags& bags, const torch::Tensor& x) {
    return bags(x);
}
Bags bags_of(bool sparse) {
    return Bags(torch::nn::EmbeddingBagOptions(12, 3).sparse(sparse).mode(torch::kSum));
}
#endif

/* Two tables of which a batch uses a few rows. */
struct WordsImpl : torch::nn::Module {
    explicit WordsImpl(bool sparse = true) {
        seed(3);
        words = register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 3).sparse(sparse)));
        bags = register_module("bags", bags_of(sparse));
        last = register_module("last", torch::nn::Linear(3, 2));
        to(torch::kDouble);
        put(*this, place());
    }
    torch::Tensor forward(const torch::Tensor& x) {
        torch::Tensor y = words(x).mean(1);
        if (uses_bags) y = y + sums(bags, x);
        return last(y.to(last->weight.device()));
    }
    torch::nn::Embedding words{nullptr};
    Bags bags{nullptr};
    torch::nn::Linear last{nullptr};
    bool uses_bags = true;
};
TORCH_MODULE(Words);

torch::Tensor rows_of(const torch::Tensor& grad) {
    return grad.is_sparse() ? grad.to_dense() : grad;
}

/* Gradients that are rows. `reference` has dense ones. */
void rows(const ddp::Group& group, ddp::DistributedDataParallelOptions options, bool branches,
          bool words_on_cpu = false) {
    Words net, reference(false);
    if (words_on_cpu) {
        put(*net->words, torch::kCPU), put(*net->bags, torch::kCPU);
        put(*reference->words, torch::kCPU), put(*reference->bags, torch::kCPU);
    }
    if (group.rank() > 0) {
        torch::NoGradGuard no_grad;
        net->words->weight.add_(1), net->last->weight.add_(1);
    }
    options.find_unused_parameters = branches;
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD one(reference->parameters(), 0.1), all(net->parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
        seed(static_cast<std::uint64_t>(step));
        const torch::Tensor x = torch::randint(12, {kPart * group.world_size(), 4}, torch::kLong)
                                    .to(net->words->weight.device());
        net->uses_bags = reference->uses_bags = !branches || step % 2 == 0;
        one.zero_grad(), all.zero_grad();
        reference->forward(x).square().mean().backward();
        if (step == 2) {  // the last of two passes brings the mean of both
            reference->forward(x).square().mean().backward();
            const auto guard = model.no_sync();
            model.forward(mine(group, x)).square().mean().backward();
        }
        model.forward(mine(group, x)).square().mean().backward();
        expect(net->words->weight.grad().is_sparse(), "the gradient of a table is rows");
        expect(net->words->weight.grad().device() == net->words->weight.device(), "their device");
        for (const auto& item : reference->named_parameters()) {
            const torch::Tensor& grad = net->named_parameters()[item.key()].grad();
            const bool used = item.value().grad().defined();
            expect(grad.defined() == used, item.key() + " is used by all or by none");
            if (used)
                expect((rows_of(grad) - item.value().grad()).abs().max().item<double>() <= kBound,
                       item.key() + " of rows");
        }
        one.step(), all.step();
    }
    for (const auto& item : reference->named_parameters())
        expect((net->named_parameters()[item.key()] - item.value()).abs().max().item<double>() <=
                   kBound,
               item.key() + " trained with rows");
}

struct TableImpl : torch::nn::Module {
    TableImpl() : table(register_parameter("table", torch::ones({12, 3}))) { put(*this, place()); }
    torch::Tensor forward(const torch::Tensor& x) {
        return torch::embedding(table, x, -1, false, true);
    }
    torch::Tensor table;
};
TORCH_MODULE(Table);

void rows_where_none_are_expected(const ddp::Group& group) {
    Table table;
    ddp::DistributedDataParallel model(table, group);
    const torch::Tensor x = torch::ones({2, 3}, torch::kLong).to(place());
    fails([&] { model.forward(x).sum().backward(); }, "table has a sparse gradient");
    meet(group, "rows where none are expected");
}

void a_table_that_is_used_elsewhere(const ddp::Group& group) {
    Words net;
    ddp::DistributedDataParallel model(net, group);
    const torch::Tensor x = torch::ones({2, 3}, torch::kLong).to(place());
    fails([&] { (model.forward(x).sum() + net->words->weight.sum()).backward(); },
          "words.weight belongs to an embedding with sparse(true), and has a dense gradient");
    meet(group, "a table that is used elsewhere");
}

/* Ranks run out of inputs, the higher ones first. */
void joined(const ddp::Group& group, ddp::DistributedDataParallelOptions options, bool to_none) {
    Net alone, net;
    without(alone, {"never"}), without(net, {"never"});
    options.join = true;
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD one(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        all(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const int world = group.world_size();
    for (int epoch = 0; epoch < 2; ++epoch) {
        for (int step = 0; step < world + 2; ++step) {
            const int present = std::min(world, world + 2 - step);
            const int divisor = options.divide_by_initial_world_size ? world : present;
            const torch::Tensor x = inputs(group, step);
            zero(alone, !to_none);
            for (int rank = 0; rank < present; ++rank)
                (loss_of(alone->forward(x.narrow(0, kPart * rank, kPart))) / divisor).backward();
            one.step();
            if (group.rank() >= present) continue;
            zero(net, !to_none);
            loss_of(model.forward(mine(group, x))).backward();
            all.step();
        }
        model.join();
        expect(distance(alone, net) <= kBound,
               "after join, weights differ by " + std::to_string(distance(alone, net)));
        // momentum is each rank's own, and ranks have taken different numbers of steps
        one.state().clear(), all.state().clear();
    }
}

/* Tables on a joined rank, too, become those of the rank that joined last. */
void joined_with_rows(const ddp::Group& group, bool broadcast_buffers) {
    Words net, reference(false);
    ddp::DistributedDataParallelOptions options;
    options.join = true;
    options.broadcast_buffers = broadcast_buffers;
    ddp::DistributedDataParallel model(net, group, options);
    torch::optim::SGD one(reference->parameters(), 0.1), all(net->parameters(), 0.1);
    const int world = group.world_size();
    for (int step = 0; step < world + 1; ++step) {
        const int present = std::min(world, world + 1 - step);
        seed(static_cast<std::uint64_t>(step));
        const torch::Tensor x = torch::randint(12, {kPart * world, 4}, torch::kLong).to(place());
        one.zero_grad(), all.zero_grad();
        for (int rank = 0; rank < present; ++rank)
            (reference->forward(x.narrow(0, kPart * rank, kPart)).square().mean() / world)
                .backward();
        one.step();
        if (group.rank() >= present) continue;
        model.forward(mine(group, x)).square().mean().backward();
        all.step();
    }
    model.join();
    for (const auto& item : reference->named_parameters())
        expect((net->named_parameters()[item.key()] - item.value()).abs().max().item<double>() <=
                   kBound,
               item.key() + " after join");
}

void joined_early(const ddp::Group& group) {
    Net net;
    without(net, {"never"});
    ddp::DistributedDataParallelOptions options;
    options.join = options.throw_on_early_termination = true;
    ddp::DistributedDataParallel model(net, group, options);
    const torch::Tensor x = mine(group, inputs(group, 0));
    loss_of(model.forward(x)).backward();
    if (group.world_size() > 1) {
        try {
            if (group.rank() == 0)
                model.join();
            else
                model.forward(x);
            throw std::logic_error("a rank has no more inputs, and nobody says so");
        } catch (const ddp::Error& error) {
            expect(error.status() == DDP_ERROR_UNEVEN_INPUTS && error.rank() == 0, error.what());
        }
    }
    net->left->bias.set_requires_grad(false);
    fails([&] { model.forward(x); }, "left.bias is frozen now");
    meet(group, "joined early");
}

/* The distance between the weights in two files of the example. */
double distance_of_files(const char* one_file, const char* two_file) {
    torch::serialize::InputArchive one, two;
    one.load_from(one_file), two.load_from(two_file);
    double most = 0;
    for (const char* layer : {"first", "second", "last"})
        for (const char* kind : {"weight", "bias"}) {
            torch::serialize::InputArchive a, b;
            torch::Tensor x, y;
            one.read(layer, a), two.read(layer, b);
            a.read(kind, x), b.read(kind, y);
            most = std::max(most, (x - y).abs().max().item<double>());
        }
    return most;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 3) {
            std::printf("%g", distance_of_files(argv[1], argv[2]));
            return 0;
        }
        torch::set_num_threads(1);
        const ddp::Group group = group_of_test();
        ddp::DistributedDataParallelOptions plain, views, find = finding_unused(), small, fixed;
        views.gradient_as_bucket_view = true;
        small.bucket_cap_mb = 0.0001;
        fixed.static_graph = true;
        compare(group, plain, false);
        compare(group, views, false);
        compare(group, small, false);
        compare(group, fixed, false);
        compare(group, find, true);
        find.gradient_as_bucket_view = true;
        compare(group, find, true);
        find.static_graph = true;
        compare(group, fixed, true, true);
        compare(group, find, true, true);
        fixed.gradient_as_bucket_view = true;
        compare(group, fixed, false);
        gradients_outlive(group);
        no_sync(group);
        no_sync_of_branches(group);
        part_of_the_output(group);
        some_ranks(group);
        failed_backward(group);
        buffers(group);
        for (const bool branches : {false, true}) rows(group, plain, branches);
        rows(group, views, false);
        if (!place().is_cpu()) rows(group, plain, false, true);
        ddp::DistributedDataParallelOptions present;
        present.divide_by_initial_world_size = false;
        for (const bool to_none : {true, false}) {
            joined(group, plain, to_none);
            joined(group, views, to_none);
            joined(group, present, to_none);
            joined(group, finding_unused(), to_none);
        }
        for (const bool broadcast_buffers : {false, true})
            joined_with_rows(group, broadcast_buffers);
        // each breaks its group
        rows_where_none_are_expected(group_of_test());
        a_table_that_is_used_elsewhere(group_of_test());
        joined_early(group_of_test());
        errors(group);
        std::puts("all held");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "averaging: %s\n", error.what());
        return 1;
    }
}
