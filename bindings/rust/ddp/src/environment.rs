//! Facts about this process and this library.
use crate::error::{call, left, text, Result};
use ddp_sys as sys;
use std::ffi::CStr;
use std::ops::Range;

/// The facts that a launcher told this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The rank.
    pub rank: i32,
    /// The number of ranks.
    pub world_size: i32,
    /// The rank on this machine, to choose a device.
    pub local_rank: i32,
    /// The number of ranks on this machine.
    pub local_world_size: i32,
    /// Restarts of the job.
    pub restart: i64,
    /// "ddprun", "torchrun", "slurm" or another.
    pub launcher: String,
}

/// Reads the launcher's environment. `NotFound`: there is no launcher.
pub fn environment() -> Result<Environment> {
    // SAFETY: struct_size is set, and the text ends with a NUL.
    unsafe {
        let mut told: sys::ddp_environment = std::mem::zeroed();
        told.struct_size = std::mem::size_of_val(&told);
        call(|e| sys::ddp_environment_get(&mut told, e))?;
        Ok(Environment {
            rank: told.rank,
            world_size: told.world_size,
            local_rank: told.local_rank,
            local_world_size: told.local_world_size,
            restart: told.restart,
            launcher: CStr::from_ptr(told.launcher.as_ptr()).to_string_lossy().into_owned(),
        })
    }
}

/// The version of the loaded library.
pub fn version() -> String {
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(sys::ddp_version()) }.to_string_lossy().into_owned()
}

/// Whether a group can be created with this backend; if not, the error says why.
pub fn backend_available(name: &str) -> Result<()> {
    let name = text("backend", name)?;
    // SAFETY: the name outlives the call.
    left(|e| {
        unsafe { sys::ddp_backend_available(name.as_ptr(), e) };
    })
}

/// The share of a rank of samples 0 to count - 1. Shares lie in the order of ranks and differ by at most one sample.
pub fn shard_range(count: i64, rank: i32, world_size: i32) -> Result<Range<i64>> {
    let (mut begin, mut end) = (0, 0);
    // SAFETY: plain numbers.
    call(|e| unsafe { sys::ddp_shard_range(count, rank, world_size, &mut begin, &mut end, e) })?;
    Ok(begin..end)
}
