package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
// #include <stdlib.h>
import "C"

import (
	"time"
	"unsafe"
)

// ElasticOptions are ddp_elastic_options. 0 is libddp's default.
type ElasticOptions struct {
	Group              GroupOptions // the store, and how groups are made; GroupName names the job
	MinWorld, MaxWorld int
	Settle             time.Duration // longer than the longest step, evaluation or checkpoint
}

// ElasticStep has the facts of a step: ddp_elastic_step.
type ElasticStep struct {
	Step, Roster    int64
	Rank, WorldSize int
	Changed         bool // the roster is new: views may have moved
	Joined, Left    int
	Leaving         bool // call Leave
	Fence           int64
}

// Elastic is a job whose ranks come and go: elastic.h.
type Elastic struct {
	handle
	raw      *C.ddp_elastic
	group    *Group
	holds    []*block
	contexts []*Context
	store    *Store
}

// NewElastic prepares a job. The first Begin joins it. options may be nil.
func NewElastic(options *ElasticOptions) (*Elastic, error) {
	if options == nil {
		options = &ElasticOptions{}
	}
	job := &Elastic{handle: handle{name: "the job"}, store: options.Group.Store}
	given := (*C.ddp_elastic_options)(C.calloc(1, C.sizeof_ddp_elastic_options))
	defer C.free(unsafe.Pointer(given))
	C.ddp_elastic_options_init_sized(given, C.sizeof_ddp_elastic_options)
	given.min_world, given.max_world = C.int32_t(options.MinWorld), C.int32_t(options.MaxWorld)
	given.settle_ms = milliseconds(options.Settle)
	err := options.Group.withC(func(group *C.ddp_group_options) error {
		given.group = group
		var failure *C.ddp_error
		return errorOf(C.ddp_elastic_create(given, &job.raw, &failure), failure)
	})
	if err != nil {
		return nil, err
	}
	job.group = newGroup(C.ddp_elastic_group(job.raw))
	job.group.borrowed = true
	if job.store != nil {
		job.store.groups.Add(1)
	}
	return job, nil
}

// Close closes the contexts of the job, and the job. Other ranks go on at once; call Leave first if they still train.
func (j *Elastic) Close() {
	j.end(func() {
		for _, context := range j.contexts {
			context.free()
		}
		j.group.Close()
		C.ddp_elastic_free(j.raw)
		release(j.holds)
		if j.store != nil {
			j.store.groups.Add(-1)
		}
	})
}

// Pointer is the ddp_elastic* of C, valid until Close.
func (j *Elastic) Pointer() unsafe.Pointer { return unsafe.Pointer(j.raw) }

func (j *Elastic) call(function func(**C.ddp_error) C.ddp_status) error {
	if err := j.enter(); err != nil {
		return err
	}
	defer j.leave()
	var failure *C.ddp_error
	return errorOf(function(&failure), failure)
}

// Group is the group of this roster, for collectives. Before the first Begin: this rank alone.
func (j *Elastic) Group() *Group { return j.group }

// NewContext begins a context of the job, which closes it. After Commit give it to AddContext.
func (j *Elastic) NewContext(options *ContextOptions) (*Context, error) {
	context, err := NewContext(j.group, options)
	if err != nil {
		return nil, err
	}
	context.job = j
	j.contexts = append(j.contexts, context)
	return context, nil
}

// AddContext adds a context of NewContext, which then moves from roster to roster. Every rank adds the same ones, before the first Begin.
func (j *Elastic) AddContext(context *Context) error {
	if context.job != j {
		return wrong("context is not of Elastic.NewContext of this job")
	}
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_add_context(j.raw, context.raw, e) })
}

// AddState adds memory of Make to the state: of an optimizer, for example. Every rank adds the same names and sizes, before the first Begin.
func AddState[T Element](j *Elastic, name string, memory []T) error {
	var holds []*block
	if err := hold("memory of '"+name+"'", memory, &holds); err != nil {
		return err
	}
	given := C.CString(name)
	defer free(given)
	err := j.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_elastic_add_state(j.raw, given, first(memory), C.size_t(sizeOf[T](len(memory))), e)
	})
	if err != nil {
		release(holds)
		return err
	}
	j.holds = append(j.holds, holds...)
	return nil
}

// SetStep: this rank has loaded the whole state after so many steps, before the first Begin.
func (j *Elastic) SetStep(step int64) error {
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_set_step(j.raw, C.int64_t(step), e) })
}

// Begin begins a step: takes in and lets go ranks, and gives each the state of the job. Collective.
func (j *Elastic) Begin() (ElasticStep, error) {
	var told C.ddp_elastic_step
	told.struct_size = C.sizeof_ddp_elastic_step
	err := j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_begin(j.raw, &told, e) })
	return ElasticStep{int64(told.step), int64(told.roster), int(told.rank), int(told.world_size), told.changed != 0, int(told.joined),
		int(told.left), told.leaving != 0, int64(told.fence)}, err
}

// Commit says that this rank has applied the step.
func (j *Elastic) Commit() error {
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_commit(j.raw, e) })
}

// ConfirmMember says whether this rank was a member of the newest roster during the call: before a checkpoint is renamed.
func (j *Elastic) ConfirmMember() error {
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_confirm_member(j.raw, e) })
}

// AnnounceLeave announces that this rank will leave. Go on until ElasticStep.Leaving.
func (j *Elastic) AnnounceLeave() error {
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_announce_leave(j.raw, e) })
}

// Leave leaves between two steps.
func (j *Elastic) Leave() error {
	return j.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_elastic_leave(j.raw, e) })
}
