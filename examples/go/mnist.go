// mnist.go trains a multi-layer perceptron (mlp.go) on handwritten digits with as many processes as a launcher starts.
//
//	go build -o mnist mnist.go mlp.go idx.go
//	./mnist                       one process
//	ddprun -n 4 ./mnist           four processes, the same training in a fraction of the time
//
// libddp's part: share registers the parameters, GradReady says that a gradient is complete, and epoch calls StepBegin before the forward
// and Finalize after the backward pass. All else is the same as without it.
//
// It is the trainer of ../c/mnist.c: the same model, batches and options. The trainers of all languages may be
// ranks of one job.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"libddp.org/ddp"
)

var (
	data         = flag.String("data", "examples/data/mnist", "folder with the four IDX files of MNIST, plain or .gz")
	epochs       = flag.Int("epochs", 10, "passes over the training digits")
	batch        = flag.Int("batch", 64, "digits in a global batch, divided among the ranks")
	lr           = flag.Float64("lr", 0.05, "learning rate")
	momentum     = flag.Float64("momentum", 0.9, "of the updates")
	seed         = flag.Int("seed", 1, "of the first weights and of the order of the digits")
	hook         = flag.String("hook", "allreduce", "communication hook")
	hookOptions  = flag.String("hook-options", "", "of it: K=V,...")
	compareLocal = flag.Bool("compare-local", false, "train without libddp afterwards, and compare")
	save         = flag.String("save", "", "file for rank 0's final weights, raw float32 one tensor after another")
)

// must ends the process if a call has failed.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal("mnist: ", err)
	}
}

// trainer is a model and its share of the work. context nil: trains alone, without libddp.
type trainer struct {
	net         *net
	rank, world int
	context     *ddp.Context
	params      []*ddp.Param
}

// share hands the model to libddp, which makes every rank's weights those of rank 0.
func share(group *ddp.Group) *trainer {
	// Every rank draws other weights, on purpose: Commit replaces them with those of rank 0. libddp has pointers to the slices.
	t := &trainer{rank: group.Rank(), world: group.WorldSize()}
	t.net = newNet(*seed+t.rank, func(count int) []float32 { return must(ddp.Make[float32](count)) })
	t.context = must(ddp.NewContext(group, nil))
	for tensor, value := range t.net.values {
		name, shape := describe(tensor)
		t.params = append(t.params, must(ddp.Register(t.context, name, shape, value, t.net.gradients[tensor])))
	}
	check(t.context.UseHook(*hook, *hookOptions))
	check(t.context.Commit())
	return t
}

// epoch is one pass over the digits. It returns this rank's part of the score.
func (t *trainer) epoch(d *digits, number int) []float64 {
	order, part, pixels, total := shuffled(len(d.labels), *seed, number), *batch/t.world, widths[0], make([]float64, 2)
	for first := 0; first+*batch <= len(order); first += *batch {
		images, labels := make([]float32, 0, part*pixels), make([]int, 0, part)
		for _, i := range order[first+t.rank*part : first+(t.rank+1)*part] {
			images, labels = append(images, d.images[i*pixels:(i+1)*pixels]...), append(labels, d.labels[i])
		}
		if t.context != nil {
			check(t.context.StepBegin())
		}
		loss, correct := t.net.forward(images, labels)
		t.net.backward(labels, func(tensor int) {
			if t.context != nil {
				check(t.context.GradReady(t.params[tensor]))
			}
		})
		if t.context != nil {
			check(t.context.Finalize())
		}
		t.net.update(float32(*lr), float32(*momentum))
		total[0], total[1] = total[0]+loss, total[1]+correct
	}
	return total
}

// compare lets every rank train the global batches alone. Whether no rank saw more than the bound of ../c/compare.c.
func compare(group *ddp.Group, shared *trainer, d *digits) bool {
	alone := &trainer{net: newNet(*seed, func(count int) []float32 { return make([]float32, count) }), world: 1}
	check(ddp.Mark("train alone", func() { // in a timeline: ddprun --trace
		for number := 0; number < *epochs; number++ {
			alone.epoch(d, number)
		}
	}))
	worst := make([]float64, 2)
	for tensor, mine := range shared.net.values {
		other, squares := alone.net.values[tensor], 0.0
		for _, value := range other {
			squares += float64(value) * float64(value)
		}
		typical := math.Sqrt(squares / float64(len(other)))
		for i := range mine {
			apart := math.Abs(float64(mine[i]) - float64(other[i]))
			if math.IsNaN(apart) {
				apart = math.Inf(1)
			}
			worst[0] = math.Max(worst[0], apart)
			worst[1] = math.Max(worst[1], apart/math.Max(typical, math.Abs(float64(other[i]))))
		}
	}
	check(ddp.AllReduce(group, worst, ddp.Max))
	steps := *epochs * (len(d.labels) / *batch)
	bound := float64(steps) * *lr / (1 - *momentum) * float64(*batch) * 0x1p-23 * 0.1
	met := "EXCEEDED"
	if worst[0] <= bound {
		met = "met"
	}
	if shared.rank == 0 {
		fmt.Printf("against one process, any weight on any rank after %d steps: difference %.3g, relative %.3g\n", steps, worst[0], worst[1])
		fmt.Printf("bound %.3g (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): %s\n", bound, met)
	}
	return worst[0] <= bound
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	d := must(load(*data, "train"))
	group := must(ddp.NewGroup(nil))
	if *batch%group.WorldSize() != 0 || *batch > len(d.labels) {
		log.Fatalf("mnist: --batch %d must be a multiple of the %d ranks, and at most the %d digits", *batch, group.WorldSize(), len(d.labels))
	}
	t := share(group)
	seen := float64(len(d.labels) / *batch * *batch)
	for number := 0; number < *epochs; number++ {
		start := time.Now()
		total := t.epoch(d, number)
		check(ddp.AllReduce(group, total, ddp.Sum))
		if t.rank == 0 {
			fmt.Printf("epoch %2d  loss %.4f  train accuracy %5.2f %%  %8.0f images/s\n", number+1, total[0]/seen, 100*total[1]/seen,
				seen/time.Since(start).Seconds())
		}
	}
	if t.rank == 0 {
		tests := must(load(*data, "t10k"))
		_, correct := t.net.forward(tests.images, tests.labels)
		fmt.Printf("test accuracy %.2f %%\n", 100*correct/float64(len(tests.labels)))
		if *save != "" {
			file := must(os.Create(*save))
			for _, value := range t.net.values {
				check(binary.Write(file, binary.LittleEndian, value))
			}
			check(file.Close())
		}
	}
	met := !*compareLocal || compare(group, t, d)
	check(t.context.Close())
	group.Close()
	if !met {
		os.Exit(1)
	}
}
