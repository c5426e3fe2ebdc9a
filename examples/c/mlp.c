#include "mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

static const int widths[MLP_LAYERS + 1] = {MLP_INPUTS, 256, 128, MLP_CLASSES};

/* Rows of a weight gradient that are summed together: 32 rows of 256 floats stay in a first-level
 * cache. */
enum { ROW_BLOCK = 32 };

/* Where ReLU's kink is rounded off: f(x) = 0 below 0, x * x / (2 * KNEE) up to KNEE, and x - KNEE /
 * 2 above. The derivative of a plain ReLU jumps at 0, and among the ten million inputs of a unit in
 * one training some lie so close to 0 that the rounding of a sum decides which side they are on.
 * One such jump moves weights ten thousand times as far as rounding does, so that two correct
 * trainings could no longer be told from a wrong one. */
static const float KNEE = 0.5f;

static float* take(float** memory, size_t count) {
    float* start = *memory;
    *memory += count;
    return start;
}

static void describe_tensors(mlp* net) {
    static const char* const names[MLP_TENSORS] = {"layer0.weight", "layer0.bias",
                                                   "layer1.weight", "layer1.bias",
                                                   "layer2.weight", "layer2.bias"};
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        const int in = widths[layer], out = widths[layer + 1];
        const mlp_tensor weight = {
            names[2 * layer], {in, out}, 2, (size_t)(in * out), NULL, NULL, NULL};
        const mlp_tensor bias = {names[2 * layer + 1], {out, 0}, 1, (size_t)out, NULL, NULL, NULL};
        net->tensors[2 * layer] = weight;
        net->tensors[2 * layer + 1] = bias;
    }
}

static int allocate(mlp* net, int own_gradients) {
    size_t parameters = 0, units = 0;
    for (int i = 0; i < MLP_TENSORS; ++i) parameters += net->tensors[i].count;
    for (int layer = 0; layer < MLP_LAYERS; ++layer) units += (size_t)widths[layer + 1];
    const size_t rows = (size_t)net->max_batch;
    net->memory = calloc(parameters * (own_gradients ? 3 : 2) + 2 * units * rows, sizeof(float));
    if (net->memory == NULL) return -1;
    float* rest = net->memory;
    for (int i = 0; i < MLP_TENSORS; ++i) {
        mlp_tensor* tensor = &net->tensors[i];
        tensor->value = take(&rest, tensor->count);
        tensor->velocity = take(&rest, tensor->count);
        tensor->gradient = own_gradients ? take(&rest, tensor->count) : NULL;
    }
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        net->outputs[layer] = take(&rest, rows * (size_t)widths[layer + 1]);
        net->deltas[layer] = take(&rest, rows * (size_t)widths[layer + 1]);
    }
    return 0;
}

int mlp_create(mlp* net, int max_batch, int own_gradients, uint64_t seed) {
    memset(net, 0, sizeof *net);
    net->max_batch = max_batch;
    describe_tensors(net);
    if (allocate(net, own_gradients) != 0) return -1;
    /* Uniform with variance 2 / inputs (He et al. 2015), which keeps the scale of activations
     * through ReLU. Biases are 0. */
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        mlp_tensor* weight = &net->tensors[2 * layer];
        const float limit = sqrtf(6.0f / (float)widths[layer]);
        for (size_t i = 0; i < weight->count; ++i)
            weight->value[i] = limit * (2.0f * random_uniform(&seed) - 1.0f);
    }
    return 0;
}

void mlp_free(mlp* net) {
    free(net->memory);
    net->memory = NULL;
}

/* y += a * x. Nothing is reordered, so gcc vectorises this without -ffast-math. */
static void add_scaled(float* restrict y, float a, const float* restrict x, int count) {
    for (int i = 0; i < count; ++i) y[i] += a * x[i];
}

/* Eight running sums: the order that a compiler may not choose by itself, but vectorises when it is
 * written down. */
static float dot(const float* restrict a, const float* restrict b, int count) {
    float lanes[8] = {0};
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    }
    float sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    for (; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

/* The input of a layer for one row of the batch: the image, or the layer before. */
static const float* layer_input(const mlp* net, const mlp_batch* batch, int layer, int row) {
    if (layer == 0) return batch->images + (size_t)batch->indices[row] * MLP_INPUTS;
    return net->outputs[layer - 1] + (size_t)row * (size_t)widths[layer];
}

static float rectify(float x) {
    const float bent = x < KNEE ? x : KNEE;
    return x > 0.0f ? bent * bent / (2.0f * KNEE) + (x - bent) : 0.0f;
}

/* The derivative of rectify, from its result: so the input need not be kept. */
static float rectify_slope(float y) {
    return y < 0.5f * KNEE ? sqrtf(y * (2.0f / KNEE)) : 1.0f;
}

/* Zeros (paper, and units that are switched off) are skipped: most of an image is paper, and the
 * sum does not change.
 */
static void forward_row(const mlp* net, int layer, const float* input, float* output) {
    const float* weight = net->tensors[2 * layer].value;
    const int in = widths[layer], out = widths[layer + 1];
    memcpy(output, net->tensors[2 * layer + 1].value, (size_t)out * sizeof(float));
    for (int k = 0; k < in; ++k) {
        if (input[k] != 0.0f) add_scaled(output, input[k], weight + (size_t)k * (size_t)out, out);
    }
    if (layer == MLP_LAYERS - 1) return;
    for (int o = 0; o < out; ++o) output[o] = rectify(output[o]);
}

/* Turns the last layer's sums into probabilities, and adds what they say about the true class. */
static void softmax_row(float* row, int label, mlp_score* score) {
    int best = 0;
    for (int c = 1; c < MLP_CLASSES; ++c) best = row[c] > row[best] ? c : best;
    const float top = row[best]; /* subtracted so that no exponential overflows */
    const float logit = row[label] - top;
    float sum = 0.0f;
    for (int c = 0; c < MLP_CLASSES; ++c) sum += row[c] = expf(row[c] - top);
    for (int c = 0; c < MLP_CLASSES; ++c) row[c] /= sum;
    score->loss += (double)(logf(sum) - logit);
    score->correct += best == label;
}

mlp_score mlp_forward(mlp* net, const mlp_batch* batch) {
    mlp_score score = {0.0, 0.0};
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        const size_t out = (size_t)widths[layer + 1];
        for (int row = 0; row < batch->count; ++row) {
            float* output = net->outputs[layer] + (size_t)row * out;
            forward_row(net, layer, layer_input(net, batch, layer, row), output);
            if (layer == MLP_LAYERS - 1)
                softmax_row(output, batch->labels[batch->indices[row]], &score);
        }
    }
    return score;
}

static void loss_delta(mlp* net, const mlp_batch* batch) {
    const float scale = 1.0f / (float)batch->count;
    for (int row = 0; row < batch->count; ++row) {
        const float* probability = net->outputs[MLP_LAYERS - 1] + row * MLP_CLASSES;
        const int label = batch->labels[batch->indices[row]];
        float* delta = net->deltas[MLP_LAYERS - 1] + row * MLP_CLASSES;
        for (int c = 0; c < MLP_CLASSES; ++c)
            delta[c] = scale * (probability[c] - (c == label ? 1.0f : 0.0f));
    }
}

static void weight_gradient(const mlp* net, const mlp_batch* batch, int layer) {
    const int in = widths[layer], out = widths[layer + 1];
    float* gradient = net->tensors[2 * layer].gradient;
    memset(gradient, 0, net->tensors[2 * layer].count * sizeof(float));
    for (int block = 0; block < in; block += ROW_BLOCK) {
        const int end = block + ROW_BLOCK < in ? block + ROW_BLOCK : in;
        for (int row = 0; row < batch->count; ++row) {
            const float* input = layer_input(net, batch, layer, row);
            const float* delta = net->deltas[layer] + (size_t)row * (size_t)out;
            for (int k = block; k < end; ++k) {
                if (input[k] != 0.0f)
                    add_scaled(gradient + (size_t)k * (size_t)out, input[k], delta, out);
            }
        }
    }
}

static void bias_gradient(const mlp* net, const mlp_batch* batch, int layer) {
    const mlp_tensor* bias = &net->tensors[2 * layer + 1];
    memset(bias->gradient, 0, bias->count * sizeof(float));
    for (int row = 0; row < batch->count; ++row) {
        add_scaled(bias->gradient, 1.0f, net->deltas[layer] + (size_t)row * bias->count,
                   (int)bias->count);
    }
}

/* The derivative by the outputs of the layer before, through its activation: zero where a unit was
 * switched off. */
static void previous_delta(mlp* net, const mlp_batch* batch, int layer) {
    const int in = widths[layer], out = widths[layer + 1];
    const float* weight = net->tensors[2 * layer].value;
    for (int row = 0; row < batch->count; ++row) {
        const float* input = layer_input(net, batch, layer, row);
        const float* delta = net->deltas[layer] + (size_t)row * (size_t)out;
        float* previous = net->deltas[layer - 1] + (size_t)row * (size_t)in;
        for (int k = 0; k < in; ++k) {
            const int on = input[k] > 0.0f;
            previous[k] =
                on ? rectify_slope(input[k]) * dot(delta, weight + (size_t)k * (size_t)out, out)
                   : 0.0f;
        }
    }
}

void mlp_backward(mlp* net, const mlp_batch* batch, mlp_ready_fn ready, void* user_data) {
    loss_delta(net, batch);
    for (int layer = MLP_LAYERS - 1; layer >= 0; --layer) {
        bias_gradient(net, batch, layer);
        if (ready != NULL) ready(user_data, 2 * layer + 1);
        weight_gradient(net, batch, layer);
        if (ready != NULL) ready(user_data, 2 * layer);
        if (layer > 0) previous_delta(net, batch, layer);
    }
}

void mlp_update(mlp* net, float lr, float momentum) {
    for (int i = 0; i < MLP_TENSORS; ++i) {
        const mlp_tensor* tensor = &net->tensors[i];
        float* restrict value = tensor->value, * restrict velocity = tensor->velocity;
        const float* restrict gradient = tensor->gradient;
        for (size_t j = 0; j < tensor->count; ++j) {
            velocity[j] = momentum * velocity[j] + gradient[j];
            value[j] -= lr * velocity[j];
        }
    }
}

double mlp_accuracy(mlp* net, const float* images, const unsigned char* labels, int count) {
    int* order = malloc((size_t)count * sizeof *order);
    if (order == NULL) return -1.0;
    for (int i = 0; i < count; ++i) order[i] = i;
    double correct = 0.0;
    for (int first = 0; first < count; first += net->max_batch) {
        const int left = count - first;
        const mlp_batch batch = {images, labels, order + first,
                                 left < net->max_batch ? left : net->max_batch};
        correct += mlp_forward(net, &batch).correct;
    }
    free(order);
    return 100.0 * correct / count;
}
