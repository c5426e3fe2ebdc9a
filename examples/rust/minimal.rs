//! minimal.rs: a whole distributed trainer in Rust, with bindgen. It fits y = w0 + w1 x to samples; each rank has its own.
//!
//!     bindgen --no-prepend-enum-name --allowlist-file '.*/ddp/.*' $(pkg-config --variable=includedir ddp)/ddp/ddp.h -o ddp.rs
//!     rustc -O minimal.rs $(pkg-config --libs-only-L ddp) -l ddp
//!     ddprun -n 2 ./minimal    every rank ends with the same w, trained on both ranks' samples
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code)]
mod ddp; // written by bindgen

use std::ffi::{CStr, CString};
use std::{process, ptr};

/// Makes a call of libddp, with the place for its error as the last argument, and ends the process if it has failed.
fn check(call: impl FnOnce(*mut *mut ddp::ddp_error) -> ddp::ddp_status) {
    let mut failure = ptr::null_mut();
    if call(&mut failure) != ddp::DDP_OK {
        eprintln!("{}", unsafe { CStr::from_ptr(ddp::ddp_error_message(failure)) }.to_string_lossy());
        process::exit(1);
    }
}

fn main() {
    let (mut w, mut grad) = ([0f32; 2], [0f32; 2]); // libddp has pointers to both: they must not move while the context lives
    let (w, grad) = (w.as_mut_ptr(), grad.as_mut_ptr());
    let (name, shape) = (CString::new("w").unwrap(), [2i64]);
    let (mut group, mut context, mut param) = (ptr::null_mut(), ptr::null_mut(), -1);
    unsafe {
        check(|e| ddp::ddp_group_create(ptr::null(), &mut group, e)); // rank and world size from the launcher
        check(|e| ddp::ddp_context_create(group, ptr::null(), &mut context, e));
        let mut desc = std::mem::zeroed();
        ddp::ddp_param_desc_init_sized(&mut desc, std::mem::size_of::<ddp::ddp_param_desc>() as _);
        desc.name = name.as_ptr();
        desc.shape = shape.as_ptr();
        desc.ndim = 1;
        desc.data = w.cast();
        desc.grad = grad.cast();
        check(|e| ddp::ddp_register_param(context, &desc, &mut param, e));
        check(|e| ddp::ddp_commit(context, e)); // every rank starts from rank 0's w
        let rank = ddp::ddp_group_rank(group);
        for step in 0..500 {
            let x = ((7 * step + rank) % 10) as f32 / 10.0; // a sample of this rank's own
            let wrong = *w + *w.add(1) * x - (3.0 - 2.0 * x); // prediction minus truth
            *grad = wrong;
            *grad.add(1) = wrong * x;
            check(|e| ddp::ddp_grad_ready(context, param, e)); // starts the averaging over ranks
            check(|e| ddp::ddp_finalize(context, e)); // grad is now the mean
            *w -= 0.5 * *grad;
            *w.add(1) -= 0.5 * *grad.add(1);
        }
        println!("rank {}: y = {:.3} {:+.3} x", rank, *w, *w.add(1));
        ddp::ddp_context_free(context);
        ddp::ddp_group_free(group);
    }
}
