// E0502: the state of a job is gone when a step begins.
pub fn train(job: &mut ddp::Elastic, context: &mut ddp::Context, w: ddp::State<f32>) -> Result<f32, ddp::Error> {
    let momentum = job.state(w)?;
    let mut sum = momentum[0];
    job.begin(&mut [context])?;
    sum += momentum[0]; // refused
    Ok(sum)
}

fn main() {}
