/* gpt2.c: trains the GPT-2 of llm.c, a trainer in C for one process, with as many processes as a
 * launcher starts.
 *
 *     examples/c/llm.c/fetch               fetches llm.c, and adds one line to it
 *     tools/build release
 *     ddprun -n 2 build/release/examples/c/gpt2 CHECKPOINT TOKENS [--compare-local]
 *
 * llm.c keeps all gradients in one block, and each weight of its layers in one array for all
 * layers. libddp reduces the block where it lies: nothing is copied. A layer's gradients travel
 * while the backward pass is in the layers before it. share(), layer_ready() and the last lines of
 * train_step() are all of it.
 *
 * CHECKPOINT and TOKENS are the files that llm.c reads, such as gpt2_124M.bin and
 * tiny_shakespeare_train.bin.
 */
#define DDP_EXPERIMENTAL 1 /* in_place.h, stats.h */

#include <math.h>
#include <string.h>

#include "check.h"

/* The line that is added to llm.c calls it: the backward pass has left this layer. */
static void layer_ready(int layer);

/* llm.c without its main. */
#define TESTING
#include "train_gpt2.c"

enum { SEQUENCES = 4, TOKENS = 64, STEPS = 10, FIRST_OF_LAYERS = 2, END_OF_LAYERS = 14 };

/* Adam divides by the root of a mean of squares. Where that is small, the order of additions shows:
 * it was seen to make 0.00002. One rank that leaves out its part of a single batch makes 0.001. */
static const double bound = 1e-4;

static ddp_context* context;
/* The parameter of each of llm.c's tensors. For a tensor with all layers: the parameter of layer 0.
 */
static ddp_param params[NUM_PARAMETER_TENSORS];

/* Registers llm.c's tensors, in llm.c's order. Every rank's values become those of rank 0. */
static void share(ddp_group* group, GPT2* model) {
    static const char* names[] = {"wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                  "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                  "fcprojw",  "fcprojb",  "lnfw", "lnfb"};
    float** gradients = (float**)&model->grads; /* a struct of as many pointers */
    void* block = NULL;
    CHECK(ddp_mem_alloc(group, model->num_parameters * sizeof(float), &block, &error));
    model->grads_memory = block;
    CHECK(ddp_context_create(group, NULL, &context, &error));
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; ++i) {
        const int layered = i >= FIRST_OF_LAYERS && i < END_OF_LAYERS;
        const int64_t layers = layered ? model->config.num_layers : 1;
        const int64_t shape[] = {layers, (int64_t)model->param_sizes[i] / layers};
        gradients[i] = model->grads_memory + offset;
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = names[i];
        desc.shape = shape;
        desc.ndim = 2;
        desc.data = model->params_memory + offset;
        desc.grad = gradients[i];
        desc.flags = DDP_PARAM_IN_PLACE;
        CHECK((layered ? ddp_register_slices : ddp_register_param)(context, &desc, &params[i],
                                                                   &error));
        offset += model->param_sizes[i];
    }
    CHECK(ddp_commit(context, &error));
}

static void layer_ready(int layer) {
    if (context == NULL) return; /* the comparison with one process */
    for (int i = END_OF_LAYERS - 1; i >= FIRST_OF_LAYERS; --i)
        CHECK(ddp_grad_ready(context, params[i] + layer, &error));
}

static void forward(GPT2* model, DataLoader* loader) {
    dataloader_next_batch(loader);
    gpt2_forward(model, loader->inputs, loader->targets, loader->B, TOKENS);
    /* llm.c allocates these in its first backward pass, but only together with gradients of its
     * own. */
    if (model->grads_memory != NULL && model->grads_acts_memory == NULL)
        model->grads_acts_memory =
            malloc_and_point_activations(&model->grads_acts, model->act_sizes);
    gpt2_zero_grad(model);
}

static void update(GPT2* model, int step) {
    gpt2_update(model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
}

static void train_step(GPT2* model, DataLoader* loader, int step) {
    CHECK(ddp_step_begin(context, &error));
    forward(model, loader);
    gpt2_backward(model);
    for (int i = NUM_PARAMETER_TENSORS - 1; i >= 0; --i)
        if (i < FIRST_OF_LAYERS || i >= END_OF_LAYERS)
            CHECK(ddp_grad_ready(context, params[i], &error));
    CHECK(ddp_finalize(context, &error));
    update(model, step);
}

/* The same batches in one process. */
static double difference_to_local(const GPT2* shared, const char* checkpoint, const char* tokens,
                                  int world) {
    GPT2 local;
    gpt2_build_from_checkpoint(&local, checkpoint);
    DataLoader loader;
    dataloader_init(&loader, tokens, (size_t)SEQUENCES * world, TOKENS, 0, 1, 0);
    for (int step = 0; step < STEPS; ++step) {
        forward(&local, &loader);
        gpt2_backward(&local);
        update(&local, step);
    }
    double worst = 0;
    for (size_t i = 0; i < shared->num_parameters; ++i) {
        const double apart = fabs((double)shared->params_memory[i] - local.params_memory[i]);
        if (!(apart <= worst)) worst = isnan(apart) ? INFINITY : apart;
    }
    dataloader_free(&loader);
    gpt2_free(&local);
    return worst;
}

int main(int argc, char** argv) {
    const int compare = argc == 4 && strcmp(argv[3], "--compare-local") == 0;
    if (argc != 3 && !compare) {
        fprintf(stderr, "usage: gpt2 CHECKPOINT TOKENS [--compare-local]\n");
        return 2;
    }
    ddp_group* group = join_group();
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    DataLoader loader;
    dataloader_init(&loader, argv[2], SEQUENCES, TOKENS, rank, world, 0);
    share(group, &model);
    for (int step = 0; step < STEPS; ++step) {
        train_step(&model, &loader, step);
        if (rank == 0) printf("step %d: loss of rank 0 %f\n", step, model.mean_loss);
    }
    ddp_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(ddp_stats_get(context, &stats, &error));
    if (rank == 0) printf("bytes copied: %llu\n", (unsigned long long)stats.copied_bytes);
    ddp_context_free(context);
    context = NULL;
    CHECK(ddp_mem_free(model.grads_memory, &error));
    model.grads_memory = NULL; /* libddp's, not llm.c's to free */

    int status = 0;
    if (compare) {
        double worst = difference_to_local(&model, argv[1], argv[2], world);
        CHECK(ddp_allreduce(group, NULL, &worst, 1, DDP_F64, DDP_MAX, NULL, &error));
        status = worst <= bound ? 0 : 1;
        if (rank == 0)
            printf("against one process: difference %.3g, bound %g %s\n", worst, bound,
                   status ? "EXCEEDED" : "met");
    }
    dataloader_free(&loader);
    gpt2_free(&model);
    ddp_group_free(group);
    return status;
}
