//! Optimizers for programs that have none: `optimizer.h`.
use crate::context::{Context, ParamId};
use crate::error::{call, text, wrong, Result};
use ddp_sys as sys;
use std::ptr;

/// SGD, AdamW, LAMB or Muon of all parameters of a context, sharded or not.
pub struct Optimizer {
    raw: *mut sys::ddp_optimizer,
    context: u64,
}

// SAFETY: each function takes the context exclusively as well.
unsafe impl Send for Optimizer {}

impl Drop for Optimizer {
    fn drop(&mut self) {
        // SAFETY: "Threads: any, once". C knows whether the context is gone.
        unsafe { sys::ddp_optimizer_free(self.raw) }
    }
}

impl Optimizer {
    /// Makes an optimizer, "adamw" with "lr=1e-3,weight_decay=0.1" for example: `docs/optimizers.md`. Collective.
    pub fn new(context: &mut Context, name: &str, options: &str) -> Result<Optimizer> {
        let (name, options, mut raw) = (text("name", name)?, text("options", options)?, ptr::null_mut());
        // SAFETY: a committed context, which is borrowed exclusively, here and below.
        call(|e| unsafe { sys::ddp_optimizer_create(context.raw, name.as_ptr(), options.as_ptr(), &mut raw, e) })?;
        Ok(Optimizer { raw, context: context.id })
    }

    fn of(&self, context: &Context) -> Result<()> {
        if self.context == context.id {
            Ok(())
        } else {
            Err(wrong("context is not that of the optimizer"))
        }
    }

    /// Changes an option of one parameter, or of all (None), from the next step on. Alike on all ranks.
    pub fn set(&mut self, context: &mut Context, param: Option<ParamId>, key: &str, value: f64) -> Result<()> {
        self.of(context)?;
        let key = text("key", key)?;
        let index = match param {
            None => -1,
            Some(param) => context.own(param).map(|()| param.index())?,
        };
        call(|e| unsafe { sys::ddp_optimizer_set(self.raw, index, key.as_ptr(), value, e) })
    }

    /// Updates the values from the gradients of the last step, each times `scale`: 1, or [`Context::clip_factor`]. With
    /// `ContextFlags::SHARD` [`Context::publish`] follows.
    pub fn step(&mut self, context: &mut Context, scale: f64) -> Result<()> {
        self.of(context)?;
        call(|e| unsafe { sys::ddp_optimizer_step(self.raw, scale, e) })
    }
}
