//! Element types and operations.
use crate::error::{wrong, Result};
use ddp_sys as sys;

mod sealed {
    pub trait Sealed {}
}

/// An element type of libddp: f32, f64, i32, i64, u8, [`F16`], [`Bf16`] and [`Complex`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its name in libddp.
    const DTYPE: Dtype;
}

/// The name of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Dtype {
    F16 = sys::DDP_F16,
    Bf16 = sys::DDP_BF16,
    F32 = sys::DDP_F32,
    F64 = sys::DDP_F64,
    I32 = sys::DDP_I32,
    I64 = sys::DDP_I64,
    U8 = sys::DDP_U8,
    C64 = sys::DDP_C64,
    C128 = sys::DDP_C128,
}

impl Dtype {
    pub(crate) fn of(code: i32) -> Result<Dtype> {
        use Dtype::*;
        [F16, Bf16, F32, F64, I32, I64, U8, C64, C128]
            .into_iter()
            .find(|each| *each as i32 == code)
            .ok_or_else(|| wrong(format!("dtype {code} is of a newer libddp")))
    }
}

/// The bits of an IEEE 754 binary16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The upper half of the bits of an IEEE 754 binary32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex<T> {
    /// The real part.
    pub re: T,
    /// The imaginary part.
    pub im: T,
}

macro_rules! elements {
    ($($kind:ty = $dtype:ident,)*) => {$(
        impl sealed::Sealed for $kind {}
        impl Element for $kind {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}
elements! { F16 = F16, Bf16 = Bf16, f32 = F32, f64 = F64, i32 = I32, i64 = I64, u8 = U8, Complex<f32> = C64, Complex<f64> = C128, }

/// The operation of a collective on the elements of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ReduceOp {
    /// The sum.
    Sum = sys::DDP_SUM,
    /// The sum divided by the world size; for integers it truncates toward zero.
    Avg = sys::DDP_AVG,
    /// The product.
    Prod = sys::DDP_PROD,
    /// The least.
    Min = sys::DDP_MIN,
    /// The greatest.
    Max = sys::DDP_MAX,
}
