//! Groups of ranks and their collectives.
use crate::elastic::ElasticHandle;
use crate::element::{Element, ReduceOp};
use crate::error::{call, text, wrong, Result};
use crate::memory::Memory;
use crate::store::{milliseconds, Store, StoreHandle};
use crate::work::{Orphans, Work};
use ddp_sys as sys;
use std::ffi::{CStr, CString};
use std::ops::{BitOr, Deref};
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Flags of a group. Combine them with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupFlags(pub u32);

impl GroupFlags {
    /// Sum in rank order.
    pub const DETERMINISTIC: GroupFlags = GroupFlags(sys::DDP_GROUP_DETERMINISTIC);
    /// Do not compare calls: a disagreement may corrupt sums, or hang until the timeout.
    pub const NO_MATCH_CHECK: GroupFlags = GroupFlags(sys::DDP_GROUP_NO_MATCH_CHECK);
    /// Without a launcher make a group of one.
    pub const OR_ALONE: GroupFlags = GroupFlags(sys::DDP_GROUP_OR_ALONE);
    /// Meet at any address without a job secret.
    pub const INSECURE: GroupFlags = GroupFlags(sys::DDP_GROUP_INSECURE);
}

impl BitOr for GroupFlags {
    type Output = GroupFlags;

    fn bitor(self, other: GroupFlags) -> GroupFlags {
        GroupFlags(self.0 | other.0)
    }
}

/// Options of a group: `ddp_group_options`. None is libddp's default.
#[derive(Clone, Default)]
pub struct GroupOptions {
    /// None: from the launcher.
    pub rank: Option<i32>,
    /// None: from the launcher.
    pub world_size: Option<i32>,
    /// Where ranks meet: "tcp://host:port", "file:///path", "etcd://host:port/name", "env://".
    pub init_method: Option<String>,
    /// "shm", "tcp" or another; "auto".
    pub backend: Option<String>,
    /// "key=value,key=value": `docs/backends.md`.
    pub backend_options: Option<String>,
    /// Bounds each wait of joining, and each collective.
    pub timeout: Option<Duration>,
    /// Separates groups that share a store.
    pub group_name: Option<String>,
    /// Instead of `init_method`.
    pub store: Option<Store>,
    /// The job secret.
    pub secret: Option<String>,
    /// Flags.
    pub flags: GroupFlags,
    /// 2 to 64: join this many as one.
    pub round_robin: u32,
}

impl GroupOptions {
    pub(crate) fn with_c<R>(&self, function: impl FnOnce(&sys::ddp_group_options) -> Result<R>) -> Result<R> {
        let mut kept: Vec<CString> = Vec::new();
        let mut given = |what: &str, value: &Option<String>| -> Result<*const std::os::raw::c_char> {
            match value {
                None => Ok(ptr::null()),
                Some(value) => {
                    kept.push(text(what, value)?);
                    Ok(kept[kept.len() - 1].as_ptr())
                }
            }
        };
        // SAFETY: init_sized fills the struct; the strings are kept until `function` has returned.
        let mut options: sys::ddp_group_options = unsafe {
            let mut options = std::mem::zeroed();
            sys::ddp_group_options_init_sized(&mut options, std::mem::size_of_val(&options));
            options
        };
        options.rank = self.rank.unwrap_or(-1);
        options.world_size = self.world_size.unwrap_or(-1);
        options.init_method = given("init_method", &self.init_method)?;
        options.backend = given("backend", &self.backend)?;
        options.backend_options = given("backend_options", &self.backend_options)?;
        options.group_name = given("group_name", &self.group_name)?;
        options.secret = given("secret", &self.secret)?;
        options.timeout_ms = milliseconds(self.timeout);
        options.store = self.store.as_ref().map_or(ptr::null_mut(), Store::as_ptr);
        options.flags = self.flags.0;
        options.round_robin = self.round_robin;
        let done = function(&options);
        drop(kept);
        done
    }
}

/// A group of C, which contexts and works hold too.
pub(crate) struct GroupHandle {
    pub raw: *mut sys::ddp_group,
    pub orphans: Orphans,
    _store: Option<Arc<StoreHandle>>,
    /// The job whose group this is; the job frees it.
    elastic: Option<Arc<ElasticHandle>>,
}

// SAFETY: collectives are "Threads: any"; the last owner frees it.
unsafe impl Send for GroupHandle {}
unsafe impl Sync for GroupHandle {}

impl Drop for GroupHandle {
    fn drop(&mut self) {
        if self.elastic.is_none() {
            // SAFETY: no context or work is left. It aborts works, so that orphans end.
            unsafe { sys::ddp_group_free(self.raw) };
        }
        self.orphans.end();
    }
}

/// The collectives of a group that wait. All ranks call the same ones in the same order.
pub struct Collectives {
    pub(crate) raw: *mut sys::ddp_group,
}

// SAFETY: every function here is "Threads: any".
unsafe impl Send for Collectives {}
unsafe impl Sync for Collectives {}

fn parts(what: &str, whole: usize, part: usize, world: usize) -> Result<()> {
    if part.checked_mul(world) == Some(whole) {
        return Ok(());
    }
    Err(wrong(format!("{what} has {whole} elements, and {world} parts of {part} are needed")))
}

impl Collectives {
    /// The pointer of C, valid while the group is.
    pub fn as_ptr(&self) -> *mut sys::ddp_group {
        self.raw
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        // SAFETY: the group is open, here and below.
        unsafe { sys::ddp_group_rank(self.raw) as usize }
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        unsafe { sys::ddp_group_world_size(self.raw) as usize }
    }

    /// `buffer` = op over every rank's `buffer`, the same bits on each.
    pub fn allreduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let (recv, count) = (buffer.as_mut_ptr() as *mut c_void, buffer.len());
        call(|e| unsafe { sys::ddp_allreduce(self.raw, ptr::null(), recv, count, T::DTYPE as i32, op as i32, ptr::null_mut(), e) })
    }

    /// Sends the buffer of rank `root` to every rank, in place.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let (data, count) = (buffer.as_mut_ptr() as *mut c_void, buffer.len());
        let root = i32::try_from(root).map_err(|_| wrong(format!("root: there is no rank {root}")))?;
        call(|e| unsafe { sys::ddp_broadcast(self.raw, data, count, T::DTYPE as i32, root, ptr::null_mut(), e) })
    }

    /// `recv` = the `send` of all ranks, in their order.
    pub fn allgather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        parts("recv", recv.len(), send.len(), self.world_size())?;
        let (from, to) = (send.as_ptr() as *const c_void, recv.as_mut_ptr() as *mut c_void);
        call(|e| unsafe { sys::ddp_allgather(self.raw, from, to, send.len(), T::DTYPE as i32, ptr::null_mut(), e) })
    }

    /// `recv` = op over this rank's part of every rank's `send`.
    pub fn reduce_scatter<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        parts("send", send.len(), recv.len(), self.world_size())?;
        let (from, to) = (send.as_ptr() as *const c_void, recv.as_mut_ptr() as *mut c_void);
        call(|e| unsafe { sys::ddp_reduce_scatter(self.raw, from, to, recv.len(), T::DTYPE as i32, op as i32, ptr::null_mut(), e) })
    }

    /// Each rank sends a part to each rank: equal parts.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        let count = send.len() / self.world_size();
        parts("send", send.len(), count, self.world_size())?;
        parts("recv", recv.len(), count, self.world_size())?;
        let (from, to) = (send.as_ptr() as *const c_void, recv.as_mut_ptr() as *mut c_void);
        call(|e| unsafe { sys::ddp_all_to_all(self.raw, from, to, count, T::DTYPE as i32, ptr::null_mut(), e) })
    }

    /// The same with a count for each rank.
    pub fn all_to_allv<T: Element>(&self, send: &[T], send_counts: &[u64], recv: &mut [T], recv_counts: &[u64]) -> Result<()> {
        for (what, buffer, counts) in [("send", send.len(), send_counts), ("recv", recv.len(), recv_counts)] {
            if counts.len() != self.world_size() {
                return Err(wrong(format!("{what}_counts has {} numbers, not one for each of {} ranks", counts.len(), self.world_size())));
            }
            let sum = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
            if sum != Some(buffer as u64) {
                return Err(wrong(format!("{what} has {buffer} elements, which is not the sum of {what}_counts")));
            }
        }
        let (from, to) = (send.as_ptr() as *const c_void, recv.as_mut_ptr() as *mut c_void);
        call(|e| unsafe {
            sys::ddp_all_to_allv(
                self.raw,
                from,
                to,
                send_counts.as_ptr(),
                recv_counts.as_ptr(),
                send_counts.len(),
                T::DTYPE as i32,
                ptr::null_mut(),
                e,
            )
        })
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        call(|e| unsafe { sys::ddp_barrier(self.raw, ptr::null_mut(), e) })
    }
}

/// A group of ranks. Contexts and works keep it: it is left when the last of them is gone.
pub struct Group {
    pub(crate) handle: Arc<GroupHandle>,
    collectives: Collectives,
}

impl Deref for Group {
    type Target = Collectives;

    fn deref(&self) -> &Collectives {
        &self.collectives
    }
}

impl Group {
    pub(crate) fn own(raw: *mut sys::ddp_group, store: Option<Arc<StoreHandle>>, elastic: Option<Arc<ElasticHandle>>) -> Group {
        let handle = GroupHandle { raw, orphans: Orphans::default(), _store: store, elastic };
        Group { handle: Arc::new(handle), collectives: Collectives { raw } }
    }

    /// Joins the group that the launcher names. A process without a launcher is alone.
    pub fn new() -> Result<Group> {
        Group::with(&GroupOptions { flags: GroupFlags::OR_ALONE, ..GroupOptions::default() })
    }

    /// Joins a group, and waits until every rank has joined.
    pub fn with(options: &GroupOptions) -> Result<Group> {
        let mut group = ptr::null_mut();
        // SAFETY: the options live during the call.
        options.with_c(|given| call(|e| unsafe { sys::ddp_group_create(given, &mut group, e) }))?;
        Ok(Group::own(group, options.store.as_ref().map(|store| store.0.clone()), None))
    }

    /// The backend, such as "shm".
    pub fn backend(&self) -> String {
        // SAFETY: valid while the group is.
        unsafe { CStr::from_ptr(sys::ddp_group_backend(self.raw)) }.to_string_lossy().into_owned()
    }

    /// The error that broke the group.
    pub fn status(&self) -> Result<()> {
        call(|e| unsafe { sys::ddp_group_status(self.raw, e) })
    }

    /// Breaks the group on every rank with this reason.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = text("reason", reason)?;
        call(|e| unsafe { sys::ddp_group_abort(self.raw, reason.as_ptr(), e) })
    }

    /// The store that the ranks met in. It may outlive the group.
    pub fn store(&self) -> Result<Store> {
        let mut store = ptr::null_mut();
        call(|e| unsafe { sys::ddp_group_store(self.raw, &mut store, e) })?;
        Ok(Store(Arc::new(StoreHandle(store))))
    }

    /// Divides the group: ranks of one color form a new one, ordered by key. Color None: this rank is in none.
    pub fn split(&self, color: Option<i32>, key: i32) -> Result<Option<Group>> {
        if color.map_or(false, |color| color < 0) {
            return Err(wrong("color is negative"));
        }
        let mut out = ptr::null_mut();
        call(|e| unsafe { sys::ddp_group_split(self.raw, color.unwrap_or(-1), key, &mut out, e) })?;
        Ok(if out.is_null() { None } else { Some(Group::own(out, self.handle._store.clone(), None)) })
    }

    /// Makes one group of several of the same ranks, whose collectives run at once.
    pub fn round_robin(groups: &[&Group]) -> Result<Group> {
        let raw: Vec<_> = groups.iter().map(|group| group.raw).collect();
        let mut out = ptr::null_mut();
        call(|e| unsafe { sys::ddp_group_round_robin(raw.as_ptr(), raw.len(), &mut out, e) })?;
        Ok(Group::own(out, groups.iter().find_map(|group| group.handle._store.clone()), None))
    }

    /// Begins an allreduce of a `Vec`, which [`Work::wait`] gives back.
    pub fn start_allreduce<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        let raw = self.raw;
        Work::start(&self.handle, Memory::new(buffer), |recv, count, work, e| unsafe {
            sys::ddp_allreduce(raw, ptr::null(), recv, count, T::DTYPE as i32, op as i32, work, e)
        })
    }

    /// Begins a broadcast of a `Vec`, which [`Work::wait`] gives back.
    pub fn start_broadcast<T: Element>(&self, buffer: Vec<T>, root: usize) -> Result<Work<T>> {
        let root = i32::try_from(root).map_err(|_| wrong(format!("root: there is no rank {root}")))?;
        let raw = self.raw;
        Work::start(&self.handle, Memory::new(buffer), |data, count, work, e| unsafe {
            sys::ddp_broadcast(raw, data, count, T::DTYPE as i32, root, work, e)
        })
    }
}
