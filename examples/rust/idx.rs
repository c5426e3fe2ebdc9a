//! Reads the pair of IDX files in which MNIST is published.
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

const LABELS: u32 = 0x0000_0801;
const IMAGES: u32 = 0x0000_0803;

/// Images as rows of numbers from 0 (paper) to 1 (ink), and which digit each shows.
pub struct Digits {
    pub images: Vec<f32>,
    pub labels: Vec<usize>,
}

fn wrong(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The content of a file, plain or compressed.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    if path.exists() {
        return std::fs::read(path);
    }
    let compressed = path.with_extension("gz");
    let done = Command::new("gzip").arg("-dc").arg(&compressed).stderr(Stdio::inherit()).output()?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(wrong(format!("cannot read {}, nor {}", path.display(), compressed.display())))
}

/// The extents and the bytes of an IDX file.
fn read(path: &Path, magic: u32) -> io::Result<(Vec<usize>, Vec<u8>)> {
    let bytes = content(path)?;
    let number = |i: usize| bytes.get(4 * i..4 * i + 4).map(|four| u32::from_be_bytes(four.try_into().unwrap()));
    let dims = (magic & 0xff) as usize;
    let extents: Vec<usize> = (1..=dims).map_while(number).map(|extent| extent as usize).collect();
    let start = 4 + 4 * dims;
    if number(0) != Some(magic) || extents.len() != dims || bytes.len() != start + extents.iter().product::<usize>() {
        return Err(wrong(format!("{} is not the IDX file that it should be", path.display())));
    }
    Ok((extents, bytes[start..].to_vec()))
}

/// name: "train" or "t10k".
pub fn load(folder: &Path, name: &str) -> io::Result<Digits> {
    let (extents, images) = read(&folder.join(format!("{name}-images-idx3-ubyte")), IMAGES)?;
    let (_, labels) = read(&folder.join(format!("{name}-labels-idx1-ubyte")), LABELS)?;
    if extents[0] != labels.len() {
        return Err(wrong(format!("{name}: {} images, but {} labels", extents[0], labels.len())));
    }
    Ok(Digits {
        images: images.into_iter().map(|ink| f32::from(ink) / 255.0).collect(),
        labels: labels.into_iter().map(usize::from).collect(),
    })
}
