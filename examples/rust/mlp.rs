//! A multi-layer perceptron 784-256-128-10, with its gradients written by hand; the same as ../c/mlp.c, and from the same seed the
//! same weights. It knows nothing of libddp.

pub const WIDTHS: [usize; 4] = [784, 256, 128, 10];
/// Weight and bias of each layer.
pub const TENSORS: usize = 2 * (WIDTHS.len() - 1);
const KNEE: f32 = 0.5; // where ReLU's kink is rounded off; ../c/mlp.c says why

/// The generator in ../c/random.h.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f32 {
        (self.draw() >> 40) as f32 / 16_777_216.0
    }
}

/// An order of the digits, the same on every rank (Fisher and Yates).
pub fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let (mut order, mut generator): (Vec<usize>, _) = ((0..count).collect(), SplitMix64(seed * 1_000_003 + epoch));
    for i in (2..=count).rev() {
        order.swap(i - 1, (generator.draw() % i as u64) as usize);
    }
    order
}

/// Name and shape of a tensor. A weight is inputs x outputs.
pub fn describe(tensor: usize) -> (String, Vec<usize>) {
    let (layer, kind) = (tensor / 2, tensor % 2);
    if kind == 0 {
        (format!("layer{layer}.weight"), vec![WIDTHS[layer], WIDTHS[layer + 1]])
    } else {
        (format!("layer{layer}.bias"), vec![WIDTHS[layer + 1]])
    }
}

/// The first values (He et al. 2015).
pub fn first_values(seed: u64) -> Vec<Vec<f32>> {
    let mut generator = SplitMix64(seed);
    (0..TENSORS)
        .map(|tensor| {
            let count = describe(tensor).1.iter().product();
            let limit = (6.0 / WIDTHS[tensor / 2] as f32).sqrt();
            let mut draw = || if tensor % 2 == 0 { limit * (2.0 * generator.uniform() - 1.0) } else { 0.0 };
            (0..count).map(|_| draw()).collect()
        })
        .collect()
}

fn rectify(x: f32) -> f32 {
    let bent = x.min(KNEE);
    if x > 0.0 {
        bent * bent / (2.0 * KNEE) + (x - bent)
    } else {
        0.0
    }
}

/// The derivative of rectify, from its result.
fn rectify_slope(y: f32) -> f32 {
    if y < KNEE / 2.0 {
        (y * (2.0 / KNEE)).sqrt()
    } else {
        1.0
    }
}

/// A model's tensors, wherever they are.
pub trait Tensors {
    type Failure;
    fn value(&self, tensor: usize) -> Result<&[f32], Self::Failure>;
    /// `write` writes the gradient of a tensor, which is complete then.
    fn gradient(&mut self, tensor: usize, write: &dyn Fn(&mut [f32])) -> Result<(), Self::Failure>;
}

/// The outputs of each layer for a batch, after the images themselves.
pub struct Pass {
    outputs: Vec<Vec<f32>>,
    count: usize,
}

/// Returns the sum of the cross entropy, and how many digits were recognised.
pub fn forward<T: Tensors>(net: &T, images: Vec<f32>, labels: &[usize]) -> Result<(Pass, [f64; 2]), T::Failure> {
    let count = labels.len();
    let mut outputs = vec![images];
    for layer in 0..WIDTHS.len() - 1 {
        let (weight, bias, wide) = (net.value(2 * layer)?, net.value(2 * layer + 1)?, WIDTHS[layer + 1]);
        let mut out = bias.repeat(count);
        for (row, inputs) in out.chunks_exact_mut(wide).zip(outputs[layer].chunks_exact(WIDTHS[layer])) {
            for (input, weights) in inputs.iter().zip(weight.chunks_exact(wide)) {
                row.iter_mut().zip(weights).for_each(|(sum, w)| *sum += input * w);
            }
        }
        if layer < WIDTHS.len() - 2 {
            out.iter_mut().for_each(|x| *x = rectify(*x));
        }
        outputs.push(out);
    }
    let mut score = [0.0, 0.0];
    let classes = WIDTHS[WIDTHS.len() - 1];
    for (row, label) in outputs.last_mut().unwrap().chunks_exact_mut(classes).zip(labels) {
        let (best, most) = row.iter().enumerate().fold((0, f32::MIN), |best, (i, x)| if *x > best.1 { (i, *x) } else { best });
        let logit = row[*label] - most;
        row.iter_mut().for_each(|x| *x = (*x - most).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x /= sum);
        score[0] += f64::from(sum.ln() - logit);
        score[1] += f64::from(u8::from(best == *label));
    }
    Ok((Pass { outputs, count }, score))
}

/// Gradients of the mean loss, the last layer's first.
pub fn backward<T: Tensors>(net: &mut T, mut pass: Pass, labels: &[usize]) -> Result<(), T::Failure> {
    let mut delta = pass.outputs.pop().unwrap();
    let classes = WIDTHS[WIDTHS.len() - 1];
    delta.chunks_exact_mut(classes).zip(labels).for_each(|(row, label)| row[*label] -= 1.0);
    delta.iter_mut().for_each(|x| *x *= 1.0 / pass.count as f32);
    for layer in (0..WIDTHS.len() - 1).rev() {
        let (wide, deep, inputs) = (WIDTHS[layer + 1], WIDTHS[layer], pass.outputs.pop().unwrap());
        net.gradient(2 * layer + 1, &|gradient| {
            gradient.fill(0.0);
            delta.chunks_exact(wide).for_each(|row| gradient.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
        })?;
        net.gradient(2 * layer, &|gradient| {
            gradient.fill(0.0);
            for (row, image) in delta.chunks_exact(wide).zip(inputs.chunks_exact(deep)) {
                for (input, slopes) in image.iter().zip(gradient.chunks_exact_mut(wide)) {
                    slopes.iter_mut().zip(row).for_each(|(sum, x)| *sum += input * x);
                }
            }
        })?;
        if layer > 0 {
            let weight = net.value(2 * layer)?;
            let mut before = Vec::with_capacity(inputs.len());
            for (row, image) in delta.chunks_exact(wide).zip(inputs.chunks_exact(deep)) {
                for (output, weights) in image.iter().zip(weight.chunks_exact(wide)) {
                    let sum: f32 = row.iter().zip(weights).map(|(x, w)| x * w).sum();
                    before.push(rectify_slope(*output) * sum);
                }
            }
            delta = before;
        }
    }
    Ok(())
}

/// SGD: velocity = momentum * velocity + gradient; value -= rate * velocity.
pub fn update(value: &mut [f32], gradient: &[f32], velocity: &mut [f32], rate: f32, momentum: f32) {
    for ((value, gradient), velocity) in value.iter_mut().zip(gradient).zip(velocity) {
        *velocity = momentum * *velocity + gradient;
        *value -= rate * *velocity;
    }
}
