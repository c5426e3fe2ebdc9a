//! Trains a multi-layer perceptron (mlp.rs) on handwritten digits with as many processes as a launcher starts.
//!
//!     ./mnist                       one process
//!     ddprun -n 4 ./mnist           four processes, the same training in a fraction of the time
//!
//! libddp's part: `share` registers the parameters, `Tensors` of a step writes each gradient where libddp wants it and says that it is
//! complete, and `epoch` begins and finishes steps. All else is the same as without it.
//!
//! It is the trainer of ../c/mnist.c: the same model, batches and options. The trainers of all languages may be
//! ranks of one job.
mod idx;
mod mlp;

use ddp::{Context, ContextBuilder, ContextOptions, Group, Param, ReduceOp, Step};
use idx::Digits;
use mlp::{Tensors, TENSORS, WIDTHS};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

type Done<T> = Result<T, Box<dyn Error>>;

#[derive(Clone)]
struct Options {
    data: PathBuf,
    epochs: u64,
    batch: usize,
    lr: f32,
    momentum: f32,
    seed: u64,
    hook: String,
    hook_options: String,
    compare_local: bool,
    save: Option<PathBuf>,
}

const USAGE: &str = "usage: mnist [OPTION]...
  --data FOLDER       with the four IDX files of MNIST, plain or .gz (examples/data/mnist)
  --epochs N          passes over the training digits (10)
  --batch N           digits in a global batch, divided among the ranks (64)
  --lr X              learning rate (0.05)
  --momentum X        of the updates (0.9)
  --seed N            of the first weights and of the order of the digits (1)
  --hook NAME         communication hook (allreduce)
  --hook-options K=V,...
  --compare-local     train without libddp afterwards, and compare
  --save FILE         rank 0's final weights, raw f32, one tensor after another";

fn parse() -> Result<Options, String> {
    let mut chosen = Options {
        data: "examples/data/mnist".into(),
        epochs: 10,
        batch: 64,
        lr: 0.05,
        momentum: 0.9,
        seed: 1,
        hook: "allreduce".to_owned(),
        hook_options: String::new(),
        compare_local: false,
        save: None,
    };
    let mut given = std::env::args().skip(1);
    fn number<T: std::str::FromStr>(name: &str, text: String) -> Result<T, String> {
        text.parse().map_err(|_| format!("a number must follow {name}, not {text}"))
    }
    while let Some(name) = given.next() {
        if name == "--compare-local" {
            chosen.compare_local = true;
            continue;
        }
        let value = given.next().ok_or_else(|| format!("something must follow {name}, or there is no such option"))?;
        match name.as_str() {
            "--data" => chosen.data = value.into(),
            "--epochs" => chosen.epochs = number(&name, value)?,
            "--batch" => chosen.batch = number(&name, value)?,
            "--lr" => chosen.lr = number(&name, value)?,
            "--momentum" => chosen.momentum = number(&name, value)?,
            "--seed" => chosen.seed = number(&name, value)?,
            "--hook" => chosen.hook = value,
            "--hook-options" => chosen.hook_options = value,
            "--save" => chosen.save = Some(value.into()),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(chosen)
}

/// Tensors of a process that trains without libddp.
struct Alone {
    values: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl Tensors for Alone {
    type Failure = ddp::Error;

    fn value(&self, tensor: usize) -> Result<&[f32], ddp::Error> {
        Ok(&self.values[tensor])
    }

    fn gradient(&mut self, tensor: usize, write: &dyn Fn(&mut [f32])) -> Result<(), ddp::Error> {
        write(&mut self.gradients[tensor]);
        Ok(())
    }
}

/// Tensors of a context, in a step.
struct InStep<'a> {
    step: Step<'a>,
    params: &'a [Param<f32>],
}

impl Tensors for InStep<'_> {
    type Failure = ddp::Error;

    fn value(&self, tensor: usize) -> Result<&[f32], ddp::Error> {
        self.step.value(self.params[tensor])
    }

    fn gradient(&mut self, tensor: usize, write: &dyn Fn(&mut [f32])) -> Result<(), ddp::Error> {
        write(self.step.grad_mut(self.params[tensor])?);
        self.step.ready(self.params[tensor])
    }
}

enum Model {
    Alone(Alone),
    Shared(Context, Vec<Param<f32>>),
}

struct Trainer {
    model: Model,
    velocities: Vec<Vec<f32>>,
    rank: usize,
    world: usize,
}

/// Hands the model to libddp, which makes every rank's weights those of rank 0.
fn share(group: &Group, opt: &Options, values: Vec<Vec<f32>>) -> Result<Model, ddp::Error> {
    let mut model = ContextBuilder::new(group, &ContextOptions::default())?;
    let mut params = Vec::new();
    for (tensor, value) in values.into_iter().enumerate() {
        let (name, shape) = mlp::describe(tensor);
        params.push(model.register(&name, &shape, value)?);
    }
    let mut context = model.commit()?;
    context.use_hook(&opt.hook, &opt.hook_options)?;
    Ok(Model::Shared(context, params))
}

impl Trainer {
    /// group None: trains alone, without libddp.
    fn new(opt: &Options, group: Option<&Group>) -> Result<Trainer, ddp::Error> {
        let (rank, world) = group.map_or((0, 1), |group| (group.rank(), group.world_size()));
        // Every rank draws other weights, on purpose: commit() replaces them with those of rank 0.
        let values = mlp::first_values(opt.seed + rank as u64);
        let zeros: Vec<Vec<f32>> = values.iter().map(|value| vec![0.0; value.len()]).collect();
        let model = match group {
            None => Model::Alone(Alone { values, gradients: zeros.clone() }),
            Some(group) => share(group, opt, values)?,
        };
        Ok(Trainer { model, velocities: zeros, rank, world })
    }

    fn value(&self, tensor: usize) -> Result<&[f32], ddp::Error> {
        match &self.model {
            Model::Alone(net) => net.value(tensor),
            Model::Shared(context, params) => context.value(params[tensor]),
        }
    }

    /// One batch: gradients, their mean over ranks, and the update.
    fn train(&mut self, opt: &Options, images: Vec<f32>, labels: &[usize]) -> Result<[f64; 2], ddp::Error> {
        let score = match &mut self.model {
            Model::Alone(net) => {
                let (pass, score) = mlp::forward(net, images, labels)?;
                mlp::backward(net, pass, labels)?;
                score
            }
            Model::Shared(context, params) => {
                let mut net = InStep { step: context.step()?, params };
                let (pass, score) = mlp::forward(&net, images, labels)?;
                mlp::backward(&mut net, pass, labels)?;
                net.step.finish()?;
                score
            }
        };
        for (tensor, velocity) in self.velocities.iter_mut().enumerate() {
            match &mut self.model {
                Model::Alone(net) => mlp::update(&mut net.values[tensor], &net.gradients[tensor], velocity, opt.lr, opt.momentum),
                Model::Shared(context, params) => {
                    let (value, gradient) = context.value_and_grad(params[tensor])?;
                    mlp::update(value, gradient, velocity, opt.lr, opt.momentum);
                }
            }
        }
        Ok(score)
    }

    /// One pass over the digits. Returns this rank's part of the score.
    fn epoch(&mut self, opt: &Options, digits: &Digits, number: u64) -> Result<[f64; 2], ddp::Error> {
        let (order, part, mut total) = (mlp::shuffled(digits.labels.len(), opt.seed, number), opt.batch / self.world, [0.0; 2]);
        for batch in order.chunks_exact(opt.batch) {
            let mine = &batch[self.rank * part..(self.rank + 1) * part];
            let images = mine.iter().flat_map(|i| &digits.images[i * WIDTHS[0]..(i + 1) * WIDTHS[0]]).copied().collect();
            let labels: Vec<usize> = mine.iter().map(|i| digits.labels[*i]).collect();
            let score = self.train(opt, images, &labels)?;
            total[0] += score[0];
            total[1] += score[1];
        }
        Ok(total)
    }
}

/// Every rank trains the global batches alone and compares. Whether no rank saw more than the bound of ../c/compare.c.
fn compare_with_local(group: &Group, opt: &Options, shared: &Trainer, digits: &Digits) -> Result<bool, ddp::Error> {
    let mut alone = Trainer::new(opt, None)?;
    {
        let _mark = ddp::mark("train alone")?; // in a timeline: ddprun --trace
        (0..opt.epochs).try_for_each(|number| alone.epoch(opt, digits, number).map(drop))?;
    }
    let mut worst = [0f64; 2];
    for tensor in 0..TENSORS {
        let (mine, other) = (shared.value(tensor)?, alone.value(tensor)?);
        let typical = (other.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / other.len() as f64).sqrt();
        for (a, b) in mine.iter().zip(other) {
            let apart = (f64::from(*a) - f64::from(*b)).abs();
            let apart = if apart.is_nan() { f64::INFINITY } else { apart };
            worst = [worst[0].max(apart), worst[1].max(apart / typical.max(f64::from(b.abs())))];
        }
    }
    group.allreduce(&mut worst, ReduceOp::Max)?;
    let steps = opt.epochs as f64 * (digits.labels.len() / opt.batch) as f64;
    let bound = steps * f64::from(opt.lr) / f64::from(1.0 - opt.momentum) * opt.batch as f64 * f64::from(f32::EPSILON) * 0.1;
    let met = worst[0] <= bound;
    if group.rank() == 0 {
        println!("against one process, any weight on any rank after {steps} steps: difference {:.3e}, relative {:.3e}", worst[0], worst[1]);
        println!(
            "bound {bound:.3e} (rounding of steps * lr / (1 - momentum) * batch * 0.1, see compare.c): {}",
            if met { "met" } else { "EXCEEDED" }
        );
    }
    Ok(met)
}

fn run(opt: &Options) -> Done<bool> {
    let digits = idx::load(&opt.data, "train")?;
    let group = Group::new()?;
    if opt.batch % group.world_size() != 0 || opt.batch > digits.labels.len() {
        return Err(format!(
            "--batch {} must be a multiple of the {} ranks, and at most the {} digits",
            opt.batch,
            group.world_size(),
            digits.labels.len()
        )
        .into());
    }
    let mut trainer = Trainer::new(opt, Some(&group))?;
    let seen = (digits.labels.len() / opt.batch * opt.batch) as f64;
    for number in 0..opt.epochs {
        let start = Instant::now();
        let mut total = trainer.epoch(opt, &digits, number)?;
        group.allreduce(&mut total, ReduceOp::Sum)?;
        if group.rank() == 0 {
            println!(
                "epoch {:2}  loss {:.4}  train accuracy {:5.2} %  {:8.0} images/s",
                number + 1,
                total[0] / seen,
                100.0 * total[1] / seen,
                seen / start.elapsed().as_secs_f64()
            );
        }
    }
    if group.rank() == 0 {
        let tests = idx::load(&opt.data, "t10k")?;
        let values = (0..TENSORS).map(|tensor| trainer.value(tensor).map(<[f32]>::to_vec)).collect::<Result<Vec<_>, _>>()?;
        if let Some(path) = &opt.save {
            let mut file = std::fs::File::create(path)?;
            values.iter().flatten().try_for_each(|value| file.write_all(&value.to_ne_bytes()))?;
        }
        let (_, score) = mlp::forward(&Alone { values, gradients: Vec::new() }, tests.images, &tests.labels)?;
        println!("test accuracy {:.2} %", 100.0 * score[1] / tests.labels.len() as f64);
    }
    Ok(!opt.compare_local || compare_with_local(&group, opt, &trainer, &digits)?)
}

fn main() {
    let opt = parse().unwrap_or_else(|problem| {
        eprintln!("mnist: {problem}\n{USAGE}");
        std::process::exit(2)
    });
    match run(&opt) {
        Ok(true) => {}
        Ok(false) => std::process::exit(1),
        Err(error) => {
            eprintln!("mnist: {error}");
            std::process::exit(1)
        }
    }
}
