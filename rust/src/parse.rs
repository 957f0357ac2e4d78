//! Protobuf as it is read: fields by their lengths, every number doubted.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::layout::{field, CHECKSUM, HINT_FIELD};
use crate::seen::{Digest, Hex, Original};
use crate::source::Source;
use crate::wire::{get_varint, FIXED32, FIXED64, LEN, VARINT};
use crate::{DataType, Error, Result};

/// The most bytes a name may have, and the most dimensions a tensor.
pub(crate) const MOST_NAME: usize = 64 << 10;
pub(crate) const MOST_RANK: usize = 64;

/// The most bytes of a tag and a length or number.
const MOST_TAG: usize = 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) number: u32,
    pub(crate) wire: u8,
    /// The number itself for varints and fixed widths, else the length.
    pub(crate) value: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

pub(crate) struct Cursor<'a> {
    path: &'a Path,
    source: &'a Source,
    /// All of the source, where it is in memory.
    memory: Option<&'a [u8]>,
    pub(crate) position: u64,
    pub(crate) end: u64,
}

/// The field that `bytes` begin with, which stand at `at`; else how far in, what was expected.
fn parse_field(bytes: &[u8], at: u64) -> std::result::Result<Field, (u64, String)> {
    let Some((tag, n)) = get_varint(bytes) else {
        return Err((0, "expected a field, found no tag".into()));
    };
    let Ok(number @ 1..=0x1fff_ffff) = u32::try_from(tag >> 3) else {
        return Err((0, format!("expected a field, found number {}", tag >> 3)));
    };
    let (rest, n) = (&bytes[n..], n as u64);
    let field = |value, skipped: usize, len: u64| {
        let start = at + n + skipped as u64;
        let wire = (tag & 7) as u8;
        Ok(Field { number, wire, value, start, end: start.saturating_add(len) })
    };
    match (tag & 7) as u8 {
        VARINT => match get_varint(rest) {
            Some((value, m)) => field(value, 0, m as u64),
            None => Err((n, "expected a varint".into())),
        },
        LEN => match get_varint(rest) {
            Some((length, m)) => field(length, m, length),
            None => Err((n, "expected a length".into())),
        },
        FIXED64 => match rest.first_chunk() {
            Some(b) => field(u64::from_le_bytes(*b), 0, 8),
            None => Err((n, "expected eight bytes".into())),
        },
        FIXED32 => match rest.first_chunk() {
            Some(b) => field(u32::from_le_bytes(*b).into(), 0, 4),
            None => Err((n, "expected four bytes".into())),
        },
        other => Err((0, format!("expected a field, found wire type {other}"))),
    }
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(path: &'a Path, source: &'a Source, position: u64, end: u64) -> Self {
        Self { path, source, memory: source.memory(), position, end }
    }

    pub(crate) fn error<T>(&self, offset: u64, message: impl Into<String>) -> Result<T> {
        Err(Error::Format { path: self.path.to_owned(), offset, message: message.into() })
    }

    /// The next field, `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Field>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let at = self.position;
        let left = usize::try_from(self.end - at).unwrap_or(usize::MAX).min(MOST_TAG);
        let parsed = match self.memory {
            Some(memory) => usize::try_from(at)
                .ok()
                .and_then(|at| memory.get(at..))
                .map(|rest| parse_field(&rest[..left.min(rest.len())], at)),
            None => self.source.with(at, left, |bytes| parse_field(bytes, at)),
        };
        let field = match parsed {
            Some(Ok(field)) => field,
            Some(Err((n, message))) => return self.error(at + n, message),
            None => return self.error(at, "cannot be read"),
        };
        if field.end > self.end {
            let (number, length) = (field.number, field.value);
            let left = self.end.saturating_sub(field.start);
            return self.error(at, format!("field {number} has {length} bytes, {left} are left"));
        }
        self.position = field.end;
        Ok(Some(field))
    }

    pub(crate) fn inside(&self, field: Field) -> Cursor<'a> {
        Cursor { position: field.start, end: field.end, ..*self }
    }

    pub(crate) fn bytes(&self, field: Field) -> Result<Cow<'a, [u8]>> {
        match self.source.read(field.start, field.end - field.start) {
            Some(bytes) if field.wire == LEN => Ok(bytes),
            _ => self.error(field.start, format!("expected bytes in field {}", field.number)),
        }
    }

    pub(crate) fn name(&self, field: Field) -> Result<Cow<'a, [u8]>> {
        if field.end - field.start > MOST_NAME as u64 {
            let n = field.end - field.start;
            return self.error(field.start, format!("a name of {n} bytes, expected {MOST_NAME}"));
        }
        self.bytes(field)
    }

    pub(crate) fn text(&self, field: Field) -> Result<Cow<'a, str>> {
        let text = match self.bytes(field)? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).ok(),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).ok(),
        };
        match text {
            Some(text) => Ok(text),
            None => self.error(field.start, "expected UTF-8"),
        }
    }

    /// The key and value of a `StringStringEntryProto`.
    pub(crate) fn entry(&self, field: Field) -> Result<(Field, Field)> {
        let mut cursor = self.inside(field);
        let empty = Field { number: 0, wire: LEN, value: 0, start: field.end, end: field.end };
        let (mut key, mut value) = (empty, empty);
        while let Some(f) = cursor.next()? {
            match (f.number, f.wire) {
                (field::ENTRY_KEY, LEN) => key = f,
                (field::ENTRY_VALUE, LEN) => value = f,
                _ => {}
            }
        }
        Ok((key, value))
    }
}

/// What a node says, as far as constants go.
pub(crate) struct Node<'a> {
    pub(crate) op: Cow<'a, [u8]>,
    pub(crate) inputs: Vec<Cow<'a, [u8]>>,
    pub(crate) output: Cow<'a, [u8]>,
    pub(crate) tensor: Option<Field>,
    pub(crate) hint: Option<u64>,
}

/// Where the bytes of a `TensorProto` are.
pub(crate) struct TensorHeader<'a> {
    pub(crate) name: Cow<'a, [u8]>,
    pub(crate) dtype: Option<DataType>,
    pub(crate) code: u64,
    pub(crate) dims: Vec<i64>,
    pub(crate) raw: Option<Field>,
    pub(crate) typed: Vec<Field>,
    pub(crate) strings: Vec<Field>,
    pub(crate) location: Option<(String, u64, Option<u64>)>,
    pub(crate) at: u64,
    pub(crate) end: u64,
}

impl TensorHeader<'_> {
    pub(crate) fn new(at: u64, end: u64) -> Self {
        Self {
            name: Cow::default(),
            dtype: None,
            code: 0,
            dims: Vec::new(),
            raw: None,
            typed: Vec::new(),
            strings: Vec::new(),
            location: None,
            at,
            end,
        }
    }
}

pub(crate) fn parse_node<'a>(outer: &Cursor<'a>, node: Field) -> Result<Node<'a>> {
    let mut cursor = outer.inside(node);
    let mut out = Node {
        op: Cow::default(),
        inputs: Vec::new(),
        output: Cow::default(),
        tensor: None,
        hint: None,
    };
    let mut outputs = 0;
    while let Some(f) = cursor.next()? {
        match (f.number, f.wire) {
            (field::NODE_INPUT, LEN) => out.inputs.push(cursor.name(f)?),
            (field::NODE_OUTPUT, LEN) => {
                outputs += 1;
                if outputs == 1 {
                    out.output = cursor.name(f)?;
                }
            }
            (field::NODE_OP_TYPE, LEN) => out.op = cursor.name(f)?,
            (field::NODE_DOMAIN, LEN) if !matches!(&*cursor.name(f)?, b"" | b"ai.onnx") => {
                out.op = Cow::default();
            }
            (field::NODE_ATTRIBUTE, LEN) => {
                if let Some(tensor) = parse_value_attribute(&cursor, f)? {
                    out.tensor = Some(tensor);
                }
            }
            (HINT_FIELD, FIXED64) => out.hint = Some(f.value),
            _ => {}
        }
        if f.number == field::NODE_DOMAIN && out.op.is_empty() {
            out.op = Cow::Borrowed(b"?");
        }
    }
    Ok(out)
}

/// The tensor of an attribute called `value`.
pub(crate) fn parse_value_attribute(outer: &Cursor, attribute: Field) -> Result<Option<Field>> {
    let mut cursor = outer.inside(attribute);
    let (mut named, mut tensor) = (false, None);
    while let Some(f) = cursor.next()? {
        match (f.number, f.wire) {
            (field::ATTRIBUTE_NAME, LEN) => named = &*cursor.name(f)? == b"value",
            (field::ATTRIBUTE_TENSOR, LEN) if tensor.is_some() => {
                return cursor.error(f.start, "expected one tensor in an attribute");
            }
            (field::ATTRIBUTE_TENSOR, LEN) => tensor = Some(f),
            _ => {}
        }
    }
    Ok(tensor.filter(|_| named))
}

pub(crate) fn parse_tensor<'a>(outer: &Cursor<'a>, tensor: Field) -> Result<TensorHeader<'a>> {
    let mut cursor = outer.inside(tensor);
    let mut out = TensorHeader::new(tensor.start, tensor.end);
    let (mut external, mut is_external) = (Vec::new(), false);
    while let Some(f) = cursor.next()? {
        match (f.number, f.wire) {
            (field::TENSOR_DIMS, VARINT) => push_dim(&cursor, &mut out.dims, f.start, f.value)?,
            (field::TENSOR_DIMS, LEN) => {
                let packed = cursor.bytes(f)?;
                let mut rest = &*packed;
                while !rest.is_empty() {
                    let Some((dim, n)) = get_varint(rest) else {
                        return cursor.error(f.start, "expected a varint");
                    };
                    push_dim(&cursor, &mut out.dims, f.start, dim)?;
                    rest = &rest[n..];
                }
            }
            (field::TENSOR_DATA_TYPE, VARINT) => {
                out.code = f.value;
                out.dtype = DataType::from_code(f.value);
            }
            (field::TENSOR_NAME, LEN) => out.name = cursor.name(f)?,
            (field::TENSOR_RAW_DATA, LEN) if out.raw.is_some() => {
                return cursor.error(f.start, "expected one raw_data in a tensor");
            }
            (field::TENSOR_RAW_DATA, LEN) => out.raw = Some(f),
            (
                field::TENSOR_FLOAT_DATA
                | field::TENSOR_INT32_DATA
                | field::TENSOR_INT64_DATA
                | field::TENSOR_DOUBLE_DATA
                | field::TENSOR_UINT64_DATA,
                _,
            ) => out.typed.push(f),
            (field::TENSOR_STRING_DATA, LEN) => out.strings.push(f),
            (field::TENSOR_EXTERNAL_DATA, LEN) => external.push(cursor.entry(f)?),
            (field::TENSOR_DATA_LOCATION, VARINT) => is_external = f.value == 1,
            _ => {}
        }
    }
    if is_external {
        out.location = Some(parse_external(&cursor, tensor, &external)?);
    }
    Ok(out)
}

/// The checksum in the metadata of the tensor that the cursor goes through.
pub(crate) fn parse_checksum(mut cursor: Cursor) -> Result<Option<Hex>> {
    let mut found = None;
    while let Some(f) = cursor.next()? {
        if (f.number, f.wire) == (field::TENSOR_METADATA, LEN) {
            let (key, value) = cursor.entry(f)?;
            if &*cursor.bytes(key)? == CHECKSUM.as_bytes() {
                found = cursor.bytes(value)?.first_chunk().copied();
            }
        }
    }
    Ok(found)
}

pub(crate) fn parse_external(
    cursor: &Cursor,
    tensor: Field,
    entries: &[(Field, Field)],
) -> Result<(String, u64, Option<u64>)> {
    let (mut location, mut offset, mut length) = (None, 0, None);
    for &(key, value) in entries {
        let text = cursor.text(value)?;
        let number = || match text.parse::<u64>() {
            Ok(number) => Ok(number),
            Err(_) => cursor.error(value.start, format!("expected a number, found {text:?}")),
        };
        match &*cursor.bytes(key)? {
            b"location" => location = Some(text.to_string()),
            b"offset" => offset = number()?,
            b"length" => length = Some(number()?),
            _ => {}
        }
    }
    match location {
        Some(location) => Ok((location, offset, length)),
        None => cursor.error(tensor.start, "expected the location of external data"),
    }
}

pub(crate) fn push_dim(cursor: &Cursor, dims: &mut Vec<i64>, at: u64, dim: u64) -> Result<()> {
    let Ok(dim) = i64::try_from(dim) else {
        return cursor.error(at, "expected a size, found a negative one");
    };
    if dims.len() == MOST_RANK {
        return cursor.error(at, format!("expected at most {MOST_RANK} dimensions"));
    }
    dims.push(dim);
    Ok(())
}

/// The name of a graph output.
pub(crate) fn output_name<'a>(outer: &Cursor<'a>, output: Field) -> Result<Cow<'a, [u8]>> {
    let mut cursor = outer.inside(output);
    while let Some(f) = cursor.next()? {
        if (f.number, f.wire) == (field::VALUE_NAME, LEN) {
            return cursor.name(f);
        }
    }
    cursor.error(output.start, "expected a name in an output")
}

/// The Constant whose node begins at `offset`, in a file that this process is writing.
pub(crate) fn read_original(file: &File, offset: u64) -> Option<Original> {
    // A header is the names and the sizes: a second read is for very long names only.
    for window in [1 << 12, 1 << 18] {
        let left = file.metadata().ok()?.len().checked_sub(offset)?;
        let mut bytes = vec![0; usize::try_from(left).ok()?.min(window)];
        file.read_exact_at(&mut bytes, offset).ok()?;
        let source = Source::start(&bytes, left);
        let cursor = Cursor::new(Path::new(""), &source, 0, left);
        if let Some(original) = parse_original(cursor, offset) {
            return Some(original);
        }
    }
    None
}

pub(crate) fn parse_original(mut cursor: Cursor, offset: u64) -> Option<Original> {
    let field = cursor.next().ok()??;
    let node = parse_node(&cursor, field).ok()?;
    let tensor = parse_tensor(&cursor, node.tensor?).ok()?;
    let checksum = parse_checksum(cursor.inside(node.tensor?)).ok()??;
    Some(Original {
        digest: Digest::from_hex(&checksum)?,
        dtype: tensor.dtype?,
        dims: tensor.dims,
        name: String::from_utf8(node.output.into_owned()).ok()?,
        offset,
    })
}

pub(crate) fn elements(dims: &[i64]) -> Option<u64> {
    let mut count = 1u64;
    for &dim in dims {
        count = count.checked_mul(u64::try_from(dim).ok()?)?;
    }
    Some(count)
}

/// The typed fields of a `TensorProto` as raw data.
pub(crate) fn typed_bytes(
    cursor: &Cursor,
    dtype: DataType,
    fields: &[Field],
    at: u64,
) -> Result<Vec<u8>> {
    let width = match dtype {
        DataType::Complex64 => 4,
        DataType::Complex128 => 8,
        other => usize::from(other.bits()).div_ceil(8),
    };
    let mut out = Vec::new();
    for f in fields {
        let expected = match dtype {
            DataType::Float | DataType::Complex64 => field::TENSOR_FLOAT_DATA,
            DataType::Double | DataType::Complex128 => field::TENSOR_DOUBLE_DATA,
            DataType::Int64 => field::TENSOR_INT64_DATA,
            DataType::Uint32 | DataType::Uint64 => field::TENSOR_UINT64_DATA,
            _ => field::TENSOR_INT32_DATA,
        };
        if f.number != expected {
            let message = format!("field {} holds no {}", f.number, dtype.name());
            return cursor.error(at, message);
        }
        match f.wire {
            LEN if matches!(expected, field::TENSOR_FLOAT_DATA | field::TENSOR_DOUBLE_DATA) => {
                out.extend_from_slice(&cursor.bytes(*f)?);
            }
            LEN => {
                let packed = cursor.bytes(*f)?;
                let mut rest = &*packed;
                while !rest.is_empty() {
                    let Some((value, n)) = get_varint(rest) else {
                        return cursor.error(f.start, "expected a varint");
                    };
                    out.extend_from_slice(&value.to_le_bytes()[..width]);
                    rest = &rest[n..];
                }
            }
            _ => out.extend_from_slice(&f.value.to_le_bytes()[..width]),
        }
    }
    Ok(out)
}

/// Bytes of the JSON value that `text` begins with.
pub(crate) fn json_value_len(text: &[u8]) -> Option<usize> {
    let (mut depth, mut in_string, mut i) = (0usize, false, 0);
    while i < text.len() {
        match (in_string, text[i]) {
            (true, b'\\') => i += 1,
            (_, b'"') => in_string = !in_string,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']' | b',') if depth == 0 => return Some(i),
            (false, b'}' | b']') => depth -= 1,
            _ => {}
        }
        i += 1;
        if depth == 0 && !in_string && matches!(text[i - 1], b'}' | b']' | b'"') {
            return Some(i);
        }
    }
    None
}
