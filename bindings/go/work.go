package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
import "C"

// Work is a collective that is under way.
type Work struct {
	group *Group
	raw   *C.ddp_work
	holds []*block
	err   error
}

// StartAllReduce begins an allreduce of memory of Make. Leave the memory alone until Wait has returned, which every work needs. To let
// other goroutines go on while one waits, AllReduce is enough.
func StartAllReduce[T Element](g *Group, memory []T, op ReduceOp) (*Work, error) {
	work := &Work{group: g}
	if err := hold("memory", memory, &work.holds); err != nil {
		return nil, err
	}
	err := g.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_allreduce(g.raw, nil, first(memory), C.size_t(len(memory)), dtypeOf[T](), C.ddp_reduce_op(op), &work.raw, e)
	})
	if err != nil {
		release(work.holds)
		return nil, err
	}
	return work, nil
}

// Wait waits until the work is done, at most the group's timeout, and frees it. Later calls return the same. One goroutine waits for a
// work.
func (w *Work) Wait() error {
	if w.raw == nil {
		return w.err
	}
	// A group that closes meanwhile ends the work.
	var failure *C.ddp_error
	w.err = errorOf(C.ddp_work_wait(w.raw, 0, &failure), failure)
	var done C.int32_t
	C.ddp_work_test(w.raw, &done, nil)
	if done != 0 {
		release(w.holds)
	} // otherwise libddp may still write there: the memory stays held
	C.ddp_work_free(w.raw)
	w.raw = nil
	return w.err
}
