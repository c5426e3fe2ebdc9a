// E0521: a bucket does not leave its hook.
pub fn install(context: &mut ddp::Context) -> Result<(), ddp::Error> {
    let kept = std::sync::Mutex::new(Vec::new());
    kept.lock().unwrap().push(0usize);
    context.set_hook(move |mut bucket| {
        let elements = bucket.elements::<f32>().map_or(0, |elements| elements.len());
        kept.lock().unwrap().push(elements);
        SEEN.with(|seen| seen.set(bucket.elements::<f32>())); // refused
        Ok(bucket.reduced())
    })
}

thread_local! {
    static SEEN: std::cell::Cell<Option<&'static mut [f32]>> = std::cell::Cell::new(None);
}

fn main() {}
