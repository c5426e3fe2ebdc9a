// Command ranks tests everything that needs several ranks, against plain loops: ddprun -n N ranks.
package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"libddp.org/ddp"
	"libddp.org/tests/check"
)

const size = 1000

var (
	group       *ddp.Group
	rank, world int
)

func small(flags uint32, reduction ddp.Reduction) *ddp.ContextOptions {
	return &ddp.ContextOptions{BucketCapBytes: 2000, FirstBucketCapBytes: 2000, Flags: flags, Reduction: reduction}
}

// model has four parameters; the gradients of every second one are copied.
type model struct {
	context       *ddp.Context
	params        []*ddp.Param
	values, grads [][]float32
}

func register(context *ddp.Context) *model {
	m := &model{context: context}
	for i := 0; i < 4; i++ {
		value := check.Get(ddp.Make[float32](size))
		for j := range value {
			value[j] = float32(rank)
		}
		var grad []float32
		if i%2 == 1 {
			grad = check.Get(ddp.Make[float32](size))
		}
		m.values, m.grads = append(m.values, value), append(m.grads, grad)
		m.params = append(m.params, check.Get(ddp.Register(context, fmt.Sprint("p", i), []int{10, size / 10}, value, grad)))
	}
	return m
}

func commit(on *ddp.Group, options *ddp.ContextOptions) *model {
	m := register(check.Get(ddp.NewContext(on, options)))
	check.OK(m.context.Commit())
	return m
}

func (m *model) close() {
	check.OK(m.context.Close())
	for i := range m.params {
		check.OK(ddp.Free(m.values[i]))
		check.OK(ddp.Free(m.grads[i]))
	}
}

func (m *model) grad(i int) []float32 {
	if m.grads[i] != nil {
		return m.grads[i]
	}
	return check.Get(ddp.View[float32](m.context, m.params[i]))
}

// step is one step in which every rank gives its numbers for these parameters.
func (m *model) step(which ...int) error {
	if err := m.context.StepBegin(); err != nil {
		return err
	}
	for _, i := range which {
		var err error
		if m.grads[i] == nil {
			err = ddp.Put(m.context, m.params[i], check.ValuesOf(rank, size))
		} else {
			copy(m.grads[i], check.ValuesOf(rank, size))
			err = m.context.GradReady(m.params[i])
		}
		if err != nil {
			return err
		}
	}
	return m.context.Finalize()
}

func (m *model) train(expected []float32) {
	for step := 0; step < 3; step++ {
		check.OK(m.step(3, 2, 1, 0))
		runtime.GC()
		for i := range m.params {
			check.Near(m.grad(i), expected)
		}
	}
}

func means() []float32 { return check.Sums(world, size, float32(world)) }

func collectives() {
	buffer := check.ValuesOf(rank, size)
	check.OK(ddp.AllReduce(group, buffer, ddp.Sum))
	check.Near(buffer, check.Sums(world, size, 1))
	buffer = check.ValuesOf(rank, size)
	check.OK(ddp.Broadcast(group, buffer, 1))
	check.Near(buffer, check.ValuesOf(1, size))
	all := make([]float32, size*world)
	check.OK(ddp.AllGather(group, check.ValuesOf(rank, size), all))
	for r := 0; r < world; r++ {
		check.Near(all[r*size:(r+1)*size], check.ValuesOf(r, size))
	}
	var send []float32
	for r := 0; r < world; r++ {
		send = append(send, check.ValuesOf(rank, 500)...)
	}
	part := make([]float32, 500)
	check.OK(ddp.ReduceScatter(group, send, part, ddp.Sum))
	check.Near(part, check.Sums(world, 500, 1))
	from, to := make([]int32, 7*world), make([]int32, 7*world)
	for i := range from {
		from[i] = int32(1000*rank + i)
	}
	check.OK(ddp.AllToAll(group, from, to))
	for i, found := range to {
		check.That(int(found) == 1000*(i/7)+7*rank+i%7, "element %d: %d", i, found)
	}
	// Rank r sends r + 2 q elements to rank q.
	sendCounts, recvCounts := make([]uint64, world), make([]uint64, world)
	var sent, expected []int64
	for q := 0; q < world; q++ {
		sendCounts[q], recvCounts[q] = uint64(rank+2*q), uint64(q+2*rank)
		for i := 0; i < rank+2*q; i++ {
			sent = append(sent, int64(10*rank+q))
		}
		for i := 0; i < q+2*rank; i++ {
			expected = append(expected, int64(10*q+rank))
		}
	}
	got := make([]int64, len(expected))
	check.OK(ddp.AllToAllV(group, sent, sendCounts, got, recvCounts))
	check.That(fmt.Sprint(got) == fmt.Sprint(expected), "%v, expected %v", got, expected)
	check.Fails(ddp.AllToAllV(group, sent[1:], sendCounts, got, recvCounts), ddp.InvalidArgument, "send", "fewer")
	numbers := []complex64{complex(float32(rank), 1)}
	check.OK(ddp.AllReduce(group, numbers, ddp.Sum))
	check.That(numbers[0] == complex(float32(world*(world-1)/2), float32(world)), "%v", numbers)
	half := []ddp.BF16{0x3f80} // one
	check.OK(ddp.AllReduce(group, half, ddp.Avg))
	check.That(half[0] == 0x3f80, "%v", half)
	check.OK(ddp.AllReduce(group, []float64{}, ddp.Max))
	check.OK(group.Barrier())
	check.Fails(ddp.AllGather(group, numbers, numbers), ddp.InvalidArgument, "recv has 1 elements")
	told := check.Get(ddp.GetEnvironment())
	check.That(told.Rank == rank && told.WorldSize == world && told.Launcher == "ddprun", "%+v", told)
	pair := check.Get(group.Split(rank/2, -rank))
	check.That(pair.WorldSize() == len([]int{0, 1})-boolean(rank/2*2+1 >= world), "%d ranks", pair.WorldSize())
	pair.Close()
	check.That(check.Get(group.Split(-1, 0)) == nil, "no group")
	store := check.Get(group.Store())
	check.Get(store.Add("go/sum", int64(rank)+1))
	check.OK(group.Barrier())
	check.That(string(check.Get(store.Get("go/sum", 0))) == fmt.Sprint(world*(world+1)/2), "the sum in the store")
	check.OK(store.Close())
}

func works() {
	moving := make([]float32, size)
	_, err := ddp.StartAllReduce(group, moving, ddp.Sum)
	check.Fails(err, ddp.InvalidArgument, "memory is not memory of ddp.Make")
	memory := check.Get(ddp.Make[float32](4 * size))
	var started []*ddp.Work
	for i := 0; i < 4; i++ {
		part := memory[i*size : (i+1)*size]
		copy(part, check.ValuesOf(rank, size))
		started = append(started, check.Get(ddp.StartAllReduce(group, part, ddp.Sum)))
	}
	for i, work := range started {
		check.OK(work.Wait())
		check.OK(work.Wait())
		check.Near(memory[i*size:(i+1)*size], check.Sums(world, size, 1))
	}
	check.OK(ddp.Free(memory))
	a, b := check.Get(group.Split(0, rank)), check.Get(group.Split(0, rank))
	turns := check.Get(ddp.RoundRobin(a, b))
	a.Close()
	b.Close()
	m := commit(turns, small(0, ddp.Mean))
	turns.Close() // the context keeps it
	m.train(means())
	plan := check.Get(m.context.Plan())
	other := register(check.Get(ddp.NewContext(group, small(ddp.NoRebuild, ddp.Mean))))
	check.OK(other.context.AdoptPlan(plan))
	check.OK(other.context.Commit())
	check.That(check.Get(other.context.Plan()) == plan, "the plan")
	other.close()
	m.close()
}

func shards() {
	context := check.Get(ddp.NewContext(group, small(ddp.Shard, ddp.Mean)))
	value, other := check.Get(ddp.Make[float32](size)), check.Get(ddp.Make[float32](77))
	w := check.Get(ddp.Register(context, "w", []int{size}, value, nil))
	v := check.Get(ddp.Register(context, "v", []int{77}, other, nil))
	check.OK(context.SetOwner(v, ddp.OwnerReplicated, 0))
	check.OK(context.Commit())
	optimizer := check.Get(ddp.NewOptimizer(context, "sgd", "lr=0.5"))
	check.OK(optimizer.Set(v, "lr", 0.25))
	check.Fails(optimizer.Set(nil, "speed", 1), ddp.InvalidArgument, "speed")
	for step := 1; step < 4; step++ {
		check.OK(context.StepBegin())
		check.OK(ddp.Put(context, w, check.ValuesOf(rank, size)))
		check.OK(ddp.Put(context, v, check.ValuesOf(rank, 77)))
		check.OK(context.Finalize())
		for _, piece := range check.Get(context.Pieces()) {
			if piece.Param == w {
				check.Near(check.Get(ddp.View[float32](context, w))[piece.Begin:piece.End], means()[piece.Begin:piece.End])
			} else {
				check.That(piece.Replicated && piece.Param == v, "%+v", piece)
			}
		}
		check.OK(optimizer.Step(1))
		check.OK(context.Publish())
		check.OK(context.WaitValue(w))
		check.OK(context.WaitValue(v))
		check.Near(value, check.Sums(world, size, float32(world)/(-0.5*float32(step))))
		check.Near(other, check.Sums(world, 77, float32(world)/(-0.25*float32(step))))
	}
	check.OK(context.Close())
	check.Fails(optimizer.Step(1), ddp.InvalidState, "the context is closed")
	optimizer.Close()
}

func boolean(value bool) int {
	if value {
		return 1
	}
	return 0
}

func steps() {
	m := commit(group, small(0, ddp.Mean))
	check.That(m.values[0][0] == 0, "rank 0's values")
	m.train(means())
	// Goroutines announce gradients of one step.
	for step := 0; step < 10; step++ {
		check.OK(m.context.StepBegin())
		var announced sync.WaitGroup
		for i := range m.params {
			i := i
			announced.Add(1)
			go func() {
				defer announced.Done()
				check.OK(ddp.Put(m.context, m.params[i], check.ValuesOf(rank, size)))
			}()
		}
		announced.Wait()
		check.OK(m.context.Finalize())
		for i := range m.params {
			check.Near(m.grad(i), means())
		}
	}
	m.close()
	// Micro-batches.
	m = commit(group, small(0, ddp.SumOfRanks))
	for round := 0; round < 2; round++ {
		for micro := 0; micro < 3; micro++ {
			check.OK(m.context.SetSync(micro == 2))
			check.OK(m.context.StepBegin())
			for _, param := range m.params {
				check.OK(ddp.PutAdd(m.context, param, check.ValuesOf(rank, size)))
			}
			check.OK(m.context.Finalize())
		}
		check.Near(m.grad(0), check.Sums(world, size, 1.0/3))
	}
	m.close()
	// In place, and a buffer.
	context := check.Get(ddp.NewContext(group, nil))
	block, buffer := check.Get(ddp.Make[float32](2*size)), check.Get(ddp.Make[int64](1))
	var params []*ddp.Param
	for i := 0; i < 2; i++ {
		params = append(params, check.Get(ddp.RegisterWith(context, fmt.Sprint(i), []int{size}, nil, block[i*size:(i+1)*size],
			ddp.ParamOptions{InPlace: true})))
	}
	buffer[0] = int64(rank)
	check.OK(ddp.RegisterBuffer(context, "counter", []int{1}, buffer))
	check.OK(context.Commit())
	check.That(buffer[0] == 0, "rank 0's buffer")
	copy(block, append(check.ValuesOf(rank, size), check.ValuesOf(rank, size)...))
	check.OK(context.GradReady(params[0]))
	check.OK(context.GradReady(params[1]))
	check.OK(context.Finalize())
	check.Near(block[size:], means())
	check.OK(context.Close())
}

func participation() {
	m := commit(group, small(ddp.FindUnused, ddp.Mean))
	check.OK(m.context.StepBegin())
	check.OK(m.context.MarkUnused(m.params[3]))
	check.OK(ddp.Put(m.context, m.params[1], check.ValuesOf(rank, size)))
	if rank == 0 {
		check.OK(ddp.Put(m.context, m.params[0], check.ValuesOf(rank, size)))
	}
	check.OK(m.context.Finalize())
	first := check.ValuesOf(0, size)
	for i := range first {
		first[i] /= float32(world)
	}
	check.Near(m.grad(0), first)
	check.Near(m.grad(1), means())
	check.That(check.Get(m.context.ParamUsed(m.params[0])) && !check.Get(m.context.ParamUsed(m.params[3])), "used")
	m.close()
	m = commit(group, small(0, ddp.Mean))
	check.OK(m.context.SetFrozen(true, m.params[2]))
	check.OK(m.context.SkipParams(0, m.params[1]))
	check.That(check.Get(m.context.Skipped(m.params[1])) && !check.Get(m.context.Skipped(m.params[0])), "skipped")
	check.OK(m.step(3, 0))
	check.Near(m.grad(3), means())
	check.OK(m.context.SetFrozen(false, m.params[2]))
	m.train(means())
	m.close()
	// The gradient of the global batch: rank r has r + 1 samples.
	m = commit(group, small(0, ddp.WeightedMean))
	check.OK(m.context.SetWeight(float64(rank + 1)))
	check.OK(m.step(3, 2, 1, 0))
	weighted := make([]float32, size)
	for r := 0; r < world; r++ {
		for i, value := range check.ValuesOf(r, size) {
			weighted[i] += float32(r+1) * value / float32(world*(world+1)/2)
		}
	}
	check.Near(m.grad(0), weighted)
	m.close()
	// Ranks run out of inputs: rank r has r + 1 steps.
	m = commit(group, small(ddp.Join, ddp.Mean))
	for step := 0; step <= rank; step++ {
		check.OK(m.step(3, 2, 1, 0))
		m.values[0][0] = float32(rank)
	}
	check.OK(m.context.Join())
	check.That(m.values[0][0] == float32(world-1), "the values of the rank that joined last")
	m.close()
	// Votes and norms.
	context := check.Get(ddp.NewContext(group, small(ddp.Votes, ddp.Mean)))
	m = register(context)
	norm := check.Get(context.TrackGradNorm(2))
	check.OK(context.Commit())
	check.OK(context.Vote(2 | 1<<(16+rank)))
	check.OK(m.step(3, 2, 1, 0))
	some, all, _, err := context.Votes()
	check.That(err == nil && some == 2|(1<<world-1)<<16 && all == 2, "%x %x %v", some, all, err)
	squares := 0.0
	for _, mean := range means() {
		squares += 4 * float64(mean) * float64(mean)
	}
	check.That(math.Abs(check.Get(context.GradNorm(norm))/math.Sqrt(squares)-1) < 1e-6, "the norm")
	check.That(check.Get(context.ClipGradNorm(norm, 1)) > 1 && math.Abs(float64(m.grad(0)[1]/means()[1])*math.Sqrt(squares)-1) < 1e-4, "clipped")
	m.close()
}

func hooks() {
	m := commit(group, small(0, ddp.SumOfRanks))
	var calls atomic.Int32
	check.OK(m.context.SetHook(func(bucket *ddp.Bucket) error {
		calls.Add(1)
		if ddp.Elements[float64](bucket) != nil {
			return errors.New("elements of another type")
		}
		elements := ddp.Elements[float32](bucket)
		for i := range elements {
			elements[i] *= 2
		}
		return bucket.Start()
	}))
	check.That(m.context.HookName() == "user", m.context.HookName())
	m.train(check.Sums(world, size, 0.5))
	check.That(calls.Load() >= 6, "%d calls", calls.Load())
	check.OK(m.context.UseHook("fp16", ""))
	m.train(check.Sums(world, size, 1))
	check.OK(m.context.UseHook("powersgd", "rank=1,start=2"))
	check.OK(m.context.LoadHookState(check.Get(m.context.HookState()), false))
	check.Fails(m.context.UseHook("median", ""), ddp.InvalidArgument, "median")
	m.close()
	for _, panics := range []bool{true, false} {
		other := check.Get(group.Split(0, rank))
		m := commit(other, small(0, ddp.Mean))
		check.OK(m.context.SetHook(func(bucket *ddp.Bucket) error {
			if rank == 0 && panics {
				panic("the hook of the test gives up")
			} else if rank == 0 {
				return errors.New("the hook of the test gives up")
			}
			return bucket.Start()
		}))
		check.OK(group.Barrier()) // every rank has committed
		err := m.step(3, 2, 1, 0)
		if err == nil {
			err = other.Barrier()
		}
		failed := check.Fails(err, ddp.Callback, "the hook of the test gives up")
		check.That(failed.Rank == 0, "%+v", failed)
		check.OK(m.context.Close())
		other.Close()
	}
}

func disagreement() {
	context := check.Get(ddp.NewContext(group, nil))
	check.Get(ddp.Register(context, "w", []int{2 + rank}, check.Get(ddp.Make[float32](2+rank)), nil))
	check.Fails(context.Commit(), ddp.Mismatch, "w")
	check.OK(context.Close())
	other := check.Get(group.Split(0, rank))
	m := commit(other, small(0, ddp.Mean))
	check.OK(group.Barrier())
	which := []int{3, 2, 1, 0}
	if rank == 1 {
		which = []int{3, 1, 0}
	}
	failed := check.Fails(m.step(which...), ddp.MissingGradient, "p2", "Context.GradReady")
	check.That(failed.Rank == 1 && failed.Param == 2 && failed.Step == 0, "%+v", failed)
	again := check.Get(group.Split(0, rank))
	check.OK(m.context.SetGroup(again))
	m.train(means())
	check.OK(group.Barrier())
	if rank == 0 {
		check.OK(again.Abort("the test is over"))
	}
	check.Fails(again.Barrier(), ddp.Aborted, "rank 0 called Group.Abort", "the test is over")
	check.OK(m.context.Close())
	other.Close()
	again.Close()
}

func main() {
	group = check.Get(ddp.NewGroup(&ddp.GroupOptions{Timeout: 30 * time.Second}))
	rank, world = group.Rank(), group.WorldSize()
	check.Run("collectives", collectives)
	check.Run("works", works)
	check.Run("steps", steps)
	check.Run("participation", participation)
	check.Run("hooks", hooks)
	check.Run("shards", shards)
	check.Run("disagreement", disagreement)
	check.OK(group.Barrier())
	group.Close()
	fmt.Printf("rank %d: passed\n", rank)
}
