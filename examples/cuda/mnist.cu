/* mnist.cu: examples/c/mnist.c on GPUs.
 *
 *     ./mnist_cuda                                    one process, one GPU
 *     ddprun -n 4 ./mnist_cuda                        four processes, on as many GPUs as there are
 *     ddprun -n 4 ./mnist_cuda --backend nccl         four processes on four GPUs, over NCCL
 *         --backend-options algorithm=direct          with options of that backend
 *
 * Unlike in mnist.c, parameters are registered with their device, a gradient is announced when its
 * kernel is enqueued, together with the stream, and ddp_finalize_on makes the stream wait for the
 * sums, so that the host never does.
 */
#define DDP_EXPERIMENTAL 1 /* device.h */

#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "gpu_mlp.h"

extern "C" {
#include "compare.h"
#include "idx.h"
#include "random.h"
#include "settings.h"
}

/* A model and its share of the work. */
struct trainer {
    gpu_mlp net;
    ddp_group* group;
    ddp_context* context;
    ddp_device device;
    bool view;          /* gradients live in the buckets */
    int64_t generation; /* of the gradient views that the model knows; -1: of none yet */
    int rank, world;
    int* order;
};

static void fail(const char* message) {
    fprintf(stderr, "mnist_cuda: %s\n", message);
    exit(2);
}

static double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/* The group that a launcher started, with the backend that the command line names, or a group of
 * one. */
static ddp_group* join(const char* backend, const char* backend_options) {
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.flags = DDP_GROUP_OR_ALONE;
    options.backend = backend;
    options.backend_options = backend_options;
    ddp_group* group = NULL;
    CHECK(ddp_group_create(&options, &group, &error));
    return group;
}

/* Ranks of a machine take its GPUs in turn. Makes this rank's the current one. */
static ddp_device choose_device(int rank) {
    int32_t devices = 0;
    CHECK(ddp_device_count(DDP_DEVICE_CUDA, &devices, &error));
    ddp_environment environment;
    environment.struct_size = sizeof environment;
    ddp_error* none = NULL;
    const bool launched = ddp_environment_get(&environment, &none) == DDP_OK;
    ddp_error_free(none);
    const ddp_device device = {DDP_DEVICE_CUDA,
                               (launched ? environment.local_rank : rank) % devices};
    CUDA(cudaSetDevice(device.index));
    return device;
}

/* Hands the model to libddp, which makes every rank's weights those of rank 0. */
static void share(trainer* t, const mlp* described, const settings* s) {
    CHECK(ddp_context_create(t->group, NULL, &t->context, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = described->tensors[i].name;
        desc.shape = described->tensors[i].shape;
        desc.ndim = described->tensors[i].ndim;
        desc.device = t->device;
        desc.data = t->net.tensors[i].value;
        desc.grad = t->view ? NULL : t->net.tensors[i].gradient;
        ddp_param param; /* numbered from 0 as registered: the same as i */
        CHECK(ddp_register_param(t->context, &desc, &param, &error));
    }
    CHECK(ddp_set_stream(t->context, t->device.kind, t->device.index, t->net.stream, &error));
    CHECK(ddp_use_hook(t->context, s->hook, s->hook_options, &error));
    CHECK(ddp_commit(t->context, &error));
}

/* Points the model's gradients at their places in the buckets; again whenever libddp has moved
 * those. */
static void follow_views(trainer* t) {
    if (!t->view || t->generation == ddp_layout_generation(t->context)) return;
    for (int i = 0; i < MLP_TENSORS; ++i) {
        void* view = NULL;
        CHECK(ddp_grad_view(t->context, i, &view, &error));
        t->net.tensors[i].gradient = static_cast<float*>(view);
    }
    t->generation = ddp_layout_generation(t->context);
}

/* gpu_mlp_backward calls this when the kernel of a gradient is enqueued: its bucket travels while
 * later kernels run. */
static void announce(void* user_data, int tensor) {
    trainer* t = static_cast<trainer*>(user_data);
    CHECK(ddp_grad_ready_on(t->context, tensor, t->net.stream, &error));
}

static mlp_score train_epoch(trainer* t, const settings* s, gpu_digits* set, int epoch) {
    const int part = s->batch / t->world;
    random_order(t->order, set->count, s->seed, epoch);
    gpu_digits_order(set, t->order, t->net.stream);
    for (int first = 0; first + s->batch <= set->count; first += s->batch) {
        CHECK(ddp_step_begin(t->context, &error));
        follow_views(t);
        gpu_mlp_forward(&t->net, set, first + t->rank * part, part);
        gpu_mlp_backward(&t->net, part, announce, t);
        CHECK(ddp_finalize_on(t->context, t->net.stream, &error));
        gpu_mlp_update(&t->net, s->lr, s->momentum);
    }
    return gpu_mlp_take_score(&t->net);
}

static void report_epoch(const trainer* t, mlp_score part, int images, int epoch, double elapsed) {
    double total[2] = {part.loss, part.correct};
    CHECK(ddp_allreduce(t->group, NULL, total, 2, DDP_F64, DDP_SUM, NULL, &error));
    if (t->rank != 0) return;
    printf("epoch %2d  loss %.4f  train accuracy %5.2f %%  %8.0f images/s\n", epoch + 1,
           total[0] / images, 100.0 * total[1] / images, images / elapsed);
    fflush(stdout);
}

static double accuracy(trainer* t, gpu_digits* set) {
    int* order = static_cast<int*>(malloc(static_cast<size_t>(set->count) * sizeof *order));
    if (order == NULL) fail("memory is exhausted");
    for (int i = 0; i < set->count; ++i) order[i] = i;
    gpu_digits_order(set, order, t->net.stream);
    free(order);
    for (int first = 0; first < set->count; first += t->net.max_batch) {
        const int left = set->count - first;
        gpu_mlp_forward(&t->net, set, first, left < t->net.max_batch ? left : t->net.max_batch);
    }
    return 100.0 * gpu_mlp_take_score(&t->net).correct / set->count;
}

/* The same training by one process on the CPU. Returns 0 if no rank's weights are further apart
 * than rounding explains. */
static int compare_with_local(trainer* t, const settings* s, const digits* set, mlp* shared) {
    mlp local;
    if (mlp_create(&local, s->batch, 1, s->seed) != 0) fail("memory is exhausted");
    for (int epoch = 0; epoch < s->epochs; ++epoch) {
        random_order(t->order, set->count, s->seed, epoch);
        for (int first = 0; first + s->batch <= set->count; first += s->batch) {
            const mlp_batch batch = {set->images, set->labels, t->order + first, s->batch};
            mlp_forward(&local, &batch);
            mlp_backward(&local, &batch, NULL, NULL);
            mlp_update(&local, s->lr, s->momentum);
        }
    }
    gpu_mlp_download(&t->net, shared);
    const difference mine = compare_weights(shared, &local);
    mlp_free(&local);
    double worst[2] = {mine.absolute, mine.relative};
    CHECK(ddp_allreduce(t->group, NULL, worst, 2, DDP_F64, DDP_MAX, NULL, &error));
    const int steps = s->epochs * (set->count / s->batch);
    const double bound = difference_bound(s, steps);
    const bool good = worst[0] <= bound;
    if (t->rank == 0) {
        printf(
            "against one process on the CPU, any weight on any rank after %d steps: difference "
            "%.3g, relative %.3g\n",
            steps, worst[0], worst[1]);
        printf("bound %.3g (see compare.c): %s\n", bound, good ? "met" : "EXCEEDED");
    }
    return good ? 0 : 1;
}

/* Takes an option and what follows it out of the command line, which otherwise is that of mnist.c.
 */
static const char* take_option(const char* name, int* argc, char** argv) {
    for (int i = 1; i + 1 < *argc; ++i) {
        if (strcmp(argv[i], name) != 0) continue;
        const char* value = argv[i + 1];
        memmove(argv + i, argv + i + 2, static_cast<size_t>(*argc - i - 2) * sizeof *argv);
        *argc -= 2;
        return value;
    }
    return NULL;
}

int main(int argc, char** argv) {
    const char* backend = take_option("--backend", &argc, argv);
    const char* backend_options = take_option("--backend-options", &argc, argv);
    const settings s = settings_parse(argc, argv);
    if (s.average_every > 0 || s.save != NULL)
        fail("--average-every and --save are for mnist on the CPU");
    digits train, test;
    if (digits_load(&train, s.data, "train") != 0 || digits_load(&test, s.data, "t10k") != 0)
        return 2;
    if (train.pixels != MLP_INPUTS || test.pixels != MLP_INPUTS) fail("the images are not 28 x 28");

    trainer t = {};
    t.group = join(backend, backend_options);
    t.view = s.view != 0;
    t.generation = -1;
    t.rank = ddp_group_rank(t.group);
    t.world = ddp_group_world_size(t.group);
    if (s.batch % t.world != 0 || s.batch > train.count)
        fail("--batch must be a multiple of the number of ranks");
    t.device = choose_device(t.rank);
    t.order = static_cast<int*>(malloc(static_cast<size_t>(train.count) * sizeof *t.order));
    /* describes the tensors, and draws other weights on every rank: ddp_commit replaces them with
     * rank 0's */
    mlp host;
    if (t.order == NULL || mlp_create(&host, 1, 1, s.seed + static_cast<uint64_t>(t.rank)) != 0)
        fail("memory is exhausted");
    t.net = gpu_mlp_create(&host, s.batch / t.world, !t.view);
    gpu_digits train_set = gpu_digits_upload(train.images, train.labels, train.count);
    gpu_digits test_set = gpu_digits_upload(test.images, test.labels, test.count);
    share(&t, &host, &s);

    const int images = train.count / s.batch * s.batch;
    for (int epoch = 0; epoch < s.epochs; ++epoch) {
        const double start = seconds();
        const mlp_score score = train_epoch(&t, &s, &train_set, epoch);
        report_epoch(&t, score, images, epoch, seconds() - start);
    }
    const double right = accuracy(&t, &test_set);
    if (t.rank == 0) printf("test accuracy %.2f %%\n", right);
    const int status = s.compare_local ? compare_with_local(&t, &s, &train, &host) : 0;

    ddp_context_free(t.context);
    gpu_mlp_free(&t.net);
    gpu_digits_free(&train_set);
    gpu_digits_free(&test_set);
    free(t.order);
    mlp_free(&host);
    ddp_group_free(t.group);
    digits_free(&train);
    digits_free(&test);
    return status;
}
