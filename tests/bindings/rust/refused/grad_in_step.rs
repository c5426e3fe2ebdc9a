// E0502: a gradient of the last step is gone when the next begins.
pub fn train(context: &mut ddp::Context, w: ddp::Param<f32>) -> Result<f32, ddp::Error> {
    let gradient = context.grad(w)?;
    let mut mean = gradient[0];
    let step = context.step()?;
    mean += gradient[0]; // refused
    step.finish()?;
    Ok(mean)
}

fn main() {}
