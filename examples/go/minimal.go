// minimal.go: a whole distributed trainer in Go, with cgo. It fits y = w0 + w1 x to samples; each rank has its own.
//
//	go build minimal.go && ddprun -n 2 ./minimal    every rank ends with the same w, trained on both ranks' samples
package main

// #cgo pkg-config: ddp
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

// check ends the process with libddp's message if a call has failed.
func check(status C.ddp_status, failure *C.ddp_error) {
	if status != C.DDP_OK {
		fmt.Fprintln(os.Stderr, C.GoString(C.ddp_error_message(failure)))
		os.Exit(1)
	}
}

// floats is memory that C may keep a pointer to. Go's own memory is not.
func floats(count int) []float32 {
	return unsafe.Slice((*float32)(C.calloc(C.size_t(count), 4)), count)
}

func main() {
	runtime.LockOSThread() // a context is used by one thread
	w, grad := floats(2), floats(2)
	shape := (*C.int64_t)(C.malloc(8))
	*shape = 2
	var failure *C.ddp_error
	var group *C.ddp_group
	var context *C.ddp_context
	var desc C.ddp_param_desc
	var param C.ddp_param
	check(C.ddp_group_create(nil, &group, &failure), failure) // rank and world size from the launcher
	check(C.ddp_context_create(group, nil, &context, &failure), failure)
	C.ddp_param_desc_init(&desc)
	desc.name, desc.shape, desc.ndim = C.CString("w"), shape, 1
	desc.data, desc.grad = unsafe.Pointer(&w[0]), unsafe.Pointer(&grad[0])
	check(C.ddp_register_param(context, &desc, &param, &failure), failure)
	check(C.ddp_commit(context, &failure), failure) // every rank starts from rank 0's w
	rank := int(C.ddp_group_rank(group))
	for step := 0; step < 500; step++ {
		x := float32((7*step+rank)%10) / 10 // a sample of this rank's own
		wrong := w[0] + w[1]*x - (3 - 2*x)  // prediction minus truth
		grad[0], grad[1] = wrong, wrong*x
		check(C.ddp_grad_ready(context, param, &failure), failure) // starts the averaging over ranks
		check(C.ddp_finalize(context, &failure), failure)          // grad is now the mean
		w[0] -= 0.5 * grad[0]
		w[1] -= 0.5 * grad[1]
	}
	fmt.Printf("rank %d: y = %.3f %+.3f x\n", rank, w[0], w[1])
	C.ddp_context_free(context)
	C.ddp_group_free(group)
}
