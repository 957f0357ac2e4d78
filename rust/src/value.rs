//! What a constant of a model is once it is read.

use crate::source::Shared;
use crate::DataType;

/// A tensor of a dump; its bytes are a view of the mapping where there is one.
pub struct Tensor {
    /// Element type.
    pub dtype: DataType,
    /// Sizes, in elements.
    pub dims: Vec<i64>,
    pub(crate) data: Shared,
    /// Where its message stands, without tag and length.
    pub(crate) message: (u64, u64),
}

impl Tensor {
    /// Bytes of memory that it takes for itself; 0 for a view of the file.
    #[must_use]
    pub fn copied(&self) -> usize {
        if self.data.is_copy() {
            self.data.bytes().len()
        } else {
            0
        }
    }

    /// The elements as they lie in the file: little-endian, row-major, packed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Element type and sizes as torch counts them, and the bytes; types that torch lacks are
    /// unpacked to one byte an element.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub(crate) fn for_torch(self) -> (DataType, Vec<i64>, Shared) {
        let Self { dtype, mut dims, data, .. } = self;
        let count = usize::try_from(dims.iter().product::<i64>()).unwrap_or(0);
        let bits = dtype.bits();
        if dtype == DataType::Float4E2M1 {
            if let Some(last) = dims.last_mut().filter(|last| **last % 2 == 0) {
                *last /= 2;
                return (dtype, dims, data);
            }
        }
        if bits >= 8 {
            return (dtype, dims, data);
        }
        let signed = matches!(dtype, DataType::Int4 | DataType::Int2);
        let per_byte = usize::from(8 / bits);
        let unpacked: Vec<u8> = (0..count)
            .map(|i| {
                #[allow(clippy::cast_possible_truncation)] // below 8
                let shift = (i % per_byte) as u8 * bits;
                let value = data.bytes()[i / per_byte] >> shift << (8 - bits);
                if signed {
                    value.cast_signed().wrapping_shr((8 - bits).into()).cast_unsigned()
                } else {
                    value >> (8 - bits)
                }
            })
            .collect();
        let dtype = if signed { DataType::Int8 } else { DataType::Uint8 };
        (dtype, dims, Shared::owned(&unpacked))
    }
}

/// The value of a constant graph output.
pub enum Output {
    /// One tensor.
    Tensor(Tensor),
    /// A sequence of tensors.
    Sequence(Vec<Tensor>),
    /// A tensor of strings, flat.
    Strings(Vec<Vec<u8>>),
}
