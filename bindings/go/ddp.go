// Package ddp is libddp in Go: data-parallel training. The program says when each gradient is ready; libddp averages gradients over all
// ranks while the backward pass still runs. docs/go.md of libddp begins with a whole trainer.
//
// # Memory
//
// libddp keeps pointers to values and gradients. Go's rules for cgo forbid that for memory of the garbage collector. [Make] returns
// memory that stays where it is, and [Register] and others refuse any other. Collectives that return when they are done take any slice.
//
// # Closing
//
// Groups, contexts, stores and jobs are closed by Close. There are no finalizers: a slice over libddp's memory does not keep its
// context alive, so the garbage collector cannot know when it may free one. Close waits for calls that run in other goroutines.
//
// # Goroutines
//
// A call that waits for other ranks blocks its goroutine and one thread of the system, not the scheduler: other goroutines go on.
// [Context.GradReady] and [Put] may run in several goroutines, for different parameters. All other methods of a context come from one
// goroutine at a time; none needs runtime.LockOSThread. Collectives of a group must have one order on all ranks.
package ddp

// #cgo pkg-config: ddp
// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"
)

// handle counts the calls that use an object of C.
type handle struct {
	mutex  sync.RWMutex
	closed bool
	name   string
}

// enter begins a call; the caller ends it with leave.
func (h *handle) enter() error {
	h.mutex.RLock()
	if h.closed {
		h.mutex.RUnlock()
		return &Error{Status: InvalidState, Message: h.name + " is closed", Rank: -1, Param: -1, Bucket: -1, Step: -1}
	}
	return nil
}

func (h *handle) leave() { h.mutex.RUnlock() }

// end closes once, with free after the last call.
func (h *handle) end(free func()) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.closed {
		h.closed = true
		free()
	}
}

// optional is a string of C, or NULL for "". The caller frees it.
func optional(text string) *C.char {
	if text == "" {
		return nil
	}
	return C.CString(text)
}

func free(texts ...*C.char) {
	for _, text := range texts {
		C.free(unsafe.Pointer(text))
	}
}

// milliseconds: 0 is libddp's default, so a wait that is shorter than a millisecond is one.
func milliseconds(wait time.Duration) C.int64_t {
	if wait > 0 && wait < time.Millisecond {
		return 1
	}
	return C.int64_t(wait.Milliseconds())
}

func truth(value bool) C.int32_t {
	if value {
		return 1
	}
	return 0
}

// bytesOf copies bytes that C has given, and frees them.
func bytesOf(data unsafe.Pointer, size C.size_t) []byte {
	defer C.ddp_free(data)
	return append([]byte{}, unsafe.Slice((*byte)(data), int(size))...)
}

func pointer(data []byte) unsafe.Pointer {
	if len(data) == 0 {
		return nil
	}
	return unsafe.Pointer(&data[0])
}

func wrong(format string, values ...any) error {
	return &Error{Status: InvalidArgument, Message: fmt.Sprintf(format, values...), Rank: -1, Param: -1, Bucket: -1, Step: -1}
}

// Version is that of the loaded library.
func Version() string { return C.GoString(C.ddp_version()) }

// BackendAvailable returns nil if a group can be created with this backend, and otherwise why not.
func BackendAvailable(name string) error {
	given := C.CString(name)
	defer free(given)
	var failure *C.ddp_error
	if C.ddp_backend_available(given, &failure) != 0 {
		return nil
	}
	return errorOf(C.ddp_error_code(failure), failure)
}

// ShardRange is the share of a rank of samples 0 to count - 1: from begin up to end, which is not included.
func ShardRange(count int64, rank, worldSize int) (begin, end int64, err error) {
	var first, last C.int64_t
	var failure *C.ddp_error
	err = errorOf(C.ddp_shard_range(C.int64_t(count), C.int32_t(rank), C.int32_t(worldSize), &first, &last, &failure), failure)
	return int64(first), int64(last), err
}

// Environment has the facts that a launcher told this process.
type Environment struct {
	Rank, WorldSize, LocalRank, LocalWorldSize int
	Restart                                    int64
	Launcher                                   string
}

// GetEnvironment reads the launcher's environment. NotFound: there is no launcher.
func GetEnvironment() (Environment, error) {
	var told C.ddp_environment
	told.struct_size = C.size_t(unsafe.Sizeof(told))
	var failure *C.ddp_error
	err := errorOf(C.ddp_environment_get(&told, &failure), failure)
	return Environment{int(told.rank), int(told.world_size), int(told.local_rank), int(told.local_world_size), int64(told.restart),
		C.GoString(&told.launcher[0])}, err
}
