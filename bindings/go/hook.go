package ddp

// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// Bucket is a bucket of gradients in a hook, valid until the hook returns.
type Bucket struct {
	raw     *C.ddp_bucket
	group   *C.ddp_group
	pending *C.ddp_work
}

// Index is 0, 1, ... in launch order.
func (b *Bucket) Index() int { return int(C.ddp_bucket_index(b.raw)) }

// IsLast says whether it is the last of the step.
func (b *Bucket) IsLast() bool { return C.ddp_bucket_is_last(b.raw) != 0 }

// Op is the operation to apply over ranks: Avg or Sum.
func (b *Bucket) Op() ReduceOp { return ReduceOp(C.ddp_bucket_op(b.raw)) }

// WorldSize is the number of ranks.
func (b *Bucket) WorldSize() int { return int(C.ddp_group_world_size(b.group)) }

// Elements are all gradients of the bucket, with gaps of zeros; nil if they are of another type, or on a device.
func Elements[T Element](b *Bucket) []T {
	if b.raw == nil || C.ddp_bucket_dtype(b.raw) != dtypeOf[T]() || C.ddp_bucket_device(b.raw).kind != C.DDP_DEVICE_CPU {
		return nil
	}
	return unsafe.Slice((*T)(C.ddp_bucket_buffer(b.raw)), int(C.ddp_bucket_count(b.raw)))
}

// Start starts libddp's own reduction of the bucket, which ends after the hook has returned. It is the last call of a hook.
func (b *Bucket) Start() error {
	if b.raw == nil || b.pending != nil {
		return &Error{InvalidState, "Bucket.Start is for once in a hook", -1, -1, -1, -1}
	}
	var failure *C.ddp_error
	return errorOf(C.ddp_allreduce(b.group, nil, C.ddp_bucket_buffer(b.raw), C.ddp_bucket_count(b.raw), C.ddp_bucket_dtype(b.raw),
		C.ddp_bucket_op(b.raw), &b.pending, &failure), failure)
}

// SetHook installs a communication hook in place of libddp's reduction. It gets each bucket with this rank's gradients, and leaves the
// result there, or ends with Bucket.Start. Every rank uses the same hook. It may run on any goroutine's thread inside a call. An error or
// a panic breaks the context on every rank, and Finalize returns it. nil: libddp's own reduction.
func (c *Context) SetHook(hook func(*Bucket) error) error {
	if hook == nil {
		return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_go_set_hook(c.raw, 0, e) })
	}
	handle := cgo.NewHandle(hook)
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_go_set_hook(c.raw, C.uintptr_t(handle), e) })
	if err != nil {
		handle.Delete()
	}
	return err
}

// run calls a hook; a panic becomes an error.
func run(hook func(*Bucket) error, bucket *Bucket) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panicked: %v", panicked)
		}
	}()
	return hook(bucket)
}

//export ddpGoHook
func ddpGoHook(handle C.uintptr_t, group *C.ddp_group, raw *C.ddp_bucket, work **C.ddp_work, failure **C.ddp_error) C.ddp_status {
	bucket := &Bucket{raw: raw, group: group}
	err := run(cgo.Handle(handle).Value().(func(*Bucket) error), bucket)
	bucket.raw, bucket.group = nil, nil
	if err == nil {
		*work = bucket.pending
		return C.DDP_OK
	}
	if bucket.pending != nil {
		C.ddp_work_free(bucket.pending)
	}
	code, message := C.ddp_status(C.DDP_ERROR_CALLBACK), err.Error()
	if own := (*Error)(nil); errors.As(err, &own) {
		code, message = C.ddp_status(own.Status), own.Message
	}
	text := C.CString(strings.ReplaceAll(message, "\x00", " "))
	defer free(text)
	*failure = C.ddp_error_create(code, text)
	return code
}

//export ddpGoDestroy
func ddpGoDestroy(handle C.uintptr_t) { cgo.Handle(handle).Delete() }
