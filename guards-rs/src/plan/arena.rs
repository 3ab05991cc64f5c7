//! Memory planner for buffers that only kernels use: offsets in one block of memory for each call and device.
//!
//! In: for each buffer its size, and the steps of its first and last use.  Out: an offset for each buffer, and the size
//! of the block.  Buffers that are alive at the same time do not overlap.

use smallvec::SmallVec;

use super::size::{Dims, Numbers};
use crate::ffi::aten::{extent, Device, Failure, Outcome, Tensor};

pub const ALIGN: usize = 64;
/// Largest size of an object: the range of pointer differences.
pub const MOST: usize = isize::MAX as usize;

/// The scratch block of a call on one device.  `device` is None for the host.
#[derive(Debug)]
pub struct Block {
    pub device: Option<Device>,
    /// For the host: the size of the static part.
    pub bytes: usize,
    /// torch's code of the dtype `uint8`.
    pub byte: i32,
}

impl Block {
    /// The address of a call's block on a device.  Allocated by torch, which reuses freed memory in stream order.  The
    /// block lives as long as the tensor that is added to `held`.
    pub fn take(&self, held: &mut SmallVec<[Tensor; 1]>) -> Outcome<usize> {
        let (Some(device), 1..) = (self.device, self.bytes) else { return Ok(0) };
        let tensor = Tensor::empty_strided(&[self.bytes as i64], &[1], self.byte, device)?;
        let address = tensor.handle().data_ptr()?;
        held.push(tensor);
        Ok(address)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

/// A part of the host's block whose size is known only in a call.
#[derive(Debug, PartialEq)]
pub struct DynamicBlock {
    pub shape: Dims,
    pub stride: Dims,
    pub itemsize: i64,
}

impl DynamicBlock {
    /// Size in bytes, rounded up to a multiple of `ALIGN`.
    pub fn bytes(&self, env: &[i64], room: &mut (Numbers, Numbers)) -> Outcome<usize> {
        let sizes = self.shape.resolve(env, &mut room.0)?;
        let strides = self.stride.resolve(env, &mut room.1)?;
        let bytes = extent(sizes.iter().copied().zip(strides.iter().copied()), self.itemsize)?;
        whole(bytes)
    }
}

/// Rounds bytes up to a multiple of `ALIGN`.
fn whole(bytes: usize) -> Outcome<usize> {
    let whole = bytes.checked_next_multiple_of(ALIGN).filter(|n| *n <= MOST);
    whole.ok_or_else(|| Failure(format!("a buffer of {bytes} bytes: the limit is {MOST}")))
}

/// The room of each buffer.  A room is reused after its last user if it has the same form, hence the same size in every
/// call.
pub fn share(lives: Vec<(DynamicBlock, usize, usize)>) -> (Vec<usize>, Vec<DynamicBlock>) {
    let (mut rooms, mut until, mut chosen): (Vec<DynamicBlock>, Vec<usize>, Vec<usize>) = Default::default();
    for (room, first, last) in lives {
        let free = (0..rooms.len()).find(|&i| until[i] < first && rooms[i] == room);
        let at = free.unwrap_or(rooms.len());
        if at == rooms.len() {
            rooms.push(room);
            until.push(last);
        }
        until[at] = last;
        chosen.push(at);
    }
    (chosen, rooms)
}

/// Best fit, largest buffers first.  Each buffer goes into the smallest gap between the buffers alive at the same time.
pub fn place(lives: &[Lifetime]) -> Outcome<(Vec<usize>, usize)> {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    let mut offsets = vec![0; lives.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(lives.len());
    let mut total = 0;
    let sizes = lives.iter().map(|life| whole(life.bytes)).collect::<Outcome<Vec<usize>>>()?;
    for &i in &order {
        let size = sizes[i];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| lives[j].first <= lives[i].last && lives[i].first <= lives[j].last)
            .map(|&j| (offsets[j], offsets[j] + sizes[j]))
            .collect();
        taken.sort_unstable();
        offsets[i] = smallest_gap(&taken, size);
        let end = add(offsets[i], size)?;
        total = total.max(end);
        placed.push(i);
    }
    Ok((offsets, total))
}

/// Adds the bytes of two neighbours.
pub fn add(a: usize, b: usize) -> Outcome<usize> {
    let sum = a.checked_add(b).filter(|n| *n <= MOST);
    sum.ok_or_else(|| Failure(format!("the buffers of a call take {a} and {b} bytes: the limit is {MOST}")))
}

fn smallest_gap(taken: &[(usize, usize)], size: usize) -> usize {
    let mut end = 0;
    let mut best: Option<(usize, usize)> = None;
    for &(start, stop) in taken {
        if start >= end + size && best.is_none_or(|(gap, _)| start - end < gap) {
            best = Some((start - end, end));
        }
        end = end.max(stop);
    }
    best.map_or(end, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_time_do_not_overlap() {
        let mut seed = 1u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let lives: Vec<Lifetime> = (0..200)
            .map(|_| {
                let first = next(100) as usize;
                Lifetime { bytes: next(5000) as usize, first, last: first + next(20) as usize }
            })
            .collect();
        let Ok((offsets, total)) = place(&lives) else { panic!("it fits") };
        for (i, a) in lives.iter().enumerate() {
            assert!(offsets[i] % ALIGN == 0 && offsets[i] + a.bytes <= total);
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart || a.bytes == 0 || b.bytes == 0, "{i} {j}");
            }
        }
        let sum: usize = lives.iter().map(|l| l.bytes).sum();
        assert!(total < sum / 2, "{total} of {sum}");
    }

    fn room(shape: &[i64], stride: &[i64]) -> DynamicBlock {
        let dims = |values: &[i64]| Dims::new(values.iter().map(|v| super::super::size::Size::Const(*v)).collect());
        DynamicBlock { shape: dims(shape), stride: dims(stride), itemsize: 4 }
    }

    fn bytes(shape: &[i64], stride: &[i64]) -> Option<usize> {
        room(shape, stride).bytes(&[], &mut Default::default()).ok()
    }

    #[test]
    fn a_room_is_as_large_as_its_last_element_reaches() {
        assert_eq!(bytes(&[3, 5], &[5, 1]), Some(64));
        assert_eq!(bytes(&[17], &[1]), Some(128));
        assert_eq!(bytes(&[17], &[0]), Some(64)); // one element, viewed 17 times
        assert_eq!(bytes(&[0, 1 << 62], &[1 << 62, 1]), Some(0));
        assert_eq!(bytes(&[], &[]), Some(64));
    }

    #[test]
    fn rooms_at_the_end_of_the_range_are_failures() {
        for n in [i64::MAX, (i64::MAX - 63) / 4 + 1, 1 << 61] {
            assert_eq!(bytes(&[n], &[1]), None, "{n}");
        }
        assert_eq!(bytes(&[2, 2], &[i64::MAX, 1]), None);
        assert_eq!(bytes(&[1 << 40, 1 << 40], &[1 << 40, 1]), None);
        let most = (i64::MAX - 63) / 4 / 16 * 16;
        assert_eq!(bytes(&[most], &[1]), Some(most as usize * 4));
    }

    #[test]
    fn sums_of_bytes_stay_below_the_largest_object() {
        assert_eq!(add(64, 128).ok(), Some(192));
        assert_eq!(add(MOST - 1, 1).ok(), Some(MOST));
        let failure = add(MOST, 64).err().map(|Failure(text)| text);
        assert!(failure.is_some_and(|text| text.contains(&MOST.to_string())));
        assert!(add(usize::MAX, usize::MAX).is_err());
    }

    #[test]
    fn buffers_that_do_not_fit_together_are_a_failure() {
        let life = |bytes: usize, first: usize| Lifetime { bytes, first, last: first };
        assert!(place(&[life(MOST / 2, 0), life(MOST / 2, 1)]).is_ok_and(|(offsets, _)| offsets == [0, 0]));
        let together = [Lifetime { bytes: MOST - 100, first: 0, last: 1 }, Lifetime { bytes: 200, first: 0, last: 1 }];
        assert!(place(&together).is_err());
        assert!(place(&[life(usize::MAX, 0)]).is_err());
    }

    #[test]
    fn the_smallest_gap_that_is_wide_enough_is_taken() {
        let taken = [(0, 64), (192, 256), (320, 384), (1024, 1088)];
        assert_eq!(smallest_gap(&taken, 64), 256);
        assert_eq!(smallest_gap(&taken, 128), 64);
        assert_eq!(smallest_gap(&taken, 512), 384);
        assert_eq!(smallest_gap(&taken, 2048), 1088);
        assert_eq!(smallest_gap(&[], 64), 0);
        assert_eq!(smallest_gap(&[(0, 256), (64, 128)], 64), 256); // one inside the other
    }

    #[test]
    fn rooms_are_shared_by_buffers_of_one_form_whose_lives_do_not_meet() {
        let lives = vec![
            (room(&[8], &[1]), 0, 2),
            (room(&[8], &[1]), 2, 4), // overlaps the first
            (room(&[8], &[1]), 3, 5),
            (room(&[9], &[1]), 6, 7), // another form
            (room(&[8], &[1]), 6, 8),
        ];
        let (chosen, rooms) = share(lives);
        assert_eq!(chosen, [0, 1, 0, 2, 0]);
        assert_eq!(rooms.len(), 3);
    }
}
