//! Products of matrices in float32: `out[i, j] = sum over k of left[i, k] * right[k, j]`.
//!
//! In: addresses and strides.  Each result is a sum of chains of `CHAIN` fused multiply-adds, in the order of k.  So its
//! bits depend on its row of `left` and its column of `right` alone, not on other rows, tiles, the processor or the number
//! of threads.  A single chain would lose a digit at 4096 terms of one sign.
//!
//! The lanes of a vector run along one side of the result, which is called wide; the other side is called tall.  The
//! operand of the wide side is packed into panels, `panel[k][lane]`.  Elements of the tall operand are read where they
//! are and broadcast.  The cheaper operand is packed (`Shape::runs_across`): for the weight of a linear layer, whose
//! rows run along k, that is the other operand.  So no weight is copied.

use std::sync::atomic::{AtomicI64, Ordering};

use super::aten::Outcome;
use super::caught;
use super::team::{share_out, with_memory};

/// Of k: a panel of so many stays in the second cache.
const DEEP: usize = 1536;
/// Elements of a cache line.
const LINE: usize = 16;
/// Multiply-adds of a chain.
pub(super) const CHAIN: usize = 256;
/// Bytes of packed panels: they stay in the cache until they are used.
const PACKED: usize = 1 << 20;
/// Rows of the tall operand that stay in the second cache meanwhile; a multiple of each kernel's rows.
const TALL: usize = 96;
/// Multiply-adds for which a further thread pays.
pub(super) const SHARE: usize = 1 << 17;
/// Keys of `ir.plan.KERNEL_ERRORS`.
pub(super) const WITHOUT_MEMORY: i64 = 3;
pub(super) const WITHOUT_VECTORS: i64 = 4;
pub(super) const WITHOUT_DATA: i64 = 5;
pub(super) const PANICKED: i64 = 6;
pub(super) const OTHER_PANELS: i64 = 7;

/// One side's operand: the address of its first element; the distances, in elements, between its rows and along k.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) data: *const f32,
    pub(super) step: isize,
    pub(super) k: isize,
}

/// Where a tile adds its sums: rows `stride` elements apart.  `first`: the sums start at 0, whatever is there.
#[derive(Clone, Copy)]
struct Sums {
    data: *mut f32,
    stride: usize,
    first: bool,
}

/// A product, with its wide and its tall side.  `across`: the wide side are the rows of the result, not its columns.
struct Product {
    wide: Side,
    tall: Side,
    width: usize,
    height: usize,
    depth: usize,
    out: *mut f32,
    stride: usize,
    across: bool,
}

// SAFETY: operands are only read.
unsafe impl Sync for Side {}

impl Side {
    /// The same operand from row `row` and from `k` on.
    pub(super) fn at(self, row: usize, k: usize) -> Side {
        let data = self.data.wrapping_offset(row as isize * self.step + k as isize * self.k);
        Side { data, ..self }
    }
}

/// Sizes of a product.  `left_rows`, `right_rows`: elements that are folded lie one after the other.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    depth: usize,
    lanes: usize,
    left_rows: bool,
    right_rows: bool,
}

impl Shape {
    /// Estimated cost of a layout, in multiply-adds of a vector.
    fn cost(&self, across: bool) -> usize {
        let (width, height) = if across { (self.rows, self.columns) } else { (self.columns, self.rows) };
        // An element is packed, or turned while it is stored, in a little more than that time.
        let turned = if across { self.rows * self.columns / 2 } else { 0 };
        width.div_ceil(self.lanes) * height * self.depth + (width * self.depth + turned) * 5 / 4
    }

    /// Rows and columns of the parts for the threads.  Threads share the rows of the result, as they do
    /// in the steps before and after.  If the right matrix is larger than the others, they share the columns: then each
    /// reads a part of it.  Each part packs what it needs: to fetch a line of another core's cache takes longer.
    fn cuts(&self, threads: usize) -> (Runs, Runs) {
        let along_rows = self.columns * self.depth <= self.rows * (self.columns + self.depth);
        let (first, other) = if along_rows { (self.rows, self.columns) } else { (self.columns, self.rows) };
        let units = first.div_ceil(self.lanes).min(threads);
        let (first, other) = (Runs::new(first, units, self.lanes), Runs::new(other, threads / units, self.lanes));
        if along_rows {
            (first, other)
        } else {
            (other, first)
        }
    }

    /// Whether the lanes run along the rows of the result.
    fn runs_across(&self) -> bool {
        self.right_rows && (!self.left_rows || self.cost(true) < self.cost(false))
    }
}

/// Defines a transposition of a vector's number of rows of four elements, `step` apart, to four rows `to_step` apart.
macro_rules! transpositions {
    ($($name:ident, $features:literal, $cast:ident, $insert:ident [$($part:literal)*], $low:ident, $high:ident, $shuffle:ident,
       $store:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(from: *const f32, step: isize, to: *mut f32, to_step: usize) {
            use std::arch::x86_64::*;
            // SAFETY: rows of four elements to read, and four rows of a vector to write.
            unsafe {
                // Row i of each four, side by side.
                let [a, b, c, d] = [0isize, 1, 2, 3].map(|i| {
                    let rows = $cast(_mm_loadu_ps(from.offset(i * step)));
                    $(let rows = $insert::<$part>(rows, _mm_loadu_ps(from.offset((i + 4 * $part) * step)));)*
                    rows
                });
                let (low, high) = ([$low(a, b), $low(c, d)], [$high(a, b), $high(c, d)]);
                $store(to, $shuffle::<0x44>(low[0], low[1]));
                $store(to.add(to_step), $shuffle::<0xEE>(low[0], low[1]));
                $store(to.add(2 * to_step), $shuffle::<0x44>(high[0], high[1]));
                $store(to.add(3 * to_step), $shuffle::<0xEE>(high[0], high[1]));
            }
        }
    )*};
}

transpositions! {
    turn_8, "avx2,fma", _mm256_castps128_ps256, _mm256_insertf128_ps [1],
        _mm256_unpacklo_ps, _mm256_unpackhi_ps, _mm256_shuffle_ps, _mm256_storeu_ps;
    turn_16, "avx512f", _mm512_castps128_ps512, _mm512_insertf32x4 [1 2 3],
        _mm512_unpacklo_ps, _mm512_unpackhi_ps, _mm512_shuffle_ps, _mm512_storeu_ps;
}

/// `size` rows or columns in `count` runs of whole vectors.
#[derive(Clone, Copy)]
pub(super) struct Runs {
    size: usize,
    count: usize,
    lanes: usize,
}

impl Runs {
    /// At most `count` runs, none of them empty.
    pub(super) fn new(size: usize, count: usize, lanes: usize) -> Runs {
        Runs { size, count: count.clamp(1, size.div_ceil(lanes).max(1)), lanes }
    }

    pub(super) fn len(self) -> usize {
        self.count
    }

    fn begin(self, run: usize) -> usize {
        (run * self.size.div_ceil(self.lanes) / self.count * self.lanes).min(self.size)
    }

    /// The first row or column of a run, and how many it has.
    pub(super) fn at(self, run: usize) -> (usize, usize) {
        (self.begin(run), self.begin(run + 1) - self.begin(run))
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count).map(move |run| self.at(run))
    }
}

macro_rules! kernels {
    ($name:ident, $features:literal, $vec:ty, $lanes:literal, $rows:literal, [$($count:literal)*],
     $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident, $fma:ident, $turn:ident) => {
        pub(super) mod $name {
            use std::arch::x86_64::*;

            use super::*;

            pub const LANES: usize = $lanes;
            pub const ROWS: usize = $rows;
            /// Lanes of a panel.
            pub const WIDE: usize = 2 * LANES;

            /// Adds `depth` products to R rows by V vectors of `out`.  Fetches the rows of the next tile meanwhile: a weight
            /// that was read in the last call may lie in main memory.
            #[target_feature(enable = $features)]
            unsafe fn tile<const R: usize, const V: usize>(
                panel: *const f32, tall: Side, depth: usize, out: Sums,
            ) {
                // SAFETY: the panel has `depth` rows, the tall side R rows of `depth`, `out` R rows of V vectors.
                unsafe {
                    let mut sums: [[$vec; V]; R] = [[$zero(); V]; R];
                    let mut panel = panel;
                    // Three rows for each pointer: a single one would be moved from row to row, each time after the last.
                    let mut at: [*const f32; R] = std::array::from_fn(|i| tall.at(3 * i, 0).data);
                    let mut left = depth;
                    while left > 0 {
                        let now = left.min(LINE);
                        for r in 0..R {
                            _mm_prefetch::<_MM_HINT_T1>(at[0].wrapping_offset((r + R) as isize * tall.step).cast());
                        }
                        for _ in 0..now {
                            let mut wide: [$vec; V] = [$zero(); V];
                            for v in 0..V {
                                wide[v] = $load(panel.add(v * LANES));
                            }
                            for r in 0..R {
                                let factor = $splat(*at[r / 3].offset((r % 3) as isize * tall.step));
                                for v in 0..V {
                                    sums[r][v] = $fma(factor, wide[v], sums[r][v]);
                                }
                            }
                            panel = panel.add(WIDE);
                            for at in &mut at[..R.div_ceil(3)] {
                                *at = at.wrapping_offset(tall.k);
                            }
                        }
                        left -= now;
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

            /// A block of sums, chain by chain.
            #[target_feature(enable = $features)]
            unsafe fn tiles(
                (rows, vectors): (usize, usize), panel: *const f32, tall: Side, depth: usize, out: Sums,
            ) {
                for k in (0..depth).step_by(CHAIN) {
                    let (panel, tall, length) = (panel.wrapping_add(k * WIDE), tall.at(0, k), CHAIN.min(depth - k));
                    let out = Sums { first: out.first && k == 0, ..out };
                    // SAFETY: as `tile`.
                    unsafe {
                        match (rows, vectors) {
                            $(($count, 1) => tile::<$count, 1>(panel, tall, length, out),
                            ($count, _) => tile::<$count, 2>(panel, tall, length, out),)*
                            _ => {}
                        }
                    }
                }
            }

            /// A transposition of eight rows of eight elements, `step` apart, to rows `to_step` apart.
            #[target_feature(enable = $features)]
            unsafe fn pack_block(from: *const f32, step: isize, to: *mut f32, to_step: usize) {
                // SAFETY: eight rows of eight elements on both sides.
                unsafe {
                    let mut a = [_mm256_setzero_ps(); 8];
                    let mut b = a;
                    for i in 0..8 {
                        a[i] = _mm256_loadu_ps(from.offset(i as isize * step));
                    }
                    for i in 0..4 {
                        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
                    }
                    for h in [0, 4] {
                        a[h] = _mm256_shuffle_ps::<0x44>(b[h], b[h + 2]);
                        a[h + 1] = _mm256_shuffle_ps::<0xEE>(b[h], b[h + 2]);
                        a[h + 2] = _mm256_shuffle_ps::<0x44>(b[h + 1], b[h + 3]);
                        a[h + 3] = _mm256_shuffle_ps::<0xEE>(b[h + 1], b[h + 3]);
                    }
                    for i in 0..4 {
                        _mm256_storeu_ps(to.add(i * to_step), _mm256_permute2f128_ps::<0x20>(a[i], a[i + 4]));
                        _mm256_storeu_ps(to.add((i + 4) * to_step), _mm256_permute2f128_ps::<0x31>(a[i], a[i + 4]));
                    }
                }
            }

            /// `panel[k][lane]` of `lanes` rows; further lanes are 0.
            #[target_feature(enable = $features)]
            pub unsafe fn pack(from: Side, lanes: usize, depth: usize, panel: *mut f32) {
                // SAFETY: `from` has `lanes` rows of `depth`; the panel has `depth` rows of WIDE.
                unsafe {
                    if from.step == 1 && lanes == WIDE {
                        for k in 0..depth {
                            let row = from.data.offset(k as isize * from.k);
                            for v in 0..2 {
                                $store(panel.add(k * WIDE + v * LANES), $load(row.add(v * LANES)));
                            }
                        }
                        return;
                    }
                    let mut lane = 0;
                    while from.k == 1 && lane + LANES <= lanes {
                        let row = from.data.offset(lane as isize * from.step);
                        let whole = depth / 4 * 4;
                        for k in (0..whole).step_by(4) {
                            if k % LINE == 0 {
                                for l in 0..LANES {
                                    let next = row.wrapping_offset((LANES + l) as isize * from.step + k as isize);
                                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                                }
                            }
                            $turn(row.add(k), from.step, panel.add(k * WIDE + lane), WIDE);
                        }
                        for k in whole..depth {
                            for l in 0..LANES {
                                *panel.add(k * WIDE + lane + l) = *row.offset(l as isize * from.step + k as isize);
                            }
                        }
                        lane += LANES;
                    }
                    while from.k == 1 && lane + 8 <= lanes {
                        let row = from.data.offset(lane as isize * from.step);
                        let mut k = 0;
                        while k + 8 <= depth {
                            for l in 0..8 {
                                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_offset((8 + l) * from.step + k as isize).cast());
                            }
                            pack_block(row.add(k), from.step, panel.add(k * WIDE + lane), WIDE);
                            k += 8;
                        }
                        for k in k..depth {
                            for l in 0..8 {
                                *panel.add(k * WIDE + lane + l) = *row.offset(l as isize * from.step + k as isize);
                            }
                        }
                        lane += 8;
                    }
                    for k in 0..depth {
                        for l in lane..WIDE {
                            let at = from.data.wrapping_offset(l as isize * from.step + k as isize * from.k);
                            *panel.add(k * WIDE + l) = if l < lanes { *at } else { 0.0 };
                        }
                    }
                }
            }

            /// A block of sums goes to its place; `across`: its rows are columns of the result.
            #[target_feature(enable = $features)]
            unsafe fn store(sums: *const f32, rows: usize, lanes: usize, out: *mut f32, stride: usize, across: bool) {
                // SAFETY: the block has `rows` rows of WIDE sums; the result has room for `rows` by `lanes`.
                unsafe {
                    if across && rows >= 8 && lanes >= 8 {
                        // The last blocks overlap.
                        for lane in (0..lanes).step_by(8).map(|lane| lane.min(lanes - 8)) {
                            for row in (0..rows).step_by(8).map(|row| row.min(rows - 8)) {
                                pack_block(
                                    sums.add(row * WIDE + lane),
                                    WIDE as isize,
                                    out.add(lane * stride + row),
                                    stride,
                                );
                            }
                        }
                        return;
                    }
                    for r in 0..rows {
                        for l in 0..lanes {
                            *out.add(if across { l * stride + r } else { r * stride + l }) = *sums.add(r * WIDE + l);
                        }
                    }
                }
            }

            /// The sums of one panel and the row blocks `blocks` of the tall side, for `depth` elements from `k` on.
            #[target_feature(enable = $features)]
            unsafe fn part(
                p: &Product, panel: *const f32, at: usize, blocks: std::ops::Range<usize>, k: usize, depth: usize,
            ) {
                let all = p.height.div_ceil(ROWS);
                let lanes = WIDE.min(p.width - at);
                let vectors = if lanes > LANES { 2 } else { 1 };
                let begin = |block: usize| block * p.height / all;
                let (top, bottom) = (begin(blocks.start), begin(blocks.end));
                // SAFETY: the blocks lie in the result.
                unsafe {
                    let out = p.out.add(if p.across { at * p.stride + top } else { top * p.stride + at });
                    let in_place = !p.across && lanes == vectors * LANES;
                    let mut sums = std::mem::MaybeUninit::<[f32; TALL * WIDE]>::uninit();
                    let sums: *mut f32 = sums.as_mut_ptr().cast();
                    let to = if in_place { Sums { data: out, stride: p.stride, first: k == 0 } } else { Sums { data: sums, stride: WIDE, first: k == 0 } };
                    if !in_place && k > 0 {
                        for r in 0..bottom - top {
                            for l in 0..lanes {
                                let from = if p.across { l * p.stride + r } else { r * p.stride + l };
                                *sums.add(r * WIDE + l) = *out.add(from);
                            }
                        }
                    }
                    for block in blocks {
                        let (row, end) = (begin(block), begin(block + 1));
                        let to = Sums { data: to.data.add((row - top) * to.stride), ..to };
                        tiles((end - row, vectors), panel, p.tall.at(row, k), depth, to);
                    }
                    if !in_place {
                        store(sums, bottom - top, lanes, out, p.stride, p.across);
                    }
                }
            }

            pub(super) fn run(p: &Product) -> Outcome<()> {
                let panels = p.width.div_ceil(WIDE);
                let deep = p.depth.min(DEEP);
                let most = (PACKED / (WIDE * deep * size_of::<f32>())).clamp(1, panels);
                with_memory(most * WIDE * deep, |packed| run_in(p, most, packed))
            }

            /// `most`: the number of panels for which there is room.
            fn run_in(p: &Product, most: usize, packed: *mut f32) {
                let (panels, deep) = (p.width.div_ceil(WIDE), p.depth.min(DEEP));
                let blocks = p.height.div_ceil(ROWS);
                for begin in (0..panels).step_by(most) {
                    let now = most.min(panels - begin);
                    for k in (0..p.depth).step_by(deep) {
                        let depth = deep.min(p.depth - k);
                        let panel = |i: usize| packed.wrapping_add(i * WIDE * depth);
                        for i in 0..now {
                            let at = (begin + i) * WIDE;
                            // SAFETY: `run` is called on a processor with these features; each panel has its own memory.
                            unsafe { pack(p.wide.at(at, k), WIDE.min(p.width - at), depth, panel(i)) };
                        }
                        for top in (0..blocks).step_by(TALL / ROWS) {
                            let rows = top..blocks.min(top + TALL / ROWS);
                            for i in 0..now {
                                // SAFETY: as above.
                                unsafe { part(p, panel(i), (begin + i) * WIDE, rows.clone(), k, depth) };
                            }
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2,fma", __m256, 8, 6, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_fmadd_ps, turn_8);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f", __m512, 16, 12, [1 2 3 4 5 6 7 8 9 10 11 12],
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps, turn_16);

/// Bytes of a vector of this processor's kernel; 0 if it has none.
pub fn vector_bytes() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return 64;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return 32;
        }
    }
    0
}

/// A kernel (`KernelFn`).  `ptrs`: left, right, out.  `scalars`: offset, row step and k step of `left`; offset, k step
/// and column step of `right`; row step of `out`; rows, columns, depth.  Returns 0, or a key of `ir.plan.KERNEL_ERRORS`.
pub unsafe extern "C" fn matrix_product(ptrs: *const usize, scalars: *const i64, threads: i32) -> i64 {
    // SAFETY: the plan passes three addresses and ten numbers (`ir.plan.Product`).
    caught::or_else(PANICKED, || unsafe { multiply(ptrs, scalars, threads) })
}

/// # Safety
/// As `matrix_product`: three addresses and ten numbers.
unsafe fn multiply(ptrs: *const usize, scalars: *const i64, threads: i32) -> i64 {
    // SAFETY: so many addresses and numbers.
    let (ptrs, n) = unsafe { (&*ptrs.cast::<[usize; 3]>(), &*scalars.cast::<[i64; 10]>()) };
    let at = |ptr: usize, offset: i64| (ptr as *const f32).wrapping_offset(offset as isize);
    let left = Side { data: at(ptrs[0], n[0]), step: n[1] as isize, k: n[2] as isize };
    let right = Side { data: at(ptrs[1], n[3]), step: n[5] as isize, k: n[4] as isize };
    let [rows, columns, depth] = [n[7], n[8], n[9]].map(|n| n as usize);
    let out = ptrs[2];
    if depth == 0 {
        for at in (0..rows).flat_map(|row| (0..columns).map(move |column| row * n[6] as usize + column)) {
            // SAFETY: the place of a result.
            unsafe { *(out as *mut f32).add(at) = 0.0 };
        }
    }
    if rows == 0 || columns == 0 || depth == 0 {
        return 0;
    }
    if ptrs.contains(&0) {
        return WITHOUT_DATA;
    }
    let lanes = vector_bytes() / size_of::<f32>();
    if lanes == 0 {
        return WITHOUT_VECTORS;
    }
    let work = rows.saturating_mul(columns).saturating_mul(depth);
    let threads = (work / SHARE).clamp(1, threads.max(1) as usize);
    let shape = Shape { rows, columns, depth, lanes, left_rows: left.k == 1, right_rows: right.k == 1 };
    let (rows, columns) = shape.cuts(threads);
    let code = AtomicI64::new(0);
    share_out(threads, rows.len() * columns.len(), |number| {
        let ((row, rows), (column, columns)) = (rows.at(number / columns.len()), columns.at(number % columns.len()));
        let (left, right) = (left.at(row, 0), right.at(column, 0));
        let across = Shape { rows, columns, ..shape }.runs_across();
        let (wide, tall) = if across { (left, right) } else { (right, left) };
        let (width, height) = if across { (rows, columns) } else { (columns, rows) };
        let stride = n[6] as usize;
        let out = (out as *mut f32).wrapping_add(row * stride + column);
        let failed = match run(&Product { wide, tall, width, height, depth, out, stride, across }, lanes) {
            Some(Ok(())) => return,
            Some(Err(_)) => WITHOUT_MEMORY,
            None => WITHOUT_VECTORS,
        };
        code.store(failed, Ordering::Relaxed);
    });
    code.into_inner()
}

/// None if this processor has no vectors of so many lanes.
#[cfg(target_arch = "x86_64")]
fn run(product: &Product, lanes: usize) -> Option<Outcome<()>> {
    match lanes {
        avx512::LANES => Some(avx512::run(product)),
        avx2::LANES => Some(avx2::run(product)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run(_: &Product, _: usize) -> Option<Outcome<()>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Vectors of 16 lanes for a processor without them.
    mod by_lanes {
        pub type Lanes = [f32; 16];

        pub fn zero() -> Lanes {
            [0.0; 16]
        }

        pub fn splat(value: f32) -> Lanes {
            [value; 16]
        }

        pub unsafe fn load(at: *const f32) -> Lanes {
            // SAFETY: the caller's.
            unsafe { at.cast::<Lanes>().read_unaligned() }
        }

        pub unsafe fn store(at: *mut f32, value: Lanes) {
            // SAFETY: the caller's.
            unsafe { at.cast::<Lanes>().write_unaligned(value) }
        }

        pub unsafe fn turn(from: *const f32, step: isize, to: *mut f32, to_step: usize) {
            for (lane, k) in (0..16).flat_map(|lane| (0..4).map(move |k| (lane, k))) {
                // SAFETY: the caller's.
                unsafe { *to.add(k * to_step + lane) = *from.offset(lane as isize * step + k as isize) };
            }
        }

        pub fn add(a: Lanes, b: Lanes) -> Lanes {
            std::array::from_fn(|lane| a[lane] + b[lane])
        }

        pub fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
            std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
        }
    }
    use by_lanes::{add, fma, load, splat, store as store_lanes, turn, zero, Lanes};

    kernels!(simulated, "avx2,fma", Lanes, 16, 12, [1 2 3 4 5 6 7 8 9 10 11 12], zero, splat, load, store_lanes, add, fma, turn);

    /// Compares each bit with the chains of fused multiply-adds.  `turned`: the elements of `right` lie along k.
    fn check(rows: usize, columns: usize, depth: usize, turned: bool, lanes: usize) {
        let (left, right) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
        let (rk, rn) = if turned { (1, depth) } else { (columns, 1) };
        let stride = columns + 3;
        let mut out = vec![f32::NAN; rows * stride];
        let side =
            |data: &[f32], step: usize, k: usize| Side { data: data.as_ptr(), step: step as isize, k: k as isize };
        let (a, b) = (side(&left, depth, 1), side(&right, rn, rk));
        for across in [false, true] {
            let (wide, tall) = if across { (a, b) } else { (b, a) };
            let (width, height) = if across { (rows, columns) } else { (columns, rows) };
            let product = Product { wide, tall, width, height, depth, out: out.as_mut_ptr(), stride, across };
            let done = if lanes * 4 > vector_bytes() { Some(simulated::run(&product)) } else { run(&product, lanes) };
            assert!(done.is_some_and(|done| done.is_ok()));
            for i in 0..rows {
                for j in 0..columns {
                    let term = |sum: f32, k: usize| left[i * depth + k].mul_add(right[k * rk + j * rn], sum);
                    let chains = (0..depth).step_by(CHAIN).map(|k| (k..depth.min(k + CHAIN)).fold(0f32, term));
                    let chain = chains.reduce(|sum, next| sum + next).unwrap_or(0.0);
                    let found = out[i * stride + j];
                    assert_eq!(found.to_bits(), chain.to_bits(), "{rows}x{columns}x{depth} at {i}, {j}: {across}");
                }
                assert!(out[i * stride + columns..(i + 1) * stride].iter().all(|rest| rest.is_nan()));
            }
        }
    }

    #[test]
    fn results_are_sums_of_chains_of_fused_multiply_adds() {
        for lanes in if vector_bytes() > 0 { [8, 16].as_slice() } else { &[] } {
            for rows in [1, 5, 6, 7, 8, 15, 17, 33, 97] {
                for (columns, depth) in [(1, 1), (7, 3), (16, 8), (17, 9), (40, 1100), (100, 33)] {
                    for turned in [false, true] {
                        check(rows, columns, depth, turned, *lanes);
                    }
                }
            }
        }
    }

    /// The first part of the work panics, in one of two threads.
    #[test]
    fn a_panic_in_a_part_is_an_error_code() {
        let (side, numbers) = (vec![1f32; 64 * 64], [0, 64, 1, 0, 64, 1, 64, 64, 64, 64]);
        for threads in [1, 2] {
            let mut out = vec![0f32; 64 * 64];
            let ptrs = [side.as_ptr() as usize, side.as_ptr() as usize, out.as_mut_ptr() as usize];
            // SAFETY: three matrices of these sizes.
            let run = || unsafe { matrix_product(ptrs.as_ptr(), numbers.as_ptr(), threads) };
            if vector_bytes() > 0 {
                assert_eq!(caught::quietly(|| crate::ffi::team::panicking(run)), PANICKED);
                assert_eq!((run(), out[64 * 64 - 1]), (0, 64.0));
            }
        }
    }

    #[test]
    fn the_cheaper_operand_is_packed() {
        let shape = |rows, columns, depth| Shape { rows, columns, depth, lanes: 8, left_rows: true, right_rows: true };
        assert!(shape(128, 1024, 256).runs_across()); // a linear layer: its weight stays where it is
        assert!(!shape(3136, 144, 24).runs_across());
        assert!(!Shape { right_rows: false, ..shape(128, 1024, 256) }.runs_across());
        assert!(Shape { left_rows: false, ..shape(3136, 144, 24) }.runs_across());
    }
}
