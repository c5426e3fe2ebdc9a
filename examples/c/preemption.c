/* preemption.c: a trainer that a cluster may take off its machines. A signal to ddprun makes all
 * ranks write a checkpoint, or end, after the same step. The next start goes on from there, with
 * the numbers of a training that nobody has interrupted.
 *
 *     ddprun -n 2 --checkpoint-on SIGUSR1 --stop-on SIGTERM ./preemption FILE [STEPS]
 *
 * The model is that of minimal.c.
 */
#define DDP_EXPERIMENTAL 1      /* vote.h */
#define _POSIX_C_SOURCE 199309L /* nanosleep */

#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(call) \
    ((call) == DDP_OK ? (void)0 : (fprintf(stderr, "%s\n", ddp_error_message(error)), exit(1)))

typedef struct state {
    int64_t step; /* the next one */
    float w[2];
} state;

static void load(const char* path, state* s) {
    FILE* file = fopen(path, "rb");
    if (file == NULL) return; /* the first start */
    if (fread(s, sizeof *s, 1, file) != 1) {
        fprintf(stderr, "%s: not a checkpoint\n", path);
        exit(1);
    }
    fclose(file);
}

/* A process that is killed meanwhile leaves the checkpoint before. */
static void save(const char* path, const state* s) {
    char other[4096];
    snprintf(other, sizeof other, "%s.new", path);
    FILE* file = fopen(other, "wb");
    if (file == NULL || fwrite(s, sizeof *s, 1, file) != 1 || fclose(file) != 0 ||
        rename(other, path) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: preemption FILE [STEPS]\n");
        return 2;
    }
    const int64_t shape[1] = {2}, steps = argc > 2 ? atoll(argv[2]) : 500;
    const struct timespec work = {0, 2000000};
    state s = {0, {0.0f, 0.0f}};
    float grad[2];
    uint32_t any = 0;
    ddp_error* error;
    ddp_group* group;
    ddp_context* context;
    ddp_context_options options;
    ddp_param_desc desc;
    ddp_param param;
    CHECK(ddp_group_create(NULL, &group, &error));
    const int rank = ddp_group_rank(group);
    if (rank == 0) load(argv[1], &s);
    CHECK(ddp_broadcast(group, &s.step, 1, DDP_I64, 0, NULL, &error));
    ddp_context_options_init(&options);
    options.flags = DDP_CONTEXT_VOTES;
    CHECK(ddp_context_create(group, &options, &context, &error));
    ddp_param_desc_init(&desc);
    desc.name = "w", desc.shape = shape, desc.ndim = 1, desc.data = s.w, desc.grad = grad;
    CHECK(ddp_register_param(context, &desc, &param, &error));
    CHECK(ddp_commit(context, &error)); /* every rank goes on with rank 0's w */
    printf("rank %d: from step %lld\n", rank, (long long)s.step);
    fflush(stdout);
    while (s.step < steps && !(any & DDP_VOTE_STOP)) {
        const float x = (float)((7 * s.step + rank) % 10) / 10.0f;
        const float wrong = s.w[0] + s.w[1] * x - (3.0f - 2.0f * x);
        nanosleep(&work, NULL); /* a model that takes longer */
        grad[0] = wrong, grad[1] = wrong * x;
        CHECK(ddp_grad_ready(context, param, &error));
        CHECK(ddp_finalize(context, &error));
        s.w[0] -= 0.02f * grad[0], s.w[1] -= 0.02f * grad[1];
        ++s.step;
        CHECK(ddp_step_votes(context, &any, NULL, NULL, &error)); /* the same on every rank */
        if (any & (DDP_VOTE_CHECKPOINT | DDP_VOTE_STOP)) {
            if (rank == 0) save(argv[1], &s);
            printf("rank %d: checkpoint after step %lld\n", rank, (long long)s.step);
            fflush(stdout);
        }
    }
    printf("rank %d: %s after step %lld, y = %.8g %+.8g x\n", rank,
           s.step < steps ? "stopped" : "done", (long long)s.step, s.w[0], s.w[1]);
    ddp_context_free(context);
    ddp_group_free(group);
}
