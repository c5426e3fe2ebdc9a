# A multi-layer perceptron 784-256-128-10, with its gradients written by hand; the same as ../c/mlp.c, and from the same seed the
# same weights. It knows nothing of libddp.
#
# A layer's weight is outputs x inputs. In memory that is C's row-major array of inputs x outputs: columns here are rows there.
using LinearAlgebra

const WIDTHS = (784, 256, 128, 10)
const KNEE = 0.5f0  # where ReLU's kink is rounded off; ../c/mlp.c says why

"The generator in ../c/random.h."
mutable struct SplitMix64
    state::UInt64
end

function draw(generator::SplitMix64)
    z = (generator.state += 0x9e3779b97f4a7c15)
    z = (z ⊻ (z >> 30)) * 0xbf58476d1ce4e5b9
    z = (z ⊻ (z >> 27)) * 0x94d049bb133111eb
    return z ⊻ (z >> 31)
end
draw_uniform(generator::SplitMix64) = Float32(draw(generator) >> 40) / 16777216f0

"An order of the digits, the same on every rank (Fisher and Yates)."
function shuffled(count, seed, epoch)
    order, generator = collect(1:count), SplitMix64(seed * 1000003 + epoch)
    for i in count:-1:2
        j = Int(draw(generator) % i) + 1
        order[i], order[j] = order[j], order[i]
    end
    return order
end

function rectify(x::Float32)
    bent = min(x, KNEE)
    return x > 0 ? bent * bent / (2 * KNEE) + (x - bent) : 0f0
end

"The derivative of rectify, from its result."
rectify_slope(y::Float32) = y < KNEE / 2 ? sqrt(y * (2 / KNEE)) : 1f0

"values, gradients and velocities: weight and bias of each layer in forward order."
mutable struct MLP
    names::Vector{String}
    values::Vector{Array{Float32}}
    gradients::Vector{Array{Float32}}
    velocities::Vector{Array{Float32}}
    outputs::Vector{Matrix{Float32}}  # of each layer, after that of the images
    probabilities::Matrix{Float32}
end

function MLP(seed::Integer)
    generator, values = SplitMix64(seed), Array{Float32}[]
    for (inputs, outputs) in zip(WIDTHS, WIDTHS[2:end])
        limit = sqrt(6f0 / Float32(inputs))  # He et al. 2015
        push!(values, reshape(Float32[limit * (2 * draw_uniform(generator) - 1) for _ in 1:(inputs * outputs)], outputs, inputs))
        push!(values, zeros(Float32, outputs))
    end
    return MLP(["layer$i.$kind" for i in 0:2 for kind in ("weight", "bias")], values, map(zero, values), map(zero, values),
               Matrix{Float32}[], zeros(Float32, 0, 0))
end

"Returns the sum of the cross entropy, and how many digits were recognised."
function forward!(net::MLP, images, labels)
    net.outputs = [images]
    for layer in (1, 3)
        push!(net.outputs, rectify.(net.values[layer] * net.outputs[end] .+ net.values[layer + 1]))
    end
    logits = net.values[5] * net.outputs[end] .+ net.values[6]
    logits .-= maximum(logits; dims=1)
    exponentials = exp.(logits)
    sums = sum(exponentials; dims=1)
    net.probabilities = exponentials ./ sums
    loss = sum(Float64(log(sums[i]) - logits[label + 1, i]) for (i, label) in enumerate(labels))
    correct = count(argmax(view(logits, :, i)) == label + 1 for (i, label) in enumerate(labels))
    return [loss, correct]
end

"Gradients of the mean loss, the last layer's first. ready(tensor) is called as soon as one is complete."
function backward!(net::MLP, labels, ready=identity)
    delta = net.probabilities
    for (i, label) in enumerate(labels)
        delta[label + 1, i] -= 1
    end
    delta .*= 1f0 / length(labels)
    for layer in (3, 2, 1)
        sum!(net.gradients[2 * layer], delta)
        ready(2 * layer)
        mul!(net.gradients[2 * layer - 1], delta, transpose(net.outputs[layer]))
        ready(2 * layer - 1)
        layer > 1 && (delta = rectify_slope.(net.outputs[layer]) .* (transpose(net.values[2 * layer - 1]) * delta))
    end
end

"SGD: velocity = momentum * velocity + gradient; value -= rate * velocity."
function update!(net::MLP, rate::Float32, momentum::Float32)
    for (value, velocity, gradient) in zip(net.values, net.velocities, net.gradients)
        velocity .= momentum .* velocity .+ gradient
        value .-= rate .* velocity
    end
end
