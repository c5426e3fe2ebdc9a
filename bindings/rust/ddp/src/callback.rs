//! Closures that libddp calls. A panic does not unwind into C: it becomes an error.
use crate::error::{Error, Status};
use ddp_sys as sys;
use std::any::Any;
use std::ffi::CString;
use std::os::raw::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The result of a hook. An [`Error`] keeps its status; any other error becomes [`Status::Callback`] with its text.
pub type CallbackResult<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn sentence(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic.downcast_ref::<String>().map_or("with a payload that is not text", String::as_str),
    }
}

/// Drops what a panic left, whose destructor may panic in turn.
fn forget(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

/// Calls a closure for C: its error or panic goes to `*error`.
pub(crate) fn guard(error: *mut *mut sys::ddp_error, function: impl FnOnce() -> CallbackResult<()>) -> sys::ddp_status {
    let failed = match catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok(())) => return sys::DDP_OK,
        Ok(Err(why)) => match why.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => Error::new(Status::Callback, other.to_string()),
        },
        Err(panic) => {
            let told = Error::new(Status::Callback, format!("panicked: {}", sentence(&*panic)));
            forget(panic);
            told
        }
    };
    let code = failed.status().code();
    if !error.is_null() {
        let message = CString::new(failed.message().replace('\0', " ")).unwrap_or_default();
        // SAFETY: libddp takes ownership of the object.
        unsafe { *error = sys::ddp_error_create(code, message.as_ptr()) };
    }
    code
}

/// `destroy` of a closure that was given to C as `Box<F>`.
pub(crate) unsafe extern "C" fn destroy<F>(user_data: *mut c_void) {
    let closure = Box::from_raw(user_data as *mut F);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
        forget(panic);
    }
}
