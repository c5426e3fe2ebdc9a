/* A rank of an elastic job whose ranks train apart, for outer_storm.py. Fragments of the model take turns in the outer steps:
 *
 *     outer_worker init=tcp://127.0.0.1:PORT backend=tcp steps=1000 min=1 max=4 settle=2000 timeout=5000
 *     [period=12 fragments=3 delay=2 alpha-percent=50 size=20 pause=US die=PLACE die-at=N die-after=US]
 *
 *     die=PLACE        kills itself there (faults.h): join, meet, step, averager, averaged, commit
 *
 * Each turn that it has committed is a line "turn STEPS in ROSTER of WORLD: STATE X", where STATE is a checksum of the averager's state, and X
 * the sum of all outer parameters. Each new roster is a line "roster NUMBER step STEP rank RANK of WORLD after MS ms". At SIGTERM it leaves politely.
 */
#define _GNU_SOURCE
#include <ddp/ddp.h>
#include <stdint.h>

#include "faults.h"

enum { PARAMS = 6 };

static struct {
    const char* init;
    const char* backend;
    long steps, min, max, settle, timeout, pause, size, period, fragments, delay, alpha_percent;
} want = {.init = "",
          .backend = "auto",
          .steps = 100,
          .min = 1,
          .settle = 2000,
          .timeout = 5000,
          .size = 20,
          .period = 12,
          .fragments = 1};

static struct {
    ddp_elastic* elastic;
    ddp_context* context;
    ddp_averager* averager;
    ddp_error* error;
    float* values[PARAMS];
} me;

static void check(ddp_status status) {
    if (status == DDP_OK) return;
    printf("error %d %s\n", (int)ddp_error_code(me.error), ddp_error_message(me.error));
    exit(1);
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
    at("join");
    check(ddp_elastic_create(&options, &me.elastic, &me.error));
    check(ddp_context_create(ddp_elastic_group(me.elastic), NULL, &me.context, &me.error));
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
        ddp_param param;
        check(ddp_register_param(me.context, &desc, &param, &me.error));
    }
    check(ddp_commit(me.context, &me.error));
    check(ddp_use_hook(me.context, "post_local_sgd", "start=0", &me.error));
    check(ddp_elastic_add_context(me.elastic, me.context, &me.error));
    const int64_t period = want.period;
    check(ddp_averager_create(me.context, &period, NULL, 1, 0, &me.averager, &me.error));
    ddp_outer_options outer;
    ddp_outer_options_init(&outer);
    outer.fragments = (int32_t)want.fragments;
    outer.delay = want.delay;
    outer.alpha = (double)want.alpha_percent / 100;
    check(ddp_averager_set_outer(me.averager, &outer, &me.error));
    check(ddp_elastic_add_averager(me.elastic, me.averager, &me.error));
}

/* The outer parameters of a state, which it names "outer:layer0" and so on, with their bytes. */
static double sum_of_outer(const char* state) {
    uint64_t length;
    memcpy(&length, state, sizeof length);
    const char* const header = state + sizeof length;
    double sum = 0;
    for (int p = 0; p < PARAMS; ++p) {
        char key[64];
        snprintf(key, sizeof key, "\"outer:layer%d\":{\"data_offsets\":[", p);
        const char* const found = memmem(header, length, key, strlen(key));
        if (!found) return 0;
        const char* const numbers = header + length + atol(found + strlen(key));
        for (long i = 0; i < want.size; ++i) {
            float x;
            memcpy(&x, numbers + (size_t)i * sizeof x, sizeof x);
            sum += (double)x;
        }
    }
    return sum;
}

static void tell_turn(const ddp_elastic_step* now) {
    void* state;
    size_t size;
    check(ddp_averager_state_save(me.averager, &state, &size, &me.error));
    unsigned long checksum = 1469598103934665603UL;
    for (size_t i = 0; i < size; ++i)
        checksum = (checksum ^ ((const unsigned char*)state)[i]) * 1099511628211UL;
    printf("turn %ld in %ld of %d: %lx %.9g\n", (long)now->step + 1, (long)now->roster,
           (int)now->world_size, checksum, sum_of_outer(state));
    ddp_free(state);
}

static ddp_status apply(const ddp_elastic_step* now, int32_t* averaged) {
    ddp_status status = DDP_OK;
    for (int p = 0; p < PARAMS && status == DDP_OK; ++p) {
        if (p == PARAMS / 2) at("step");
        for (long i = 0; i < want.size; ++i)
            me.values[p][i] -=
                0.01F * (float)((now->step * 31 + now->rank * 17 + p * 7 + i) % 23 - 11);
        status = ddp_grad_ready(me.context, p, &me.error);
    }
    nap_us(want.pause);
    if (status == DDP_OK) status = ddp_finalize(me.context, &me.error);
    at("averager");
    if (status == DDP_OK) status = ddp_averager_step(me.averager, averaged, &me.error);
    at("averaged");
    return status;
}

static void train(void) {
    int announced = 0;
    for (;;) {
        ddp_elastic_step now = {.struct_size = sizeof now};
        const double start = now_ms();
        at("meet");
        check(ddp_elastic_begin(me.elastic, &now, &me.error));
        if (now.changed)
            printf("roster %ld step %ld rank %d of %d after %.1f ms\n", (long)now.roster,
                   (long)now.step, (int)now.rank, (int)now.world_size, now_ms() - start);
        if (now.leaving) {
            if (ddp_elastic_leave(me.elastic, &me.error) == DDP_OK)
                printf("left %ld\n", (long)now.step);
            return;
        }
        if (now.step >= want.steps) return;
        if (told_to_leave && !announced) {
            announced = 1;
            if (ddp_elastic_announce_leave(me.elastic, &me.error) != DDP_OK) {
                ddp_error_free(me.error);
                me.error = NULL; /* the next ddp_elastic_begin says what is wrong */
            }
        }
        int32_t averaged = 0;
        ddp_status status = apply(&now, &averaged);
        at("commit");
        if (status == DDP_OK) status = ddp_elastic_commit(me.elastic, &me.error);
        if (status != DDP_OK) {
            printf("not applied: %s\n", ddp_error_message(me.error));
            ddp_error_free(me.error);
            me.error = NULL;
        } else if (averaged > 0) {
            tell_turn(&now);
        }
    }
}

static int take(const char* argument) {
    const option options[] = {{"steps=", &want.steps, NULL},
                              {"min=", &want.min, NULL},
                              {"max=", &want.max, NULL},
                              {"settle=", &want.settle, NULL},
                              {"timeout=", &want.timeout, NULL},
                              {"pause=", &want.pause, NULL},
                              {"size=", &want.size, NULL},
                              {"period=", &want.period, NULL},
                              {"fragments=", &want.fragments, NULL},
                              {"delay=", &want.delay, NULL},
                              {"alpha-percent=", &want.alpha_percent, NULL},
                              {"init=", NULL, &want.init},
                              {"backend=", NULL, &want.backend}};
    return take_fault(argument) || take_from(argument, options, sizeof options / sizeof *options);
}

int main(int argc, char** argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; ++i)
        if (!take(argv[i])) return fprintf(stderr, "unknown: %s\n", argv[i]), 2;
    signal(SIGTERM, on_sigterm);
    for (int p = 0; p < PARAMS; ++p) me.values[p] = calloc((size_t)want.size, sizeof(float));
    join();
    train();
    ddp_averager_free(me.averager);
    ddp_context_free(me.context);
    ddp_elastic_free(me.elastic);
    return 0;
}
