//! Convolutions of images in float32, whose channels are adjacent: `depthwise.rs` if each channel has a window of its own,
//! else here.
//!
//! In: an image, and the weight as it lies in memory (filter, channel, row, column of the window).  Each result is the bias,
//! or 0, plus chains of fused multiply-adds over up to `CHAIN` terms, channel by channel, and for each in the order of the
//! window.  So its bits depend on its filter and place alone, not on tiles, the processor or the number of threads.
//! Padding counts as places of zeros, but adds nothing where a weight is infinite or NaN.  In eager it depends on the size:
//! some of oneDNN's kernels multiply padding by the weight, which gives NaN.
//!
//! The lanes of a vector run along filters.  For each panel of filters (`product.rs`), a part packs the weights of a chain,
//! which stay in the first cache for its places, and adds the chain to all of them.  So nothing is kept across calls, unless
//! the weight comes packed: panel after panel, and in each the elements of a filter's weight as rows of lanes.  A
//! part first copies the rows of the image that it reads, with their padding; without padding it reads them in place.

use std::sync::atomic::{AtomicBool, Ordering};

use super::caught;
use super::depthwise;
use super::product::{
    self, vector_bytes, Runs, Side, CHAIN, OTHER_PANELS, PANICKED, SHARE, WITHOUT_DATA, WITHOUT_MEMORY, WITHOUT_VECTORS,
};
use super::team::{share_out, with_memory};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Results for which a panel is packed, at least: what they read of the image stays in the second cache.
const STRIP: usize = 512;

/// One dimension of an image.  `step`: elements between neighbours of the image; `out_step`: of the result.
#[derive(Clone, Copy)]
pub(super) struct Dimension {
    pub size: usize,
    pub out_size: usize,
    pub window: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
    pub step: usize,
    pub out_step: usize,
}

impl Dimension {
    /// Places, padding included, that `count` neighbouring results read.
    pub fn reach(&self, count: usize) -> usize {
        (count - 1) * self.stride + (self.window - 1) * self.dilation + 1
    }

    /// Whether the window of a result reads no padding.
    fn is_inside(&self, at: usize) -> bool {
        self.place(at, 0).is_some() && self.place(at, self.window - 1).is_some()
    }

    /// The place that a result reads for an element of the window, as elements from the first; None for padding.
    pub fn place(&self, at: usize, i: usize) -> Option<usize> {
        let place = (at * self.stride + i * self.dilation).wrapping_sub(self.padding);
        (place < self.size).then(|| place * self.step)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Convolution {
    pub image: *const f32,
    pub weight: *const f32,
    /// Null for 0.
    pub bias: *const f32,
    pub out: *mut f32,
    pub batch: usize,
    pub channels: usize,
    pub filters: usize,
    pub batch_step: usize,
    pub out_batch_step: usize,
    pub rows: Dimension,
    pub columns: Dimension,
    /// Lanes of the panels of a packed weight; 0: the weight is not packed.
    pub panel: usize,
}

// SAFETY: threads write different parts of `out`.
unsafe impl Sync for Convolution {}

impl Convolution {
    pub fn windows(&self) -> usize {
        self.rows.window.saturating_mul(self.columns.window)
    }

    /// Channels of a chain.
    fn chain(&self) -> usize {
        (CHAIN / self.windows()).max(1)
    }

    /// The place of an element of a filter's weight.
    fn weight_at(&self, filter: usize, element: usize) -> usize {
        let depth = self.channels * self.windows();
        match self.panel {
            0 => filter * depth + element,
            lanes => filter / lanes * lanes * depth + element * lanes + filter % lanes,
        }
    }

    /// Floats that the offsets of the window's elements fill: whole vectors.
    fn offsets(&self) -> usize {
        (self.windows() * size_of::<usize>()).next_multiple_of(LINE) / size_of::<f32>()
    }

    fn is_padded(&self) -> bool {
        self.rows.padding + self.columns.padding > 0
    }

    /// Rows of results and filters of the parts for the threads.  As in `product.rs`, threads share the
    /// places, unless the weight is larger than image and result.
    fn cuts(&self, threads: usize, lanes: usize) -> (Runs, Runs) {
        let weight = self.filters * self.channels * self.windows();
        let places = self.rows.size * self.columns.size * self.channels
            + self.rows.out_size * self.columns.out_size * self.filters;
        let threads = threads.div_ceil(self.batch);
        let most = if weight <= places { self.rows.out_size } else { 1 };
        let rows = Runs::new(self.rows.out_size, threads.min(most), 1);
        let filters = Runs::new(self.filters, threads / rows.len(), lanes);
        (rows, filters)
    }
}

/// Some rows of the result of one image, and some filters.
struct Part {
    image: usize,
    rows: (usize, usize),
    filters: (usize, usize),
}

/// What the tiles of a part read: the first place, and the elements between neighbouring results of a row, between rows of
/// results, and for each element of the window.
#[derive(Clone, Copy)]
struct Places<'a> {
    data: *const f32,
    step: usize,
    row_step: usize,
    window: &'a [usize],
}

/// The weights that the next panel is packed from.  Tiles fetch them: `lines` of the cache for each channel.
#[derive(Clone, Copy)]
struct Ahead {
    next: usize,
    end: usize,
    lines: usize,
}

impl Ahead {
    /// Addresses, and the number of channels of all tiles meanwhile.
    fn of(next: usize, end: usize, channels: usize) -> Ahead {
        Ahead { next, end, lines: end.saturating_sub(next).div_ceil(LINE).div_ceil(channels.max(1)) }
    }

    /// From so many channels on.
    fn after(self, channels: usize) -> Ahead {
        Ahead { next: self.next + channels * self.lines * LINE, ..self }
    }
}

/// Sums of a tile: rows `stride` elements apart.  `first`: they start at 0.
#[derive(Clone, Copy)]
struct Sums {
    data: *mut f32,
    stride: usize,
    first: bool,
}

macro_rules! kernels {
    ($name:ident, $features:literal, $vec:ty, [$($count:literal)*],
     $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::product::$name::{pack, LANES, ROWS, WIDE};
            use super::*;

            /// Adds the terms of `channels` channels to R neighbouring results of V vectors.
            #[target_feature(enable = $features)]
            unsafe fn tile<const R: usize, const V: usize>(
                panel: *const f32, places: &Places<'_>, at: *const f32, channels: usize, out: Sums, ahead: Ahead,
            ) {
                // SAFETY: the panel has a row for each term, the image the places of R results, `out` R rows of V vectors.
                unsafe {
                    let mut sums: [[$vec; V]; R] = [[$zero(); V]; R];
                    let mut panel = panel;
                    let mut step = places.step;
                    let mut next = ahead.next;
                    for channel in 0..channels {
                        for line in 0..if next < ahead.end { ahead.lines } else { 0 } {
                            _mm_prefetch::<_MM_HINT_T1>((next + line * LINE) as *const i8);
                        }
                        next += ahead.lines * LINE;
                        for place in places.window {
                            let mut wide: [$vec; V] = [$zero(); V];
                            for v in 0..V {
                                wide[v] = $load(panel.add(v * LANES));
                            }
                            // Hides that the step stays the same: with R addresses the compiler would spill sums.
                            std::arch::asm!("/* {0} */", inout(reg) step, options(pure, nomem, nostack, preserves_flags));
                            let at = at.add(channel + place);
                            let at: [*const f32; R] = std::array::from_fn(|i| at.wrapping_add(3 * i * step));
                            for r in 0..R {
                                let factor = $splat(*at[r / 3].add(r % 3 * step));
                                for v in 0..V {
                                    sums[r][v] = $fma(factor, wide[v], sums[r][v]);
                                }
                            }
                            panel = panel.add(WIDE);
                        }
                    }
                    for r in 0..R {
                        for v in 0..V {
                            let place = out.data.add(r * out.stride + v * LANES);
                            let sum = if out.first { sums[r][v] } else { $add($load(place), sums[r][v]) };
                            $store(place, sum);
                        }
                    }
                }
            }

            /// `count` neighbouring results in one row.
            #[target_feature(enable = $features)]
            unsafe fn tiles(
                (count, vectors): (usize, usize), panel: *const f32, places: &Places<'_>, at: *const f32, channels: usize, out: Sums, ahead: Ahead,
            ) {
                // SAFETY: as `tile`.
                unsafe {
                    match (count, vectors) {
                        $(($count, 1) => tile::<$count, 1>(panel, places, at, channels, out, ahead),
                        ($count, _) => tile::<$count, 2>(panel, places, at, channels, out, ahead),)*
                        _ => {}
                    }
                }
            }

            /// The terms of `channels` for one panel of filters and some rows.
            #[target_feature(enable = $features)]
            unsafe fn terms(
                c: &Convolution, part: &Part, panel: *const f32, places: &Places<'_>, channels: std::ops::Range<usize>, ahead: Ahead,
            ) {
                let (filter, lanes) = part.filters;
                let vectors = lanes.div_ceil(LANES);
                let whole = lanes == vectors * LANES;
                let (size, step) = (c.columns.out_size, c.columns.out_step);
                let tiles_of_row = size.div_ceil(ROWS);
                let (begins, first) = (channels.start == 0, channels.start == 0 && c.bias.is_null());
                // Sums start at the bias, or go on where an earlier chain ended.
                let prepares = if begins { !first } else { !whole };
                let mut bias = [0f32; WIDE];
                let mut some = [0f32; ROWS * WIDE];
                // SAFETY: the results lie in the part; the bias has an element for each filter.
                unsafe {
                    if begins && !first {
                        std::ptr::copy_nonoverlapping(c.bias.add(filter), bias.as_mut_ptr(), lanes);
                    }
                    for row in 0..part.rows.1 {
                        let out = c.out.add(part.image * c.out_batch_step + (part.rows.0 + row) * c.rows.out_step + filter);
                        for t in 0..tiles_of_row {
                            let begin = t * size / tiles_of_row;
                            let count = (t + 1) * size / tiles_of_row - begin;
                            let at = places.data.add(row * places.row_step + begin * places.step + channels.start);
                            let to = out.add(begin * step);
                            let sums = if whole { Sums { data: to, stride: step, first } } else { Sums { data: some.as_mut_ptr(), stride: WIDE, first } };
                            for p in 0..if prepares { count } else { 0 } {
                                let from = if begins { bias.as_ptr() } else { to.add(p * step).cast_const() };
                                std::ptr::copy_nonoverlapping(from, sums.data.add(p * sums.stride), lanes);
                            }
                            let ahead = ahead.after((row * tiles_of_row + t) * channels.len());
                            tiles((count, vectors), panel, places, at, channels.len(), sums, ahead);
                            for p in 0..if whole { 0 } else { count } {
                                std::ptr::copy_nonoverlapping(some.as_ptr().add(p * WIDE), to.add(p * step), lanes);
                            }
                        }
                    }
                }
            }

            /// The results of a part for one panel of filters, chain by chain: its weights stay in the first cache.
            #[target_feature(enable = $features)]
            unsafe fn panel_of(c: &Convolution, part: &Part, panel: *mut f32, places: &Places<'_>, next: usize) {
                let (windows, depth) = (c.windows(), c.channels * c.windows());
                let (filter, lanes) = part.filters;
                let address = |filter: usize| c.weight.wrapping_add(filter * depth) as usize;
                let tiles = part.rows.1 * c.columns.out_size.div_ceil(ROWS);
                let ahead = Ahead::of(address(filter + lanes), address(filter + lanes + next), tiles * c.channels);
                let chain = c.chain();
                for channel in (0..c.channels).step_by(chain) {
                    let channels = channel..c.channels.min(channel + chain);
                    let from = Side { data: c.weight.wrapping_add(filter * depth), step: depth as isize, k: 1 };
                    // SAFETY: the weights of these filters, and room for those of a chain; results of this part only.
                    unsafe {
                        if c.panel != 0 {
                            // The weights of the next chain follow in memory.
                            let panel = c.weight.add(filter * depth + channel * windows * WIDE);
                            let end = panel.wrapping_add(channels.len() * windows * WIDE);
                            let bytes = end as usize - panel as usize;
                            let ahead = Ahead::of(end as usize, end as usize + bytes, tiles * channels.len());
                            terms(c, part, panel, places, channels, ahead);
                            continue;
                        }
                        pack(from.at(0, channel * windows), lanes, channels.len() * windows, panel);
                        terms(c, part, panel, places, channels, ahead.after(channel * tiles));
                    }
                }
            }

            /// The results of a panel whose windows reach padding, which is left out.
            #[target_feature(enable = $features)]
            unsafe fn border(c: &Convolution, part: &Part) {
                let (windows, (first, lanes)) = (c.windows(), part.filters);
                for row in part.rows.0..part.rows.0 + part.rows.1 {
                    let reaches = |column: &usize| !(c.rows.is_inside(row) && c.columns.is_inside(*column));
                    let columns = (0..c.columns.out_size).filter(reaches);
                    for (column, filter) in columns.flat_map(|j| (first..first + lanes).map(move |f| (j, f))) {
                        // SAFETY: places of the image and of the result, and weights of the filter.
                        unsafe {
                            let mut total = if c.bias.is_null() { 0.0 } else { *c.bias.add(filter) };
                            for begin in (0..c.channels).step_by(c.chain()) {
                                let mut sum = 0f32;
                                for channel in begin..c.channels.min(begin + c.chain()) {
                                    for w in 0..windows {
                                        let i = c.rows.place(row, w / c.columns.window);
                                        let j = c.columns.place(column, w % c.columns.window);
                                        let (Some(i), Some(j)) = (i, j) else { continue };
                                        let value = *c.image.add(part.image * c.batch_step + i + j + channel);
                                        sum = value.mul_add(*c.weight.add(c.weight_at(filter, channel * windows + w)), sum);
                                    }
                                }
                                total = if c.bias.is_null() && begin == 0 { sum } else { total + sum };
                            }
                            let (i, j) = (row * c.rows.out_step, column * c.columns.out_step);
                            *c.out.add(part.image * c.out_batch_step + i + j + filter) = total;
                        }
                    }
                }
            }

            /// Copies the rows that a part reads: `width` places of all channels each, with their padding.
            unsafe fn copy(c: &Convolution, part: &Part, width: usize, to: *mut f32) {
                let (left, size) = (c.columns.padding, c.columns.size);
                for row in 0..c.rows.reach(part.rows.1) {
                    let place = (part.rows.0 * c.rows.stride + row).wrapping_sub(c.rows.padding);
                    let (before, after) = if place < c.rows.size { (left.min(width), (left + size).min(width)) } else { (width, width) };
                    // SAFETY: `to` has room for these rows.
                    unsafe {
                        let to = to.add(row * width * c.channels);
                        std::ptr::write_bytes(to, 0, before * c.channels);
                        std::ptr::write_bytes(to.add(after * c.channels), 0, (width - after) * c.channels);
                        let from = c.image.add(part.image * c.batch_step).wrapping_add(place.wrapping_mul(c.rows.step));
                        if c.columns.step == c.channels {
                            std::ptr::copy_nonoverlapping(from, to.add(before * c.channels), (after - before) * c.channels);
                            continue;
                        }
                        for column in before..after {
                            let from = from.add((column - left) * c.columns.step);
                            std::ptr::copy_nonoverlapping(from, to.add(column * c.channels), c.channels);
                        }
                    }
                }
            }

            /// `memory`: room for a panel, for the offsets of the window, and for the copy of the image.
            #[target_feature(enable = $features)]
            unsafe fn run_part(c: &Convolution, part: &Part, memory: *mut f32) {
                let depth = c.channels * c.windows();
                let width = c.columns.reach(c.columns.out_size);
                let offsets = memory.wrapping_add(c.chain() * c.windows() * WIDE);
                let image = offsets.wrapping_add(c.offsets());
                let (data, step, row_step) = if c.is_padded() {
                    // SAFETY: room for the rows of the part.
                    unsafe { copy(c, part, width, image) };
                    (image.cast_const(), c.channels, width * c.channels)
                } else {
                    let first = part.image * c.batch_step + part.rows.0 * c.rows.stride * c.rows.step;
                    (c.image.wrapping_add(first), c.columns.step, c.rows.step)
                };
                let element = |i: usize, j: usize| i * c.rows.dilation * row_step + j * c.columns.dilation * step;
                let offsets = offsets.cast::<usize>();
                for w in 0..c.windows() {
                    // SAFETY: room for the offsets, aligned: a panel is a multiple of a vector long.
                    unsafe { offsets.add(w).write(element(w / c.columns.window, w % c.columns.window)) };
                }
                // SAFETY: written above.
                let window = unsafe { std::slice::from_raw_parts(offsets, c.windows()) };
                let places = Places { data, step: step * c.columns.stride, row_step: row_step * c.rows.stride, window };
                let (first, count) = part.filters;
                let strip = STRIP.div_ceil(c.columns.out_size);
                for filter in (first..first + count).step_by(WIDE) {
                    let lanes = WIDE.min(first + count - filter);
                    let next = WIDE.min(first + count - filter - lanes);
                    // SAFETY: the weights of these filters; results of this part only.
                    unsafe {
                        let weights = std::slice::from_raw_parts(c.weight.add(filter * depth), lanes * depth);
                        let is_finite = !c.is_padded() || weights.iter().fold(true, |all, w| all & w.is_finite());
                        for row in (0..part.rows.1).step_by(strip) {
                            let rows = (part.rows.0 + row, strip.min(part.rows.1 - row));
                            let part = Part { image: part.image, rows, filters: (filter, lanes) };
                            let places = Places { data: places.data.wrapping_add(row * places.row_step), ..places };
                            panel_of(c, &part, memory, &places, if row == 0 { next } else { 0 });
                            if !is_finite {
                                border(c, &part);
                            }
                        }
                    }
                }
            }

            /// Returns whether there was memory.
            pub fn run(c: &Convolution, threads: usize) -> bool {
                let (rows, filters) = c.cuts(threads, WIDE);
                let parts = c.batch * rows.len() * filters.len();
                let most = rows.iter().map(|run| run.1).max().unwrap_or(1);
                let places = if c.is_padded() { c.rows.reach(most) * c.columns.reach(c.columns.out_size) } else { 0 };
                let floats = c.chain() * c.windows() * WIDE + c.offsets() + c.channels * places;
                let short = AtomicBool::new(false);
                share_out(threads, parts, |number| {
                    let (run, image) = (number / filters.len() % rows.len(), number / filters.len() / rows.len());
                    let part = Part { image, rows: rows.at(run), filters: filters.at(number % filters.len()) };
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
kernels!(avx2, "avx2,fma", __m256, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f", __m512, [1 2 3 4 5 6 7 8 9 10 11 12],
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps);

/// A kernel (`KernelFn`).  `ptrs`: image, weight, out, and the bias if there is one.  `scalars`: whether there is one; the
/// offsets of image, weight and bias; batch, channels; the steps of the batch in image and result; for rows and then
/// columns: the fields of `Dimension`; the filters, or 0 if each channel has its own; the lanes of a packed weight's panels,
/// or 0.  Returns 0, or a key of `ir.plan.KERNEL_ERRORS`.
pub unsafe extern "C" fn convolution(ptrs: *const usize, scalars: *const i64, threads: i32) -> i64 {
    // SAFETY: the plan passes these addresses and numbers (`ir.plan.Convolution`).
    caught::or_else(PANICKED, || unsafe { convolve(ptrs, scalars, threads) })
}

/// # Safety
/// As `convolution`: three addresses, or four with a bias, and 26 numbers.
unsafe fn convolve(ptrs: *const usize, scalars: *const i64, threads: i32) -> i64 {
    // SAFETY: so many addresses and numbers.
    let (ptrs, n) = unsafe { (&*ptrs.cast::<[usize; 3]>(), &*scalars.cast::<[i64; 26]>()) };
    let at = |ptr: usize, offset: i64| (ptr as *const f32).wrapping_offset(offset as isize);
    // SAFETY: there is a fourth address, if there is a bias.
    let bias_at = if n[0] == 0 { 0 } else { unsafe { *ptrs.as_ptr().add(3) } };
    let bias = if n[0] == 0 { std::ptr::null() } else { at(bias_at, n[3]) };
    let size = |i: usize| n[i] as usize;
    let dimension = |i: usize| Dimension {
        size: size(i),
        out_size: size(i + 1),
        window: size(i + 2),
        stride: size(i + 3),
        padding: size(i + 4),
        dilation: size(i + 5),
        step: size(i + 6),
        out_step: size(i + 7),
    };
    let c = Convolution {
        image: at(ptrs[0], n[1]),
        weight: at(ptrs[1], n[2]),
        bias,
        out: ptrs[2] as *mut f32,
        batch: size(4),
        channels: size(5),
        filters: size(24),
        batch_step: size(6),
        out_batch_step: size(7),
        rows: dimension(8),
        columns: dimension(16),
        panel: size(25),
    };
    let sizes = [c.channels, c.filters.max(1), c.rows.out_size, c.columns.out_size];
    let work = sizes.into_iter().fold(c.batch, usize::saturating_mul);
    if work == 0 {
        return 0;
    }
    if ptrs.contains(&0) || (n[0] != 0 && bias_at == 0) {
        return WITHOUT_DATA;
    }
    let threads = (work.saturating_mul(c.windows()) / SHARE).clamp(1, threads.max(1) as usize);
    let lanes = vector_bytes() / size_of::<f32>();
    if c.panel != 0 && (c.panel != 2 * lanes || !c.filters.is_multiple_of(c.panel)) {
        return OTHER_PANELS;
    }
    match run(&c, lanes, threads) {
        Some(true) => 0,
        Some(false) => WITHOUT_MEMORY,
        None => WITHOUT_VECTORS,
    }
}

/// Whether there was memory; None if this processor has no vectors of so many lanes.
#[cfg(target_arch = "x86_64")]
fn run(c: &Convolution, lanes: usize, threads: usize) -> Option<bool> {
    match (lanes, c.filters) {
        (_, 0) => depthwise::run(c, lanes, threads),
        (product::avx512::LANES, _) => Some(avx512::run(c, threads)),
        (product::avx2::LANES, _) => Some(avx2::run(c, threads)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run(_: &Convolution, _: usize, _: usize) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2039) as f32 / 1024.0 - 1.0).collect()
    }

    /// Compares each bit with the sum of chains.  (channels, filters), (rows, columns), (window), stride, padding.
    fn check(
        (channels, filters): (usize, usize),
        sizes: [usize; 2],
        window: [usize; 2],
        stride: usize,
        padding: usize,
        with_bias: bool,
        lanes: usize,
    ) {
        let batch = 2;
        let out_sizes = [0, 1].map(|d| (sizes[d] + 2 * padding - window[d]) / stride + 1);
        let (step, out_step) = (channels + 3, filters + 5); // elements between the places of image and result
        let dimension = |d: usize, step: usize, out_step: usize| Dimension {
            size: sizes[d],
            out_size: out_sizes[d],
            window: window[d],
            stride,
            padding,
            dilation: 1,
            step,
            out_step,
        };
        let columns = dimension(1, step, out_step);
        let rows = dimension(0, step * sizes[1], out_step * out_sizes[1]);
        let windows = window[0] * window[1];
        let image = numbers(batch * rows.step * sizes[0], 1);
        let (weight, bias) = (numbers(filters * channels * windows, 2), numbers(filters, 3));
        let mut out = vec![f32::NAN; batch * rows.out_step * out_sizes[0]];
        let c = Convolution {
            image: image.as_ptr(),
            weight: weight.as_ptr(),
            bias: if with_bias { bias.as_ptr() } else { std::ptr::null() },
            out: out.as_mut_ptr(),
            batch,
            channels,
            filters,
            batch_step: rows.step * sizes[0],
            out_batch_step: rows.out_step * out_sizes[0],
            rows,
            columns,
            panel: 0,
        };
        assert_eq!(run(&c, lanes, 1), Some(true));
        for (at, found) in out.iter().enumerate() {
            let (filter, place) = (at % out_step, at / out_step);
            if filter >= filters {
                assert!(found.is_nan(), "a place behind the filters is written");
                continue;
            }
            let (column, row) = (place % out_sizes[1], place / out_sizes[1] % out_sizes[0]);
            let first = place / out_sizes[1] / out_sizes[0] * c.batch_step;
            let term = |sum: f32, (channel, w): (usize, usize)| {
                let places = (c.rows.place(row, w / window[1]), c.columns.place(column, w % window[1]));
                let value = if let (Some(i), Some(j)) = places { image[first + i + j + channel] } else { 0.0 };
                value.mul_add(weight[(filter * channels + channel) * windows + w], sum)
            };
            let length = (CHAIN / windows).max(1);
            let chain = |begin: usize| {
                let channels = begin..channels.min(begin + length);
                channels.flat_map(|channel| (0..windows).map(move |w| (channel, w))).fold(0f32, term)
            };
            let chains = (0..channels).step_by(length).map(chain);
            let sum = if with_bias {
                chains.fold(bias[filter], |a, b| a + b)
            } else {
                chains.reduce(|a, b| a + b).unwrap_or(0.0)
            };
            assert_eq!(
                found.to_bits(),
                sum.to_bits(),
                "{channels} {filters} {sizes:?} {window:?}: {row} {column} {filter}"
            );
        }
    }

    #[test]
    fn results_are_sums_of_chains_of_fused_multiply_adds() {
        let most = vector_bytes() / size_of::<f32>();
        for lanes in [8, 16].into_iter().filter(|lanes| *lanes <= most) {
            for with_bias in [false, true] {
                for filters in [1, 8, 19, 32, 40] {
                    check((5, filters), [7, 14], [3, 3], 1, 1, with_bias, lanes);
                    check((33, filters), [6, 5], [3, 3], 1, 0, with_bias, lanes);
                    check((300, filters), [3, 4], [1, 1], 2, 0, with_bias, lanes);
                }
                check((3, 24), [30, 33], [7, 7], 2, 3, with_bias, lanes);
            }
        }
    }

    /// No image has these sizes: a window without elements divides by zero.
    #[test]
    fn a_panic_is_an_error_code() {
        let (element, mut numbers) = ([0f32], [1i64; 26]);
        (numbers[0], numbers[25]) = (0, 0);
        (numbers[10], numbers[18]) = (0, 0);
        let ptrs = [element.as_ptr() as usize; 3];
        for filters in [0, 1] {
            numbers[24] = filters;
            for threads in [1, 2] {
                // SAFETY: three addresses, of which none is read, and 26 numbers.
                let code = caught::quietly(|| unsafe { convolution(ptrs.as_ptr(), numbers.as_ptr(), threads) });
                assert_eq!(code, if vector_bytes() == 0 { WITHOUT_VECTORS } else { PANICKED }, "{filters} {threads}");
            }
        }
    }

    #[test]
    fn threads_share_rows_or_filters() {
        let dimension = |size: usize| Dimension {
            size,
            out_size: size,
            window: 3,
            stride: 1,
            padding: 1,
            dilation: 1,
            step: 1,
            out_step: 1,
        };
        let of = |channels: usize, size: usize, batch: usize| Convolution {
            image: std::ptr::null(),
            weight: std::ptr::null(),
            bias: std::ptr::null(),
            out: std::ptr::null_mut(),
            batch,
            channels,
            filters: channels,
            batch_step: 1,
            out_batch_step: 1,
            rows: dimension(size),
            columns: dimension(size),
            panel: 0,
        };
        let counts = |c: Convolution, threads: usize| {
            let (rows, filters) = c.cuts(threads, 32);
            assert_eq!(rows.iter().map(|run| run.1).sum::<usize>(), c.rows.out_size);
            assert_eq!(filters.iter().map(|run| run.1).sum::<usize>(), c.filters);
            (rows.len(), filters.len())
        };
        assert_eq!(counts(of(64, 56, 1), 2), (2, 1)); // the image is larger than the weight
        assert_eq!(counts(of(512, 7, 1), 2), (1, 2));
        assert_eq!(counts(of(512, 7, 1), 64), (1, 16));
        assert_eq!(counts(of(64, 4, 8), 4), (1, 1)); // each thread has an image
    }
}
