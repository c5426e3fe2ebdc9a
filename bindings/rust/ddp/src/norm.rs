//! Norms of the reduced gradients, and clipping: `norm.h`.
use crate::context::{Context, ContextBuilder, ParamId};
use crate::error::{call, wrong, Result};
use ddp_sys as sys;

/// A norm that a context counts.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    context: u64,
    index: i32,
}

impl ContextBuilder {
    /// Counts the p-norm of the results of each step. params: empty for all.
    pub fn track_grad_norm(&mut self, p: f64, params: &[ParamId]) -> Result<Norm> {
        let (indices, mut index) = (self.0.indices(params)?, -1);
        let list = if indices.is_empty() { std::ptr::null() } else { indices.as_ptr() };
        // SAFETY: libddp copies the list.
        call(|e| unsafe { sys::ddp_track_grad_norm(self.as_ptr(), p, list, indices.len(), &mut index, e) })?;
        Ok(Norm { context: self.0.id, index })
    }
}

impl Context {
    fn index_of(&self, norm: Norm) -> Result<i32> {
        if norm.context == self.id {
            Ok(norm.index)
        } else {
            Err(wrong("norm is of another context"))
        }
    }

    /// The norm in the last step, before clipping.
    pub fn grad_norm(&self, norm: Norm) -> Result<f64> {
        let (index, mut value) = (self.index_of(norm)?, 0.0);
        // SAFETY: a committed context, here and below.
        call(|e| unsafe { sys::ddp_grad_norm(self.raw, index, &mut value, e) })?;
        Ok(value)
    }

    /// Multiplies the gradients of the norm by min(1, max_norm / (norm + 1e-6)). Returns the norm before. Alike on all ranks.
    pub fn clip_grad_norm(&mut self, norm: Norm, max_norm: f64) -> Result<f64> {
        let (index, mut value) = (self.index_of(norm)?, 0.0);
        call(|e| unsafe { sys::ddp_clip_grad_norm(self.raw, index, max_norm, &mut value, e) })?;
        Ok(value)
    }

    /// The number by which [`clip_grad_norm`](Self::clip_grad_norm) would multiply, for [`crate::Optimizer::step`].
    pub fn clip_factor(&mut self, norm: Norm, max_norm: f64) -> Result<f64> {
        let (index, mut value) = (self.index_of(norm)?, 0.0);
        call(|e| unsafe { sys::ddp_clip_factor(self.raw, index, max_norm, &mut value, e) })?;
        Ok(value)
    }
}
