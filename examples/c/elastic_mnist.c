/* elastic_mnist.c: trains the network of mnist.c with processes that come and go. Apart from
 * rounding, the result is that of one process.
 *
 *     ./elastic_mnist file:///tmp/digits --epochs 100     start some of these, kill one, start another
 *
 * Built by hand: cc -O3 elastic_mnist.c mlp.c idx.c settings.c $(pkg-config --cflags --libs ddp)
 * -lz -lm -o elastic_mnist
 *
 * The first argument says where the processes meet (ddp_group_options.init_method). Without it the
 * launcher's store is used. SIGTERM makes a process leave without losing a step.
 *
 * Unlike mnist.c, ddp_elastic_begin says which step comes and who takes part. The digits of a step
 * follow from its number, so that no digit of an epoch comes twice or never, whoever comes and
 * goes. The global batch stays the same; the ranks divide it, and weigh their mean gradients by the
 * digits that each has taken. A call that fails because a rank is lost ends the step, and the loop
 * begins anew.
 */
#define DDP_EXPERIMENTAL 1 /* elastic.h, freeze.h */
#define _XOPEN_SOURCE 600  /* sigaction */

#include <signal.h>
#include <stdint.h>

#include "check.h"
#include "idx.h"
#include "mlp.h"
#include "random.h"
#include "settings.h"

typedef struct trainer {
    mlp net;
    ddp_elastic* job;
    ddp_context* context;
    ddp_status status; /* of the step: the first failure */
    ddp_error* error;  /* what it says */
    int* order;        /* of the digits in this epoch */
    int64_t epoch;     /* -1: none yet */
} trainer;

static volatile sig_atomic_t must_leave;

static void on_terminate(int number) {
    (void)number;
    must_leave = 1;
}

/* Not before this rank takes part: one that waits for a place just ends. */
static void leave_at_sigterm(void) {
    struct sigaction action = {.sa_handler = on_terminate, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
}

static void fail(const char* message) {
    fprintf(stderr, "elastic_mnist: %s\n", message);
    exit(2);
}

/* Joins nothing yet: that is the first ddp_elastic_begin. store NULL: where the launcher says. */
static void join_job(trainer* t, const char* store) {
    ddp_group_options group;
    ddp_group_options_init(&group);
    group.init_method = store;
    ddp_elastic_options options;
    ddp_elastic_options_init(&options);
    options.group = &group;
    /* longer than any step: a rank that is busy for longer is left behind */
    options.settle_ms = 2000;
    CHECK(ddp_elastic_create(&options, &t->job, &error));
}

/* The parameters and the optimizer's momentum are the state that ranks who join get from the
 * others. */
static void share(trainer* t, const settings* s) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
    CHECK(ddp_context_create(ddp_elastic_group(t->job), &options, &t->context, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = t->net.tensors[i].name;
        desc.shape = t->net.tensors[i].shape;
        desc.ndim = t->net.tensors[i].ndim;
        desc.data = t->net.tensors[i].value;
        desc.grad = t->net.tensors[i].gradient;
        ddp_param param; /* numbered from 0 as registered: the same as i */
        CHECK(ddp_register_param(t->context, &desc, &param, &error));
    }
    CHECK(ddp_use_hook(t->context, s->hook, s->hook_options, &error));
    CHECK(ddp_commit(t->context, &error));
    CHECK(ddp_elastic_add_context(t->job, t->context, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        const mlp_tensor* tensor = &t->net.tensors[i];
        CHECK(ddp_elastic_add_state(t->job, tensor->name, tensor->velocity,
                                    tensor->count * sizeof(float), &error));
    }
}

/* mlp_backward calls this as soon as a gradient is complete. */
static void announce(void* user_data, int tensor) {
    trainer* t = user_data;
    if (t->status == DDP_OK) t->status = ddp_grad_ready(t->context, tensor, &t->error);
}

/* This rank's part of the next global batch in the order of the epoch. */
static mlp_batch digits_of(trainer* t, const settings* s, const digits* set,
                           const ddp_elastic_step* now) {
    const int64_t steps = (set->count + s->batch - 1) / s->batch;
    if (t->epoch != now->step / steps) {
        t->epoch = now->step / steps;
        random_order(t->order, set->count, s->seed, (int)t->epoch);
        printf("epoch %lld: rank %d of %d\n", (long long)t->epoch + 1, (int)now->rank,
               (int)now->world_size);
    }
    const int first = (int)(now->step % steps) * s->batch;
    const int left = set->count - first;
    int64_t begin, end;
    CHECK(ddp_shard_range(left < s->batch ? left : s->batch, now->rank, now->world_size, &begin,
                          &end, &error));
    const mlp_batch batch = {set->images, set->labels, t->order + first + begin,
                             (int)(end - begin)};
    return batch;
}

/* The gradients become the mean over the global batch. Returns whether they did: not if a rank was
 * lost meanwhile. */
static int compute(trainer* t, const mlp_batch* batch) {
    t->status = ddp_set_weight(t->context, batch->count, &t->error);
    if (t->status == DDP_OK) t->status = ddp_step_begin(t->context, &t->error);
    if (t->status == DDP_OK) {
        mlp_forward(&t->net, batch);
        mlp_backward(&t->net, batch, announce, t);
    }
    if (t->status == DDP_OK) t->status = ddp_finalize(t->context, &t->error);
    if (t->status == DDP_OK) return 1;
    if (ddp_group_status(ddp_elastic_group(t->job), NULL) == DDP_OK)
        fail(ddp_error_message(t->error)); /* no rank was lost: the mistake is ours */
    ddp_error_free(t->error);
    t->error = NULL;
    return 0;
}

/* Returns this rank at the end; -1 if it has left before. */
static int train(trainer* t, const settings* s, const digits* set) {
    const int64_t steps = s->epochs * (int64_t)((set->count + s->batch - 1) / s->batch);
    for (int announced = 0;;) {
        ddp_elastic_step now = {.struct_size = sizeof now};
        /* who was left behind ends here, and may be started again */
        CHECK(ddp_elastic_begin(t->job, &now, &error));
        if (now.changed) {
            leave_at_sigterm();
            printf("step %lld: rank %d of %d\n", (long long)now.step, (int)now.rank,
                   (int)now.world_size);
        }
        if (now.step >= steps) return now.rank;
        if (now.leaving) {
            CHECK(ddp_elastic_leave(t->job, &error));
            return -1;
        }
        if (must_leave && !announced) {
            CHECK(ddp_elastic_announce_leave(t->job, &error));
            announced = 1;
        }
        const mlp_batch batch = digits_of(t, s, set, &now);
        if (!compute(t, &batch)) continue; /* the next ddp_elastic_begin says how it goes on */
        mlp_update(&t->net, s->lr, s->momentum);
        CHECK(ddp_elastic_commit(t->job, &error));
    }
}

int main(int argc, char** argv) {
    const int store = argc > 1 && argv[1][0] != '-';
    const settings s = settings_parse(argc - store, argv + store);
    if (s.compare_local || s.average_every > 0 || s.save != NULL)
        fail("--compare-local, --average-every and --save are options of mnist");
    digits set, test;
    if (digits_load(&set, s.data, "train") != 0 || digits_load(&test, s.data, "t10k") != 0)
        return 2;
    if (set.pixels != MLP_INPUTS || test.pixels != MLP_INPUTS) fail("the images are not 28 x 28");

    setvbuf(stdout, NULL, _IOLBF, 0); /* whole lines, also into a file */
    trainer t = {.epoch = -1, .order = malloc((size_t)set.count * sizeof *t.order)};
    if (t.order == NULL || mlp_create(&t.net, s.batch, 1, s.seed) != 0) fail("memory is exhausted");
    join_job(&t, store ? argv[1] : NULL);
    share(&t, &s);
    const int rank = train(&t, &s, &set);
    if (rank == 0)
        printf("test accuracy %.2f %%\n",
               mlp_accuracy(&t.net, test.images, test.labels, test.count));

    ddp_context_free(t.context);
    ddp_elastic_free(t.job);
    mlp_free(&t.net);
    free(t.order);
    digits_free(&set);
    digits_free(&test);
    return 0;
}
