//! The tests of a program share this.
use ddp::{Error, Status};

/// Runs a test by name, so that a panic says which.
pub fn test(name: &str, function: impl FnOnce() -> Result<(), Error>) {
    eprintln!("test {name}");
    if let Err(error) = function() {
        panic!("{name}: {error}");
    }
}

/// Checks that a call fails with this status, and that the message has these words.
pub fn fails<T>(result: Result<T, Error>, status: Status, words: &[&str]) -> Error {
    let error = match result {
        Ok(_) => panic!("a call should fail with {status}"),
        Err(error) => error,
    };
    assert_eq!(error.status(), status, "{error}");
    for word in words {
        assert!(error.message().contains(word), "no '{word}' in: {error}");
    }
    error
}

/// The numbers that a rank gives: whole ones, which add without rounding.
pub fn values_of(rank: usize, size: usize) -> Vec<f32> {
    (0..size).map(|i| ((7 * i + 13 * rank) % 32) as f32).collect()
}

pub fn sums(world: usize, size: usize) -> Vec<f32> {
    let mut sums = vec![0.0; size];
    for rank in 0..world {
        sums.iter_mut().zip(values_of(rank, size)).for_each(|(sum, value)| *sum += value);
    }
    sums
}

pub fn means(world: usize, size: usize) -> Vec<f32> {
    sums(world, size).into_iter().map(|sum| sum / world as f32).collect()
}

#[track_caller]
pub fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "element {i}: {a}, expected {b}");
    }
}
