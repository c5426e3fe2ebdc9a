/* mlp.h: a multi-layer perceptron 784-256-128-10 with its gradients written by hand. It knows
 * nothing of libddp: a caller that wants to hear of each gradient as soon as it is complete passes
 * a function to mlp_backward. */
#ifndef EXAMPLES_MLP_H
#define EXAMPLES_MLP_H

#include <stddef.h>
#include <stdint.h>

enum { MLP_LAYERS = 3, MLP_TENSORS = 2 * MLP_LAYERS, MLP_INPUTS = 784, MLP_CLASSES = 10 };

/* A weight matrix (inputs x outputs, row-major) or a bias vector. */
typedef struct mlp_tensor {
    const char* name;
    int64_t shape[2];
    int ndim;
    size_t count;
    float* value;
    float* gradient; /* may be pointed elsewhere between a backward pass and the next */
    float* velocity; /* of SGD with momentum */
} mlp_tensor;

typedef struct mlp {
    mlp_tensor tensors[MLP_TENSORS]; /* weight and bias of each layer in forward order */
    int max_batch;
    float* outputs[MLP_LAYERS]; /* max_batch rows each; of the last layer: probabilities */
    float* deltas[MLP_LAYERS];  /* derivative of the loss by each layer's input to its activation */
    float* memory;              /* all of the above */
} mlp;

/* Some rows of a data set, picked by index so that shuffling moves no pixels. */
typedef struct mlp_batch {
    const float* images;
    const unsigned char* labels;
    const int* indices;
    int count;
} mlp_batch;

/* The score of a batch: sum of the cross entropy, and how many digits were recognised. */
typedef struct mlp_score {
    double loss;
    double correct;
} mlp_score;

/* Called as soon as the gradient of tensors[tensor] is complete. */
typedef void (*mlp_ready_fn)(void* user_data, int tensor);

/* own_gradients 0: every tensor's `gradient` is NULL until the caller points it at memory. Returns
 * 0, or -1 without memory. */
int mlp_create(mlp* net, int max_batch, int own_gradients, uint64_t seed);
void mlp_free(mlp* net);

mlp_score mlp_forward(mlp* net, const mlp_batch* batch);

/* Gradients of the mean loss over the batch given to mlp_forward, the last layer's first. ready may
 * be NULL. */
void mlp_backward(mlp* net, const mlp_batch* batch, mlp_ready_fn ready, void* user_data);

/* velocity = momentum * velocity + gradient; value -= lr * velocity */
void mlp_update(mlp* net, float lr, float momentum);

/* How many of the digits are recognised, in percent. Negative without memory. */
double mlp_accuracy(mlp* net, const float* images, const unsigned char* labels, int count);

#endif /* EXAMPLES_MLP_H */
