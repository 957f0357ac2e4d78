//! A dump, read by its headers: hostile until proven otherwise.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::AtPath;
use crate::layout::{field, CHECKSUM, COMPLETE, HINT_FIELD, INDEX_FIELD, PROVENANCE};
use crate::seen::{Digest, Original};
use crate::source::{open_external, Mode, Shared, Source};
use crate::wire::{get_varint, FIXED32, FIXED64, LEN, VARINT};
use crate::writer::{key_hash, part_path, SKIPPED_FLAG};
use crate::{DataType, Error, Result};

/// The most bytes a name may have, and the most dimensions a tensor.
const MOST_NAME: u64 = 64 << 10;
const MOST_RANK: usize = 64;
/// How many nodes may stand between an output and its constant.
const MOST_HOPS: usize = 64;

/// A tensor of a dump; its bytes are a view of the mapping where there is one.
pub struct Tensor {
    /// Element type.
    pub dtype: DataType,
    /// Sizes, in elements.
    pub dims: Vec<i64>,
    pub(crate) data: Shared,
    pub(crate) checksum: Option<Digest>,
}

impl Tensor {
    /// The elements as they lie in the file: little-endian, row-major, packed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Element type and sizes as torch counts them, and the bytes; types that torch lacks are
    /// unpacked to one byte an element.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub(crate) fn for_torch(self) -> (DataType, Vec<i64>, Shared) {
        let Self {
            dtype,
            mut dims,
            data,
            ..
        } = self;
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
                    value
                        .cast_signed()
                        .wrapping_shr((8 - bits).into())
                        .cast_unsigned()
                } else {
                    value >> (8 - bits)
                }
            })
            .collect();
        let dtype = if signed {
            DataType::Int8
        } else {
            DataType::Uint8
        };
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

/// A dump, and the parts it rolled over to.
pub struct Reader {
    parts: Vec<Part>,
    /// Number of the first record of each part.
    starts: Vec<usize>,
    by_key: OnceLock<HashMap<u64, Vec<u32>>>,
}

struct Part {
    path: PathBuf,
    /// `None` for a model in memory.
    folder: Option<PathBuf>,
    mode: Mode,
    source: Source,
    graph: (u64, u64),
    native: bool,
    complete: bool,
    provenance: String,
    /// `(hash of the key, offset of the record with the skipped flag)`.
    index: Vec<[u64; 2]>,
    /// Offsets of nodes and initializers by the name of what they define.
    definitions: OnceLock<HashMap<Vec<u8>, Definition>>,
    external: Mutex<HashMap<String, Arc<Source>>>,
}

#[derive(Clone, Copy)]
enum Definition {
    Node(u64),
    Initializer(u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Field {
    number: u32,
    wire: u8,
    /// The number itself for varints and fixed widths.
    value: u64,
    start: u64,
    end: u64,
}

struct Cursor<'a> {
    path: &'a Path,
    source: &'a Source,
    position: u64,
    end: u64,
}

impl<'a> Cursor<'a> {
    fn error<T>(&self, offset: u64, message: impl Into<String>) -> Result<T> {
        Err(Error::Format {
            path: self.path.to_owned(),
            offset,
            message: message.into(),
        })
    }

    /// The next field, `None` at the end.
    fn next(&mut self) -> Result<Option<Field>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let at = self.position;
        let left = usize::try_from(self.end - at).unwrap_or(usize::MAX);
        let Some(bytes) = self.source.peek(at, left.min(20)) else {
            return self.error(at, "cannot be read");
        };
        let Some((tag, n)) = get_varint(&bytes) else {
            return self.error(at, "expected a field, found no tag");
        };
        let (number, wire) = (tag >> 3, (tag & 7) as u8);
        if number == 0 || number > 0x1fff_ffff {
            return self.error(at, format!("expected a field, found number {number}"));
        }
        let start = at + n as u64;
        let (value, start, end) = match wire {
            VARINT => match get_varint(&bytes[n..]) {
                Some((value, m)) => (value, start, start + m as u64),
                None => return self.error(start, "expected a varint"),
            },
            LEN => match get_varint(&bytes[n..]) {
                Some((length, m)) => {
                    let start = start + m as u64;
                    if length > self.end.saturating_sub(start) {
                        let left = self.end.saturating_sub(start);
                        return self.error(
                            at,
                            format!("field {number} has {length} bytes, {left} are left"),
                        );
                    }
                    (0, start, start + length)
                }
                None => return self.error(start, "expected a length"),
            },
            FIXED64 => match bytes.get(n..n + 8).and_then(|b| b.first_chunk()) {
                Some(b) => (u64::from_le_bytes(*b), start, start + 8),
                None => return self.error(start, "expected eight bytes"),
            },
            FIXED32 => match bytes.get(n..n + 4).and_then(|b| b.first_chunk()) {
                Some(b) => (u32::from_le_bytes(*b).into(), start, start + 4),
                None => return self.error(start, "expected four bytes"),
            },
            other => return self.error(at, format!("expected a field, found wire type {other}")),
        };
        self.position = end;
        #[allow(clippy::cast_possible_truncation)] // checked above
        let number = number as u32;
        Ok(Some(Field {
            number,
            wire,
            value,
            start,
            end,
        }))
    }

    fn inside(&self, field: Field) -> Cursor<'a> {
        Cursor {
            position: field.start,
            end: field.end,
            ..*self
        }
    }

    fn bytes(&self, field: Field) -> Result<Cow<'a, [u8]>> {
        match self.source.read(field.start, field.end - field.start) {
            Some(bytes) if field.wire == LEN => Ok(bytes),
            _ => self.error(
                field.start,
                format!("expected bytes in field {}", field.number),
            ),
        }
    }

    fn name(&self, field: Field) -> Result<Vec<u8>> {
        if field.end - field.start > MOST_NAME {
            let n = field.end - field.start;
            return self.error(
                field.start,
                format!("a name of {n} bytes, expected {MOST_NAME}"),
            );
        }
        self.bytes(field).map(Cow::into_owned)
    }

    fn text(&self, field: Field) -> Result<Cow<'a, str>> {
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
    fn entry(&self, field: Field) -> Result<(Field, Field)> {
        let mut cursor = self.inside(field);
        let empty = Field {
            number: 0,
            wire: LEN,
            value: 0,
            start: field.end,
            end: field.end,
        };
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
struct Node {
    op: Vec<u8>,
    inputs: Vec<Vec<u8>>,
    output: Vec<u8>,
    tensor: Option<Field>,
    hint: Option<u64>,
    at: u64,
}

/// Where the bytes of a `TensorProto` are.
struct TensorHeader {
    name: Vec<u8>,
    dtype: Option<DataType>,
    code: u64,
    dims: Vec<i64>,
    raw: Option<Field>,
    typed: Vec<Field>,
    strings: Vec<Field>,
    location: Option<(String, u64, Option<u64>)>,
    checksum: Option<Digest>,
    at: u64,
}

fn parse_node(outer: &Cursor, node: Field) -> Result<Node> {
    let mut cursor = outer.inside(node);
    let mut out = Node {
        op: Vec::new(),
        inputs: Vec::new(),
        output: Vec::new(),
        tensor: None,
        hint: None,
        at: node.start,
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
                out.op.clear();
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
            out.op = b"?".to_vec();
        }
    }
    Ok(out)
}

/// The tensor of an attribute called `value`.
fn parse_value_attribute(outer: &Cursor, attribute: Field) -> Result<Option<Field>> {
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

fn parse_tensor(outer: &Cursor, tensor: Field) -> Result<TensorHeader> {
    let mut cursor = outer.inside(tensor);
    let mut out = TensorHeader {
        name: Vec::new(),
        dtype: None,
        code: 0,
        dims: Vec::new(),
        raw: None,
        typed: Vec::new(),
        strings: Vec::new(),
        location: None,
        checksum: None,
        at: tensor.start,
    };
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
            (field::TENSOR_METADATA, LEN) => {
                let (key, value) = cursor.entry(f)?;
                if &*cursor.bytes(key)? == CHECKSUM.as_bytes() {
                    let text = cursor.text(value)?;
                    out.checksum = u128::from_str_radix(&text, 16).ok().map(Digest);
                }
            }
            _ => {}
        }
    }
    if is_external {
        out.location = Some(parse_external(&cursor, tensor, &external)?);
    }
    Ok(out)
}

fn parse_external(
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

fn push_dim(cursor: &Cursor, dims: &mut Vec<i64>, at: u64, dim: u64) -> Result<()> {
    let Ok(dim) = i64::try_from(dim) else {
        return cursor.error(at, "expected a size, found a negative one");
    };
    if dims.len() == MOST_RANK {
        return cursor.error(at, format!("expected at most {MOST_RANK} dimensions"));
    }
    dims.push(dim);
    Ok(())
}

/// Name, element type and sizes of a graph output.
fn parse_output(outer: &Cursor, output: Field) -> Result<(Vec<u8>, u64, Vec<i64>)> {
    let mut cursor = outer.inside(output);
    let (mut name, mut code, mut dims) = (Vec::new(), 0, Vec::new());
    while let Some(f) = cursor.next()? {
        match (f.number, f.wire) {
            (field::VALUE_NAME, LEN) => name = cursor.name(f)?,
            (field::VALUE_TYPE, LEN) => {
                let mut types = cursor.inside(f);
                while let Some(f) = types.next()? {
                    if (f.number, f.wire) == (field::TYPE_TENSOR, LEN) {
                        (code, dims) = parse_tensor_type(&types, f)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((name, code, dims))
}

fn parse_tensor_type(outer: &Cursor, tensor: Field) -> Result<(u64, Vec<i64>)> {
    let mut cursor = outer.inside(tensor);
    let (mut code, mut dims) = (0, Vec::new());
    while let Some(f) = cursor.next()? {
        match (f.number, f.wire) {
            (field::TENSOR_TYPE_ELEM, VARINT) => code = f.value,
            (field::TENSOR_TYPE_SHAPE, LEN) => {
                let mut shape = cursor.inside(f);
                while let Some(f) = shape.next()? {
                    if (f.number, f.wire) != (field::SHAPE_DIM, LEN) {
                        continue;
                    }
                    let (mut dim, mut value) = (shape.inside(f), 0);
                    while let Some(f) = dim.next()? {
                        if (f.number, f.wire) == (field::DIM_VALUE, VARINT) {
                            value = f.value;
                        }
                    }
                    push_dim(&shape, &mut dims, f.start, value)?;
                }
            }
            _ => {}
        }
    }
    Ok((code, dims))
}

/// The Constant whose node begins at `offset`, in a file that this process is writing.
pub(crate) fn read_original(file: &File, offset: u64) -> Option<Original> {
    // A header is the names and the sizes: a second read is for very long names only.
    for window in [1 << 12, 1 << 18] {
        let len = file.metadata().ok()?.len();
        let mut bytes = vec![0; usize::try_from(len.checked_sub(offset)?).ok()?.min(window)];
        file.read_exact_at(&mut bytes, offset).ok()?;
        let source = Source::window(offset, bytes, len);
        let cursor = Cursor {
            path: Path::new(""),
            source: &source,
            position: offset,
            end: len,
        };
        if let Some(original) = parse_original(cursor, offset) {
            return Some(original);
        }
    }
    None
}

fn parse_original(mut cursor: Cursor, offset: u64) -> Option<Original> {
    let field = cursor.next().ok()??;
    let node = parse_node(&cursor, field).ok()?;
    let tensor = parse_tensor(&cursor, node.tensor?).ok()?;
    Some(Original {
        digest: tensor.checksum?,
        dtype: tensor.dtype?,
        dims: tensor.dims,
        name: String::from_utf8(node.output).ok()?,
        offset,
    })
}

impl Part {
    fn open(path: &Path, mode: Mode) -> Result<Self> {
        let file = File::open(path).at(path)?;
        if file.metadata().at(path)?.is_dir() {
            return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)).at(path);
        }
        let source = Source::open(file, mode).at(path)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Self::parse(path, Some(folder), mode, source)
    }

    fn parse(path: &Path, folder: Option<PathBuf>, mode: Mode, source: Source) -> Result<Self> {
        let mut part = Self {
            path: path.to_owned(),
            folder,
            mode,
            source,
            graph: (0, 0),
            native: false,
            complete: false,
            provenance: "{}".to_owned(),
            index: Vec::new(),
            definitions: OnceLock::new(),
            external: Mutex::new(HashMap::new()),
        };
        let index = part.parse_model()?;
        let producer_is_us = part.native;
        part.native = part.parse_provenance()? && producer_is_us;
        if part.native {
            part.index = match index {
                Some(index) => part.read_index(index)?,
                None => part.walk()?,
            };
        }
        Ok(part)
    }

    fn cursor(&self, position: u64, end: u64) -> Cursor<'_> {
        Cursor {
            path: &self.path,
            source: &self.source,
            position,
            end,
        }
    }

    fn failure(&self, offset: u64, message: String) -> Error {
        Error::Format {
            path: self.path.clone(),
            offset,
            message,
        }
    }

    fn graph_cursor(&self) -> Cursor<'_> {
        self.cursor(self.graph.0, self.graph.1)
    }

    /// The model's own fields: where the graph is, whether it is ours, whether it was closed.
    fn parse_model(&mut self) -> Result<Option<Field>> {
        let len = self.source.len;
        let (mut graph, mut index, mut native, mut complete) = (None, None, false, false);
        let mut cursor = self.cursor(0, len);
        loop {
            let at = cursor.position;
            // A capture killed while its file grew leaves zeros behind the graph.
            if graph.is_some() && native && cursor.source.peek(at, 1).is_some_and(|b| *b == [0]) {
                break;
            }
            let Some(f) = cursor.next()? else { break };
            match (f.number, f.wire) {
                (field::MODEL_PRODUCER_NAME, LEN) => native = &*cursor.name(f)? == b"faststeal",
                (field::MODEL_GRAPH, LEN) if graph.is_some() => {
                    return cursor.error(at, "expected one graph, found a second");
                }
                (field::MODEL_GRAPH, LEN) => graph = Some((f.start, f.end)),
                (field::MODEL_METADATA, LEN) => {
                    let (key, value) = cursor.entry(f)?;
                    if &*cursor.bytes(key)? == COMPLETE.as_bytes() {
                        complete = &*cursor.bytes(value)? == b"1";
                    }
                }
                (INDEX_FIELD, LEN) => index = Some(f),
                _ => {}
            }
        }
        let Some(graph) = graph else {
            return cursor.error(len, "expected an ONNX model, found no graph");
        };
        self.graph = graph;
        self.native = native;
        self.complete = complete && native;
        Ok(index)
    }

    /// Finds the provenance: an entry near the start, anywhere in a file that was saved again.
    fn parse_provenance(&mut self) -> Result<bool> {
        let mut found = None;
        let mut cursor = self.graph_cursor();
        while let Some(f) = cursor.next()? {
            if (f.number, f.wire) == (field::GRAPH_METADATA, LEN) {
                let (key, value) = cursor.entry(f)?;
                if &*cursor.bytes(key)? == PROVENANCE.as_bytes() {
                    found = Some(cursor.text(value)?.into_owned());
                    break;
                }
            }
        }
        if let Some(found) = found {
            self.provenance = found;
            return Ok(true);
        }
        Ok(false)
    }

    fn read_index(&self, index: Field) -> Result<Vec<[u64; 2]>> {
        let cursor = self.cursor(index.start, index.end);
        let bytes = cursor.bytes(index)?;
        let (entries, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() {
            return cursor.error(index.start, "expected an index of 16 bytes an entry");
        }
        let mut out = Vec::with_capacity(entries.len());
        for entry in entries {
            let (words, _) = entry.as_chunks::<8>();
            let [hash, offset] = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
            let at = offset & !SKIPPED_FLAG;
            if at < self.graph.0 || at >= self.graph.1 {
                let message = format!("the index points to byte {at}, outside the graph");
                return cursor.error(index.start, message);
            }
            out.push([hash, offset]);
        }
        Ok(out)
    }

    /// The records, by their lengths; no tensor is touched.
    fn walk(&self) -> Result<Vec<[u64; 2]>> {
        let mut out = Vec::new();
        let mut cursor = self.graph_cursor();
        loop {
            let at = cursor.position;
            let Some(f) = cursor.next()? else {
                return Ok(out);
            };
            if (f.number, f.wire) != (field::GRAPH_METADATA, LEN) {
                continue;
            }
            let (key, value) = cursor.entry(f)?;
            let key = cursor.text(key)?;
            if !key.contains('/') {
                continue;
            }
            let json = self.source.peek(value.start, SKIPPED_START.len());
            let skipped = json.is_some_and(|json| *json == *SKIPPED_START);
            out.push([key_hash(&key), if skipped { at | SKIPPED_FLAG } else { at }]);
        }
    }

    /// Key and description of the record at `entry`, checked against it.
    fn record_header(&self, entry: [u64; 2]) -> Result<RecordHeader<'_>> {
        let at = entry[1] & !SKIPPED_FLAG;
        let mut cursor = self.cursor(at, self.graph.1);
        let f = match cursor.next()? {
            Some(f) if (f.number, f.wire) == (field::GRAPH_METADATA, LEN) => f,
            _ => return cursor.error(at, "expected a record"),
        };
        let (key, json) = cursor.entry(f)?;
        let header = RecordHeader {
            key: cursor.text(key)?,
            json: cursor.text(json)?,
            end: f.end,
            at,
        };
        if key_hash(&header.key) != entry[0] {
            return cursor.error(at, "the record is not the one that the index names");
        }
        if header.json.as_bytes().starts_with(SKIPPED_START) != (entry[1] & SKIPPED_FLAG != 0) {
            return cursor.error(
                at,
                "index and record differ in whether values were left out",
            );
        }
        Ok(header)
    }

    /// The tensors behind a record's header, where they stand in a file that nobody reordered.
    fn tensors_in_place(&self, header: &RecordHeader, count: usize) -> Result<Option<Vec<Tensor>>> {
        let mut cursor = self.cursor(header.end, self.graph.1);
        let mut outputs = Vec::new();
        while outputs.len() < count {
            match cursor.next()? {
                Some(f) if (f.number, f.wire) == (field::GRAPH_OUTPUT, LEN) => {
                    outputs.push(parse_output(&cursor, f)?);
                }
                _ => return Ok(None),
            }
        }
        let mut tensors = Vec::with_capacity(count);
        for (name, _, dims) in outputs {
            loop {
                let node = match cursor.next()? {
                    Some(f) if (f.number, f.wire) == (field::GRAPH_NODE, LEN) => {
                        parse_node(&cursor, f)?
                    }
                    _ => return Ok(None),
                };
                if node.output != name {
                    if node.op == b"Constant" && node.output.ends_with(b"//shape") {
                        continue;
                    }
                    return Ok(None);
                }
                let Some(tensor) = self.follow_hint(&cursor, &node, &dims)? else {
                    return Ok(None);
                };
                tensors.push(tensor);
                break;
            }
        }
        Ok(Some(tensors))
    }

    /// A Constant, or an alias whose original stands where its hint says.
    fn follow_hint(&self, cursor: &Cursor, node: &Node, dims: &[i64]) -> Result<Option<Tensor>> {
        if let (b"Constant", Some(tensor)) = (&*node.op, node.tensor) {
            return self.tensor(parse_tensor(cursor, tensor)?).map(Some);
        }
        let (b"Identity" | b"Reshape", Some(hint), Some(name)) =
            (&*node.op, node.hint, node.inputs.first())
        else {
            return Ok(None);
        };
        if hint < self.graph.0 || hint >= node.at {
            return Ok(None);
        }
        let mut cursor = self.cursor(hint, self.graph.1);
        // A hint into the middle of something may parse as anything, or not at all.
        let Ok(Some(f)) = cursor.next() else {
            return Ok(None);
        };
        if (f.number, f.wire) != (field::GRAPH_NODE, LEN) {
            return Ok(None);
        }
        let Ok(original) = parse_node(&cursor, f) else {
            return Ok(None);
        };
        let (b"Constant", Some(tensor), true) =
            (&*original.op, original.tensor, original.output == *name)
        else {
            return Ok(None);
        };
        let tensor = self.tensor(parse_tensor(&cursor, tensor)?)?;
        self.reshaped(tensor, dims, node.at).map(Some)
    }

    fn reshaped(&self, mut tensor: Tensor, dims: &[i64], at: u64) -> Result<Tensor> {
        if elements(&tensor.dims) != elements(dims) {
            let message = format!("{:?} cannot have the shape {dims:?}", tensor.dims);
            return self.cursor(at, at).error(at, message);
        }
        tensor.dims = dims.to_vec();
        Ok(tensor)
    }

    fn definitions(&self) -> Result<&HashMap<Vec<u8>, Definition>> {
        if let Some(found) = self.definitions.get() {
            return Ok(found);
        }
        let mut map = HashMap::new();
        let mut cursor = self.graph_cursor();
        loop {
            let at = cursor.position;
            let Some(f) = cursor.next()? else { break };
            let (name, definition) = match (f.number, f.wire) {
                (field::GRAPH_NODE, LEN) => (parse_node(&cursor, f)?.output, Definition::Node(at)),
                (field::GRAPH_INITIALIZER, LEN) => (
                    parse_tensor(&cursor, f)?.name,
                    Definition::Initializer(f.start, f.end),
                ),
                _ => continue,
            };
            if map.insert(name.clone(), definition).is_some() {
                let name = String::from_utf8_lossy(&name);
                return cursor.error(at, format!("{name:?} is defined twice"));
            }
        }
        Ok(self.definitions.get_or_init(|| map))
    }

    /// The constant called `name`, through aliases, anywhere in the graph.
    fn resolve(&self, name: &[u8], hops: usize) -> Result<Output> {
        let text = String::from_utf8_lossy(name).into_owned();
        let fail = |at, message: String| Err(self.failure(at, message));
        let Some(&definition) = self.definitions()?.get(name) else {
            return fail(self.graph.0, format!("nothing defines {text:?}"));
        };
        let at = match definition {
            Definition::Initializer(start, end) => {
                let f = Field {
                    number: 0,
                    wire: LEN,
                    value: 0,
                    start,
                    end,
                };
                return self.value(parse_tensor(&self.cursor(start, end), f)?);
            }
            Definition::Node(at) => at,
        };
        if hops == 0 {
            return fail(
                at,
                format!("{text:?} is behind more than {MOST_HOPS} nodes"),
            );
        }
        let mut cursor = self.cursor(at, self.graph.1);
        let Some(f) = cursor.next()? else {
            return fail(at, "expected a node".into());
        };
        let node = parse_node(&cursor, f)?;
        let one = |name: &[u8]| match self.resolve(name, hops - 1)? {
            Output::Tensor(tensor) => Ok(tensor),
            _ => Err(self.failure(at, format!("expected a tensor as input of {text:?}"))),
        };
        match (&*node.op, node.tensor, &*node.inputs) {
            (b"Constant", Some(tensor), _) => self.value(parse_tensor(&cursor, tensor)?),
            (b"Identity", _, [input]) => self.resolve(input, hops - 1),
            (b"Reshape", _, [input, shape]) => {
                let shape = one(shape)?;
                if shape.dtype != DataType::Int64 {
                    return fail(at, format!("expected a shape of int64 for {text:?}"));
                }
                let words = shape.bytes().as_chunks::<8>().0.iter();
                let dims: Vec<i64> = words.map(|b| i64::from_le_bytes(*b)).collect();
                self.reshaped(one(input)?, &dims, at).map(Output::Tensor)
            }
            (b"SequenceConstruct", _, inputs) => {
                let tensors: Result<_> = inputs.iter().map(|input| one(input)).collect();
                tensors.map(Output::Sequence)
            }
            (b"SequenceEmpty", _, []) => Ok(Output::Sequence(Vec::new())),
            (op, _, _) => {
                let op = String::from_utf8_lossy(op);
                fail(
                    at,
                    format!("{text:?} is computed by {op}, expected a constant"),
                )
            }
        }
    }

    fn value(&self, header: TensorHeader) -> Result<Output> {
        const STRING: u64 = 8;
        if header.code != STRING {
            return self.tensor(header).map(Output::Tensor);
        }
        let cursor = self.cursor(0, self.source.len);
        let strings: Result<Vec<Vec<u8>>> = header
            .strings
            .iter()
            .map(|f| cursor.bytes(*f).map(Cow::into_owned))
            .collect();
        let strings = strings?;
        if elements(&header.dims) != Some(strings.len() as u64) {
            let message = format!("{} strings for the shape {:?}", strings.len(), header.dims);
            return cursor.error(header.at, message);
        }
        Ok(Output::Strings(strings))
    }

    /// Bytes exactly as many as type and sizes say, else an error.
    fn tensor(&self, header: TensorHeader) -> Result<Tensor> {
        let cursor = self.cursor(0, self.source.len);
        let Some(dtype) = header.dtype else {
            return cursor.error(header.at, format!("unknown element type {}", header.code));
        };
        let Some(need) = elements(&header.dims).and_then(|count| dtype.bytes(count)) else {
            return cursor.error(header.at, format!("the shape {:?} overflows", header.dims));
        };
        let forms = [
            header.raw.is_some_and(|raw| raw.end > raw.start),
            !header.typed.is_empty(),
            header.location.is_some(),
        ];
        if forms.iter().filter(|form| **form).count() > 1 {
            return cursor.error(header.at, "expected one of raw, typed and external data");
        }
        let have = |n: u64| {
            if n == need {
                return Ok(());
            }
            let (name, dims) = (dtype.name(), &header.dims);
            let message = format!("{n} bytes of data, {name} {dims:?} needs {need}");
            cursor.error(header.at, message)
        };
        let align = usize::from(dtype.bits()).div_ceil(8);
        let data = if let Some((location, offset, length)) = &header.location {
            have(length.unwrap_or(need))?;
            self.share_external(header.at, location, *offset, need, align)?
        } else if header.typed.is_empty() {
            let (start, end) = header.raw.map_or((0, 0), |raw| (raw.start, raw.end));
            have(end - start)?;
            self.source
                .share(start, end - start, align)
                .at(&self.path)?
        } else {
            let bytes = typed_bytes(&cursor, dtype, &header.typed, header.at)?;
            have(bytes.len() as u64)?;
            Shared::owned(&bytes)
        };
        if dtype == DataType::Bool && data.bytes().iter().any(|byte| *byte > 1) {
            return cursor.error(header.at, "expected 0 or 1 in a bool tensor");
        }
        Ok(Tensor {
            dtype,
            dims: header.dims,
            data,
            checksum: header.checksum,
        })
    }

    fn share_external(
        &self,
        at: u64,
        location: &str,
        offset: u64,
        len: u64,
        align: usize,
    ) -> Result<Shared> {
        let fail = |message: String| Err(self.failure(at, message));
        let source = {
            let mut open = self.external.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(source) = open.get(location) {
                source.clone()
            } else {
                let Some(folder) = &self.folder else {
                    return fail("external data of a model in memory cannot be found".into());
                };
                let file = match open_external(folder, location) {
                    Ok(file) => file,
                    Err(message) => return fail(message),
                };
                let source = Source::open(file, self.mode).at(&folder.join(location))?;
                let source = Arc::new(source);
                open.insert(location.to_owned(), source.clone());
                source
            }
        };
        if offset.checked_add(len).is_none_or(|end| end > source.len) {
            // The file of a live capture grows: what was mapped may be less than what is there.
            let folder = self.folder.clone().unwrap_or_default();
            let again = open_external(&folder, location)
                .ok()
                .and_then(|file| Source::open(file, self.mode).ok())
                .filter(|again| offset.checked_add(len).is_some_and(|end| end <= again.len));
            let Some(again) = again else {
                let have = source.len;
                return fail(format!(
                    "external data at {location:?}: {len} bytes at {offset}, the file has {have}"
                ));
            };
            let again = Arc::new(again);
            let mut open = self.external.lock().unwrap_or_else(PoisonError::into_inner);
            open.insert(location.to_owned(), again.clone());
            return again.share(offset, len, align).at(&folder.join(location));
        }
        source.share(offset, len, align).at(Path::new(location))
    }
}

const SKIPPED_START: &[u8] = br#"{"n":0,"skipped":"#;

struct RecordHeader<'a> {
    key: Cow<'a, str>,
    json: Cow<'a, str>,
    end: u64,
    at: u64,
}

impl RecordHeader<'_> {
    /// The number of tensors, which the description begins with.
    fn count(&self) -> Option<usize> {
        let rest = self.json.strip_prefix(r#"{"n":"#)?;
        rest[..rest.find(',')?].parse().ok()
    }

    /// The text of the member `tree`.
    fn tree(&self) -> Option<&str> {
        let start = self.json.find(r#","tree":"#)? + 8;
        let rest = self.json.get(start..)?;
        rest.get(..json_value_len(rest.as_bytes())?)
    }

    fn names(&self) -> Option<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Leaf {
            name: String,
        }
        #[derive(serde::Deserialize)]
        struct Description {
            leaves: Vec<Leaf>,
        }
        let description: Description = serde_json::from_str(&self.json).ok()?;
        Some(
            description
                .leaves
                .into_iter()
                .map(|leaf| leaf.name)
                .collect(),
        )
    }
}

/// Bytes of the JSON value that `text` begins with.
fn json_value_len(text: &[u8]) -> Option<usize> {
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

fn elements(dims: &[i64]) -> Option<u64> {
    let mut count = 1u64;
    for &dim in dims {
        count = count.checked_mul(u64::try_from(dim).ok()?)?;
    }
    Some(count)
}

/// The typed fields of a `TensorProto` as raw data.
fn typed_bytes(cursor: &Cursor, dtype: DataType, fields: &[Field], at: u64) -> Result<Vec<u8>> {
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
            LEN if matches!(
                expected,
                field::TENSOR_FLOAT_DATA | field::TENSOR_DOUBLE_DATA
            ) =>
            {
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

impl Reader {
    /// Opens a dump and the parts it rolled over to, or another model whose outputs are constants.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Format`].
    pub fn open(path: &Path, mode: Mode) -> Result<Self> {
        let mut parts = vec![Part::open(path, mode)?];
        while let Some(next) = next_part(path, &parts, mode)? {
            parts.push(next);
        }
        Ok(Self::new(parts))
    }

    /// Reads a model that is in memory already; its bytes are copied once.
    ///
    /// # Errors
    /// [`Error::Format`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let path = Path::new("<bytes>");
        let source = Source::bytes(bytes);
        Ok(Self::new(vec![Part::parse(
            path,
            None,
            Mode::Private,
            source,
        )?]))
    }

    fn new(parts: Vec<Part>) -> Self {
        let starts = parts
            .iter()
            .scan(0, |sum, part| {
                let start = *sum;
                *sum += part.index.len();
                Some(start)
            })
            .collect();
        Self {
            parts,
            starts,
            by_key: OnceLock::new(),
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.index.len()).sum()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this is a dump of this crate.
    #[must_use]
    pub fn native(&self) -> bool {
        self.parts[0].native
    }

    /// Whether the capture was closed.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.parts.last().is_some_and(|part| part.complete)
    }

    /// The JSON object that was given to the writer.
    #[must_use]
    pub fn provenance(&self) -> &str {
        &self.parts[0].provenance
    }

    fn entries(&self) -> impl Iterator<Item = (&Part, [u64; 2])> {
        self.parts
            .iter()
            .flat_map(|part| part.index.iter().map(move |entry| (part, *entry)))
    }

    fn locate(&self, index: usize) -> Result<(&Part, [u64; 2])> {
        let part = self
            .starts
            .partition_point(|start| *start <= index)
            .saturating_sub(1);
        let entry = self.parts[part].index.get(index - self.starts[part]);
        match entry {
            Some(entry) => Ok((&self.parts[part], *entry)),
            None => Err(Error::Index {
                index,
                len: self.len(),
            }),
        }
    }

    /// Key of every record, in the order of writing.
    ///
    /// # Errors
    /// [`Error::Format`].
    pub fn keys(&self) -> Result<Vec<Cow<'_, str>>> {
        self.entries()
            .map(|(part, entry)| Ok(part.record_header(entry)?.key))
            .collect()
    }

    /// Whether the values of each record were left out.
    #[must_use]
    pub fn skipped(&self) -> Vec<bool> {
        self.entries()
            .map(|(_, entry)| entry[1] & SKIPPED_FLAG != 0)
            .collect()
    }

    /// Number of the record with this key.
    ///
    /// # Errors
    /// [`Error::Format`] if the index names a record that is another.
    pub fn find(&self, key: &str) -> Result<Option<usize>> {
        let by_key = self.by_key.get_or_init(|| {
            let mut map: HashMap<u64, Vec<u32>> = HashMap::with_capacity(self.len());
            for (i, (_, entry)) in (0u32..).zip(self.entries()) {
                map.entry(entry[0]).or_default().push(i);
            }
            map
        });
        for &i in by_key.get(&key_hash(key)).into_iter().flatten() {
            let (part, entry) = self.locate(i as usize)?;
            if part.record_header(entry)?.key == key {
                return Ok(Some(i as usize));
            }
        }
        Ok(None)
    }

    /// The tree (JSON) of a record, and its tensors.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Index`], and [`Error::Io`] for external data.
    pub fn record(&self, index: usize) -> Result<(String, Vec<Tensor>)> {
        let (part, entry) = self.locate(index)?;
        let header = part.record_header(entry)?;
        let fail = |message: &str| Err(part.failure(header.at, message.to_owned()));
        let Some(count) = header.count() else {
            return fail("expected the number of tensors");
        };
        let Some(tree) = header.tree() else {
            return fail("expected a tree");
        };
        if let Some(tensors) = part.tensors_in_place(&header, count)? {
            return Ok((tree.to_owned(), tensors));
        }
        // Another tool saved the file again, in an order of its own.
        let Some(names) = header.names() else {
            return fail("expected the names of the leaves");
        };
        if names.len() != count {
            return fail("the number of tensors is not that of the leaves");
        }
        let mut tensors = Vec::new();
        for name in names {
            match part.resolve(name.as_bytes(), MOST_HOPS)? {
                Output::Tensor(tensor) => tensors.push(tensor),
                _ => return fail("expected tensors"),
            }
        }
        Ok((tree.to_owned(), tensors))
    }

    /// Everything known of a record but its values: a JSON object.
    ///
    /// # Errors
    /// [`Error::Format`] and [`Error::Index`].
    pub fn info(&self, index: usize) -> Result<String> {
        let (part, entry) = self.locate(index)?;
        Ok(part.record_header(entry)?.json.into_owned())
    }

    /// Every graph output, in order.
    ///
    /// # Errors
    /// [`Error::Format`] if one is not constant.
    pub fn outputs(&self) -> Result<Vec<(String, Output)>> {
        let mut out = Vec::new();
        for part in &self.parts {
            let mut cursor = part.graph_cursor();
            while let Some(f) = cursor.next()? {
                if (f.number, f.wire) == (field::GRAPH_OUTPUT, LEN) {
                    let (name, _, _) = parse_output(&cursor, f)?;
                    let value = part.resolve(&name, MOST_HOPS)?;
                    out.push((String::from_utf8_lossy(&name).into_owned(), value));
                }
            }
        }
        Ok(out)
    }

    /// Checks what opening leaves out; one line for each problem.
    #[must_use]
    pub fn verify(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut keys = std::collections::HashSet::new();
        for i in 0..self.len() {
            let checked = self
                .verify_record(i, &mut problems)
                .map(|key| keys.insert(key));
            match checked {
                Ok(true) => {}
                Ok(false) => problems.push(format!("record {i}: its key stands for another too")),
                Err(error) => problems.push(error.to_string()),
            }
        }
        for part in self.parts.iter().filter(|part| part.native) {
            let path = part.path.display();
            match part.walk() {
                Ok(walked) if walked != part.index => {
                    problems.push(format!("{path}: the index is not that of the records"));
                }
                Ok(_) => {}
                Err(error) => problems.push(error.to_string()),
            }
            if let Err(error) = part.definitions() {
                problems.push(error.to_string());
            }
        }
        problems
    }

    fn verify_record(&self, index: usize, problems: &mut Vec<String>) -> Result<String> {
        let (part, entry) = self.locate(index)?;
        let key = part.record_header(entry)?.key.into_owned();
        for (i, tensor) in self.record(index)?.1.iter().enumerate() {
            if tensor
                .checksum
                .is_some_and(|sum| sum != Digest::of(tensor.bytes()))
            {
                problems.push(format!("{key}: tensor {i} is not the one that was written"));
            }
        }
        Ok(key)
    }

    /// Where the last part ends, for mending it.
    pub(crate) fn last_part(&self) -> Option<(&Path, (u64, u64), u64, bool, &[[u64; 2]])> {
        let part = self.parts.last()?;
        Some((
            &part.path,
            part.graph,
            part.source.len,
            part.complete,
            &part.index,
        ))
    }
}

/// The part that follows, if it belongs to the same run.
fn next_part(first: &Path, parts: &[Part], mode: Mode) -> Result<Option<Part>> {
    #[derive(serde::Deserialize, PartialEq)]
    struct Run {
        run: String,
        part: u32,
    }
    let run = |part: &Part| serde_json::from_str::<Run>(&part.provenance).ok();
    let number = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let Some(last) = parts.last().filter(|part| part.native && !part.complete) else {
        return Ok(None);
    };
    let Some(this) = run(last).filter(|run| run.part + 1 == number) else {
        return Ok(None);
    };
    match Part::open(&part_path(first, number), mode) {
        Ok(part) => {
            let next = Run {
                part: number,
                ..this
            };
            Ok(run(&part).filter(|run| *run == next).map(|_| part))
        }
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // A file of that name that is not of this run may be anything.
        Err(Error::Format { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
