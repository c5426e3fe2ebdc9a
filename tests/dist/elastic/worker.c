/* A rank of an elastic job, for elastic_test.py:
 *
 *     worker init=tcp://127.0.0.1:PORT backend=tcp steps=100 min=1 max=4 settle=2000 timeout=5000 [pause=US] [leave-at=STEP] [rejoin=1]
 *
 * Gradients are sums of integers over the samples of a step, so the result depends neither on the ranks nor on their number. At the end it
 * prints "done STEPS SUM", where SUM is a checksum of the bits of the parameters and of the momenta. At SIGTERM it leaves politely. `worker reference steps=100` prints
 * what one process computes. Each new roster is a line "roster NUMBER step STEP rank RANK of WORLD after MS ms". */
#define _GNU_SOURCE
#include <ddp/ddp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PARAMS = 6, SAMPLES = 12 };

static struct {
    const char* init;
    const char* backend;
    long steps, min, max, settle, timeout, pause, leave_at, rejoin, size;
} want = {.init = "",
          .backend = "auto",
          .steps = 100,
          .min = 1,
          .settle = 2000,
          .timeout = 5000,
          .leave_at = -1,
          .size = 1000};

static struct {
    ddp_elastic* elastic;
    ddp_context* context;
    ddp_error* error;
    float* values[PARAMS];
    float* gradients[PARAMS];
    float* momenta[PARAMS];
} me;

static volatile sig_atomic_t told_to_leave;

static void on_sigterm(int number) {
    (void)number;
    told_to_leave = 1;
}

static void nap_us(long us) {
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void compute(int64_t step, int param, int rank, int world) {
    for (long i = 0; i < want.size; ++i) {
        float sum = 0;
        for (int sample = rank; sample < SAMPLES; sample += world)
            sum += (float)((step * 31 + sample * 17 + param * 7 + i) % 23 - 11);
        me.gradients[param][i] = sum;
    }
}

static void apply(void) {
    for (int p = 0; p < PARAMS; ++p)
        for (long i = 0; i < want.size; ++i) {
            me.momenta[p][i] = 0.75F * me.momenta[p][i] + me.gradients[p][i];
            me.values[p][i] -= 0.01F * me.momenta[p][i];
        }
}

static unsigned long checksum(void) {
    unsigned long sum = 1469598103934665603UL;
    for (int p = 0; p < PARAMS; ++p)
        for (long i = 0; i < want.size; ++i) {
            uint32_t bits[2];
            memcpy(&bits[0], &me.values[p][i], 4);
            memcpy(&bits[1], &me.momenta[p][i], 4);
            sum = (sum ^ bits[0]) * 1099511628211UL;
            sum = (sum ^ bits[1]) * 1099511628211UL;
        }
    return sum;
}

static void allocate(void) {
    for (int p = 0; p < PARAMS; ++p) {
        me.values[p] = calloc((size_t)want.size, sizeof(float));
        me.gradients[p] = calloc((size_t)want.size, sizeof(float));
        me.momenta[p] = calloc((size_t)want.size, sizeof(float));
    }
}

static void end(void) {
    printf("error %d %s\n", (int)ddp_error_code(me.error), ddp_error_message(me.error));
    exit(1);
}

static void check(ddp_status status) {
    if (status != DDP_OK) end();
}

static void join(void) {
    ddp_group_options group;
    ddp_group_options_init(&group);
    group.init_method = want.init;
    group.backend = want.backend;
    group.timeout_ms = want.timeout;
    ddp_elastic_options options;
    ddp_elastic_options_init(&options);
    options.group = &group;
    options.min_world = (int32_t)want.min;
    options.max_world = (int32_t)want.max;
    options.settle_ms = want.settle;
    check(ddp_elastic_create(&options, &me.elastic, &me.error));

    ddp_context_options how;
    ddp_context_options_init(&how);
    how.reduction = DDP_REDUCTION_SUM;
    check(ddp_context_create(ddp_elastic_group(me.elastic), &how, &me.context, &me.error));
    for (int p = 0; p < PARAMS; ++p) {
        char name[32];
        const int64_t shape[] = {want.size};
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        snprintf(name, sizeof name, "layer%d", p);
        desc.name = name;
        desc.shape = shape;
        desc.ndim = 1;
        desc.data = me.values[p];
        desc.grad = me.gradients[p];
        ddp_param param;
        check(ddp_register_param(me.context, &desc, &param, &me.error));
    }
    check(ddp_commit(me.context, &me.error));
    check(ddp_elastic_add_context(me.elastic, me.context, &me.error));
    for (int p = 0; p < PARAMS; ++p) {
        char name[32];
        snprintf(name, sizeof name, "momentum%d", p);
        check(ddp_elastic_add_state(me.elastic, name, me.momenta[p], (size_t)want.size * sizeof(float), &me.error));
    }
}

static void leave(void) {
    ddp_context_free(me.context);
    ddp_elastic_free(me.elastic);
    me.context = NULL;
    me.elastic = NULL;
}

/* Whether the step has been done. */
static int step(const ddp_elastic_step* now) {
    ddp_status status = DDP_OK;
    for (int p = PARAMS; p-- > 0 && status == DDP_OK;) {
        compute(now->step, p, now->rank, now->world_size);
        nap_us(want.pause / PARAMS);
        status = ddp_grad_ready(me.context, p, &me.error);
    }
    if (status == DDP_OK) status = ddp_finalize(me.context, &me.error);
    if (status != DDP_OK) {
        ddp_error_free(me.error);
        me.error = NULL;
        return 0;
    }
    apply();
    check(ddp_elastic_commit(me.elastic, &me.error));
    return 1;
}

static void train(void) {
    int announced = 0;
    for (;;) {
        ddp_elastic_step now = {.struct_size = sizeof now};
        const double start = now_ms();
        const ddp_status status = ddp_elastic_begin(me.elastic, &now, &me.error);
        if (status == DDP_ERROR_RANK_FAILED && want.rejoin) {
            printf("left behind: %s\n", ddp_error_message(me.error));
            ddp_error_free(me.error);
            me.error = NULL;
            leave();
            join();
            continue;
        }
        check(status);
        if (now.changed)
            printf("roster %ld step %ld rank %d of %d after %.1f ms\n", (long)now.roster, (long)now.step, (int)now.rank,
                   (int)now.world_size, now_ms() - start);
        if (now.leaving) {
            check(ddp_elastic_leave(me.elastic, &me.error));
            printf("left %ld\n", (long)now.step);
            return;
        }
        if (now.step >= want.steps) break;
        if (told_to_leave && !announced) {
            announced = 1;
            check(ddp_elastic_announce_leave(me.elastic, &me.error));
        }
        if (now.step == want.leave_at) check(ddp_elastic_announce_leave(me.elastic, &me.error));
        step(&now);
    }
    printf("done %ld %lx\n", want.steps, checksum());
}

static int take(const char* argument) {
    const char* value = strchr(argument, '=');
    if (!value) return 0;
    const struct {
        const char* name;
        long* number;
    } numbers[] = {{"steps=", &want.steps},       {"min=", &want.min},         {"max=", &want.max},
                   {"settle=", &want.settle},     {"timeout=", &want.timeout}, {"pause=", &want.pause},
                   {"leave-at=", &want.leave_at}, {"rejoin=", &want.rejoin},   {"size=", &want.size}};
    ++value;
    if (strncmp(argument, "init=", 5) == 0) return want.init = value, 1;
    if (strncmp(argument, "backend=", 8) == 0) return want.backend = value, 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        if (strncmp(argument, numbers[i].name, strlen(numbers[i].name)) == 0)
            return *numbers[i].number = atol(value), 1;
    return 0;
}

int main(int argc, char** argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const int reference = argc > 1 && strcmp(argv[1], "reference") == 0;
    for (int i = 1 + reference; i < argc; ++i)
        if (!take(argv[i])) return fprintf(stderr, "unknown: %s\n", argv[i]), 2;
    signal(SIGTERM, on_sigterm);
    allocate();
    if (reference) {
        for (int64_t s = 0; s < want.steps; ++s) {
            for (int p = 0; p < PARAMS; ++p) compute(s, p, 0, 1);
            apply();
        }
        printf("done %ld %lx\n", want.steps, checksum());
        return 0;
    }
    join();
    train();
    leave();
    return 0;
}
