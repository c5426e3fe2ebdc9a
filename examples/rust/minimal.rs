//! minimal.rs: a whole distributed trainer. It fits y = w0 + w1 x to samples; each rank has its own.
//!
//!     ddprun -n 2 ./minimal          every rank ends with the same w, trained on both ranks' samples
fn main() -> Result<(), ddp::Error> {
    let group = ddp::Group::new()?; // rank and world size from the launcher; alone without one
    let mut model = ddp::ContextBuilder::new(&group, &ddp::ContextOptions::default())?;
    let w = model.register("w", &[2], vec![0f32; 2])?;
    let mut context = model.commit()?; // every rank starts from rank 0's w
    for number in 0..500 {
        let x = ((7 * number + group.rank()) % 10) as f32 / 10.0; // a sample of this rank's own
        let mut step = context.step()?;
        let wrong = step.value(w)?[0] + step.value(w)?[1] * x - (3.0 - 2.0 * x); // prediction minus truth
        step.grad_mut(w)?.copy_from_slice(&[wrong, wrong * x]);
        step.ready(w)?; // starts the averaging over ranks
        step.finish()?; // now the gradient is the mean
        let (value, gradient) = context.value_and_grad(w)?;
        value.iter_mut().zip(gradient).for_each(|(value, slope)| *value -= 0.5 * *slope);
    }
    let w = context.value(w)?;
    println!("rank {}: y = {:.3} {:+.3} x", group.rank(), w[0], w[1]);
    Ok(())
}
