/* dlib_mnist.cc: trains a convolutional network of dlib, a library that knows nothing of
 * distributed training, with as many processes as a launcher starts.
 *
 *     ddprun -n 2 ./dlib_mnist --compare-local
 *
 * Built by hand, here: cc -c ../c/idx.c && c++ -O1 dlib_mnist.cc idx.o $(pkg-config --cflags --libs
 * ddp) -ldlib -lz -o dlib_mnist
 *
 * dlib computes the gradients of a batch in one call, and moves the weights in another. Between the
 * two libddp makes the gradients the mean over ranks. share() and average() are all of it.
 */
#include <dlib/dnn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ddp/ddp.hpp>

extern "C" {
#include "../c/idx.h"
}

/* An image of 28 x 28 becomes 8 channels of 12 x 12, then 16 of 4 x 4, then a score for each digit.
 * htan is smooth. Where a value lies at the kink of relu, rounding decides whether its gradient
 * flows, which was seen to make a difference of 0.05.
 */
template <class Image>
using Channels = dlib::htan<dlib::con<16, 5, 5, 2, 2, dlib::htan<dlib::con<8, 5, 5, 2, 2, Image>>>>;
using Net = dlib::loss_multiclass_log<dlib::fc<10, Channels<dlib::input<dlib::matrix<float>>>>>;
using Solvers = std::vector<dlib::sgd>; /* one for each layer: it holds the momentum */

constexpr int side = 28, batch = 32, epochs = 4;
constexpr double learning_rate = 0.02;

/* Nothing but the order of additions differs from one process, which was seen to make 0.000001. One
 * rank that leaves out its part of a single batch makes at least 0.0008. */
constexpr double bound = 1e-4;

struct Digits {
    int count;
    std::vector<dlib::matrix<float>> images;
    std::vector<unsigned long> labels;
};

static Digits load(const char* name) {
    digits set;
    if (digits_load(&set, MNIST_DATA_DIR, name) != 0) std::exit(2); /* it has said why */
    Digits result{set.count, {}, {set.labels, set.labels + set.count}};
    for (int i = 0; i < set.count; ++i)
        result.images.push_back(
            dlib::mat(set.images + std::ptrdiff_t{i} * side * side, side, side));
    digits_free(&set);
    return result;
}

/* dlib's loss is the mean over these digits. The mean over ranks of equal parts is then that of the
 * batch. */
static void compute_gradients(Net& net, const Digits& set, int first, int count) {
    const auto images = set.images.begin() + first;
    net.compute_parameter_gradients(images, images + count, set.labels.begin() + first);
}

/* All weights of a layer are one parameter. dlib counts layers from the last. Every rank's weights
 * become those of rank 0. */
static void share(ddp::Context& context, Net& net, const Digits& set) {
    /* dlib allocates weights and gradients in the first pass, and does not move them afterwards. */
    compute_gradients(net, set, 0, 1);
    std::vector<float*> gradients;
    dlib::visit_layer_parameter_gradients(
        net, [&](dlib::tensor& gradient) { gradients.push_back(gradient.host()); });
    dlib::visit_layer_parameters(net, [&](std::size_t layer, dlib::tensor& weights) {
        if (weights.size() == 0) return; /* htan has none */
        const auto count = static_cast<std::int64_t>(weights.size());
        context.add_param("layer" + std::to_string(layer), {count}, weights.host(),
                          gradients[layer]);
    });
    context.commit();
}

/* Makes the gradients the mean over ranks. */
static void average(ddp::Context& context, Net& net) {
    ddp_param param = 0; /* numbered as registered */
    dlib::visit_layer_parameter_gradients(net, [&](dlib::tensor& gradient) {
        /* nullptr: the layer has no weights. In a dlib with CUDA, host() copies the gradient from
         * the GPU. */
        if (gradient.host() != nullptr) context.grad_ready(param++);
    });
    context.finalize();
}

/* part: this rank's digits of a batch. */
static void train_batch(Net& net, Solvers& solvers, ddp::Context& context, const Digits& set,
                        int first, int part) {
    compute_gradients(net, set, first, part);
    average(context, net);
    net.update_parameters(solvers, learning_rate);
}

static std::vector<float> weights_of(Net& net) {
    std::vector<float> all;
    dlib::visit_layer_parameters(
        net, [&](dlib::tensor& weights) { all.insert(all.end(), weights.begin(), weights.end()); });
    return all;
}

/* The same batches in one process. */
static double difference_to_local(Net& shared, Net& local, const Digits& set) {
    Solvers solvers(Net::num_computational_layers);
    for (int epoch = 0; epoch < epochs; ++epoch)
        for (int first = 0; first + batch <= set.count; first += batch) {
            compute_gradients(local, set, first, batch);
            local.update_parameters(solvers, learning_rate);
        }
    const std::vector<float> ours = weights_of(shared), theirs = weights_of(local);
    double worst = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
        const double apart = std::fabs(double{ours[i]} - theirs[i]);
        if (!(apart <= worst)) worst = std::isnan(apart) ? HUGE_VAL : apart;
    }
    return worst;
}

static double accuracy(Net& net, const Digits& set) {
    const std::vector<unsigned long> found = net(set.images);
    int correct = 0;
    for (int i = 0; i < set.count; ++i) correct += found[i] == set.labels[i];
    return 100.0 * correct / set.count;
}

static int run(bool compare) {
    const Digits train = load("train"), test = load("t10k");
    ddp::Group group = ddp::Group::or_alone();
    const int rank = group.rank(), world = group.world_size();
    if (batch % world != 0) {
        if (rank == 0)
            std::fprintf(stderr, "dlib_mnist: a batch of %d cannot be divided among %d ranks\n",
                         batch, world);
        return 2;
    }
    /* dlib draws weights from std::rand(). Every rank draws others, on purpose: those of rank 0
     * count. */
    std::srand(static_cast<unsigned>(rank) + 1);
    Net net;
    ddp::Context context(group);
    share(context, net, train);
    Net local = net;

    Solvers solvers(Net::num_computational_layers);
    for (int epoch = 0; epoch < epochs; ++epoch)
        for (int first = 0; first + batch <= train.count; first += batch)
            train_batch(net, solvers, context, train, first + rank * (batch / world),
                        batch / world);
    if (rank == 0) std::printf("test accuracy %.2f %%\n", accuracy(net, test));
    if (!compare) return 0;

    double worst = difference_to_local(net, local, train);
    group.allreduce(&worst, 1, DDP_MAX).wait();
    const bool good = worst <= bound;
    if (rank == 0)
        std::printf("against one process: difference %.3g, bound %g %s\n", worst, bound,
                    good ? "met" : "EXCEEDED");
    return good ? 0 : 1;
}

int main(int argc, char** argv) {
    const bool compare = argc == 2 && std::strcmp(argv[1], "--compare-local") == 0;
    if (argc > 1 && !compare) {
        std::fprintf(stderr, "usage: dlib_mnist [--compare-local]\n");
        return 2;
    }
    try {
        return run(compare);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dlib_mnist: %s\n", error.what());
        return 1;
    }
}
