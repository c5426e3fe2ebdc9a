#include "gpu_mlp.h"

namespace {

const int widths[MLP_LAYERS + 1] = {MLP_INPUTS, 256, 128, MLP_CLASSES};
constexpr float KNEE = 0.5f; /* as in mlp.c, so that both can be compared */
constexpr int THREADS = 256;

unsigned blocks_for(size_t threads) {
    return static_cast<unsigned>((threads + THREADS - 1) / THREADS);
}

__device__ size_t thread_number() {
    return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ float rectify(float x) {
    const float bent = x < KNEE ? x : KNEE;
    return x > 0.0f ? bent * bent / (2.0f * KNEE) + (x - bent) : 0.0f;
}

__device__ float rectify_slope(float y) {
    return y < 0.5f * KNEE ? sqrtf(y * (2.0f / KNEE)) : 1.0f;
}

__global__ void gather(float* inputs, const float* images, const int* order, int rows) {
    const size_t i = thread_number();
    if (i >= static_cast<size_t>(rows) * MLP_INPUTS) return;
    inputs[i] = images[static_cast<size_t>(order[i / MLP_INPUTS]) * MLP_INPUTS + i % MLP_INPUTS];
}

/* One thread for each unit of each row. */
__global__ void layer_forward(float* output, const float* input, const float* weight,
                              const float* bias, int rows, int in, int out, bool bend) {
    const size_t i = thread_number();
    if (i >= static_cast<size_t>(rows) * out) return;
    const size_t row = i / out, unit = i % out;
    float sum = bias[unit];
    for (int k = 0; k < in; ++k)
        sum += input[row * in + k] * weight[static_cast<size_t>(k) * out + unit];
    output[i] = bend ? rectify(sum) : sum;
}

/* One thread for each row: probabilities, what they say about the true class, and the derivative of
 * the mean loss. */
__global__ void softmax(float* output, float* delta, double* score, const unsigned char* labels,
                        const int* order, int rows) {
    const size_t row = thread_number();
    if (row >= rows) return;
    float* values = output + row * MLP_CLASSES;
    const int label = labels[order[row]];
    int best = 0;
    for (int c = 1; c < MLP_CLASSES; ++c) best = values[c] > values[best] ? c : best;
    const float top = values[best], logit = values[label] - top;
    float sum = 0.0f;
    for (int c = 0; c < MLP_CLASSES; ++c) sum += values[c] = expf(values[c] - top);
    for (int c = 0; c < MLP_CLASSES; ++c) {
        values[c] /= sum;
        delta[row * MLP_CLASSES + c] =
            (values[c] - (c == label ? 1.0f : 0.0f)) / static_cast<float>(rows);
    }
    atomicAdd(&score[0], static_cast<double>(logf(sum) - logit));
    atomicAdd(&score[1], best == label ? 1.0 : 0.0);
}

/* One thread for each weight. */
__global__ void weight_gradient(float* gradient, const float* input, const float* delta, int rows,
                                int in, int out) {
    const size_t i = thread_number();
    if (i >= static_cast<size_t>(in) * out) return;
    const size_t k = i / out, unit = i % out;
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row)
        sum +=
            input[static_cast<size_t>(row) * in + k] * delta[static_cast<size_t>(row) * out + unit];
    gradient[i] = sum;
}

__global__ void bias_gradient(float* gradient, const float* delta, int rows, int out) {
    const size_t unit = thread_number();
    if (unit >= out) return;
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) sum += delta[static_cast<size_t>(row) * out + unit];
    gradient[unit] = sum;
}

/* One thread for each unit of the layer before, in each row. */
__global__ void previous_delta(float* previous, const float* delta, const float* weight,
                               const float* output, int rows, int in, int out) {
    const size_t i = thread_number();
    if (i >= static_cast<size_t>(rows) * in) return;
    const size_t row = i / in, k = i % in;
    float sum = 0.0f;
    for (int unit = 0; unit < out; ++unit) sum += delta[row * out + unit] * weight[k * out + unit];
    previous[i] = output[i] > 0.0f ? rectify_slope(output[i]) * sum : 0.0f;
}

__global__ void update(float* value, float* velocity, const float* gradient, size_t count, float lr,
                       float momentum) {
    const size_t i = thread_number();
    if (i >= count) return;
    velocity[i] = momentum * velocity[i] + gradient[i];
    value[i] -= lr * velocity[i];
}

float* take(size_t count) {
    float* memory = nullptr;
    CUDA(cudaMalloc(&memory, count * sizeof(float)));
    CUDA(cudaMemset(memory, 0, count * sizeof(float)));
    return memory;
}

const float* layer_input(const gpu_mlp* gpu, int layer) {
    return layer == 0 ? gpu->inputs : gpu->outputs[layer - 1];
}

}  // namespace

gpu_digits gpu_digits_upload(const float* images, const unsigned char* labels, int count) {
    gpu_digits set = {count, nullptr, nullptr, nullptr};
    const size_t n = static_cast<size_t>(count);
    CUDA(cudaMalloc(&set.images, n * MLP_INPUTS * sizeof(float)));
    CUDA(cudaMalloc(&set.labels, n));
    CUDA(cudaMalloc(&set.order, n * sizeof(int)));
    CUDA(cudaMemcpy(set.images, images, n * MLP_INPUTS * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(set.labels, labels, n, cudaMemcpyHostToDevice));
    /* bytes may be on their way, for which the net does not wait */
    CUDA(cudaStreamSynchronize(nullptr));
    return set;
}

void gpu_digits_order(gpu_digits* set, const int* order, cudaStream_t stream) {
    CUDA(cudaMemcpyAsync(set->order, order, static_cast<size_t>(set->count) * sizeof(int),
                         cudaMemcpyHostToDevice, stream));
    CUDA(cudaStreamSynchronize(stream)); /* `order` is the caller's again */
}

void gpu_digits_free(gpu_digits* set) {
    cudaFree(set->images);
    cudaFree(set->labels);
    cudaFree(set->order);
}

gpu_mlp gpu_mlp_create(const mlp* net, int max_batch, bool own_gradients) {
    gpu_mlp gpu = {};
    gpu.max_batch = max_batch;
    const size_t rows = static_cast<size_t>(max_batch);
    for (int i = 0; i < MLP_TENSORS; ++i) {
        const size_t count = net->tensors[i].count;
        gpu.tensors[i] = {count, take(count), own_gradients ? take(count) : nullptr, take(count)};
        CUDA(cudaMemcpy(gpu.tensors[i].value, net->tensors[i].value, count * sizeof(float),
                        cudaMemcpyHostToDevice));
    }
    gpu.inputs = take(rows * MLP_INPUTS);
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        gpu.outputs[layer] = take(rows * static_cast<size_t>(widths[layer + 1]));
        gpu.deltas[layer] = take(rows * static_cast<size_t>(widths[layer + 1]));
    }
    CUDA(cudaMalloc(&gpu.score, 2 * sizeof(double)));
    CUDA(cudaMemset(gpu.score, 0, 2 * sizeof(double)));
    CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
    /* the new stream does not wait for the zeros above by itself */
    CUDA(cudaStreamSynchronize(nullptr));
    return gpu;
}

/* Gradients that are not its own belong to somebody else. */
void gpu_mlp_free(gpu_mlp* gpu) {
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        cudaFree(gpu->outputs[layer]);
        cudaFree(gpu->deltas[layer]);
    }
    for (gpu_tensor& tensor : gpu->tensors) {
        cudaFree(tensor.value);
        cudaFree(tensor.velocity);
    }
    cudaFree(gpu->inputs);
    cudaFree(gpu->score);
    cudaStreamDestroy(gpu->stream);
}

void gpu_mlp_download(const gpu_mlp* gpu, mlp* net) {
    for (int i = 0; i < MLP_TENSORS; ++i)
        CUDA(cudaMemcpyAsync(net->tensors[i].value, gpu->tensors[i].value,
                             gpu->tensors[i].count * sizeof(float), cudaMemcpyDeviceToHost,
                             gpu->stream));
    CUDA(cudaStreamSynchronize(gpu->stream));
}

void gpu_mlp_forward(gpu_mlp* gpu, const gpu_digits* set, int first, int count) {
    const size_t rows = static_cast<size_t>(count);
    const int* order = set->order + first;
    gather<<<blocks_for(rows * MLP_INPUTS), THREADS, 0, gpu->stream>>>(gpu->inputs, set->images,
                                                                       order, count);
    for (int layer = 0; layer < MLP_LAYERS; ++layer) {
        const int in = widths[layer], out = widths[layer + 1];
        layer_forward<<<blocks_for(rows * static_cast<size_t>(out)), THREADS, 0, gpu->stream>>>(
            gpu->outputs[layer], layer_input(gpu, layer), gpu->tensors[2 * layer].value,
            gpu->tensors[2 * layer + 1].value, count, in, out, layer < MLP_LAYERS - 1);
    }
    softmax<<<blocks_for(rows), THREADS, 0, gpu->stream>>>(gpu->outputs[MLP_LAYERS - 1],
                                                           gpu->deltas[MLP_LAYERS - 1], gpu->score,
                                                           set->labels, order, count);
    CUDA(cudaGetLastError());
}

void gpu_mlp_backward(gpu_mlp* gpu, int count, mlp_ready_fn ready, void* user_data) {
    const size_t rows = static_cast<size_t>(count);
    for (int layer = MLP_LAYERS - 1; layer >= 0; --layer) {
        const int in = widths[layer], out = widths[layer + 1];
        const float* input = layer_input(gpu, layer);
        gpu_tensor &weight = gpu->tensors[2 * layer], &bias = gpu->tensors[2 * layer + 1];
        bias_gradient<<<blocks_for(bias.count), THREADS, 0, gpu->stream>>>(
            bias.gradient, gpu->deltas[layer], count, out);
        if (ready) ready(user_data, 2 * layer + 1);
        weight_gradient<<<blocks_for(weight.count), THREADS, 0, gpu->stream>>>(
            weight.gradient, input, gpu->deltas[layer], count, in, out);
        if (ready) ready(user_data, 2 * layer);
        if (layer == 0) break;
        previous_delta<<<blocks_for(rows * static_cast<size_t>(in)), THREADS, 0, gpu->stream>>>(
            gpu->deltas[layer - 1], gpu->deltas[layer], weight.value, input, count, in, out);
    }
    CUDA(cudaGetLastError());
}

void gpu_mlp_update(gpu_mlp* gpu, float lr, float momentum) {
    for (gpu_tensor& t : gpu->tensors)
        update<<<blocks_for(t.count), THREADS, 0, gpu->stream>>>(t.value, t.velocity, t.gradient,
                                                                 t.count, lr, momentum);
    CUDA(cudaGetLastError());
}

mlp_score gpu_mlp_take_score(gpu_mlp* gpu) {
    double both[2];
    CUDA(cudaMemcpyAsync(both, gpu->score, sizeof both, cudaMemcpyDeviceToHost, gpu->stream));
    CUDA(cudaMemsetAsync(gpu->score, 0, sizeof both, gpu->stream));
    CUDA(cudaStreamSynchronize(gpu->stream));
    return {both[0], both[1]};
}
