//! ddprun -n N ranks: everything that needs several ranks, against plain loops.
use ddp::*;
use ddp_tests::{fails, means, near, sums, test, values_of};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 1000;
const SMALL: ContextOptions = ContextOptions {
    bucket_cap_bytes: 2000,
    first_bucket_cap_bytes: 2000,
    bucket_caps: Vec::new(),
    reduction: Reduction::Mean,
    flags: ContextFlags(0),
    rebuild_interval: 0,
    check_interval: 0,
    verify_interval: 0,
};

fn with(flags: ContextFlags) -> ContextOptions {
    ContextOptions { flags, ..SMALL }
}

fn make(group: &Group, options: &ContextOptions) -> Result<(Context, Vec<Param<f32>>)> {
    let mut model = ContextBuilder::new(group, options)?;
    let mut params = Vec::new();
    for i in 0..4 {
        params.push(model.register(&format!("p{i}"), &[10, SIZE / 10], vec![group.rank() as f32; SIZE])?);
    }
    Ok((model.commit()?, params))
}

fn train(context: &mut Context, params: &[Param<f32>], rank: usize, expected: &[f32]) -> Result<()> {
    for _ in 0..3 {
        let mut step = context.step()?;
        for (i, param) in params.iter().enumerate().rev() {
            if i % 2 == 0 {
                step.put(*param, &values_of(rank, SIZE))?;
            } else {
                step.grad_mut(*param)?.copy_from_slice(&values_of(rank, SIZE));
                step.ready(*param)?;
            }
        }
        step.finish()?;
        for param in params {
            near(context.grad(*param)?, expected);
        }
    }
    Ok(())
}

fn collectives(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let mut buffer = values_of(rank, SIZE);
    group.allreduce(&mut buffer, ReduceOp::Sum)?;
    assert_eq!(buffer, sums(world, SIZE));
    let mut buffer = values_of(rank, SIZE);
    group.allreduce(&mut buffer, ReduceOp::Max)?;
    let greatest = |i: usize| (0..world).map(|r| values_of(r, SIZE)[i]).fold(0.0, f32::max);
    assert!((0..SIZE).all(|i| buffer[i] == greatest(i)));
    let mut buffer = values_of(rank, SIZE);
    group.broadcast(&mut buffer, 1)?;
    assert_eq!(buffer, values_of(1, SIZE));
    let mut all = vec![0.0; SIZE * world];
    group.allgather(&values_of(rank, SIZE), &mut all)?;
    assert!((0..world).all(|r| all[r * SIZE..(r + 1) * SIZE] == values_of(r, SIZE)));
    let mut part = vec![0.0; 500];
    group.reduce_scatter(&values_of(rank, 500).repeat(world), &mut part, ReduceOp::Sum)?;
    assert_eq!(part, sums(world, 500));
    let send: Vec<i32> = (0..7 * world as i32).map(|i| 1000 * rank as i32 + i).collect();
    let mut recv = vec![0; 7 * world];
    group.all_to_all(&send, &mut recv)?;
    assert!((0..7 * world).all(|i| recv[i] == (1000 * (i / 7) + 7 * rank + i % 7) as i32));
    // rank r sends r + 2 q elements to rank q
    let counts = |f: &dyn Fn(usize) -> usize| (0..world).map(|r| f(r) as u64).collect::<Vec<_>>();
    let (to, of) = (counts(&|q| rank + 2 * q), counts(&|r| r + 2 * rank));
    let send: Vec<i64> = (0..world).flat_map(|q| vec![(10 * rank + q) as i64; rank + 2 * q]).collect();
    let mut recv = vec![0i64; of.iter().sum::<u64>() as usize];
    group.all_to_allv(&send, &to, &mut recv, &of)?;
    let expected: Vec<i64> = (0..world).flat_map(|r| vec![(10 * r + rank) as i64; r + 2 * rank]).collect();
    assert_eq!(recv, expected);
    let mut complex = vec![Complex { re: rank as f64, im: 1.0 }; 3];
    group.allreduce(&mut complex, ReduceOp::Sum)?;
    assert_eq!(complex, vec![Complex { re: (world * (world - 1) / 2) as f64, im: world as f64 }; 3]);
    let mut half = vec![Bf16(0x3f80); 2]; // one
    group.allreduce(&mut half, ReduceOp::Avg)?;
    assert_eq!(half, [Bf16(0x3f80); 2]);
    group.allreduce(&mut [] as &mut [f32], ReduceOp::Sum)?;
    group.barrier()?;
    fails(group.allgather(&[1.0f32], &mut [0.0; 1]), Status::InvalidArgument, &["recv has 1 elements"]);
    fails(group.broadcast(&mut [1.0f32], 99), Status::InvalidArgument, &["root"]);
    let told = environment()?;
    assert_eq!((told.rank as usize, told.world_size as usize, told.launcher.as_str()), (rank, world, "ddprun"));
    Ok(())
}

fn works(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let started = (0..4).map(|_| group.start_allreduce(values_of(rank, SIZE), ReduceOp::Sum)).collect::<Result<Vec<_>>>()?;
    for work in started {
        assert_eq!(work.wait()?, sums(world, SIZE));
    }
    assert_eq!(group.start_broadcast(values_of(rank, SIZE), 1)?.wait()?, values_of(1, SIZE));
    // A dropped work goes on: its memory is free only afterwards.
    if rank == 0 {
        drop(group.start_allreduce(vec![1.0f64; 1 << 20], ReduceOp::Sum)?);
    } else {
        std::thread::sleep(Duration::from_millis(200));
        drop(group.start_allreduce(vec![1.0f64; 1 << 20], ReduceOp::Sum)?);
    }
    let last = group.start_allreduce(vec![1i32], ReduceOp::Sum)?;
    while !last.is_done() {
        std::thread::yield_now();
    }
    assert_eq!(last.wait()?, [world as i32]);
    Ok(())
}

fn groups(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let pair = group.split(Some(rank as i32 / 2), -(rank as i32))?.unwrap();
    let members: Vec<usize> = (0..world).rev().filter(|r| r / 2 == rank / 2).collect();
    assert_eq!((pair.rank(), pair.world_size()), (members.iter().position(|r| *r == rank).unwrap(), members.len()));
    assert!(group.split(None, 0)?.is_none());
    let (a, b) = (group.split(Some(0), 0)?.unwrap(), group.split(Some(0), 0)?.unwrap());
    let turns = Group::round_robin(&[&a, &b])?;
    drop((a, b));
    let (mut context, params) = make(&turns, &SMALL)?;
    drop(turns); // the context keeps it
    train(&mut context, &params, rank, &means(world, SIZE))?;
    let store = group.store()?;
    store.add("rust/sum", rank as i64 + 1)?;
    group.barrier()?;
    assert_eq!(store.get("rust/sum", None)?, (world * (world + 1) / 2).to_string().into_bytes());
    Ok(())
}

fn steps(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let (mut context, params) = make(group, &SMALL)?;
    assert!(context.value(params[0])?.iter().all(|value| *value == 0.0), "rank 0's values");
    train(&mut context, &params, rank, &means(world, SIZE))?;
    let stats = context.stats()?;
    assert_eq!((stats.steps, stats.synced_steps, stats.param_count), (3, 3, 4));
    let plan = context.plan()?;
    let mut model = ContextBuilder::new(group, &with(ContextFlags::NO_REBUILD))?;
    for i in 0..4 {
        model.register(&format!("p{i}"), &[10, SIZE / 10], vec![0f32; SIZE])?;
    }
    model.adopt_plan(&plan)?;
    assert_eq!(model.commit()?.plan()?, plan);
    // the sum, and a buffer, which begins of rank 0
    let mut model = ContextBuilder::new(group, &ContextOptions { reduction: Reduction::Sum, ..SMALL })?;
    let param = model.register("w", &[], vec![1f64])?;
    let buffer = model.register_buffer("mean", &[2], vec![rank as i64; 2])?;
    let mut context = model.commit()?;
    assert_eq!(context.buffer(buffer)?, [0, 0]);
    context.buffer_mut(buffer)?[1] = 10 + rank as i64;
    for expected in [10 + rank as i64, 10] {
        let step = context.step()?;
        step.put(param, &[rank as f64])?;
        step.finish()?;
        assert_eq!(context.grad(param)?[0], (world * (world - 1) / 2) as f64);
        assert_eq!(context.buffer(buffer)?[1], expected, "buffers are sent after a synced step");
    }
    let (value, gradient) = context.value_and_grad(param)?;
    value[0] -= gradient[0];
    assert_eq!(context.value(param)?[0], 1.0 - (world * (world - 1) / 2) as f64);
    Ok(())
}

fn threads_announce(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let (mut context, params) = make(group, &SMALL)?;
    for _ in 0..20 {
        let step = context.step()?;
        std::thread::scope(|scope| {
            for param in &params {
                let step = &step;
                scope.spawn(move || step.put(*param, &values_of(rank, SIZE)).unwrap());
            }
        });
        step.finish()?;
        params.iter().for_each(|param| near(context.grad(*param).unwrap(), &means(world, SIZE)));
    }
    // Many threads announce one gradient: one wins.
    let step = context.step()?;
    let won = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| match step.put(params[0], &values_of(rank, SIZE)) {
                Ok(()) => drop(won.fetch_add(1, Ordering::Relaxed)),
                Err(error) => drop(fails::<()>(Err(error), Status::InvalidState, &["'p0'", "announced"])),
            });
        }
    });
    assert_eq!(won.load(Ordering::Relaxed), 1);
    params[1..].iter().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
    step.finish()
}

fn unsynced(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let (mut context, params) = make(group, &SMALL)?;
    let expected: Vec<f32> = means(world, SIZE).iter().map(|mean| 3.0 * mean).collect();
    for _ in 0..2 {
        params.iter().try_for_each(|param| context.grad_mut(*param).map(|gradient| gradient.fill(0.0)))?;
        for micro in 0..3 {
            context.set_sync(micro == 2)?;
            let mut step = context.step()?;
            for (i, param) in params.iter().enumerate() {
                if i % 2 == 0 {
                    step.put_add(*param, &values_of(rank, SIZE))?;
                } else {
                    step.grad_mut(*param)?.iter_mut().zip(values_of(rank, SIZE)).for_each(|(sum, value)| *sum += value);
                    step.ready(*param)?;
                }
            }
            step.finish()?;
        }
        params.iter().for_each(|param| near(context.grad(*param).unwrap(), &expected));
    }
    // A step that is dropped stays open, and discard() ends it.
    let step = context.step()?;
    step.put(params[3], &values_of(rank, SIZE))?;
    drop(step);
    fails(context.grad(params[0]), Status::InvalidState, &["Context::discard"]);
    fails(context.step().map(drop), Status::InvalidState, &["Context::discard"]);
    context.discard()?;
    train(&mut context, &params, rank, &means(world, SIZE))
}

fn participation(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    // Rank 0 alone uses p0, and nobody uses p3.
    let (mut context, params) = make(group, &with(ContextFlags::FIND_UNUSED))?;
    let only_first: Vec<f32> = values_of(0, SIZE).iter().map(|value| value / world as f32).collect();
    for _ in 0..3 {
        context.grad_mut(params[3])?.fill(5.0);
        let mut step = context.step()?;
        step.mark_unused(&[params[3].id()])?;
        fails(step.grad_mut(params[3]).map(drop), Status::InvalidState, &["'p3'"]);
        params[1..3].iter().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
        if rank == 0 {
            step.put(params[0], &values_of(rank, SIZE))?;
        }
        step.finish()?;
        near(context.grad(params[0])?, &only_first);
        near(context.grad(params[1])?, &means(world, SIZE));
        near(context.grad(params[3])?, &[5.0; SIZE]);
        assert!(context.param_used(params[0])? && !context.param_used(params[3])?);
    }
    // Frozen and skipped parameters.
    let (mut context, params) = make(group, &SMALL)?;
    context.set_frozen(&[params[2].id()], true)?;
    context.skip_params(&[params[1].id()], Some(0))?;
    assert!(context.skipped(params[1])? && !context.skipped(params[0])?);
    let step = context.step()?;
    step.put(params[0], &values_of(rank, SIZE))?;
    step.put(params[3], &values_of(rank, SIZE))?;
    step.finish()?;
    near(context.grad(params[3])?, &means(world, SIZE));
    context.set_frozen(&[params[2].id()], false)?;
    train(&mut context, &params, rank, &means(world, SIZE))?;
    // The gradient of the global batch: rank r has r + 1 samples.
    let (mut context, params) = make(group, &ContextOptions { reduction: Reduction::WeightedMean, ..SMALL })?;
    let samples = |r: usize| (r + 1) as f32;
    let total: f32 = (0..world).map(samples).sum();
    let weighted: Vec<f32> = (0..SIZE).map(|i| (0..world).map(|r| samples(r) * values_of(r, SIZE)[i]).sum::<f32>() / total).collect();
    context.set_weight(samples(rank) as f64)?;
    let step = context.step()?;
    params.iter().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
    step.finish()?;
    params.iter().for_each(|param| near(context.grad(*param).unwrap(), &weighted));
    // Ranks run out of inputs: rank r has r + 1 steps.
    let (mut context, params) = make(group, &with(ContextFlags::JOIN))?;
    for number in 0..=rank {
        let step = context.step()?;
        params.iter().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
        step.finish()?;
        let there: Vec<f32> = (0..SIZE).map(|i| (number..world).map(|r| values_of(r, SIZE)[i]).sum::<f32>() / world as f32).collect();
        near(context.grad(params[0])?, &there);
        context.value_mut(params[0])?[0] = rank as f32;
    }
    context.join()?;
    assert_eq!(context.value(params[0])?[0], world as f32 - 1.0, "the values of the rank that joined last");
    Ok(())
}

fn votes(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let (mut context, params) = make(group, &with(ContextFlags::VOTES))?;
    let step = context.step()?;
    step.vote(2 | 1 << (16 + rank))?;
    params.iter().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
    step.finish()?;
    assert_eq!(context.votes()?, Votes { any: 2 | ((1 << world) - 1) << 16, all: 2, level: 0 });
    Ok(())
}

fn norms(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    let mut model = ContextBuilder::new(group, &SMALL)?;
    let a = model.register("a", &[SIZE], vec![0f32; SIZE])?;
    let b = model.register("b", &[SIZE], vec![0f64; SIZE])?;
    let both = model.track_grad_norm(2.0, &[])?;
    let one = model.track_grad_norm(1.0, &[a.id()])?;
    let mut context = model.commit()?;
    let step = context.step()?;
    step.put(a, &values_of(rank, SIZE))?;
    step.put(b, &values_of(rank, SIZE).iter().map(|value| f64::from(*value)).collect::<Vec<_>>())?;
    step.finish()?;
    let squares: f64 = means(world, SIZE).iter().map(|mean| 2.0 * f64::from(*mean).powi(2)).sum();
    assert!((context.grad_norm(both)? / squares.sqrt() - 1.0).abs() < 1e-6);
    let sum: f64 = means(world, SIZE).iter().map(|mean| f64::from(*mean)).sum();
    assert!((context.grad_norm(one)? / sum - 1.0).abs() < 1e-6);
    let factor = context.clip_factor(both, 1.0)?;
    assert!((factor * squares.sqrt() - 1.0).abs() < 1e-6);
    context.clip_grad_norm(both, 1.0)?;
    let clipped: Vec<f32> = means(world, SIZE).iter().map(|mean| mean * factor as f32).collect();
    near(context.grad(a)?, &clipped);
    Ok(())
}

fn hooks(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    // sums, which are whole numbers in half precision too
    let (mut context, params) = make(group, &ContextOptions { reduction: Reduction::Sum, ..SMALL })?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    context.set_hook(move |mut bucket| {
        counter.fetch_add(1, Ordering::Relaxed);
        assert!(bucket.elements::<f64>().is_none());
        let twice = bucket.elements::<f32>().ok_or("not f32")?;
        twice.iter_mut().for_each(|element| *element *= 2.0);
        if bucket.index() == 0 {
            let mut copy = bucket.elements::<f32>().ok_or("not f32")?.to_vec();
            bucket.group().allreduce(&mut copy, bucket.op())?;
            bucket.elements::<f32>().ok_or("not f32")?.copy_from_slice(&copy);
            return Ok(bucket.reduced());
        }
        Ok(bucket.allreduce()?)
    })?;
    assert_eq!(context.hook_name(), "user");
    let twice: Vec<f32> = sums(world, SIZE).iter().map(|sum| 2.0 * sum).collect();
    train(&mut context, &params, rank, &twice)?;
    assert!(calls.load(Ordering::Relaxed) >= 6 && Arc::strong_count(&calls) == 2);
    context.use_hook("fp16", "")?;
    assert_eq!(Arc::strong_count(&calls), 1, "libddp has dropped the closure");
    assert!(context.hook_name().starts_with("fp16"));
    train(&mut context, &params, rank, &sums(world, SIZE))?;
    context.use_hook("powersgd", "rank=1,start=2")?;
    let state = context.hook_state()?;
    context.load_hook_state(&state, false)?;
    fails(context.load_hook_state(b"no such file", false), Status::InvalidArgument, &[]);
    fails(context.use_hook("median", ""), Status::InvalidArgument, &["median"]);
    // Its own group: this one breaks.
    for panics in [true, false] {
        let other = group.split(Some(0), rank as i32)?.unwrap();
        let (mut context, params) = make(&other, &SMALL)?;
        let text = "the hook of the test gives up";
        context.set_hook(move |bucket| {
            if panics && rank == 0 {
                panic!("{text}");
            }
            if rank == 0 {
                return Err(text.into());
            }
            Ok(bucket.allreduce()?)
        })?;
        group.barrier()?; // every rank has committed
        let mut ended = (|| {
            let step = context.step()?;
            params.iter().rev().try_for_each(|param| step.put(*param, &values_of(rank, SIZE)))?;
            step.finish()
        })();
        let done = ended.is_ok(); // another rank may have failed afterwards
        if done {
            ended = other.barrier();
        }
        let error = fails(ended, Status::Callback, &[text]);
        assert_eq!((error.rank(), error.message().contains("panicked")), (Some(0), panics), "{error}");
        assert_eq!(context.grad(params[0]).is_ok(), done, "a broken context shows no gradients");
    }
    Ok(())
}

fn shards(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.world_size());
    // Plain SGD on every rank, and libddp's on pieces.
    let mut model = ContextBuilder::new(group, &with(ContextFlags::SHARD))?;
    let w = model.register("w", &[SIZE], vec![1f32; SIZE])?;
    let v = model.register("v", &[77], vec![2f32; 77])?;
    model.set_owner(v, Owner::Replicated, 0.0)?;
    let mut context = model.commit()?;
    let mut optimizer = Optimizer::new(&mut context, "sgd", "lr=0.5")?;
    optimizer.set(&mut context, Some(v.id()), "lr", 0.25)?;
    for number in 1..4 {
        let step = context.step()?;
        step.put(w, &values_of(rank, SIZE))?;
        step.put(v, &values_of(rank, 77))?;
        step.finish()?;
        for piece in context.pieces()? {
            if piece.param == w.id() {
                near(&context.grad(w)?[piece.elements.clone()], &means(world, SIZE)[piece.elements]);
            } else {
                assert!(piece.replicated);
            }
        }
        optimizer.step(&mut context, 1.0)?;
        context.publish()?;
        fails(context.value(w).map(drop), Status::InvalidState, &["'w'", "Context::wait_value"]);
        context.wait_value(w)?;
        let expected = |first: f32, rate: f32, size| -> Vec<f32> {
            means(world, size).iter().map(|mean| first - number as f32 * rate * mean).collect()
        };
        near(context.value(w)?, &expected(1.0, 0.5, SIZE));
        context.wait_values()?;
        near(context.value(v)?, &expected(2.0, 0.25, 77));
    }
    Ok(())
}

fn disagreement(group: &Group) -> Result<()> {
    let rank = group.rank();
    let mut model = ContextBuilder::new(group, &SMALL)?;
    model.register("w", &[2 + rank], vec![0f32; 2 + rank])?;
    fails(model.commit().map(drop), Status::Mismatch, &["w"]);
    // A gradient that stays away breaks the context on every rank, with its name.
    let other = group.split(Some(0), rank as i32)?.unwrap();
    let (mut context, params) = make(&other, &SMALL)?;
    group.barrier()?; // every rank has committed
    let ended = (|| {
        let step = context.step()?;
        for param in params.iter().filter(|param| rank != 1 || param.id() != params[2].id()) {
            step.put(*param, &values_of(rank, SIZE))?;
        }
        step.finish()
    })();
    let error = fails(ended, Status::MissingGradient, &["p2", "Step::finish"]);
    assert_eq!((error.rank(), error.param(), error.step()), (Some(1), Some(2), Some(0)));
    fails(context.grad(params[0]).map(drop), Status::MissingGradient, &[]);
    fails(context.step().map(drop), Status::MissingGradient, &[]);
    // In a new group it goes on.
    let again = group.split(Some(0), rank as i32)?.unwrap();
    context.set_group(&again)?;
    train(&mut context, &params, rank, &means(group.world_size(), SIZE))?;
    group.barrier()?;
    if rank == 0 {
        again.abort("the test is over")?;
    }
    fails(again.barrier(), Status::Aborted, &["rank 0 called Group::abort", "the test is over"]);
    fails(again.status(), Status::Aborted, &["the test is over"]);
    Ok(())
}

fn main() -> Result<()> {
    let group = Group::with(&GroupOptions { timeout: Some(Duration::from_secs(30)), ..GroupOptions::default() })?;
    let tests: [(&str, fn(&Group) -> Result<()>); 12] = [
        ("collectives", collectives),
        ("works", works),
        ("groups", groups),
        ("steps", steps),
        ("threads announce", threads_announce),
        ("unsynced", unsynced),
        ("participation", participation),
        ("votes", votes),
        ("norms", norms),
        ("hooks", hooks),
        ("shards", shards),
        ("disagreement", disagreement),
    ];
    tests.iter().for_each(|(name, function)| test(name, || function(&group)));
    group.barrier()?;
    println!("rank {}: {} tests passed", group.rank(), tests.len());
    Ok(())
}
