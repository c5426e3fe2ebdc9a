//! Options of contexts.
use ddp_sys as sys;
use std::ops::BitOr;

/// Flags of a context: `DDP_CONTEXT_*` of `context.h`, which explains them. Combine them with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextFlags(pub u32);

macro_rules! flags {
    ($($name:ident = $flag:ident,)*) => {
        #[allow(missing_docs)]
        impl ContextFlags {
            $(pub const $name: ContextFlags = ContextFlags(sys::$flag);)*
        }
    };
}
flags! {
    NO_REBUILD = DDP_CONTEXT_NO_REBUILD,
    NO_INITIAL_BROADCAST = DDP_CONTEXT_NO_INITIAL_BROADCAST,
    NO_BUFFER_BROADCAST = DDP_CONTEXT_NO_BUFFER_BROADCAST,
    FIND_UNUSED = DDP_CONTEXT_FIND_UNUSED,
    STATIC_GRAPH = DDP_CONTEXT_STATIC_GRAPH,
    KEEP_LOCAL_UNUSED = DDP_CONTEXT_KEEP_LOCAL_UNUSED,
    SKIP_UNUSED_BUCKETS = DDP_CONTEXT_SKIP_UNUSED_BUCKETS,
    JOIN = DDP_CONTEXT_JOIN,
    DIVIDE_BY_PRESENT = DDP_CONTEXT_DIVIDE_BY_PRESENT,
    STOP_AT_FIRST_JOIN = DDP_CONTEXT_STOP_AT_FIRST_JOIN,
    CONSENSUS_ORDER = DDP_CONTEXT_CONSENSUS_ORDER,
    CHECK = DDP_CONTEXT_CHECK,
    REFUSE_NONFINITE = DDP_CONTEXT_REFUSE_NONFINITE,
    SKIP_NONFINITE = DDP_CONTEXT_SKIP_NONFINITE,
    VERIFY_BUFFERS = DDP_CONTEXT_VERIFY_BUFFERS,
    AUTOTUNE = DDP_CONTEXT_AUTOTUNE,
    ACCUMULATE = DDP_CONTEXT_ACCUMULATE,
    SHARD = DDP_CONTEXT_SHARD,
    VOTES = DDP_CONTEXT_VOTES,
}

impl BitOr for ContextFlags {
    type Output = ContextFlags;

    fn bitor(self, other: ContextFlags) -> ContextFlags {
        ContextFlags(self.0 | other.0)
    }
}

impl ContextFlags {
    pub(crate) fn has(self, flag: ContextFlags) -> bool {
        self.0 & flag.0 != 0
    }
}

/// The result that a step gives for each gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// The sum over ranks divided by the world size.
    Mean = sys::DDP_REDUCTION_MEAN,
    /// The sum over ranks.
    Sum = sys::DDP_REDUCTION_SUM,
    /// The mean with the weights of [`crate::Context::set_weight`].
    WeightedMean = sys::DDP_REDUCTION_WEIGHTED_MEAN,
}

/// Options of a context: `ddp_context_options`. All ranks must give the same. 0 is libddp's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextOptions {
    /// A bucket closes once it holds this many bytes of gradients.
    pub bucket_cap_bytes: u64,
    /// The same for the first bucket of each element type.
    pub first_bucket_cap_bytes: u64,
    /// If not empty, replaces both caps: one per bucket, in order; the last repeats.
    pub bucket_caps: Vec<u64>,
    /// Mean, sum or weighted mean.
    pub reduction: Reduction,
    /// Flags.
    pub flags: ContextFlags,
    /// Synced steps between rebuilds of the buckets; 0: only after the first.
    pub rebuild_interval: i64,
    /// With `CHECK`: synced steps between comparisons of values; 0: 10, -1: never.
    pub check_interval: i64,
    /// Synced steps between comparisons of parameters over ranks (`check.h`); 0: never.
    pub verify_interval: i64,
}

impl Default for ContextOptions {
    fn default() -> ContextOptions {
        ContextOptions {
            bucket_cap_bytes: 0,
            first_bucket_cap_bytes: 0,
            bucket_caps: Vec::new(),
            reduction: Reduction::Mean,
            flags: ContextFlags::default(),
            rebuild_interval: 0,
            check_interval: 0,
            verify_interval: 0,
        }
    }
}

impl ContextOptions {
    pub(crate) fn with_c<R>(&self, function: impl FnOnce(&sys::ddp_context_options) -> R) -> R {
        // SAFETY: init_sized fills the struct; the caps live until `function` returns.
        let mut options = unsafe {
            let mut options = std::mem::zeroed();
            sys::ddp_context_options_init_sized(&mut options, std::mem::size_of_val(&options));
            options
        };
        options.bucket_cap_bytes = self.bucket_cap_bytes;
        options.first_bucket_cap_bytes = self.first_bucket_cap_bytes;
        options.reduction = self.reduction as i32;
        options.flags = self.flags.0;
        if !self.bucket_caps.is_empty() {
            options.bucket_caps = self.bucket_caps.as_ptr();
            options.bucket_cap_count = self.bucket_caps.len() as u64;
        }
        options.rebuild_interval = self.rebuild_interval;
        options.check_interval = self.check_interval;
        options.verify_interval = self.verify_interval;
        function(&options)
    }
}
