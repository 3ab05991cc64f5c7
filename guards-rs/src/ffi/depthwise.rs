//! Convolutions of depth in float32: each channel of an image by its own window.
//!
//! In: an image whose channels are adjacent, and the weight as it lies in memory (channel, row, column of the window).
//! Each result is one chain of fused multiply-adds, in the order of the window, that starts at the bias or at 0.  So its
//! bits depend on its channel and place alone, not on tiles, the processor or the number of threads.  Padding counts as
//! places of zeros, but adds nothing where a weight is infinite or NaN.
//!
//! The lanes of a vector run along channels.  The work is cut into parts: some rows of the result, for as many channels as
//! a panel has (`product.rs`).  A part copies what it reads of the image, with its padding, to adjacent memory that stays
//! in the cache: in the image, the places of a row lie all its channels apart.  Rows that are too long for that are read in
//! place.

use std::sync::atomic::{AtomicBool, Ordering};

use super::convolution::Convolution;
use super::product::{self, Side};
use super::team::{share_out, with_memory};

/// Bytes of a part's copy of the image: it stays in the second cache.
const COPY: usize = 64 << 10;
/// Bytes that such a copy has at most.
const MOST_COPY: usize = 4 << 20;

/// Some rows of the result and some channels.
struct Part {
    image: usize,
    row: usize,
    rows: usize,
    channel: usize,
    lanes: usize,
}

impl Convolution {
    /// Bytes of the places that one row of results reads.
    fn row_bytes(&self, lanes: usize) -> usize {
        self.columns.reach(self.columns.out_size) * lanes * size_of::<f32>()
    }

    /// Whether parts copy what they read of the image.
    fn is_copied(&self, lanes: usize) -> bool {
        self.rows.reach(1).saturating_mul(self.row_bytes(lanes)) <= MOST_COPY
    }

    /// Rows of a part.
    fn height(&self, lanes: usize) -> usize {
        let most = (COPY / self.row_bytes(lanes)).saturating_sub(self.rows.reach(1)) / self.rows.stride + 1;
        most.clamp(1, self.rows.out_size)
    }
}

macro_rules! kernels {
    ($name:ident, $features:literal, $vec:ty, [$($count:literal)*], $zero:ident, $load:ident, $store:ident, $fma:ident) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::product::$name::{pack, LANES, WIDE};
            use super::*;

            /// Neighbouring results of a tile.
            const TILE: usize = 12;

            /// P neighbouring results in one row, `step` apart, for one vector of channels.  `width`: places of a row of
            /// the image.
            #[target_feature(enable = $features)]
            unsafe fn tile<const P: usize>(
                c: &Convolution, image: *const f32, width: usize, weight: *const f32, bias: $vec, out: *mut f32, step: usize,
            ) {
                // SAFETY: the image has the places of P results; `out` has P vectors.
                unsafe {
                    let mut sums: [$vec; P] = [bias; P];
                    let mut weight = weight;
                    for i in 0..c.rows.window {
                        for j in 0..c.columns.window {
                            let factor = $load(weight);
                            let place = (i * c.rows.dilation * width + j * c.columns.dilation) * WIDE;
                            for p in 0..P {
                                let value = $load(image.add(place + p * c.columns.stride * WIDE));
                                sums[p] = $fma(value, factor, sums[p]);
                            }
                            weight = weight.add(WIDE);
                        }
                    }
                    for p in 0..P {
                        $store(out.add(p * step), sums[p]);
                    }
                }
            }

            /// A row of the result, for `lanes` channels of one vector.
            #[target_feature(enable = $features)]
            unsafe fn row(
                c: &Convolution, image: *const f32, width: usize, weight: *const f32, bias: *const f32, out: *mut f32, lanes: usize,
            ) {
                let (size, step) = (c.columns.out_size, c.columns.out_step);
                let tiles = size.div_ceil(TILE);
                let mut some = [0f32; TILE * LANES];
                for t in 0..tiles {
                    let begin = t * size / tiles;
                    let count = (t + 1) * size / tiles - begin;
                    // SAFETY: the tile lies in the row.
                    unsafe {
                        let (image, out) = (image.add(begin * c.columns.stride * WIDE), out.add(begin * step));
                        let (to, to_step) = if lanes == LANES { (out, step) } else { (some.as_mut_ptr(), LANES) };
                        let bias = $load(bias);
                        match count {
                            $($count => tile::<$count>(c, image, width, weight, bias, to, to_step),)*
                            _ => {}
                        }
                        for p in 0..if lanes == LANES { 0 } else { count } {
                            std::ptr::copy_nonoverlapping(some.as_ptr().add(p * LANES), out.add(p * step), lanes);
                        }
                    }
                }
            }

            /// Copies the places of the image that a part reads.
            #[target_feature(enable = $features)]
            unsafe fn copy(c: &Convolution, part: &Part, width: usize, to: *mut f32) {
                // SAFETY: `to` has room for the rows of the part, each of `width` places of WIDE channels.
                unsafe {
                    let from = c.image.add(part.image * c.batch_step + part.channel);
                    let (left, size) = (c.columns.padding, c.columns.size);
                    for row in 0..c.rows.reach(part.rows) {
                        let to = to.add(row * width * WIDE);
                        let place = (part.row * c.rows.stride + row).wrapping_sub(c.rows.padding);
                        let (before, after) = if place < c.rows.size { (left.min(width), (left + size).min(width)) } else { (width, width) };
                        let from = from.wrapping_add(place.wrapping_mul(c.rows.step));
                        for column in (0..before).chain(after..width) {
                            for v in 0..2 {
                                $store(to.add(column * WIDE + v * LANES), $zero());
                            }
                        }
                        for column in before..after {
                            let (from, to) = (from.add((column - left) * c.columns.step), to.add(column * WIDE));
                            if part.lanes == WIDE {
                                for v in 0..2 {
                                    $store(to.add(v * LANES), $load(from.add(v * LANES)));
                                }
                            } else {
                                std::ptr::copy_nonoverlapping(from, to, part.lanes);
                            }
                        }
                    }
                }
            }

            /// A part without a copy of the image.  Places of padding are left out.
            #[target_feature(enable = $features)]
            unsafe fn in_place(c: &Convolution, part: &Part, weight: *const f32, bias: &[f32; WIDE]) {
                for i in 0..part.rows {
                    for j in 0..c.columns.out_size {
                        let mut sums = *bias;
                        for (a, row) in (0..c.rows.window).filter_map(|a| Some((a, c.rows.place(part.row + i, a)?))) {
                            for (b, column) in (0..c.columns.window).filter_map(|b| Some((b, c.columns.place(j, b)?))) {
                                for (l, sum) in sums[..part.lanes].iter_mut().enumerate() {
                                    // SAFETY: a place of the image, and a weight of the panel.
                                    unsafe {
                                        let at = part.image * c.batch_step + part.channel + row + column + l;
                                        let factor = *weight.add((a * c.columns.window + b) * WIDE + l);
                                        *sum = (*c.image.add(at)).mul_add(factor, *sum);
                                    }
                                }
                            }
                        }
                        let (row, column) = ((part.row + i) * c.rows.out_step, j * c.columns.out_step);
                        let at = part.image * c.out_batch_step + row + column + part.channel;
                        // SAFETY: the part lies in the result.
                        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), c.out.add(at), part.lanes) };
                    }
                }
            }

            /// `memory`: see `floats`.
            #[target_feature(enable = $features)]
            unsafe fn run_part(c: &Convolution, part: &Part, memory: *mut f32) {
                let width = c.columns.reach(c.columns.out_size);
                let windows = c.windows();
                let mut bias = [0f32; WIDE];
                // SAFETY: the parts of `memory` as `floats` counts them; the part lies in the result.
                unsafe {
                    let weight = c.weight.add(part.channel * windows);
                    pack(Side { data: weight, step: windows as isize, k: 1 }, part.lanes, windows, memory);
                    if !c.bias.is_null() {
                        std::ptr::copy_nonoverlapping(c.bias.add(part.channel), bias.as_mut_ptr(), part.lanes);
                    }
                    let is_padded = c.rows.padding + c.columns.padding > 0;
                    let weights = std::slice::from_raw_parts(memory, windows * WIDE);
                    if !c.is_copied(WIDE) || is_padded && weights.iter().any(|w| !w.is_finite()) {
                        return in_place(c, part, memory, &bias);
                    }
                    let image = memory.add(windows * WIDE);
                    copy(c, part, width, image);
                    let out = c.out.add(part.image * c.out_batch_step + part.row * c.rows.out_step + part.channel);
                    for v in 0..part.lanes.div_ceil(LANES) {
                        let lanes = LANES.min(part.lanes - v * LANES);
                        for i in 0..part.rows {
                            let image = image.add(i * c.rows.stride * width * WIDE + v * LANES);
                            let (weight, bias) = (memory.add(v * LANES), bias.as_ptr().add(v * LANES));
                            row(c, image, width, weight, bias, out.add(i * c.rows.out_step + v * LANES), lanes);
                        }
                    }
                }
            }

            /// Returns whether there was memory.
            pub fn run(c: &Convolution, threads: usize) -> bool {
                let height = c.height(WIDE).min(c.rows.out_size.div_ceil(threads));
                let (strips, panels) = (c.rows.out_size.div_ceil(height), c.channels.div_ceil(WIDE));
                // The weights of a panel, and the places of the image.
                let places = if c.is_copied(WIDE) { c.rows.reach(height) * c.columns.reach(c.columns.out_size) } else { 0 };
                let floats = (c.windows() + places) * WIDE;
                let short = AtomicBool::new(false);
                share_out(threads, c.batch * strips * panels, |number| {
                    let (strip, channel) = (number / panels, number % panels * WIDE);
                    let row = strip % strips * height;
                    let part = Part {
                        image: strip / strips,
                        row,
                        rows: height.min(c.rows.out_size - row),
                        channel,
                        lanes: WIDE.min(c.channels - channel),
                    };
                    // SAFETY: `run` is called on a processor with these features; parts of the result do not overlap.
                    let done = with_memory(floats, |memory| unsafe { run_part(c, &part, memory) });
                    short.fetch_or(done.is_err(), Ordering::Relaxed);
                });
                !short.load(Ordering::Relaxed)
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2,fma", __m256, [1 2 3 4 5 6 7 8 9 10 11 12],
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f", __m512, [1 2 3 4 5 6 7 8 9 10 11 12],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);

/// Whether there was memory; None if this processor has no vectors of so many lanes.
#[cfg(target_arch = "x86_64")]
pub(super) fn run(c: &Convolution, lanes: usize, threads: usize) -> Option<bool> {
    match lanes {
        product::avx512::LANES => Some(avx512::run(c, threads)),
        product::avx2::LANES => Some(avx2::run(c, threads)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn run(_: &Convolution, _: usize, _: usize) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::convolution::Dimension;
    use super::super::product::vector_bytes;
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2039) as f32 / 1024.0 - 1.0).collect()
    }

    /// (channels, (rows, columns), (window), stride, padding, dilation).
    type Case = (usize, [usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

    /// Compares each bit with a chain of fused multiply-adds.
    fn check((channels, sizes, window, stride, padding, dilation): Case, with_bias: bool, lanes: usize) {
        let batch = 2;
        let (left, right) = (3, 5); // elements between the places of image and result
        let (step, out_step) = (channels + left, channels + right);
        let dimension = |d: usize, step: usize, out_step: usize| Dimension {
            size: sizes[d],
            out_size: (sizes[d] + 2 * padding[d] - (window[d] - 1) * dilation[d] - 1) / stride[d] + 1,
            window: window[d],
            stride: stride[d],
            padding: padding[d],
            dilation: dilation[d],
            step,
            out_step,
        };
        let columns = dimension(1, step, out_step);
        let rows = dimension(0, step * columns.size, out_step * columns.out_size);
        let (batch_step, out_batch_step) = (rows.step * rows.size, rows.out_step * rows.out_size);
        let image = numbers(batch * batch_step, 1);
        let (weight, bias) = (numbers(channels * window[0] * window[1], 2), numbers(channels, 3));
        let mut out = vec![f32::NAN; batch * out_batch_step];
        let c = Convolution {
            image: image.as_ptr(),
            weight: weight.as_ptr(),
            bias: if with_bias { bias.as_ptr() } else { std::ptr::null() },
            out: out.as_mut_ptr(),
            batch,
            channels,
            filters: 0,
            batch_step,
            out_batch_step,
            rows,
            columns,
            panel: 0,
        };
        assert_eq!(run(&c, lanes, 1), Some(true));
        for (at, found) in out.iter().enumerate() {
            let (channel, place) = (at % out_step, at / out_step);
            if channel >= channels {
                assert!(found.is_nan(), "a place behind the channels is written");
                continue;
            }
            let (n, row, column) =
                (at / out_batch_step, place / columns.out_size % rows.out_size, place % columns.out_size);
            let mut sum = if with_bias { bias[channel] } else { 0.0 };
            for i in 0..window[0] {
                for j in 0..window[1] {
                    let y = (row * stride[0] + i * dilation[0]).wrapping_sub(padding[0]);
                    let x = (column * stride[1] + j * dilation[1]).wrapping_sub(padding[1]);
                    let inside = y < sizes[0] && x < sizes[1];
                    let value = if inside { image[n * batch_step + y * rows.step + x * step + channel] } else { 0.0 };
                    sum = value.mul_add(weight[(channel * window[0] + i) * window[1] + j], sum);
                }
            }
            assert_eq!(found.to_bits(), sum.to_bits(), "{channels} {sizes:?} {window:?}: {n} {row} {column} {channel}");
        }
    }

    #[test]
    fn results_are_chains_of_fused_multiply_adds() {
        let most = vector_bytes() / size_of::<f32>();
        for lanes in [8, 16].into_iter().filter(|lanes| *lanes <= most) {
            for channels in [1, 8, 19, 32, 40, 72] {
                for with_bias in [false, true] {
                    check((channels, [7, 7], [5, 5], [1, 1], [2, 2], [1, 1]), with_bias, lanes);
                    check((channels, [9, 14], [3, 3], [2, 2], [1, 1], [1, 1]), with_bias, lanes);
                    check((channels, [11, 6], [3, 2], [2, 1], [0, 3], [2, 3]), with_bias, lanes);
                    check((channels, [1, 40], [1, 7], [1, 3], [0, 0], [1, 1]), with_bias, lanes);
                }
            }
            check((33, [150, 160], [3, 3], [1, 1], [1, 1], [1, 1]), true, lanes);
            // several parts
        }
    }
}
