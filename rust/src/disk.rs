//! The files of a dump: created, grown and cut so that each is a valid model at every moment.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::AtPath;
use crate::layout::{put_entry, Header, INDEX_FIELD};
use crate::source::is_refused;
use crate::wire::{self, filler_header, put_tag, put_varint, FILLER_HEADER, LEN};
use crate::{Error, Result, TensorRef};

const INITIAL_ARENA: u64 = 256 << 10;
/// What is read a piece at a time: so many bytes, which stay in a core's cache.
pub(crate) const PIECE: usize = 1 << 20;

/// The unused tail of a file, and how it is cut.
pub(crate) struct Arena {
    pub(crate) position: u64,
    pub(crate) end: u64,
    pub(crate) graph_word_at: u64,
}

impl Arena {
    /// Makes file, graph and arena reach to `self.end` from `old_end`.
    ///
    /// A kill between the first two calls leaves zeros behind the graph, which `load` and `repair`
    /// mend: no system call extends a file and writes to its end at once.
    pub(crate) fn extend(&self, file: &File, old_end: u64) -> io::Result<()> {
        if self.end > old_end {
            grow(file, old_end, self.end)?;
            let header = filler_header(self.end - old_end - FILLER_HEADER);
            if let Err(error) = file.write_all_at(&header, old_end) {
                file.set_len(old_end)?;
                return Err(error);
            }
        }
        write_graph_length(file, self.graph_word_at, self.end)?;
        file.write_all_at(&filler_header(self.end - self.position - FILLER_HEADER), self.position)
    }

    /// Ends the graph at the arena and puts `tail` (fields of the model) behind it.
    ///
    /// Every step leaves a valid model, and none allocates when `tail` is empty: (1) under cover of
    /// the arena, the tail behind a filler that covers it, and a filler for the rest; (2) the arena
    /// shrinks to nothing, its two fillers show; (3) the graph ends before them; (4) the rest is
    /// cut off; (5) one 8-byte write turns the filler's header into the tail's first bytes.
    pub(crate) fn finish(&self, file: &File, mut tail: Vec<u8>) -> io::Result<()> {
        let graph_end = self.position + FILLER_HEADER;
        let file_end = graph_end + tail.len() as u64;
        let first = tail.first_chunk().copied();
        if let Some(cover) = tail.first_chunk_mut() {
            *cover = filler_header(file_end - graph_end - FILLER_HEADER);
        }
        tail.extend_from_slice(&filler_header(self.end - file_end - FILLER_HEADER));
        file.write_all_at(&tail, graph_end)?;
        file.write_all_at(&filler_header(0), self.position)?;
        write_graph_length(file, self.graph_word_at, graph_end)?;
        file.set_len(file_end)?;
        if let Some(first) = first {
            let first: [u8; 8] = first;
            file.write_all_at(&first, graph_end)?;
        }
        Ok(())
    }
}

/// The fields behind the graph: a flag, and the index.
pub(crate) fn tail<'a>(
    key: &str,
    value: &str,
    entries: usize,
    index: impl Iterator<Item = &'a [u64; 2]>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries * 16 + 256);
    put_entry(&mut out, crate::layout::field::MODEL_METADATA, key, value);
    put_tag(&mut out, INDEX_FIELD, LEN);
    put_varint(&mut out, entries as u64 * 16);
    for [hash, offset] in index {
        out.extend_from_slice(&hash.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
    }
    out
}

/// Makes a file longer, with blocks of its own if there are enough: writing is faster then.
fn grow(file: &File, from: u64, to: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let (Ok(offset), Ok(length), None) =
        (from.try_into(), (to - from).try_into(), std::env::var_os("FS_NOFALL"))
    {
        // SAFETY: the descriptor is open; the call touches no memory.
        #[allow(unsafe_code)]
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, length) } == 0 {
            return Ok(());
        }
        // What it took of a disk that is nearly full is given back.
        file.set_len(from)?;
    }
    file.set_len(to)
}

pub(crate) fn write_graph_length(file: &File, word_at: u64, graph_end: u64) -> io::Result<()> {
    // The last byte of a filler of two, the tag, the length: one aligned word.
    let mut word = [0u8; 8];
    file.read_exact_at(&mut word, word_at)?;
    let mut length = Vec::with_capacity(5);
    wire::put_padded(&mut length, graph_end - (word_at + 8), 5);
    word[3..].copy_from_slice(&length);
    file.write_all_at(&word, word_at)
}

/// Collects slices and writes them with as few calls as there can be.
pub(crate) struct Gathered<'a> {
    pub(crate) file: &'a File,
    pub(crate) position: u64,
    pub(crate) slices: Vec<IoSlice<'a>>,
}

impl<'a> Gathered<'a> {
    pub(crate) fn new(file: &'a File, position: u64) -> Self {
        Self { file, position, slices: Vec::new() }
    }

    pub(crate) fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.slices.push(IoSlice::new(bytes));
        }
    }

    /// Writes at once, behind what was flushed.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.position)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    #[allow(unsafe_code)]
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        const MOST: usize = 1024; // IOV_MAX
        let mut slices = self.slices.as_mut_slice();
        while !slices.is_empty() {
            let count = slices.len().min(MOST);
            let offset = i64::try_from(self.position).map_err(io::Error::other)?;
            // SAFETY: an IoSlice is an iovec, and the bytes behind each are borrowed until then.
            let written = unsafe {
                #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
                libc::pwritev(
                    self.file.as_raw_fd(),
                    slices.as_ptr().cast(),
                    count as libc::c_int,
                    offset,
                )
            };
            match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.position += written as u64;
                    IoSlice::advance_slices(&mut slices, written);
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        self.slices.clear();
        Ok(())
    }
}

pub(crate) fn for_each_piece(
    tensor: &TensorRef,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut gather = tensor.gather();
    let mut piece = vec![0; PIECE];
    loop {
        let n = gather.fill(&mut piece);
        if n == 0 {
            return Ok(());
        }
        each(&piece[..n])?;
    }
}

pub(crate) struct DataFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) end: u64,
}

impl DataFile {
    /// A new inode: whoever has the old one mapped keeps it.
    pub(crate) fn create(model: &Path) -> Result<Self> {
        let name = format!("{}.data", file_name(model));
        let path = model.with_file_name(&name);
        remove_if_there(&path)?;
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(&path).at(&path)?;
        Ok(Self { file, path, end: 0 })
    }
}

pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).at(path),
        _ => Ok(()),
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// `run.onnx` → `run.1.onnx`.
pub(crate) fn part_path(first: &Path, part: u32) -> PathBuf {
    let stem = first.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    match first.extension() {
        Some(extension) => {
            first.with_file_name(format!("{stem}.{part}.{}", extension.to_string_lossy()))
        }
        None => first.with_file_name(format!("{stem}.{part}")),
    }
}

/// The user's object with the run's identity in front.
pub(crate) fn part_provenance(provenance: &str, run: &str, part: u32) -> String {
    let rest = provenance.trim_start().strip_prefix('{').unwrap_or("}").trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!(
        r#"{{"format":{},"run":"{run}","part":{part}{comma}{rest}"#,
        crate::layout::FORMAT_VERSION
    )
}

pub(crate) fn random_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

pub(crate) struct Created {
    pub(crate) file: File,
    pub(crate) opset_at: u64,
    pub(crate) graph_word_at: u64,
    pub(crate) position: u64,
    pub(crate) end: u64,
}

/// A valid model with an empty arena, complete before it gets its name.
pub(crate) fn create_part(path: &Path, provenance: &str) -> Result<Created> {
    let header = Header::new(provenance);
    let position = header.bytes.len() as u64;
    let end = position + INITIAL_ARENA;
    let temporary = path.with_file_name(format!(".{}.{}.tmp", file_name(path), random_id()));
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = match (opened, folder) {
        // What is not there is the folder: the file is yet to be made.
        (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
            Err(error).at(folder)
        }
        (opened, _) => opened.at(path),
    }?;
    let result = (|| {
        let mut bytes = header.bytes.clone();
        bytes.extend_from_slice(&filler_header(end - position - FILLER_HEADER));
        file.write_all_at(&bytes, 0).at(path)?;
        file.set_len(end).at(path)?;
        write_graph_length(&file, header.graph_word_at, end).at(path)?;
        lock(&file, path)?;
        publish(&temporary, path)
    })();
    if let Err(error) = result {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(Created {
        file,
        opset_at: header.opset_at,
        graph_word_at: header.graph_word_at,
        position,
        end,
    })
}

/// Opens what must be a plain file: a pipe would wait for a writer.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).at(path)?;
    let kind = file.metadata().at(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR)).at(path);
    }
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file"))
            .at(path);
    }
    Ok(file)
}

/// Gives the new file its name, unless a live capture is writing the one that has it.
pub(crate) fn publish(temporary: &Path, path: &Path) -> Result<()> {
    // Held until the new file is in place: of two captures that start at once, one waits or loses.
    let old = match open_regular(path) {
        Ok(old) => {
            lock(&old, path)?;
            Some(old)
        }
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        // Not readable: it cannot be a capture of this user; rename decides.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => None,
        Err(error) => return Err(error),
    };
    if let Some(old) = &old {
        let now = std::fs::metadata(path).at(path)?;
        if now.ino() != old.metadata().at(path)?.ino() {
            return Err(Error::Locked(path.to_owned()));
        }
    }
    std::fs::rename(temporary, path).at(path)?;
    if old.is_some() {
        // It belonged to what was just replaced. If it stays, nothing refers to it.
        let _ = remove_if_there(&path.with_file_name(format!("{}.data", file_name(path))));
    }
    Ok(())
}

/// Refuses a file whose external data no reader would take.
pub(crate) fn check_location(path: &Path) -> Result<()> {
    if is_refused(&file_name(path)) {
        let message = "expected a file name without a backslash, and not one with # or * in front";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message)).at(path);
    }
    Ok(())
}

/// A lock that other captures see; it ends with the process.
pub(crate) fn lock(file: &File, path: &Path) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Locked(path.to_owned())),
        // A file system without locks: better unprotected than unusable.
        Err(std::fs::TryLockError::Error(error))
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOLCK | libc::ENOTSUP | libc::ENOSYS)
            ) =>
        {
            Ok(())
        }
        Err(std::fs::TryLockError::Error(error)) => Err(error).at(path),
    }
}

pub(crate) fn unlock(file: &File) {
    let _ = file.unlock();
}
