package ddp

// #define DDP_EXPERIMENTAL 1
// #include <ddp/ddp.h>
import "C"

func (c *Context) indices(params []*Param) (*C.ddp_param, C.size_t, error) {
	list := make([]C.ddp_param, len(params)+1)
	for i, param := range params {
		if err := c.own(param); err != nil {
			return nil, 0, err
		}
		list[i] = param.index
	}
	return &list[0], C.size_t(len(params)), nil
}

// MarkUnused says early that these gradients will not come in this step. With FindUnused.
func (c *Context) MarkUnused(params ...*Param) error {
	list, count, err := c.indices(params)
	if err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_mark_unused(c.raw, list, count, e) })
}

// ParamUsed says whether any rank used the parameter in the last synced step.
func (c *Context) ParamUsed(param *Param) (bool, error) {
	if err := c.own(param); err != nil {
		return false, err
	}
	var used C.int32_t
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_param_used(c.raw, param.index, &used, e) })
	return used != 0, err
}

// SetFrozen freezes parameters, or thaws them: until the next change they take no part. Alike on all ranks.
func (c *Context) SetFrozen(frozen bool, params ...*Param) error {
	list, count, err := c.indices(params)
	if err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_set_frozen(c.raw, list, count, truth(frozen), e) })
}

// SkipParams leaves parameters out of the next step. authority: the rank whose choice counts; -1: all ranks give the same.
func (c *Context) SkipParams(authority int, params ...*Param) error {
	list, count, err := c.indices(params)
	if err != nil {
		return err
	}
	return c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_skip_params(c.raw, list, count, C.int32_t(authority), e)
	})
}

// SetWeight sets this rank's weight for WeightedMean, normally the number of samples in its batch. Before StepBegin.
func (c *Context) SetWeight(weight float64) error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_set_weight(c.raw, C.double(weight), e) })
}

// Join: a rank without more inputs takes part in the other ranks' steps until all have joined. With the flag Join, instead of the next
// StepBegin. Collective.
func (c *Context) Join() error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_join(c.raw, e) })
}

// Vote casts bits that all ranks hear of with the next synced step: vote.h. With the flag Votes.
func (c *Context) Vote(bits uint32) error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_vote(c.raw, C.uint32_t(bits), e) })
}

// Votes are the bits that at least one rank, and that all ranks have cast in the last step.
func (c *Context) Votes() (any, all uint32, err error) {
	var some, every C.uint32_t
	var level C.int32_t
	err = c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_votes(c.raw, &some, &every, &level, e) })
	return uint32(some), uint32(every), err
}

// TrackGradNorm counts the p-norm of the results of each step, before Commit. No params: of all. It returns the norm's number.
func (c *Context) TrackGradNorm(p float64, params ...*Param) (int, error) {
	list, count, err := c.indices(params)
	if err != nil {
		return 0, err
	}
	if count == 0 {
		list = nil
	}
	var norm C.int32_t
	err = c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_track_grad_norm(c.raw, C.double(p), list, count, &norm, e)
	})
	return int(norm), err
}

// GradNorm is the norm in the last step, before clipping.
func (c *Context) GradNorm(norm int) (float64, error) {
	var value C.double
	err := c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_grad_norm(c.raw, C.int32_t(norm), &value, e) })
	return float64(value), err
}

// ClipGradNorm multiplies the gradients of the norm by min(1, max / (norm + 1e-6)), and returns the norm before. Alike on all ranks.
func (c *Context) ClipGradNorm(norm int, max float64) (float64, error) {
	var value C.double
	err := c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_clip_grad_norm(c.raw, C.int32_t(norm), C.double(max), &value, e)
	})
	return float64(value), err
}
