/* A rank of an elastic job, for elastic_test.py and storm.py:
 *
 *     worker init=tcp://127.0.0.1:PORT backend=tcp steps=100 min=1 max=4 settle=2000 timeout=5000
 *     [OPTION=VALUE ...]
 *
 *     pause=US         how long a step computes
 *     leave-at=STEP    announces there that it leaves
 *     rejoin=S         if it is left behind, or cannot reach the store, it joins again, and tries to for so many seconds
 *     size=N           elements of each of the parameters, a multiple of 10
 *     unused=1         some samples use some of the parameters only
 *     rebuild=STEPS    small buckets, which are rebuilt so often, in an order that changes
 *     hook=NAME hook-options=TEXT
 *     vote-at=STEP vote=N
 *                      casts the Nth bit of the program there, and prints "votes BITS in STEP" for each applied step that has votes
 *     accumulate=N     the optimizer runs in each Nth step, and the steps before it are not synced. The program sets gradients to zero after
 *                      the optimizer only
 *     contexts=2       half of the parameters in each; the second begins when the optimizer of the first has run, as in a GAN
 *     calls=CALLS      collectives of the program's own after each ddp_finalize: norm (before the optimizer), loss (after it)
 *     die=PLACE die-at=N die-after=US
 *                      kills itself so long after it has come to this place for the Nth time: join,
 *                      meet, rebuild, step, finalize,
 *                      norm, optimizer, loss, commit, committed
 *     stop=PLACE stop-at=N
 *                      stops there (SIGSTOP) until it gets SIGCONT, and prints "goes on" then
 *     save=FILE        after each step rank 0 writes "FENCE STEP" to another file, comes to the place "write", asks whether it is still
 *                      a member, and gives the file this name
 *     sums=1           "applied" lines end with a checksum like that of "done" lines
 *     clock=1          "applied" lines end with "at MS": milliseconds of CLOCK_MONOTONIC
 *
 * Gradients are sums of integers over the samples of a step, so the result depends neither on the
 * ranks nor on their number. At the end it prints "done STEPS SUM", where SUM is a checksum of the
 * bits of the parameters and of the momenta. `worker reference steps=100` prints what one process
 * computes. Each new roster is a line "roster NUMBER step STEP rank RANK of WORLD after MS ms", and
 * each step that has been applied a line "applied STEP in NUMBER". At SIGTERM it leaves politely.
 */
#define _GNU_SOURCE
#define DDP_EXPERIMENTAL 1 /* vote.h */
#include <ddp/ddp.h>
#include <stdint.h>

#include "faults.h"

enum { PARAMS = 6, SAMPLES = 12 };

static struct {
    const char* init;
    const char* backend;
    const char* hook;
    const char* hook_options;
    const char* calls;
    const char* save;
    long steps, min, max, settle, timeout, pause, leave_at, rejoin, size, unused, rebuild, contexts,
        clock, sums, accumulate, vote_at, vote;
} want = {.init = "",
          .backend = "auto",
          .hook = "",
          .hook_options = "",
          .calls = "",
          .contexts = 1,
          .accumulate = 1,
          .save = "",
          .steps = 100,
          .min = 1,
          .settle = 2000,
          .timeout = 5000,
          .leave_at = -1,
          .vote_at = -1,
          .size = 1000};

static struct {
    ddp_elastic* elastic;
    ddp_context* contexts[2];
    ddp_error* error;
    float* values[PARAMS];
    float* gradients[PARAMS];
    float* momenta[PARAMS];
} me;

static int uses(int64_t step, int sample, int param) {
    return !want.unused || ((step + param) % 5 != 0 && (step * 7 + sample * 3 + param * 5) % 8 < 3);
}

/* The last step of a window is synced, and its optimizer runs. */
static int ends_window(int64_t step) {
    return (step + 1) % want.accumulate == 0;
}

/* Whether any of this rank's samples uses the parameter. */
static int compute(int64_t step, int param, int rank, int world) {
    int used = 0;
    if (want.accumulate == 1) memset(me.gradients[param], 0, (size_t)want.size * sizeof(float));
    for (int sample = rank; sample < SAMPLES; sample += world) {
        if (!uses(step, sample, param)) continue;
        used = 1;
        for (long i = 0; i < want.size; ++i)
            me.gradients[param][i] += (float)((step * 31 + sample * 17 + param * 7 + i) % 23 - 11);
    }
    return used;
}

/* The first parameter of this context. Its parameters end before first_of(context + 1). */
static int first_of(int context) {
    return context * PARAMS / (int)want.contexts;
}

static void apply(int context) {
    const int first = first_of(context), end = first_of(context + 1);
    for (int p = first; p < end; ++p) {
        if (p == (first + end) / 2) at("optimizer");
        for (long i = 0; i < want.size; ++i) {
            me.momenta[p][i] = 0.75F * me.momenta[p][i] + me.gradients[p][i];
            me.values[p][i] -= 0.01F * me.momenta[p][i];
        }
        if (want.accumulate > 1) memset(me.gradients[p], 0, (size_t)want.size * sizeof(float));
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

static void forget_error(void) {
    ddp_error_free(me.error);
    me.error = NULL;
}

static void end(void) {
    printf("error %d %s\n", (int)ddp_error_code(me.error), ddp_error_message(me.error));
    exit(1);
}

static void check(ddp_status status) {
    if (status != DDP_OK) end();
}

/* Waits for a store that cannot be reached, until this time. */
static void create(const ddp_elastic_options* options, double until) {
    for (;;) {
        const ddp_status status = ddp_elastic_create(options, &me.elastic, &me.error);
        if (status == DDP_OK) return;
        if ((status != DDP_ERROR_UNAVAILABLE && status != DDP_ERROR_TIMEOUT) || now_ms() > until)
            end();
        forget_error();
        nap_us(100000);
    }
}

static void make_context(int context) {
    ddp_context_options how;
    ddp_context_options_init(&how);
    how.reduction = DDP_REDUCTION_SUM;
    if (want.unused) how.flags |= DDP_CONTEXT_FIND_UNUSED;
    if (want.vote_at >= 0) how.flags |= DDP_CONTEXT_VOTES;
    if (want.rebuild) {
        how.bucket_cap_bytes = (uint64_t)want.size * sizeof(float) * 2;
        how.first_bucket_cap_bytes = how.bucket_cap_bytes / 2;
        how.rebuild_interval = want.rebuild;
    }
    ddp_context** made = &me.contexts[context];
    check(ddp_context_create(ddp_elastic_group(me.elastic), &how, made, &me.error));
    for (int p = first_of(context); p < first_of(context + 1); ++p) {
        char name[32];
        const int64_t shape[] = {want.size / 10, 10};
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        snprintf(name, sizeof name, "layer%d", p);
        desc.name = name;
        desc.shape = shape;
        desc.ndim = 2;
        desc.data = me.values[p];
        desc.grad = me.gradients[p];
        ddp_param param;
        check(ddp_register_param(*made, &desc, &param, &me.error));
    }
    check(ddp_commit(*made, &me.error));
    if (*want.hook) check(ddp_use_hook(*made, want.hook, want.hook_options, &me.error));
    check(ddp_elastic_add_context(me.elastic, *made, &me.error));
}

static void join(double until) {
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
    create(&options, until);

    for (int context = 0; context < want.contexts; ++context) make_context(context);
    for (int p = 0; p < PARAMS; ++p) {
        char name[32];
        snprintf(name, sizeof name, "momentum%d", p);
        check(ddp_elastic_add_state(me.elastic, name, me.momenta[p],
                                    (size_t)want.size * sizeof(float), &me.error));
    }
}

static void leave(void) {
    for (int context = 0; context < want.contexts; ++context) {
        ddp_context_free(me.contexts[context]);
        me.contexts[context] = NULL;
    }
    ddp_elastic_free(me.elastic);
    me.elastic = NULL;
}

static void save(const ddp_elastic_step* now) {
    char written[4096];
    snprintf(written, sizeof written, "%s.%ld", want.save, (long)getpid());
    FILE* file = fopen(written, "w");
    if (!file || fprintf(file, "%ld %ld\n", (long)now->fence, (long)now->step + 1) < 0 ||
        fclose(file) != 0)
        exit(3);
    at("write");
    if (ddp_elastic_confirm_member(me.elastic, &me.error) != DDP_OK) {
        printf("not saved: %s\n", ddp_error_message(me.error));
        forget_error();
        return;
    }
    if (rename(written, want.save) != 0) exit(3);
    printf("saved %ld\n", (long)now->step + 1);
}

/* A sum over the ranks, if the program makes this call. */
static ddp_status call(const char* name, int world) {
    if (!strstr(want.calls, name)) return DDP_OK;
    at(name);
    float ones = 1;
    const ddp_status status = ddp_allreduce(ddp_elastic_group(me.elastic), &ones, &ones, 1, DDP_F32,
                                            DDP_SUM, NULL, &me.error);
    if (status == DDP_OK && ones != (float)world) {
        printf("error %g ranks in a world of %d\n", (double)ones, world);
        exit(1);
    }
    return status;
}

/* Once, whatever comes of the step. */
static void cast_vote(const ddp_elastic_step* now) {
    static int has_voted;
    if (has_voted || want.vote_at < 0 || now->step < want.vote_at) return;
    has_voted = 1;
    check(ddp_step_vote(me.contexts[0], DDP_VOTE_USER << want.vote, &me.error));
}

static void print_votes(const ddp_elastic_step* now) {
    uint32_t any = 0;
    if (want.vote_at < 0) return;
    check(ddp_step_votes(me.contexts[0], &any, NULL, NULL, &me.error));
    if (any != 0) printf("votes %x in %ld\n", (unsigned)any / DDP_VOTE_USER, (long)now->step);
}

static ddp_status train_context(const ddp_elastic_step* now, int context) {
    const int first = first_of(context), count = first_of(context + 1) - first;
    ddp_status status = ddp_set_sync(me.contexts[context], ends_window(now->step), &me.error);
    at("rebuild");
    cast_vote(now);
    for (int i = 0; i < count && status == DDP_OK; ++i) {
        const int param = (int)((2 * count - 1 - i + (want.rebuild ? now->step / 2 : 0)) % count);
        const int used = compute(now->step, first + param, now->rank, now->world_size);
        nap_us(want.pause / PARAMS);
        if (i == count / 2) at("step");
        if (used || !want.unused) status = ddp_grad_ready(me.contexts[context], param, &me.error);
    }
    at("finalize");
    if (status == DDP_OK) status = ddp_finalize(me.contexts[context], &me.error);
    if (status == DDP_OK) status = call("norm", now->world_size);
    if (status != DDP_OK) return status;
    if (ends_window(now->step)) apply(context);
    return call("loss", now->world_size);
}

/* Whether the step has been done. If not, some of its optimizers may have run. */
static int step(const ddp_elastic_step* now) {
    for (int context = 0; context < want.contexts; ++context)
        if (train_context(now, context) != DDP_OK) {
            forget_error();
            return 0;
        }
    at("commit");
    if (ddp_elastic_commit(me.elastic, &me.error) != DDP_OK) {
        printf("not committed: %s\n", ddp_error_message(me.error));
        forget_error();
        return 0;
    }
    if (want.clock)
        printf("applied %ld in %ld at %.1f\n", (long)now->step, (long)now->roster, now_ms());
    else if (want.sums)
        printf("applied %ld in %ld %lx\n", (long)now->step, (long)now->roster, checksum());
    else
        printf("applied %ld in %ld\n", (long)now->step, (long)now->roster);
    at("committed");
    print_votes(now);
    if (*want.save && now->rank == 0) save(now);
    return 1;
}

/* The job has gone on without this rank, or it cannot reach the store, or its host has no network.
 */
static int may_rejoin(ddp_status status) {
    return want.rejoin > 0 && (status == DDP_ERROR_RANK_FAILED || status == DDP_ERROR_UNAVAILABLE ||
                               status == DDP_ERROR_TIMEOUT || status == DDP_ERROR_IO);
}

static void train(void) {
    int whole = 0;
    int announced = 0;
    for (;;) {
        ddp_elastic_step now = {.struct_size = sizeof now};
        const double start = now_ms();
        if (!whole) at("meet");
        const ddp_status status = ddp_elastic_begin(me.elastic, &now, &me.error);
        if (may_rejoin(status)) {
            printf("left behind: %s: %s\n", ddp_status_name(status), ddp_error_message(me.error));
            forget_error();
            leave();
            for (int p = 0; p < PARAMS; ++p) {
                memset(me.values[p], 0, (size_t)want.size * sizeof(float));
                memset(me.momenta[p], 0, (size_t)want.size * sizeof(float));
            }
            join(now_ms() + (double)want.rejoin * 1e3);
            whole = 0;
            continue;
        }
        check(status);
        if (now.changed)
            printf("roster %ld step %ld rank %d of %d after %.1f ms\n", (long)now.roster,
                   (long)now.step, (int)now.rank, (int)now.world_size, now_ms() - start);
        if (now.leaving) {
            /* freeing it leaves, too */
            if (ddp_elastic_leave(me.elastic, &me.error) != DDP_OK) forget_error();
            printf("left %ld\n", (long)now.step);
            return;
        }
        if (now.step >= want.steps) break;
        const int told = told_to_leave && !announced;
        announced |= told;
        if ((told || now.step == want.leave_at) &&
            ddp_elastic_announce_leave(me.elastic, &me.error) != DDP_OK)
            forget_error(); /* the next ddp_elastic_begin says what is wrong */
        whole = step(&now);
    }
    printf("done %ld %lx\n", want.steps, checksum());
}

static int take(const char* argument) {
    const option options[] = {{"steps=", &want.steps, NULL},
                              {"min=", &want.min, NULL},
                              {"max=", &want.max, NULL},
                              {"settle=", &want.settle, NULL},
                              {"timeout=", &want.timeout, NULL},
                              {"pause=", &want.pause, NULL},
                              {"leave-at=", &want.leave_at, NULL},
                              {"rejoin=", &want.rejoin, NULL},
                              {"size=", &want.size, NULL},
                              {"unused=", &want.unused, NULL},
                              {"rebuild=", &want.rebuild, NULL},
                              {"clock=", &want.clock, NULL},
                              {"contexts=", &want.contexts, NULL},
                              {"sums=", &want.sums, NULL},
                              {"accumulate=", &want.accumulate, NULL},
                              {"vote-at=", &want.vote_at, NULL},
                              {"vote=", &want.vote, NULL},
                              {"init=", NULL, &want.init},
                              {"backend=", NULL, &want.backend},
                              {"hook=", NULL, &want.hook},
                              {"hook-options=", NULL, &want.hook_options},
                              {"calls=", NULL, &want.calls},
                              {"save=", NULL, &want.save}};
    return take_fault(argument) || take_from(argument, options, sizeof options / sizeof *options);
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
            for (int context = 0; context < want.contexts && ends_window(s); ++context)
                apply(context);
        }
        printf("done %ld %lx\n", want.steps, checksum());
        return 0;
    }
    join(now_ms() + (double)want.rejoin * 1e3);
    train();
    leave();
    return 0;
}
