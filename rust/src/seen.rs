//! Which bytes are in the file already.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use twox_hash::XxHash3_128;

use crate::hash::{Hasher, LONG};
use crate::{DataType, TensorRef};

/// Digest of a tensor's logical bytes: XXH3-128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u128);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        if bytes.len() < LONG {
            return Self(XxHash3_128::oneshot(bytes));
        }
        let mut hasher = Hasher::new();
        hasher.write(bytes);
        Self(hasher.finish())
    }

    pub(crate) const DIGITS: u64 = size_of::<Hex>() as u64;

    /// As it stands in the file.
    pub(crate) fn hex(self) -> String {
        format!("{:032x}", self.0)
    }

    pub(crate) fn from_hex(hex: &Hex) -> Option<Self> {
        let text = std::str::from_utf8(hex).ok()?;
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// What the map is keyed by: the same bytes of another type are another tensor.
    #[allow(clippy::cast_possible_truncation)] // 64 of 128 bits; the rest is compared on a hit
    fn key(self, dtype: DataType) -> u64 {
        (self.0 as u64) ^ (dtype as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// A digest as it stands in the file: read only when it is compared.
pub(crate) type Hex = [u8; 32];

/// A few of a tensor's logical bytes, hashed: tensors with different sketches differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sketch(u64);

impl Sketch {
    #[allow(clippy::cast_possible_truncation)] // it need not tell all apart
    pub(crate) fn of(tensor: &TensorRef) -> Self {
        // So many cache lines, evenly spread.
        const LINES: usize = 64;
        const LINE: usize = 64;
        let mut lines = [0; LINES * LINE];
        let nbytes = tensor.nbytes();
        let step = (nbytes / LINES).next_multiple_of(LINE).max(LINE);
        let mut gather = tensor.gather();
        for (line, offset) in lines.chunks_mut(LINE).zip((0..nbytes).step_by(step)) {
            gather.seek(offset);
            gather.fill(line);
        }
        Self(XxHash3_128::oneshot_with_seed(nbytes as u64, &lines) as u64)
    }
}

/// A tensor that was stored under its own name.
#[derive(Debug, Clone)]
pub(crate) struct Original {
    pub(crate) digest: Digest,
    pub(crate) dtype: DataType,
    pub(crate) dims: Vec<i64>,
    pub(crate) name: String,
    /// Where its node begins in the file.
    pub(crate) offset: u64,
}

/// The keys are digests: hashing them again gains nothing.
#[derive(Default)]
pub(crate) struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed")
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Shard = HashMap<u64, u64, BuildHasherDefault<Identity>>;

/// Shards bound what is allocated while one of them grows: the map may hold millions of tensors.
const SHARDS: usize = 64;
/// Nearly every alias is of something stored moments ago, whose name is at hand here; that of
/// an older one is read from the file.
const RECENT: usize = 4096;

/// One bit is set for each sketch: what finds it clear is new, and there are never more.
const SKETCHES: usize = 1 << 20;

pub(crate) struct Seen {
    shards: Vec<Shard>,
    recent: Vec<Option<Original>>,
    sketches: Vec<u64>,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            recent: vec![None; RECENT],
            sketches: vec![0; SKETCHES / 64],
        }
    }

    /// Notes a large tensor; true if no other with these bytes was noted.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn note(&mut self, Sketch(sketch): Sketch) -> bool {
        let word = &mut self.sketches[(sketch >> 6) as usize % (SKETCHES / 64)];
        let bit = 1 << (sketch % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// The original of these bytes. `read` fetches one that is not at hand by its offset.
    pub(crate) fn find(
        &mut self,
        digest: Digest,
        dtype: DataType,
        read: impl FnOnce(u64) -> Option<Original>,
    ) -> Option<&Original> {
        let key = digest.key(dtype);
        let offset = *self.shards[shard(key)].get(&key)?;
        let slot = &mut self.recent[slot(key)];
        if slot.as_ref().is_none_or(|original| original.offset != offset) {
            *slot = Some(read(offset)?);
        }
        slot.as_ref().filter(|original| original.digest == digest && original.dtype == dtype)
    }

    pub(crate) fn insert(&mut self, original: Original) {
        let key = original.digest.key(original.dtype);
        self.shards[shard(key)].entry(key).or_insert(original.offset);
        self.recent[slot(key)] = Some(original);
    }
}

#[allow(clippy::cast_possible_truncation)]
fn shard(key: u64) -> usize {
    (key >> 40) as usize % SHARDS
}

#[allow(clippy::cast_possible_truncation)]
fn slot(key: u64) -> usize {
    (key >> 20) as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(bytes: &[u8], shape: &[usize], strides: Option<&[usize]>) -> Sketch {
        let signed = |sizes: &[usize]| sizes.iter().map(|n| i64::try_from(*n).unwrap()).collect();
        let (shape, strides): (Vec<i64>, Option<Vec<i64>>) = (signed(shape), strides.map(signed));
        // SAFETY: the shape covers the bytes, which live until the end of the call.
        #[allow(unsafe_code)]
        let tensor =
            unsafe { TensorRef::new(bytes.as_ptr(), DataType::Uint8, &shape, strides.as_deref()) };
        Sketch::of(&tensor.unwrap())
    }

    #[test]
    fn the_same_bytes_have_the_same_sketch() {
        for (rows, columns) in [(1usize, 1usize), (3, 21), (64, 64), (1000, 1049)] {
            let n = rows * columns;
            let bytes: Vec<u8> = (0..n).map(|i| (i * 7919 / 32).to_le_bytes()[0]).collect();
            let turned: Vec<u8> = (0..n).map(|i| bytes[i % rows * columns + i / rows]).collect();
            let of_bytes = sketch(&bytes, &[n], None);
            assert_eq!(sketch(&turned, &[rows, columns], Some(&[1, rows])), of_bytes);
            let mut other = bytes.clone();
            other[0] ^= 1;
            assert_ne!(sketch(&other, &[n], None), of_bytes);
            assert_ne!(sketch(&bytes[1..], &[n - 1], None), of_bytes);
        }
    }

    #[test]
    fn what_is_new_is_told_once() {
        let mut seen = Seen::new();
        let sketches: Vec<Sketch> = (0..200u8).map(|i| sketch(&[i], &[1], None)).collect();
        assert!(sketches.iter().filter(|sketch| seen.note(**sketch)).count() > 195);
        assert!(!sketches.iter().any(|sketch| seen.note(*sketch)));
    }

    fn original(bytes: &[u8], offset: u64) -> Original {
        Original {
            digest: Digest::of(bytes),
            dtype: DataType::Uint8,
            dims: vec![1],
            name: format!("t{offset}"),
            offset,
        }
    }

    #[test]
    fn the_first_is_the_original() {
        let mut seen = Seen::new();
        seen.insert(original(b"a", 1));
        seen.insert(original(b"b", 2));
        let digest = Digest::of(b"a");
        let unread = |_| -> Option<Original> { panic!("at hand") };
        assert_eq!(seen.find(digest, DataType::Uint8, unread).unwrap().name, "t1");
        assert!(seen.find(digest, DataType::Int8, unread).is_none());
        assert!(seen.find(Digest::of(b"c"), DataType::Uint8, unread).is_none());
    }

    #[test]
    fn what_is_not_at_hand_is_read_and_compared() {
        let mut seen = Seen::new();
        seen.insert(original(b"a", 1));
        seen.recent.fill(None);
        let digest = Digest::of(b"a");
        let found = seen.find(digest, DataType::Uint8, |offset| Some(original(b"a", offset)));
        assert_eq!(found.unwrap().offset, 1);
        seen.recent.fill(None);
        assert!(seen.find(digest, DataType::Uint8, |o| Some(original(b"other", o))).is_none());
    }
}
