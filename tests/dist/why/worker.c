/* A rank that trains, and one of which has a fault, for faults_test.py and healthy_test.py:
 *
 *     ddprun -n 3 worker fault=skip victim=1 step=5 steps=20 backend=tcp timeout=2000
 *
 * A rank that gets an error writes it and exits with 1. */
#define _GNU_SOURCE
#include <ddp/ddp.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PARAMS = 16 };

static struct {
    const char* fault;
    const char* backend;
    const char* options;
    const char* init;
    long victim, at, steps, timeout, hosts, params, size, compute_us, jitter_us, seed, bucket_cap,
        collectives;
} want = {.fault = "none",
          .victim = 1,
          .at = 5,
          .steps = 12,
          .timeout = 2000,
          .params = 6,
          .size = 2000,
          .compute_us = 1000,
          .bucket_cap = 16000};

static struct {
    ddp_group* group;
    ddp_context* context;
    ddp_error* error;
    float* values[MOST_PARAMS];
    float* gradients[MOST_PARAMS];
    int rank;
    unsigned random;
} me;

static void end(void) {
    fprintf(stderr, "%s\n", ddp_error_message(me.error));
    exit(1);
}

static void check(ddp_status status) {
    if (status != DDP_OK) end();
}

static void nap_us(long us) {
    const struct timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void compute(long us) {
    nap_us(us + (want.jitter_us > 0 ? rand_r(&me.random) % want.jitter_us : 0));
}

static int has_fault(const char* fault) {
    return me.rank == want.victim && strcmp(want.fault, fault) == 0;
}

/* Leaves the process this much more address space. */
static void leave_memory(long bytes) {
    long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) exit(2);
    fclose(file);
    const rlim_t most = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + bytes);
    const struct rlimit limit = {most, most};
    setrlimit(RLIMIT_AS, &limit);
}

static ddp_status slow_hook(void* data, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                            ddp_error** error) {
    (void)data;
    if (has_fault("hook") && ddp_bucket_index(bucket) == 0) nap_us(20000);
    return ddp_allreduce(group, NULL, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                         ddp_bucket_dtype(bucket), ddp_bucket_op(bucket), work, error);
}

static float* numbers(long count) {
    float* memory = calloc((size_t)count, sizeof(float));
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        /* As a thread of libddp does that finds no memory either. */
        fprintf(stderr, "libddp[%d] error: no memory", (int)getpid());
        exit(1);
    }
    return memory;
}

static void make_context(void) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = (uint64_t)want.bucket_cap;
    check(ddp_context_create(me.group, &options, &me.context, &me.error));
    for (int i = 0; i < want.params; ++i) {
        me.values[i] = numbers(want.size);
        me.gradients[i] = numbers(want.size);
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", i);
        const int64_t shape[] = {has_fault("shape") && i == 2 ? want.size / 2 : want.size};
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name;
        desc.shape = shape;
        desc.ndim = 1;
        desc.dtype = DDP_F32;
        desc.data = me.values[i];
        desc.grad = me.gradients[i];
        ddp_param param;
        check(ddp_register_param(me.context, &desc, &param, &me.error));
    }
    if (strcmp(want.fault, "hook") == 0)
        check(ddp_set_comm_hook(me.context, slow_hook, NULL, NULL, &me.error));
    if (has_fault("memory")) leave_memory(1 << 14);
    check(ddp_commit(me.context, &me.error));
}

static void allreduce(long count) {
    float* data = numbers(count);
    check(ddp_allreduce(me.group, NULL, data, (size_t)count, DDP_F32, DDP_SUM, NULL, &me.error));
    free(data);
}

/* The program's own work between steps. */
static void log_loss(int faulty) {
    if (faulty && has_fault("order")) check(ddp_barrier(me.group, NULL, &me.error));
    if (faulty && has_fault("extra")) allreduce(1);
    allreduce(faulty && has_fault("count") ? 3 : 1);
    if (strcmp(want.fault, "order") == 0 && !(faulty && has_fault("order")))
        check(ddp_barrier(me.group, NULL, &me.error));
}

static void break_down(void) {
    if (has_fault("stop")) raise(SIGSTOP);
    if (has_fault("kill")) raise(SIGKILL);
    if (has_fault("exit")) exit(7);
    if (has_fault("sleep")) nap_us(20 * want.timeout * 1000);
    if (has_fault("array")) {
        leave_memory(1 << 20);
        free(numbers(1 << 24));
    }
}

static void train_step(long step) {
    const int faulty = step == want.at;
    check(ddp_step_begin(me.context, &me.error));
    compute(want.compute_us);
    for (int i = (int)want.params - 1; i >= 0; --i) {
        if (faulty && i == want.params / 2) break_down();
        if (faulty && i == 2 && has_fault("skip")) continue;
        compute(want.compute_us / 10);
        /* no bucket is on its way that could hide it */
        if (i == want.params - 1 && has_fault("slow")) nap_us(20000);
        check(ddp_grad_ready(me.context, i, &me.error));
    }
    check(ddp_finalize(me.context, &me.error));
    for (long i = 0; i < want.collectives; ++i) log_loss(faulty);
}

static void set(const char* name, const char* value) {
    const struct {
        const char* name;
        const char** text;
        long* number;
    } known[] = {{"fault", &want.fault, NULL},
                 {"backend", &want.backend, NULL},
                 {"options", &want.options, NULL},
                 {"init", &want.init, NULL},
                 {"victim", NULL, &want.victim},
                 {"step", NULL, &want.at},
                 {"steps", NULL, &want.steps},
                 {"timeout", NULL, &want.timeout},
                 {"hosts", NULL, &want.hosts},
                 {"params", NULL, &want.params},
                 {"size", NULL, &want.size},
                 {"compute-us", NULL, &want.compute_us},
                 {"jitter-us", NULL, &want.jitter_us},
                 {"seed", NULL, &want.seed},
                 {"bucket-cap", NULL, &want.bucket_cap},
                 {"collectives", NULL, &want.collectives}};
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) {
        if (strcmp(name, known[i].name) != 0) continue;
        if (known[i].text) *known[i].text = value;
        if (known[i].number) *known[i].number = strtol(value, NULL, 10);
        return;
    }
    fprintf(stderr, "worker: no setting '%s'\n", name);
    exit(2);
}

/* As if ranks were on so many hosts in turn. */
static void choose_host(void) {
    const char* rank = getenv("DDP_RANK");
    if (want.hosts <= 1 || !rank) return;
    char name[32];
    snprintf(name, sizeof name, "host %ld", strtol(rank, NULL, 10) % want.hosts);
    setenv("DDP_HOST_ID", name, 1);
}

int main(int argc, char** argv) {
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (int i = 1; i < argc; ++i) {
        char* value = strchr(argv[i], '=');
        if (!value) return 2;
        *value = '\0';
        set(argv[i], value + 1);
    }
    if (want.params > MOST_PARAMS) return 2;
    /* A thread's first allocation makes an arena: for a moment it takes 64 MiB more than it keeps,
     * which leave_memory would count. */
    mallopt(M_ARENA_MAX, 1);
    choose_host();
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.backend = want.backend;
    options.backend_options = want.options;
    options.timeout_ms = want.timeout;
    if (want.init) options.init_method = want.init;
    check(ddp_group_create(&options, &me.group, &me.error));
    me.rank = ddp_group_rank(me.group);
    me.random = (unsigned)(want.seed * 1000 + me.rank);
    make_context();
    const long steps = has_fault("uneven") ? want.at : want.steps;
    for (long step = 0; step < steps; ++step) train_step(step);
    ddp_context_free(me.context);
    ddp_group_free(me.group);
    for (int i = 0; i < want.params; ++i) {
        free(me.values[i]);
        free(me.gradients[i]);
    }
    return 0;
}
