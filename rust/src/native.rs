//! Records read as `layout` writes them: the same fields in the same order.
//!
//! What differs from that by a byte is not of this module. Each function gives `None` then, and the
//! reader goes by the names, as for any other model.

use crate::layout::{field, HINT_FIELD};
use crate::parse::{json_value_len, Field, TensorHeader, MOST_RANK};
use crate::value::Tensor;
use crate::wire::{get_varint, FILLER, FIXED64, LEN, VARINT};
use crate::DataType;

/// A piece of the file, from a field's start on.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    rest: &'a [u8],
    /// Where `rest` begins in the file.
    at: u64,
    /// Whether it ended before what was looked for did.
    pub(crate) short: bool,
}

impl<'a> Piece<'a> {
    pub(crate) fn new(rest: &'a [u8], at: u64) -> Self {
        Self { rest, at, short: false }
    }

    #[inline]
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let taken = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = taken else {
            self.short = true;
            return None;
        };
        (self.rest, self.at) = (rest, self.at + len);
        Some(taken)
    }

    #[inline]
    fn peek(&mut self) -> Option<(u64, usize)> {
        let found = get_varint(self.rest);
        self.short |= found.is_none() && self.rest.len() < 10;
        found
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let (value, n) = self.peek()?;
        self.take(n as u64)?;
        Some(value)
    }

    #[inline]
    fn next_is(&mut self, number: u32, wire: u8) -> Option<bool> {
        Some(self.peek()?.0 == u64::from(number) << 3 | u64::from(wire))
    }

    #[inline]
    fn tag(&mut self, number: u32, wire: u8) -> Option<()> {
        (self.varint()? == u64::from(number) << 3 | u64::from(wire)).then_some(())
    }

    #[inline]
    fn uint(&mut self, number: u32) -> Option<u64> {
        self.tag(number, VARINT)?;
        self.varint()
    }

    /// Where the message that begins here ends.
    #[inline]
    fn open(&mut self, number: u32) -> Option<u64> {
        self.tag(number, LEN)?;
        let len = self.varint()?;
        self.at.checked_add(len)
    }

    #[inline]
    fn bytes(&mut self, number: u32) -> Option<&'a [u8]> {
        let end = self.open(number)?;
        self.take(end - self.at)
    }

    fn exactly(&mut self, number: u32, expected: &[u8]) -> Option<()> {
        (self.bytes(number)? == expected).then_some(())
    }

    fn ends(&self, end: u64) -> Option<()> {
        (self.at == end).then_some(())
    }

    fn entry(&mut self, number: u32, key: Option<&str>) -> Option<(&'a str, &'a [u8])> {
        let end = self.open(number)?;
        let found = std::str::from_utf8(self.bytes(field::ENTRY_KEY)?).ok()?;
        let value = self.bytes(field::ENTRY_VALUE)?;
        self.ends(end)?;
        (key.is_none_or(|key| key == found)).then_some((found, value))
    }
}

/// A record as it is read; its buffers serve for the next one.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) key: String,
    pub(crate) tree: String,
    pub(crate) tensors: Vec<Tensor>,
    names: Vec<u8>,
    dims: Vec<i64>,
    /// Where the name and the sizes of each output end.
    ends: Vec<(usize, usize)>,
}

impl Found {
    pub(crate) fn clear(&mut self) {
        self.key.clear();
        self.tree.clear();
        self.tensors.clear();
        self.names.clear();
        self.dims.clear();
        self.ends.clear();
    }

    /// The number of the record's values.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Name and sizes of a value.
    pub(crate) fn output(&self, i: usize) -> (&[u8], &[i64]) {
        let start = if i == 0 { (0, 0) } else { self.ends[i - 1] };
        let end = self.ends[i];
        (&self.names[start.0..end.0], &self.dims[start.1..end.1])
    }

    fn read_output(&mut self, piece: &mut Piece) -> Option<()> {
        let end = piece.open(field::GRAPH_OUTPUT)?;
        self.names.extend_from_slice(piece.bytes(field::VALUE_NAME)?);
        let ends = [piece.open(field::VALUE_TYPE)?, piece.open(field::TYPE_TENSOR)?];
        piece.uint(field::TENSOR_TYPE_ELEM)?;
        let shape = piece.open(field::TENSOR_TYPE_SHAPE)?;
        if ends != [end; 2] || shape != end {
            return None;
        }
        let mut rank = 0;
        while piece.at < end && rank < MOST_RANK {
            let dim_end = piece.open(field::SHAPE_DIM)?;
            self.dims.push(i64::try_from(piece.uint(field::DIM_VALUE)?).ok()?);
            piece.ends(dim_end)?;
            rank += 1;
        }
        piece.ends(end)?;
        self.ends.push((self.names.len(), self.dims.len()));
        Some(())
    }
}

/// Reads a record's key, tree and outputs; gives where the first of their nodes begins.
pub(crate) fn record(piece: &mut Piece, found: &mut Found) -> Option<u64> {
    found.clear();
    let (key, json) = piece.entry(field::GRAPH_METADATA, None)?;
    let json = json.strip_prefix(br#"{"n":"#)?;
    let digits = json.iter().position(|byte| *byte == b',')?;
    let count: usize = std::str::from_utf8(&json[..digits]).ok()?.parse().ok()?;
    let rest = json[digits..].strip_prefix(br#","tree":"#)?;
    found.key.push_str(key);
    found.tree.push_str(std::str::from_utf8(&rest[..json_value_len(rest)?]).ok()?);
    for _ in 0..count {
        found.read_output(piece)?;
    }
    Some(piece.at)
}

/// What gives a value.
pub(crate) enum Node {
    Constant(TensorHeader<'static>),
    /// The tensor called `original`, whose node begins at `hint`.
    Alias {
        original: Vec<u8>,
        hint: u64,
    },
}

/// The node that gives the value called `name`, and where it ends.
pub(crate) fn node(piece: &mut Piece, name: &[u8]) -> Option<(Node, u64)> {
    let start = *piece;
    if let Some(found) = constant(piece, name) {
        return Some((Node::Constant(found.0), found.1));
    }
    let short = piece.short;
    *piece = start;
    if let Some(found) = alias(piece, name) {
        return Some(found);
    }
    piece.short |= short;
    None
}

/// The Constant called `name`, and where its node ends.
pub(crate) fn constant(piece: &mut Piece, name: &[u8]) -> Option<(TensorHeader<'static>, u64)> {
    let node = piece.open(field::GRAPH_NODE)?;
    piece.exactly(field::NODE_OUTPUT, name)?;
    piece.exactly(field::NODE_OP_TYPE, b"Constant")?;
    let attribute = piece.open(field::NODE_ATTRIBUTE)?;
    piece.exactly(field::ATTRIBUTE_NAME, b"value")?;
    piece.uint(field::ATTRIBUTE_TYPE).filter(|kind| *kind == 4)?;
    let end = piece.open(field::ATTRIBUTE_TENSOR)?;
    if [node, attribute] != [end; 2] {
        return None;
    }
    let mut header = TensorHeader::new(piece.at, end);
    // Room for the strides of a view.
    header.dims.reserve(8);
    while piece.next_is(field::TENSOR_DIMS, VARINT)? && header.dims.len() < MOST_RANK {
        header.dims.push(i64::try_from(piece.uint(field::TENSOR_DIMS)?).ok()?);
    }
    header.code = piece.uint(field::TENSOR_DATA_TYPE)?;
    header.dtype = DataType::from_code(header.code);
    if piece.next_is(field::TENSOR_METADATA, LEN)? {
        piece.bytes(field::TENSOR_METADATA)?;
    }
    if piece.next_is(field::TENSOR_EXTERNAL_DATA, LEN)? {
        let mut text = |key| {
            let (_, value) = piece.entry(field::TENSOR_EXTERNAL_DATA, Some(key))?;
            std::str::from_utf8(value).ok()
        };
        let location = text("location")?.to_owned();
        let (offset, length) = (text("offset")?.parse().ok()?, text("length")?.parse().ok()?);
        piece.uint(field::TENSOR_DATA_LOCATION).filter(|place| *place == 1)?;
        piece.ends(end)?;
        header.location = Some((location, offset, Some(length)));
    } else {
        if piece.next_is(FILLER, LEN)? {
            piece.bytes(FILLER)?;
        }
        if piece.open(field::TENSOR_RAW_DATA)? != end {
            return None;
        }
        let number = field::TENSOR_RAW_DATA;
        header.raw = Some(Field { number, wire: LEN, value: 0, start: piece.at, end });
    }
    Some((header, end))
}

/// An Identity, or a Reshape behind the Constant of its shape, and where it ends.
fn alias(piece: &mut Piece, name: &[u8]) -> Option<(Node, u64)> {
    let is_shape = |found: &[u8]| found.strip_suffix(b"//shape") == Some(name);
    let mut end = piece.open(field::GRAPH_NODE)?;
    let reshape = piece.next_is(field::NODE_OUTPUT, LEN)?;
    if reshape {
        piece.bytes(field::NODE_OUTPUT).filter(|found| is_shape(found))?;
        piece.take(end.checked_sub(piece.at)?)?;
        end = piece.open(field::GRAPH_NODE)?;
    }
    let original = piece.bytes(field::NODE_INPUT)?.to_vec();
    if reshape {
        piece.bytes(field::NODE_INPUT).filter(|found| is_shape(found))?;
    }
    piece.exactly(field::NODE_OUTPUT, name)?;
    piece.exactly(field::NODE_OP_TYPE, if reshape { b"Reshape" } else { b"Identity" })?;
    piece.tag(HINT_FIELD, FIXED64)?;
    let hint = u64::from_le_bytes(*piece.take(8)?.first_chunk()?);
    piece.ends(end)?;
    Some((Node::Alias { original, hint }, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::{Part, MOST_HOPS};
    use crate::value::Output;
    use crate::{Leaf, Mode, Options, Record, TensorRef, Writer};

    /// What the writer writes is read in place, whatever it is, and is what the names say.
    #[test]
    fn what_is_written_is_read_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take((3 << 20) + 64).collect();
        let mut leaves = Vec::new();
        for (i, shape) in
            [&[][..], &[7], &[0], &[2, 3, 4], &[1; 9], &[4, 6], &[3 << 18]].iter().enumerate()
        {
            for (j, dtype) in [DataType::Float, DataType::Int8, DataType::Int16].iter().enumerate()
            {
                let count: usize = shape.iter().product::<i64>().unsigned_abs().try_into().unwrap();
                let len = count * usize::from(dtype.bits() / 8);
                // SAFETY: the bytes live to the end of the test.
                #[allow(unsafe_code)]
                let tensor = unsafe { TensorRef::from_bytes(&bytes[i..i + len], *dtype, shape) };
                let tensor = tensor.unwrap();
                let path = format!("{i}{j}{}", "x".repeat(300 * i));
                leaves.push(Leaf { path, tensor, info: r#""device":"cpu""#.into() });
            }
        }
        let long = format!("[{}]", vec![r#""a]}","#; 40_000].concat());
        let mut count = 0;
        for external in [false, true] {
            let path = folder.path().join(format!("{external}.onnx"));
            let options = Options { external, ..Options::default() };
            let mut writer = Writer::create(&path, "{}", options).unwrap();
            let keys: Vec<_> = (0..12).map(|i| format!("a.{i}/{i}/O")).collect();
            for (i, key) in keys.iter().enumerate() {
                // The second time all are aliases, of the record before or of another shape.
                let mut leaves = leaves[..leaves.len() * (i % 3) / 2].to_vec();
                if i > 6 {
                    leaves.reverse();
                }
                let tree = if i == 5 { &long } else { r#"{"list":[]}"# };
                let record = Record { key, prefix: key, tree, info: "", leaves: &leaves };
                assert_eq!(writer.append(&record).unwrap(), None);
            }
            writer.close().unwrap();
            for mode in [Mode::Private, Mode::ReadOnly, Mode::Pread] {
                let (part, mut found) = (Part::open(&path, mode).unwrap(), Found::default());
                for (entry, key) in part.index.iter().zip(&keys) {
                    assert!(part.read_in_place(*entry, &mut found).unwrap(), "{mode:?} {key}");
                    assert_eq!(&found.key, key);
                    for (i, tensor) in found.tensors.iter().enumerate() {
                        let Output::Tensor(named) =
                            part.resolve(found.output(i).0, MOST_HOPS).unwrap()
                        else {
                            panic!("expected a tensor")
                        };
                        assert_eq!((tensor.dtype, &tensor.dims), (named.dtype, &named.dims));
                        assert_eq!(tensor.bytes(), named.bytes());
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 500, "{count}");
    }
}
