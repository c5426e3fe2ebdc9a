//! Everything that needs no other rank: errors, words, memory, the store, an elastic job.
use ddp::*;
use ddp_tests::{fails, test};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn alone() -> Result<Group> {
    let uri = format!("file:///proc/self/cwd/rust-{}", std::process::id());
    Group::with(&GroupOptions { rank: Some(0), world_size: Some(1), init_method: Some(uri), ..GroupOptions::default() })
}

fn words() -> Result<()> {
    for (c, rust) in [
        ("ddp_grad_ready: no parameter 3", "Step::ready: no parameter 3"),
        ("desc->name is taken", "name is taken"),
        ("set DDP_CONTEXT_FIND_UNUSED", "set ContextFlags::FIND_UNUSED"),
        ("DDP_REDUCTION_WEIGHTED_MEAN", "Reduction::WeightedMean"),
        ("(DDP_PARAM_DELAYED)", "(ParamOptions::delayed)"),
        ("set DDP_TIMEOUT_MS", "set DDP_TIMEOUT_MS"),
        ("ddp_grad_ready_sparse", "ddp_grad_ready_sparse"),
        ("a -> b: größer", "a -> b: größer"),
    ] {
        assert_eq!(in_rust(c), rust);
    }
    assert_eq!(Status::RankFailed.to_string(), "DDP_ERROR_RANK_FAILED");
    assert_eq!(version(), "0.1.0");
    assert_eq!(shard_range(10, 1, 3)?, 4..7);
    backend_available("shm")?;
    fails(backend_available("nothing"), Status::NotFound, &["nothing"]);
    fails(Store::open("tcp://a\0b", &StoreOptions::default()).map(drop), Status::InvalidArgument, &["uri", "NUL"]);
    Ok(())
}

fn registration() -> Result<()> {
    let group = alone()?;
    let mut model = ContextBuilder::new(&group, &ContextOptions::default())?;
    let w = model.register("w", &[2, 3], vec![1f32; 6])?;
    fails(model.register("w", &[1], vec![1f32]).map(drop), Status::AlreadyExists, &["w"]);
    fails(model.register("v", &[2, 2], vec![1f32]).map(drop), Status::InvalidArgument, &["value of 'v' has 1 elements", "[2, 2]"]);
    fails(model.register("", &[1], vec![1f32]).map(drop), Status::InvalidArgument, &["name"]);
    let empty = model.register("empty", &[0, 3], vec![0i32; 0])?;
    let shared = model.register_with("shared", &[1], vec![0f64], ParamOptions { uses: 2, delayed: true, ..ParamOptions::default() })?;
    let other = ContextBuilder::new(&group, &ContextOptions::default())?.register("w", &[1], vec![0f32])?;
    let mut context = model.commit()?;
    fails(context.value(other).map(drop), Status::InvalidArgument, &["another context"]);
    for number in 0..3 {
        let mut step = context.step()?;
        fails(step.put(w, &[1.0; 5]), Status::InvalidArgument, &["5 elements", "'w' has 6"]);
        step.grad_mut(w)?.fill(number as f32);
        step.ready(w)?;
        fails(step.grad_mut(w).map(drop), Status::InvalidState, &["'w' was announced"]);
        fails(step.put(w, &[1.0; 6]), Status::InvalidState, &["'w' was announced"]);
        step.put(empty, &[])?;
        assert!(step.grad_mut(shared).is_ok());
        step.grad_mut(shared)?[0] = 1.0;
        step.ready(shared)?;
        step.grad_mut(shared)?[0] += 1.0; // the second layer that shares it
        step.ready(shared)?;
        fails(step.ready(shared), Status::InvalidState, &["2 times"]);
        step.finish()?;
        assert_eq!(context.grad(w)?, [number as f32; 6]);
        assert_eq!(context.grad(shared)?, [2.0]);
        assert!(context.grad(empty)?.is_empty());
    }
    fails(
        ContextBuilder::new(&group, &ContextOptions { flags: ContextFlags(1 << 30), ..ContextOptions::default() }).map(drop),
        Status::Unsupported,
        &[],
    );
    drop(group); // the context keeps it
    let step = context.step()?;
    step.put(w, &[1.0; 6])?;
    step.put(empty, &[])?;
    step.put(shared, &[1.0])?;
    step.put(shared, &[1.0])?;
    step.finish()
}

fn nonfinite() -> Result<()> {
    let group = alone()?;
    let flags = ContextFlags::SKIP_NONFINITE;
    let mut model = ContextBuilder::new(&group, &ContextOptions { flags, ..ContextOptions::default() })?;
    let w = model.register("w", &[1], vec![1f32])?;
    let mut context = model.commit()?;
    for (given, fine) in [(1.0, true), (f32::NAN, false), (2.0, true)] {
        let step = context.step()?;
        step.put(w, &[given])?;
        let ended = step.finish();
        if fine {
            ended?;
        } else {
            assert_eq!(fails(ended, Status::Nonfinite, &["'w'"]).param(), Some(0));
        }
        assert_eq!(context.grad(w)?, [if fine { given } else { 0.0 }]);
    }
    Ok(())
}

fn stores() -> Result<()> {
    let options = StoreOptions { is_server: true, timeout: Some(Duration::from_secs(20)), ..StoreOptions::default() };
    let server = Store::open("tcp://127.0.0.1:0", &options)?;
    let uri = format!("tcp://127.0.0.1:{}", server.port().unwrap());
    let client = Store::open(&uri, &StoreOptions { is_server: false, ..options })?;
    client.set("a/key", b"\0value")?;
    assert_eq!(server.get("a/key", None)?, b"\0value");
    assert_eq!(client.keys("a/")?, ["a/key"]);
    assert!(client.check(&["a/key"])? && !client.check(&["a/key", "b"])?);
    assert_eq!(client.compare_set("c", b"", b"new")?, b"new");
    assert_eq!(client.compare_set("c", b"old", b"x")?, b"new");
    assert!(client.delete("c")? && !client.delete("c")?);
    assert_eq!((client.add("n", 3)?, server.add("n", -1)?), (3, 2));
    fails(client.get("nobody", Some(Duration::from_millis(10))), Status::Timeout, &["nobody"]);
    fails(client.wait(&[], None), Status::InvalidArgument, &["keys"]);
    // Several threads wait over one connection, and the group keeps the store.
    let waiting = client.clone();
    let thread = std::thread::spawn(move || waiting.get("late", None));
    std::thread::sleep(Duration::from_millis(50));
    server.set("late", b"1")?;
    assert_eq!(thread.join().unwrap()?, b"1");
    let given = GroupOptions { rank: Some(0), world_size: Some(1), store: Some(client.clone()), ..GroupOptions::default() };
    let group = Group::with(&given)?;
    drop((given, client));
    group.barrier()
}

fn interrupts() -> Result<()> {
    let store = Store::open("tcp://127.0.0.1:0", &StoreOptions { is_server: true, ..StoreOptions::default() })?;
    let asked = Arc::new(AtomicBool::new(false));
    let check = asked.clone();
    set_interrupt_check(move || check.load(Ordering::Relaxed))?;
    let (begun, other) = (Instant::now(), asked.clone());
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        other.store(true, Ordering::Relaxed);
    });
    fails(store.get("nobody", Some(Duration::from_secs(60))), Status::Interrupted, &[]);
    assert!(begun.elapsed() < Duration::from_secs(30));
    thread.join().unwrap();
    set_interrupt_check(|| panic!("a check may panic"))?; // this replaces the other one, which is dropped
    fails(store.get("nobody", Some(Duration::from_secs(60))), Status::Interrupted, &[]);
    assert_eq!(Arc::strong_count(&asked), 1);
    clear_interrupt_check()
}

fn forgotten() -> Result<()> {
    // A step and a context that are leaked leave no slice behind that libddp writes to.
    let group = alone()?;
    let mut model = ContextBuilder::new(&group, &ContextOptions::default())?;
    let w = model.register("w", &[1], vec![1f32])?;
    let mut context = model.commit()?;
    let step = Box::new(context.step()?);
    Box::leak(step);
    fails(context.grad(w).map(drop), Status::InvalidState, &["Context::discard"]);
    std::mem::forget(context);
    Ok(())
}

fn elastic() -> Result<()> {
    let store = Store::open("tcp://127.0.0.1:0", &StoreOptions { is_server: true, ..StoreOptions::default() })?;
    let group = GroupOptions { store: Some(store), timeout: Some(Duration::from_secs(20)), ..GroupOptions::default() };
    let mut job = Elastic::new(&ElasticOptions { group, max_world: 1, ..ElasticOptions::default() })?;
    let mut model = job.context(&ContextOptions::default())?;
    let w = model.register("w", &[2], vec![0f32; 2])?;
    let mut context = model.commit()?;
    job.add_context(&mut context)?;
    let momentum = job.add_state("momentum", vec![0f32; 2])?;
    fails(job.add_state("momentum", vec![0f32; 2]).map(drop), Status::AlreadyExists, &["momentum"]);
    job.set_step(7)?;
    fails(job.begin(&mut []).map(drop), Status::InvalidArgument, &["contexts", "1"]);
    for number in 7..10 {
        let now = job.begin(&mut [&mut context])?;
        assert_eq!((now.step, now.roster, now.rank, now.world_size, now.changed), (number, 1, 0, 1, number == 7));
        let step = context.step()?;
        step.put(w, &[number as f32; 2])?;
        step.finish()?;
        job.state_mut(momentum)?[0] += context.grad(w)?[0];
        job.commit(&mut [&mut context])?;
    }
    assert_eq!(job.state(momentum)?, [24.0, 0.0]);
    job.confirm_member()?;
    // A step that was not committed is undone.
    job.begin(&mut [&mut context])?;
    let step = context.step()?;
    step.put(w, &[1.0; 2])?;
    step.finish()?;
    job.state_mut(momentum)?[0] = 99.0;
    fails(job.begin(&mut [&mut context]).map(drop), Status::InvalidState, &[]);
    drop(context); // the job keeps it
    drop(job);
    Ok(())
}

fn main() {
    test("words", words);
    test("registration", registration);
    test("nonfinite", nonfinite);
    test("stores", stores);
    test("interrupts", interrupts);
    test("forgotten", forgotten);
    test("elastic", elastic);
    let _ = std::fs::remove_file(format!("rust-{}", std::process::id())); // the store of the leaked context
    println!("passed");
}
