/* One rank of a job, for jobs.py: carries out the verbs on its command line and says on standard
 * output how far it is.
 *
 *     worker rank=1 world=3 init=tcp://127.0.0.1:2000 timeout=5000 -- join params=4 commit steps=2
 *     mark=ready pause finalize
 *
 * Lines on standard output: "at NAME SECONDS", "error CODE RANK PARAM BUCKET STEP SECONDS VERB
 * MESSAGE", "value NAME NUMBER". SECONDS are those of CLOCK_MONOTONIC, which all processes of a
 * host share. The first error ends the list of verbs; the worker then frees what it has and exits
 * with 0: a failure of another rank must never keep a process from ending well.
 */
#define _POSIX_C_SOURCE 200809L
#define DDP_EXPERIMENTAL 1
#include <ddp/ddp.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PARAMS = 64 };

static struct {
    ddp_group_options options;
    ddp_store* store; /* --via store: opened by the worker, as under a launcher */
    ddp_group* group;
    ddp_context* context;
    ddp_error* error;
    const char* verb;
    float* grad[MAX_PARAMS];
    float* value[MAX_PARAMS];
    int params;
    int next; /* the parameter after the last announced one, from the back */
    int64_t shape[2];
    int32_t ndim;
    ddp_dtype dtype;
    const char* also;
    char prefix[32]; /* of parameter names */
    int checked;     /* with DDP_CONTEXT_CHECK, gradients in views */
    int views;       /* gradients in views */
    int sharded;     /* with DDP_CONTEXT_SHARD */
} me;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void mark(const char* name) {
    printf("at %s %.6f\n", name, now());
    fflush(stdout);
}

static int report_error(void) {
    printf("error %s %d %d %d %lld %.6f %s %s\n", ddp_status_name(ddp_error_code(me.error)),
           (int)ddp_error_rank(me.error), (int)ddp_error_param(me.error),
           (int)ddp_error_bucket(me.error), (long long)ddp_error_step(me.error), now(), me.verb,
           ddp_error_message(me.error));
    fflush(stdout);
    ddp_error_free(me.error);
    me.error = NULL;
    return -1;
}

static int check(ddp_status status) {
    return status == DDP_OK ? 0 : report_error();
}

/* ---- verbs; each returns 0, or -1 after an error */

/* With also=OPTIONS, a round robin of two groups: the second one has these backend_options. */
static int join(void) {
    ddp_group* both[2] = {NULL, NULL};
    if (check(ddp_group_create(&me.options, &both[0], &me.error))) return -1;
    me.group = both[0];
    if (me.also) {
        ddp_group_options second = me.options;
        second.backend_options = me.also;
        second.group_name = "also";
        if (check(ddp_group_create(&second, &both[1], &me.error))) return -1;
        int failed = check(ddp_group_round_robin(both, 2, &me.group, &me.error));
        ddp_group_free(both[0]);
        ddp_group_free(both[1]);
        if (failed) return me.group = NULL, -1;
    }
    mark("joined");
    return 0;
}

static int add_params(const char* text) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_cap_bytes =
        1; /* a bucket for each: steps in which something remains to do */
    if (me.checked) options.flags |= DDP_CONTEXT_CHECK;
    if (me.sharded) options.flags |= DDP_CONTEXT_SHARD;
    if (!me.context && check(ddp_context_create(me.group, &options, &me.context, &me.error)))
        return -1;
    int count = atoi(text);
    for (int i = 0; i < count; ++i) {
        char name[64];
        snprintf(name, sizeof name, "%s%d", me.prefix, me.params);
        ddp_param_desc desc;
        ddp_param param;
        ddp_param_desc_init(&desc);
        desc.name = name;
        desc.shape = me.shape;
        desc.ndim = me.ndim;
        desc.dtype = me.dtype;
        if (!me.checked && !me.views)
            desc.grad = me.grad[me.params] = calloc((size_t)(me.shape[0] * me.shape[1]), 16);
        if (me.sharded)
            desc.data = me.value[me.params] = calloc((size_t)(me.shape[0] * me.shape[1]), 16);
        if (check(ddp_register_param(me.context, &desc, &param, &me.error))) return -1;
        ++me.params;
    }
    return 0;
}

static int fill(int count) {
    for (; count > 0 && me.next > 0; --count)
        if (check(ddp_grad_ready(me.context, --me.next, &me.error))) return -1;
    return 0;
}

static int finalize(void) {
    if (check(ddp_finalize(me.context, &me.error))) return -1;
    me.next = me.params;
    return 0;
}

static int publish(void) {
    if (check(ddp_publish(me.context, &me.error))) return -1;
    for (int p = 0; p < me.params; ++p)
        if (check(ddp_wait_value(me.context, p, &me.error))) return -1;
    return 0;
}

static int step(void) {
    if (check(ddp_step_begin(me.context, &me.error))) return -1;
    me.next = me.params;
    if (fill(me.params) || finalize()) return -1;
    return me.sharded ? publish() : 0;
}

static int steps(long count) {
    while (count-- > 0)
        if (step()) return -1;
    return 0;
}

static int allreduce(const char* text) {
    size_t count = strtoul(text, NULL, 10);
    ddp_dtype dtype = strstr(text, ":f64") ? DDP_F64 : DDP_F32;
    void* data = malloc((count + 1) * 8);
    memset(data, 0x3f, (count + 1) * 8); /* two_hosts_test.py looks for these bytes on the wire */
    int failed = check(ddp_allreduce(me.group, NULL, data, count, dtype, DDP_SUM, NULL, &me.error));
    free(data);
    return failed;
}

/* Sends each rank this many numbers, but rank 0 as many as the second number says. */
static int exchange(const char* text) {
    size_t world = (size_t)me.options.world_size, total = 0;
    uint64_t* counts = malloc(2 * world * sizeof *counts);
    uint64_t* expected = counts + world;
    for (size_t rank = 0; rank < world; ++rank)
        total += counts[rank] = expected[rank] = strtoul(text, NULL, 10);
    const char* other = strchr(text, ',');
    if (other) counts[0] = strtoul(other + 1, NULL, 10);
    char* send = calloc(total + counts[0] + 1, 4);
    char* recv = calloc(total + 1, 4);
    int failed = check(
        ddp_all_to_allv(me.group, send, recv, counts, expected, world, DDP_F32, NULL, &me.error));
    free(counts);
    free(send);
    free(recv);
    return failed;
}

/* Sums numbers that every rank knows, and says how many came out wrong. */
static int sum(size_t count) {
    float* data = malloc((count + 1) * sizeof *data);
    for (size_t i = 0; i < count; ++i) data[i] = (float)((i * 7 + (size_t)me.options.rank) % 1000);
    int failed =
        check(ddp_allreduce(me.group, NULL, data, count, DDP_F32, DDP_SUM, NULL, &me.error));
    size_t wrong = 0;
    for (size_t i = 0; !failed && i < count; ++i) {
        float right = 0;
        for (size_t rank = 0; rank < (size_t)me.options.world_size; ++rank)
            right += (float)((i * 7 + rank) % 1000);
        wrong += data[i] != right;
    }
    free(data);
    if (!failed) printf("value wrong %zu\n", wrong);
    return failed;
}

/* The gradient of a number, but for what a rank adds: its own number. */
static float base(int64_t step, int param, int64_t i) {
    return (float)((step * 31 + param * 7 + i) % 97);
}

static int gradient_of(int param, float** memory) {
    void* view;
    *memory = me.grad[param];
    if (*memory) return 0;
    if (check(ddp_grad_view(me.context, param, &view, &me.error))) return -1;
    *memory = view;
    return 0;
}

/* Steps whose results are compared with the mean that every rank knows. After a failure the
 * gradients are written over, as by a program that goes on. */
static int train(long count) {
    const int64_t size = me.shape[0] * me.shape[1];
    long done = 0, wrong = 0;
    int failed = 0;
    for (; done < count && !failed; ++done) {
        if ((failed = check(ddp_step_begin(me.context, &me.error)))) break;
        for (int p = me.params - 1; p >= 0 && !failed; --p) {
            float* grad;
            if ((failed = gradient_of(p, &grad))) break;
            for (int64_t i = 0; i < size; ++i) grad[i] = base(done, p, i) + (float)me.options.rank;
            failed = check(ddp_grad_ready(me.context, p, &me.error));
        }
        if (failed || (failed = check(ddp_finalize(me.context, &me.error)))) break;
        for (int p = 0; p < me.params; ++p) {
            float* grad;
            if ((failed = gradient_of(p, &grad))) break;
            for (int64_t i = 0; i < size; ++i)
                wrong += grad[i] != base(done, p, i) + (float)(me.options.world_size - 1) / 2;
        }
    }
    printf("value done %ld\nvalue wrong %ld\n", done, wrong);
    fflush(stdout);
    for (int p = 0; p < me.params; ++p) {
        float* grad = me.grad[p];
        if (!grad && !me.views) continue;
        if (!grad && ddp_grad_view(me.context, p, (void**)&grad, NULL) != DDP_OK) continue;
        for (int64_t i = 0; i < size; ++i) grad[i] = -1000;
    }
    return failed;
}

static ddp_status failing_hook(void* reason, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                               ddp_error** error) {
    (void)group, (void)bucket, (void)work;
    *error = ddp_error_create(DDP_ERROR_CALLBACK, reason);
    return DDP_ERROR_CALLBACK;
}

static int fail_in_hook(const char* text) {
    static char reason[64];
    snprintf(reason, sizeof reason, "%s", text);
    return check(ddp_set_comm_hook(me.context, failing_hook, reason, NULL, &me.error));
}

/* Does nothing for the group, and notices that it broke. */
static int watch(long ms) {
    for (double end = now() + (double)ms * 1e-3; now() < end; nap(2))
        if (check(ddp_group_status(me.group, &me.error))) return -1;
    return 0;
}

/* Waits for a line from the test. */
static int pause_here(const char* name) {
    char line[16];
    mark(name);
    if (!fgets(line, sizeof line, stdin)) mark("orphaned");
    return 0;
}

static void* abort_later(void* ms) {
    nap(*(long*)ms);
    mark("aborting");
    ddp_context_abort(me.context, "the test says so", NULL);
    return NULL;
}

static int finalize_and_abort(long ms) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_later, &ms) != 0) return 0;
    int failed = finalize();
    pthread_join(thread, NULL);
    return failed;
}

static void free_all(void) {
    ddp_context_free(me.context);
    ddp_group_free(me.group);
    me.context = NULL;
    me.group = NULL;
    for (int i = 0; i < MAX_PARAMS; ++i) {
        free(me.grad[i]);
        me.grad[i] = NULL;
    }
    me.params = 0;
}

static int entries(const char* folder) {
    int count = 0;
    DIR* dir = opendir(folder);
    while (dir && readdir(dir)) ++count;
    if (dir) closedir(dir);
    return count;
}

static void say_resources(const char* when) {
    printf("value %s_threads %d\nvalue %s_files %d\n", when, entries("/proc/self/task"), when,
           entries("/proc/self/fd"));
    fflush(stdout);
}

/* Creates and frees a group and a context with a step, again and again. What the first rounds leave
 * behind is there for good. */
static int cycles(long count) {
    for (long i = 0; i < count; ++i) {
        if (i == 5) say_resources("early");
        if (join() || add_params("2") || check(ddp_commit(me.context, &me.error)) || steps(1))
            return -1;
        if (check(ddp_barrier(me.group, NULL, &me.error))) return -1;
        free_all();
    }
    nap(200);
    say_resources("late");
    return 0;
}

static int serve(void) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = me.options.init_method;
    options.secret = me.options.secret;
    options.is_server = 1;
    if (check(ddp_store_create(&options, &me.store, &me.error))) return -1;
    me.options.store = me.store;
    printf("value port %d\n", (int)ddp_store_port(me.store));
    return pause_here("serving");
}

static int open_store(void) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = me.options.init_method;
    options.secret = me.options.secret;
    options.timeout_ms = me.options.timeout_ms;
    if (check(ddp_store_create(&options, &me.store, &me.error))) return -1;
    me.options.store = me.store;
    return 0;
}

/* The process may open this many files more. */
static int leave_files(int count) {
    int highest = dup(0); /* the lowest that is free: all below are open */
    close(highest);
    for (int fd = highest; fd < 1024; ++fd)
        if (fcntl(fd, F_GETFD) >= 0) highest = fd + 1;
    struct rlimit limit = {(rlim_t)(highest + count), (rlim_t)(highest + count)};
    return setrlimit(RLIMIT_NOFILE, &limit);
}

/* The process may take this many KiB of addresses more. */
static int leave_memory(long kib) {
    long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) return -1;
    fclose(file);
    rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)kib * 1024;
    struct rlimit limit = {bytes, bytes};
    return setrlimit(RLIMIT_AS, &limit);
}

static int is(const char* word, const char* name) {
    return strcmp(word, name) == 0;
}

static int perform(const char* word, const char* argument) {
    if (is(word, "join")) return join();
    if (is(word, "open")) return open_store();
    if (is(word, "serve")) return serve();
    if (is(word, "params")) return add_params(argument);
    if (is(word, "commit")) return me.next = me.params, check(ddp_commit(me.context, &me.error));
    if (is(word, "begin")) return check(ddp_step_begin(me.context, &me.error));
    if (is(word, "fill")) return fill(atoi(argument));
    if (is(word, "finalize")) return finalize();
    if (is(word, "publish")) return publish();
    if (is(word, "finalize-abort")) return finalize_and_abort(atol(argument));
    if (is(word, "steps")) return steps(atol(argument));
    if (is(word, "train")) return train(atol(argument));
    if (is(word, "sync")) return check(ddp_set_sync(me.context, atoi(argument), &me.error));
    if (is(word, "allreduce")) return allreduce(argument);
    if (is(word, "exchange")) return exchange(argument);
    if (is(word, "sum")) return sum(strtoul(argument, NULL, 10));
    if (is(word, "barrier")) return check(ddp_barrier(me.group, NULL, &me.error));
    if (is(word, "status")) return check(ddp_group_status(me.group, &me.error));
    if (is(word, "watch")) return watch(atol(argument));
    if (is(word, "cycles")) return cycles(atol(argument));
    if (is(word, "pause")) return pause_here(argument);
    if (is(word, "mark")) return mark(argument), 0;
    if (is(word, "sleep")) return nap(atol(argument)), 0;
    if (is(word, "ready")) return check(ddp_grad_ready(me.context, atoi(argument), &me.error));
    if (is(word, "drop")) return ddp_context_free(me.context), me.context = NULL, 0;
    if (is(word, "files")) return leave_files(atoi(argument));
    if (is(word, "memory")) return leave_memory(atol(argument));
    if (is(word, "free")) return free_all(), 0;
    if (is(word, "hook-fails")) return fail_in_hook(argument);
    if (is(word, "exit")) exit(atoi(argument));
    if (is(word, "exit-at-once")) _exit(atoi(argument));
    fprintf(stderr, "worker: no verb '%s'\n", word);
    exit(2);
}

static void set(const char* name, const char* value) {
    if (is(name, "rank"))
        me.options.rank = atoi(value);
    else if (is(name, "world"))
        me.options.world_size = atoi(value);
    else if (is(name, "init"))
        me.options.init_method = value;
    else if (is(name, "timeout"))
        me.options.timeout_ms = atol(value);
    else if (is(name, "backend"))
        me.options.backend = value;
    else if (is(name, "options"))
        me.options.backend_options = value;
    else if (is(name, "also"))
        me.also = value;
    else if (is(name, "secret"))
        me.options.secret = value;
    else if (is(name, "groups"))
        me.options.round_robin = (uint32_t)atoi(value);
    else if (is(name, "flags"))
        me.options.flags = (uint32_t)atoi(value);
    else if (is(name, "size"))
        me.shape[0] = atol(value);
    else if (is(name, "columns"))
        me.shape[1] = atol(value), me.ndim = 2;
    else if (is(name, "dtype"))
        me.dtype = atoi(value);
    else if (is(name, "checked"))
        me.checked = atoi(value);
    else if (is(name, "views"))
        me.views = atoi(value);
    else if (is(name, "sharded"))
        me.sharded = atoi(value);
    else if (is(name, "prefix"))
        snprintf(me.prefix, sizeof me.prefix, "%s", value);
    else
        fprintf(stderr, "worker: no setting '%s'\n", name), exit(2);
}

int main(int argc, char** argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing survives the test program, however that ends */
    ddp_group_options_init(&me.options);
    me.options.backend = "gloo";
    me.shape[0] = 1000;
    me.shape[1] = 1;
    me.ndim = 1;
    me.dtype = DDP_F32;
    strcpy(me.prefix, "p");
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; ++i) {
        char* value = strchr(argv[i], '=');
        if (!value) return 2;
        *value = '\0';
        set(argv[i], value + 1);
    }
    int failed = 0;
    for (++i; i < argc && !failed; ++i) {
        char* argument = strchr(argv[i], '=');
        if (argument) *argument++ = '\0';
        me.verb = argv[i];
        failed = perform(argv[i], argument ? argument : "");
    }
    free_all();
    ddp_store_free(me.store);
    mark("freed");
    return 0;
}
