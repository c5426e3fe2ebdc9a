//! A model's parameters and the averaging of their gradients.
use crate::element::Element;
use crate::error::{call, not_now, text, wrong, Error, Result, Status};
use crate::group::{Group, GroupHandle};
use crate::memory::Memory;
use crate::options::{ContextFlags, ContextOptions};
use crate::step::{Announced, Step};
use crate::store::{take_bytes, take_text};
use ddp_sys as sys;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A parameter with elements of type T.
pub struct Param<T> {
    id: ParamId,
    _elements: PhantomData<fn() -> T>,
}

impl<T> Clone for Param<T> {
    fn clone(&self) -> Param<T> {
        *self
    }
}
impl<T> Copy for Param<T> {}

impl<T> Param<T> {
    /// The same without the type of the elements.
    pub fn id(self) -> ParamId {
        self.id
    }
}

/// A parameter of any type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId {
    context: u64,
    index: i32,
}

impl ParamId {
    /// Its place in the order of registration: [`Error::param`].
    pub fn index(self) -> i32 {
        self.index
    }
}

impl<T> From<Param<T>> for ParamId {
    fn from(param: Param<T>) -> ParamId {
        param.id
    }
}

/// A buffer, such as a running mean, with elements of type T.
pub struct Buffer<T>(Param<T>);

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        *self
    }
}
impl<T> Copy for Buffer<T> {}

/// Rare properties of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParamOptions {
    /// Neither value nor gradient is sent.
    pub ignored: bool,
    /// Reduced after all others.
    pub delayed: bool,
    /// Announcements in a step, one for each layer that shares it. 0 means 1.
    pub uses: u32,
}

pub(crate) struct Slot {
    pub id: ParamId,
    pub name: String,
    pub value: Arc<Memory>,
    pub announced: Announced,
    /// Values of other ranks may still arrive: `Context::publish`.
    pub arriving: bool,
}

/// A context whose parameters are not all registered yet.
pub struct ContextBuilder(pub(crate) Context);

impl ContextBuilder {
    /// Begins a context on a group, which it keeps alive. All ranks make the contexts of a group in the same order.
    pub fn new(group: &Group, options: &ContextOptions) -> Result<ContextBuilder> {
        let mut raw = ptr::null_mut();
        // SAFETY: the group is open.
        options.with_c(|given| call(|e| unsafe { sys::ddp_context_create(group.as_ptr(), given, &mut raw, e) }))?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let kept = Kept { raw, memory: Mutex::default(), groups: Mutex::new(vec![group.handle.clone()]) };
        Ok(ContextBuilder(Context {
            raw,
            kept: Arc::new(kept),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            flags: options.flags,
            params: Vec::new(),
            buffers: Vec::new(),
            open: false,
            torn: None,
        }))
    }

    /// Adds a parameter with its first value. Register in forward order. shape: row-major; the product is the length of `value`.
    pub fn register<T: Element>(&mut self, name: &str, shape: &[usize], value: Vec<T>) -> Result<Param<T>> {
        self.register_with(name, shape, value, ParamOptions::default())
    }

    /// [`register`](Self::register) with rare properties.
    pub fn register_with<T: Element>(&mut self, name: &str, shape: &[usize], value: Vec<T>, options: ParamOptions) -> Result<Param<T>> {
        let value = self.0.keep(value);
        let mut flags = if options.ignored { sys::DDP_PARAM_IGNORED } else { 0 };
        flags |= if options.delayed { sys::DDP_PARAM_DELAYED } else { 0 };
        let mut index = -1;
        let raw = self.0.raw;
        with_desc::<T, _>(name, shape, &value, |desc| {
            desc.flags = flags;
            desc.uses = options.uses;
            // SAFETY: the value outlives the context, which owns it from here on.
            call(|e| unsafe { sys::ddp_register_param(raw, desc, &mut index, e) })
        })?;
        let announced = Announced::new(options.uses.max(1));
        let id = ParamId { context: self.0.id, index };
        self.0.params.push(Slot { id, name: name.to_owned(), value, announced, arriving: false });
        Ok(Param { id, _elements: PhantomData })
    }

    /// Adds a buffer: untrained state, such as running means.
    pub fn register_buffer<T: Element>(&mut self, name: &str, shape: &[usize], value: Vec<T>) -> Result<Buffer<T>> {
        let (value, raw) = (self.0.keep(value), self.0.raw);
        // SAFETY: as above.
        with_desc::<T, _>(name, shape, &value, |desc| call(|e| unsafe { sys::ddp_register_buffer(raw, desc, e) }))?;
        self.0.buffers.push(value);
        let index = self.0.buffers.len() as i32 - 1;
        Ok(Buffer(Param { id: ParamId { context: self.0.id, index }, _elements: PhantomData }))
    }

    /// Takes the plan of an earlier run: [`Context::plan`].
    pub fn adopt_plan(&mut self, plan: &str) -> Result<()> {
        let plan = text("plan", plan)?;
        // SAFETY: libddp copies the text.
        call(|e| unsafe { sys::ddp_plan_adopt(self.0.raw, plan.as_ptr(), e) })
    }

    /// Ends registration: ranks compare parameters, rank 0 sends its values, and libddp makes buckets. Collective.
    pub fn commit(self) -> Result<Context> {
        // SAFETY: no other thread has the context.
        call(|e| unsafe { sys::ddp_commit(self.0.raw, e) })?;
        Ok(self.0)
    }

    /// The pointer of C, valid while self is.
    pub fn as_ptr(&self) -> *mut sys::ddp_context {
        self.0.raw
    }
}

/// Calls with the description of a tensor.
fn with_desc<T: Element, R>(
    name: &str,
    shape: &[usize],
    value: &Memory,
    function: impl FnOnce(&mut sys::ddp_param_desc) -> Result<R>,
) -> Result<R> {
    let count = shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
    if count != Some(value.len()) {
        return Err(wrong(format!("value of '{name}' has {} elements, and its shape is {shape:?}", value.len())));
    }
    let extents: Vec<i64> = shape.iter().map(|extent| *extent as i64).collect();
    let name = text("name", name)?;
    // SAFETY: init_sized fills the struct; libddp copies name and shape.
    let mut desc: sys::ddp_param_desc = unsafe {
        let mut desc = std::mem::zeroed();
        sys::ddp_param_desc_init_sized(&mut desc, std::mem::size_of_val(&desc));
        desc
    };
    desc.name = name.as_ptr();
    desc.shape = if extents.is_empty() { ptr::null() } else { extents.as_ptr() };
    desc.ndim = extents.len() as i32;
    desc.dtype = T::DTYPE as i32;
    desc.data = value.pointer();
    function(&mut desc)
}

/// A context of C with the memory and groups that it uses. An elastic job holds it too.
pub(crate) struct Kept {
    raw: *mut sys::ddp_context,
    memory: Mutex<Vec<Arc<Memory>>>,
    groups: Mutex<Vec<Arc<GroupHandle>>>,
}

// SAFETY: only freed from here.
unsafe impl Send for Kept {}
unsafe impl Sync for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the last use. The values follow, and the groups after them.
        unsafe { sys::ddp_context_free(self.raw) }
    }
}

/// A model's parameters, buffers and gradients. It owns the memory of the values.
pub struct Context {
    pub(crate) raw: *mut sys::ddp_context,
    pub(crate) kept: Arc<Kept>,
    pub(crate) id: u64,
    pub(crate) flags: ContextFlags,
    pub(crate) params: Vec<Slot>,
    buffers: Vec<Arc<Memory>>,
    /// A step has begun and has not ended.
    pub(crate) open: bool,
    /// The error after which libddp may still write into gradients.
    pub(crate) torn: Option<Error>,
}

// SAFETY: functions that C allows on one thread only take &mut self; those that take &self are "any between steps", and a step
// borrows the context exclusively.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    /// The pointer of C, valid while self is.
    pub fn as_ptr(&self) -> *mut sys::ddp_context {
        self.raw
    }

    /// Memory that lives as long as the context of C, also where a registration fails after libddp has seen it.
    fn keep<T: Element>(&self, elements: Vec<T>) -> Arc<Memory> {
        let memory = Arc::new(Memory::new(elements));
        self.kept.memory.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        memory
    }

    pub(crate) fn slot(&self, param: ParamId) -> Result<&Slot> {
        self.own(param)?;
        Ok(&self.params[param.index as usize])
    }

    pub(crate) fn own(&self, param: ParamId) -> Result<()> {
        if param.context == self.id {
            Ok(())
        } else {
            Err(wrong(format!("parameter {} is of another context", param.index)))
        }
    }

    /// Their numbers in C.
    pub(crate) fn indices(&self, params: &[ParamId]) -> Result<Vec<i32>> {
        params.iter().map(|param| self.own(*param).map(|()| param.index)).collect()
    }

    fn settled(&self, slot: &Slot) -> Result<()> {
        if slot.arriving {
            return Err(not_now(format!("values of '{}' may still arrive: call Context::wait_value first", slot.name)));
        }
        Ok(())
    }

    /// A parameter's value. `InvalidState`: after [`publish`](Self::publish) nobody has waited for it.
    pub fn value<T: Element>(&self, param: Param<T>) -> Result<&[T]> {
        let slot = self.slot(param.id)?;
        self.settled(slot)?;
        // SAFETY: libddp writes values only in calls with &mut self, and where `settled` says so.
        Ok(unsafe { slot.value.slice() })
    }

    /// A parameter's value, to change it.
    pub fn value_mut<T: Element>(&mut self, param: Param<T>) -> Result<&mut [T]> {
        let slot = self.slot(param.id)?;
        self.settled(slot)?;
        // SAFETY: as above, and self is borrowed exclusively, here and below.
        Ok(unsafe { slot.value.slice_mut() })
    }

    /// A buffer.
    pub fn buffer<T: Element>(&self, buffer: Buffer<T>) -> Result<&[T]> {
        self.own(buffer.0.id)?;
        Ok(unsafe { self.buffers[buffer.0.id.index as usize].slice() })
    }

    /// A buffer, to change it.
    pub fn buffer_mut<T: Element>(&mut self, buffer: Buffer<T>) -> Result<&mut [T]> {
        self.own(buffer.0.id)?;
        Ok(unsafe { self.buffers[buffer.0.id.index as usize].slice_mut() })
    }

    /// Where a gradient is now. The caller knows that libddp does not work there.
    pub(crate) fn place<T: Element>(&self, param: Param<T>) -> Result<*mut [T]> {
        let slot = self.slot(param.id)?;
        let mut view = ptr::null_mut();
        // SAFETY: a committed context.
        call(|e| unsafe { sys::ddp_grad_view(self.raw, param.id.index, &mut view, e) })?;
        let count = slot.value.len();
        let first = if count == 0 { ptr::NonNull::<T>::dangling().as_ptr() } else { view as *mut T };
        Ok(ptr::slice_from_raw_parts_mut(first, count))
    }

    fn quiet_place<T: Element>(&self, param: Param<T>) -> Result<*mut [T]> {
        let slot = self.slot(param.id)?;
        self.settled(slot)?;
        if let Some(error) = &self.torn {
            return Err(error.clone());
        }
        if self.open {
            return Err(not_now("the step before was neither finished nor discarded: call Context::discard"));
        }
        self.place(param)
    }

    /// A gradient between steps: after [`Step::finish`] the result of the step. An error: that of the step that failed, or
    /// `InvalidState` if a step was dropped in the middle.
    pub fn grad<T: Element>(&self, param: Param<T>) -> Result<&[T]> {
        let place = self.quiet_place(param)?;
        // SAFETY: between steps libddp leaves views alone, and only calls with &mut self move them.
        Ok(unsafe { &*place })
    }

    /// A gradient between steps, to change it.
    pub fn grad_mut<T: Element>(&mut self, param: Param<T>) -> Result<&mut [T]> {
        let place = self.quiet_place(param)?;
        // SAFETY: as above, and self is borrowed exclusively.
        Ok(unsafe { &mut *place })
    }

    /// Value and gradient together, for an optimizer.
    pub fn value_and_grad<T: Element>(&mut self, param: Param<T>) -> Result<(&mut [T], &mut [T])> {
        let place = self.quiet_place(param)?;
        // SAFETY: as above; values and buckets are different memory.
        Ok(unsafe { (self.params[param.id.index as usize].value.slice_mut(), &mut *place) })
    }

    /// Begins a step: rebuilds buckets if due, and sends buffers. Collective. `InvalidState`: the step before was dropped in the
    /// middle.
    pub fn step(&mut self) -> Result<Step<'_>> {
        if self.open {
            return Err(not_now("the step before was neither finished nor discarded: call Context::discard"));
        }
        // SAFETY: no step is open, so that no slice of a gradient lives.
        let begun = call(|e| unsafe { sys::ddp_step_begin(self.raw, e) });
        if let Err(error) = begun {
            if ![Status::InvalidArgument, Status::InvalidState, Status::UnevenInputs].contains(&error.status()) {
                self.torn = Some(error.clone());
            }
            return Err(error);
        }
        self.torn = None;
        self.open = true;
        self.params.iter().for_each(|slot| slot.announced.reset());
        Ok(Step::new(self))
    }

    /// Ends a step that was dropped in the middle or has failed, and forgets unsynced steps. Collective.
    pub fn discard(&mut self) -> Result<()> {
        // SAFETY: one thread.
        call(|e| unsafe { sys::ddp_step_discard(self.raw, e) })?;
        self.open = false;
        self.torn = None;
        Ok(())
    }

    /// With false the following steps do not communicate, and the next synced step reduces the sums. The program, or
    /// [`Step::put_add`], adds gradients up.
    pub fn set_sync(&mut self, sync: bool) -> Result<()> {
        // SAFETY: one thread.
        call(|e| unsafe { sys::ddp_set_sync(self.raw, sync as i32, e) })
    }

    /// Breaks the context and its group on every rank.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = text("reason", reason)?;
        call(|e| unsafe { sys::ddp_context_abort(self.raw, reason.as_ptr(), e) })
    }

    /// Moves the context to another group, of any size, between steps or after it broke. Collective in the new group.
    pub fn set_group(&mut self, group: &Group) -> Result<()> {
        // SAFETY: one thread; no slice of a gradient lives.
        call(|e| unsafe { sys::ddp_context_set_group(self.raw, group.as_ptr(), e) })?;
        *self.kept.groups.lock().unwrap_or_else(PoisonError::into_inner) = vec![group.handle.clone()];
        self.settle();
        Ok(())
    }

    /// Nothing of the steps before is under way any more.
    pub(crate) fn settle(&mut self) {
        self.open = false;
        self.torn = None;
        self.params.iter_mut().for_each(|slot| slot.arriving = false);
    }

    /// Installs one of libddp's hooks: "powersgd" with "rank=2", for example. `docs/hooks.md` lists them.
    pub fn use_hook(&mut self, name: &str, options: &str) -> Result<()> {
        let (name, options) = (text("name", name)?, text("options", options)?);
        call(|e| unsafe { sys::ddp_use_hook(self.raw, name.as_ptr(), options.as_ptr(), e) })
    }

    /// The installed hook: "powersgd", "fp16(allreduce)", "user".
    pub fn hook_name(&self) -> String {
        // SAFETY: valid until another hook is installed.
        unsafe { CStr::from_ptr(sys::ddp_hook_name(self.raw)) }.to_string_lossy().into_owned()
    }

    /// The state of this rank's hook, for a checkpoint: a file in the safetensors format.
    pub fn hook_state(&mut self) -> Result<Vec<u8>> {
        let (mut data, mut size) = (ptr::null_mut(), 0);
        call(|e| unsafe { sys::ddp_hook_state_save(self.raw, &mut data, &mut size, e) })?;
        Ok(take_bytes(data, size))
    }

    /// Loads a saved state. shared_only: only the part that is the same on every rank, for another world size.
    pub fn load_hook_state(&mut self, state: &[u8], shared_only: bool) -> Result<()> {
        let flags = if shared_only { sys::DDP_HOOK_STATE_SHARED_ONLY } else { 0 };
        call(|e| unsafe { sys::ddp_hook_state_load(self.raw, state.as_ptr() as *const c_void, state.len(), flags, e) })
    }

    /// The plan as JSON: which gradients form a bucket.
    pub fn plan(&mut self) -> Result<String> {
        let mut said = ptr::null_mut();
        call(|e| unsafe { sys::ddp_plan_save(self.raw, &mut said, e) })?;
        Ok(take_text(said))
    }

    /// Counts and times: the struct of `stats.h`.
    pub fn stats(&mut self) -> Result<sys::ddp_stats> {
        // SAFETY: struct_size is set.
        unsafe {
            let mut stats: sys::ddp_stats = std::mem::zeroed();
            stats.struct_size = std::mem::size_of_val(&stats);
            call(|e| sys::ddp_stats_get(self.raw, &mut stats, e))?;
            Ok(stats)
        }
    }
}
