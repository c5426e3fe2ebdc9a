package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"sort"
	"sync"
	"unsafe"
)

// F16 has the bits of an IEEE 754 binary16.
type F16 uint16

// BF16 has the upper half of the bits of an IEEE 754 binary32.
type BF16 uint16

// Element is an element type of libddp.
type Element interface {
	F16 | BF16 | float32 | float64 | int32 | int64 | uint8 | complex64 | complex128
}

func dtypeOf[T Element]() C.ddp_dtype {
	var zero T
	switch any(zero).(type) {
	case F16:
		return C.DDP_F16
	case BF16:
		return C.DDP_BF16
	case float32:
		return C.DDP_F32
	case float64:
		return C.DDP_F64
	case int32:
		return C.DDP_I32
	case int64:
		return C.DDP_I64
	case uint8:
		return C.DDP_U8
	case complex64:
		return C.DDP_C64
	}
	return C.DDP_C128
}

// block is memory of Make, and how many registrations use it.
type block struct {
	begin, end uintptr
	uses       int
}

// blocks are sorted by address.
var (
	blocksMutex sync.Mutex
	blocks      []*block
)

// find is the block that holds these addresses, or nil. blocksMutex is locked.
func find(begin, end uintptr) *block {
	i := sort.Search(len(blocks), func(i int) bool { return blocks[i].end >= end })
	if i < len(blocks) && blocks[i].begin <= begin {
		return blocks[i]
	}
	return nil
}

func sizeOf[T Element](count int) uintptr {
	var zero T
	return uintptr(count) * unsafe.Sizeof(zero)
}

func first[T Element](slice []T) unsafe.Pointer {
	if len(slice) == 0 {
		return nil
	}
	return unsafe.Pointer(&slice[0])
}

// Make returns zeros that stay where they are until Free: memory of C, for values, gradients and states.
func Make[T Element](count int) ([]T, error) {
	if count < 0 {
		return nil, wrong("count is negative: %d", count)
	}
	if count == 0 {
		return []T{}, nil
	}
	size := sizeOf[T](count)
	memory := C.calloc(C.size_t(count), C.size_t(size/uintptr(count)))
	if memory == nil {
		return nil, &Error{OutOfMemory, "Make: no memory is left", -1, -1, -1, -1}
	}
	blocksMutex.Lock()
	defer blocksMutex.Unlock()
	begin := uintptr(memory)
	i := sort.Search(len(blocks), func(i int) bool { return blocks[i].begin > begin })
	blocks = append(blocks, nil)
	copy(blocks[i+1:], blocks[i:])
	blocks[i] = &block{begin: begin, end: begin + size}
	return unsafe.Slice((*T)(memory), count), nil
}

// Free gives memory of Make back. The slice, and every slice of it, is then dangling. It fails while a context or a job uses the memory.
func Free[T Element](memory []T) error {
	if cap(memory) == 0 {
		return nil
	}
	blocksMutex.Lock()
	defer blocksMutex.Unlock()
	begin := uintptr(unsafe.Pointer(&memory[:1][0]))
	i := sort.Search(len(blocks), func(i int) bool { return blocks[i].begin >= begin })
	if i == len(blocks) || blocks[i].begin != begin {
		return wrong("memory is not a slice that Make has returned, or was freed before")
	}
	if blocks[i].uses > 0 {
		return &Error{InvalidState, "memory is in use: close the contexts and jobs that have it first", -1, -1, -1, -1}
	}
	blocks = append(blocks[:i], blocks[i+1:]...)
	C.free(unsafe.Pointer(&memory[:1][0]))
	return nil
}

// hold checks that memory stays where it is, and keeps it from being freed until the holds are released.
func hold[T Element](what string, memory []T, holds *[]*block) error {
	if len(memory) == 0 {
		return nil
	}
	blocksMutex.Lock()
	defer blocksMutex.Unlock()
	begin := uintptr(unsafe.Pointer(&memory[0]))
	found := find(begin, begin+sizeOf[T](len(memory)))
	if found == nil {
		return wrong("%s is not memory of ddp.Make: libddp keeps a pointer to it, which Go allows for memory outside of its heap only", what)
	}
	found.uses++
	*holds = append(*holds, found)
	return nil
}

func release(holds []*block) {
	blocksMutex.Lock()
	defer blocksMutex.Unlock()
	for _, each := range holds {
		each.uses--
	}
}
