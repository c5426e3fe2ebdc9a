/* mnist.c: trains a multi-layer perceptron (mlp.h) on handwritten digits (idx.h) with as many
 * processes as a launcher starts.
 *
 *     ./mnist                          one process
 *     ddprun -n 4 ./mnist --view       four processes, the same training in a fraction of the time
 *
 * Built by hand: cc -O3 mnist.c mlp.c idx.c compare.c settings.c $(pkg-config --cflags --libs ddp)
 * -lz -lm -o mnist
 *
 * libddp's part: share() registers the parameters, announce() says that a gradient is complete, and
 * train_epoch() calls ddp_step_begin before the forward and ddp_finalize after the backward pass.
 * All else is the same as without it.
 *
 * Every epoch visits the training digits in an order drawn from the seed, the same on every rank.
 * Each global batch is cut into equal contiguous parts, one a rank, so that the mean over ranks of
 * the ranks' mean gradients is the gradient of the global batch. For the same reason the digits
 * left over after the last whole batch are not used in that epoch; another order leaves others over
 * in the next.
 */
#define DDP_EXPERIMENTAL 1      /* averager.h, record.h */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include <stdint.h>
#include <time.h>

#include "check.h"
#include "compare.h"
#include "idx.h"
#include "mlp.h"
#include "random.h"
#include "settings.h"

/* A model and its share of the work. context NULL: trains alone, without libddp. */
typedef struct trainer {
    mlp net;
    ddp_group* group;
    ddp_context* context;
    ddp_averager* averager; /* of models that are trained apart; NULL: none */
    int view;               /* gradients live in the buckets */
    int64_t generation;     /* of the gradient views that the model knows; -1: of none yet */
    int rank;
    int world;
    int* order;
} trainer;

static void fail(const char* message) {
    fprintf(stderr, "mnist: %s\n", message);
    exit(2);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Hands the model to libddp, which makes every rank's weights those of rank 0. */
static void share(trainer* t, const settings* s) {
    CHECK(ddp_context_create(t->group, NULL, &t->context, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = t->net.tensors[i].name;
        desc.shape = t->net.tensors[i].shape;
        desc.ndim = t->net.tensors[i].ndim;
        desc.data = t->net.tensors[i].value;
        desc.grad = t->view ? NULL : t->net.tensors[i].gradient;
        ddp_param param; /* numbered from 0 as registered: the same as i */
        CHECK(ddp_register_param(t->context, &desc, &param, &error));
    }
    CHECK(ddp_use_hook(t->context, s->hook, s->hook_options, &error));
    CHECK(ddp_commit(t->context, &error));
    if (s->average_every > 0) {
        const int64_t period = s->average_every;
        CHECK(ddp_averager_create(t->context, &period, NULL, 1, 0, &t->averager, &error));
    }
}

/* Points the model's gradients at their places in the buckets; again whenever libddp has moved
 * those. */
static void follow_views(trainer* t) {
    if (!t->view || t->generation == ddp_layout_generation(t->context)) return;
    for (int i = 0; i < MLP_TENSORS; ++i) {
        void* view = NULL;
        CHECK(ddp_grad_view(t->context, i, &view, &error));
        t->net.tensors[i].gradient = view;
    }
    t->generation = ddp_layout_generation(t->context);
}

/* mlp_backward calls this as soon as a gradient is complete: its bucket travels while the next
 * layer is still computed.
 */
static void announce(void* context, int tensor) {
    CHECK(ddp_grad_ready(context, tensor, &error));
}

/* One pass over the digits. Returns this rank's part of the score. */
static mlp_score train_epoch(trainer* t, const settings* s, const digits* set, int epoch) {
    const int part = s->batch / t->world;
    mlp_score total = {0.0, 0.0};
    random_order(t->order, set->count, s->seed, epoch);
    for (int first = 0; first + s->batch <= set->count; first += s->batch) {
        const mlp_batch batch = {set->images, set->labels, t->order + first + t->rank * part, part};
        if (t->context != NULL) {
            CHECK(ddp_step_begin(t->context, &error));
            follow_views(t);
        }
        const mlp_score score = mlp_forward(&t->net, &batch);
        mlp_backward(&t->net, &batch, t->context != NULL ? announce : NULL, t->context);
        if (t->context != NULL) CHECK(ddp_finalize(t->context, &error));
        mlp_update(&t->net, s->lr, s->momentum);
        if (t->averager != NULL) CHECK(ddp_averager_step(t->averager, NULL, &error));
        total.loss += score.loss;
        total.correct += score.correct;
    }
    return total;
}

static void report_epoch(const trainer* t, mlp_score part, int images, int epoch, double elapsed) {
    double total[2] = {part.loss, part.correct};
    CHECK(ddp_allreduce(t->group, NULL, total, 2, DDP_F64, DDP_SUM, NULL, &error));
    if (t->rank != 0) return;
    printf("epoch %2d  loss %.4f  train accuracy %5.2f %%  %8.0f images/s\n", epoch + 1,
           total[0] / images, 100.0 * total[1] / images, images / elapsed);
    fflush(stdout);
}

static void save_weights(const mlp* net, const char* path) {
    FILE* file = fopen(path, "wb");
    int good = file != NULL;
    for (int i = 0; i < MLP_TENSORS && good; ++i) {
        const mlp_tensor* tensor = &net->tensors[i];
        good = fwrite(tensor->value, sizeof *tensor->value, tensor->count, file) == tensor->count;
    }
    if (file != NULL && fclose(file) != 0) good = 0;
    if (!good) {
        perror(path);
        exit(2);
    }
}

/* group NULL: a trainer that works alone. */
static trainer make_trainer(const settings* s, const digits* set, ddp_group* group) {
    trainer t = {
        .group = group, .view = group != NULL && s->view, .generation = -1, .rank = 0, .world = 1};
    if (group != NULL) {
        t.rank = ddp_group_rank(group);
        t.world = ddp_group_world_size(group);
    }
    t.order = malloc((size_t)set->count * sizeof *t.order);
    /* Every rank draws other weights, on purpose: ddp_commit replaces them with those of rank 0. */
    const uint64_t seed = s->seed + (uint64_t)t.rank;
    if (t.order == NULL || mlp_create(&t.net, s->batch / t.world, !t.view, seed) != 0)
        fail("memory is exhausted");
    return t;
}

static void free_trainer(trainer* t) {
    ddp_averager_free(t->averager);
    ddp_context_free(t->context);
    mlp_free(&t->net);
    free(t->order);
}

/* Every rank trains the global batches alone and compares. Returns 0 if no rank saw more than the
 * bound. */
static int compare_with_local(const trainer* shared, const settings* s, const digits* set) {
    CHECK(ddp_mark_begin("train alone", &error)); /* in a timeline: ddprun --trace */
    trainer local = make_trainer(s, set, NULL);
    for (int epoch = 0; epoch < s->epochs; ++epoch) train_epoch(&local, s, set, epoch);
    CHECK(ddp_mark_end(&error));
    const difference mine = compare_weights(&shared->net, &local.net);
    free_trainer(&local);

    double worst[2] = {mine.absolute, mine.relative};
    CHECK(ddp_allreduce(shared->group, NULL, worst, 2, DDP_F64, DDP_MAX, NULL, &error));
    const int steps = s->epochs * (set->count / s->batch);
    const double bound = difference_bound(s, steps);
    const int good = worst[0] <= bound;
    if (shared->rank == 0) {
        printf(
            "against one process, any weight on any rank after %d steps: difference %.3g, relative "
            "%.3g\n",
            steps, worst[0], worst[1]);
        printf(
            "bound %.3g (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): "
            "%s\n",
            bound, good ? "met" : "EXCEEDED");
    }
    return good ? 0 : 1;
}

static void check_batch(const settings* s, const digits* train, int rank, int world) {
    if (s->batch % world == 0 && s->batch <= train->count) return;
    if (rank == 0) {
        fprintf(stderr,
                "mnist: --batch %d must be a multiple of the %d ranks, and at most the %d training "
                "digits\n",
                s->batch, world, train->count);
    }
    exit(2);
}

int main(int argc, char** argv) {
    const settings s = settings_parse(argc, argv);
    digits train, test;
    if (digits_load(&train, s.data, "train") != 0 || digits_load(&test, s.data, "t10k") != 0)
        return 2;
    if (train.pixels != MLP_INPUTS || test.pixels != MLP_INPUTS) fail("the images are not 28 x 28");

    ddp_group* group = join_group();
    check_batch(&s, &train, ddp_group_rank(group), ddp_group_world_size(group));
    trainer t = make_trainer(&s, &train, group);
    share(&t, &s);

    const int images = train.count / s.batch * s.batch;
    for (int epoch = 0; epoch < s.epochs; ++epoch) {
        const double start = seconds();
        const mlp_score score = train_epoch(&t, &s, &train, epoch);
        report_epoch(&t, score, images, epoch, seconds() - start);
    }
    if (t.rank == 0)
        printf("test accuracy %.2f %%\n",
               mlp_accuracy(&t.net, test.images, test.labels, test.count));
    if (t.rank == 0 && s.save != NULL) save_weights(&t.net, s.save);
    const int status = s.compare_local ? compare_with_local(&t, &s, &train) : 0;

    free_trainer(&t);
    ddp_group_free(group);
    digits_free(&train);
    digits_free(&test);
    return status;
}
