//! The only table of element types on this side.

/// Element type of a tensor, numbered as in `onnx.TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are ONNX's own
pub enum DataType {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8E4M3FN = 17,
    Float8E4M3FNUZ = 18,
    Float8E5M2 = 19,
    Float8E5M2FNUZ = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4E2M1 = 23,
    Float8E8M0 = 24,
    Uint2 = 25,
    Int2 = 26,
}

/// `(type, torch's name, bits of an element, DLPack code, first opset with a Constant of it)`
type Row = (DataType, &'static str, u8, Option<u8>, u8);

use DataType as D;

#[rustfmt::skip]
const TABLE: [Row; 25] = [
    (D::Float,          "float32",          32,  Some(2),  21),
    (D::Uint8,          "uint8",            8,   Some(1),  21),
    (D::Int8,           "int8",             8,   Some(0),  21),
    (D::Uint16,         "uint16",           16,  Some(1),  21),
    (D::Int16,          "int16",            16,  Some(0),  21),
    (D::Int32,          "int32",            32,  Some(0),  21),
    (D::Int64,          "int64",            64,  Some(0),  21),
    (D::Bool,           "bool",             8,   Some(6),  21),
    (D::Float16,        "float16",          16,  Some(2),  21),
    (D::Double,         "float64",          64,  Some(2),  21),
    (D::Uint32,         "uint32",           32,  Some(1),  21),
    (D::Uint64,         "uint64",           64,  Some(1),  21),
    (D::Complex64,      "complex64",        64,  Some(5),  21),
    (D::Complex128,     "complex128",       128, Some(5),  21),
    (D::Bfloat16,       "bfloat16",         16,  Some(4),  21),
    (D::Float8E4M3FN,   "float8_e4m3fn",    8,   Some(10), 21),
    (D::Float8E4M3FNUZ, "float8_e4m3fnuz",  8,   Some(11), 21),
    (D::Float8E5M2,     "float8_e5m2",      8,   Some(12), 21),
    (D::Float8E5M2FNUZ, "float8_e5m2fnuz",  8,   Some(13), 21),
    (D::Uint4,          "uint4",            4,   None,     21),
    (D::Int4,           "int4",             4,   None,     21),
    (D::Float4E2M1,     "float4_e2m1fn_x2", 4,   Some(17), 23),
    (D::Float8E8M0,     "float8_e8m0fnu",   8,   Some(14), 24),
    (D::Uint2,          "uint2",            2,   None,     25),
    (D::Int2,           "int2",             2,   None,     25),
];

impl DataType {
    fn row(self) -> &'static Row {
        // The table lists every variant (a test walks it), so the fallback is never taken.
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&TABLE[0])
    }

    /// The type with this number in `onnx.TensorProto.DataType`; `None` for strings and unknowns.
    #[must_use]
    pub fn from_code(code: u64) -> Option<Self> {
        TABLE.iter().map(|row| row.0).find(|t| *t as u64 == code)
    }

    /// The type that DLPack describes by `code` and `bits`.
    #[must_use]
    pub fn from_dlpack(code: u8, bits: u8) -> Option<Self> {
        TABLE.iter().find(|row| row.3 == Some(code) && row.2 == bits).map(|row| row.0)
    }

    /// DLPack's code; `None` where torch has no such tensor.
    #[must_use]
    pub fn dlpack_code(self) -> Option<u8> {
        self.row().3
    }

    /// torch's name of the type, without `torch.`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bits of one element.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.row().2
    }

    /// Least opset whose Constant accepts the type.
    #[must_use]
    pub fn opset(self) -> u8 {
        self.row().4
    }

    /// Bytes of `elements` elements, packed; `None` on overflow.
    #[must_use]
    pub fn bytes(self, elements: u64) -> Option<u64> {
        elements.checked_mul(u64::from(self.bits())).map(|bits| bits.div_ceil(8))
    }

    /// Whether onnxruntime has an `Identity` for it: one that it lacks makes a file unloadable.
    pub(crate) fn has_identity(self) -> bool {
        self.bits() >= 8 && self != Self::Float8E8M0
    }

    /// Whether onnxruntime has a `Reshape` for it.
    pub(crate) fn has_reshape(self) -> bool {
        self.bits() >= 8
            && !matches!(
                self,
                Self::Float8E4M3FN
                    | Self::Float8E4M3FNUZ
                    | Self::Float8E5M2
                    | Self::Float8E5M2FNUZ
                    | Self::Float8E8M0
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_dlpack_round_trip() {
        for (dtype, _, bits, code, _) in TABLE {
            assert_eq!(DataType::from_code(dtype as u64), Some(dtype));
            if let Some(code) = code {
                assert_eq!(DataType::from_dlpack(code, bits), Some(dtype));
            }
        }
        assert_eq!(DataType::from_code(8), None);
        assert_eq!(DataType::from_code(27), None);
    }

    #[test]
    fn packed_sizes() {
        assert_eq!(DataType::Float.bytes(3), Some(12));
        assert_eq!(DataType::Float4E2M1.bytes(3), Some(2));
        assert_eq!(DataType::Int2.bytes(5), Some(2));
        assert_eq!(DataType::Double.bytes(u64::MAX), None);
    }
}
