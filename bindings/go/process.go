package ddp

// #include "bridge.h"
// #include <stdlib.h>
import "C"

import (
	"runtime"
	"syscall"
)

// Interrupt ends the waits of all calls of this process with Interrupted, for example when signal.Notify has told of Ctrl-C, and those of
// later calls, until Interrupt(false). Without it a signal that Go handles ends no wait.
func Interrupt(asked bool) error {
	var failure *C.ddp_error
	C.ddp_go_interrupt(truth(asked))
	return errorOf(C.ddp_go_install_check(&failure), failure)
}

// SetBlameSignal: a group that breaks because of this rank sends the process this signal. SIGQUIT lets Go print all goroutines. 0: none.
func SetBlameSignal(signal syscall.Signal) error {
	var failure *C.ddp_error
	return errorOf(C.ddp_set_blame_signal(C.int32_t(signal), &failure), failure)
}

// SetWorkload says how much work there is, for ddprun --status: samples of this rank in a step, and steps of the run. 0: unknown.
func SetWorkload(samples, steps int64) error {
	var failure *C.ddp_error
	return errorOf(C.ddp_set_workload(C.int64_t(samples), C.int64_t(steps), &failure), failure)
}

// Mark runs a function between the beginning and the end of a mark in the record, such as "forward": docs/record.md. A mark belongs to a
// thread, so the function runs on one, and what it starts in other goroutines is not in the mark.
func Mark(name string, function func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	given := C.CString(name)
	defer free(given)
	var failure *C.ddp_error
	if err := errorOf(C.ddp_mark_begin(given, &failure), failure); err != nil {
		return err
	}
	defer C.ddp_mark_end(nil)
	function()
	return nil
}
