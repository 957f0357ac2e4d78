//! Reading the logical elements of a tensor from memory, row-major, without a full copy.

use crate::parse::MOST_RANK;
use crate::DataType;

/// A tensor as it lies in memory: what DLPack tells of it.
///
/// The memory must stay valid and unchanged while the writer uses it; whoever makes one promises
/// that (see [`TensorRef::new`]).
#[derive(Debug, Clone)]
pub struct TensorRef {
    data: *const u8,
    dtype: DataType,
    shape: Vec<i64>,
    /// In items; empty when contiguous.
    strides: Vec<i64>,
    item: usize,
    nbytes: usize,
}

// SAFETY: a plain pointer to memory that the maker promises to keep valid; it is only read.
#[allow(unsafe_code)]
unsafe impl Send for TensorRef {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for TensorRef {}

impl TensorRef {
    /// Describes a tensor in memory. `strides` are in items; `None` means row-major.
    ///
    /// For `Float4E2M1` an item is one byte that holds two elements, and `shape` counts items.
    /// Returns `None` if a size is negative, there are more than 64, the byte count overflows, or
    /// data is null with elements to read.
    ///
    /// # Safety
    /// `data` must point to memory in which every item that shape and strides reach is readable
    /// until the value is dropped.
    #[must_use]
    #[allow(unsafe_code)]
    pub unsafe fn new(
        data: *const u8,
        dtype: DataType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Option<Self> {
        if shape.len() > MOST_RANK {
            return None;
        }
        let item = usize::from(dtype.bits()).div_ceil(8);
        let mut items = 1usize;
        for &size in shape {
            items = items.checked_mul(usize::try_from(size).ok()?)?;
        }
        let nbytes = items.checked_mul(item)?;
        if data.is_null() && nbytes > 0 {
            return None;
        }
        let strides = match strides {
            Some(strides) if !is_row_major(shape, strides) => strides.to_vec(),
            _ => Vec::new(),
        };
        Some(Self { data, dtype, shape: shape.to_vec(), strides, item, nbytes })
    }

    /// Describes contiguous bytes.
    ///
    /// # Safety
    /// `bytes` outlive the value and its clones.
    #[must_use]
    #[allow(unsafe_code)]
    pub unsafe fn from_bytes(bytes: &[u8], dtype: DataType, shape: &[i64]) -> Option<Self> {
        // SAFETY: contiguous, and the size is checked right after.
        let tensor = unsafe { Self::new(bytes.as_ptr(), dtype, shape, None) }?;
        (tensor.nbytes == bytes.len()).then_some(tensor)
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Bytes of the logical elements.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// The shape as torch tells it.
    #[must_use]
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Strides in items, where the elements do not lie row-major.
    #[must_use]
    pub fn strides(&self) -> Option<&[i64]> {
        (!self.strides.is_empty()).then_some(&self.strides)
    }

    /// The shape as ONNX counts: in elements, where torch packs two of them into an item.
    pub(crate) fn dims(&self) -> Vec<i64> {
        let mut dims = self.shape.clone();
        if self.dtype == DataType::Float4E2M1 {
            match dims.last_mut() {
                Some(last) => *last *= 2,
                None => dims.push(2),
            }
        }
        dims
    }

    /// The bytes, if they lie in memory as they will in the file.
    #[allow(unsafe_code)]
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        if !self.strides.is_empty() {
            return None;
        }
        if self.nbytes == 0 {
            return Some(&[]);
        }
        // SAFETY: the maker promised that `nbytes` are readable here.
        Some(unsafe { std::slice::from_raw_parts(self.data, self.nbytes) })
    }

    /// A cursor over the logical bytes.
    pub(crate) fn gather(&self) -> Gather<'_> {
        Gather::new(self)
    }
}

fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 && stride != expected {
            return false;
        }
        expected *= size;
    }
    true
}

/// Copies the logical elements of a strided tensor, a piece at a time.
pub(crate) struct Gather<'a> {
    tensor: &'a TensorRef,
    /// Collapsed dimensions but the last: `(size, stride in bytes, index)`.
    outer: Vec<(usize, isize, usize)>,
    /// Items and stride in bytes of the last dimension, and how many of the row were copied.
    inner: (usize, isize, usize),
    /// Byte offset of the current row.
    row: isize,
    left: usize,
}

impl<'a> Gather<'a> {
    fn new(tensor: &'a TensorRef) -> Self {
        let item = tensor.item;
        // Neighbouring dimensions that lie behind each other in memory are one.
        let mut dims: Vec<(usize, isize)> = Vec::new();
        let strides = if tensor.strides.is_empty() {
            row_major(&tensor.shape)
        } else {
            tensor.strides.clone()
        };
        for (&size, &stride) in tensor.shape.iter().zip(&strides) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked in `new`
            #[allow(clippy::cast_possible_wrap)]
            let (size, stride) = (size as usize, stride as isize * item as isize);
            if size == 1 {
                continue;
            }
            match dims.last_mut() {
                #[allow(clippy::cast_possible_wrap)]
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => dims.push((size, stride)),
            }
        }
        #[allow(clippy::cast_possible_wrap)]
        let inner = dims.pop().unwrap_or((1, item as isize));
        Self {
            tensor,
            outer: dims.into_iter().map(|(n, s)| (n, s, 0)).collect(),
            inner: (inner.0, inner.1, 0),
            row: 0,
            left: tensor.nbytes,
        }
    }

    /// Goes to one of the logical bytes, `offset` being a multiple of the item size.
    pub(crate) fn seek(&mut self, offset: usize) {
        self.left = self.tensor.nbytes - offset;
        let mut index = offset / self.tensor.item;
        self.inner.2 = index % self.inner.0;
        index /= self.inner.0;
        self.row = 0;
        for (size, stride, at) in self.outer.iter_mut().rev() {
            *at = index % *size;
            index /= *size;
            #[allow(clippy::cast_possible_wrap)]
            {
                self.row += *at as isize * *stride;
            }
        }
    }

    /// Fills `out` (a multiple of the item size) as far as there are elements; returns the bytes.
    pub(crate) fn fill(&mut self, out: &mut [u8]) -> usize {
        let item = self.tensor.item;
        let mut filled = 0;
        while self.left > 0 && out.len() - filled >= item {
            let (size, stride, done) = self.inner;
            let take = (size - done).min((out.len() - filled) / item);
            let bytes = take * item;
            self.copy_run(done, take, stride, &mut out[filled..filled + bytes]);
            filled += bytes;
            self.left -= bytes;
            self.inner.2 += take;
            if self.inner.2 == size {
                self.inner.2 = 0;
                self.next_row();
            }
        }
        filled
    }

    #[allow(unsafe_code)]
    fn copy_run(&self, from: usize, count: usize, stride: isize, out: &mut [u8]) {
        #[allow(clippy::cast_possible_wrap)]
        let offset = self.row + from as isize * stride;
        // SAFETY: shape and strides stay within the memory that the maker promised; `out` has room
        // for `count` items.
        unsafe {
            let source = self.tensor.data.offset(offset);
            let item = self.tensor.item;
            #[allow(clippy::cast_possible_wrap)]
            if stride == item as isize {
                std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len());
                return;
            }
            match item {
                1 => copy_items::<1>(source, stride, count, out),
                2 => copy_items::<2>(source, stride, count, out),
                4 => copy_items::<4>(source, stride, count, out),
                8 => copy_items::<8>(source, stride, count, out),
                _ => copy_items::<16>(source, stride, count, out),
            }
        }
    }

    fn next_row(&mut self) {
        for (size, stride, index) in self.outer.iter_mut().rev() {
            *index += 1;
            self.row += *stride;
            if *index < *size {
                return;
            }
            #[allow(clippy::cast_possible_wrap)]
            let back = *stride * *size as isize;
            self.row -= back;
            *index = 0;
        }
    }
}

/// # Safety
/// `count` items of `N` bytes, `stride` bytes apart, are readable from `source`, and `out` has room.
#[allow(unsafe_code)]
unsafe fn copy_items<const N: usize>(
    source: *const u8,
    stride: isize,
    count: usize,
    out: &mut [u8],
) {
    let mut from = source;
    for to in out.chunks_exact_mut(N).take(count) {
        // SAFETY: promised by the caller.
        unsafe {
            to.copy_from_slice(&from.cast::<[u8; N]>().read_unaligned());
            from = from.wrapping_offset(stride);
        }
    }
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    fn gathered(tensor: &TensorRef, chunk: usize) -> Vec<u8> {
        let (mut all, mut gather, mut piece) = (Vec::new(), tensor.gather(), vec![0; chunk]);
        loop {
            let n = gather.fill(&mut piece);
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&piece[..n]);
        }
    }

    fn expected(data: &[u16], shape: &[i64], strides: &[i64]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut index = vec![0i64; shape.len()];
        let total: i64 = shape.iter().product();
        for _ in 0..total {
            let at: i64 = index.iter().zip(strides).map(|(i, s)| i * s).sum();
            out.extend_from_slice(&data[usize::try_from(at).unwrap()].to_le_bytes());
            for d in (0..shape.len()).rev() {
                index[d] += 1;
                if index[d] < shape[d] {
                    break;
                }
                index[d] = 0;
            }
        }
        out
    }

    #[test]
    fn strided_tensors_come_out_row_major() {
        let data: Vec<u16> = (0..720).collect();
        let cases: [(&[i64], &[i64]); 8] = [
            (&[3, 4], &[1, 3]),
            (&[2, 3, 4], &[12, 1, 3]),
            (&[2, 3, 4], &[0, 0, 1]),
            (&[5], &[7]),
            (&[4, 5], &[0, 0]),
            (&[2, 1, 3, 5], &[45, 900, 5, 1]),
            (&[2, 2, 3, 2], &[1, 6, 2, 60]),
            (&[], &[]),
        ];
        for (shape, strides) in cases {
            let tensor = unsafe {
                TensorRef::new(data.as_ptr().cast(), DataType::Uint16, shape, Some(strides))
            }
            .unwrap();
            for chunk in [2, 6, 64, 4096] {
                assert_eq!(gathered(&tensor, chunk), expected(&data, shape, strides), "{shape:?}");
            }
        }
    }

    #[test]
    fn contiguous_is_seen_whatever_the_strides_of_ones() {
        let data = [0u8; 64];
        let new = |shape: &[i64], strides: &[i64]| unsafe {
            TensorRef::new(data.as_ptr(), DataType::Float, shape, Some(strides)).unwrap()
        };
        assert!(new(&[4, 1, 2], &[2, 99, 1]).contiguous().is_some());
        assert!(new(&[0, 3], &[7, 7]).contiguous().is_some());
        assert!(new(&[2, 4], &[1, 2]).contiguous().is_none());
    }

    #[test]
    fn impossible_tensors_are_refused() {
        let null = std::ptr::null();
        unsafe {
            assert!(TensorRef::new(null, DataType::Float, &[1], None).is_none());
            assert!(TensorRef::new(null, DataType::Float, &[0], None).is_some());
            assert!(TensorRef::new(null, DataType::Float, &[-1], None).is_none());
            assert!(TensorRef::new(null, DataType::Float, &[i64::MAX, 4], None).is_none());
        }
        // SAFETY: nothing is kept of the bytes.
        #[allow(unsafe_code)]
        let tensor = unsafe { TensorRef::from_bytes(&[0; 3], DataType::Float, &[1]) };
        assert!(tensor.is_none());
    }
}
