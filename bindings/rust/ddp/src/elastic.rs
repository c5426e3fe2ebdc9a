//! Jobs whose ranks come and go: `elastic.h`.
use crate::context::{Context, ContextBuilder, Kept};
use crate::element::Element;
use crate::error::{call, text, wrong, Result};
use crate::group::{Group, GroupOptions};
use crate::memory::Memory;
use crate::options::ContextOptions;
use crate::store::{milliseconds, StoreHandle};
use ddp_sys as sys;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Options of a job. 0 and None: from the environment, or libddp's defaults.
#[derive(Clone, Default)]
pub struct ElasticOptions {
    /// The store, and how groups are made. `group_name` names the job.
    pub group: GroupOptions,
    /// Fewer ranks wait for others.
    pub min_world: i32,
    /// More ranks wait until there is room.
    pub max_world: i32,
    /// How long a roster waits for a rank; longer than the longest step, evaluation or checkpoint.
    pub settle: Option<Duration>,
}

/// The facts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticStep {
    /// How many steps the job has applied: the number of this one. After a loss it may be smaller than before.
    pub step: i64,
    /// The roster, from 1.
    pub roster: i64,
    /// This rank in the roster.
    pub rank: usize,
    /// The number of ranks in the roster.
    pub world_size: usize,
    /// The roster is new since the last begin.
    pub changed: bool,
    /// If changed: how many ranks are new.
    pub joined: i32,
    /// If changed: how many ranks are gone.
    pub left: i32,
    /// This rank has announced that it leaves, and may now.
    pub leaving: bool,
    /// Greater than that of every roster before: part of the names of checkpoints.
    pub fence: i64,
}

pub(crate) struct ElasticHandle {
    raw: *mut sys::ddp_elastic,
    states: Mutex<Vec<Arc<Memory>>>,
    _store: Option<Arc<StoreHandle>>,
}

// SAFETY: functions that C allows on one thread only take &mut Elastic.
unsafe impl Send for ElasticHandle {}
unsafe impl Sync for ElasticHandle {}

impl Drop for ElasticHandle {
    fn drop(&mut self) {
        // SAFETY: the last use. The memory of states follows.
        unsafe { sys::ddp_elastic_free(self.raw) }
    }
}

/// Memory of the program that belongs to the state of the job, with elements of type T.
pub struct State<T> {
    job: u64,
    index: usize,
    _elements: PhantomData<fn() -> T>,
}

impl<T> Clone for State<T> {
    fn clone(&self) -> State<T> {
        *self
    }
}
impl<T> Copy for State<T> {}

/// A job whose ranks come and go.
pub struct Elastic {
    /// The contexts that were added, in order: their numbers, and a hold on the contexts of C, which calls on the job need.
    contexts: Vec<(u64, Arc<Kept>)>,
    group: Group,
    handle: Arc<ElasticHandle>,
    id: u64,
    states: Vec<Arc<Memory>>,
}

impl Elastic {
    /// Prepares a job. The first [`begin`](Self::begin) joins it.
    pub fn new(options: &ElasticOptions) -> Result<Elastic> {
        let mut raw = ptr::null_mut();
        options.group.with_c(|group| {
            // SAFETY: init_sized fills the struct; `group` lives during the call.
            unsafe {
                let mut given: sys::ddp_elastic_options = std::mem::zeroed();
                sys::ddp_elastic_options_init_sized(&mut given, std::mem::size_of_val(&given));
                given.group = group;
                given.min_world = options.min_world;
                given.max_world = options.max_world;
                given.settle_ms = milliseconds(options.settle);
                call(|e| sys::ddp_elastic_create(&given, &mut raw, e))
            }
        })?;
        let store = options.group.store.as_ref().map(|store| store.0.clone());
        let handle = Arc::new(ElasticHandle { raw, states: Mutex::default(), _store: store });
        // SAFETY: the group lives as long as the job, which it holds.
        let group = Group::own(unsafe { sys::ddp_elastic_group(raw) }, None, Some(handle.clone()));
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Elastic { group, handle, id: NEXT.fetch_add(1, Ordering::Relaxed), states: Vec::new(), contexts: Vec::new() })
    }

    /// The pointer of C, valid while self is.
    pub fn as_ptr(&self) -> *mut sys::ddp_elastic {
        self.handle.raw
    }

    /// The group of this roster. Before the first [`begin`](Self::begin): this rank alone.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Begins a context of the job's group.
    pub fn context(&self, options: &ContextOptions) -> Result<ContextBuilder> {
        ContextBuilder::new(&self.group, options)
    }

    /// Adds a context, which then moves from roster to roster. Every rank adds the same ones, before the first
    /// [`begin`](Self::begin).
    pub fn add_context(&mut self, context: &mut Context) -> Result<()> {
        // SAFETY: the job keeps the context of C until it is freed.
        call(|e| unsafe { sys::ddp_elastic_add_context(self.as_ptr(), context.as_ptr(), e) })?;
        self.contexts.push((context.id, context.kept.clone()));
        Ok(())
    }

    /// Adds memory to the state: of an optimizer, for example. Every rank adds the same names and sizes, before the first
    /// [`begin`](Self::begin).
    pub fn add_state<T: Element>(&mut self, name: &str, elements: Vec<T>) -> Result<State<T>> {
        let (name, memory) = (text("name", name)?, Arc::new(Memory::new(elements)));
        self.handle.states.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        // SAFETY: the memory stays where it is until the job is freed.
        call(|e| unsafe { sys::ddp_elastic_add_state(self.as_ptr(), name.as_ptr(), memory.pointer(), memory.bytes(), e) })?;
        self.states.push(memory);
        Ok(State { job: self.id, index: self.states.len() - 1, _elements: PhantomData })
    }

    fn memory<T>(&self, state: State<T>) -> Result<&Memory> {
        if state.job != self.id {
            return Err(wrong("state is of another job"));
        }
        Ok(&self.states[state.index])
    }

    /// The memory of a state.
    pub fn state<T: Element>(&self, state: State<T>) -> Result<&[T]> {
        // SAFETY: libddp works there in calls with &mut self only.
        Ok(unsafe { self.memory(state)?.slice() })
    }

    /// The memory of a state, to change it.
    pub fn state_mut<T: Element>(&mut self, state: State<T>) -> Result<&mut [T]> {
        // SAFETY: as above, and self is borrowed exclusively.
        Ok(unsafe { self.memory(state)?.slice_mut() })
    }

    /// This rank has loaded the whole state after so many steps, before the first [`begin`](Self::begin).
    pub fn set_step(&mut self, step: i64) -> Result<()> {
        // SAFETY: one thread, here and below.
        call(|e| unsafe { sys::ddp_elastic_set_step(self.as_ptr(), step, e) })
    }

    /// libddp reads and writes the state of all contexts, so the caller lends them.
    fn lent(&self, contexts: &[&mut Context]) -> Result<()> {
        if contexts.iter().map(|context| context.id).eq(self.contexts.iter().map(|(id, _)| *id)) {
            return Ok(());
        }
        Err(wrong(format!("contexts: the job has {}, which are needed in the order of add_context", self.contexts.len())))
    }

    /// Begins a step: takes in and lets go ranks, and gives each the state of the job. contexts: all of the job, in the order of
    /// [`add_context`](Self::add_context). Collective.
    pub fn begin(&mut self, contexts: &mut [&mut Context]) -> Result<ElasticStep> {
        self.lent(contexts)?;
        // SAFETY: struct_size is set; self and the contexts are borrowed exclusively, so that no slice of the state lives.
        let told = unsafe {
            let mut told: sys::ddp_elastic_step = std::mem::zeroed();
            told.struct_size = std::mem::size_of_val(&told);
            call(|e| sys::ddp_elastic_begin(self.as_ptr(), &mut told, e))?;
            told
        };
        contexts.iter_mut().for_each(|context| context.settle());
        Ok(ElasticStep {
            step: told.step,
            roster: told.roster,
            rank: told.rank as usize,
            world_size: told.world_size as usize,
            changed: told.changed != 0,
            joined: told.joined,
            left: told.left,
            leaving: told.leaving != 0,
            fence: told.fence,
        })
    }

    /// Says that this rank has applied the step. contexts: as for [`begin`](Self::begin).
    pub fn commit(&mut self, contexts: &mut [&mut Context]) -> Result<()> {
        self.lent(contexts)?;
        // SAFETY: as in begin().
        call(|e| unsafe { sys::ddp_elastic_commit(self.as_ptr(), e) })
    }

    /// Whether this rank was a member of the newest roster during the call: before a checkpoint is renamed.
    pub fn confirm_member(&mut self) -> Result<()> {
        call(|e| unsafe { sys::ddp_elastic_confirm_member(self.as_ptr(), e) })
    }

    /// Announces that this rank will leave. Go on until [`ElasticStep::leaving`].
    pub fn announce_leave(&mut self) -> Result<()> {
        call(|e| unsafe { sys::ddp_elastic_announce_leave(self.as_ptr(), e) })
    }

    /// Leaves between two steps. contexts: as for [`begin`](Self::begin).
    pub fn leave(&mut self, contexts: &mut [&mut Context]) -> Result<()> {
        self.lent(contexts)?;
        // SAFETY: as in begin().
        call(|e| unsafe { sys::ddp_elastic_leave(self.as_ptr(), e) })
    }
}
