//! Each rank updates a share of the parameters: `shard.h`. With `ContextFlags::SHARD`.
use crate::context::{Context, ContextBuilder, Param, ParamId};
use crate::error::{call, Result};
use crate::options::ContextFlags;
use crate::step::Step;
use ddp_sys as sys;
use std::ops::Range;

/// The owner of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Owner {
    /// Each rank owns a range of its elements.
    Elements = sys::DDP_OWNER_ELEMENTS,
    /// One rank owns all of it.
    Whole = sys::DDP_OWNER_WHOLE,
    /// Every rank owns all of it; its value is not sent.
    Replicated = sys::DDP_OWNER_REPLICATED,
}

/// Elements of a parameter that this rank owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The parameter.
    pub param: ParamId,
    /// The elements: a range of value and gradient.
    pub elements: Range<usize>,
    /// All ranks own it.
    pub replicated: bool,
}

impl ContextBuilder {
    /// Says who is to own a parameter, alike on all ranks. cost: of an update, for `Owner::Whole`; 0: the number of elements.
    pub fn set_owner(&mut self, param: impl Into<ParamId>, owner: Owner, cost: f64) -> Result<()> {
        let param = param.into();
        self.0.own(param)?;
        // SAFETY: not committed yet.
        call(|e| unsafe { sys::ddp_set_owner(self.as_ptr(), param.index(), owner as i32, cost, e) })
    }
}

impl Context {
    /// This rank's pieces, in the order of parameters: [`grad`](Self::grad) holds the result there, and nothing elsewhere.
    pub fn pieces(&mut self) -> Result<Vec<Piece>> {
        // SAFETY: a committed context; struct_size is set.
        let count = unsafe { sys::ddp_piece_count(self.raw) };
        let id_of = |index: i32| self.params[index as usize].id;
        (0..count)
            .map(|index| unsafe {
                let mut piece: sys::ddp_piece = std::mem::zeroed();
                piece.struct_size = std::mem::size_of_val(&piece);
                call(|e| sys::ddp_piece_get(self.raw, index, &mut piece, e))?;
                let first = piece.first as usize;
                Ok(Piece { param: id_of(piece.param), elements: first..first + piece.count as usize, replicated: piece.replicated != 0 })
            })
            .collect()
    }

    /// Sends the new values of this rank's pieces, and starts to receive those of others: [`wait_value`](Self::wait_value). Collective,
    /// after each synced step.
    pub fn publish(&mut self) -> Result<()> {
        let mark = self.flags.has(ContextFlags::SHARD);
        self.params.iter_mut().for_each(|slot| slot.arriving = mark);
        // SAFETY: no slice of a value lives.
        call(|e| unsafe { sys::ddp_publish(self.raw, e) })
    }

    /// Waits until a parameter has its new value.
    pub fn wait_value<T>(&mut self, param: Param<T>) -> Result<()> {
        self.wait_for(param.id())
    }

    fn wait_for(&mut self, param: ParamId) -> Result<()> {
        self.own(param)?;
        // SAFETY: as above.
        call(|e| unsafe { sys::ddp_wait_value(self.raw, param.index(), e) })?;
        self.params[param.index() as usize].arriving = false;
        Ok(())
    }

    /// Waits until all parameters have their new values.
    pub fn wait_values(&mut self) -> Result<()> {
        (0..self.params.len()).try_for_each(|index| self.wait_for(self.params[index].id))
    }
}

impl Step<'_> {
    /// [`Context::wait_value`] in a step, before the forward pass of a layer.
    pub fn wait_value<T>(&mut self, param: Param<T>) -> Result<()> {
        self.context_mut().wait_value(param)
    }
}
