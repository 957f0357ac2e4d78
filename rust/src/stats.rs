//! Statistics of a tensor in one pass.

use std::fmt::Write as _;

use crate::{DataType, TensorRef};

/// What is kept of a tensor whose bytes are not.
///
/// `min`, `max`, `mean`, `std` (of the population) and `l2` are over the finite elements, and
/// absent where there is none. A complex tensor counts as its real and imaginary parts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[allow(missing_docs)] // the names say it
pub struct Stats {
    pub count: u64,
    pub zeros: u64,
    pub nan: u64,
    pub pos_inf: u64,
    pub neg_inf: u64,
    pub finite: u64,
    pub min: f64,
    pub max: f64,
    pub mean: f64,
    /// Sum of squared differences from the mean.
    m2: f64,
}

/// Elements that are converted at a time: 16 KiB of doubles stay in the first cache.
const BLOCK: usize = 2048;

impl Stats {
    /// The statistics of all elements of `tensor`.
    #[must_use]
    pub fn of(tensor: &TensorRef) -> Self {
        let item = usize::from(tensor.dtype().bits()).div_ceil(8);
        let mut stats = Self::default();
        let mut values = Vec::with_capacity(BLOCK * 2);
        let mut block = |bytes: &[u8]| {
            values.clear();
            decode(tensor.dtype(), bytes, &mut values);
            stats.add_block(&values);
        };
        if let Some(bytes) = tensor.contiguous() {
            bytes.chunks(BLOCK * item).for_each(&mut block);
        } else {
            let mut gather = tensor.gather();
            let mut piece = vec![0; BLOCK * item];
            loop {
                let n = gather.fill(&mut piece);
                if n == 0 {
                    break;
                }
                block(&piece[..n]);
            }
        }
        stats
    }

    /// Standard deviation of the finite elements (population).
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    pub fn std(&self) -> f64 {
        (self.m2 / self.finite as f64).sqrt()
    }

    /// Euclidean norm of the finite elements.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    pub fn l2(&self) -> f64 {
        (self.m2 + self.finite as f64 * self.mean * self.mean).sqrt()
    }

    /// Two passes over a block that is in cache, then Chan's formula to merge: neither cancels as
    /// the sum of squares does. (Chan, Golub, `LeVeque` 1979, "Updating formulae and a pairwise
    /// algorithm for computing sample variances".)
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    fn add_block(&mut self, values: &[f64]) {
        let (mut n, mut sum) = (0u64, 0.0);
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for &v in values {
            if v.is_finite() {
                n += 1;
                sum += v;
                min = min.min(v);
                max = max.max(v);
                self.zeros += u64::from(v == 0.0);
            } else if v.is_nan() {
                self.nan += 1;
            } else if v > 0.0 {
                self.pos_inf += 1;
            } else {
                self.neg_inf += 1;
            }
        }
        self.count += values.len() as u64;
        if n == 0 {
            return;
        }
        let mean = sum / n as f64;
        let m2: f64 =
            values.iter().filter(|v| v.is_finite()).map(|v| (v - mean) * (v - mean)).sum();
        if self.finite == 0 {
            (self.min, self.max, self.mean, self.m2, self.finite) = (min, max, mean, m2, n);
            return;
        }
        let (a, b) = (self.finite as f64, n as f64);
        let delta = mean - self.mean;
        self.mean += delta * b / (a + b);
        self.m2 += m2 + delta * delta * a * b / (a + b);
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        self.finite += n;
    }

    /// A JSON object.
    pub(crate) fn put_json(&self, out: &mut String) {
        let _ = write!(
            out,
            r#"{{"count":{},"zeros":{},"nan":{},"pos_inf":{},"neg_inf":{}"#,
            self.count, self.zeros, self.nan, self.pos_inf, self.neg_inf
        );
        if self.finite > 0 {
            let numbers = [
                ("min", self.min),
                ("max", self.max),
                ("mean", self.mean),
                ("std", self.std()),
                ("l2", self.l2()),
            ];
            for (name, value) in numbers {
                // A sum may overflow where every element is finite; JSON has no word for it.
                if value.is_finite() {
                    let _ = write!(out, r#","{name}":{value:?}"#);
                }
            }
        }
        out.push('}');
    }
}

macro_rules! convert {
    ($bytes:expr, $out:expr, $type:ty) => {
        $out.extend(
            $bytes
                .as_chunks::<{ size_of::<$type>() }>()
                .0
                .iter()
                .map(|b| <$type>::from_le_bytes(*b) as f64),
        )
    };
}

#[allow(clippy::cast_precision_loss, clippy::cast_lossless)] // statistics are in doubles
fn decode(dtype: DataType, bytes: &[u8], out: &mut Vec<f64>) {
    use DataType as D;
    let halves = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    match dtype {
        D::Float | D::Complex64 => convert!(bytes, out, f32),
        D::Double | D::Complex128 => convert!(bytes, out, f64),
        D::Uint8 | D::Bool => convert!(bytes, out, u8),
        D::Int8 => convert!(bytes, out, i8),
        D::Uint16 => convert!(bytes, out, u16),
        D::Int16 => convert!(bytes, out, i16),
        D::Uint32 => convert!(bytes, out, u32),
        D::Int32 => convert!(bytes, out, i32),
        D::Uint64 => convert!(bytes, out, u64),
        D::Int64 => convert!(bytes, out, i64),
        D::Float16 => out.extend(halves.map(|h| minifloat(h.into(), 5, 10))),
        D::Bfloat16 => {
            out.extend(halves.map(|h| f64::from(f32::from_bits(u32::from(h) << 16))));
        }
        D::Float8E5M2 => out.extend(bytes.iter().map(|&b| minifloat(b.into(), 5, 2))),
        D::Float8E4M3FN => out.extend(bytes.iter().map(|&b| {
            if b & 0x7f == 0x7f {
                f64::NAN
            } else {
                finite_minifloat(b.into(), 4, 3, 7)
            }
        })),
        D::Float8E4M3FNUZ => out.extend(bytes.iter().map(|&b| unsigned_zero(b, 4, 3, 8))),
        D::Float8E5M2FNUZ => out.extend(bytes.iter().map(|&b| unsigned_zero(b, 5, 2, 16))),
        D::Float8E8M0 => out.extend(bytes.iter().map(|&b| {
            if b == 0xff {
                f64::NAN
            } else {
                (f64::from(b) - 127.0).exp2()
            }
        })),
        D::Float4E2M1 => out.extend(bytes.iter().flat_map(|&b| {
            [b & 15, b >> 4].map(|nibble| finite_minifloat(nibble.into(), 2, 1, 1))
        })),
        D::Uint4 => out.extend(bytes.iter().flat_map(|&b| [b & 15, b >> 4].map(f64::from))),
        D::Int4 => out.extend(bytes.iter().flat_map(|&b| {
            #[allow(clippy::cast_possible_wrap)]
            [(b as i8) << 4 >> 4, (b as i8) >> 4].map(f64::from)
        })),
        // torch has no such tensors: they reach this crate from other tools' files only.
        D::Uint2 | D::Int2 => {}
    }
}

/// A small IEEE-like float: an exponent of all ones means infinity or NaN.
fn minifloat(bits: u32, exponent_width: u32, mantissa_width: u32) -> f64 {
    let all_ones = (1 << exponent_width) - 1;
    if bits >> mantissa_width & all_ones != all_ones {
        return finite_minifloat(bits, exponent_width, mantissa_width, all_ones >> 1);
    }
    if bits & ((1 << mantissa_width) - 1) != 0 {
        f64::NAN
    } else if bits >> (mantissa_width + exponent_width) & 1 == 1 {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    }
}

fn finite_minifloat(code: u32, exponent_width: u32, mantissa_width: u32, bias: u32) -> f64 {
    let mantissa = f64::from(code & ((1 << mantissa_width) - 1)) / f64::from(1 << mantissa_width);
    let exponent = code >> mantissa_width & ((1 << exponent_width) - 1);
    let magnitude = if exponent == 0 {
        mantissa * (1.0 - f64::from(bias)).exp2()
    } else {
        (1.0 + mantissa) * (f64::from(exponent) - f64::from(bias)).exp2()
    };
    if code >> (mantissa_width + exponent_width) & 1 == 1 {
        -magnitude
    } else {
        magnitude
    }
}

/// The FNUZ types: minus zero is the only NaN.
fn unsigned_zero(code: u8, exponent_width: u32, mantissa_width: u32, bias: u32) -> f64 {
    if code == 0x80 {
        f64::NAN
    } else {
        finite_minifloat(code.into(), exponent_width, mantissa_width, bias)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, clippy::cast_precision_loss)]
mod tests {
    use super::*;

    fn stats(values: &[f32]) -> Stats {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = [i64::try_from(values.len()).unwrap()];
        // SAFETY: the bytes outlive the call.
        #[allow(unsafe_code)]
        let tensor = unsafe { TensorRef::from_bytes(&bytes, DataType::Float, &shape) }.unwrap();
        Stats::of(&tensor)
    }

    #[test]
    fn counts_what_is_not_finite() {
        let s = stats(&[0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!((s.count, s.zeros, s.nan, s.pos_inf, s.neg_inf, s.finite), (6, 2, 1, 1, 1, 3));
        assert_eq!((s.min, s.max), (0.0, 1.0));
        assert!((s.mean - 1.0 / 3.0).abs() < 1e-15);
    }

    #[test]
    fn a_large_mean_does_not_hide_the_deviation() {
        let values: Vec<f32> = (0..10_000).map(|i| 1e6 + (i % 2) as f32).collect();
        let s = stats(&values);
        assert!((s.mean - 1_000_000.5).abs() < 1e-9);
        assert!((s.std() - 0.5).abs() < 1e-9);
        assert!((s.l2() / (s.mean * 100.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_has_no_numbers() {
        let mut out = String::new();
        stats(&[]).put_json(&mut out);
        assert_eq!(out, r#"{"count":0,"zeros":0,"nan":0,"pos_inf":0,"neg_inf":0}"#);
    }

    #[test]
    fn small_floats() {
        let one = |dtype, bytes: &[u8]| {
            let mut out = Vec::new();
            decode(dtype, bytes, &mut out);
            out
        };
        assert_eq!(one(DataType::Float16, &[0, 0x3c, 0, 0xfc]), [1.0, f64::NEG_INFINITY]);
        assert_eq!(one(DataType::Float16, &[1, 0]), [2f64.powi(-24)]);
        assert_eq!(one(DataType::Bfloat16, &[0x80, 0x3f]), [1.0]);
        assert_eq!(one(DataType::Float8E4M3FN, &[0x7e, 0x38]), [448.0, 1.0]);
        assert_eq!(one(DataType::Float8E5M2, &[0x7b, 0x7c]), [57344.0, f64::INFINITY]);
        assert_eq!(one(DataType::Float8E4M3FNUZ, &[0x7f]), [240.0]);
        assert_eq!(one(DataType::Float8E5M2FNUZ, &[0x7f]), [57344.0]);
        assert_eq!(one(DataType::Float8E8M0, &[127, 128]), [1.0, 2.0]);
        assert_eq!(one(DataType::Float4E2M1, &[0x7f]), [-6.0, 6.0]);
        assert_eq!(one(DataType::Int4, &[0x8f]), [-1.0, -8.0]);
    }
}
