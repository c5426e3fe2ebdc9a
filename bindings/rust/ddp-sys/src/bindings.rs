// Generated from the public headers by bindings/rust/generate.py; changes here are lost.
use std::os::raw::{c_char, c_void};

pub const DDP_EXPERIMENTAL: i32 = 1;
pub const DDP_OK: i32 = 0;
pub const DDP_ERROR_INVALID_ARGUMENT: i32 = -1;
pub const DDP_ERROR_INVALID_STATE: i32 = -2;
pub const DDP_ERROR_NOT_FOUND: i32 = -3;
pub const DDP_ERROR_ALREADY_EXISTS: i32 = -4;
pub const DDP_ERROR_UNSUPPORTED: i32 = -5;
pub const DDP_ERROR_OUT_OF_MEMORY: i32 = -6;
pub const DDP_ERROR_TIMEOUT: i32 = -7;
pub const DDP_ERROR_UNAVAILABLE: i32 = -8;
pub const DDP_ERROR_PERMISSION_DENIED: i32 = -9;
pub const DDP_ERROR_RANK_FAILED: i32 = -10;
pub const DDP_ERROR_MISMATCH: i32 = -11;
pub const DDP_ERROR_ABORTED: i32 = -12;
pub const DDP_ERROR_MISSING_GRADIENT: i32 = -13;
pub const DDP_ERROR_CALLBACK: i32 = -14;
pub const DDP_ERROR_IO: i32 = -15;
pub const DDP_ERROR_LIMIT: i32 = -16;
pub const DDP_ERROR_INTERNAL: i32 = -17;
pub const DDP_ERROR_UNEVEN_INPUTS: i32 = -18;
pub const DDP_ERROR_INTERRUPTED: i32 = -19;
pub const DDP_ERROR_NONFINITE: i32 = -20;
pub const DDP_VERSION_MAJOR: i32 = 0;
pub const DDP_VERSION_MINOR: i32 = 1;
pub const DDP_VERSION_PATCH: i32 = 0;
pub const DDP_ABI_VERSION: i32 = 0;
pub const DDP_F16: i32 = 1;
pub const DDP_BF16: i32 = 2;
pub const DDP_F32: i32 = 3;
pub const DDP_F64: i32 = 4;
pub const DDP_I32: i32 = 5;
pub const DDP_I64: i32 = 6;
pub const DDP_U8: i32 = 7;
pub const DDP_C64: i32 = 8;
pub const DDP_C128: i32 = 9;
pub const DDP_SUM: i32 = 1;
pub const DDP_AVG: i32 = 2;
pub const DDP_PROD: i32 = 3;
pub const DDP_MIN: i32 = 4;
pub const DDP_MAX: i32 = 5;
pub const DDP_DEVICE_CPU: i32 = 0;
pub const DDP_DEVICE_CUDA: i32 = 1;
pub const DDP_STORE_INSECURE: u32 = 1;
pub const DDP_GROUP_DETERMINISTIC: u32 = 1;
pub const DDP_GROUP_NO_MATCH_CHECK: u32 = 2;
pub const DDP_GROUP_OR_ALONE: u32 = 4;
pub const DDP_GROUP_INSECURE: u32 = 8;
pub const DDP_WORK_ANY_THREAD: u32 = 1;
pub const DDP_REDUCTION_MEAN: i32 = 0;
pub const DDP_REDUCTION_SUM: i32 = 1;
pub const DDP_REDUCTION_WEIGHTED_MEAN: i32 = 2;
pub const DDP_CONTEXT_NO_REBUILD: u32 = 1;
pub const DDP_CONTEXT_NO_INITIAL_BROADCAST: u32 = 2;
pub const DDP_CONTEXT_NO_BUFFER_BROADCAST: u32 = 4;
pub const DDP_CONTEXT_FIND_UNUSED: u32 = 8;
pub const DDP_CONTEXT_STATIC_GRAPH: u32 = 16;
pub const DDP_CONTEXT_KEEP_LOCAL_UNUSED: u32 = 32;
pub const DDP_CONTEXT_SKIP_UNUSED_BUCKETS: u32 = 64;
pub const DDP_CONTEXT_JOIN: u32 = 128;
pub const DDP_CONTEXT_DIVIDE_BY_PRESENT: u32 = 256;
pub const DDP_CONTEXT_STOP_AT_FIRST_JOIN: u32 = 512;
pub const DDP_CONTEXT_CONSENSUS_ORDER: u32 = 1024;
pub const DDP_CONTEXT_CHECK: u32 = 2048;
pub const DDP_CONTEXT_REFUSE_NONFINITE: u32 = 4096;
pub const DDP_CONTEXT_SKIP_NONFINITE: u32 = 8192;
pub const DDP_CONTEXT_VERIFY_BUFFERS: u32 = 16384;
pub const DDP_CONTEXT_AUTOTUNE: u32 = 32768;
pub const DDP_CONTEXT_ACCUMULATE: u32 = 65536;
pub const DDP_CONTEXT_SHARD: u32 = 131072;
pub const DDP_CONTEXT_VOTES: u32 = 262144;
pub const DDP_PARAM_IGNORED: u32 = 1;
pub const DDP_PARAM_DELAYED: u32 = 2;
pub const DDP_PARAM_SPARSE: u32 = 4;
pub const DDP_PARAM_FACTORED: u32 = 8;
pub const DDP_PARAM_IN_PLACE: u32 = 16;
pub const DDP_PUT_ADD: u32 = 1;
pub const DDP_OWNER_ELEMENTS: i32 = 0;
pub const DDP_OWNER_WHOLE: i32 = 1;
pub const DDP_OWNER_REPLICATED: i32 = 2;
pub const DDP_VOTE_STOP: u32 = 1;
pub const DDP_VOTE_CHECKPOINT: u32 = 2;
pub const DDP_VOTE_SKIP: u32 = 4;
pub const DDP_VOTE_NONFINITE: u32 = 8;
pub const DDP_VOTE_USER: u32 = 65536;
pub const DDP_HOOK_STATE_SHARED_ONLY: u32 = 1;
pub const DDP_OUTER_NONE: i32 = 0;
pub const DDP_OUTER_SGD: i32 = 1;
pub const DDP_OUTER_NESTEROV: i32 = 2;
pub const DDP_OUTER_SLOWMO: i32 = 3;
pub const DDP_INTERRUPT_THIS_THREAD: u32 = 1;
pub const DDP_KEEP_AT_NEIGHBOUR: i32 = 0;
pub const DDP_KEEP_IN_CHECKPOINT: i32 = 1;
pub const DDP_BACKEND_ABI_VERSION: i32 = 1;
pub const DDP_COLLECTIVE_ALLREDUCE: i32 = 1;
pub const DDP_COLLECTIVE_BROADCAST: i32 = 2;
pub const DDP_COLLECTIVE_ALLGATHER: i32 = 3;
pub const DDP_COLLECTIVE_REDUCE_SCATTER: i32 = 4;
pub const DDP_COLLECTIVE_BARRIER: i32 = 5;
pub const DDP_COLLECTIVE_ALL_TO_ALL: i32 = 6;
pub const DDP_BACKEND_BLOCK_BYTES: i32 = 65536;
pub const DDP_BACKEND_FUSES_SCALE: u32 = 1;
pub const DDP_BACKEND_ONE_THREAD: u32 = 2;
pub const DDP_BACKEND_DETERMINISTIC: u32 = 4;
pub const DDP_BACKEND_CUDA: u32 = 8;
pub const DDP_BACKEND_NEEDS_MATCH: u32 = 16;
pub const DDP_BACKEND_COMPARES: u32 = 32;
pub const DDP_BACKEND_CALLER_THREAD: u32 = 64;
pub const DDP_BACKEND_DEVICE_ONLY: u32 = 128;
pub const DDP_BACKEND_INTERRUPTIBLE: u32 = 256;
pub const DDP_BACKEND_CAPTURES: u32 = 512;
pub const DDP_BACKEND_COUNTS: u32 = 1024;
pub const DDP_BACKEND_GIVES: u32 = 2048;
pub const DDP_BACKEND_CARRIES: u32 = 4096;
pub const DDP_BACKEND_ALL_TO_ALL: u32 = 8192;

pub type ddp_status = i32;
#[repr(C)]
pub struct ddp_error {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_store {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_group {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_work {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_context {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_layout {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct ddp_bucket {
    _opaque: [u8; 0],
}
pub type ddp_param = i32;
pub type ddp_dtype = i32;
pub type ddp_reduce_op = i32;
pub type ddp_device_kind = i32;
pub type ddp_work_fn = Option<unsafe extern "C" fn(*mut c_void, *mut *mut ddp_work, *mut *mut ddp_error) -> ddp_status>;
pub type ddp_comm_hook_fn = Option<unsafe extern "C" fn(*mut c_void, *mut ddp_group, *mut ddp_bucket, *mut *mut ddp_work, *mut *mut ddp_error) -> ddp_status>;
pub type ddp_reduction = i32;
pub type ddp_owner = i32;
pub type ddp_update_fn = Option<unsafe extern "C" fn(*mut c_void, *const *const ddp_piece, usize, *mut *mut ddp_error) -> ddp_status>;
pub type ddp_reduced_fn = Option<unsafe extern "C" fn(*mut c_void, ddp_param, i32, *mut *mut ddp_error) -> ddp_status>;
pub type ddp_bucket_fn = Option<unsafe extern "C" fn(*mut c_void, *mut ddp_group, *mut ddp_bucket, *mut *mut ddp_error) -> ddp_status>;
pub type ddp_buffer_hook_fn = Option<unsafe extern "C" fn(*mut c_void, *mut ddp_group, *const *const ddp_tensor, usize, *mut *mut ddp_error) -> ddp_status>;
#[repr(C)]
pub struct ddp_averager {
    _opaque: [u8; 0],
}
pub type ddp_outer_kind = i32;
#[repr(C)]
pub struct ddp_optimizer {
    _opaque: [u8; 0],
}
pub type ddp_interrupt_fn = Option<unsafe extern "C" fn(*mut c_void) -> i32>;
#[repr(C)]
pub struct ddp_elastic {
    _opaque: [u8; 0],
}
pub type ddp_keep = i32;
pub type ddp_collective_kind = i32;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_device {
    pub kind: ddp_device_kind,
    pub index: i32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_store_options {
    pub struct_size: usize,
    pub uri: *const c_char,
    pub is_server: i32,
    pub flags: u32,
    pub timeout_ms: i64,
    pub secret: *const c_char,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_group_options {
    pub struct_size: usize,
    pub rank: i32,
    pub world_size: i32,
    pub init_method: *const c_char,
    pub backend: *const c_char,
    pub backend_options: *const c_char,
    pub timeout_ms: i64,
    pub group_name: *const c_char,
    pub store: *mut ddp_store,
    pub secret: *const c_char,
    pub flags: u32,
    pub round_robin: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_environment {
    pub struct_size: usize,
    pub rank: i32,
    pub world_size: i32,
    pub local_rank: i32,
    pub local_world_size: i32,
    pub restart: i64,
    pub launcher: [c_char; 32],
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_tensor {
    pub struct_size: usize,
    pub data: *mut c_void,
    pub shape: *const i64,
    pub ndim: i32,
    pub dtype: ddp_dtype,
    pub count: i64,
    pub device: ddp_device,
    pub param: ddp_param,
    pub reserved0: i32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_context_options {
    pub struct_size: usize,
    pub bucket_cap_bytes: u64,
    pub first_bucket_cap_bytes: u64,
    pub reduction: ddp_reduction,
    pub flags: u32,
    pub bucket_caps: *const u64,
    pub bucket_cap_count: u64,
    pub rebuild_interval: i64,
    pub check_interval: i64,
    pub verify_interval: i64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_param_desc {
    pub struct_size: usize,
    pub name: *const c_char,
    pub shape: *const i64,
    pub ndim: i32,
    pub dtype: ddp_dtype,
    pub device: ddp_device,
    pub data: *mut c_void,
    pub grad: *mut c_void,
    pub flags: u32,
    pub uses: u32,
    pub grad_dtype: ddp_dtype,
    pub reserved0: u32,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_piece {
    pub struct_size: usize,
    pub param: ddp_param,
    pub replicated: i32,
    pub first: i64,
    pub count: i64,
    pub value: *mut c_void,
    pub gradient: *mut c_void,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_stats {
    pub struct_size: usize,
    pub steps: i64,
    pub synced_steps: i64,
    pub rebuilds: i64,
    pub param_count: i32,
    pub bucket_count: i32,
    pub unused_params: i32,
    pub unsent_buckets: i32,
    pub param_bytes: u64,
    pub unused_bytes: u64,
    pub sent_bytes: u64,
    pub backward_ns: i64,
    pub comm_ns: i64,
    pub overlap_ns: i64,
    pub wait_ns: i64,
    pub total_backward_ns: i64,
    pub total_comm_ns: i64,
    pub total_overlap_ns: i64,
    pub total_wait_ns: i64,
    pub last_error: ddp_status,
    pub reserved0: i32,
    pub hook_bytes_in: u64,
    pub hook_bytes_out: u64,
    pub copied_bytes: u64,
    pub bucket_cap_bytes: u64,
    pub tuning: i32,
    pub reserved1: i32,
    pub averaged_bytes: u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_outer_options {
    pub struct_size: usize,
    pub kind: ddp_outer_kind,
    pub reserved0: u32,
    pub learning_rate: f64,
    pub momentum: f64,
    pub inner_learning_rate: f64,
    pub fragments: i32,
    pub sent_dtype: ddp_dtype,
    pub delay: i64,
    pub alpha: f64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_optimizer_state {
    pub struct_size: usize,
    pub param: ddp_param,
    pub dtype: ddp_dtype,
    pub first: i64,
    pub count: i64,
    pub name: *const c_char,
    pub data: *mut c_void,
    pub device: ddp_device,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_elastic_options {
    pub struct_size: usize,
    pub group: *const ddp_group_options,
    pub min_world: i32,
    pub max_world: i32,
    pub settle_ms: i64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_elastic_step {
    pub struct_size: usize,
    pub step: i64,
    pub roster: i64,
    pub rank: i32,
    pub world_size: i32,
    pub changed: i32,
    pub joined: i32,
    pub left: i32,
    pub leaving: i32,
    pub fence: i64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_backend_failure {
    pub rank: i32,
    pub message: [c_char; 508],
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_backend_host {
    pub struct_size: usize,
    pub handle: *mut c_void,
    pub rank: i32,
    pub world_size: i32,
    pub group_name: *const c_char,
    pub options: *const c_char,
    pub timeout_ms: i64,
    pub flags: u32,
    pub reserved0: u32,
    pub store_set: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, usize, *mut ddp_backend_failure) -> ddp_status>,
    pub store_get: Option<unsafe extern "C" fn(*mut c_void, *const c_char, i64, *mut *mut c_void, *mut usize, *mut ddp_backend_failure) -> ddp_status>,
    pub store_value_free: Option<unsafe extern "C" fn(*mut c_void)>,
    pub log: Option<unsafe extern "C" fn(*mut c_void, i32, *const c_char)>,
    pub interrupted: Option<unsafe extern "C" fn(*mut c_void) -> i32>,
    pub store_delete: Option<unsafe extern "C" fn(*mut c_void, *const c_char, *mut ddp_backend_failure) -> ddp_status>,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_collective {
    pub struct_size: usize,
    pub kind: ddp_collective_kind,
    pub dtype: ddp_dtype,
    pub op: ddp_reduce_op,
    pub root: i32,
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: usize,
    pub scale: f64,
    pub timeout_ms: i64,
    pub device: ddp_device,
    pub stream: *mut c_void,
    pub signature: *const c_void,
    pub theirs: *mut c_void,
    pub signature_size: usize,
    pub copied_bytes: *mut u64,
    pub counts: *const u64,
    pub take: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize)>,
    pub taker: *mut c_void,
    pub carried: *mut u64,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ddp_backend {
    pub struct_size: usize,
    pub abi_version: i32,
    pub reserved0: i32,
    pub name: *const c_char,
    pub create: Option<unsafe extern "C" fn(*const ddp_backend_host, *mut *mut c_void, *mut ddp_backend_failure) -> ddp_status>,
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    pub capabilities: Option<unsafe extern "C" fn(*mut c_void) -> u32>,
    pub abort: Option<unsafe extern "C" fn(*mut c_void)>,
    pub run: Option<unsafe extern "C" fn(*mut c_void, *const ddp_collective, *mut ddp_backend_failure) -> ddp_status>,
    pub r#match: Option<unsafe extern "C" fn(*mut c_void, *const c_void, *mut c_void, usize, i64, *mut i32, *mut ddp_backend_failure) -> ddp_status>,
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, usize, ddp_device, *mut *mut c_void, *mut ddp_backend_failure) -> ddp_status>,
    pub deallocate: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    pub ready: Option<unsafe extern "C" fn(*mut c_void, *const ddp_collective, i64, *mut i32, *mut ddp_backend_failure) -> ddp_status>,
    pub check: Option<unsafe extern "C" fn(*mut c_void, *mut ddp_backend_failure) -> ddp_status>,
    pub leave: Option<unsafe extern "C" fn(*mut c_void)>,
}

extern "C" {
    pub fn ddp_status_name(status: ddp_status) -> *const c_char;
    pub fn ddp_error_code(error: *const ddp_error) -> ddp_status;
    pub fn ddp_error_message(error: *const ddp_error) -> *const c_char;
    pub fn ddp_error_rank(error: *const ddp_error) -> i32;
    pub fn ddp_error_param(error: *const ddp_error) -> i32;
    pub fn ddp_error_bucket(error: *const ddp_error) -> i32;
    pub fn ddp_error_step(error: *const ddp_error) -> i64;
    pub fn ddp_error_create(code: ddp_status, message: *const c_char) -> *mut ddp_error;
    pub fn ddp_error_free(error: *mut ddp_error);
    pub fn ddp_version() -> *const c_char;
    pub fn ddp_free(memory: *mut c_void);
    pub fn ddp_dtype_size(dtype: ddp_dtype) -> usize;
    pub fn ddp_dtype_name(dtype: ddp_dtype) -> *const c_char;
    pub fn ddp_store_options_init_sized(options: *mut ddp_store_options, size: usize);
    pub fn ddp_store_create(options: *const ddp_store_options, store: *mut *mut ddp_store, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_free(store: *mut ddp_store);
    pub fn ddp_store_port(store: *const ddp_store) -> i32;
    pub fn ddp_store_set(store: *mut ddp_store, key: *const c_char, value: *const c_void, size: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_get(store: *mut ddp_store, key: *const c_char, timeout_ms: i64, value: *mut *mut c_void, size: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_wait(store: *mut ddp_store, keys: *const *const c_char, count: usize, timeout_ms: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_delete(store: *mut ddp_store, key: *const c_char, deleted: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_add(store: *mut ddp_store, key: *const c_char, amount: i64, sum: *mut i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_check(store: *mut ddp_store, keys: *const *const c_char, count: usize, exists: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_list_keys(store: *mut ddp_store, prefix: *const c_char, keys: *mut *mut c_void, size: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_store_compare_set(store: *mut ddp_store, key: *const c_char, expected: *const c_void, expected_size: usize, desired: *const c_void, desired_size: usize, value: *mut *mut c_void, size: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_options_init_sized(options: *mut ddp_group_options, size: usize);
    pub fn ddp_group_create(options: *const ddp_group_options, group: *mut *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_free(group: *mut ddp_group);
    pub fn ddp_group_rank(group: *const ddp_group) -> i32;
    pub fn ddp_group_world_size(group: *const ddp_group) -> i32;
    pub fn ddp_group_backend(group: *const ddp_group) -> *const c_char;
    pub fn ddp_allreduce(group: *mut ddp_group, send: *const c_void, recv: *mut c_void, count: usize, dtype: ddp_dtype, op: ddp_reduce_op, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_broadcast(group: *mut ddp_group, buffer: *mut c_void, count: usize, dtype: ddp_dtype, root: i32, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_allgather(group: *mut ddp_group, send: *const c_void, recv: *mut c_void, count: usize, dtype: ddp_dtype, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_reduce_scatter(group: *mut ddp_group, send: *const c_void, recv: *mut c_void, count: usize, dtype: ddp_dtype, op: ddp_reduce_op, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_barrier(group: *mut ddp_group, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_wait(work: *mut ddp_work, timeout_ms: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_test(work: *mut ddp_work, done: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_free(work: *mut ddp_work);
    pub fn ddp_environment_get(environment: *mut ddp_environment, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_status(group: *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_abort(group: *mut ddp_group, reason: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_store(group: *mut ddp_group, store: *mut *mut ddp_store, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_split(group: *mut ddp_group, color: i32, key: i32, out: *mut *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_then(work: *mut ddp_work, r#fn: ddp_work_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, flags: u32, out: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_create(timeout_ms: i64, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_work_complete(work: *mut ddp_work, status: ddp_status, message: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_all_to_all(group: *mut ddp_group, send: *const c_void, recv: *mut c_void, count: usize, dtype: ddp_dtype, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_all_to_allv(group: *mut ddp_group, send: *const c_void, recv: *mut c_void, send_counts: *const u64, recv_counts: *const u64, n: usize, dtype: ddp_dtype, work: *mut *mut ddp_work, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_comm_hook(context: *mut ddp_context, r#fn: ddp_comm_hook_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_bucket_index(bucket: *const ddp_bucket) -> i32;
    pub fn ddp_bucket_is_last(bucket: *const ddp_bucket) -> i32;
    pub fn ddp_bucket_step(bucket: *const ddp_bucket) -> i64;
    pub fn ddp_bucket_dtype(bucket: *const ddp_bucket) -> ddp_dtype;
    pub fn ddp_bucket_op(bucket: *const ddp_bucket) -> ddp_reduce_op;
    pub fn ddp_bucket_device(bucket: *const ddp_bucket) -> ddp_device;
    pub fn ddp_bucket_buffer(bucket: *const ddp_bucket) -> *mut c_void;
    pub fn ddp_bucket_count(bucket: *const ddp_bucket) -> usize;
    pub fn ddp_bucket_param_count(bucket: *const ddp_bucket) -> i32;
    pub fn ddp_bucket_gradient(bucket: *const ddp_bucket, i: i32, tensor: *mut ddp_tensor, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_bucket_parameter(bucket: *const ddp_bucket, i: i32, tensor: *mut ddp_tensor, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_bucket_set_buffer(bucket: *mut ddp_bucket, buffer: *mut c_void, dtype: ddp_dtype, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_context_options_init_sized(options: *mut ddp_context_options, size: usize);
    pub fn ddp_context_create(group: *mut ddp_group, options: *const ddp_context_options, context: *mut *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_context_free(context: *mut ddp_context);
    pub fn ddp_param_desc_init_sized(desc: *mut ddp_param_desc, size: usize);
    pub fn ddp_register_param(context: *mut ddp_context, desc: *const ddp_param_desc, param: *mut ddp_param, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_register_buffer(context: *mut ddp_context, desc: *const ddp_param_desc, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_commit(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_view(context: *mut ddp_context, param: ddp_param, view: *mut *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_layout_generation(context: *const ddp_context) -> i64;
    pub fn ddp_step_begin(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_ready(context: *mut ddp_context, param: ddp_param, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_put(context: *mut ddp_context, param: ddp_param, gradient: *const c_void, flags: u32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_finalize(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_sync(context: *mut ddp_context, sync: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_step_discard(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_context_abort(context: *mut ddp_context, reason: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_layout_hold(context: *mut ddp_context, layout: *mut *mut ddp_layout, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_layout_free(layout: *mut ddp_layout);
    pub fn ddp_context_set_group(context: *mut ddp_context, group: *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_mem_alloc(group: *mut ddp_group, bytes: usize, memory: *mut *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_mem_free(memory: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_register_slices(context: *mut ddp_context, desc: *const ddp_param_desc, first: *mut ddp_param, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_group_round_robin(groups: *const *mut ddp_group, n: usize, out: *mut *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_owner(context: *mut ddp_context, param: ddp_param, owner: ddp_owner, cost: f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_piece_count(context: *const ddp_context) -> i32;
    pub fn ddp_piece_get(context: *mut ddp_context, index: i32, piece: *mut ddp_piece, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_publish(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_update(context: *mut ddp_context, r#fn: ddp_update_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_wait_value(context: *mut ddp_context, param: ddp_param, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_wait_value_on(context: *mut ddp_context, param: ddp_param, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_shard_array(context: *mut ddp_context, key: *const c_char, param: ddp_param, first: i64, count: i64, dtype: ddp_dtype, data: *mut c_void, replicated: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_shard_save(context: *mut ddp_context, folder: *const c_char, note: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_shard_load(context: *mut ddp_context, folder: *const c_char, text: *mut *mut c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_ready_sparse(context: *mut ddp_context, param: ddp_param, indices: *const i64, values: *const c_void, count: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_sparse_gradient(context: *mut ddp_context, param: ddp_param, indices: *mut *const i64, values: *mut *const c_void, count: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_ready_factors(context: *mut ddp_context, param: ddp_param, left: *const c_void, right: *const c_void, rows: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_mark_unused(context: *mut ddp_context, params: *const ddp_param, count: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_param_used(context: *mut ddp_context, param: ddp_param, used: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_join(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_frozen(context: *mut ddp_context, params: *const ddp_param, count: usize, frozen: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_skip_params(context: *mut ddp_context, params: *const ddp_param, count: usize, authority: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_skipped(context: *const ddp_context, param: ddp_param) -> i32;
    pub fn ddp_set_weight(context: *mut ddp_context, weight: f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_share_batch(context: *mut ddp_context, samples: i64, multiple: i64, most: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_batch_share(context: *mut ddp_context, begin: *mut i64, end: *mut i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_batch_time(context: *mut ddp_context, ns: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_context_bucket_count(context: *const ddp_context) -> i32;
    pub fn ddp_context_param_bucket(context: *const ddp_context, param: ddp_param) -> i32;
    pub fn ddp_request_rebuild(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_plan_save(context: *mut ddp_context, text: *mut *mut c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_plan_adopt(context: *mut ddp_context, text: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_track_grad_norm(context: *mut ddp_context, p: f64, params: *const ddp_param, count: usize, norm: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_norm(context: *mut ddp_context, norm: i32, value: *mut f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_clip_grad_norm(context: *mut ddp_context, norm: i32, max_norm: f64, value: *mut f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_clip_factor(context: *mut ddp_context, norm: i32, max_norm: f64, value: *mut f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_step_vote(context: *mut ddp_context, bits: u32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_step_vote_level(context: *mut ddp_context, level: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_step_votes(context: *mut ddp_context, any: *mut u32, all: *mut u32, level: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_finalize_async(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_wait_param(context: *mut ddp_context, param: ddp_param, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_reduced_callback(context: *mut ddp_context, r#fn: ddp_reduced_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_stats_get(context: *mut ddp_context, stats: *mut ddp_stats, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_stats_bucket_sizes(context: *mut ddp_context, initial: i32, bytes: *mut u64, capacity: usize, count: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_stats_ready_order(context: *mut ddp_context, params: *mut ddp_param, capacity: usize, count: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_use_hook(context: *mut ddp_context, name: *const c_char, options: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_hook_name(context: *const ddp_context) -> *const c_char;
    pub fn ddp_hook_state_save(context: *mut ddp_context, data: *mut *mut c_void, size: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_hook_state_load(context: *mut ddp_context, data: *const c_void, size: usize, flags: u32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_compress_hook(context: *mut ddp_context, dtype: ddp_dtype, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_hook_then(context: *mut ddp_context, r#fn: ddp_bucket_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, flags: u32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_buffer_hook(context: *mut ddp_context, r#fn: ddp_buffer_hook_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_average_parameters(context: *mut ddp_context, group: *mut ddp_group, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_create(context: *mut ddp_context, periods: *const i64, group_sizes: *const i32, count: usize, warmup_steps: i64, averager: *mut *mut ddp_averager, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_step(averager: *mut ddp_averager, ranks: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_get_step(averager: *const ddp_averager) -> i64;
    pub fn ddp_averager_set_step(averager: *mut ddp_averager, step: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_outer_options_init_sized(options: *mut ddp_outer_options, size: usize);
    pub fn ddp_averager_set_outer(averager: *mut ddp_averager, options: *const ddp_outer_options, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_set_fragments(averager: *mut ddp_averager, fragment_of: *const i32, count: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_go_back(averager: *mut ddp_averager, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_state_save(averager: *mut ddp_averager, data: *mut *mut c_void, size: *mut usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_state_load(averager: *mut ddp_averager, data: *const c_void, size: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_averager_free(averager: *mut ddp_averager);
    pub fn ddp_optimizer_create(context: *mut ddp_context, name: *const c_char, options: *const c_char, optimizer: *mut *mut ddp_optimizer, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_optimizer_set(optimizer: *mut ddp_optimizer, param: ddp_param, key: *const c_char, value: f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_optimizer_step(optimizer: *mut ddp_optimizer, scale: f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_optimizer_in_step(optimizer: *mut ddp_optimizer, scale: f64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_optimizer_state_count(optimizer: *mut ddp_optimizer) -> i32;
    pub fn ddp_optimizer_state_get(optimizer: *mut ddp_optimizer, index: i32, state: *mut ddp_optimizer_state, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_optimizer_free(optimizer: *mut ddp_optimizer);
    pub fn ddp_device_count(kind: ddp_device_kind, devices: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_grad_ready_on(context: *mut ddp_context, param: ddp_param, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_put_on(context: *mut ddp_context, param: ddp_param, gradient: *const c_void, flags: u32, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_get_on(context: *mut ddp_context, param: ddp_param, memory: *mut c_void, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_finalize_on(context: *mut ddp_context, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_stream(context: *mut ddp_context, kind: ddp_device_kind, index: i32, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_finalize_enqueue(context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_wait_param_on(context: *mut ddp_context, param: ddp_param, stream: *mut c_void, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_bucket_stream(bucket: *const ddp_bucket) -> *mut c_void;
    pub fn ddp_set_interrupt_check(r#fn: ddp_interrupt_fn, user_data: *mut c_void, destroy: Option<unsafe extern "C" fn(*mut c_void)>, flags: u32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_mark_begin(name: *const c_char, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_mark_end(error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_workload(samples: i64, steps: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_set_blame_signal(signal: i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_options_init_sized(options: *mut ddp_elastic_options, size: usize);
    pub fn ddp_elastic_create(options: *const ddp_elastic_options, elastic: *mut *mut ddp_elastic, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_free(elastic: *mut ddp_elastic);
    pub fn ddp_elastic_group(elastic: *mut ddp_elastic) -> *mut ddp_group;
    pub fn ddp_elastic_add_context(elastic: *mut ddp_elastic, context: *mut ddp_context, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_add_averager(elastic: *mut ddp_elastic, averager: *mut ddp_averager, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_add_state(elastic: *mut ddp_elastic, name: *const c_char, memory: *mut c_void, bytes: usize, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_set_step(elastic: *mut ddp_elastic, step: i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_begin(elastic: *mut ddp_elastic, step: *mut ddp_elastic_step, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_commit(elastic: *mut ddp_elastic, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_confirm_member(elastic: *mut ddp_elastic, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_keep_shards(elastic: *mut ddp_elastic, context: *mut ddp_context, step: i64, r#where: ddp_keep, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_recall_shards(elastic: *mut ddp_elastic, context: *mut ddp_context, found: *mut i32, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_announce_leave(elastic: *mut ddp_elastic, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_elastic_leave(elastic: *mut ddp_elastic, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_shard_range(count: i64, rank: i32, world_size: i32, begin: *mut i64, end: *mut i64, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_backend_register(backend: *const ddp_backend, error: *mut *mut ddp_error) -> ddp_status;
    pub fn ddp_backend_available(name: *const c_char, error: *mut *mut ddp_error) -> i32;
}
