/* libtorch_mnist.cc: trains a convolutional network on handwritten digits with libtorch, on as many
 * processes as a launcher starts.
 *
 *     ./libtorch_mnist [EPOCHS [WEIGHTS]] [double] [cuda]    one process
 *     ddprun -n 2 ./libtorch_mnist                           two processes; the training is the
 *                                                            same
 *
 * Built by hand, here: cc -c ../c/idx.c && c++ -O2 libtorch_mnist.cc idx.o $(pkg-config --cflags
 * --libs ddp-torch) -lz -o libtorch_mnist
 *
 * Each global batch is cut into equal parts, one for each rank. The mean of the ranks' mean
 * gradients is then the gradient of the global batch. WEIGHTS: a file for rank 0's trained weights.
 * double: computes with 64 bits, so that the order of additions matters less where two runs are
 * compared. cuda: on GPUs, which the ranks of a host take in turn. For that, link with a libtorch
 * for CUDA: -Wl,--no-as-needed -ltorch_cuda.
 */
#include <cstdio>
#include <cstdlib>
#include <ddp_torch.hpp>
#include <string>

extern "C" {
#include "../c/idx.h"
}

/* An image of 28 x 28 becomes 8 channels of 14 x 14, then 16 of 5 x 5, then a score for each digit.
 */
struct NetImpl : torch::nn::Module {
    NetImpl()
        : first(register_module("first",
                                torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 5).padding(2)))),
          second(register_module("second", torch::nn::Conv2d(8, 16, 5))),
          last(register_module("last", torch::nn::Linear(16 * 5 * 5, 10))) {}

    torch::Tensor forward(torch::Tensor x) {
        x = torch::max_pool2d(torch::relu(first(x)), 2);
        x = torch::max_pool2d(torch::relu(second(x)), 2);
        return last(x.flatten(1));
    }

    torch::nn::Conv2d first, second;
    torch::nn::Linear last;
};
TORCH_MODULE(Net);

struct Digits {
    torch::Tensor images, labels;
};

static Digits load(const char* name, torch::Dtype dtype) {
    digits set;
    if (digits_load(&set, MNIST_DATA_DIR, name) != 0) std::exit(2);
    Digits result{torch::from_blob(set.images, {set.count, 1, 28, 28}).to(dtype, false, true),
                  torch::from_blob(set.labels, {set.count}, torch::kByte).to(torch::kLong)};
    digits_free(&set);
    return result;
}

static torch::Device gpu(int rank) {
    ddp_environment environment;
    environment.struct_size = sizeof environment;
    ddp_error* none = nullptr;  // if no launcher has started this process
    const bool launched = ddp_environment_get(&environment, &none) == DDP_OK;
    ddp_error_free(none);
    const auto gpus = static_cast<int>(torch::cuda::device_count());
    if (gpus == 0) throw std::runtime_error("libtorch sees no GPU");
    const int index = (launched ? environment.local_rank : rank) % gpus;
    return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

static void train(int epochs, const char* weights, torch::Dtype dtype, bool on_gpus) {
    constexpr int batch = 64;
    const ddp::Group group = ddp::Group::or_alone();
    const int rank = group.rank(), world = group.world_size();
    if (batch % world != 0)
        throw std::runtime_error("the number of ranks must divide 64, the batch");
    torch::set_num_threads(1);
    torch::manual_seed(1);  // the order of the digits; rank 0's weights count
    const Digits train = load("train", dtype), test = load("t10k", dtype);

    const torch::Device device = on_gpus ? gpu(rank) : torch::Device(torch::kCPU);
    Net net;
    net->to(device, dtype);
    ddp::DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const int part = batch / world;
    for (int epoch = 0; epoch < epochs; ++epoch) {
        const torch::Tensor order = torch::randperm(train.labels.size(0));
        double loss_sum = 0;
        int steps = 0;
        for (std::int64_t first = 0; first + batch <= order.size(0); first += batch, ++steps) {
            const torch::Tensor mine = order.narrow(0, first + rank * part, part);
            optimizer.zero_grad();
            torch::Tensor loss = torch::cross_entropy_loss(
                model.forward(train.images.index_select(0, mine).to(device)),
                train.labels.index_select(0, mine).to(device));
            loss.backward();  // now every grad() is the mean over ranks
            optimizer.step();
            loss_sum += loss.item<double>();
        }
        torch::NoGradGuard no_grad;
        const double right = net->forward(test.images.to(device))
                                 .argmax(1)
                                 .cpu()
                                 .eq(test.labels)
                                 .to(torch::kDouble)
                                 .mean()
                                 .item<double>();
        if (rank == 0)
            std::printf("epoch %d: loss %.4f, %.1f %% right\n", epoch + 1, loss_sum / steps,
                        100 * right);
    }
    if (!weights || rank != 0) return;
    net->to(torch::kCPU);
    torch::save(net, weights);
}

int main(int argc, char** argv) {
    try {
        std::vector<const char*> others;
        torch::Dtype dtype = torch::kFloat;
        bool on_gpus = false;
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            if (word == "double")
                dtype = torch::kDouble;
            else if (word == "cuda")
                on_gpus = true;
            else
                others.push_back(argv[i]);
        }
        train(!others.empty() ? std::atoi(others[0]) : 3, others.size() > 1 ? others[1] : nullptr,
              dtype, on_gpus);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "libtorch_mnist: %s\n", error.what());
        return 1;
    }
}
