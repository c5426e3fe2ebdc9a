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

// Skipped says whether the parameter is skipped in the next step.
func (c *Context) Skipped(param *Param) (bool, error) {
	if err := c.own(param); err != nil {
		return false, err
	}
	if err := c.enter(); err != nil {
		return false, err
	}
	defer c.leave()
	return C.ddp_skipped(c.raw, param.index) == 1, nil
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

// VoteLevel casts a number from 0 to 32, of which the greatest of all ranks counts.
func (c *Context) VoteLevel(level int) error {
	return c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_vote_level(c.raw, C.int32_t(level), e) })
}

// Votes are the bits that at least one rank, and that all ranks have cast in the last step, and the greatest level.
func (c *Context) Votes() (any, all uint32, level int, err error) {
	var some, every C.uint32_t
	var greatest C.int32_t
	err = c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_step_votes(c.raw, &some, &every, &greatest, e) })
	return uint32(some), uint32(every), int(greatest), err
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

// ClipFactor is the number by which ClipGradNorm would multiply, for Optimizer.Step.
func (c *Context) ClipFactor(norm int, max float64) (float64, error) {
	var value C.double
	err := c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_clip_factor(c.raw, C.int32_t(norm), C.double(max), &value, e)
	})
	return float64(value), err
}

// ShareBatch asks for shares of a global batch by the speed of the ranks, before Commit: batch_share.h. With WeightedMean. most: samples
// that fit this rank's memory; 0: no bound.
func (c *Context) ShareBatch(samples, multiple, most int64) error {
	return c.call(func(e **C.ddp_error) C.ddp_status {
		return C.ddp_share_batch(c.raw, C.int64_t(samples), C.int64_t(multiple), C.int64_t(most), e)
	})
}

// BatchShare is this rank's share of the next step: samples from begin up to end.
func (c *Context) BatchShare() (begin, end int64, err error) {
	var first, last C.int64_t
	err = c.call(func(e **C.ddp_error) C.ddp_status { return C.ddp_batch_share(c.raw, &first, &last, e) })
	return int64(first), int64(last), err
}
