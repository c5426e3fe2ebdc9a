package main

import (
	"fmt"
	"math"
)

// A multi-layer perceptron 784-256-128-10, with its gradients written by hand; the same as ../c/mlp.c, and from the same seed the same
// weights. It knows nothing of libddp.

var widths = []int{784, 256, 128, 10}

const (
	layers = 3
	knee   = 0.5 // where ReLU's kink is rounded off; ../c/mlp.c says why
)

// splitMix64 is the generator in ../c/random.h.
type splitMix64 uint64

func (s *splitMix64) draw() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// shuffled is an order of the digits, the same on every rank (Fisher and Yates).
func shuffled(count, seed, epoch int) []int {
	order, generator := make([]int, count), splitMix64(seed*1000003+epoch)
	for i := range order {
		order[i] = i
	}
	for i := count; i > 1; i-- {
		j := int(generator.draw() % uint64(i))
		order[i-1], order[j] = order[j], order[i-1]
	}
	return order
}

// net has weight and bias of each layer, wherever the slices are. A weight is inputs x outputs.
type net struct {
	values, gradients, velocities [][]float32
	outputs                       [][]float32 // of each layer, after that of the images
}

func describe(tensor int) (string, []int) {
	layer := tensor / 2
	if tensor%2 == 0 {
		return fmt.Sprintf("layer%d.weight", layer), []int{widths[layer], widths[layer+1]}
	}
	return fmt.Sprintf("layer%d.bias", layer), []int{widths[layer+1]}
}

// newNet draws the first values (He et al. 2015) into memory of `allocate`.
func newNet(seed int, allocate func(int) []float32) *net {
	generator, made := splitMix64(seed), &net{}
	for tensor := 0; tensor < 2*layers; tensor++ {
		_, shape := describe(tensor)
		count := shape[0]
		if tensor%2 == 0 {
			count *= shape[1]
		}
		value, limit := allocate(count), float32(math.Sqrt(6/float64(widths[tensor/2])))
		for i := range value {
			if tensor%2 == 0 {
				value[i] = limit * (2*float32(generator.draw()>>40)/16777216 - 1)
			}
		}
		made.values, made.gradients = append(made.values, value), append(made.gradients, allocate(count))
		made.velocities = append(made.velocities, make([]float32, count))
	}
	return made
}

func rectify(x float32) float32 {
	if x <= 0 {
		return 0
	}
	bent := x
	if bent > knee {
		bent = knee
	}
	return bent*bent/(2*knee) + (x - bent)
}

// rectifySlope is the derivative of rectify, from its result.
func rectifySlope(y float32) float32 {
	if y < knee/2 {
		return float32(math.Sqrt(float64(y * (2 / knee))))
	}
	return 1
}

// forward returns the sum of the cross entropy, and how many digits were recognised.
func (n *net) forward(images []float32, labels []int) (loss, correct float64) {
	n.outputs = [][]float32{images}
	for layer := 0; layer < layers; layer++ {
		deep, wide, inputs := widths[layer], widths[layer+1], n.outputs[layer]
		out := make([]float32, len(labels)*wide)
		for b := range labels {
			row := out[b*wide : (b+1)*wide]
			copy(row, n.values[2*layer+1])
			for i, input := range inputs[b*deep : (b+1)*deep] {
				if input == 0 { // paper: most of an image
					continue
				}
				for o, weight := range n.values[2*layer][i*wide : (i+1)*wide] {
					row[o] += input * weight
				}
			}
		}
		if layer < layers-1 {
			for i := range out {
				out[i] = rectify(out[i])
			}
		}
		n.outputs = append(n.outputs, out)
	}
	classes := widths[layers]
	for b, label := range labels {
		row := n.outputs[layers][b*classes : (b+1)*classes]
		best, sum := 0, float32(0)
		for i := range row {
			if row[i] > row[best] {
				best = i
			}
		}
		most, logit := row[best], row[label]-row[best]
		for i := range row {
			row[i] = float32(math.Exp(float64(row[i] - most)))
			sum += row[i]
		}
		for i := range row {
			row[i] /= sum
		}
		loss += math.Log(float64(sum)) - float64(logit)
		if best == label {
			correct++
		}
	}
	return loss, correct
}

// backward writes gradients of the mean loss, the last layer's first. It calls ready as soon as one is complete.
func (n *net) backward(labels []int, ready func(tensor int)) {
	delta, classes := n.outputs[layers], widths[layers]
	for b, label := range labels {
		delta[b*classes+label]--
	}
	for i := range delta {
		delta[i] *= 1 / float32(len(labels))
	}
	for layer := layers - 1; layer >= 0; layer-- {
		deep, wide, inputs := widths[layer], widths[layer+1], n.outputs[layer]
		bias, weight := n.gradients[2*layer+1], n.gradients[2*layer]
		for i := range bias {
			bias[i] = 0
		}
		for i := range weight {
			weight[i] = 0
		}
		for b := range labels {
			for o, x := range delta[b*wide : (b+1)*wide] {
				bias[o] += x
			}
		}
		ready(2*layer + 1)
		for b := range labels {
			row := delta[b*wide : (b+1)*wide]
			for i, input := range inputs[b*deep : (b+1)*deep] {
				if input == 0 {
					continue
				}
				slopes := weight[i*wide : (i+1)*wide]
				for o, x := range row {
					slopes[o] += input * x
				}
			}
		}
		ready(2 * layer)
		if layer == 0 {
			return
		}
		before := make([]float32, len(inputs))
		for b := range labels {
			row := delta[b*wide : (b+1)*wide]
			for i := 0; i < deep; i++ {
				sum, weights := float32(0), n.values[2*layer][i*wide:(i+1)*wide]
				for o, x := range row {
					sum += x * weights[o]
				}
				before[b*deep+i] = rectifySlope(inputs[b*deep+i]) * sum
			}
		}
		delta = before
	}
}

// update is SGD: velocity = momentum * velocity + gradient; value -= rate * velocity.
func (n *net) update(rate, momentum float32) {
	for tensor, value := range n.values {
		gradient, velocity := n.gradients[tensor], n.velocities[tensor]
		for i := range value {
			velocity[i] = momentum*velocity[i] + gradient[i]
			value[i] -= rate * velocity[i]
		}
	}
}
