/* A rank that trains until a vote stops it, for votes_test.py. It writes its pid, and at the end the
 * votes of each step that had any: "RANK STEP ANY ALL".
 *
 *     ddprun -n 3 --checkpoint-on SIGUSR1 --stop-on SIGTERM voter BACKEND [SEED]
 *
 * SIGUSR2 to a rank is a vote of its own, cast in the signal handler: DDP_VOTE_USER << RANK. SEED:
 * ranks compute for random times, up to 1 ms a step.
 */
#define _POSIX_C_SOURCE 200809L
#include <ddp/ddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call) \
    ((call) == DDP_OK ? (void)0 : (fprintf(stderr, "%s\n", ddp_error_message(error)), exit(1)))

enum { SIZE = 256, TENSORS = 3, MOST = 100000 };

static ddp_context* context;
static uint32_t own;
static float gradients[TENSORS][SIZE];
static struct {
    int step;
    uint32_t any, all;
} seen[MOST];

static void vote(int number) {
    (void)number;
    ddp_step_vote(context, own, NULL);
}

int main(int argc, char** argv) {
    const int64_t shape[1] = {SIZE};
    const char* names[TENSORS] = {"a", "b", "c"};
    ddp_error* error;
    ddp_group* group;
    ddp_group_options where;
    ddp_context_options options;
    ddp_param param;
    if (argc < 2) return 2;
    ddp_group_options_init(&where);
    where.backend = argv[1];
    CHECK(ddp_group_create(&where, &group, &error));
    const int rank = ddp_group_rank(group);
    ddp_context_options_init(&options);
    options.flags = DDP_CONTEXT_VOTES;
    options.bucket_cap_bytes = 1; /* a bucket for each */
    CHECK(ddp_context_create(group, &options, &context, &error));
    for (int i = 0; i < TENSORS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = names[i], desc.shape = shape, desc.ndim = 1, desc.grad = gradients[i];
        CHECK(ddp_register_param(context, &desc, &param, &error));
    }
    CHECK(ddp_commit(context, &error));
    own = (uint32_t)DDP_VOTE_USER << rank;
    struct sigaction action = {0};
    action.sa_handler = vote;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    printf("pid %d %d\n", rank, (int)getpid());
    fflush(stdout);
    srand(argc > 2 ? (unsigned)(atoi(argv[2]) + 131 * rank) : 0);
    int count = 0;
    for (int step = 0;; ++step) {
        const struct timespec work = {0, argc > 2 ? rand() % 1000000 : 200000};
        nanosleep(&work, NULL);
        for (int i = TENSORS; i-- > 0;) {
            for (int k = 0; k < SIZE; ++k) gradients[i][k] = (float)(step % 100 + rank);
            CHECK(ddp_grad_ready(context, i, &error));
        }
        CHECK(ddp_finalize(context, &error));
        const float mean = (float)(step % 100) + (float)(ddp_group_world_size(group) - 1) / 2.0f;
        if (gradients[1][7] != mean) return 4;
        uint32_t any, all;
        CHECK(ddp_step_votes(context, &any, &all, NULL, &error));
        if (any != 0 && count < MOST) {
            seen[count].step = step, seen[count].any = any, seen[count].all = all;
            ++count;
        }
        if (any & DDP_VOTE_STOP) break;
    }
    for (int i = 0; i < count; ++i)
        printf("vote %d %d %u %u\n", rank, seen[i].step, (unsigned)seen[i].any,
               (unsigned)seen[i].all);
    ddp_context_free(context);
    ddp_group_free(group);
    return 0;
}
