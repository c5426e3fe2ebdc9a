/* sharded.c: trains the network of mlp.h with libddp's AdamW, whose work and state are divided by
 * the number of ranks. Any number of ranks goes on where others have stopped.
 *
 *     ddprun -n 4 ./sharded FOLDER 1        one epoch, which is saved in FOLDER
 *     ddprun -n 3 ./sharded FOLDER 2        and the second one
 *
 * Built by hand: cc -O3 sharded.c mlp.c idx.c $(pkg-config --cflags --libs ddp) -lz -lm -o sharded
 */
#define DDP_EXPERIMENTAL 1 /* norm.h, optimizer.h, shard.h, shard_state.h */

#include <string.h>

#include "check.h"
#include "idx.h"
#include "mlp.h"
#include "random.h"

enum { BATCH = 48, SEED = 1 };

typedef struct trainer {
    mlp net;
    ddp_group* group;
    ddp_context* context;
    ddp_optimizer* optimizer;
    int32_t norm; /* of all gradients */
} trainer;

static void fail(const char* message) {
    fprintf(stderr, "sharded: %s\n", message);
    exit(2);
}

/* Gradients live in the buckets. Biases do not decay. */
static void share(trainer* t) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.flags = DDP_CONTEXT_SHARD;
    CHECK(ddp_context_create(t->group, &options, &t->context, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = t->net.tensors[i].name;
        desc.shape = t->net.tensors[i].shape;
        desc.ndim = t->net.tensors[i].ndim;
        desc.data = t->net.tensors[i].value;
        ddp_param param; /* the same as i */
        CHECK(ddp_register_param(t->context, &desc, &param, &error));
    }
    CHECK(ddp_track_grad_norm(t->context, 2, NULL, 0, &t->norm, &error));
    CHECK(ddp_commit(t->context, &error));
    CHECK(ddp_optimizer_create(t->context, "adamw", "weight_decay=0.1", &t->optimizer, &error));
    for (int i = 0; i < MLP_TENSORS; ++i) {
        void* view = NULL;
        CHECK(ddp_grad_view(t->context, i, &view, &error));
        t->net.tensors[i].gradient = view;
        if (t->net.tensors[i].ndim == 1)
            CHECK(ddp_optimizer_set(t->optimizer, i, "weight_decay", 0, &error));
    }
}

static void wait_for_values(trainer* t) {
    for (int i = 0; i < MLP_TENSORS; ++i) CHECK(ddp_wait_value(t->context, i, &error));
}

static void announce(void* context, int tensor) {
    CHECK(ddp_grad_ready(context, tensor, &error));
}

/* One pass over the digits. Returns this rank's part of the score. */
static mlp_score train_epoch(trainer* t, const digits* set, int* order, int epoch) {
    const int part = BATCH / ddp_group_world_size(t->group);
    mlp_score total = {0.0, 0.0};
    random_order(order, set->count, SEED, epoch);
    CHECK(ddp_optimizer_set(t->optimizer, -1, "lr", 1e-3 / (epoch + 1), &error));
    for (int first = 0; first + BATCH <= set->count; first += BATCH) {
        const mlp_batch batch = {set->images, set->labels,
                                 order + first + ddp_group_rank(t->group) * part, part};
        wait_for_values(t);
        const mlp_score score = mlp_forward(&t->net, &batch);
        mlp_backward(&t->net, &batch, announce, t->context);
        CHECK(ddp_finalize(t->context, &error));
        CHECK(ddp_clip_grad_norm(t->context, t->norm, 1.0, NULL, &error));
        CHECK(ddp_optimizer_step(t->optimizer, 1.0, &error));
        CHECK(ddp_publish(t->context, &error)); /* the new values travel */
        total.loss += score.loss;
        total.correct += score.correct;
    }
    wait_for_values(t);
    return total;
}

/* The arrays of this rank, for the next ddp_shard_save or ddp_shard_load. */
static void name_arrays(const trainer* t) {
    for (int i = 0; i < ddp_piece_count(t->context); ++i) {
        ddp_piece piece;
        piece.struct_size = sizeof piece;
        CHECK(ddp_piece_get(t->context, i, &piece, &error));
        CHECK(ddp_shard_array(t->context, "value", piece.param, piece.first, piece.count, DDP_F32,
                              piece.value, piece.replicated, &error));
    }
    for (int i = 0; i < ddp_optimizer_state_count(t->optimizer); ++i) {
        ddp_optimizer_state state;
        state.struct_size = sizeof state;
        CHECK(ddp_optimizer_state_get(t->optimizer, i, &state, &error));
        /* All owners of a parameter have the same count of updates. */
        const int replicated = strcmp(state.name, "step") == 0;
        CHECK(ddp_shard_array(t->context, state.name, state.param, state.first, state.count,
                              state.dtype, state.data, replicated, &error));
    }
}

/* How many epochs others have trained. */
static int go_on(const trainer* t, const char* folder) {
    char* note = NULL;
    ddp_error* none = NULL;
    name_arrays(t);
    const ddp_status status = ddp_shard_load(t->context, folder, &note, &none);
    if (status == DDP_OK) {
        const int epochs = atoi(note);
        ddp_free(note);
        return epochs;
    }
    if (status != DDP_ERROR_NOT_FOUND) fail(ddp_error_message(none));
    ddp_error_free(none); /* the first ones */
    return 0;
}

static void save(const trainer* t, const char* folder, int epochs) {
    char note[16];
    snprintf(note, sizeof note, "%d", epochs);
    name_arrays(t);
    CHECK(ddp_shard_save(t->context, folder, note, &error));
}

int main(int argc, char** argv) {
    if (argc != 3) fail("usage: sharded FOLDER EPOCHS");
    trainer t = {.group = join_group()};
    const int rank = ddp_group_rank(t.group), world = ddp_group_world_size(t.group);
    if (BATCH % world != 0) fail("the number of ranks must divide 48");
    digits train, test;
    if (digits_load(&train, MNIST_DATA_DIR, "train") != 0) return 2;
    if (digits_load(&test, MNIST_DATA_DIR, "t10k") != 0) return 2;
    int* order = malloc((size_t)train.count * sizeof *order);
    if (order == NULL || mlp_create(&t.net, BATCH / world, 0, SEED) != 0)
        fail("memory is exhausted");
    share(&t);

    const int images = train.count / BATCH * BATCH;
    for (int epoch = go_on(&t, argv[1]); epoch < atoi(argv[2]); ++epoch) {
        const mlp_score score = train_epoch(&t, &train, order, epoch);
        double loss = score.loss / images;
        CHECK(ddp_allreduce(t.group, NULL, &loss, 1, DDP_F64, DDP_SUM, NULL, &error));
        if (rank == 0) printf("epoch %d  loss %.6f\n", epoch + 1, loss);
        save(&t, argv[1], epoch + 1);
    }
    if (rank == 0)
        printf("test accuracy %.2f %%\n",
               mlp_accuracy(&t.net, test.images, test.labels, test.count));

    ddp_optimizer_free(t.optimizer);
    ddp_context_free(t.context);
    ddp_group_free(t.group);
    mlp_free(&t.net);
    digits_free(&train);
    digits_free(&test);
    free(order);
    return 0;
}
