// E0382: a step ends once.
pub fn train(context: &mut ddp::Context) -> Result<(), ddp::Error> {
    let step = context.step()?;
    step.finish()?;
    step.finish()?; // refused
    Ok(())
}

fn main() {}
