//! One dump being written: records appended in an arena, each committed by one 8-byte write.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::disk::{
    check_location, create_part, file_name, for_each_piece, part_path, part_provenance, random_id,
    tail, unlock, Arena, DataFile, Gathered, PIECE,
};
use crate::error::AtPath;
use crate::hash::Hasher;
use crate::layout::{
    alignment, field, put_alias, put_constant, put_entry, put_output, Place, BASE_OPSET, COMPLETE,
    NEXT_PART, RECORD_ALIGN,
};
use crate::parse::read_original;
use crate::record::{key_hash, record_json, value_names, Leaf, Record, LONGEST_NAME, SKIPPED_FLAG};
use crate::seen::{Digest, Original, Seen, Sketch};
use crate::wire::{filler_header, filler_to, put_filler, FILLER_HEADER};
use crate::{DataType, Error, Result, TensorRef};

/// How a dump is written.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most logical bytes one record may have to be stored.
    pub storage_limit: Option<u64>,
    /// The most payload bytes of the dump, external data included.
    pub total_limit: Option<u64>,
    /// Put the bytes of all tensors into `<path>.data`.
    pub external: bool,
    /// Make each record durable before it is committed.
    pub sync: bool,
    /// Payload bytes inside the file before external data begins.
    pub inline_limit: u64,
    /// Bytes at which the dump rolls over to a second file.
    pub part_limit: u64,
}

/// Protobuf readers stop at 2^31 - 1 bytes.
pub(crate) const PART_LIMIT: u64 = (1 << 31) - (1 << 16);

impl Default for Options {
    fn default() -> Self {
        Self {
            storage_limit: None,
            total_limit: None,
            external: false,
            sync: false,
            inline_limit: 1 << 30,
            part_limit: PART_LIMIT,
        }
    }
}
/// Bytes of a tensor, as they will be written.
enum Source<'a> {
    Memory(&'a [u8]),
    Scratch(usize, usize),
    /// Strided and too large for the scratch: gathered a piece at a time, whenever it is needed.
    Strided(&'a TensorRef),
}

impl Source<'_> {
    fn for_each_piece(
        &self,
        scratch: &[u8],
        each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => bytes.chunks(PIECE).try_for_each(each),
            Self::Scratch(start, n) => scratch[*start..start + n].chunks(PIECE).try_for_each(each),
            Self::Strided(tensor) => for_each_piece(tensor, each),
        }
    }

    fn digest(&self, scratch: &[u8]) -> Digest {
        match self {
            Self::Memory(bytes) => Digest::of(bytes),
            Self::Scratch(start, n) => Digest::of(&scratch[*start..start + n]),
            Self::Strided(_) => {
                let mut hasher = Hasher::new();
                self.for_each_piece(scratch, |piece| {
                    hasher.write(piece);
                    Ok(())
                })
                .unwrap_or_default(); // the closure cannot fail
                Digest(hasher.finish())
            }
        }
    }
}

/// What is done about a leaf.
enum Plan {
    /// Without a digest if the sketch says that it is new: hashed while it is written.
    Store(Option<Digest>),
    Alias {
        name: String,
        hint: Hint,
        same_shape: bool,
    },
}

enum Hint {
    At(u64),
    /// The n-th leaf of the same record, whose place is not known yet.
    Leaf(usize),
}

/// Where each constant of the record under construction went.
struct Placed {
    leaf: usize,
    node: u64,
    /// Where the digits of its digest are.
    digits: Option<u64>,
    external: Option<(u64, u64)>,
}
/// From so many bytes on, what is new by its sketch is read once: hashed and written piece by piece.
const LARGE: usize = 1 << 20;
/// Up to so much is gathered once and held until it is written; beyond, memory is read twice.
const SCRATCH: usize = 4 << 20;

/// One dump being written. See [`Writer::append`].
pub struct Writer {
    options: Options,
    provenance: String,
    run: String,
    part: u32,
    first: PathBuf,
    path: PathBuf,
    file: File,
    /// Files of earlier parts: their locks say that the dump is still being written.
    earlier: Vec<File>,
    /// The process that opened it: a forked child must not write.
    owner: u32,
    closed: bool,
    opset: u8,
    opset_at: u64,
    graph_word_at: u64,
    /// Where the arena's header is, and where the next record will be.
    position: u64,
    /// Where arena, graph and file end.
    end: u64,
    inline_bytes: u64,
    data: Option<DataFile>,
    seen: Seen,
    /// `(hash of the key, offset with the skipped flag)`, in chunks: none is ever copied to grow.
    index: Vec<Vec<[u64; 2]>>,
    head: Vec<u8>,
    scratch: Vec<u8>,
    records: u64,
    skipped: u64,
    bytes_seen: u64,
    bytes_written: u64,
}

const INDEX_CHUNK: usize = 4096;

impl Writer {
    /// Starts a dump; whatever `path` is now is replaced by a new inode.
    ///
    /// `provenance` is a JSON object.
    ///
    /// # Errors
    /// [`Error::Locked`] if another live capture is writing the file, [`Error::Io`] otherwise.
    pub fn create(path: &Path, provenance: &str, options: Options) -> Result<Self> {
        check_location(path)?;
        let run = random_id();
        let created = create_part(path, &part_provenance(provenance, &run, 0))?;
        Ok(Self {
            options,
            provenance: provenance.to_owned(),
            run,
            part: 0,
            first: path.to_owned(),
            path: path.to_owned(),
            file: created.file,
            earlier: Vec::new(),
            owner: std::process::id(),
            closed: false,
            opset: BASE_OPSET,
            opset_at: created.opset_at,
            graph_word_at: created.graph_word_at,
            position: created.position,
            end: created.end,
            inline_bytes: 0,
            data: None,
            seen: Seen::new(),
            index: Vec::new(),
            head: Vec::new(),
            scratch: Vec::new(),
            records: 0,
            skipped: 0,
            bytes_seen: 0,
            bytes_written: 0,
        })
    }

    /// Appends one record; when this returns, a kill no longer loses it.
    ///
    /// Returns the reason if the values were left out for a limit: shape, dtype and statistics are
    /// kept then.
    ///
    /// # Errors
    /// [`Error::Io`] if it could not be written: the record is lost, the file stays valid.
    /// [`Error::Closed`] after [`Writer::close`]; a forked child gets it too.
    pub fn append(&mut self, record: &Record) -> Result<Option<String>> {
        if self.closed || std::process::id() != self.owner {
            return Err(Error::Closed(self.path.clone()));
        }
        let longest = record.key.len().max(record.prefix.len());
        if longest > LONGEST_NAME {
            return Err(Error::Name { path: self.path.clone(), bytes: longest });
        }
        let total: u64 = record.leaves.iter().map(|l| l.tensor.nbytes() as u64).sum();
        self.bytes_seen += total;
        if let Some(limit) = self.options.storage_limit.filter(|limit| total > *limit) {
            let reason = format!("{total} bytes are over the storage limit of {limit}");
            return self.append_skipped(record, reason);
        }
        self.roll_over_for(record, total)?;
        let (sources, mut plans) = self.plan(record.leaves);
        let new: u64 = plans
            .iter()
            .zip(record.leaves)
            .filter(|(plan, _)| matches!(plan, Plan::Store(_)))
            .map(|(_, leaf)| leaf.tensor.nbytes() as u64)
            .sum();
        if let Some(limit) = self.options.total_limit.filter(|l| self.bytes_written + new > *l) {
            let written = self.bytes_written;
            let reason =
                format!("{new} new bytes after {written} are over the total limit of {limit}");
            return self.append_skipped(record, reason);
        }
        self.append_stored(record, &sources, &mut plans, new)?;
        self.records += 1;
        Ok(None)
    }

    /// Decides what is new, by the bytes.
    fn plan<'a>(&mut self, leaves: &'a [Leaf]) -> (Vec<Source<'a>>, Vec<Plan>) {
        self.scratch.clear();
        let mut sources = Vec::with_capacity(leaves.len());
        let mut plans: Vec<Plan> = Vec::with_capacity(leaves.len());
        let mut here: HashMap<(u128, DataType), usize> = HashMap::new();
        let mut unhashed: Vec<(Sketch, usize)> = Vec::new();
        for (i, leaf) in leaves.iter().enumerate() {
            let tensor = &leaf.tensor;
            sources.push(self.source(tensor));
            if tensor.nbytes() >= LARGE {
                let sketch = Sketch::of(tensor);
                if self.seen.note(sketch) {
                    plans.push(Plan::Store(None));
                    unhashed.push((sketch, i));
                    continue;
                }
                // Those of this record that may be the same must be known now.
                for &(_, j) in unhashed.iter().filter(|(other, _)| *other == sketch) {
                    let digest = sources[j].digest(&self.scratch);
                    here.entry((digest.0, leaves[j].tensor.dtype())).or_insert(j);
                    plans[j] = Plan::Store(Some(digest));
                }
                unhashed.retain(|(other, _)| *other != sketch);
            }
            let digest = sources[i].digest(&self.scratch);
            let (dtype, dims) = (tensor.dtype(), tensor.dims());
            if tensor.nbytes() == 0 {
                plans.push(Plan::Store(Some(digest)));
                continue;
            }
            if let Some(&first) = here.get(&(digest.0, dtype)) {
                let same_shape = leaves[first].tensor.dims() == dims;
                if can_alias(dtype, same_shape) {
                    // The name is filled in by the layout, which knows the prefix.
                    let (name, hint) = (String::new(), Hint::Leaf(first));
                    plans.push(Plan::Alias { name, hint, same_shape });
                    continue;
                }
            }
            let file = &self.file;
            let read = |offset| read_original(file, offset);
            if let Some(original) = self.seen.find(digest, dtype, read) {
                let same_shape = original.dims == dims;
                if can_alias(dtype, same_shape) {
                    let (name, hint) = (original.name.clone(), Hint::At(original.offset));
                    plans.push(Plan::Alias { name, hint, same_shape });
                    continue;
                }
            }
            if leaves.len() > 1 {
                here.entry((digest.0, dtype)).or_insert(i);
            }
            plans.push(Plan::Store(Some(digest)));
        }
        (sources, plans)
    }

    fn source<'a>(&mut self, tensor: &'a TensorRef) -> Source<'a> {
        if let Some(bytes) = tensor.contiguous() {
            return Source::Memory(bytes);
        }
        let (start, nbytes) = (self.scratch.len(), tensor.nbytes());
        if start + nbytes > SCRATCH {
            return Source::Strided(tensor);
        }
        self.scratch.resize(start + nbytes, 0);
        tensor.gather().fill(&mut self.scratch[start..]);
        Source::Scratch(start, nbytes)
    }

    /// Lays the record out, writes its bytes and commits it.
    fn append_stored(
        &mut self,
        record: &Record,
        sources: &[Source],
        plans: &mut [Plan],
        new: u64,
    ) -> Result<()> {
        let names = value_names(record);
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        let json = record_json(record, &names, None);
        put_entry(&mut head, field::GRAPH_METADATA, record.key, &json);
        for (name, leaf) in names.iter().zip(record.leaves) {
            put_output(&mut head, name, leaf.tensor.dtype(), &leaf.tensor.dims());
        }
        let result = self.write_record(record, &names, sources, plans, &mut head);
        self.head = head;
        let (placed, record_at) = result?;
        for p in placed {
            let tensor = &record.leaves[p.leaf].tensor;
            let Plan::Store(Some(digest)) = plans[p.leaf] else {
                continue;
            };
            match p.external {
                Some(_) => {}
                None => self.inline_bytes += tensor.nbytes() as u64,
            }
            if tensor.nbytes() > 0 {
                self.seen.insert(Original {
                    digest,
                    dtype: tensor.dtype(),
                    dims: tensor.dims(),
                    name: names[p.leaf].clone(),
                    offset: p.node,
                });
            }
        }
        self.bytes_written += new;
        self.push_index(record.key, record_at);
        Ok(())
    }

    fn write_record(
        &mut self,
        record: &Record,
        names: &[String],
        sources: &[Source],
        plans: &mut [Plan],
        head: &mut Vec<u8>,
    ) -> Result<(Vec<Placed>, u64)> {
        let start = self.position;
        // Pieces of the head, each followed by the bytes of a leaf.
        let mut cuts: Vec<(usize, usize)> = Vec::new();
        let mut placed: Vec<Placed> = Vec::with_capacity(plans.len());
        let mut payload = 0u64;
        let mut inline_left = self.options.inline_limit.saturating_sub(self.inline_bytes);
        let mut data_end = self.data.as_ref().map_or(0, |data| data.end);
        let mut nodes = vec![0u64; plans.len()];
        let mut opset = self.opset;
        let data_name = format!("{}.data", file_name(&self.path));
        for (i, (plan, leaf)) in plans.iter().zip(record.leaves).enumerate() {
            let tensor = &leaf.tensor;
            let (dtype, nbytes, dims) = (tensor.dtype(), tensor.nbytes() as u64, tensor.dims());
            opset = opset.max(dtype.opset());
            let base = start + payload;
            match plan {
                Plan::Store(digest) => {
                    let node = base + head.len() as u64;
                    nodes[i] = node;
                    let external = nbytes > 0 && (self.options.external || nbytes > inline_left);
                    let (external, place) = if external {
                        let offset = data_end.next_multiple_of(alignment(nbytes));
                        data_end = offset + nbytes;
                        let place = Place::External { location: &data_name, offset, nbytes };
                        (Some((offset, nbytes)), place)
                    } else {
                        (None, Place::Inline(nbytes))
                    };
                    let digest = Some(digest.unwrap_or(Digest(0)));
                    let digits = put_constant(head, base, &names[i], dtype, &dims, digest, &place);
                    placed.push(Placed { leaf: i, node, digits, external });
                    if external.is_none() {
                        inline_left -= nbytes;
                        payload += nbytes;
                        cuts.push((head.len(), i));
                    }
                }
                Plan::Alias { name, hint, same_shape } => {
                    let (name, hint) = match hint {
                        Hint::At(offset) => (name, *offset),
                        Hint::Leaf(first) => (&names[*first], nodes[*first]),
                    };
                    let reshape = (!same_shape).then_some(dims.as_slice());
                    put_alias(head, base, &names[i], name, hint, reshape);
                }
            }
        }
        let gap = filler_to(start + payload + head.len() as u64, RECORD_ALIGN);
        put_filler(head, gap);
        let next = start + payload + head.len() as u64;
        self.reserve(next)?;
        head.extend_from_slice(&filler_header(self.end - next - FILLER_HEADER));
        self.raise_opset(opset)?;
        if self.data.is_none() && placed.iter().any(|p| p.external.is_some()) {
            self.data = Some(DataFile::create(&self.path)?);
        }
        let unhashed: Vec<&Placed> =
            placed.iter().filter(|p| matches!(plans[p.leaf], Plan::Store(None))).collect();
        self.write_external(&placed, sources, plans)?;
        self.write_body(head, &cuts, sources, plans)?;
        for p in unhashed {
            if let (Plan::Store(Some(digest)), Some(digits)) = (&plans[p.leaf], p.digits) {
                self.file.write_all_at(digest.hex().as_bytes(), digits).at(&self.path)?;
            }
        }
        if self.options.sync {
            self.file.sync_data().at(&self.path)?;
        }
        self.file.write_all_at(&head[..8], start).at(&self.path)?;
        if self.options.sync {
            self.file.sync_data().at(&self.path)?;
        }
        self.position = next;
        if let Some(data) = &mut self.data {
            data.end = data_end;
        }
        Ok((placed, start))
    }

    /// Everything but the record's first eight bytes, which commit it, and the next arena header.
    fn write_body(
        &self,
        head: &[u8],
        cuts: &[(usize, usize)],
        sources: &[Source],
        plans: &mut [Plan],
    ) -> Result<()> {
        let mut output = Gathered::new(&self.file, self.position + 8);
        let mut from = 8;
        for &(upto, leaf) in cuts {
            output.push(&head[from..upto]);
            from = upto;
            self.write_leaf(&mut output, &sources[leaf], &mut plans[leaf]).at(&self.path)?;
        }
        output.push(&head[from..]);
        output.flush().at(&self.path)
    }

    /// Data first, then the commit of the record that refers to them.
    fn write_external(
        &self,
        placed: &[Placed],
        sources: &[Source],
        plans: &mut [Plan],
    ) -> Result<()> {
        let Some(data) = &self.data else {
            return Ok(());
        };
        let mut written = false;
        for p in placed {
            let Some((offset, _)) = p.external else {
                continue;
            };
            let mut output = Gathered::new(&data.file, offset);
            self.write_leaf(&mut output, &sources[p.leaf], &mut plans[p.leaf])
                .and_then(|()| output.flush())
                .at(&data.path)?;
            written = true;
        }
        if written && self.options.sync {
            data.file.sync_data().at(&data.path)?;
        }
        Ok(())
    }

    /// Writes the bytes of a leaf, and hashes them on the way if that was left for now.
    fn write_leaf<'a>(
        &'a self,
        output: &mut Gathered<'a>,
        source: &Source<'a>,
        plan: &mut Plan,
    ) -> io::Result<()> {
        if let Plan::Store(digest @ None) = plan {
            let mut hasher = Hasher::new();
            output.flush()?;
            source.for_each_piece(&self.scratch, |piece| {
                hasher.write(piece);
                output.write(piece)
            })?;
            *digest = Some(Digest(hasher.finish()));
            return Ok(());
        }
        match source {
            Source::Memory(bytes) => output.push(bytes),
            Source::Scratch(start, n) => output.push(&self.scratch[*start..start + n]),
            Source::Strided(_) => {
                output.flush()?;
                source.for_each_piece(&self.scratch, |piece| output.write(piece))?;
            }
        }
        Ok(())
    }

    fn append_skipped(&mut self, record: &Record, reason: String) -> Result<Option<String>> {
        let names = value_names(record);
        let json = record_json(record, &names, Some(&reason));
        self.roll_over_if_over(json.len() as u64 + record.key.len() as u64 + 4096)?;
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        put_entry(&mut head, field::GRAPH_METADATA, record.key, &json);
        let empty = Record { leaves: &[], ..*record };
        let result = self.write_record(&empty, &[], &[], &mut [], &mut head);
        self.head = head;
        let (_, record_at) = result?;
        self.push_index(record.key, record_at | SKIPPED_FLAG);
        self.skipped += 1;
        Ok(Some(reason))
    }

    fn push_index(&mut self, key: &str, entry: u64) {
        if self.index.last().is_none_or(|chunk| chunk.len() == INDEX_CHUNK) {
            self.index.push(Vec::with_capacity(INDEX_CHUNK));
        }
        if let Some(chunk) = self.index.last_mut() {
            chunk.push([key_hash(key), entry]);
        }
    }

    fn raise_opset(&mut self, opset: u8) -> Result<()> {
        if opset > self.opset {
            self.file.write_all_at(&[opset], self.opset_at).at(&self.path)?;
            self.opset = opset;
        }
        Ok(())
    }

    /// Records of this part.
    fn entries(&self) -> usize {
        let full = self.index.len().saturating_sub(1) * INDEX_CHUNK;
        full + self.index.last().map_or(0, Vec::len)
    }

    /// Bytes that close will write behind the last record.
    fn tail_len(&self) -> u64 {
        (self.entries() as u64 + 1) * 16 + 256 + self.path.as_os_str().len() as u64
    }

    /// Makes the arena reach beyond `upto`, with room for its next header and for close.
    fn reserve(&mut self, upto: u64) -> Result<()> {
        let need = upto + 2 * FILLER_HEADER + self.tail_len();
        if need <= self.end {
            return Ok(());
        }
        let step = (self.end / 2).clamp(MIN_STEP, MAX_STEP);
        // The limit leaves room beyond it for readers, but not for a step.
        let new_end = (need + step).min(PART_LIMIT.max(need)).next_multiple_of(8);
        let arena = Arena { end: new_end, ..self.arena() };
        arena.extend(&self.file, self.end).at(&self.path)?;
        self.end = new_end;
        Ok(())
    }

    fn arena(&self) -> Arena {
        Arena { position: self.position, end: self.end, graph_word_at: self.graph_word_at }
    }

    /// Rolls over if the record, at its largest, does not fit.
    fn roll_over_for(&mut self, record: &Record, total: u64) -> Result<()> {
        let names: u64 = record
            .leaves
            .iter()
            .map(|leaf| {
                4 * (record.prefix.len() + leaf.path.len() + leaf.info.len()) as u64
                    + 40 * leaf.tensor.shape().len() as u64
                    + 4096
                    + 1024
            })
            .sum();
        let text = record.key.len() + record.tree.len() + record.info.len();
        let inline = if self.options.external {
            0
        } else {
            total.min(self.options.inline_limit.saturating_sub(self.inline_bytes))
        };
        self.roll_over_if_over(names + text as u64 + inline + 4096)
    }

    fn roll_over_if_over(&mut self, need: u64) -> Result<()> {
        let limit = self.options.part_limit;
        if self.position + need + self.tail_len() <= limit {
            return Ok(());
        }
        if need + 64 * 1024 > limit {
            return Err(Error::TooLarge { path: self.path.clone(), need, limit });
        }
        let part = self.part + 1;
        let next = part_path(&self.first, part);
        let created = create_part(&next, &part_provenance(&self.provenance, &self.run, part))?;
        if let Err(error) = self.finish(Some(&file_name(&next))) {
            let _ = std::fs::remove_file(&next);
            return Err(error);
        }
        self.part = part;
        self.path = next;
        self.earlier.push(std::mem::replace(&mut self.file, created.file));
        self.opset = BASE_OPSET;
        self.opset_at = created.opset_at;
        self.graph_word_at = created.graph_word_at;
        self.position = created.position;
        self.end = created.end;
        self.inline_bytes = 0;
        self.data = None;
        self.seen = Seen::new();
        self.index = Vec::new();
        Ok(())
    }

    /// Writes the index and cuts the file. Does nothing the second time, nor in a forked child.
    ///
    /// # Errors
    /// [`Error::Io`] if the index could not be written; the file is valid, cut, and not complete.
    /// [`Error::Replaced`] if the dump is no longer to be found at its path.
    pub fn close(&mut self) -> Result<()> {
        if self.closed || std::process::id() != self.owner {
            return Ok(());
        }
        self.closed = true;
        self.seen = Seen::new();
        let result = self.finish(None).and_then(|()| self.check_name());
        // A forked child may hold the descriptor: the lock ends here whoever else has it open.
        unlock(&self.file);
        self.earlier.iter().for_each(unlock);
        result
    }

    fn check_name(&self) -> Result<()> {
        let ours = self.file.metadata().at(&self.path)?;
        match std::fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => Ok(()),
            _ => Err(Error::Replaced(self.path.clone())),
        }
    }

    fn finish(&mut self, next: Option<&str>) -> Result<()> {
        let (key, value) = match next {
            Some(name) => (NEXT_PART, name),
            None => (COMPLETE, "1"),
        };
        let tail = tail(key, value, self.entries(), self.index.iter().flatten());
        let reserved = self.reserve(self.position + FILLER_HEADER + tail.len() as u64);
        let arena = self.arena();
        reserved.and_then(|()| arena.finish(&self.file, tail).at(&self.path)).or_else(|error| {
            arena.finish(&self.file, Vec::new()).at(&self.path)?;
            self.end = self.position + FILLER_HEADER;
            Err(error)
        })?;
        if self.options.sync {
            self.file.sync_all().at(&self.path)?;
        }
        Ok(())
    }

    /// Whether [`Writer::close`] was called.
    #[must_use]
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// Records stored.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Records whose values were left out by a limit.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Logical bytes of all tensors offered.
    #[must_use]
    pub fn bytes_seen(&self) -> u64 {
        self.bytes_seen
    }

    /// Payload bytes that went to the file and its external data.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }
}

impl Drop for Writer {
    /// Best effort: who wants to know calls `close`.
    fn drop(&mut self) {
        let _ = self.close();
    }
}
const MIN_STEP: u64 = 256 << 10;
const MAX_STEP: u64 = 64 << 20;

fn can_alias(dtype: DataType, same_shape: bool) -> bool {
    if same_shape {
        dtype.has_identity()
    } else {
        dtype.has_reshape()
    }
}
