//! The rendezvous store.
use crate::error::{call, text, wrong, Result};
use ddp_sys as sys;
use std::ffi::CString;
use std::os::raw::{c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Milliseconds for C, where 0 is a default: a wait that is shorter than a millisecond is one.
pub(crate) fn milliseconds(time: Option<Duration>) -> i64 {
    time.map_or(0, |time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1))
}

/// Bytes of C, which this frees.
pub(crate) fn take_bytes(data: *mut c_void, size: usize) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: `size` bytes that belong to us.
    unsafe {
        let bytes = std::slice::from_raw_parts(data as *const u8, size).to_vec();
        sys::ddp_free(data);
        bytes
    }
}

/// Text of C, which this frees.
pub(crate) fn take_text(given: *mut c_char) -> String {
    // SAFETY: ends with a NUL and belongs to us.
    unsafe {
        let said = std::ffi::CStr::from_ptr(given).to_string_lossy().into_owned();
        sys::ddp_free(given as *mut c_void);
        said
    }
}

pub(crate) struct StoreHandle(pub *mut sys::ddp_store);

// SAFETY: every function of store.h is "Threads: any", and the last owner frees it.
unsafe impl Send for StoreHandle {}
unsafe impl Sync for StoreHandle {}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // SAFETY: the last owner; groups hold the handle too.
        unsafe { sys::ddp_store_free(self.0) }
    }
}

/// How to open a store: `ddp_store_options`.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// This process also runs the server (tcp only).
    pub is_server: bool,
    /// Bounds opening, and by default each later wait. None: 300 s.
    pub timeout: Option<Duration>,
    /// The job secret. None: from the environment.
    pub secret: Option<String>,
    /// Meet at any address without a job secret.
    pub insecure: bool,
}

/// The store in which ranks meet, for a program's own keys. Clones share one connection; the last one closes it.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<StoreHandle>);

impl Store {
    /// Opens a store: "tcp://host:port", "file:///path" or "etcd://host:port/name".
    pub fn open(uri: &str, options: &StoreOptions) -> Result<Store> {
        let uri = text("uri", uri)?;
        let secret = options.secret.as_ref().map(|secret| text("secret", secret)).transpose()?;
        let mut store = ptr::null_mut();
        // SAFETY: the strings outlive the call.
        unsafe {
            let mut given: sys::ddp_store_options = std::mem::zeroed();
            sys::ddp_store_options_init_sized(&mut given, std::mem::size_of_val(&given));
            given.uri = uri.as_ptr();
            given.is_server = options.is_server as i32;
            given.flags = if options.insecure { sys::DDP_STORE_INSECURE } else { 0 };
            given.timeout_ms = milliseconds(options.timeout);
            given.secret = secret.as_ref().map_or(ptr::null(), |secret| secret.as_ptr());
            call(|e| sys::ddp_store_create(&given, &mut store, e))?;
        }
        Ok(Store(Arc::new(StoreHandle(store))))
    }

    /// The pointer of C, valid while self is.
    pub fn as_ptr(&self) -> *mut sys::ddp_store {
        self.0 .0
    }

    /// The TCP port of the server; None for other stores.
    pub fn port(&self) -> Option<u16> {
        // SAFETY: as_ptr() is valid, here and below.
        u16::try_from(unsafe { sys::ddp_store_port(self.as_ptr()) }).ok()
    }

    /// Sets a key.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = text("key", key)?;
        call(|e| unsafe { sys::ddp_store_set(self.as_ptr(), key.as_ptr(), value.as_ptr() as *const c_void, value.len(), e) })
    }

    /// Waits until the key exists, and returns its value. timeout None: the store's.
    pub fn get(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        let (key, mut value, mut size) = (text("key", key)?, ptr::null_mut(), 0);
        call(|e| unsafe { sys::ddp_store_get(self.as_ptr(), key.as_ptr(), milliseconds(timeout), &mut value, &mut size, e) })?;
        Ok(take_bytes(value, size))
    }

    /// Waits until all keys exist. timeout None: the store's.
    pub fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<()> {
        let (_keep, pointers) = strings(keys)?;
        call(|e| unsafe { sys::ddp_store_wait(self.as_ptr(), pointers.as_ptr(), pointers.len(), milliseconds(timeout), e) })
    }

    /// Whether all keys exist now.
    pub fn check(&self, keys: &[&str]) -> Result<bool> {
        let ((_keep, pointers), mut exists) = (strings(keys)?, 0);
        call(|e| unsafe { sys::ddp_store_check(self.as_ptr(), pointers.as_ptr(), pointers.len(), &mut exists, e) })?;
        Ok(exists != 0)
    }

    /// Deletes a key. Returns whether it existed.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let (key, mut deleted) = (text("key", key)?, 0);
        call(|e| unsafe { sys::ddp_store_delete(self.as_ptr(), key.as_ptr(), &mut deleted, e) })?;
        Ok(deleted != 0)
    }

    /// Adds to the decimal integer under a key, and returns the sum. A missing key counts as 0.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let (key, mut sum) = (text("key", key)?, 0);
        call(|e| unsafe { sys::ddp_store_add(self.as_ptr(), key.as_ptr(), amount, &mut sum, e) })?;
        Ok(sum)
    }

    /// The keys that begin with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let (prefix, mut keys, mut size) = (text("prefix", prefix)?, ptr::null_mut(), 0);
        call(|e| unsafe { sys::ddp_store_list_keys(self.as_ptr(), prefix.as_ptr(), &mut keys, &mut size, e) })?;
        let listed = take_bytes(keys, size);
        Ok(listed.split(|byte| *byte == 0).filter(|key| !key.is_empty()).map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    /// Sets a key to `desired` if its value is `expected`, or if it is missing and `expected` is empty. Returns the value that the key
    /// then has.
    pub fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let (key, mut value, mut size) = (text("key", key)?, ptr::null_mut(), 0);
        let (old, new) = (expected.as_ptr() as *const c_void, desired.as_ptr() as *const c_void);
        call(|e| unsafe {
            sys::ddp_store_compare_set(self.as_ptr(), key.as_ptr(), old, expected.len(), new, desired.len(), &mut value, &mut size, e)
        })?;
        Ok(take_bytes(value, size))
    }
}

/// Strings of C, and pointers to them.
fn strings(keys: &[&str]) -> Result<(Vec<CString>, Vec<*const c_char>)> {
    if keys.is_empty() {
        return Err(wrong("keys is empty"));
    }
    let kept = keys.iter().map(|key| text("key", key)).collect::<Result<Vec<_>>>()?;
    let pointers = kept.iter().map(|key| key.as_ptr()).collect();
    Ok((kept, pointers))
}
