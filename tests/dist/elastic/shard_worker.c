/* A rank of an elastic job whose ranks own shards (DDP_CONTEXT_SHARD), for shards_test.py:
 *
 *     shard_worker init=tcp://127.0.0.1:PORT backend=tcp steps=100 min=1 max=4 settle=2000
 *     timeout=5000 [OPTION=VALUE ...]
 *
 *     pause=US         how long a step computes
 *     leave-at=STEP    announces there that it leaves
 *     rejoin=S         if it is left behind it joins again, and tries to for so many seconds
 *     size=N           elements of each of the parameters
 *     every=N          shards are kept after each Nth step
 *     save=FOLDER      a checkpoint after each `save-every` steps
 *     checkpoint=1     shards are kept in the checkpoint only
 *     update=1         pieces are updated in the step (ddp_set_update)
 *     update=2         and by libddp's own optimizer, block by block where a backend gives blocks;
 *                      each rank owns elements of every parameter
 *     accumulate=N     the optimizer runs in each Nth step, and the steps before it are not synced
 *     die=PLACE die-at=N die-after=US
 *                      kills itself so long after it has come to this place for the Nth time: join, meet, recall, recalled, step,
 *                      finalize, optimizer, publish, commit, keep, kept
 *     stop=PLACE stop-at=N
 *                      stops there (SIGSTOP) until it gets SIGCONT
 *
 * Gradients are sums of integers over the samples of a step, so values and state after a step depend on the number of the step alone. Each
 * rank computes them by itself, and compares all values and its own state with them, bit for bit: after each recall, after each step
 * and at the end. A difference is a line "wrong ...", and the end. Other lines: "roster NUMBER step STEP rank RANK of WORLD", "recalled
 * STEP in NUMBER", "lost: ...", "began at STEP", "applied STEP in NUMBER", "kept STEP in NUMBER", "done STEPS".
 */
#define _GNU_SOURCE
#include <ddp/ddp.h>
#include <stdint.h>

#include "faults.h"

enum { PARAMS = 6, SAMPLES = 12 };

static struct {
    const char *init, *backend, *save;
    long steps, min, max, settle, timeout, pause, leave_at, rejoin, size, every, save_every,
        checkpoint, update, accumulate;
} want = {.init = "",
          .backend = "auto",
          .save = "",
          .steps = 100,
          .min = 1,
          .settle = 2000,
          .timeout = 5000,
          .leave_at = -1,
          .size = 1000,
          .every = 1,
          .save_every = 10,
          .accumulate = 1};

/* The state of elements of a parameter. */
typedef struct state {
    float* momentum;
    double* squares;
    int64_t updates;
} state;

static struct {
    ddp_elastic* elastic;
    ddp_context* context;
    ddp_optimizer* optimizer;
    ddp_error* error;
    float* values[PARAMS];
    double seen;       /* a buffer: counts forward passes */
    int64_t committed; /* an added state: counts commits */
    int pieces;
    ddp_piece piece[PARAMS];
    state own[PARAMS]; /* of each piece */
} me;

/* The model after some steps, as one process computes it. */
static struct {
    int64_t step;
    float* values[PARAMS];
    float* sums[PARAMS]; /* gradients of the steps of a window */
    state all[PARAMS];
} reference;

static void forget_error(void) {
    ddp_error_free(me.error);
    me.error = NULL;
}

static void end(void) {
    printf("error %s %s\n", ddp_status_name(ddp_error_code(me.error)), ddp_error_message(me.error));
    exit(1);
}

static void check(ddp_status status) {
    if (status != DDP_OK) end();
}

static float gradient_of(int64_t step, int sample, int param, long i) {
    return (float)((step * 31 + sample * 17 + param * 7 + i) % 23 - 11);
}

/* Gradients of all samples, element by element. They repeat after 23 elements, and a rank that joins late has many steps to compute. */
static const float* sums_from(int64_t step, int param) {
    static float sums[23 * 2];
    static int made;
    for (long i = 0; i < 23 * 2 && !made; ++i)
        for (int sample = 0; sample < SAMPLES; ++sample) sums[i] += gradient_of(0, sample, 0, i);
    made = 1;
    return sums + (step * 31 + param * 7) % 23;
}

static int ends_window(int64_t step) {
    return (step + 1) % want.accumulate == 0;
}

static float first_value(int param, long i) {
    return (float)((param * 3 + i) % 17) * 0.125F;
}

/* The optimizer, element by element. That of libddp has no squares. */
static void update(float* value, const float* gradient, float* momentum, double* squares,
                   long count) {
    for (long i = 0; i < count; ++i) {
        momentum[i] = 0.75F * momentum[i] + gradient[i];
        if (want.update != 2) squares[i] += (double)gradient[i] * (double)gradient[i];
        value[i] -= 0.01F * momentum[i];
    }
}

static state make_state(long count) {
    const state made = {calloc((size_t)count, sizeof(float)), calloc((size_t)count, sizeof(double)),
                        0};
    if (!made.momentum || !made.squares) exit(4);
    return made;
}

static void free_state(state* old) {
    free(old->momentum);
    free(old->squares);
    *old = (state){0};
}

static void refer_to(int64_t step) {
    if (step < reference.step || !reference.values[0]) {
        for (int p = 0; p < PARAMS; ++p) {
            if (!reference.values[p]) {
                reference.values[p] = malloc((size_t)want.size * sizeof(float));
                reference.sums[p] = malloc((size_t)want.size * sizeof(float));
            }
            memset(reference.sums[p], 0, (size_t)want.size * sizeof(float));
            free_state(&reference.all[p]);
            reference.all[p] = make_state(want.size);
            for (long i = 0; i < want.size; ++i) reference.values[p][i] = first_value(p, i);
        }
        reference.step = 0;
    }
    for (; reference.step < step; ++reference.step)
        for (int p = 0; p < PARAMS; ++p) {
            const float* sums = sums_from(reference.step, p);
            for (long i = 0, k = 0; i < want.size; ++i, k = k == 22 ? 0 : k + 1)
                reference.sums[p][i] += sums[k];
            if (!ends_window(reference.step)) continue;
            update(reference.values[p], reference.sums[p], reference.all[p].momentum,
                   reference.all[p].squares, want.size);
            ++reference.all[p].updates;
            memset(reference.sums[p], 0, (size_t)want.size * sizeof(float));
        }
}

static void compare(const char* what, int param, const void* mine, const void* theirs, long first,
                    size_t bytes, int64_t step) {
    if (memcmp(mine, theirs, bytes) == 0) return;
    printf("wrong %s of layer%d from element %ld on, after step %ld\n", what, param, first,
           (long)step);
    exit(3);
}

/* All values, and the state of this rank's pieces, are those after this step. */
static void verify(int64_t step) {
    refer_to(step);
    for (int p = 0; p < PARAMS; ++p)
        compare("values", p, me.values[p], reference.values[p], 0,
                (size_t)want.size * sizeof(float), step);
    for (int i = 0; i < me.pieces; ++i) {
        const int p = me.piece[i].param;
        const long first = (long)me.piece[i].first, count = (long)me.piece[i].count;
        compare("momentum", p, me.own[i].momentum, reference.all[p].momentum + first, first,
                (size_t)count * sizeof(float), step);
        compare("squares", p, me.own[i].squares, reference.all[p].squares + first, first,
                (size_t)count * sizeof(double), step);
        compare("updates", p, &me.own[i].updates, &reference.all[p].updates, 0, sizeof(int64_t),
                step);
    }
    if (me.seen != (double)step || me.committed != step) {
        printf("wrong buffer %g or state %ld after step %ld\n", me.seen, (long)me.committed,
               (long)step);
        exit(3);
    }
}

static void apply(int index) {
    const ddp_piece* piece = &me.piece[index];
    update(piece->value, piece->gradient, me.own[index].momentum, me.own[index].squares,
           (long)piece->count);
    ++me.own[index].updates;
}

static ddp_status update_bucket(void* user_data, const ddp_piece* const* pieces, size_t count,
                                ddp_error** error) {
    (void)user_data;
    (void)error;
    at("optimizer");
    for (size_t k = 0; k < count; ++k)
        for (int i = 0; i < me.pieces; ++i)
            if (me.piece[i].param == pieces[k]->param) {
                me.piece[i].gradient = pieces[k]->gradient;
                apply(i);
            }
    return DDP_OK;
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
    for (;;) {
        const ddp_status status = ddp_elastic_create(&options, &me.elastic, &me.error);
        if (status == DDP_OK) break;
        if ((status != DDP_ERROR_UNAVAILABLE && status != DDP_ERROR_TIMEOUT) || now_ms() > until)
            end();
        forget_error();
        nap_us(100000);
    }
    ddp_context_options how;
    ddp_context_options_init(&how);
    how.reduction = DDP_REDUCTION_SUM;
    how.flags = DDP_CONTEXT_SHARD;
    how.bucket_cap_bytes = how.first_bucket_cap_bytes = (uint64_t)want.size * sizeof(float) * 2;
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
        ddp_param param;
        check(ddp_register_param(me.context, &desc, &param, &me.error));
        if (p % 3 != 0 && want.update != 2)
            check(ddp_set_owner(me.context, param,
                                p % 3 == 1 ? DDP_OWNER_WHOLE : DDP_OWNER_REPLICATED, 0, &me.error));
    }
    const int64_t one[] = {1};
    ddp_param_desc buffer;
    ddp_param_desc_init(&buffer);
    buffer.name = "seen";
    buffer.shape = one;
    buffer.ndim = 1;
    buffer.dtype = DDP_F64;
    buffer.data = &me.seen;
    check(ddp_register_buffer(me.context, &buffer, &me.error));
    check(ddp_commit(me.context, &me.error));
    if (want.update == 1) check(ddp_set_update(me.context, update_bucket, NULL, NULL, &me.error));
    check(ddp_elastic_add_context(me.elastic, me.context, &me.error));
    check(ddp_elastic_add_state(me.elastic, "committed", &me.committed, sizeof me.committed,
                                &me.error));
}

static void leave(void) {
    ddp_optimizer_free(me.optimizer);
    me.optimizer = NULL;
    ddp_context_free(me.context);
    me.context = NULL;
    ddp_elastic_free(me.elastic);
    me.elastic = NULL;
}

/* Messages of errors have no line ends of their own. Whether others go on. */
static int failed(const char* what) {
    printf("failed %s: %s\n", what, ddp_error_message(me.error));
    if (ddp_group_status(ddp_elastic_group(me.elastic), NULL) == DDP_OK) end();
    forget_error();
    return 0;
}

/* Its state is that of this rank's pieces, or becomes it. */
static void copy_state_of_optimizer(int to) {
    for (int k = 0; k < ddp_optimizer_state_count(me.optimizer); ++k) {
        ddp_optimizer_state its = {.struct_size = sizeof its};
        check(ddp_optimizer_state_get(me.optimizer, k, &its, &me.error));
        int i = 0;
        while (me.piece[i].param != its.param) ++i;
        const int steps = strcmp(its.name, "step") == 0;
        void* mine = steps ? (void*)&me.own[i].updates : (void*)me.own[i].momentum;
        const size_t bytes = (size_t)its.count * (steps ? sizeof(int64_t) : sizeof(float));
        memcpy(to ? its.data : mine, to ? mine : its.data, bytes);
    }
}

/* Whether no rank was lost meanwhile. */
static int make_optimizer(void) {
    ddp_optimizer_free(me.optimizer);
    me.optimizer = NULL;
    if (ddp_optimizer_create(me.context, "sgd", "lr=0.01,momentum=0.75", &me.optimizer,
                             &me.error) != DDP_OK)
        return failed("optimizer");
    copy_state_of_optimizer(1);
    check(ddp_optimizer_in_step(me.optimizer, 1, &me.error));
    return 1;
}

static void make_pieces(void) {
    for (int i = 0; i < me.pieces; ++i) free_state(&me.own[i]);
    me.pieces = ddp_piece_count(me.context);
    for (int i = 0; i < me.pieces; ++i) {
        me.piece[i].struct_size = sizeof(ddp_piece);
        check(ddp_piece_get(me.context, i, &me.piece[i], &me.error));
        me.own[i] = make_state((long)me.piece[i].count);
    }
}

static void name_arrays(int with_values) {
    for (int i = 0; i < me.pieces; ++i) {
        const ddp_piece* piece = &me.piece[i];
        check(ddp_shard_array(me.context, "momentum", piece->param, piece->first, piece->count,
                              DDP_F32, me.own[i].momentum, piece->replicated, &me.error));
        check(ddp_shard_array(me.context, "squares", piece->param, piece->first, piece->count,
                              DDP_F64, me.own[i].squares, piece->replicated, &me.error));
        check(ddp_shard_array(me.context, "updates", piece->param, 0, 1, DDP_I64,
                              &me.own[i].updates, 1, &me.error));
        if (with_values)
            check(ddp_shard_array(me.context, "value", piece->param, piece->first, piece->count,
                                  DDP_F32, piece->value, piece->replicated, &me.error));
    }
}

static ddp_keep where(void) {
    return want.checkpoint ? DDP_KEEP_IN_CHECKPOINT : DDP_KEEP_AT_NEIGHBOUR;
}

static int keep(int64_t step, long roster) {
    name_arrays(0);
    at("keep");
    if (ddp_elastic_keep_shards(me.elastic, me.context, step, where(), &me.error) != DDP_OK)
        return failed("keep");
    printf("kept %ld in %ld\n", (long)step, roster);
    at("kept");
    return 1;
}

/* The last checkpoint, or the beginning. Its step, or -1 if a rank was lost. */
static int64_t load(void) {
    int64_t step = 0;
    if (*want.save) {
        char* note = NULL;
        name_arrays(1);
        const ddp_status status = ddp_shard_load(me.context, want.save, &note, &me.error);
        if (status == DDP_OK) step = atol(note);
        ddp_free(note);
        if (status == DDP_OK) goto loaded;
        if (status != DDP_ERROR_NOT_FOUND) return failed("load"), -1;
        forget_error();
    }
    for (int p = 0; p < PARAMS; ++p)
        for (long i = 0; i < want.size; ++i) me.values[p][i] = first_value(p, i);
    for (int i = 0; i < me.pieces; ++i) {
        memset(me.own[i].momentum, 0, (size_t)me.piece[i].count * sizeof(float));
        memset(me.own[i].squares, 0, (size_t)me.piece[i].count * sizeof(double));
        me.own[i].updates = 0;
    }
    if (ddp_publish(me.context, &me.error) != DDP_OK) return failed("publish"), -1;
loaded:
    for (int p = 0; p < PARAMS; ++p)
        if (ddp_wait_value(me.context, p, &me.error) != DDP_OK) return failed("load"), -1;
    me.seen = (double)step;
    me.committed = step;
    printf("began at %ld\n", (long)step);
    return step;
}

/* The state of the job, after a change of the roster. 0: a rank was lost. */
static int take_state(ddp_elastic_step* now) {
    make_pieces();
    name_arrays(0);
    at("recall");
    int32_t found = 0;
    const ddp_status status = ddp_elastic_recall_shards(me.elastic, me.context, &found, &me.error);
    if (status == DDP_ERROR_INVALID_STATE &&
        ddp_group_status(ddp_elastic_group(me.elastic), NULL) == DDP_OK) {
        printf("lost: %s\n", ddp_error_message(me.error));
        forget_error();
    } else if (status != DDP_OK) {
        return failed("recall");
    }
    if (found) {
        printf("recalled %ld in %ld\n", (long)now->step, (long)now->roster);
    } else {
        now->step = load();
        if (now->step < 0 || !keep(now->step, (long)now->roster)) return 0;
    }
    if (want.update == 2 && !make_optimizer()) return 0;
    verify(now->step);
    at("recalled");
    return 1;
}

static int save(int64_t step) {
    char note[32];
    snprintf(note, sizeof note, "%ld", (long)step);
    name_arrays(1);
    if (ddp_shard_save(me.context, want.save, note, &me.error) != DDP_OK) return failed("save");
    return 1;
}

/* Whether the step has been done, and kept if it is to be. */
static int step(const ddp_elastic_step* now) {
    ddp_status status = ddp_set_sync(me.context, ends_window(now->step), &me.error);
    if (status == DDP_OK) status = ddp_step_begin(me.context, &me.error);
    for (int p = 0; p < PARAMS && status == DDP_OK; ++p)
        status = ddp_wait_value(me.context, p, &me.error);
    me.seen += 1;
    for (int p = PARAMS; p-- > 0 && status == DDP_OK;) {
        void* view = NULL;
        check(ddp_grad_view(me.context, p, &view, &me.error));
        float* gradient = view;
        /* accumulates; gradients in buckets are zero after ddp_publish */
        for (int sample = now->rank; sample < SAMPLES; sample += now->world_size)
            for (long i = 0; i < want.size; ++i)
                gradient[i] += gradient_of(now->step, sample, p, i);
        nap_us(want.pause / PARAMS);
        if (p == PARAMS / 2) at("step");
        status = ddp_grad_ready(me.context, p, &me.error);
    }
    at("finalize");
    if (status == DDP_OK) status = ddp_finalize(me.context, &me.error);
    if (status != DDP_OK) return failed("step");
    if (want.update == 2) {
        copy_state_of_optimizer(0);
    } else if (ends_window(now->step) && !want.update) {
        at("optimizer");
        for (int i = 0; i < me.pieces; ++i) apply(i);
        at("publish");
        if (ddp_publish(me.context, &me.error) != DDP_OK) return failed("publish");
    }
    ++me.committed;
    at("commit");
    if (ddp_elastic_commit(me.elastic, &me.error) != DDP_OK) {
        printf("not committed: %s\n", ddp_error_message(me.error));
        forget_error();
        return 0;
    }
    const int64_t done = now->step + 1;
    printf("applied %ld in %ld\n", (long)now->step, (long)now->roster);
    if (!ends_window(now->step)) return 1;
    const int saves = *want.save && done % want.save_every == 0;
    if (saves && !save(done)) return 0;
    if ((want.checkpoint ? saves : done % want.every == 0) && done < want.steps &&
        !keep(done, (long)now->roster))
        return 0;
    return 1;
}

/* The job has gone on without this rank, or it cannot reach the store. */
static int may_rejoin(ddp_status status) {
    return want.rejoin > 0 && (status == DDP_ERROR_RANK_FAILED || status == DDP_ERROR_UNAVAILABLE ||
                               status == DDP_ERROR_TIMEOUT || status == DDP_ERROR_IO);
}

static void train(void) {
    int whole = 0, announced = 0;
    int64_t known = 0;
    for (;;) {
        ddp_elastic_step now = {.struct_size = sizeof now};
        if (!whole) at("meet");
        const ddp_status status = ddp_elastic_begin(me.elastic, &now, &me.error);
        if (may_rejoin(status)) {
            printf("left behind: %s: %s\n", ddp_status_name(status), ddp_error_message(me.error));
            forget_error();
            leave();
            for (int p = 0; p < PARAMS; ++p)
                memset(me.values[p], 0, (size_t)want.size * sizeof(float));
            me.seen = 0;
            me.committed = 0;
            join(now_ms() + (double)want.rejoin * 1e3);
            whole = 0;
            continue;
        }
        check(status);
        if (now.changed)
            printf("roster %ld step %ld rank %d of %d\n", (long)now.roster, (long)now.step,
                   (int)now.rank, (int)now.world_size);
        if (now.leaving) {
            if (ddp_elastic_leave(me.elastic, &me.error) != DDP_OK) forget_error();
            printf("left %ld\n", (long)now.step);
            return;
        }
        whole = 0;
        if (now.changed && !take_state(&now)) continue;
        if (!now.changed && now.step != known) {
            printf("wrong step %ld, after %ld\n", (long)now.step, (long)known);
            exit(3);
        }
        if (now.step >= want.steps) break;
        const int told = told_to_leave && !announced;
        announced |= told;
        if ((told || now.step == want.leave_at) &&
            ddp_elastic_announce_leave(me.elastic, &me.error) != DDP_OK)
            forget_error(); /* the next ddp_elastic_begin says what is wrong */
        whole = step(&now);
        known = now.step + 1;
        if (!whole || !ends_window(now.step)) continue;
        /* values of others are on their way */
        ddp_status arrived = DDP_OK;
        for (int p = 0; p < PARAMS && arrived == DDP_OK; ++p)
            arrived = ddp_wait_value(me.context, p, &me.error);
        if (arrived == DDP_OK)
            verify(known);
        else
            failed("values");
    }
    verify(want.steps);
    printf("done %ld\n", want.steps);
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
                              {"every=", &want.every, NULL},
                              {"save-every=", &want.save_every, NULL},
                              {"checkpoint=", &want.checkpoint, NULL},
                              {"update=", &want.update, NULL},
                              {"accumulate=", &want.accumulate, NULL},
                              {"init=", NULL, &want.init},
                              {"backend=", NULL, &want.backend},
                              {"save=", NULL, &want.save}};
    return take_fault(argument) || take_from(argument, options, sizeof options / sizeof *options);
}

int main(int argc, char** argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; ++i)
        if (!take(argv[i])) return fprintf(stderr, "unknown: %s\n", argv[i]), 2;
    signal(SIGTERM, on_sigterm);
    for (int p = 0; p < PARAMS; ++p) me.values[p] = calloc((size_t)want.size, sizeof(float));
    join(now_ms() + (double)want.rejoin * 1e3);
    train();
    leave();
    return 0;
}
