//! Compares the memory of a tensor that its guard depends on, sixteen bytes at a time.
//!
//! In: the sizes, strides, dtype and keys that a guard requires.  Out: a `Pattern` that any tensor can be compared
//! with, and `RecordedTensors`: tensors seen before, each with its addresses and a shared pattern.
//!
//! Example: a contiguous 8×8 matrix is four pieces: (dims, size), (size), (stride, stride), (dtype, keys).

use super::object::Obj;
use super::torch::{load, Autograd, Layout, INLINE_DIMS};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::mem::offset_of;

const WORD: usize = 8;
/// Number of pieces compared without a jump in between.  The last piece is repeated to fill a block.
const BLOCK: usize = 4;
/// Number of tensors to prefetch ahead.  This distance hides the latency of an outer cache.
const AHEAD: usize = 8;

/// Two neighbouring words of a TensorImpl, with a mask of the bits that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct WordPair {
    offset: usize,
    want: [u64; 2],
    mask: [u64; 2],
}

/// The required values of words of a TensorImpl.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    blocks: SmallVec<[[WordPair; BLOCK]; 1]>,
}

/// The requirements of a pattern.  A size or stride of None is not compared.
pub struct PatternSpec<'a> {
    pub keys: u64,
    pub dtype: i32,
    pub sizes: &'a [Option<i64>],
    /// Empty if strides are not compared.
    pub strides: &'a [Option<i64>],
}

/// Pairs neighbouring words.  `words` are distinct and in ascending order.
fn pieces(words: &[(usize, u64, u64)]) -> Vec<WordPair> {
    let mut out = Vec::new();
    let mut rest = words;
    while let [(offset, value, mask), tail @ ..] = rest {
        rest = tail;
        out.push(match tail {
            [(next, value1, mask1), after @ ..] if *next == offset + WORD => {
                rest = after;
                WordPair { offset: *offset, want: [*value, *value1], mask: [*mask, *mask1] }
            }
            // Paired with the word before it, which is also in the TensorImpl: the first word there is never compared.
            _ => WordPair { offset: offset - WORD, want: [0, *value], mask: [0, *mask] },
        });
    }
    out
}

#[inline]
fn holds(block: &[WordPair; BLOCK], imp: usize) -> bool {
    let mut apart = [0u64; 2];
    for piece in block {
        let have: [u64; 2] = load(imp + piece.offset);
        for i in 0..2 {
            apart[i] |= (have[i] ^ piece.want[i]) & piece.mask[i];
        }
    }
    apart[0] | apart[1] == 0
}

impl Pattern {
    /// None for tensors that store their sizes elsewhere, and for a layout that this file does not expect.
    pub fn new(wanted: &PatternSpec<'_>, layout: Layout) -> Option<Pattern> {
        let n = wanted.sizes.len();
        if n > INLINE_DIMS || (!wanted.strides.is_empty() && wanted.strides.len() != n) {
            return None;
        }
        let shift = 8 * (layout.dtype % WORD);
        let dtype = u64::from(u16::try_from(wanted.dtype).ok()?) << shift;
        let (sizes, strides) = (layout.sizes + WORD, layout.sizes + WORD * (1 + INLINE_DIMS));
        let mut words = vec![
            (layout.keys, wanted.keys, !0),
            (layout.dtype & !7, dtype, 0xffff << shift),
            (layout.sizes, n as u64, !0),
        ];
        for (start, values) in [(sizes, wanted.sizes), (strides, wanted.strides)] {
            let compared = values.iter().enumerate().filter_map(|(i, v)| Some((start + WORD * i, (*v)? as u64, !0)));
            words.extend(compared);
        }
        words.sort_unstable();
        let usable = words.windows(2).all(|w| w[0].0 + WORD <= w[1].0) && words[0].0 >= WORD;
        usable.then(|| Pattern::of(&pieces(&words)))?
    }

    fn of(pieces: &[WordPair]) -> Option<Pattern> {
        let last = *pieces.last()?;
        let block = |chunk: &[WordPair]| std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(last));
        Some(Pattern { blocks: pieces.chunks(BLOCK).map(block).collect() })
    }

    /// The same pattern, but with the whole word that holds dtype and device as it is in `imp` now.
    fn with_device(&self, imp: usize, layout: Layout) -> Pattern {
        let mut out = self.clone();
        for piece in out.blocks.iter_mut().flatten() {
            for i in 0..2 {
                if piece.offset + WORD * i == layout.dtype & !7 {
                    (piece.want[i], piece.mask[i]) = (load(piece.offset + WORD * i + imp), !0);
                }
            }
        }
        out
    }

    #[inline]
    fn holds(&self, imp: usize) -> bool {
        self.blocks.iter().all(|block| holds(block, imp))
    }

    /// Whether a tensor fits the pattern.  The caller has checked that its class is a tensor class.
    #[inline]
    pub fn fits(&self, t: Obj, layout: Layout) -> bool {
        let imp = load(t.id() + layout.handle);
        imp != 0 && self.holds(imp)
    }
}

/// A tensor seen before.  `metadata` is the address of its autograd metadata, or 0.  With metadata, a flag there states
/// that a gradient is required.
#[derive(Clone, Copy)]
struct RecordedTensor {
    object: usize,
    imp: usize,
    metadata: usize,
    tag: u32,
}

/// Tensors of one class and pattern.
struct Group {
    class: usize,
    pattern: Pattern,
    tensors: Vec<RecordedTensor>,
}

/// Tensors seen before.  They may be compared only while other checks prove the objects alive.
pub struct RecordedTensors {
    handle: usize,
    autograd: Autograd,
    groups: Vec<Group>,
    by_pattern: HashMap<(usize, Pattern), usize>,
}

impl RecordedTensors {
    /// None if the probe did not find how a tensor stores that it requires a gradient.
    pub fn new(layout: Layout) -> Option<RecordedTensors> {
        let autograd = layout.autograd?;
        Some(RecordedTensors { handle: layout.handle, autograd, groups: vec![], by_pattern: HashMap::new() })
    }

    /// Adds a tensor, which fits `pattern` if its guard holds.  `device`: compare the device too.  `tag` names the
    /// tensor.  False if words do not state whether the tensor requires a gradient.
    pub fn add(&mut self, t: Obj, pattern: &Pattern, layout: Layout, device: bool, tag: u32) -> bool {
        let imp: usize = load(t.id() + self.handle);
        if imp == 0 || Some(self.autograd) != layout.autograd {
            return false;
        }
        let metadata: usize = load(imp + self.autograd.pointer);
        // Without the flag, a grad function may still require a gradient.
        if metadata != 0 && load::<u8>(metadata + self.autograd.flag) != 1 {
            return false;
        }
        let pattern = if device { pattern.with_device(imp, layout) } else { pattern.clone() };
        let class = t.class().id();
        let next = self.groups.len();
        let group = *self.by_pattern.entry((class, pattern.clone())).or_insert(next);
        if group == next {
            self.groups.push(Group { class, pattern, tensors: vec![] });
        }
        self.groups[group].tensors.push(RecordedTensor { object: t.id(), imp, metadata, tag });
        true
    }

    pub fn len(&self) -> usize {
        self.groups.iter().map(|g| g.tensors.len()).sum()
    }

    /// The tag of the first tensor that has changed.
    pub fn first_changed(&self) -> Option<u32> {
        self.groups.iter().find_map(|group| match group.pattern.blocks[..] {
            [only] => self.first_in(group, |imp| holds(&only, imp)),
            _ => self.first_in(group, |imp| group.pattern.holds(imp)),
        })
    }

    #[inline]
    fn first_in(&self, group: &Group, holds: impl Fn(usize) -> bool) -> Option<u32> {
        let (handle, Autograd { pointer, flag }) = (self.handle, self.autograd);
        let class_at = offset_of!(pyo3::ffi::PyObject, ob_type);
        // Each address is read after the word that proves it valid: TensorImpl first, then metadata.
        let same = |seen: &RecordedTensor| {
            load::<usize>(seen.object + class_at) == group.class
                && load::<usize>(seen.object + handle) == seen.imp
                && load::<usize>(seen.imp + pointer) == seen.metadata
                && holds(seen.imp)
                && (seen.metadata == 0 || load::<u8>(seen.metadata + flag) == 1)
        };
        let ahead = group.tensors.iter().skip(AHEAD);
        for (seen, ahead) in group.tensors.iter().zip(ahead) {
            prefetch([ahead.object + handle, ahead.imp + pointer, ahead.imp + 2 * 64, ahead.metadata + flag]);
            if !same(seen) {
                return Some(seen.tag);
            }
        }
        let rest = &group.tensors[group.tensors.len().saturating_sub(AHEAD)..];
        rest.iter().find(|seen| !same(seen)).map(|seen| seen.tag)
    }
}

/// Prefetches the cache lines at these addresses, which need not be valid.
#[inline]
fn prefetch(addresses: [usize; 4]) {
    #[cfg(target_arch = "x86_64")]
    for at in addresses {
        // SAFETY: a hint.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at as *const i8) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = addresses;
}
