//! The C interface of libddp under its own names: every function, type and constant of `include/ddp`, experimental ones too.
//! Arguments are pointers and numbers, and nothing is checked. The headers are the documentation. The crate `ddp` is a safe
//! interface over this one, and gives its pointers (`as_ptr`) for functions that it does not wrap.
#![allow(non_camel_case_types)]

include!("bindings.rs");
