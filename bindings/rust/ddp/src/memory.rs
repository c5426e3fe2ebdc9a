//! Memory that libddp has a pointer to.
use crate::element::{Dtype, Element};
use std::os::raw::c_void;

/// A `Vec` of which only the pointer is left, so that moving the owner says nothing about who else may write there.
pub(crate) struct Memory {
    pointer: *mut c_void,
    count: usize,
    dtype: Dtype,
    free: unsafe fn(*mut c_void, usize),
}

// SAFETY: elements are Send and Sync, and access goes by borrows of the owner.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

unsafe fn free<T>(pointer: *mut c_void, count: usize) {
    drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer as *mut T, count)));
}

impl Memory {
    pub fn new<T: Element>(elements: Vec<T>) -> Memory {
        let elements = elements.into_boxed_slice();
        let count = elements.len();
        Memory { pointer: Box::into_raw(elements) as *mut c_void, count, dtype: T::DTYPE, free: free::<T> }
    }

    pub fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        // SAFETY: no pointers.
        self.count * unsafe { ddp_sys::ddp_dtype_size(self.dtype as i32) }
    }

    /// The elements, of the type that they came with.
    ///
    /// # Safety
    /// Nobody writes there as long as the slice lives, which ends before self.
    pub unsafe fn slice<'a, T: Element>(&self) -> &'a [T] {
        assert_eq!(T::DTYPE, self.dtype);
        std::slice::from_raw_parts(self.pointer as *const T, self.count)
    }

    /// # Safety
    /// As [`slice`](Self::slice), and nobody reads there either.
    pub unsafe fn slice_mut<'a, T: Element>(&self) -> &'a mut [T] {
        assert_eq!(T::DTYPE, self.dtype);
        std::slice::from_raw_parts_mut(self.pointer as *mut T, self.count)
    }

    pub fn into_vec<T: Element>(self) -> Vec<T> {
        assert_eq!(T::DTYPE, self.dtype);
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: the box that `new` took apart.
        unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(whole.pointer as *mut T, whole.count)) }.into_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the box that `new` took apart, of the same type.
        unsafe { (self.free)(self.pointer, self.count) }
    }
}
