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

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

use super::aten::{Outcome, Scratch};
use super::torch;

/// Of k: a panel of so many stays in the second cache.
const DEEP: usize = 1536;
/// Elements of a cache line.
const LINE: usize = 16;
/// Multiply-adds of a chain.
const CHAIN: usize = 256;
/// Bytes of packed panels for each thread: they stay in the cache until they are used.
const PACKED: usize = 1 << 20;
/// Rows of the tall operand that stay in the second cache meanwhile; a multiple of each kernel's rows.
const TALL: usize = 96;
/// Multiply-adds for which a further thread pays.
pub(super) const SHARE: usize = 1 << 17;
/// Keys of `ir.plan.KERNEL_ERRORS`.
pub(super) const WITHOUT_MEMORY: i64 = 3;
pub(super) const WITHOUT_VECTORS: i64 = 4;
/// Parts of the work for each thread, so that a late thread has less to do.
const PARTS: usize = 4;

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

// SAFETY: threads write different parts of `out` and of the panels.
unsafe impl Sync for Product {}

impl Side {
    /// The same operand from row `row` and from `k` on.
    fn at(self, row: usize, k: usize) -> Side {
        let data = self.data.wrapping_offset(row as isize * self.step + k as isize * self.k);
        Side { data, ..self }
    }
}

/// Sizes of a product.  `left_rows`, `right_rows`: elements that are folded lie one after the other.
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

    /// Whether the lanes run along the rows of the result.
    fn runs_across(&self) -> bool {
        self.right_rows && (!self.left_rows || self.cost(true) < self.cost(false))
    }
}

/// Calls `body` in a team of threads of OpenMP's pool, which torch's and the generated kernels use.
fn in_team(threads: usize, body: &(dyn Fn() + Sync)) {
    type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, u32, u32);
    unsafe extern "C" fn enter(body: *mut c_void) {
        // SAFETY: the address of `body` below, which lives until all threads have left.
        let body = unsafe { &*body.cast::<&(dyn Fn() + Sync)>() };
        body();
    }
    match gomp_parallel() {
        Some(address) if threads > 1 => {
            // SAFETY: the signature of libgomp's ABI, `void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned)`.
            let parallel = unsafe { std::mem::transmute::<usize, Parallel>(address) };
            let data = std::ptr::from_ref(&body).cast_mut().cast();
            // SAFETY: returns after all threads have left `enter`.
            unsafe { parallel(enter, data, threads as u32, 0) };
        }
        _ => body(),
    }
}

fn gomp_parallel() -> Option<usize> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    *FOUND.get_or_init(|| torch::exported(c"GOMP_parallel"))
}

/// Whether several threads can share a product.
pub fn has_threads() -> bool {
    gomp_parallel().is_some()
}

/// `of(part)` for each part once, by a team of threads.
pub(super) fn share_out(threads: usize, parts: usize, of: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    in_team(threads.min(parts), &|| loop {
        let part = next.fetch_add(1, Ordering::Relaxed);
        if part >= parts {
            break;
        }
        of(part);
    });
}

macro_rules! kernels {
    ($name:ident, $features:literal, $vec:ty, $lanes:literal, $rows:literal, [$($count:literal)*],
     $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident, $fma:ident) => {
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
                    let (mut panel, mut at) = (panel, tall.data);
                    let mut left = depth;
                    while left > 0 {
                        let now = left.min(LINE);
                        for r in 0..R {
                            _mm_prefetch::<_MM_HINT_T1>(at.wrapping_offset((r + R) as isize * tall.step).cast());
                        }
                        for _ in 0..now {
                            let mut wide: [$vec; V] = [$zero(); V];
                            for v in 0..V {
                                wide[v] = $load(panel.add(v * LANES));
                            }
                            for r in 0..R {
                                let factor = $splat(*at.offset(r as isize * tall.step));
                                for v in 0..V {
                                    sums[r][v] = $fma(factor, wide[v], sums[r][v]);
                                }
                            }
                            panel = panel.add(WIDE);
                            at = at.wrapping_offset(tall.k);
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

            pub(super) fn run(p: &Product, threads: usize) -> Outcome<()> {
                let panels = p.width.div_ceil(WIDE);
                let deep = p.depth.min(DEEP);
                let most = (PACKED * threads / (WIDE * deep * size_of::<f32>())).clamp(1, panels);
                let scratch = Scratch::take(most * WIDE * deep * size_of::<f32>())?;
                let packed = scratch.address();
                let blocks = p.height.div_ceil(ROWS);
                let (tall, tops) = (TALL / ROWS, blocks.div_ceil(TALL / ROWS));
                for begin in (0..panels).step_by(most) {
                    let now = most.min(panels - begin);
                    let groups = if threads > 1 { (PARTS * threads).div_ceil(tops).min(now) } else { 1 };
                    for k in (0..p.depth).step_by(deep) {
                        let depth = deep.min(p.depth - k);
                        let panel = |i: usize| (packed as *mut f32).wrapping_add(i * WIDE * depth);
                        share_out(threads, now, |i| {
                            let at = (begin + i) * WIDE;
                            // SAFETY: `run` is called on a processor with these features; each panel has its own memory.
                            unsafe { pack(p.wide.at(at, k), WIDE.min(p.width - at), depth, panel(i)) };
                        });
                        share_out(threads, tops * groups, |part_number| {
                            let (top, group) = (part_number / groups, part_number % groups);
                            let rows = top * tall..blocks.min((top + 1) * tall);
                            for i in group * now / groups..(group + 1) * now / groups {
                                // SAFETY: as above; each part of the result is written by one thread.
                                unsafe { part(p, panel(i), (begin + i) * WIDE, rows.clone(), k, depth) };
                            }
                        });
                    }
                }
                Ok(())
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2,fma", __m256, 8, 6, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_fmadd_ps);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f", __m512, 16, 12, [1 2 3 4 5 6 7 8 9 10 11 12],
    _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_fmadd_ps);

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
    let (ptrs, n) = unsafe { (&*ptrs.cast::<[usize; 3]>(), &*scalars.cast::<[i64; 10]>()) };
    let at = |ptr: usize, offset: i64| (ptr as *const f32).wrapping_offset(offset as isize);
    let left = Side { data: at(ptrs[0], n[0]), step: n[1] as isize, k: n[2] as isize };
    let right = Side { data: at(ptrs[1], n[3]), step: n[5] as isize, k: n[4] as isize };
    let [rows, columns, depth] = [n[7], n[8], n[9]].map(|n| n as usize);
    let out = ptrs[2] as *mut f32;
    if depth == 0 {
        for at in (0..rows).flat_map(|row| (0..columns).map(move |column| row * n[6] as usize + column)) {
            // SAFETY: the place of a result.
            unsafe { *out.add(at) = 0.0 };
        }
    }
    if rows == 0 || columns == 0 || depth == 0 {
        return 0;
    }
    let lanes = vector_bytes() / size_of::<f32>();
    if lanes == 0 {
        return WITHOUT_VECTORS;
    }
    let across = Shape { rows, columns, depth, lanes, left_rows: left.k == 1, right_rows: right.k == 1 }.runs_across();
    let (wide, tall) = if across { (left, right) } else { (right, left) };
    let (width, height) = if across { (rows, columns) } else { (columns, rows) };
    let product = Product { wide, tall, width, height, depth, out, stride: n[6] as usize, across };
    let work = rows.saturating_mul(columns).saturating_mul(depth);
    let threads = (work / SHARE).clamp(1, threads.max(1) as usize);
    match run(&product, lanes, threads) {
        Some(Ok(())) => 0,
        Some(Err(_)) => WITHOUT_MEMORY,
        None => WITHOUT_VECTORS,
    }
}

/// None if this processor has no vectors of so many lanes.
#[cfg(target_arch = "x86_64")]
fn run(product: &Product, lanes: usize, threads: usize) -> Option<Outcome<()>> {
    match lanes {
        avx512::LANES => Some(avx512::run(product, threads)),
        avx2::LANES => Some(avx2::run(product, threads)),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn run(_: &Product, _: usize, _: usize) -> Option<Outcome<()>> {
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

        pub fn add(a: Lanes, b: Lanes) -> Lanes {
            std::array::from_fn(|lane| a[lane] + b[lane])
        }

        pub fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
            std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
        }
    }
    use by_lanes::{add, fma, load, splat, store as store_lanes, zero, Lanes};

    kernels!(simulated, "avx2,fma", Lanes, 16, 12, [1 2 3 4 5 6 7 8 9 10 11 12], zero, splat, load, store_lanes, add, fma);

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
            let done =
                if lanes * 4 > vector_bytes() { Some(simulated::run(&product, 1)) } else { run(&product, lanes, 1) };
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

    #[test]
    fn the_cheaper_operand_is_packed() {
        let shape = |rows, columns, depth| Shape { rows, columns, depth, lanes: 8, left_rows: true, right_rows: true };
        assert!(shape(128, 1024, 256).runs_across()); // a linear layer: its weight stays where it is
        assert!(!shape(3136, 144, 24).runs_across());
        assert!(!Shape { right_rows: false, ..shape(128, 1024, 256) }.runs_across());
        assert!(Shape { left_rows: false, ..shape(3136, 144, 24) }.runs_across());
    }
}
