/* batch_share.c: ranks of different speed train on one global batch. The last rank takes three
 * times as long for a sample, and soon gets a third of the samples of another one.
 *
 *     ddprun -n 3 ./batch_share [STEPS]
 *
 * The model is that of minimal.c. Any number of ranks, with any shares, trains the same w.
 */
#define DDP_EXPERIMENTAL 1      /* batch_share.h, freeze.h */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(call) \
    ((call) == DDP_OK ? (void)0 : (fprintf(stderr, "%s\n", ddp_error_message(error)), exit(1)))

enum { SAMPLES = 84 };

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

int main(int argc, char** argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 60;
    const int64_t shape[1] = {2};
    float w[2] = {0.0f, 0.0f}, grad[2];
    int64_t begin, end, before = 0;
    double since = 0;
    int since_step = 0;
    ddp_error* error;
    ddp_group* group;
    ddp_context* context;
    ddp_context_options options;
    ddp_param_desc desc;
    ddp_param param;
    CHECK(ddp_group_create(NULL, &group, &error));
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    const double us = world > 1 && rank == world - 1 ? 3000 : 1000; /* that a sample takes */
    ddp_context_options_init(&options);
    options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
    CHECK(ddp_context_create(group, &options, &context, &error));
    ddp_param_desc_init(&desc);
    desc.name = "w", desc.shape = shape, desc.ndim = 1, desc.data = w, desc.grad = grad;
    CHECK(ddp_register_param(context, &desc, &param, &error));
    CHECK(ddp_share_batch(context, SAMPLES, 1, 0, &error));
    CHECK(ddp_commit(context, &error));
    for (int step = 0; step < steps; ++step) {
        CHECK(ddp_batch_share(context, &begin, &end, &error));
        const int64_t mine = end - begin;
        if (mine != before || step == steps - 1) {
            if (step > 0)
                printf("rank %d: %lld of %d samples, %.1f ms a step\n", rank, (long long)before,
                       SAMPLES, (now_us() - since) / 1e3 / (step - since_step));
            before = mine, since = now_us(), since_step = step;
        }
        CHECK(ddp_set_weight(context, (double)mine, &error)); /* before each step */
        CHECK(ddp_step_begin(context, &error));
        const struct timespec work = {0, (long)(1e3 * us * (double)mine)};
        nanosleep(&work, NULL);
        grad[0] = grad[1] = 0;
        for (int64_t i = begin; i < end; ++i) {
            const float x = (float)((7 * step + i) % 10) / 10.0f;
            const float wrong = w[0] + w[1] * x - (3.0f - 2.0f * x);
            grad[0] += wrong / (float)mine, grad[1] += wrong * x / (float)mine;
        }
        CHECK(ddp_grad_ready(context, param, &error));
        CHECK(ddp_finalize(context, &error)); /* grad is now the mean of the global batch */
        w[0] -= 0.5f * grad[0], w[1] -= 0.5f * grad[1];
    }
    printf("rank %d: y = %.4f %+.4f x\n", rank, w[0], w[1]);
    ddp_context_free(context);
    ddp_group_free(group);
}
