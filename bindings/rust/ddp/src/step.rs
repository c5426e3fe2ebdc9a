//! A step: from the first gradient to the result.
use crate::context::{Context, Param, ParamId};
use crate::element::Element;
use crate::error::{call, not_now, wrong, Result, Status};
use ddp_sys as sys;
use std::os::raw::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often a gradient was announced in this step. Several threads may announce gradients, but each only one of them at a time.
pub(crate) struct Announced {
    count: AtomicU32,
    uses: u32,
}

const BUSY: u32 = 1 << 31;

impl Announced {
    pub fn new(uses: u32) -> Announced {
        Announced { count: AtomicU32::new(0), uses: uses.min(BUSY - 1) }
    }

    pub fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Whether libddp may work on the gradient.
    fn taken(&self) -> bool {
        self.count.load(Ordering::Acquire) >= self.uses
    }

    fn take_all(&self) {
        self.count.store(self.uses, Ordering::Release);
    }

    /// Announces once, by `function`.
    fn once(&self, name: &str, function: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.count.load(Ordering::Acquire);
        let claimed = before < self.uses && self.count.compare_exchange(before, before | BUSY, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !claimed {
            return Err(not_now(format!(
                "the gradient of '{name}' was announced {} times in this step already, or another thread announces it",
                self.uses
            )));
        }
        let done = function();
        self.count.store(if done.is_ok() { before + 1 } else { before }, Ordering::Release);
        done
    }
}

/// A step under way. [`finish`](Self::finish) ends it. A step that is dropped before that stays open: [`Context::discard`].
#[must_use = "finish() ends the step"]
pub struct Step<'a> {
    context: &'a mut Context,
}

impl<'a> Step<'a> {
    pub(crate) fn new(context: &'a mut Context) -> Step<'a> {
        Step { context }
    }

    pub(crate) fn context(&self) -> &Context {
        self.context
    }

    pub(crate) fn context_mut(&mut self) -> &mut Context {
        self.context
    }

    /// A parameter's value, for the forward and backward pass.
    pub fn value<T: Element>(&self, param: Param<T>) -> Result<&[T]> {
        self.context.value(param)
    }

    /// A gradient, before it is announced. libddp does not zero it: it holds the result of the last step.
    pub fn grad_mut<T: Element>(&mut self, param: Param<T>) -> Result<&mut [T]> {
        let slot = self.context.slot(param.id())?;
        if slot.announced.taken() {
            return Err(not_now(format!("the gradient of '{}' was announced, and libddp works on it until Step::finish", slot.name)));
        }
        if slot.arriving {
            return Err(not_now(format!("values of '{}' may still arrive: call Context::wait_value before the step", slot.name)));
        }
        let place = self.context.place(param)?;
        // SAFETY: not announced, and self is borrowed exclusively, so that nothing is announced while the slice lives.
        Ok(unsafe { &mut *place })
    }

    /// Announces that a gradient is complete: the averaging over ranks may start.
    pub fn ready(&self, param: impl Into<ParamId>) -> Result<()> {
        let (param, context) = (param.into(), &*self.context);
        let slot = context.slot(param)?;
        // SAFETY: "Threads: any, several at once for different parameters", which once() sees to.
        slot.announced.once(&slot.name, || call(|e| unsafe { sys::ddp_grad_ready(context.raw, param.index(), e) }))
    }

    /// Copies a gradient to its place and announces it.
    pub fn put<T: Element>(&self, param: Param<T>, gradient: &[T]) -> Result<()> {
        self.put_with(param, gradient, 0)
    }

    /// Adds to the gradients of unsynced steps since the last synced one, and announces the sum.
    pub fn put_add<T: Element>(&self, param: Param<T>, gradient: &[T]) -> Result<()> {
        self.put_with(param, gradient, sys::DDP_PUT_ADD)
    }

    fn put_with<T: Element>(&self, param: Param<T>, gradient: &[T], flags: u32) -> Result<()> {
        let context = &*self.context;
        let slot = context.slot(param.id())?;
        let expected = slot.value.len();
        if gradient.len() != expected {
            return Err(wrong(format!("gradient has {} elements, and parameter '{}' has {expected}", gradient.len(), slot.name)));
        }
        let data = gradient.as_ptr() as *const c_void;
        // SAFETY: as in ready(); `gradient` has as many elements as the parameter.
        slot.announced.once(&slot.name, || call(|e| unsafe { sys::ddp_put(context.raw, param.id().index(), data, flags, e) }))
    }

    /// Says early that these gradients will not come in this step. Needs `ContextFlags::FIND_UNUSED`.
    pub fn mark_unused(&mut self, params: &[ParamId]) -> Result<()> {
        let indices = self.context.indices(params)?;
        // SAFETY: no slice of a gradient lives.
        call(|e| unsafe { sys::ddp_mark_unused(self.context.raw, indices.as_ptr(), indices.len(), e) })?;
        for param in params {
            self.context.slot(*param)?.announced.take_all();
        }
        Ok(())
    }

    /// Ends the backward pass, and waits until every gradient is reduced: [`Context::grad`]. Collective if synced. `Nonfinite` with
    /// `ContextFlags::SKIP_NONFINITE`: the step has no result, on any rank, and the next may follow.
    pub fn finish(self) -> Result<()> {
        let context = self.context;
        // SAFETY: one thread: self is consumed.
        let ended = call(|e| unsafe { sys::ddp_finalize(context.raw, e) });
        context.open = false;
        context.torn = match &ended {
            Err(error) if error.status() != Status::Nonfinite => Some(error.clone()),
            _ => None,
        };
        ended
    }

    /// Ends a step that went wrong. All ranks discard it, or contexts break.
    pub fn discard(self) -> Result<()> {
        self.context.discard()
    }
}
