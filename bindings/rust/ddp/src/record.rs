//! The program's part of a record: `docs/record.md`.
use crate::error::{call, text, Result};
use ddp_sys as sys;
use std::marker::PhantomData;

/// A mark in the record, until it is dropped. It stays on its thread.
#[must_use = "the mark ends where this is dropped"]
pub struct Mark(PhantomData<*const ()>);

/// Begins a mark, such as "forward".
pub fn mark(name: &str) -> Result<Mark> {
    let name = text("name", name)?;
    // SAFETY: libddp copies the name.
    call(|e| unsafe { sys::ddp_mark_begin(name.as_ptr(), e) })?;
    Ok(Mark(PhantomData))
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: on the thread that began it.
        unsafe { sys::ddp_mark_end(std::ptr::null_mut()) };
    }
}

/// How much work there is, for `ddprun --status`: samples of this rank in a step, and steps of the run. 0: unknown.
pub fn set_workload(samples: i64, steps: i64) -> Result<()> {
    // SAFETY: plain numbers.
    call(|e| unsafe { sys::ddp_set_workload(samples, steps, e) })
}

/// A group that breaks because of this rank sends the process this signal. 0: none.
pub fn set_blame_signal(signal: i32) -> Result<()> {
    // SAFETY: a plain number.
    call(|e| unsafe { sys::ddp_set_blame_signal(signal, e) })
}
