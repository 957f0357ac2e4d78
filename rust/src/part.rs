//! One file of a dump: its records, and the constants that any model holds.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::disk::open_regular;
use crate::error::AtPath;
use crate::layout::{field, COMPLETE, INDEX_FIELD, PROVENANCE};
use crate::native::{self, Found, Piece};
use crate::parse::{
    elements, json_value_len, parse_node, parse_tensor, typed_bytes, Cursor, Field, TensorHeader,
    MOST_RANK,
};
use crate::record::{key_hash, split_key, SKIPPED_FLAG};
use crate::source::{open_external, Memory, Mode, Shared, Source};
use crate::value::{Output, Tensor};
use crate::wire::{FILLER, LEN};
use crate::{DataType, Error, Result};

/// How many nodes may stand between an output and its constant.
pub(crate) const MOST_HOPS: usize = 64;

/// How often a file is opened anew that grew, or was closed, while its headers were read.
const MOST_TRIES: u32 = 10;

/// How a file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With an arena: it is being written, or was when its process was killed.
    Open,
    /// With an index, but the capture did not end here: it rolled over, or was killed and mended.
    Cut,
    /// As a capture that ended leaves it.
    Complete,
}

/// One file of a dump.
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    /// `None` for a model in memory.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) mode: Mode,
    pub(crate) source: Source,
    pub(crate) graph: (u64, u64),
    /// How far the graph was written when it was opened: a capture that runs goes on behind.
    written: u64,
    pub(crate) native: bool,
    /// Bytes behind the graph that no field covers: the file had grown, the graph had not.
    pub(crate) zeros: u64,
    /// Whether the file is as it was written: offsets in it mean something.
    pub(crate) in_place: bool,
    pub(crate) end: End,
    pub(crate) provenance: String,
    /// `(hash of the key, offset of the record with the skipped flag)`.
    pub(crate) index: Vec<[u64; 2]>,
    /// Offsets of nodes and initializers by the name of what they define.
    pub(crate) definitions: OnceLock<HashMap<Vec<u8>, Definition>>,
    pub(crate) external: Mutex<HashMap<String, Arc<Source>>>,
    /// Copies of tensors that could not be mapped, by offset: however many names one has.
    pub(crate) copies: Mutex<HashMap<u64, Weak<Memory>>>,
}

#[derive(Clone, Copy)]
pub(crate) enum Definition {
    Node(u64),
    Initializer(u64, u64),
}

impl Part {
    pub(crate) fn open(path: &Path, mode: Mode) -> Result<Self> {
        Self::open_by(path, mode, || open_regular(path))
    }

    /// The same file as it is on disk, whatever was written to its tensors in memory; `None` for
    /// a model that has no file.
    pub(crate) fn on_disk(&self) -> Result<Option<Self>> {
        if self.folder.is_none() {
            return Ok(None);
        }
        let open = || match self.source.file() {
            Some(file) => file.try_clone().at(&self.path),
            None => open_regular(&self.path),
        };
        let mode = if self.mode == Mode::Private { Mode::ReadOnly } else { self.mode };
        let mut part = Self::open_by(&self.path, mode, open)?;
        // A capture that runs is past that window by now.
        part.zeros = part.zeros.min(self.zeros);
        Ok(Some(part))
    }

    fn open_by(path: &Path, mode: Mode, open: impl Fn() -> Result<File>) -> Result<Self> {
        let mut tries = 0..MOST_TRIES;
        loop {
            let source = Source::open(open()?, mode).at(path)?;
            let len = source.len;
            let changed = || std::fs::metadata(path).is_ok_and(|now| now.len() != len);
            match Self::parse_file(path, mode, source) {
                Err(Error::Format { .. }) if changed() && tries.next().is_some() => {}
                opened => return opened,
            }
        }
    }

    fn parse_file(path: &Path, mode: Mode, source: Source) -> Result<Self> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        Self::parse(path, Some(folder), mode, source)
    }

    pub(crate) fn parse(
        path: &Path,
        folder: Option<PathBuf>,
        mode: Mode,
        source: Source,
    ) -> Result<Self> {
        let mut part = Self {
            path: path.to_owned(),
            folder,
            mode,
            source,
            graph: (0, 0),
            written: 0,
            native: false,
            zeros: 0,
            in_place: false,
            end: End::Open,
            provenance: "{}".to_owned(),
            index: Vec::new(),
            definitions: OnceLock::new(),
            external: Mutex::new(HashMap::new()),
            copies: Mutex::new(HashMap::new()),
        };
        let index = part.parse_model()?;
        let producer_is_us = part.native;
        part.native = part.parse_provenance()? && producer_is_us;
        if part.native {
            part.index = if let Some(index) = index {
                part.read_index(index)?
            } else {
                let (index, end) = part.walk()?;
                part.written = end;
                index
            };
        }
        Ok(part)
    }

    pub(crate) fn cursor(&self, position: u64, end: u64) -> Cursor<'_> {
        Cursor::new(&self.path, &self.source, position, end)
    }

    pub(crate) fn failure(&self, offset: u64, message: String) -> Error {
        Error::Format { path: self.path.clone(), offset, message }
    }

    pub(crate) fn graph_cursor(&self) -> Cursor<'_> {
        self.cursor(self.graph.0, self.written)
    }

    /// The model's own fields: where the graph is, whether it is ours, whether it was closed.
    pub(crate) fn parse_model(&mut self) -> Result<Option<Field>> {
        let len = self.source.len;
        let (mut graph, mut index, mut native, mut complete) = (None, None, false, false);
        let (mut filler, mut in_place, mut zeros) = (0, false, 0);
        let mut cursor = self.cursor(0, len);
        loop {
            let at = cursor.position;
            let open = graph.is_some() && native && index.is_none() && !complete;
            if open && self.is_zero(at) {
                zeros = len - at;
                break;
            }
            let Some(f) = cursor.next().map_err(no_model)? else { break };
            match (f.number, f.wire) {
                (field::MODEL_PRODUCER_NAME, LEN) => native = &*cursor.name(f)? == b"faststeal",
                (field::MODEL_GRAPH, LEN) if graph.is_some() => {
                    return cursor.error(at, "expected one graph, found a second");
                }
                (field::MODEL_GRAPH, LEN) => {
                    graph = Some((f.start, f.end));
                    in_place = filler == at;
                }
                (FILLER, LEN) => filler = f.end,
                (field::MODEL_FUNCTIONS, _) => {
                    return cursor.error(at, "expected constants, found a function");
                }
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
            let found = if len == 0 { "an empty file" } else { "no graph" };
            return cursor.error(len, format!("expected an ONNX model, found {found}"));
        };
        self.graph = graph;
        self.written = graph.1;
        self.native = native;
        self.zeros = zeros;
        self.in_place = in_place && native;
        self.end = match index {
            _ if complete && native => End::Complete,
            Some(_) => End::Cut,
            None => End::Open,
        };
        // Some tools keep unknown fields when they save a file again, but behind the known ones: an
        // index that points nowhere, and no filler before the graph.
        Ok(index.filter(|_| self.in_place))
    }

    /// Whether zeros are all that stands at the end: what a capture that was killed while its file
    /// grew leaves behind the graph. The first and the last page tell; holes are not read.
    fn is_zero(&self, at: u64) -> bool {
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let page = |at| self.source.with(at, 4096, is_zero) == Some(true);
        page(at) && page(self.source.len.saturating_sub(4096).max(at))
    }

    /// Finds the provenance: an entry near the start, anywhere in a file that was saved again.
    pub(crate) fn parse_provenance(&mut self) -> Result<bool> {
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

    pub(crate) fn read_index(&self, index: Field) -> Result<Vec<[u64; 2]>> {
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

    /// The records, by their lengths, and where the last one ends; no tensor is touched.
    pub(crate) fn walk(&self) -> Result<(Vec<[u64; 2]>, u64)> {
        let (mut out, mut end) = (Vec::new(), self.graph.0);
        let mut cursor = self.graph_cursor();
        loop {
            let at = cursor.position;
            let Some(f) = cursor.next()? else {
                return Ok((out, end));
            };
            if (f.number, f.wire) != (FILLER, LEN) {
                end = f.end;
            }
            if (f.number, f.wire) != (field::GRAPH_METADATA, LEN) {
                continue;
            }
            let (key, value) = cursor.entry(f)?;
            let key = cursor.text(key)?;
            // Other tools may have added what they know.
            if split_key(&key).is_none() {
                continue;
            }
            let is_skipped = |json: &[u8]| json == SKIPPED_START;
            let len = SKIPPED_START.len();
            let skipped = self.source.with(value.start, len, is_skipped) == Some(true);
            out.push([key_hash(&key), if skipped { at | SKIPPED_FLAG } else { at }]);
        }
    }

    /// Key and description of the record at `entry`, checked against it.
    pub(crate) fn record_header(&self, entry: [u64; 2]) -> Result<RecordHeader<'_>> {
        let (cursor, f, at) = self.record_field(entry)?;
        let (key, json) = cursor.entry(f)?;
        let key = self.checked_key(&cursor, key, entry)?;
        let header = RecordHeader { key, json: cursor.text(json)?, at };
        if header.json.as_bytes().starts_with(SKIPPED_START) != (entry[1] & SKIPPED_FLAG != 0) {
            return cursor.error(at, "index and record differ in whether values were left out");
        }
        Ok(header)
    }

    fn record_field(&self, entry: [u64; 2]) -> Result<(Cursor<'_>, Field, u64)> {
        let at = entry[1] & !SKIPPED_FLAG;
        let mut cursor = self.cursor(at, self.graph.1);
        match cursor.next()? {
            Some(f) if (f.number, f.wire) == (field::GRAPH_METADATA, LEN) => Ok((cursor, f, at)),
            _ => cursor.error(at, "expected a record"),
        }
    }

    fn checked_key<'a>(
        &self,
        cursor: &Cursor<'a>,
        key: Field,
        entry: [u64; 2],
    ) -> Result<Cow<'a, str>> {
        let at = entry[1] & !SKIPPED_FLAG;
        let key = cursor.text(key)?;
        if split_key(&key).is_none() {
            let message = format!("expected name/iteration/kind as a key, found {key:?}");
            return Err(self.failure(at, message));
        }
        if key_hash(&key) != entry[0] {
            return cursor.error(at, "the record is not the one that the index names");
        }
        Ok(key)
    }

    /// The key alone of the record at `entry`, checked against it.
    pub(crate) fn record_key(&self, entry: [u64; 2]) -> Result<Cow<'_, str>> {
        let (cursor, f, _) = self.record_field(entry)?;
        let (key, _) = cursor.entry(f)?;
        self.checked_key(&cursor, key, entry)
    }

    /// Reads the record at `entry`, if it stands as it was written.
    pub(crate) fn read_in_place(&self, entry: [u64; 2], found: &mut Found) -> Result<bool> {
        let at = entry[1];
        if !self.in_place || at & SKIPPED_FLAG != 0 {
            return Ok(false);
        }
        let Some(mut at) = self.source.find(at, |piece| native::record(piece, found)) else {
            return Ok(false);
        };
        if key_hash(&found.key) != entry[0] || split_key(&found.key).is_none() {
            return Ok(false);
        }
        for i in 0..found.len() {
            let (name, dims) = found.output(i);
            let Some((node, end)) = self.source.find(at, |piece| native::node(piece, name)) else {
                return Ok(false);
            };
            if end > self.graph.1 {
                return Ok(false);
            }
            let tensor = match node {
                native::Node::Constant(header) => self.tensor(header)?,
                native::Node::Alias { original, hint } => {
                    if hint < self.graph.0 || hint >= at {
                        return Ok(false);
                    }
                    let find = |piece: &mut Piece| native::constant(piece, &original);
                    // A hint into the middle of something may read as anything.
                    let Some((header, _)) = self.source.find(hint, find) else {
                        return Ok(false);
                    };
                    self.reshaped(self.tensor(header)?, dims, at)?
                }
            };
            found.tensors.push(tensor);
            at = end;
        }
        Ok(true)
    }

    pub(crate) fn reshaped(&self, mut tensor: Tensor, dims: &[i64], at: u64) -> Result<Tensor> {
        if elements(&tensor.dims) != elements(dims) || dims.len() > MOST_RANK {
            let message = format!("{:?} cannot have the shape {dims:?}", tensor.dims);
            return self.cursor(at, at).error(at, message);
        }
        tensor.dims.clear();
        tensor.dims.extend_from_slice(dims);
        Ok(tensor)
    }

    pub(crate) fn definitions(&self) -> Result<&HashMap<Vec<u8>, Definition>> {
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
                (field::GRAPH_INITIALIZER, LEN) => {
                    (parse_tensor(&cursor, f)?.name, Definition::Initializer(f.start, f.end))
                }
                _ => continue,
            };
            if map.insert(name.to_vec(), definition).is_some() {
                let name = String::from_utf8_lossy(&name);
                return cursor.error(at, format!("{name:?} is defined twice"));
            }
        }
        Ok(self.definitions.get_or_init(|| map))
    }

    /// The constant called `name`, through aliases, anywhere in the graph.
    pub(crate) fn resolve(&self, name: &[u8], hops: usize) -> Result<Output> {
        let text = String::from_utf8_lossy(name).into_owned();
        let fail = |at, message: String| Err(self.failure(at, message));
        let Some(&definition) = self.definitions()?.get(name) else {
            return fail(self.graph.0, format!("nothing defines {text:?}"));
        };
        let at = match definition {
            Definition::Initializer(start, end) => {
                let f = Field { number: 0, wire: LEN, value: 0, start, end };
                return self.value(parse_tensor(&self.cursor(start, end), f)?);
            }
            Definition::Node(at) => at,
        };
        if hops == 0 {
            return fail(at, format!("{text:?} is behind more than {MOST_HOPS} nodes"));
        }
        let mut cursor = self.cursor(at, self.graph.1);
        let Some(f) = cursor.next()? else {
            return fail(at, "expected a node".into());
        };
        let node = parse_node(&cursor, f)?;
        let one = |name: &[u8], hops| match self.resolve(name, hops)? {
            Output::Tensor(tensor) => Ok(tensor),
            _ => Err(self.failure(at, format!("expected a tensor as input of {text:?}"))),
        };
        match (&*node.op, node.tensor, &*node.inputs) {
            (b"Constant", Some(tensor), _) => self.value(parse_tensor(&cursor, tensor)?),
            (b"Identity", _, [input]) => self.resolve(input, hops - 1),
            (b"Reshape", _, [input, shape]) => {
                // A constant, at most behind one node: following both inputs all the way would
                // take 2^n steps.
                let shape = one(shape, (hops - 1).min(2))?;
                if shape.dtype != DataType::Int64 || shape.dims.len() != 1 {
                    return fail(at, format!("expected a list of int64 as shape of {text:?}"));
                }
                let words = shape.bytes().as_chunks::<8>().0.iter();
                let dims: Vec<i64> = words.map(|b| i64::from_le_bytes(*b)).collect();
                self.reshaped(one(input, hops - 1)?, &dims, at).map(Output::Tensor)
            }
            (b"SequenceConstruct", _, inputs) => {
                let tensors: Result<_> = inputs.iter().map(|input| one(input, hops - 1)).collect();
                tensors.map(Output::Sequence)
            }
            (b"SequenceEmpty", _, []) => Ok(Output::Sequence(Vec::new())),
            (op, _, _) => {
                let op = String::from_utf8_lossy(op);
                fail(at, format!("{text:?} is computed by {op}, expected a constant"))
            }
        }
    }

    /// Whether no name is defined twice, and every hint that counts points to the node that the
    /// names mean.
    pub(crate) fn check_definitions(&self) -> Result<()> {
        let definitions = self.definitions()?;
        if !self.in_place {
            return Ok(());
        }
        let mut cursor = self.graph_cursor();
        while let Some(f) = cursor.next()? {
            if (f.number, f.wire) != (field::GRAPH_NODE, LEN) {
                continue;
            }
            let node = parse_node(&cursor, f)?;
            let (Some(hint), Some(input)) = (node.hint, node.inputs.first()) else { continue };
            match definitions.get(&**input) {
                Some(Definition::Node(at)) if *at == hint => {}
                _ => return cursor.error(f.start, "the original is not where the hint says"),
            }
        }
        Ok(())
    }

    pub(crate) fn value(&self, header: TensorHeader) -> Result<Output> {
        const STRING: u64 = 8;
        if header.code != STRING {
            return self.tensor(header).map(Output::Tensor);
        }
        let cursor = self.cursor(0, self.source.len);
        let strings: Result<Vec<Vec<u8>>> =
            header.strings.iter().map(|f| cursor.bytes(*f).map(Cow::into_owned)).collect();
        let strings = strings?;
        if elements(&header.dims) != Some(strings.len() as u64) {
            let message = format!("{} strings for the shape {:?}", strings.len(), header.dims);
            return cursor.error(header.at, message);
        }
        Ok(Output::Strings(strings))
    }

    /// Bytes exactly as many as type and sizes say, else an error.
    pub(crate) fn tensor(&self, header: TensorHeader) -> Result<Tensor> {
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
        let is_raw = header.typed.is_empty() && header.location.is_none();
        let (start, end) = header.raw.map_or((0, 0), |raw| (raw.start, raw.end));
        if is_raw {
            have(end - start)?;
        }
        let view = self.source.view(start, end - start, align).filter(|_| is_raw);
        let data = match view {
            Some(view) => view,
            None => self.copied(header.at, || match &header.location {
                Some((location, offset, length)) => {
                    have(length.unwrap_or(need))?;
                    self.share_external(header.at, location, *offset, need, align)
                }
                None if is_raw => self.source.share(start, end - start, align).at(&self.path),
                None => {
                    let bytes = typed_bytes(&cursor, dtype, &header.typed, header.at)?;
                    have(bytes.len() as u64)?;
                    Ok(Shared::owned(&bytes))
                }
            })?,
        };
        if dtype == DataType::Bool && data.bytes().iter().any(|byte| *byte > 1) {
            return cursor.error(header.at, "expected 0 or 1 in a bool tensor");
        }
        Ok(Tensor { dtype, dims: header.dims, data, message: (header.at, header.end) })
    }

    /// What `make` gives for the tensor at `at`; if that is a copy, the one that is there.
    fn copied(&self, at: u64, make: impl FnOnce() -> Result<Shared>) -> Result<Shared> {
        let copies = || self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |memory: Arc<Memory>| {
            let len = memory.bytes().len();
            Shared { memory, offset: 0, len }
        };
        if let Some(memory) = copies().get(&at).and_then(Weak::upgrade) {
            return Ok(whole(memory));
        }
        // Without the lock, since reading may take long.
        let data = make()?;
        if !data.is_copy() {
            return Ok(data);
        }
        match copies().entry(at) {
            Entry::Occupied(mut entry) => {
                if let Some(memory) = entry.get().upgrade() {
                    return Ok(whole(memory)); // another thread was faster
                }
                entry.insert(Arc::downgrade(&data.memory));
            }
            Entry::Vacant(entry) => {
                entry.insert(Arc::downgrade(&data.memory));
            }
        }
        Ok(data)
    }

    pub(crate) fn share_external(
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
        source.share(offset, len, align).map_err(|source| {
            let folder = self.folder.as_deref().unwrap_or(Path::new(""));
            Error::Io { path: folder.join(location), source }
        })
    }
}

const SKIPPED_START: &[u8] = br#"{"n":0,"skipped":"#;

pub(crate) struct RecordHeader<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) json: Cow<'a, str>,
    pub(crate) at: u64,
}

impl RecordHeader<'_> {
    /// The number of tensors, which the description begins with.
    pub(crate) fn count(&self) -> Option<usize> {
        let rest = self.json.strip_prefix(r#"{"n":"#)?;
        rest[..rest.find(',')?].parse().ok()
    }

    /// The text of the member `tree`.
    pub(crate) fn tree(&self) -> Option<&str> {
        let start = self.json.find(r#","tree":"#)? + 8;
        let rest = self.json.get(start..)?;
        rest.get(..json_value_len(rest.as_bytes())?)
    }

    pub(crate) fn names(&self) -> Option<Vec<String>> {
        #[derive(serde::Deserialize)]
        struct Leaf {
            name: String,
        }
        #[derive(serde::Deserialize)]
        struct Description {
            leaves: Vec<Leaf>,
        }
        let description: Description = serde_json::from_str(&self.json).ok()?;
        Some(description.leaves.into_iter().map(|leaf| leaf.name).collect())
    }
}

/// Says what a field that makes no sense means where the fields are those of the model.
fn no_model(error: Error) -> Error {
    match error {
        Error::Format { path, offset, message } => {
            let message = format!("{message}: no ONNX model, or one that was cut short");
            Error::Format { path, offset, message }
        }
        other => other,
    }
}
