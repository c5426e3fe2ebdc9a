// Command killed: rank 1 is killed in a step, and the others end with an error that names it.
package main

import (
	"fmt"
	"os"
	"syscall"

	"libddp.org/ddp"
	"libddp.org/tests/check"
)

func main() {
	group := check.Get(ddp.NewGroup(nil))
	context := check.Get(ddp.NewContext(group, nil))
	w := check.Get(ddp.Register(context, "w", []int{1000}, check.Get(ddp.Make[float32](1000)), nil))
	check.OK(context.Commit())
	for step := 0; step < 1000; step++ {
		err := context.StepBegin()
		if err == nil {
			err = ddp.Put(context, w, make([]float32, 1000))
		}
		if step == 5 && group.Rank() == 1 {
			check.OK(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		}
		if err == nil {
			err = context.Finalize()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
	}
}
