/* worker.c: a rank that waits, and says when and with what its wait ended; interrupt_test.py starts
 * it. tests/bindings has the same worker in Python, Java and Julia.
 *
 *     worker CASE RANK WORLD URI BACKEND
 *
 * It prints "waiting" before it waits for what the case says, and then "interrupted TIME CODE RANK
 * MESSAGE" or "error ...". TIME is that of CLOCK_MONOTONIC. The last rank of a group sleeps until
 * the group breaks instead. "turns" is a barrier of several groups that take turns; rank 0 sleeps
 * too.
 */
#define _POSIX_C_SOURCE 200809L
#include <ddp/ddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, COUNT = 100 };

static volatile sig_atomic_t interrupted;

static void on_sigint(int number) {
    interrupted = number;
}

static int32_t asked(void* user_data) {
    (void)user_data;
    return interrupted;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void waiting(void) {
    puts("waiting");
    fflush(stdout);
}

static void tell(ddp_error* error) {
    printf("%s %.6f %s %d %s\n", interrupted ? "interrupted" : "error", now(),
           ddp_status_name(ddp_error_code(error)) + strlen("DDP_ERROR_"),
           (int)ddp_error_rank(error), ddp_error_message(error));
    fflush(stdout);
    ddp_error_free(error);
}

/* A call that the test is not about. The error by its address: it is written while the arguments
 * are evaluated. */
static void need(ddp_status status, ddp_error* const* error) {
    if (status == DDP_OK) return;
    fprintf(stderr, "%s\n", ddp_error_message(*error));
    exit(1);
}

/* The call that waits. */
static void expect_failure(ddp_status status, ddp_error* const* error) {
    if (status != DDP_OK) {
        tell(*error);
        return;
    }
    puts("the call did not wait");
    exit(1);
}

/* The store goes on after an interrupted wait. */
static void use_store(const char* uri, int is_server) {
    ddp_store_options options;
    ddp_store* store = NULL;
    ddp_error* error = NULL;
    void* value = NULL;
    size_t size = 0;
    ddp_store_options_init(&options);
    options.uri = uri, options.timeout_ms = TIMEOUT_MS, options.is_server = is_server;
    need(ddp_store_create(&options, &store, &error), &error);
    waiting();
    expect_failure(ddp_store_get(store, "nobody sets this", 0, &value, &size, &error), &error);
    interrupted = 0;
    need(ddp_store_set(store, "key", "value", 5, &error), &error);
    need(ddp_store_get(store, "key", 0, &value, &size, &error), &error);
    puts(size == 5 ? "the store works" : "the store is broken");
    ddp_free(value);
    ddp_store_free(store);
}

static void sleep_until_broken(ddp_group* group) {
    ddp_error* error = NULL;
    for (int i = 0; i < TIMEOUT_MS / 20; ++i) {
        const struct timespec pause = {0, 20000000};
        if (ddp_group_status(group, &error) != DDP_OK) {
            tell(error);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

static void finalize(ddp_group* group) {
    float value[COUNT] = {0}, gradient[COUNT] = {0};
    const int64_t shape[1] = {COUNT};
    ddp_context* context = NULL;
    ddp_error* error = NULL;
    ddp_param_desc desc;
    ddp_param param;
    need(ddp_context_create(group, NULL, &context, &error), &error);
    ddp_param_desc_init(&desc);
    desc.name = "w", desc.shape = shape, desc.ndim = 1, desc.data = value, desc.grad = gradient;
    need(ddp_register_param(context, &desc, &param, &error), &error);
    need(ddp_commit(context, &error), &error);
    if (ddp_group_rank(group) == ddp_group_world_size(group) - 1) {
        sleep_until_broken(group);
    } else {
        need(ddp_grad_ready(context, param, &error), &error);
        waiting();
        expect_failure(ddp_finalize(context, &error), &error);
    }
    ddp_context_free(context);
}

static void collective(ddp_group* group, const char* name) {
    float data[COUNT] = {0};
    ddp_work* work = NULL;
    ddp_error* error = NULL;
    const int turns = strcmp(name, "turns") == 0;
    if (ddp_group_rank(group) == ddp_group_world_size(group) - 1 ||
        (turns && ddp_group_rank(group) == 0)) {
        waiting();
        sleep_until_broken(group);
        return;
    }
    const int async = strcmp(name, "work") == 0 || strcmp(name, "timed") == 0;
    if (async)
        need(ddp_allreduce(group, NULL, data, COUNT, DDP_F32, DDP_SUM, &work, &error), &error);
    waiting();
    if (async)
        expect_failure(ddp_work_wait(work, strcmp(name, "timed") == 0 ? TIMEOUT_MS : 0, &error),
                       &error);
    else if (turns || strcmp(name, "barrier") == 0)
        expect_failure(ddp_barrier(group, NULL, &error), &error);
    else
        expect_failure(ddp_allreduce(group, NULL, data, COUNT, DDP_F32, DDP_SUM, NULL, &error),
                       &error);
    ddp_work_free(work);
}

int main(int argc, char** argv) {
    if (argc != 6) return 2;
    const char* name = argv[1];
    ddp_group_options options;
    ddp_group* group = NULL;
    ddp_error* error = NULL;
    alarm(100);
    signal(SIGINT, on_sigint);
    need(ddp_set_interrupt_check(asked, NULL, NULL, 0, &error), &error);
    if (strcmp(name, "store") == 0) {
        use_store(argv[4], strncmp(argv[4], "tcp:", 4) == 0);
        return 0;
    }
    ddp_group_options_init(&options);
    options.rank = atoi(argv[2]), options.world_size = atoi(argv[3]);
    options.init_method = argv[4], options.backend = argv[5], options.timeout_ms = TIMEOUT_MS;
    if (strcmp(name, "turns") == 0) options.round_robin = 3;
    if (strcmp(name, "join") == 0) waiting();
    const ddp_status status = ddp_group_create(&options, &group, &error);
    if (strcmp(name, "join") == 0) {
        expect_failure(status, &error);
        return 0;
    }
    need(status, &error);
    if (strcmp(name, "finalize") == 0)
        finalize(group);
    else
        collective(group, name);
    ddp_group_free(group);
    return 0;
}
