package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
import "C"

import (
	"unsafe"
)

// Owner is the owner of a parameter.
type Owner int32

// Elements of each rank, one rank, or all.
const (
	OwnerElements   Owner = C.DDP_OWNER_ELEMENTS
	OwnerWhole      Owner = C.DDP_OWNER_WHOLE
	OwnerReplicated Owner = C.DDP_OWNER_REPLICATED
)

// SetOwner says who is to own a parameter, before Commit and alike on all ranks. With the flag Shard: shard.h. cost: of an update, for
// OwnerWhole; 0: the number of elements.
func (c *Context) SetOwner(param *Param, owner Owner, cost float64) error {
	if err := c.own(param); err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_set_owner(c.raw, param.index, C.ddp_owner(owner), C.double(cost), e)
	})
}

// Piece has the elements of a parameter that this rank owns: from Begin up to End.
type Piece struct {
	Param      *Param
	Begin, End int
	Replicated bool // all ranks own it
}

// Pieces are those of this rank, in the order of parameters: gradients hold the result there, and nothing elsewhere.
func (c *Context) Pieces() ([]Piece, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var pieces []Piece
	for i := C.int32_t(0); i < C.ddp_piece_count(c.raw); i++ {
		var piece C.ddp_piece
		var failure *C.ddp_error
		piece.struct_size = C.sizeof_ddp_piece
		if err := errorOf(C.ddp_piece_get(c.raw, i, &piece, &failure), failure); err != nil {
			return nil, err
		}
		pieces = append(pieces, Piece{c.params[piece.param], int(piece.first), int(piece.first + piece.count), piece.replicated != 0})
	}
	return pieces, nil
}

// Publish sends the new values of this rank's pieces, and starts to receive those of others. Collective, after each synced step. Leave a
// value alone until WaitValue has returned for it.
func (c *Context) Publish() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_publish(c.raw, e) })
}

// WaitValue waits until a parameter has its new value.
func (c *Context) WaitValue(param *Param) error {
	if err := c.own(param); err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_wait_value(c.raw, param.index, e) })
}

// Optimizer is SGD, AdamW, LAMB or Muon of all parameters of a context, sharded or not: docs/optimizers.md.
type Optimizer struct {
	handle
	raw     *C.ddp_optimizer
	context *Context
}

// NewOptimizer makes an optimizer, "adamw" with "lr=1e-3,weight_decay=0.1" for example. Collective.
func NewOptimizer(context *Context, name, options string) (*Optimizer, error) {
	givenName, givenOptions := C.CString(name), C.CString(options)
	defer free(givenName, givenOptions)
	optimizer := &Optimizer{handle: handle{name: "the optimizer"}, context: context}
	err := context.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_optimizer_create(context.raw, givenName, givenOptions, &optimizer.raw, e)
	})
	if err != nil {
		return nil, err
	}
	return optimizer, nil
}

// Close frees the optimizer, before or after its context.
func (o *Optimizer) Close() { o.end(func() { C.ddp_optimizer_free(o.raw) }) }

// Pointer is the ddp_optimizer* of C, valid until Close.
func (o *Optimizer) Pointer() unsafe.Pointer { return unsafe.Pointer(o.raw) }

func (o *Optimizer) call(function func(**C.ddp_error) C.ddp_status) error {
	if err := o.enter(); err != nil {
		return err
	}
	defer o.leave()
	return o.context.call(function)
}

// Set changes an option of one parameter, or of all (nil), from the next step on. Alike on all ranks.
func (o *Optimizer) Set(param *Param, key string, value float64) error {
	index := C.ddp_param(-1)
	if param != nil {
		if err := o.context.own(param); err != nil {
			return err
		}
		index = param.index
	}
	given := C.CString(key)
	defer free(given)
	return o.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_optimizer_set(o.raw, index, given, C.double(value), e)
	})
}

// Step updates the values from the gradients of the last step, each times scale: 1, or that of ClipFactor. With the flag Shard Publish
// follows.
func (o *Optimizer) Step(scale float64) error {
	return o.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_optimizer_step(o.raw, C.double(scale), e) })
}
