//! Parameters and ranks that take part in a step, and bits that travel with it: `participation.h`, `freeze.h`, `vote.h`.
use crate::context::{Context, ContextBuilder, ParamId};
use crate::error::{call, Result};
use crate::step::Step;
use ddp_sys as sys;
use std::ops::Range;

impl Context {
    /// Whether any rank used the parameter in the last synced step.
    pub fn param_used(&self, param: impl Into<ParamId>) -> Result<bool> {
        let (param, mut used) = (param.into(), 0);
        self.own(param)?;
        // SAFETY: a committed context, here and below.
        call(|e| unsafe { sys::ddp_param_used(self.raw, param.index(), &mut used, e) })?;
        Ok(used != 0)
    }

    /// Freezes parameters, or thaws them: until the next change they take no part. Alike on all ranks.
    pub fn set_frozen(&mut self, params: &[ParamId], frozen: bool) -> Result<()> {
        let indices = self.indices(params)?;
        call(|e| unsafe { sys::ddp_set_frozen(self.raw, indices.as_ptr(), indices.len(), frozen as i32, e) })
    }

    /// These parameters take no part in the next step. authority: the rank whose choice counts; None: all ranks give the same.
    pub fn skip_params(&mut self, params: &[ParamId], authority: Option<i32>) -> Result<()> {
        let indices = self.indices(params)?;
        call(|e| unsafe { sys::ddp_skip_params(self.raw, indices.as_ptr(), indices.len(), authority.unwrap_or(-1), e) })
    }

    /// Whether the parameter is skipped in the next step.
    pub fn skipped(&self, param: impl Into<ParamId>) -> Result<bool> {
        let param = param.into();
        self.own(param)?;
        Ok(unsafe { sys::ddp_skipped(self.raw, param.index()) } == 1)
    }

    /// This rank's weight for `Reduction::WeightedMean`, normally the number of samples in its batch. Before [`step`](Self::step).
    pub fn set_weight(&mut self, weight: f64) -> Result<()> {
        call(|e| unsafe { sys::ddp_set_weight(self.raw, weight, e) })
    }

    /// This rank's share of the next step, from [`ContextBuilder::share_batch`]: samples of the global batch.
    pub fn batch_share(&self) -> Result<Range<i64>> {
        let (mut begin, mut end) = (0, 0);
        call(|e| unsafe { sys::ddp_batch_share(self.raw, &mut begin, &mut end, e) })?;
        Ok(begin..end)
    }

    /// A rank without more inputs takes part in the other ranks' steps until all have joined. With `ContextFlags::JOIN`, instead of the
    /// next [`step`](Self::step). Collective.
    pub fn join(&mut self) -> Result<()> {
        call(|e| unsafe { sys::ddp_join(self.raw, e) })
    }

    /// Casts bits that all ranks hear of with the next synced step: 1 stop, 2 checkpoint, 4 skip, 8 not finite, 1 << 16 and above the
    /// program's own. With `ContextFlags::VOTES`.
    pub fn vote(&self, bits: u32) -> Result<()> {
        call(|e| unsafe { sys::ddp_step_vote(self.raw, bits, e) })
    }

    /// Casts a number from 0 to 32, of which the greatest of all ranks counts.
    pub fn vote_level(&self, level: i32) -> Result<()> {
        call(|e| unsafe { sys::ddp_step_vote_level(self.raw, level, e) })
    }

    /// The votes of the last step, the same on every rank.
    pub fn votes(&self) -> Result<Votes> {
        let mut votes = Votes::default();
        call(|e| unsafe { sys::ddp_step_votes(self.raw, &mut votes.any, &mut votes.all, &mut votes.level, e) })?;
        Ok(votes)
    }
}

/// The votes of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Votes {
    /// Bits that at least one rank has cast.
    pub any: u32,
    /// Bits that every rank has cast.
    pub all: u32,
    /// The greatest level.
    pub level: i32,
}

impl Step<'_> {
    /// [`Context::vote`] in a step.
    pub fn vote(&self, bits: u32) -> Result<()> {
        self.context().vote(bits)
    }
}

impl ContextBuilder {
    /// Asks for shares of a global batch by the speed of the ranks: `batch_share.h`. With `Reduction::WeightedMean`. most: samples that
    /// fit this rank's memory; 0: no bound.
    pub fn share_batch(&mut self, samples: i64, multiple: i64, most: i64) -> Result<()> {
        call(|e| unsafe { sys::ddp_share_batch(self.as_ptr(), samples, multiple, most, e) })
    }
}
