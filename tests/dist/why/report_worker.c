/* report_worker.c: a rank of a job that is reported (report_test.py).
 *
 *     report_worker STEPS LATE_MS SKIP
 *
 * In each step rank 1 spends LATE_MS in its mark "data", and in step SKIP (-1: none) it leaves out
 * a gradient. A bucket for each of the gradients. Names hold what HTML, JavaScript and JSON could
 * trip over.
 */
#define _POSIX_C_SOURCE 200809L
#include <ddp/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PARAMS = 3, COUNT = 1000 };

static ddp_error* error;

static void need(ddp_status status) {
    if (status == DDP_OK) return;
    fprintf(stderr, "%s\n", ddp_error_message(error));
    exit(1);
}

static void nap(long ms) {
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void spend(const char* mark, long ms) {
    need(ddp_mark_begin(mark, &error));
    nap(ms);
    need(ddp_mark_end(&error));
}

int main(int argc, char** argv) {
    static float data[PARAMS][COUNT], grad[PARAMS][COUNT];
    static const char* const names[PARAMS] = {
        "plain", "</script><script>alert('name')</script>\"&amp;<b>%{x}", "bytes \xff\xfe"};
    const int64_t shape[1] = {COUNT};
    const int steps = argc == 4 ? atoi(argv[1]) : 0, late_ms = argc == 4 ? atoi(argv[2]) : 0;
    const int skip = argc == 4 ? atoi(argv[3]) : -1;
    ddp_group_options group_options;
    ddp_context_options options;
    ddp_group* group;
    ddp_context* context;
    ddp_param params[PARAMS];
    ddp_group_options_init(&group_options);
    group_options.group_name = "<img src=x onerror=alert(1)> \xff";
    need(ddp_group_create(&group_options, &group, &error));
    ddp_context_options_init(&options);
    options.bucket_cap_bytes = sizeof data[0];
    need(ddp_context_create(group, &options, &context, &error));
    for (int i = 0; i < PARAMS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = names[i], desc.shape = shape, desc.ndim = 1, desc.data = data[i],
        desc.grad = grad[i];
        need(ddp_register_param(context, &desc, &params[i], &error));
    }
    need(ddp_commit(context, &error));
    const int late = ddp_group_rank(group) == 1;
    for (int step = 0; step < steps; ++step) {
        spend("data", late ? late_ms : 1);
        spend("</script><i>forward</i> \xff", 1);
        for (int i = PARAMS; i-- > 0;) {
            nap(1);
            if (!(late && step == skip && i == 1)) need(ddp_grad_ready(context, params[i], &error));
        }
        need(ddp_finalize(context, &error));
    }
    ddp_context_free(context);
    ddp_group_free(group);
}
