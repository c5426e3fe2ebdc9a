// E0505: a gradient does not outlive its context.
pub fn train(context: ddp::Context, w: ddp::Param<f32>) -> Result<(), ddp::Error> {
    let gradient = context.grad(w)?;
    println!("{}", gradient[0]);
    drop(context);
    println!("{}", gradient[0]); // refused
    Ok(())
}

fn main() {}
