package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"unsafe"
)

// Reduction is the result that a step gives for each gradient.
type Reduction int32

// WeightedMean is the mean with the weights of Context.SetWeight.
const (
	Mean         Reduction = C.DDP_REDUCTION_MEAN
	SumOfRanks   Reduction = C.DDP_REDUCTION_SUM
	WeightedMean Reduction = C.DDP_REDUCTION_WEIGHTED_MEAN
)

// Flags of a context: DDP_CONTEXT_* of context.h, which explains them.
const (
	NoRebuild          uint32 = C.DDP_CONTEXT_NO_REBUILD
	NoInitialBroadcast uint32 = C.DDP_CONTEXT_NO_INITIAL_BROADCAST
	NoBufferBroadcast  uint32 = C.DDP_CONTEXT_NO_BUFFER_BROADCAST
	FindUnused         uint32 = C.DDP_CONTEXT_FIND_UNUSED
	StaticGraph        uint32 = C.DDP_CONTEXT_STATIC_GRAPH
	KeepLocalUnused    uint32 = C.DDP_CONTEXT_KEEP_LOCAL_UNUSED
	SkipUnusedBuckets  uint32 = C.DDP_CONTEXT_SKIP_UNUSED_BUCKETS
	Join               uint32 = C.DDP_CONTEXT_JOIN
	DivideByPresent    uint32 = C.DDP_CONTEXT_DIVIDE_BY_PRESENT
	StopAtFirstJoin    uint32 = C.DDP_CONTEXT_STOP_AT_FIRST_JOIN
	ConsensusOrder     uint32 = C.DDP_CONTEXT_CONSENSUS_ORDER
	Check              uint32 = C.DDP_CONTEXT_CHECK
	RefuseNonfinite    uint32 = C.DDP_CONTEXT_REFUSE_NONFINITE
	SkipNonfinite      uint32 = C.DDP_CONTEXT_SKIP_NONFINITE
	VerifyBuffers      uint32 = C.DDP_CONTEXT_VERIFY_BUFFERS
	Autotune           uint32 = C.DDP_CONTEXT_AUTOTUNE
	Accumulate         uint32 = C.DDP_CONTEXT_ACCUMULATE
	Shard              uint32 = C.DDP_CONTEXT_SHARD
	Votes              uint32 = C.DDP_CONTEXT_VOTES
)

// ContextOptions are ddp_context_options. All ranks give the same. The zero value is libddp's default.
type ContextOptions struct {
	BucketCapBytes, FirstBucketCapBytes            uint64
	BucketCaps                                     []uint64 // if not empty, replaces both: one per bucket; the last repeats
	Reduction                                      Reduction
	Flags                                          uint32
	RebuildInterval, CheckInterval, VerifyInterval int64
}

// Param is a parameter of a context.
type Param struct {
	context *Context
	index   C.ddp_param
	name    string
	count   int
	dtype   C.ddp_dtype
}

// Index is its place in the order of registration, as in Error.Param.
func (p *Param) Index() int { return int(p.index) }

// Context is a model's parameters and the averaging of their gradients.
type Context struct {
	handle
	raw    *C.ddp_context
	holds  []*block
	params []*Param
	job    *Elastic // which closes the context
}

// NewContext begins a context on a group, which it keeps alive. All ranks make the contexts of a group in the same order. options may be
// nil.
func NewContext(group *Group, options *ContextOptions) (*Context, error) {
	if options == nil {
		options = &ContextOptions{}
	}
	given := (*C.ddp_context_options)(C.calloc(1, C.sizeof_ddp_context_options))
	defer C.free(unsafe.Pointer(given))
	C.ddp_context_options_init_sized(given, C.sizeof_ddp_context_options)
	given.bucket_cap_bytes, given.first_bucket_cap_bytes = C.uint64_t(options.BucketCapBytes), C.uint64_t(options.FirstBucketCapBytes)
	given.reduction, given.flags = C.ddp_reduction(options.Reduction), C.uint32_t(options.Flags)
	given.rebuild_interval, given.check_interval = C.int64_t(options.RebuildInterval), C.int64_t(options.CheckInterval)
	given.verify_interval = C.int64_t(options.VerifyInterval)
	if count := len(options.BucketCaps); count > 0 {
		caps := C.calloc(C.size_t(count), 8)
		defer C.free(caps)
		copy(unsafe.Slice((*uint64)(caps), count), options.BucketCaps)
		given.bucket_caps, given.bucket_cap_count = (*C.uint64_t)(caps), C.uint64_t(count)
	}
	context := &Context{handle: handle{name: "the context"}}
	err := group.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_context_create(group.raw, given, &context.raw, e) })
	if err != nil {
		return nil, err
	}
	return context, nil
}

// Close frees the context and its views: slices of View are then dangling. A context of a job is closed by Elastic.Close.
func (c *Context) Close() error {
	if c.job != nil {
		return &Error{InvalidState, "the context belongs to a job: Elastic.Close closes it", -1, -1, -1, -1}
	}
	c.free()
	return nil
}

func (c *Context) free() {
	c.end(func() {
		C.ddp_context_free(c.raw)
		release(c.holds)
	})
}

// Pointer is the ddp_context* of C, valid until Close.
func (c *Context) Pointer() unsafe.Pointer { return unsafe.Pointer(c.raw) }

func (c *Context) call(function func(**C.ddp_error) C.ddp_status) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	var failure *C.ddp_error
	return errorOf(function(&failure), failure)
}

// ParamOptions are rare properties of a parameter.
type ParamOptions struct {
	Ignored bool // neither value nor gradient is sent
	Delayed bool // reduced after all others
	InPlace bool // reduced at grad, without a copy: in_place.h
	Uses    int  // announcements in a step, one for each layer that shares it; 0 means 1
}

// describe calls with the description of a tensor, and keeps its memory while the context is open.
func describe[T Element](c *Context, name string, shape []int, value, grad []T, function func(*C.ddp_param_desc, **C.ddp_error) C.ddp_status) (int, error) {
	count := 1
	for _, extent := range shape {
		count *= extent
	}
	for what, memory := range map[string][]T{"value": value, "grad": grad} {
		if memory != nil && len(memory) != count {
			return 0, wrong("%s of '%s' has %d elements, and its shape is %v", what, name, len(memory), shape)
		}
	}
	var holds []*block
	if err := hold("value of '"+name+"'", value, &holds); err != nil {
		return 0, err
	}
	if err := hold("grad of '"+name+"'", grad, &holds); err != nil {
		release(holds)
		return 0, err
	}
	desc := (*C.ddp_param_desc)(C.calloc(1, C.sizeof_ddp_param_desc))
	defer C.free(unsafe.Pointer(desc))
	C.ddp_param_desc_init_sized(desc, C.sizeof_ddp_param_desc)
	extents := C.calloc(C.size_t(len(shape)+1), 8)
	defer C.free(extents)
	for i, extent := range shape {
		unsafe.Slice((*int64)(extents), len(shape))[i] = int64(extent)
	}
	desc.name = C.CString(name)
	defer free(desc.name)
	desc.shape, desc.ndim, desc.dtype = (*C.int64_t)(extents), C.int32_t(len(shape)), dtypeOf[T]()
	desc.data, desc.grad = first(value), first(grad)
	if err := c.call(func(e **C.ddp_error) C.ddp_status { return function(desc, e) }); err != nil {
		release(holds)
		return 0, err
	}
	c.holds = append(c.holds, holds...)
	return count, nil
}

// Register adds a parameter, in forward order. value and grad are memory of Make, of the shape's size; libddp copies gradients from grad
// and back. grad nil: the gradient lives in libddp's bucket, at View.
func Register[T Element](c *Context, name string, shape []int, value, grad []T) (*Param, error) {
	return RegisterWith(c, name, shape, value, grad, ParamOptions{})
}

// RegisterWith is Register with rare properties.
func RegisterWith[T Element](c *Context, name string, shape []int, value, grad []T, options ParamOptions) (*Param, error) {
	param := &Param{context: c, name: name, dtype: dtypeOf[T]()}
	var err error
	param.count, err = describe(c, name, shape, value, grad, func(desc *C.ddp_param_desc, e **C.ddp_error) C.ddp_status {
		for flag, set := range map[C.uint32_t]bool{
			C.DDP_PARAM_IGNORED: options.Ignored, C.DDP_PARAM_DELAYED: options.Delayed, C.DDP_PARAM_IN_PLACE: options.InPlace} {
			if set {
				desc.flags |= flag
			}
		}
		desc.uses = C.uint32_t(options.Uses)
		return C.ddp_register_param(c.raw, desc, &param.index, e)
	})
	if err != nil {
		return nil, err
	}
	c.params = append(c.params, param)
	return param, nil
}

// RegisterBuffer adds untrained state, such as running means. value is memory of Make.
func RegisterBuffer[T Element](c *Context, name string, shape []int, value []T) error {
	_, err := describe(c, name, shape, value, nil, func(desc *C.ddp_param_desc, e **C.ddp_error) C.ddp_status {
		return C.ddp_register_buffer(c.raw, desc, e)
	})
	return err
}

// Commit ends registration: ranks compare parameters, rank 0 sends its values, and libddp makes buckets. Collective.
func (c *Context) Commit() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_commit(c.raw, e) })
}

func (c *Context) own(param *Param) error {
	if param == nil || param.context != c {
		return wrong("param is of another context, or nil")
	}
	return nil
}

// View is the place of a gradient that was registered with a nil grad, in libddp's bucket. It is valid until the next StepBegin,
// SetGroup, Join, Elastic.Begin or Close. Leave it alone between GradReady and Finalize.
func View[T Element](c *Context, param *Param) ([]T, error) {
	if err := c.own(param); err != nil {
		return nil, err
	}
	if param.dtype != dtypeOf[T]() {
		return nil, wrong("parameter '%s' has another element type", param.name)
	}
	var view unsafe.Pointer
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_grad_view(c.raw, param.index, &view, e) })
	if err != nil || param.count == 0 {
		return []T{}, err
	}
	return unsafe.Slice((*T)(view), param.count), nil
}

// StepBegin prepares the next step: rebuilds buckets if due, and sends buffers. Collective.
func (c *Context) StepBegin() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_begin(c.raw, e) })
}

// GradReady announces that a gradient is complete. Leave it alone until Finalize has returned.
func (c *Context) GradReady(param *Param) error {
	if err := c.own(param); err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_grad_ready(c.raw, param.index, e) })
}

func put[T Element](c *Context, param *Param, gradient []T, flags C.uint32_t) error {
	if err := c.own(param); err != nil {
		return err
	}
	if param.dtype != dtypeOf[T]() {
		return wrong("parameter '%s' has another element type", param.name)
	}
	if len(gradient) != param.count {
		return wrong("gradient has %d elements, and parameter '%s' has %d", len(gradient), param.name, param.count)
	}
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_put(c.raw, param.index, first(gradient), flags, e) })
}

// Put copies a gradient, from any slice, to its place and announces it.
func Put[T Element](c *Context, param *Param, gradient []T) error { return put(c, param, gradient, 0) }

// PutAdd adds to the gradients of unsynced steps since the last synced one, and announces the sum.
func PutAdd[T Element](c *Context, param *Param, gradient []T) error {
	return put(c, param, gradient, C.DDP_PUT_ADD)
}

// Finalize ends the step: every gradient is then the mean over all ranks. Collective if synced. Nonfinite with SkipNonfinite: the step
// has no result, on any rank, and the next may follow.
func (c *Context) Finalize() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_finalize(c.raw, e) })
}

// Discard ends a step that went wrong, instead of Finalize, and forgets unsynced steps. Collective.
func (c *Context) Discard() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_discard(c.raw, e) })
}

// SetSync with false: the following steps do not communicate, and the next synced step reduces the sums.
func (c *Context) SetSync(sync bool) error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_set_sync(c.raw, truth(sync), e) })
}

// SetGroup moves the context to another group, between steps or after it broke. Collective in the new group.
func (c *Context) SetGroup(group *Group) error {
	return group.call(func(e **C.ddp_error) C.ddp_status {
		if c.enter() != nil {
			return C.ddp_context_set_group(nil, group.raw, e)
		}
		defer c.leave()
		return C.ddp_context_set_group(c.raw, group.raw, e)
	})
}

// Abort breaks the context and its group on every rank.
func (c *Context) Abort(reason string) error {
	given := C.CString(reason)
	defer free(given)
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_context_abort(c.raw, given, e) })
}

// UseHook installs one of libddp's hooks: "powersgd" with "rank=2", for example. docs/hooks.md lists them.
func (c *Context) UseHook(name, options string) error {
	givenName, givenOptions := C.CString(name), C.CString(options)
	defer free(givenName, givenOptions)
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_use_hook(c.raw, givenName, givenOptions, e) })
}

// CompressHook wraps the installed hook: it gets buckets in half precision, of F16 or BF16.
func CompressHook[T F16 | BF16](c *Context) error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_compress_hook(c.raw, dtypeOf[T](), e) })
}

// HookName is the installed hook.
func (c *Context) HookName() string {
	if c.enter() != nil {
		return ""
	}
	defer c.leave()
	return C.GoString(C.ddp_hook_name(c.raw))
}

// HookState is the state of this rank's hook, for a checkpoint: a file in the safetensors format.
func (c *Context) HookState() ([]byte, error) {
	var data unsafe.Pointer
	var size C.size_t
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_hook_state_save(c.raw, &data, &size, e) })
	if err != nil {
		return nil, err
	}
	return bytesOf(data, size), nil
}

// LoadHookState loads a saved state. sharedOnly: only the part that is the same on every rank, for another world size.
func (c *Context) LoadHookState(state []byte, sharedOnly bool) error {
	var flags C.uint32_t
	if sharedOnly {
		flags = C.DDP_HOOK_STATE_SHARED_ONLY
	}
	return c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_hook_state_load(c.raw, pointer(state), C.size_t(len(state)), flags, e)
	})
}

// Plan is the plan as JSON: which gradients form a bucket.
func (c *Context) Plan() (string, error) {
	var said *C.char
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_plan_save(c.raw, &said, e) })
	if err != nil {
		return "", err
	}
	defer C.ddp_free(unsafe.Pointer(said))
	return C.GoString(said), nil
}

// AdoptPlan takes the plan of an earlier run, before Commit or between steps.
func (c *Context) AdoptPlan(plan string) error {
	given := C.CString(plan)
	defer free(given)
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_plan_adopt(c.raw, given, e) })
}
