// Command alone tests everything that needs no other rank: memory, closing, errors, the store, an elastic job.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"libddp.org/ddp"
	"libddp.org/tests/check"
)

func alone() *ddp.Group {
	uri := fmt.Sprintf("file:///proc/self/cwd/go-%d", os.Getpid())
	return check.Get(ddp.NewGroup(&ddp.GroupOptions{Rank: 0, WorldSize: 1, InitMethod: uri}))
}

func memory() {
	group := alone()
	defer group.Close()
	context := check.Get(ddp.NewContext(group, nil))
	w, grad := check.Get(ddp.Make[float32](6)), check.Get(ddp.Make[float32](100))
	moving := make([]float32, 6)
	_, err := ddp.Register(context, "w", []int{6}, moving, nil)
	check.Fails(err, ddp.InvalidArgument, "value of 'w' is not memory of ddp.Make")
	_, err = ddp.Register(context, "w", []int{6}, w, moving)
	check.Fails(err, ddp.InvalidArgument, "grad of 'w' is not memory of ddp.Make")
	_, err = ddp.Register(context, "w", []int{5}, w, nil)
	check.Fails(err, ddp.InvalidArgument, "value of 'w' has 6 elements", "[5]")
	param := check.Get(ddp.Register(context, "w", []int{2, 3}, w, grad[90:96])) // a part of a block
	_, err = ddp.Register(context, "w", []int{6}, w, nil)
	check.Fails(err, ddp.AlreadyExists, "w")
	view := check.Get(ddp.Register(context, "view", []int{2}, check.Get(ddp.Make[float64](2)), nil))
	check.OK(context.Commit())
	check.Fails(ddp.Free(grad), ddp.InvalidState, "in use")
	for step := 0; step < 3; step++ {
		check.OK(context.StepBegin())
		check.Fails(ddp.Put(context, param, make([]float32, 5)), ddp.InvalidArgument, "5 elements", "'w' has 6")
		check.Fails(ddp.Put(context, param, make([]float64, 6)), ddp.InvalidArgument, "'w'", "type")
		for i := range grad {
			grad[i] = float32(step)
		}
		check.OK(context.GradReady(param))
		check.Fails(context.GradReady(param), ddp.InvalidState, "GradReady", "w")
		place := check.Get(ddp.View[float64](context, view))
		place[1] = 7
		runtime.GC()
		check.OK(context.GradReady(view))
		check.OK(context.Finalize())
		check.That(grad[95] == float32(step) && place[1] == 7, "the mean of one rank")
	}
	other := check.Get(ddp.NewContext(group, nil))
	check.Fails(other.GradReady(param), ddp.InvalidArgument, "another context")
	check.Fails(other.GradReady(nil), ddp.InvalidArgument, "nil")
	_, err = ddp.NewContext(group, &ddp.ContextOptions{Flags: 1 << 30})
	check.Fails(err, ddp.Unsupported)
	check.OK(other.Close())
	check.OK(context.Close())
	check.OK(context.Close())
	check.Fails(context.StepBegin(), ddp.InvalidState, "the context is closed")
	check.OK(ddp.Free(grad))
	check.Fails(ddp.Free(grad), ddp.InvalidArgument, "Make")
	check.Fails(ddp.Free(moving), ddp.InvalidArgument, "Make")
	check.OK(ddp.Free(w))
	group.Close()
	check.Fails(group.Barrier(), ddp.InvalidState, "the group is closed")
}

func nonfinite() {
	group := alone()
	defer group.Close()
	context := check.Get(ddp.NewContext(group, &ddp.ContextOptions{Flags: ddp.SkipNonfinite}))
	w := check.Get(ddp.Register(context, "w", []int{1}, check.Get(ddp.Make[float32](1)), nil))
	check.OK(context.Commit())
	zero := float32(0)
	check.OK(ddp.Put(context, w, []float32{zero / zero}))
	failed := check.Fails(context.Finalize(), ddp.Nonfinite, "'w'")
	check.That(failed.Param == 0 && failed.Step == 0, "%+v", failed)
	check.OK(context.Close())
}

func stores() {
	server := check.Get(ddp.OpenStore("tcp://127.0.0.1:0", &ddp.StoreOptions{IsServer: true, Timeout: 20 * time.Second}))
	client := check.Get(ddp.OpenStore(fmt.Sprintf("tcp://127.0.0.1:%d", server.Port()), nil))
	check.OK(client.Set("a/key", []byte("\x00value")))
	check.That(string(check.Get(server.Get("a/key", 0))) == "\x00value", "a value is bytes")
	check.That(fmt.Sprint(check.Get(client.Keys("a/"))) == "[a/key]", "keys")
	check.That(check.Get(client.Add("n", 3)) == 3 && check.Get(server.Add("n", -1)) == 2, "sums")
	check.That(string(check.Get(client.CompareSet("c", nil, []byte("new")))) == "new", "compare and set")
	check.That(check.Get(client.Delete("c")) && !check.Get(client.Delete("c")), "deleted once")
	check.OK(client.Wait(0, "a/key", "n"))
	check.That(check.Get(client.Check("a/key", "n")) && !check.Get(client.Check("a/key", "b")), "which keys exist")
	check.Fails(client.Wait(10*time.Millisecond, "nobody"), ddp.Timeout, "nobody")
	_, err := client.Get("nobody", 10*time.Millisecond)
	check.Fails(err, ddp.Timeout, "nobody")
	check.Fails(client.Set("a\x00b", nil), ddp.InvalidArgument, "NUL")
	late := make(chan []byte)
	go func() { late <- check.Get(client.Get("late", 0)) }()
	time.Sleep(50 * time.Millisecond)
	check.OK(server.Set("late", []byte("1"))) // other goroutines run while one waits
	check.That(string(<-late) == "1", "late")
	group := check.Get(ddp.NewGroup(&ddp.GroupOptions{WorldSize: 1, Store: client}))
	check.Fails(client.Close(), ddp.InvalidState, "open groups")
	group.Close()
	check.OK(client.Close())
	_, err = client.Get("a", 0)
	check.Fails(err, ddp.InvalidState, "the store is closed")
	go func() {
		time.Sleep(200 * time.Millisecond)
		check.OK(ddp.Interrupt(true))
	}()
	check.OK(ddp.Interrupt(false))
	_, err = server.Get("nobody", time.Minute)
	check.Fails(err, ddp.Interrupted)
	check.OK(ddp.Interrupt(false))
	check.OK(server.Close())
}

func elastic() {
	store := check.Get(ddp.OpenStore("tcp://127.0.0.1:0", &ddp.StoreOptions{IsServer: true}))
	job := check.Get(ddp.NewElastic(&ddp.ElasticOptions{Group: ddp.GroupOptions{Store: store, Timeout: 20 * time.Second}, MaxWorld: 1}))
	context := check.Get(job.NewContext(nil))
	value, momentum := check.Get(ddp.Make[float32](2)), check.Get(ddp.Make[float32](2))
	w := check.Get(ddp.Register(context, "w", []int{2}, value, nil))
	check.OK(context.Commit())
	check.OK(job.AddContext(context))
	check.Fails(ddp.AddState(job, "moving", make([]float32, 2)), ddp.InvalidArgument, "ddp.Make")
	check.OK(ddp.AddState(job, "momentum", momentum))
	check.OK(job.SetStep(7))
	for step := int64(7); step < 10; step++ {
		now := check.Get(job.Begin())
		check.That(now.Step == step && now.Roster == 1 && now.Changed == (step == 7) && now.WorldSize == 1, "%+v", now)
		check.OK(ddp.Put(context, w, []float32{float32(step), 0}))
		check.OK(context.Finalize())
		momentum[0] += check.Get(ddp.View[float32](context, w))[0]
		check.OK(job.Commit())
	}
	check.That(momentum[0] == 24, "%v", momentum)
	check.OK(job.ConfirmMember())
	check.Fails(context.Close(), ddp.InvalidState, "Elastic.Close")
	check.Fails(ddp.Free(momentum), ddp.InvalidState, "in use")
	job.Close()
	check.OK(ddp.Free(momentum))
	_, err := job.Begin()
	check.Fails(err, ddp.InvalidState, "the job is closed")
	check.OK(store.Close())
}

func main() {
	check.That(ddp.Version() == "0.1.0", "%s", ddp.Version())
	check.OK(ddp.BackendAvailable("shm"))
	check.Fails(ddp.BackendAvailable("nothing"), ddp.NotFound, "nothing")
	check.That(errors.Is(ddp.RankFailed, ddp.RankFailed) && ddp.RankFailed.Error() == "DDP_ERROR_RANK_FAILED", "%v", ddp.RankFailed)
	check.Run("memory", memory)
	check.Run("nonfinite", nonfinite)
	check.Run("stores", stores)
	check.Run("elastic", elastic)
	fmt.Println("passed")
}
