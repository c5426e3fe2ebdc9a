//! ddprun -n 3 --min-ranks 2 lost: an elastic job that loses a rank in a step, and ends with the weights of a plain loop.
use ddp::*;
use ddp_tests::near;

const STEPS: i64 = 40;
const SAMPLES: i64 = 12;
const SIZE: usize = 100;

fn slope(step: i64, sample: i64, i: usize) -> f32 {
    ((7 * step + 5 * sample + i as i64) % 16) as f32 / 16.0
}

/// The mean over some samples.
fn gradient(step: i64, samples: std::ops::Range<i64>) -> Vec<f32> {
    let count = (samples.end - samples.start) as f32;
    (0..SIZE).map(|i| samples.clone().map(|sample| slope(step, sample, i)).sum::<f32>() / count).collect()
}

fn update(value: &mut [f32], gradient: &[f32], momentum: &mut [f32]) {
    for ((v, g), m) in value.iter_mut().zip(gradient).zip(momentum) {
        *m = 0.5 * *m + g;
        *v -= 0.125 * *m;
    }
}

fn main() -> Result<()> {
    let mut job = Elastic::new(&ElasticOptions::default())?;
    let mut model = job.context(&ContextOptions { reduction: Reduction::WeightedMean, ..ContextOptions::default() })?;
    let w = model.register("w", &[SIZE], vec![0f32; SIZE])?;
    let mut context = model.commit()?;
    job.add_context(&mut context)?;
    let momentum = job.add_state("momentum", vec![0f32; SIZE])?;
    let mut worlds = Vec::new();
    loop {
        let now = job.begin(&mut [&mut context])?;
        if now.changed {
            worlds.push(now.world_size);
        }
        if now.step == STEPS {
            break;
        }
        let share = shard_range(SAMPLES, now.rank as i32, now.world_size as i32)?;
        let ended = (|| {
            context.set_weight((share.end - share.start) as f64)?;
            let step = context.step()?;
            step.put(w, &gradient(now.step, share.clone()))?;
            if now.step == 10 && now.roster == 1 && now.rank == 1 {
                std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status().expect("kill");
            }
            step.finish()
        })();
        if let Err(error) = ended {
            if job.group().status().is_ok() {
                return Err(error); // no rank was lost
            }
            continue;
        }
        let (value, mean) = context.value_and_grad(w)?;
        update(value, mean, job.state_mut(momentum)?);
        let _ = job.commit(&mut [&mut context]); // the next begin() says why it failed
    }
    let (mut value, mut velocity) = (vec![0.0; SIZE], vec![0.0; SIZE]);
    (0..STEPS).for_each(|step| update(&mut value, &gradient(step, 0..SAMPLES), &mut velocity));
    near(context.value(w)?, &value);
    println!("worlds {worlds:?}: passed");
    job.leave(&mut [&mut context])
}
