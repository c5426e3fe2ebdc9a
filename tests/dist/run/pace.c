/* A rank that trains at a given pace, for metrics_test.py and status_test.py.
 *
 *     ddprun -n 3 pace STEPS FILE [FAULT]
 *
 * After its steps it waits until FILE is there, at most 60 s. FAULT: rank 1 comes 20 ms late to
 * each step (late), stops in step 5 (stop), or leaves out a gradient of step 5 (skip). GROUP in the
 * environment names the group.
 */
#define _POSIX_C_SOURCE 200809L
#include <ddp/ddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define CHECK(call) ((call) == DDP_OK ? (void)0 : end(ddp_error_message(error)))

enum { kParams = 2, kValues = 250, kSamples = 32 };

static void end(const char* message) {
    fprintf(stderr, "%s\n", message);
    exit(3);
}

static void pause_ms(long ms) {
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const int steps = atoi(argv[1]);
    const char* fault = argc > 3 ? argv[3] : "";
    const int64_t shape[1] = {kValues};
    static float data[kParams][kValues], grads[kParams][kValues];
    ddp_error* error = NULL;
    ddp_group* group = NULL;
    ddp_context* context = NULL;
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.group_name = getenv("GROUP");
    CHECK(ddp_group_create(&options, &group, &error));
    CHECK(ddp_context_create(group, NULL, &context, &error));
    ddp_param params[kParams];
    for (int i = 0; i < kParams; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = i == 0 ? "first" : "second";
        desc.shape = shape, desc.ndim = 1, desc.data = data[i], desc.grad = grads[i];
        CHECK(ddp_register_param(context, &desc, &params[i], &error));
    }
    CHECK(ddp_commit(context, &error));
    CHECK(ddp_set_workload(kSamples, steps, &error));
    const int faulty = ddp_group_rank(group) == 1;
    for (int step = 0; step < steps; ++step) {
        pause_ms(faulty && strcmp(fault, "late") == 0 ? 25 : 5);
        for (int i = 0; i < kParams; ++i) {
            if (faulty && step == 5 && i == 1 && strcmp(fault, "stop") == 0) raise(SIGSTOP);
            if (faulty && step == 5 && i == 1 && strcmp(fault, "skip") == 0) continue;
            CHECK(ddp_grad_ready(context, params[i], &error));
        }
        CHECK(ddp_finalize(context, &error));
    }
    for (int i = 0; i < 6000 && access(argv[2], F_OK) != 0; ++i) pause_ms(10);
    ddp_context_free(context);
    ddp_group_free(group);
    return 0;
}
