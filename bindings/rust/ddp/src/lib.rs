//! Data-parallel training with libddp. The program says when each gradient is ready; libddp averages gradients over all ranks while
//! the backward pass still runs.
//!
//! ```no_run
//! # fn main() -> Result<(), ddp::Error> {
//! let group = ddp::Group::new()?; // rank and world size from the launcher
//! let mut model = ddp::ContextBuilder::new(&group, &ddp::ContextOptions::default())?;
//! let w = model.register("w", &[2], vec![0f32; 2])?;
//! let mut context = model.commit()?; // every rank starts from rank 0's w
//! for _ in 0..500 {
//!     let mut step = context.step()?;
//!     step.grad_mut(w)?.copy_from_slice(&[1.0, 2.0]);
//!     step.ready(w)?; // starts the averaging over ranks
//!     step.finish()?; // now the gradient is the mean
//!     let (value, gradient) = context.value_and_grad(w)?;
//!     value.iter_mut().zip(gradient).for_each(|(v, g)| *v -= 0.5 * *g);
//! }
//! # Ok(()) }
//! ```
//!
//! # Memory
//!
//! libddp works on gradients in the background, also after a function has returned. Therefore the context owns the memory: values
//! come in as a `Vec`, and gradients live in libddp's buckets. The program borrows both from the context or the step, and the
//! compiler sees that no slice lives on when libddp may write there. A context that is leaked leaks its memory.
//!
//! # Threads
//!
//! Every type is [`Send`]. [`Group`], [`Store`] and [`Context`] are [`Sync`]: what takes `&self` is "Threads: any" in the headers, and
//! what takes `&mut self` is "Threads: one". A [`Step`] is [`Sync`] too, so several threads may announce gradients of one step.
//!
//! # Functions that are not here
//!
//! `docs/rust.md` has the list. The crate `ddp-sys` has all functions, and `as_ptr` of each type here gives its pointer.
#![warn(missing_docs)]

mod callback;
mod context;
mod elastic;
mod element;
mod environment;
mod error;
mod group;
mod hook;
mod interrupt;
mod memory;
mod norm;
mod optimizer;
mod options;
mod participation;
mod record;
mod shard;
mod step;
mod store;
mod words;
mod work;

pub use callback::CallbackResult;
pub use context::{Buffer, Context, ContextBuilder, Param, ParamId, ParamOptions};
pub use elastic::{Elastic, ElasticOptions, ElasticStep, State};
pub use element::{Bf16, Complex, Dtype, Element, ReduceOp, F16};
pub use environment::{backend_available, environment, shard_range, version, Environment};
pub use error::{Error, Result, Status};
pub use group::{Collectives, Group, GroupFlags, GroupOptions};
pub use hook::{Bucket, Reduced};
pub use interrupt::{clear_interrupt_check, set_interrupt_check};
pub use norm::Norm;
pub use optimizer::Optimizer;
pub use options::{ContextFlags, ContextOptions, Reduction};
pub use participation::Votes;
pub use record::{mark, set_blame_signal, set_workload, Mark};
pub use shard::{Owner, Piece};
pub use step::Step;
pub use store::{Store, StoreOptions};
pub use work::Work;

#[doc(hidden)]
pub use words::in_rust;
