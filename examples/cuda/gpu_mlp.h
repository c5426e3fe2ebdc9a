/* gpu_mlp.h: the perceptron of examples/c/mlp.h on a GPU, with kernels of its own. It knows nothing
 * of libddp: a caller that wants to hear of each gradient as soon as its kernel is enqueued passes
 * a function to gpu_mlp_backward. */
#ifndef EXAMPLES_GPU_MLP_H
#define EXAMPLES_GPU_MLP_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "mlp.h"
}

/* Prints CUDA's sentence and leaves. CUDA(cudaMalloc(...)); */
#define CUDA(call)                                                                         \
    do {                                                                                   \
        const cudaError_t code = (call);                                                   \
        if (code != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, cudaGetErrorName(code), \
                    cudaGetErrorString(code));                                             \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* A data set in the GPU's memory, and the order in which an epoch visits it. */
struct gpu_digits {
    int count;
    float* images;
    unsigned char* labels;
    int* order;
};

struct gpu_tensor {
    size_t count;
    float* value;
    float* gradient; /* may be pointed elsewhere between a backward pass and the next */
    float* velocity;
};

/* Everything is enqueued on `stream`. */
struct gpu_mlp {
    gpu_tensor tensors[MLP_TENSORS];
    int max_batch;
    float* inputs; /* max_batch images */
    float* outputs[MLP_LAYERS];
    float* deltas[MLP_LAYERS];
    double* score; /* loss and hits since gpu_mlp_take_score */
    cudaStream_t stream;
};

gpu_digits gpu_digits_upload(const float* images, const unsigned char* labels, int count);
void gpu_digits_order(gpu_digits* set, const int* order, cudaStream_t stream);
void gpu_digits_free(gpu_digits* set);

/* With the weights of `net`. own_gradients 0: every `gradient` is NULL until the caller points it
 * at memory. */
gpu_mlp gpu_mlp_create(const mlp* net, int max_batch, bool own_gradients);
void gpu_mlp_free(gpu_mlp* gpu);
/* Copies the weights into `net` and waits for that. */
void gpu_mlp_download(const gpu_mlp* gpu, mlp* net);

/* `count` digits of the set's order from `first` on. Their score is added to what is there. */
void gpu_mlp_forward(gpu_mlp* gpu, const gpu_digits* set, int first, int count);
/* Gradients of the mean loss over the `count` digits given to gpu_mlp_forward, the last layer's
 * first. */
void gpu_mlp_backward(gpu_mlp* gpu, int count, mlp_ready_fn ready, void* user_data);
void gpu_mlp_update(gpu_mlp* gpu, float lr, float momentum);
/* Waits for what is enqueued. */
mlp_score gpu_mlp_take_score(gpu_mlp* gpu);

#endif /* EXAMPLES_GPU_MLP_H */
