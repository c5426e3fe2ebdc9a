/* gpt2.cu: trains GPT-2 on GPUs with llm.c, a trainer in CUDA. libddp averages its gradients, or
 * llm.c's own code for NCCL does, so that both can be compared.
 *
 *     examples/c/llm.c/fetch                          fetches llm.c, and adds a few lines to it
 *     tools/build release
 *     ddprun -n 2 build/release/examples/cuda/gpt2_cuda_bf16 MODEL TOKENS [OPTIONS]
 *
 *     --nccl FOLDER      llm.c's own code: ranks find each other by a file in this folder, which is
 *                        empty at first
 *     --backend NAME     of libddp
 *     --steps N, --batch N, --length N     20 steps of 4 sequences of 256 tokens on each rank
 *
 * Each of llm.c's tensors is registered on the GPU with its gradient where llm.c keeps it. Its
 * backward pass announces the gradients of a layer as soon as their kernels are enqueued, and at
 * its end its stream waits for the means. share(), and the four functions before it that llm.c
 * calls, are all of it.
 *
 * MODEL is a checkpoint of llm.c's, such as gpt2_124M_bf16.bin, or a name such as d12. TOKENS is a
 * file that llm.c reads, such as tiny_shakespeare_train.bin. gpt2_cuda_f32 computes in f32.
 */
#define DDP_EXPERIMENTAL 1 /* device.h, in_place.h */

#include <assert.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "check.h"

/* The lines that are added to llm.c call these. */
template <class T>
static bool gradients_ready(T* const* gradients, int count, cudaStream_t stream);
static void gradients_end(cudaStream_t stream);
static bool averages_gradients();

#if CUDART_VERSION >= 13000
/* llm.c has the form of earlier versions of CUDA. */
static cudaError_t cudaMemAdvise(const void* memory, size_t bytes, cudaMemoryAdvise advice, int) {
    cudaMemLocation host = {};
    host.type = cudaMemLocationTypeHost;
    return cudaMemAdvise(memory, bytes, advice, host);
}
#endif

/* llm.c's code for NCCL, which is loaded when it is used. */
#define MULTI_GPU 1
#include <nccl.h>

template <class Function>
static Function of_nccl(const char* name) {
    static void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    void* const found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "gpt2_cuda: %s\n", dlerror());
        exit(1);
    }
    return reinterpret_cast<Function>(found);
}
#define NCCL(name) of_nccl<decltype(&name)>(#name)
#define ncclGetErrorString NCCL(ncclGetErrorString)
#define ncclGetUniqueId NCCL(ncclGetUniqueId)
#define ncclCommInitRank NCCL(ncclCommInitRank)
#define ncclCommDestroy NCCL(ncclCommDestroy)
#define ncclGroupStart NCCL(ncclGroupStart)
#define ncclGroupEnd NCCL(ncclGroupEnd)
#define ncclAllReduce NCCL(ncclAllReduce)
#define ncclReduceScatter NCCL(ncclReduceScatter)
#define ncclAllGather NCCL(ncclAllGather)

/* llm.c without its main. */
#define TESTING
#include "train_gpt2.cu"

enum { FIRST_OF_LAYERS = 2, END_OF_LAYERS = 14 };

struct settings {
    const char* model;
    const char* tokens;
    const char* nccl; /* NULL: libddp */
    const char* backend;
    int steps, batch, length;
};

static GPT2 model;
static ddp_context* context; /* NULL: llm.c's own code */
/* The parameter of each of llm.c's tensors. For a tensor with all layers: the parameter of layer 0.
 */
static ddp_param first_params[NUM_PARAMETER_TENSORS];

static bool averages_gradients() {
    return context != NULL;
}

static int layers_of(int tensor) {
    return tensor >= FIRST_OF_LAYERS && tensor < END_OF_LAYERS ? model.config.num_layers : 1;
}

/* The parameter of the gradient that begins here. */
static ddp_param find(const floatX* gradient) {
    const floatX* begin = static_cast<const floatX*>(model.grads_memory);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; begin += model.param_elements[i++]) {
        const size_t each = model.param_elements[i] / layers_of(i);
        if (gradient >= begin && gradient < begin + model.param_elements[i])
            return first_params[i] + static_cast<ddp_param>((gradient - begin) / each);
    }
    fprintf(stderr, "gpt2_cuda: a gradient is not among llm.c's\n");
    exit(1);
}

template <class T>
static bool gradients_ready(T* const* gradients, int count, cudaStream_t stream) {
    if (!averages_gradients()) return false;
    for (int i = 0; i < count; ++i)
        CHECK(ddp_grad_ready_on(context, find(gradients[i]), stream, &error));
    return true;
}

static void gradients_end(cudaStream_t stream) {
    if (averages_gradients()) CHECK(ddp_finalize_on(context, stream, &error));
}

/* Registers llm.c's tensors, in llm.c's order. Every rank's values become those of rank 0. */
static void share(ddp_group* group, int device) {
    static const char* const names[] = {"wte",      "wpe",      "ln1w", "ln1b", "qkvw", "qkvb",
                                        "attprojw", "attprojb", "ln2w", "ln2b", "fcw",  "fcb",
                                        "fcprojw",  "fcprojb",  "lnfw", "lnfb"};
    CHECK(ddp_context_create(group, NULL, &context, &error));
    CHECK(ddp_set_stream(context, DDP_DEVICE_CUDA, device, main_stream, &error));
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; ++i) {
        const int64_t layers = layers_of(i);
        const int64_t shape[] = {layers, static_cast<int64_t>(model.param_elements[i]) / layers};
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = names[i];
        desc.shape = shape;
        desc.ndim = 2;
        desc.dtype = PRECISION_MODE == PRECISION_FP32 ? DDP_F32 : DDP_BF16;
        desc.device.kind = DDP_DEVICE_CUDA;
        desc.device.index = device;
        desc.data = static_cast<floatX*>(model.params_memory) + offset;
        desc.grad = static_cast<floatX*>(model.grads_memory) + offset;
        desc.flags = DDP_PARAM_IN_PLACE;
        CHECK((layers > 1 ? ddp_register_slices : ddp_register_param)(context, &desc,
                                                                      &first_params[i], &error));
        offset += model.param_elements[i];
    }
    CHECK(ddp_commit(context, &error));
}

static settings parse(int argc, char** argv) {
    settings s = {NULL, NULL, NULL, NULL, 20, 4, 256};
    bool right = argc >= 3 && argc % 2 == 1;
    for (int i = 3; right && i < argc; i += 2) {
        const char* value = argv[i + 1];
        if (strcmp(argv[i], "--nccl") == 0)
            s.nccl = value;
        else if (strcmp(argv[i], "--backend") == 0)
            s.backend = value;
        else if (strcmp(argv[i], "--steps") == 0)
            right = (s.steps = atoi(value)) > 0;
        else if (strcmp(argv[i], "--batch") == 0)
            right = (s.batch = atoi(value)) > 0;
        else if (strcmp(argv[i], "--length") == 0)
            right = (s.length = atoi(value)) > 0;
        else
            right = false;
    }
    if (!right) {
        fprintf(stderr,
                "usage: gpt2_cuda MODEL TOKENS [--nccl FOLDER] [--backend NAME] [--steps N] "
                "[--batch N] [--length N]\n");
        exit(2);
    }
    s.model = argv[1];
    s.tokens = argv[2];
    return s;
}

/* Ranks of a host take its GPUs in turn. */
static void choose_device(const settings& s, int rank, int world) {
    int gpus = 0;
    cudaCheck(cudaGetDeviceCount(&gpus));
    if (s.nccl) {
        std::vector<char> folder(s.nccl, s.nccl + strlen(s.nccl) + 1);
        char by_file[] = "fs", none[] = "";
        multi_gpu_config = multi_gpu_config_init(world, rank, gpus, none, folder.data(), by_file);
    } else {
        multi_gpu_config = MultiGpuConfig();
        multi_gpu_config.process_rank = rank;
        multi_gpu_config.num_processes = world;
        multi_gpu_config.local_device_idx = rank % gpus;
        cudaCheck(cudaSetDevice(rank % gpus));
    }
}

/* Returns the time of the step in ms. */
static float train_step(DataLoader* loader, const settings& s, ddp_group* group, int step) {
    cudaEvent_t start, end;
    cudaCheck(cudaEventCreate(&start));
    cudaCheck(cudaEventCreate(&end));
    cudaCheck(cudaEventRecord(start, main_stream));
    if (averages_gradients()) CHECK(ddp_step_begin(context, &error));
    dataloader_next_batch(loader);
    gpt2_forward(&model, loader->inputs, s.batch, s.length);
    gpt2_backward_and_reduce(&model, loader->inputs, loader->targets, 1, 0);
    double loss = model.mean_loss;
    if (averages_gradients()) /* llm.c's own code has averaged it */
        CHECK(ddp_allreduce(group, NULL, &loss, 1, DDP_F64, DDP_AVG, NULL, &error));
    const float norm = gpt2_calculate_grad_norm(&model, &multi_gpu_config);
    gpt2_update(&model, 3e-4f, 0.9f, 0.95f, 1e-8f, 0, norm > 1 ? 1 / norm : 1, step + 1,
                &multi_gpu_config);
    cudaCheck(cudaEventRecord(end, main_stream));
    cudaCheck(cudaEventSynchronize(end));
    float ms = 0;
    cudaCheck(cudaEventElapsedTime(&ms, start, end));
    cudaCheck(cudaEventDestroy(start));
    cudaCheck(cudaEventDestroy(end));
    if (multi_gpu_config.process_rank == 0)
        printf("step %d: loss %.6f, norm %.4f, %.3f ms\n", step, loss, norm, ms);
    return ms;
}

int main(int argc, char** argv) {
    const settings s = parse(argc, argv);
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.flags = DDP_GROUP_OR_ALONE;
    options.backend = s.nccl ? NULL : s.backend;
    ddp_group* group = NULL;
    CHECK(ddp_group_create(&options, &group, &error));
    const int rank = ddp_group_rank(group), world = ddp_group_world_size(group);
    choose_device(s, rank, world);
    common_start(false, false);
    gpt2_init_common(&model);
    if (ends_with_bin(s.model))
        gpt2_build_from_checkpoint(&model, s.model);
    else
        gpt_build_from_descriptor(&model, s.model);
    set_zero_configs(&multi_gpu_config, 0, model.num_parameters);
    DataLoader loader;
    dataloader_init(&loader, s.tokens, s.batch, s.length, rank, world, 0);
    gpt2_allocate_state(&model, s.batch, s.length);
    if (!s.nccl) share(group, multi_gpu_config.local_device_idx);

    std::vector<float> times;
    for (int step = 0; step < s.steps; ++step) times.push_back(train_step(&loader, s, group, step));
    CHECK(
        ddp_barrier(group, NULL, &error)); /* an error of the last step comes here at the latest */
    std::nth_element(times.begin(), times.begin() + s.steps / 2, times.end());
    if (rank == 0)
        printf("gradients by %s: median %.3f ms\n", s.nccl ? "llm.c" : "libddp",
               times[s.steps / 2]);

    ddp_context_free(context);
    dataloader_free(&loader);
    gpt2_free(&model);
    common_free(model);
    if (s.nccl) multi_gpu_config_free(&multi_gpu_config);
    ddp_group_free(group);
    return 0;
}
