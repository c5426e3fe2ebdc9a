// E0502: a gradient cannot be written after it was announced.
pub fn train(context: &mut ddp::Context, w: ddp::Param<f32>) -> Result<(), ddp::Error> {
    let mut step = context.step()?;
    let gradient = step.grad_mut(w)?;
    gradient[0] = 1.0;
    step.ready(w)?;
    gradient[0] = 2.0; // refused
    step.finish()
}

fn main() {}
