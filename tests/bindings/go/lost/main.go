// Command lost: an elastic job that loses a rank in a step, and ends with the weights of a plain loop. ddprun -n 3 --min-ranks 2 lost
package main

import (
	"fmt"
	"os"
	"syscall"

	"libddp.org/ddp"
	"libddp.org/tests/check"
)

const (
	steps   = 40
	samples = 12
	size    = 100
)

// gradient is the mean over some samples.
func gradient(step, begin, end int64) []float32 {
	mean := make([]float32, size)
	for i := range mean {
		for sample := begin; sample < end; sample++ {
			mean[i] += float32((7*step+5*sample+int64(i))%16) / 16
		}
		mean[i] /= float32(end - begin)
	}
	return mean
}

func update(value, gradient, momentum []float32) {
	for i := range value {
		momentum[i] = 0.5*momentum[i] + gradient[i]
		value[i] -= 0.125 * momentum[i]
	}
}

func train(context *ddp.Context, w *ddp.Param, now ddp.ElasticStep) error {
	begin, end, err := ddp.ShardRange(samples, now.Rank, now.WorldSize)
	check.OK(err)
	if err := context.SetWeight(float64(end - begin)); err != nil {
		return err
	}
	if err := context.StepBegin(); err != nil {
		return err
	}
	if err := ddp.Put(context, w, gradient(now.Step, begin, end)); err != nil {
		return err
	}
	if now.Step == 10 && now.Roster == 1 && now.Rank == 1 {
		check.OK(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	return context.Finalize()
}

func main() {
	job := check.Get(ddp.NewElastic(nil))
	context := check.Get(job.NewContext(&ddp.ContextOptions{Reduction: ddp.WeightedMean}))
	value, grad, momentum := check.Get(ddp.Make[float32](size)), check.Get(ddp.Make[float32](size)), check.Get(ddp.Make[float32](size))
	w := check.Get(ddp.Register(context, "w", []int{size}, value, grad))
	check.OK(context.Commit())
	check.OK(job.AddContext(context))
	check.OK(ddp.AddState(job, "momentum", momentum))
	var worlds []int
	for {
		now := check.Get(job.Begin())
		if now.Changed {
			worlds = append(worlds, now.WorldSize)
		}
		if now.Step == steps {
			break
		}
		if err := train(context, w, now); err != nil {
			if job.Group().Status() == nil {
				panic(err) // no rank was lost
			}
			continue
		}
		update(value, grad, momentum)
		_ = job.Commit() // the next Begin says why it failed
	}
	expected, velocity := make([]float32, size), make([]float32, size)
	for step := int64(0); step < steps; step++ {
		update(expected, gradient(step, 0, samples), velocity)
	}
	check.Near(value, expected)
	fmt.Printf("worlds %v: passed\n", worlds)
	check.OK(job.Leave())
	job.Close()
}
