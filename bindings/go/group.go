package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"time"
	"unsafe"
)

// ReduceOp is what a collective does with the elements of all ranks.
type ReduceOp int32

// Avg divides the sum by the world size; for integers it truncates toward zero.
const (
	Sum  ReduceOp = C.DDP_SUM
	Avg  ReduceOp = C.DDP_AVG
	Prod ReduceOp = C.DDP_PROD
	Min  ReduceOp = C.DDP_MIN
	Max  ReduceOp = C.DDP_MAX
)

// Flags of a group: DDP_GROUP_* of group.h.
const (
	Deterministic uint32 = C.DDP_GROUP_DETERMINISTIC
	NoMatchCheck  uint32 = C.DDP_GROUP_NO_MATCH_CHECK
	OrAlone       uint32 = C.DDP_GROUP_OR_ALONE
	Insecure      uint32 = C.DDP_GROUP_INSECURE
)

// GroupOptions are ddp_group_options. The zero value is libddp's default: all of it comes from the launcher.
type GroupOptions struct {
	Rank, WorldSize                             int // of 0 ranks: from the launcher
	InitMethod, Backend, BackendOptions, Secret string
	GroupName                                   string
	Timeout                                     time.Duration
	Store                                       *Store // instead of InitMethod; keep it open while the group is
	Flags                                       uint32
	RoundRobin                                  int // 2 to 64: join this many as one
}

// withC calls with the options in memory of C.
func (o *GroupOptions) withC(function func(*C.ddp_group_options) error) error {
	given := (*C.ddp_group_options)(C.calloc(1, C.sizeof_ddp_group_options))
	defer C.free(unsafe.Pointer(given))
	C.ddp_group_options_init_sized(given, C.sizeof_ddp_group_options)
	if o.WorldSize != 0 {
		given.rank, given.world_size = C.int32_t(o.Rank), C.int32_t(o.WorldSize)
	}
	given.init_method, given.backend, given.backend_options = optional(o.InitMethod), optional(o.Backend), optional(o.BackendOptions)
	given.secret, given.group_name = optional(o.Secret), optional(o.GroupName)
	defer free(given.init_method, given.backend, given.backend_options, given.secret, given.group_name)
	given.timeout_ms, given.flags, given.round_robin = milliseconds(o.Timeout), C.uint32_t(o.Flags), C.uint32_t(o.RoundRobin)
	if o.Store != nil {
		if err := o.Store.enter(); err != nil {
			return err
		}
		defer o.Store.leave()
		given.store = o.Store.raw
	}
	return function(given)
}

// Group is a group of ranks.
type Group struct {
	handle
	raw             *C.ddp_group
	rank, worldSize int
	borrowed        bool   // the job's
	store           *Store // of GroupOptions, which must outlive the group
}

func newGroup(raw *C.ddp_group) *Group {
	return &Group{handle: handle{name: "the group"}, raw: raw, rank: int(C.ddp_group_rank(raw)), worldSize: int(C.ddp_group_world_size(raw))}
}

// NewGroup joins a group, and waits until every rank has joined. options nil: that of the launcher; a process without one is alone.
func NewGroup(options *GroupOptions) (*Group, error) {
	if options == nil {
		options = &GroupOptions{Flags: OrAlone}
	}
	var raw *C.ddp_group
	err := options.withC(func(given *C.ddp_group_options) error {
		var failure *C.ddp_error
		return errorOf(C.ddp_group_create(given, &raw, &failure), failure)
	})
	if err != nil {
		return nil, err
	}
	group := newGroup(raw)
	if options.Store != nil {
		group.store = options.Store
		group.store.groups.Add(1)
	}
	return group, nil
}

// Close leaves the group, unless a context still has it.
func (g *Group) Close() {
	g.end(func() {
		if !g.borrowed {
			C.ddp_group_free(g.raw)
		}
		if g.store != nil {
			g.store.groups.Add(-1)
		}
	})
}

// Pointer is the ddp_group* of C, valid until Close.
func (g *Group) Pointer() unsafe.Pointer { return unsafe.Pointer(g.raw) }

// Rank is this rank, from 0. In a job it is that of the roster.
func (g *Group) Rank() int {
	if g.enter() != nil {
		return g.rank
	}
	defer g.leave()
	return int(C.ddp_group_rank(g.raw))
}

// WorldSize is the number of ranks.
func (g *Group) WorldSize() int {
	if g.enter() != nil {
		return g.worldSize
	}
	defer g.leave()
	return int(C.ddp_group_world_size(g.raw))
}

// Backend is the backend's name; "" after Close.
func (g *Group) Backend() string {
	if g.enter() != nil {
		return ""
	}
	defer g.leave()
	return C.GoString(C.ddp_group_backend(g.raw))
}

func (g *Group) call(function func(**C.ddp_error) C.ddp_status) error {
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	var failure *C.ddp_error
	return errorOf(function(&failure), failure)
}

// Status is the error that broke the group.
func (g *Group) Status() error {
	return g.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_group_status(g.raw, e) })
}

// Abort breaks the group on every rank with this reason.
func (g *Group) Abort(reason string) error {
	given := C.CString(reason)
	defer free(given)
	return g.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_group_abort(g.raw, given, e) })
}

// Barrier returns when every rank has called it.
func (g *Group) Barrier() error {
	return g.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_barrier(g.raw, nil, e) })
}

// Store is the store that the ranks met in. Close it; it may outlive the group.
func (g *Group) Store() (*Store, error) {
	var raw *C.ddp_store
	err := g.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_group_store(g.raw, &raw, e) })
	if err != nil {
		return nil, err
	}
	return newStore(raw), nil
}

// Split divides the group: ranks of one color form a new one, ordered by key. Color -1: this rank is in none, and gets nil.
func (g *Group) Split(color, key int) (*Group, error) {
	var out *C.ddp_group
	err := g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_group_split(g.raw, C.int32_t(color), C.int32_t(key), &out, e)
	})
	if err != nil || out == nil {
		return nil, err
	}
	part := newGroup(out)
	if part.store = g.store; part.store != nil {
		part.store.groups.Add(1)
	}
	return part, nil
}

// RoundRobin makes one group of several of the same ranks, whose collectives run at once. It keeps them alive.
func RoundRobin(groups ...*Group) (*Group, error) {
	list := C.calloc(C.size_t(len(groups)+1), C.size_t(unsafe.Sizeof(uintptr(0))))
	defer C.free(list)
	for i, group := range groups {
		if err := group.enter(); err != nil {
			return nil, err
		}
		defer group.leave()
		unsafe.Slice((**C.ddp_group)(list), len(groups))[i] = group.raw
	}
	var out *C.ddp_group
	var failure *C.ddp_error
	if err := errorOf(C.ddp_group_round_robin((**C.ddp_group)(list), C.size_t(len(groups)), &out, &failure), failure); err != nil {
		return nil, err
	}
	return newGroup(out), nil
}

// AllReduce sets buffer to op over every rank's buffer, the same bits on each.
func AllReduce[T Element](g *Group, buffer []T, op ReduceOp) error {
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_allreduce(g.raw, nil, first(buffer), C.size_t(len(buffer)), dtypeOf[T](), C.ddp_reduce_op(op), nil, e)
	})
}

// Broadcast sends the buffer of rank root to every rank, in place.
func Broadcast[T Element](g *Group, buffer []T, root int) error {
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_broadcast(g.raw, first(buffer), C.size_t(len(buffer)), dtypeOf[T](), C.int32_t(root), nil, e)
	})
}

func parts(what string, whole, part, world int) error {
	if whole == part*world {
		return nil
	}
	return wrong("%s has %d elements, and %d parts of %d are needed", what, whole, world, part)
}

// AllGather sets recv to the send of all ranks, in their order.
func AllGather[T Element](g *Group, send, recv []T) error {
	if err := parts("recv", len(recv), len(send), g.WorldSize()); err != nil {
		return err
	}
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_allgather(g.raw, first(send), first(recv), C.size_t(len(send)), dtypeOf[T](), nil, e)
	})
}

// ReduceScatter sets recv to op over this rank's part of every rank's send.
func ReduceScatter[T Element](g *Group, send, recv []T, op ReduceOp) error {
	if err := parts("send", len(send), len(recv), g.WorldSize()); err != nil {
		return err
	}
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_reduce_scatter(g.raw, first(send), first(recv), C.size_t(len(recv)), dtypeOf[T](), C.ddp_reduce_op(op), nil, e)
	})
}

// AllToAll sends a part of send to each rank, equal parts.
func AllToAll[T Element](g *Group, send, recv []T) error {
	world := g.WorldSize()
	count := len(send) / world
	if err := parts("send", len(send), count, world); err != nil {
		return err
	}
	if err := parts("recv", len(recv), count, world); err != nil {
		return err
	}
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_all_to_all(g.raw, first(send), first(recv), C.size_t(count), dtypeOf[T](), nil, e)
	})
}

// AllToAllV is AllToAll with a count for each rank.
func AllToAllV[T Element](g *Group, send []T, sendCounts []uint64, recv []T, recvCounts []uint64) error {
	world := g.WorldSize()
	for what, given := range map[string]struct {
		counts   []uint64
		elements int
	}{"send": {sendCounts, len(send)}, "recv": {recvCounts, len(recv)}} {
		if len(given.counts) != world {
			return wrong("%s counts: %d numbers, not one for each of %d ranks", what, len(given.counts), world)
		}
		rest := uint64(given.elements)
		for _, count := range given.counts {
			if count > rest {
				return wrong("%s has %d elements, fewer than its counts", what, given.elements)
			}
			rest -= count
		}
		if rest != 0 {
			return wrong("%s has %d elements, more than its counts", what, given.elements)
		}
	}
	return g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_all_to_allv(g.raw, first(send), first(recv), (*C.uint64_t)(&sendCounts[0]), (*C.uint64_t)(&recvCounts[0]),
			C.size_t(world), dtypeOf[T](), nil, e)
	})
}
