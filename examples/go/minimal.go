// minimal.go: a whole distributed trainer. It fits y = w0 + w1 x to samples; each rank has its own.
//
//	ddprun -n 2 ./minimal          every rank ends with the same w, trained on both ranks' samples
package main

import (
	"fmt"
	"log"

	"libddp.org/ddp"
)

// must ends the process if a call has failed.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	group := must(ddp.NewGroup(nil))                                  // rank and world size from the launcher; alone without one
	w, grad := must(ddp.Make[float32](2)), must(ddp.Make[float32](2)) // memory that stays where it is
	context := must(ddp.NewContext(group, nil))
	param := must(ddp.Register(context, "w", []int{2}, w, grad))
	check(context.Commit()) // every rank starts from rank 0's w
	for step := 0; step < 500; step++ {
		x := float32((7*step+group.Rank())%10) / 10 // a sample of this rank's own
		wrong := w[0] + w[1]*x - (3 - 2*x)          // prediction minus truth
		grad[0], grad[1] = wrong, wrong*x
		check(context.GradReady(param)) // starts the averaging over ranks
		check(context.Finalize())       // grad is now the mean
		w[0] -= 0.5 * grad[0]
		w[1] -= 0.5 * grad[1]
	}
	fmt.Printf("rank %d: y = %.3f %+.3f x\n", group.Rank(), w[0], w[1])
	check(context.Close())
	group.Close()
}
