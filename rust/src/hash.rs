//! XXH3-128 of long inputs, seed 0: the loop that all bytes of a dump go through.
//!
//! `twox-hash` does the same without prefetching, at 0.6 times the speed on what comes from memory;
//! it hashes the short inputs. Algorithm: the xxHash specification, "XXH3 algorithm",
//! <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>.

const STRIPE: usize = 64;
/// After so many bytes the accumulators are scrambled.
const BLOCK: usize = 1024;
/// How far ahead memory is asked for.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 4096;

const PRIME32_1: u64 = 0x9E37_79B1;
const PRIME32_2: u64 = 0x85EB_CA77;
const PRIME32_3: u64 = 0xC2B2_AE3D;
const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;

#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The shortest input that [`Hasher`] is right for; shorter ones have formulas of their own.
const SHORTEST: u64 = 241;
/// The shortest that it is worth while for.
pub(crate) const LONG: usize = 4096;

type Accumulators = [u64; 8];

/// Hashes at least [`SHORTEST`] bytes, in pieces.
pub(crate) struct Hasher {
    accumulators: Accumulators,
    /// The last stripe of what went into the accumulators, then what did not yet: up to a block,
    /// and never nothing once there was something, as the end is treated otherwise.
    held: Vec<u8>,
    total: u64,
}

impl Hasher {
    pub(crate) fn new() -> Self {
        let accumulators = [
            PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
        ];
        let mut held = Vec::with_capacity(STRIPE + BLOCK);
        held.resize(STRIPE, 0);
        Self { accumulators, held, total: 0 }
    }

    pub(crate) fn write(&mut self, mut piece: &[u8]) {
        self.total += piece.len() as u64;
        if self.held.len() > STRIPE {
            let (first, rest) = piece.split_at(piece.len().min(STRIPE + BLOCK - self.held.len()));
            self.held.extend_from_slice(first);
            piece = rest;
            if piece.is_empty() {
                return;
            }
            mix(&mut self.accumulators, &self.held[STRIPE..]);
            self.held.drain(..BLOCK);
        }
        let (blocks, rest) = piece.split_at(piece.len().saturating_sub(1) / BLOCK * BLOCK);
        mix(&mut self.accumulators, blocks);
        if !blocks.is_empty() {
            self.held.copy_from_slice(&blocks[blocks.len() - STRIPE..]);
        }
        self.held.extend_from_slice(rest);
    }

    pub(crate) fn finish(mut self) -> u128 {
        debug_assert!(self.total >= SHORTEST);
        let rest = &self.held[STRIPE..];
        let whole = rest.len().saturating_sub(1) / STRIPE;
        for (i, stripe) in rest.chunks_exact(STRIPE).take(whole).enumerate() {
            accumulate(&mut self.accumulators, stripe, &SECRET[8 * i..]);
        }
        let last = &self.held[self.held.len() - STRIPE..];
        accumulate(&mut self.accumulators, last, &SECRET[SECRET.len() - STRIPE - 7..]);
        let low = merge(&self.accumulators, &SECRET[11..], self.total.wrapping_mul(PRIME64_1));
        let start = !self.total.wrapping_mul(PRIME64_2);
        let high = merge(&self.accumulators, &SECRET[SECRET.len() - STRIPE - 11..], start);
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Takes whole blocks in, with the widest registers there are.
fn mix(accumulators: &mut Accumulators, blocks: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function needs.
        #[allow(unsafe_code)]
        unsafe {
            mix_avx2(accumulators, blocks);
        }
        return;
    }
    mix_blocks(accumulators, blocks);
}

/// The same again, for the compiler to make vectors of 32 bytes of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn mix_avx2(accumulators: &mut Accumulators, blocks: &[u8]) {
    mix_blocks(accumulators, blocks);
}

#[inline(always)]
#[allow(clippy::inline_always)] // it must be compiled with the features of its caller
fn mix_blocks(accumulators: &mut Accumulators, blocks: &[u8]) {
    let mut sums = *accumulators;
    for block in blocks.chunks_exact(BLOCK) {
        for (i, stripe) in block.chunks_exact(STRIPE).enumerate() {
            prefetch(stripe);
            accumulate(&mut sums, stripe, &SECRET[8 * i..]);
        }
        for (i, sum) in sums.iter_mut().enumerate() {
            let key = word(&SECRET[SECRET.len() - STRIPE..], i);
            *sum = (*sum ^ *sum >> 47 ^ key).wrapping_mul(PRIME32_1);
        }
    }
    *accumulators = sums;
}

/// Asks for what comes a while after `stripe`; past the end of all memory that does nothing.
#[inline(always)]
#[allow(clippy::inline_always)]
fn prefetch(stripe: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: a hint, which reads nothing and never faults.
        #[allow(unsafe_code)]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(stripe.as_ptr().wrapping_add(AHEAD).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stripe;
}

#[inline(always)]
#[allow(clippy::inline_always)]
fn accumulate(sums: &mut Accumulators, stripe: &[u8], secret: &[u8]) {
    let (stripe, secret) = (&stripe[..STRIPE], &secret[..STRIPE]);
    for (i, sum) in sums.iter_mut().enumerate() {
        let key = word(stripe, i) ^ word(secret, i);
        let product = (key & 0xFFFF_FFFF) * (key >> 32);
        *sum = sum.wrapping_add(word(stripe, i ^ 1)).wrapping_add(product);
    }
}

/// The `i`-th eight bytes.
#[inline(always)]
#[allow(clippy::inline_always)]
fn word(bytes: &[u8], i: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
    u64::from_le_bytes(word)
}

fn merge(sums: &Accumulators, secret: &[u8], start: u64) -> u64 {
    let folded = (0..4).fold(start, |result, i| {
        let left = u128::from(sums[2 * i] ^ word(secret, 2 * i));
        let product = left * u128::from(sums[2 * i + 1] ^ word(secret, 2 * i + 1));
        #[allow(clippy::cast_possible_truncation)]
        result.wrapping_add(product as u64 ^ (product >> 64) as u64)
    });
    let mixed = (folded ^ folded >> 37).wrapping_mul(0x1656_6791_9E37_79F9);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_128;

    use super::*;

    #[test]
    fn it_is_xxh3() {
        let bytes: Vec<u8> =
            (0..1u32 << 18).flat_map(|i| (i.wrapping_mul(i)).to_le_bytes()).collect();
        let shortest = usize::try_from(SHORTEST).unwrap();
        let lengths =
            (shortest..2 * BLOCK + 2 * STRIPE).chain([4095, 4096, 4097, 65_536, bytes.len()]);
        for n in lengths {
            let bytes = &bytes[bytes.len() - n..];
            let expected = XxHash3_128::oneshot(bytes);
            for piece in [n, BLOCK, 1000, STRIPE, 100] {
                let mut hasher = Hasher::new();
                bytes.chunks(piece).for_each(|piece| hasher.write(piece));
                assert_eq!(hasher.finish(), expected, "{n} bytes in pieces of {piece}");
            }
        }
    }

    #[test]
    fn the_plain_loop_does_what_the_wide_one_does() {
        let bytes: Vec<u8> = (0..64 * BLOCK).map(|i| (i * i / 7).to_le_bytes()[0]).collect();
        let (mut wide, mut plain) = ([1; 8], [1; 8]);
        mix(&mut wide, &bytes);
        mix_blocks(&mut plain, &bytes);
        assert_eq!(wide, plain);
    }
}
