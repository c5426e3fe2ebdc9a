/* fann.c: trains a network of FANN, a library that knows nothing of distributed training, with as
 * many processes as a launcher starts.
 *
 *     ddprun -n 2 ./fann --compare-local
 *
 * FANN trains in batches: it adds up the slopes of a batch's samples, and then moves the weights.
 * Between the two libddp makes the slopes the mean over ranks; they lie in libddp's bucket, so that
 * nothing is copied. share() and train_batch() are all of it.
 */
#include <floatfann.h>
/* The steps of which fann_train_epoch is made. */
#include <fann_internal.h>
#include <math.h>
#include <string.h>

#include "check.h"
#include "idx.h"

enum { PIXELS = 784, HIDDEN = 64, CLASSES = 10, BATCH = 8, EPOCHS = 8 };

/* Nothing but the order of additions differs from one process, which was seen to make 0.000005. One
 * rank that leaves out its part of a single batch makes 0.02. */
static const double bound = 1e-4;

/* All weights, which FANN keeps in one array, are one parameter. Every rank's become those of rank
 * 0. */
static ddp_context* share(ddp_group* group, struct fann* net) {
    ddp_context* context = NULL;
    CHECK(ddp_context_create(group, NULL, &context, &error));
    const int64_t count = net->total_connections;
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = "weights";
    desc.shape = &count;
    desc.ndim = 1;
    desc.data = net->weights;
    ddp_param param; /* 0 */
    CHECK(ddp_register_param(context, &desc, &param, &error));
    CHECK(ddp_commit(context, &error));
    return context;
}

static void add_slopes(struct fann* net, const digits* set, int first, int count) {
    for (int i = first; i < first + count; ++i) {
        fann_type wanted[CLASSES] = {0};
        wanted[set->labels[i]] = 1;
        fann_run(net, set->images + (size_t)i * PIXELS);
        fann_compute_MSE(net, wanted);
        fann_backpropagate_MSE(net);
        fann_update_slopes_batch(net, net->first_layer + 1, net->last_layer - 1);
    }
}

/* Moves the weights, and sets the slopes to zero. */
static void update(struct fann* net, int count) {
    fann_update_weights_batch(net, (unsigned)count, 0, net->total_connections);
}

/* This rank's part of a batch. */
static void train_batch(struct fann* net, ddp_context* context, const digits* set, int first,
                        int part) {
    CHECK(ddp_step_begin(context, &error));
    void* view = NULL;
    CHECK(ddp_grad_view(context, 0, &view, &error));
    net->train_slopes = view;
    add_slopes(net, set, first, part);
    CHECK(ddp_grad_ready(context, 0, &error));
    CHECK(ddp_finalize(context, &error));
    update(net, part);
}

/* The same batches in one process. */
static double difference_to_local(const struct fann* shared, struct fann* local,
                                  const digits* set) {
    for (int epoch = 0; epoch < EPOCHS; ++epoch)
        for (int first = 0; first + BATCH <= set->count; first += BATCH) {
            add_slopes(local, set, first, BATCH);
            update(local, BATCH);
        }
    double worst = 0;
    for (unsigned i = 0; i < shared->total_connections; ++i) {
        const double apart = fabs((double)shared->weights[i] - local->weights[i]);
        if (!(apart <= worst)) worst = isnan(apart) ? INFINITY : apart;
    }
    return worst;
}

static double accuracy(struct fann* net, const digits* set) {
    int correct = 0;
    for (int i = 0; i < set->count; ++i) {
        const fann_type* output = fann_run(net, set->images + (size_t)i * PIXELS);
        int best = 0;
        for (int k = 1; k < CLASSES; ++k)
            if (output[k] > output[best]) best = k;
        correct += best == set->labels[i];
    }
    return 100.0 * correct / set->count;
}

static struct fann* make_net(void) {
    struct fann* net = fann_create_standard(3, PIXELS, HIDDEN, CLASSES);
    if (net == NULL) exit(2); /* FANN has said why */
    fann_set_activation_function_hidden(net, FANN_SIGMOID_SYMMETRIC);
    fann_set_activation_function_output(net, FANN_SIGMOID);
    fann_set_learning_rate(net, 0.5f);
    return net;
}

int main(int argc, char** argv) {
    const int compare = argc == 2 && strcmp(argv[1], "--compare-local") == 0;
    if (argc > 1 && !compare) {
        fprintf(stderr, "usage: fann [--compare-local]\n");
        return 2;
    }
    digits train, test;
    if (digits_load(&train, MNIST_DATA_DIR, "train") != 0 ||
        digits_load(&test, MNIST_DATA_DIR, "t10k") != 0)
        return 2;
    ddp_group* group = join_group();
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    if (BATCH % world != 0) {
        fprintf(stderr, "fann: a batch of %d cannot be divided among %d ranks\n", BATCH, world);
        return 2;
    }
    struct fann* net = make_net();
    ddp_context* context = share(group, net);
    struct fann* local = compare ? fann_copy(net) : NULL;

    for (int epoch = 0; epoch < EPOCHS; ++epoch)
        for (int first = 0; first + BATCH <= train.count; first += BATCH)
            train_batch(net, context, &train, first + rank * (BATCH / world), BATCH / world);
    if (rank == 0) printf("test accuracy %.2f %%\n", accuracy(net, &test));

    int status = 0;
    if (local != NULL) {
        double worst = difference_to_local(net, local, &train);
        CHECK(ddp_allreduce(group, NULL, &worst, 1, DDP_F64, DDP_MAX, NULL, &error));
        status = worst <= bound ? 0 : 1;
        if (rank == 0)
            printf("against one process: difference %.3g, bound %g %s\n", worst, bound,
                   status ? "EXCEEDED" : "met");
        fann_destroy(local);
    }
    net->train_slopes = NULL; /* libddp's, not FANN's to free */
    ddp_context_free(context);
    ddp_group_free(group);
    fann_destroy(net);
    digits_free(&train);
    digits_free(&test);
    return status;
}
