//! Communication hooks: `hook.h`.
use crate::callback::{destroy, guard, CallbackResult};
use crate::context::Context;
use crate::element::{Dtype, Element, ReduceOp};
use crate::error::{call, not_now, Result};
use crate::group::Collectives;
use ddp_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Mutex;

/// A bucket in a hook: gradients of this rank that are reduced together.
pub struct Bucket<'b> {
    raw: *mut sys::ddp_bucket,
    group: Collectives,
    _call: PhantomData<&'b mut ()>,
}

/// The promise that a bucket holds the result, now or when its collective has ended.
pub struct Reduced<'b> {
    work: *mut sys::ddp_work,
    _call: PhantomData<&'b mut ()>,
}

impl Drop for Reduced<'_> {
    fn drop(&mut self) {
        // SAFETY: ours until the hook gives it to libddp, and the bucket outlives the operation. NULL is allowed.
        unsafe { sys::ddp_work_free(self.work) }
    }
}

impl<'b> Bucket<'b> {
    /// The context's group.
    pub fn group(&self) -> &Collectives {
        &self.group
    }

    /// 0, 1, ... in launch order.
    pub fn index(&self) -> i32 {
        // SAFETY: the bucket is valid, here and below.
        unsafe { sys::ddp_bucket_index(self.raw) }
    }

    /// Whether it is the last of the step.
    pub fn is_last(&self) -> bool {
        unsafe { sys::ddp_bucket_is_last(self.raw) != 0 }
    }

    /// The number of synced steps before this one.
    pub fn step(&self) -> i64 {
        unsafe { sys::ddp_bucket_step(self.raw) }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Result<Dtype> {
        Dtype::of(unsafe { sys::ddp_bucket_dtype(self.raw) })
    }

    /// The operation to apply over ranks: the average, or the sum.
    pub fn op(&self) -> ReduceOp {
        match unsafe { sys::ddp_bucket_op(self.raw) } {
            sys::DDP_SUM => ReduceOp::Sum,
            _ => ReduceOp::Avg,
        }
    }

    /// All gradients of the bucket, with gaps of zeros, if they are of type T. On a device: None.
    pub fn elements<T: Element>(&mut self) -> Option<&mut [T]> {
        // SAFETY: the hook has the buffer for itself during the call.
        unsafe {
            let on_cpu = sys::ddp_bucket_device(self.raw).kind == sys::DDP_DEVICE_CPU;
            if !on_cpu || sys::ddp_bucket_dtype(self.raw) != T::DTYPE as i32 {
                return None;
            }
            let count = sys::ddp_bucket_count(self.raw);
            if count == 0 {
                return Some(&mut []);
            }
            Some(std::slice::from_raw_parts_mut(sys::ddp_bucket_buffer(self.raw) as *mut T, count))
        }
    }

    /// The bucket holds the result.
    pub fn reduced(self) -> Reduced<'b> {
        Reduced { work: ptr::null_mut(), _call: PhantomData }
    }

    /// Starts libddp's own reduction of the bucket, after which it holds the result.
    pub fn allreduce(self) -> Result<Reduced<'b>> {
        let mut work = ptr::null_mut();
        // SAFETY: libddp keeps the buffer until the work is done.
        call(|e| unsafe {
            sys::ddp_allreduce(
                self.group.raw,
                ptr::null(),
                sys::ddp_bucket_buffer(self.raw),
                sys::ddp_bucket_count(self.raw),
                sys::ddp_bucket_dtype(self.raw),
                sys::ddp_bucket_op(self.raw),
                &mut work,
                e,
            )
        })?;
        Ok(Reduced { work, _call: PhantomData })
    }
}

/// The user_data of a hook.
struct Hook<F>(Mutex<F>);

unsafe extern "C" fn run<F>(
    user_data: *mut c_void,
    group: *mut sys::ddp_group,
    bucket: *mut sys::ddp_bucket,
    work: *mut *mut sys::ddp_work,
    error: *mut *mut sys::ddp_error,
) -> sys::ddp_status
where
    F: for<'b> FnMut(Bucket<'b>) -> CallbackResult<Reduced<'b>> + Send + 'static,
{
    let hook = &*(user_data as *const Hook<F>);
    guard(error, || {
        // libddp calls a hook for one bucket at a time; a hook that panicked is poisoned.
        let mut function = hook.0.try_lock().map_err(|_| not_now("the hook has panicked before, or calls itself"))?;
        let reduced = function(Bucket { raw: bucket, group: Collectives { raw: group }, _call: PhantomData })?;
        *work = std::mem::ManuallyDrop::new(reduced).work;
        Ok(())
    })
}

impl Context {
    /// Installs a communication hook in place of libddp's reduction. It gets each bucket with this rank's gradients, and leaves the
    /// result there: [`Bucket::reduced`], or [`Bucket::allreduce`]. Every rank uses the same hook. An error or a panic breaks the
    /// context on every rank, and [`crate::Step::finish`] returns it.
    pub fn set_hook<F>(&mut self, hook: F) -> Result<()>
    where
        F: for<'b> FnMut(Bucket<'b>) -> CallbackResult<Reduced<'b>> + Send + 'static,
    {
        let user_data = Box::into_raw(Box::new(Hook(Mutex::new(hook)))) as *mut c_void;
        // SAFETY: libddp calls destroy once, or not at all if the call fails.
        unsafe {
            call(|e| sys::ddp_set_comm_hook(self.raw, Some(run::<F>), user_data, Some(destroy::<Hook<F>>), e)).map_err(|error| {
                destroy::<Hook<F>>(user_data);
                error
            })
        }
    }

    /// libddp's own reduction again.
    pub fn clear_hook(&mut self) -> Result<()> {
        // SAFETY: no function.
        call(|e| unsafe { sys::ddp_set_comm_hook(self.raw, None, ptr::null_mut(), None, e) })
    }

    /// Wraps the installed hook: it gets buckets in half precision (`Dtype::F16` or `Dtype::Bf16`).
    pub fn compress_hook(&mut self, dtype: Dtype) -> Result<()> {
        call(|e| unsafe { sys::ddp_compress_hook(self.raw, dtype as i32, e) })
    }
}
