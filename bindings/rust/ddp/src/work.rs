//! Asynchronous collectives.
use crate::element::Element;
use crate::error::{call, Result};
use crate::group::GroupHandle;
use crate::memory::Memory;
use ddp_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};

/// A work of C with the memory that it uses.
struct Running {
    raw: *mut sys::ddp_work,
    memory: Memory,
}

// SAFETY: functions of works are "Threads: any".
unsafe impl Send for Running {}

impl Running {
    fn done(&self) -> bool {
        let mut done = 0;
        // SAFETY: the work is not freed yet. The call fails with the work, and sets `done` even so.
        unsafe { sys::ddp_work_test(self.raw, &mut done, ptr::null_mut()) };
        done != 0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: freed once. `memory` follows, so the work must be done.
        unsafe { sys::ddp_work_free(self.raw) };
    }
}

/// Works that the program has dropped before their end, with the memory in which libddp still writes.
#[derive(Default)]
pub(crate) struct Orphans(Mutex<Vec<Running>>);

impl Orphans {
    fn adopt(&self, work: Running) {
        if let Ok(mut waiting) = self.0.lock() {
            waiting.push(work);
        } else {
            std::mem::forget(work);
        }
    }

    /// Frees those that have ended meanwhile.
    fn sweep(&self) {
        if let Ok(mut waiting) = self.0.lock() {
            waiting.retain(|work| !work.done());
        }
    }

    /// The group is gone, which ends every work. Memory of a work that has not ended even so stays allocated.
    pub(crate) fn end(&mut self) {
        if let Ok(waiting) = self.0.get_mut() {
            for work in waiting.drain(..) {
                // SAFETY: not freed yet.
                unsafe { sys::ddp_work_wait(work.raw, 5000, ptr::null_mut()) };
                if !work.done() {
                    std::mem::forget(work);
                }
            }
        }
    }
}

/// A collective that is under way. A work that is dropped goes on, and its memory is freed once it has ended.
#[must_use = "wait() gives the buffer back"]
pub struct Work<T> {
    running: Option<Running>,
    group: Arc<GroupHandle>,
    _elements: PhantomData<T>,
}

impl<T: Element> Work<T> {
    pub(crate) fn start(
        group: &Arc<GroupHandle>,
        memory: Memory,
        begin: impl FnOnce(*mut c_void, usize, *mut *mut sys::ddp_work, *mut *mut sys::ddp_error) -> sys::ddp_status,
    ) -> Result<Work<T>> {
        group.orphans.sweep();
        let mut raw = ptr::null_mut();
        call(|e| begin(memory.pointer(), memory.len(), &mut raw, e))?;
        Ok(Work { running: Some(Running { raw, memory }), group: group.clone(), _elements: PhantomData })
    }

    /// Whether it has ended, successfully or not.
    pub fn is_done(&self) -> bool {
        self.running.as_ref().map_or(true, Running::done)
    }

    /// Waits until it has ended, at most the group's timeout, and gives the buffer back.
    pub fn wait(mut self) -> Result<Vec<T>> {
        let work = self.running.take().expect("wait() consumes the work");
        // SAFETY: not freed yet.
        let ended = call(|e| unsafe { sys::ddp_work_wait(work.raw, 0, e) });
        if let Err(error) = ended {
            self.running = Some(work); // drop() sees whether libddp still uses the memory
            return Err(error);
        }
        let Running { raw, memory } = &*std::mem::ManuallyDrop::new(work);
        // SAFETY: each is taken out once.
        unsafe {
            sys::ddp_work_free(*raw);
            Ok(ptr::read(memory).into_vec())
        }
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        if let Some(work) = self.running.take() {
            if !work.done() {
                self.group.orphans.adopt(work);
            }
        }
    }
}
