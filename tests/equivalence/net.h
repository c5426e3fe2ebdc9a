// A two-layer net with its gradients by plain loops: the single process that the ranks together
// must equal.
#pragma once

#include <array>
#include <random>

#include "equivalence/replica.h"

namespace equivalence {

constexpr std::size_t kInputs = 3, kHidden = 4, kOutputs = 2;

struct Sample {
    std::array<double, kInputs> x;
    std::array<double, kOutputs> target;
};
using Batch = std::vector<Sample>;
using Tensors = std::vector<std::vector<double>>;

// Always the same for the same seed, on every rank.
inline Batch make_batch(unsigned seed, std::size_t size) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    Batch batch(size);
    for (auto& sample : batch) {
        for (double& x : sample.x) x = uniform(random);
        for (double& t : sample.target) t = uniform(random);
    }
    return batch;
}

// The part of a rank, when every rank has the same number of samples.
inline Batch share_of(const Batch& batch, int rank, int world) {
    const auto each = static_cast<std::ptrdiff_t>(batch.size()) / world;
    return {batch.begin() + rank * each, batch.begin() + (rank + 1) * each};
}

// Order: first weight, first bias, second weight, second bias.
inline const std::vector<Shape>& net_shapes() {
    static const std::vector<Shape> shapes{
        {kHidden, kInputs}, {kHidden}, {kOutputs, kHidden}, {kOutputs}};
    return shapes;
}

inline Tensors initial_weights(unsigned seed = 1) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(-0.7, 0.7);
    Tensors weights;
    for (const Shape& shape : net_shapes()) {
        weights.emplace_back(count_of(shape));
        for (double& w : weights.back()) w = uniform(random);
    }
    return weights;
}

// Adds the gradients of the mean over the batch of |W2 tanh(W1 x + b1) + b2 - target|^2 / 2, as
// automatic differentiation would.
inline void add_gradients(const Tensors& w, const Batch& batch,
                          const std::vector<double*>& gradients) {
    const double share = 1.0 / static_cast<double>(batch.size());
    for (const Sample& sample : batch) {
        std::array<double, kHidden> hidden{}, back{};
        for (std::size_t h = 0; h < kHidden; ++h) {
            double sum = w[1][h];
            for (std::size_t i = 0; i < kInputs; ++i) sum += w[0][h * kInputs + i] * sample.x[i];
            hidden[h] = std::tanh(sum);
        }
        for (std::size_t o = 0; o < kOutputs; ++o) {
            double error = w[3][o] - sample.target[o];
            for (std::size_t h = 0; h < kHidden; ++h) error += w[2][o * kHidden + h] * hidden[h];
            error *= share;
            gradients[3][o] += error;
            for (std::size_t h = 0; h < kHidden; ++h) {
                gradients[2][o * kHidden + h] += error * hidden[h];
                back[h] += error * w[2][o * kHidden + h];
            }
        }
        for (std::size_t h = 0; h < kHidden; ++h) {
            const double slope = back[h] * (1 - hidden[h] * hidden[h]);
            gradients[1][h] += slope;
            for (std::size_t i = 0; i < kInputs; ++i)
                gradients[0][h * kInputs + i] += slope * sample.x[i];
        }
    }
}

inline void add_gradients(const Tensors& w, const Batch& batch, Tensors& gradients) {
    std::vector<double*> pointers;
    for (auto& gradient : gradients) pointers.push_back(gradient.data());
    add_gradients(w, batch, pointers);
}

inline Tensors zeros_like(const Tensors& tensors) {
    Tensors result;
    for (const auto& tensor : tensors) result.emplace_back(tensor.size());
    return result;
}

inline Tensors gradients_of(const Tensors& w, const Batch& batch) {
    Tensors gradients = zeros_like(w);
    add_gradients(w, batch, gradients);
    return gradients;
}

// Gradient descent on one tensor.
inline void descend(std::vector<double>& weights, const double* gradient, double rate = 0.1) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= rate * gradient[i];
}

// The single process: a step on the global batch.
inline void train_alone(Tensors& weights, const Batch& batch) {
    const Tensors gradients = gradients_of(weights, batch);
    for (std::size_t i = 0; i < weights.size(); ++i) descend(weights[i], gradients[i].data());
}

// The net on one rank.
class Trainee : public Replica<double> {
public:
    Trainee(ddp_group* group, bool view, ddp_context_options options = small_buckets(),
            const Tensors& weights = initial_weights())
        : Replica(group, view, options) {
        const char* names[] = {"first.weight", "first.bias", "second.weight", "second.bias"};
        for (std::size_t i = 0; i < weights.size(); ++i) add(names[i], net_shapes()[i], weights[i]);
    }

    void accumulate(const Batch& batch) { add_gradients(values, batch, grads()); }
    // Forward and backward on this rank's batch.
    void backward(const Batch& batch) {
        accumulate(batch);
        all_ready();
    }
    void optimize() {
        for (ddp_param i = 0; i < count(); ++i)
            descend(values[static_cast<std::size_t>(i)], grad(i));
    }
    void expect_gradients(const Tensors& expected, const std::string& what) {
        for (ddp_param i = 0; i < count(); ++i)
            expect_near(grad(i), expected[static_cast<std::size_t>(i)],
                        what + numbered(", gradient ", i));
    }
    void expect_values(const Tensors& expected, const std::string& what) const {
        for (std::size_t i = 0; i < values.size(); ++i)
            expect_near(values[i].data(), expected[i], what + numbered(", value ", i));
    }
};

inline std::string at_step(int step) {
    return numbered("step ", step);
}

}  // namespace equivalence
