//! Statuses of C as [`Error`].
use crate::words::in_rust;
use ddp_sys as sys;
use std::ffi::{CStr, CString};
use std::fmt;
use std::ptr;

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:ident,)*) => {
        /// The kind of an error. `include/ddp/status.h` and `docs/errors.md` explain each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A status that this crate does not know, of a newer libddp.
            Other(i32),
        }

        impl Status {
            pub(crate) fn of(code: i32) -> Status {
                match code {
                    $(sys::$code => Status::$name,)*
                    other => Status::Other(other),
                }
            }

            /// The number in C.
            pub fn code(self) -> i32 {
                match self {
                    $(Status::$name => sys::$code,)*
                    Status::Other(code) => code,
                }
            }
        }
    };
}
statuses! {
    /// An argument is out of range or wrong; the message names it.
    InvalidArgument = DDP_ERROR_INVALID_ARGUMENT,
    /// Not allowed now; the message says when.
    InvalidState = DDP_ERROR_INVALID_STATE,
    /// No such backend or module, or no launcher.
    NotFound = DDP_ERROR_NOT_FOUND,
    /// A name or rank is taken.
    AlreadyExists = DDP_ERROR_ALREADY_EXISTS,
    /// This build, backend or version cannot do it.
    Unsupported = DDP_ERROR_UNSUPPORTED,
    /// An allocation failed.
    OutOfMemory = DDP_ERROR_OUT_OF_MEMORY,
    /// The stated time passed; names the late ranks.
    Timeout = DDP_ERROR_TIMEOUT,
    /// The store or another rank cannot be reached.
    Unavailable = DDP_ERROR_UNAVAILABLE,
    /// Wrong or no job secret, or the system refused access.
    PermissionDenied = DDP_ERROR_PERMISSION_DENIED,
    /// A rank died or left its group: [`Error::rank`].
    RankFailed = DDP_ERROR_RANK_FAILED,
    /// Ranks disagree: parameters, plan, or the order or size of a collective.
    Mismatch = DDP_ERROR_MISMATCH,
    /// Aborted, or freed while in use.
    Aborted = DDP_ERROR_ABORTED,
    /// A gradient never became ready: [`Error::param`].
    MissingGradient = DDP_ERROR_MISSING_GRADIENT,
    /// A hook failed, or panicked.
    Callback = DDP_ERROR_CALLBACK,
    /// A file or socket operation failed.
    Io = DDP_ERROR_IO,
    /// A limit of libddp, or of open files or threads.
    Limit = DDP_ERROR_LIMIT,
    /// A defect in libddp: please report the message.
    Internal = DDP_ERROR_INTERNAL,
    /// A rank has no more inputs: `ContextFlags::STOP_AT_FIRST_JOIN`.
    UnevenInputs = DDP_ERROR_UNEVEN_INPUTS,
    /// A rank's program ended its wait: [`crate::set_interrupt_check`].
    Interrupted = DDP_ERROR_INTERRUPTED,
    /// NaN or infinity: `ContextFlags::REFUSE_NONFINITE`.
    Nonfinite = DDP_ERROR_NONFINITE,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the result is a static string.
        f.write_str(&unsafe { CStr::from_ptr(sys::ddp_status_name(self.code())) }.to_string_lossy())
    }
}

/// An error of libddp, with its sentence. Every rank gets the same error where a group breaks.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Facts>);

#[derive(Clone, PartialEq, Eq)]
struct Facts {
    status: Status,
    message: String,
    rank: Option<i32>,
    param: Option<i32>,
    bucket: Option<i32>,
    step: Option<i64>,
}

impl Error {
    /// An error with this status and sentence, for a hook to return.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error(Box::new(Facts { status, message: message.into(), rank: None, param: None, bucket: None, step: None }))
    }

    /// The kind of the error.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// libddp's sentence, with the names of this crate.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The rank at fault.
    pub fn rank(&self) -> Option<i32> {
        self.0.rank
    }

    /// The parameter that the error is about, by its index in registration order.
    pub fn param(&self) -> Option<i32> {
        self.0.param
    }

    /// The bucket that the error is about.
    pub fn bucket(&self) -> Option<i32> {
        self.0.bucket
    }

    /// The step, counted from 0, unsynced ones too.
    pub fn step(&self) -> Option<i64> {
        self.0.step
    }

    /// Takes an error object, which it frees.
    fn take(error: *mut sys::ddp_error, status: i32) -> Error {
        if error.is_null() {
            return Error::new(Status::of(status), "no more is known: memory is exhausted");
        }
        let known = |number: i32| if number < 0 { None } else { Some(number) };
        // SAFETY: the object is ours, and freed last.
        unsafe {
            let step = sys::ddp_error_step(error);
            let facts = Facts {
                status: Status::of(sys::ddp_error_code(error)),
                message: in_rust(&CStr::from_ptr(sys::ddp_error_message(error)).to_string_lossy()),
                rank: known(sys::ddp_error_rank(error)),
                param: known(sys::ddp_error_param(error)),
                bucket: known(sys::ddp_error_bucket(error)),
                step: if step < 0 { None } else { Some(step) },
            };
            sys::ddp_error_free(error);
            Error(Box::new(facts))
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status(), self.message())
    }
}

/// As `Display`: `main` may return it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// Makes a call of C with the place for its error.
pub(crate) fn call(function: impl FnOnce(*mut *mut sys::ddp_error) -> sys::ddp_status) -> Result<()> {
    let mut error = ptr::null_mut();
    match function(&mut error) {
        sys::DDP_OK => Ok(()),
        status => Err(Error::take(error, status)),
    }
}

/// The error that a function which returns no status has left, if any.
pub(crate) fn left(function: impl FnOnce(*mut *mut sys::ddp_error)) -> Result<()> {
    let mut error = ptr::null_mut();
    function(&mut error);
    if error.is_null() {
        return Ok(());
    }
    Err(Error::take(error, sys::DDP_ERROR_INTERNAL))
}

/// Text for C.
pub(crate) fn text(what: &str, given: &str) -> Result<CString> {
    CString::new(given).map_err(|_| wrong(format!("{what} has a NUL in it")))
}

pub(crate) fn wrong(message: impl Into<String>) -> Error {
    Error::new(Status::InvalidArgument, message)
}

pub(crate) fn not_now(message: impl Into<String>) -> Error {
    Error::new(Status::InvalidState, message)
}
