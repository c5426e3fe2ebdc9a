//! ddprun -n 3 killed: rank 1 is killed in a step, and the others end with an error that names it.
use ddp::{ContextBuilder, ContextOptions, Error, Group};

fn main() -> Result<(), Error> {
    let group = Group::new()?;
    let mut model = ContextBuilder::new(&group, &ContextOptions::default())?;
    let w = model.register("w", &[1000], vec![0f32; 1000])?;
    let mut context = model.commit()?;
    for number in 0..1000 {
        let step = context.step()?;
        step.put(w, &[1.0; 1000])?;
        if number == 5 && group.rank() == 1 {
            std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status().expect("kill");
        }
        step.finish()?;
    }
    Ok(())
}
