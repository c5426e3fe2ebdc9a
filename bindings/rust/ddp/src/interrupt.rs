//! Ends waits from outside, for example with Ctrl-C.
use crate::callback::destroy;
use crate::error::{call, Result};
use ddp_sys as sys;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A check that panics ends the wait, as one that says yes.
unsafe extern "C" fn asked<F: Fn() -> bool>(user_data: *mut c_void) -> i32 {
    let check = &*(user_data as *const F);
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        true
    }) as i32
}

/// Installs the check of this process. libddp asks it about ten times a second on each thread that waits in a call; true ends the wait
/// with `Interrupted`. It must return soon and wait for no rank or store. Rust installs none by itself, so Ctrl-C ends the process.
pub fn set_interrupt_check<F: Fn() -> bool + Send + Sync + 'static>(check: F) -> Result<()> {
    let user_data = Box::into_raw(Box::new(check)) as *mut c_void;
    // SAFETY: libddp calls destroy once, or not at all if the call fails.
    unsafe {
        call(|e| sys::ddp_set_interrupt_check(Some(asked::<F>), user_data, Some(destroy::<F>), 0, e)).map_err(|error| {
            destroy::<F>(user_data);
            error
        })
    }
}

/// Takes the check away.
pub fn clear_interrupt_check() -> Result<()> {
    // SAFETY: no function.
    call(|e| unsafe { sys::ddp_set_interrupt_check(None, std::ptr::null_mut(), None, 0, e) })
}
