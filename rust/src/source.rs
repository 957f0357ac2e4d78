//! Where bytes are read from: a mapping, a file, or a piece of one.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, MmapMut, MmapOptions};

use crate::native::Piece;

/// How a dump is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A copy-on-write mapping: writing to a tensor is safe and stays in memory.
    #[default]
    Private,
    /// A read-only mapping: writing to a tensor crashes.
    ReadOnly,
    /// Plain reads into memory of their own.
    Pread,
}

/// Memory aligned as the file's tensors are.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Line([u8; 64]);

/// Bytes that live as long as someone refers to them.
pub(crate) enum Memory {
    Private(MmapMut),
    ReadOnly(Mmap),
    Owned(Vec<Line>, usize),
}

impl Memory {
    pub(crate) fn owned(len: usize) -> Self {
        Self::Owned(vec![Line([0; 64]); len.div_ceil(64)], len)
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut memory = Self::owned(bytes.len());
        if let Some(space) = memory.space() {
            space.copy_from_slice(bytes);
        }
        memory
    }

    #[allow(unsafe_code)]
    fn space(&mut self) -> Option<&mut [u8]> {
        match self {
            // SAFETY: the lines are plain bytes, and `len` of them were allocated.
            Self::Owned(lines, len) => {
                Some(unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), *len) })
            }
            _ => None,
        }
    }

    #[allow(unsafe_code)]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Private(map) => map,
            Self::ReadOnly(map) => map,
            // SAFETY: the lines are plain bytes, and `len` of them were allocated.
            Self::Owned(lines, len) => unsafe {
                std::slice::from_raw_parts(lines.as_ptr().cast(), *len)
            },
        }
    }
}

/// A range of shared memory: what a tensor is a view of.
pub(crate) struct Shared {
    pub(crate) memory: Arc<Memory>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl Shared {
    pub(crate) fn owned(bytes: &[u8]) -> Self {
        Self { memory: Arc::new(Memory::copy_of(bytes)), offset: 0, len: bytes.len() }
    }

    /// Whether the memory is this tensor's alone.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(*self.memory, Memory::Owned(_, len) if self.offset == 0 && self.len == len)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.offset..self.offset + self.len]
    }
}

/// How far a header is read ahead, at least and where one follows the other at most.
const AHEAD: std::ops::RangeInclusive<usize> = 4 << 10..=64 << 10;

/// The most of a file that is read at once to find a header.
const MOST_HEADER: usize = 64 << 20;

/// So many pieces of a file are remembered: a record's header stands in one, those of the tensors
/// that it shares in others.
const WINDOWS: usize = 32;

/// A descriptor from this number on is closed once its file is mapped: a process may have many
/// dumps open, and often a thousand descriptors at most.
const SCARCE: i32 = 256;

/// The bytes from an offset on, as far as they were fetched.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
    /// When it was last of use.
    used: u64,
}

impl Window {
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

/// The pieces of a file that were read last.
#[derive(Default)]
struct Windows {
    all: Vec<Window>,
    last: usize,
    clock: u64,
}

impl Windows {
    fn get(&mut self, file: &File, offset: u64, len: usize) -> Option<&[u8]> {
        let hit = |window: &Window| window.get(offset, len).is_some();
        if !self.all.get(self.last).is_some_and(hit) {
            self.clock += 1;
            self.last = match self.all.iter().position(hit) {
                Some(found) => found,
                None => self.fetch(file, offset, len),
            };
            self.all[self.last].used = self.clock;
        }
        self.all[self.last].get(offset, len)
    }

    /// What was fetched from `offset` on, `least` bytes or more.
    fn rest(&mut self, file: &File, offset: u64, least: usize) -> Option<&[u8]> {
        self.get(file, offset, least)?;
        let window = &self.all[self.last];
        window.bytes.get(usize::try_from(offset - window.start).ok()?..)
    }

    /// Reads what stands at `offset` in place of what was not used for longest.
    fn fetch(&mut self, file: &File, offset: u64, len: usize) -> usize {
        let follows = self.all.get(self.last).filter(|last| {
            let end = last.start + last.bytes.len() as u64;
            (last.start..=end).contains(&offset)
        });
        let ahead = follows.map_or(0, |last| 2 * last.bytes.len());
        let oldest = if follows.is_some() {
            self.last
        } else if self.all.len() < WINDOWS {
            self.all.push(Window::default());
            self.all.len() - 1
        } else {
            (0..WINDOWS).min_by_key(|i| self.all[*i].used).unwrap_or(0)
        };
        let window = &mut self.all[oldest];
        window.start = offset;
        window.bytes.resize(ahead.clamp(*AHEAD.start(), *AHEAD.end()).max(len), 0);
        let have = read_up_to(file, &mut window.bytes, offset);
        window.bytes.truncate(have);
        oldest
    }
}

/// As many bytes as there are, up to those asked for.
fn read_up_to(file: &File, space: &mut [u8], offset: u64) -> usize {
    let mut have = 0;
    while have < space.len() {
        match file.read_at(&mut space[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    have
}

/// Headers are read from the file while it is open: the mapping would cost a page fault for each,
/// several times as much. Tensors are views of the mapping where there is one.
pub(crate) struct Source {
    memory: Option<Arc<Memory>>,
    file: Option<(File, Mutex<Windows>)>,
    pub(crate) len: u64,
}

impl Source {
    #[allow(unsafe_code)]
    pub(crate) fn open(file: File, mode: Mode) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if mode == Mode::Pread || len == 0 {
            return Ok(Self { memory: None, file: Some((file, Mutex::default())), len });
        }
        let size = usize::try_from(len).map_err(io::Error::other)?;
        let mut options = MmapOptions::new();
        options.len(size);
        // SAFETY: as with every mapping, another process may change the file; `docs/format.md`
        // says so where modes are explained, and `Mode::Pread` is for files that may.
        let memory = unsafe {
            match mode {
                // Without a reservation, a dump may be larger than the memory that is free.
                Mode::Private => Memory::Private(options.no_reserve_swap().map_copy(&file)?),
                _ => Memory::ReadOnly(options.map(&file)?),
            }
        };
        let keep = file.as_raw_fd() < SCARCE;
        let file = keep.then(|| (file, Mutex::default()));
        Ok(Self { memory: Some(Arc::new(memory)), file, len })
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self::start(bytes, bytes.len() as u64)
    }

    /// What `len` bytes begin with, for parsing headers.
    pub(crate) fn start(bytes: &[u8], len: u64) -> Self {
        Self { memory: Some(Arc::new(Memory::copy_of(bytes))), file: None, len }
    }

    /// The open file, where it is kept.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref().map(|(file, _)| file)
    }

    /// All of it, where headers are read from memory.
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        let memory = self.memory.as_ref().filter(|_| self.file.is_none());
        memory.map(|memory| memory.bytes())
    }

    /// Gives `work` the bytes of a header: `len` of them from `offset` on, fewer at the end; `None`
    /// if they cannot be read.
    pub(crate) fn with<T>(
        &self,
        offset: u64,
        len: usize,
        work: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let available = usize::try_from(self.len.checked_sub(offset)?).unwrap_or(usize::MAX);
        let len = len.min(available);
        if let Some((file, windows)) = &self.file {
            let mut windows = windows.lock().unwrap_or_else(PoisonError::into_inner);
            return windows.get(file, offset, len).map(work);
        }
        let start = usize::try_from(offset).ok()?;
        self.memory()?.get(start..start + len).map(work)
    }

    /// What `read` finds in what stands from `offset` on, of which it is given more until it is
    /// enough.
    pub(crate) fn find<T>(
        &self,
        offset: u64,
        mut read: impl FnMut(&mut Piece) -> Option<T>,
    ) -> Option<T> {
        let left = usize::try_from(self.len.checked_sub(offset)?).unwrap_or(usize::MAX);
        if let Some((file, windows)) = &self.file {
            let mut windows = windows.lock().unwrap_or_else(PoisonError::into_inner);
            for least in [1, *AHEAD.start(), *AHEAD.end()] {
                let mut piece = Piece::new(windows.rest(file, offset, least.min(left))?, offset);
                match read(&mut piece) {
                    None if piece.short => {}
                    found => return found,
                }
            }
        }
        match (&self.memory, &self.file) {
            (Some(memory), _) => {
                let rest = memory.bytes().get(usize::try_from(offset).ok()?..)?;
                read(&mut Piece::new(rest, offset))
            }
            // A header of which most is text.
            (None, Some(_)) => {
                let bytes = self.read(offset, left.min(MOST_HEADER) as u64)?;
                read(&mut Piece::new(&bytes, offset))
            }
            (None, None) => None,
        }
    }

    /// Exactly `len` bytes.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        let size = usize::try_from(len).ok()?;
        let end = usize::try_from(offset.checked_add(len)?).ok()?;
        if end as u64 > self.len {
            return None;
        }
        let is_header = self.file.is_some() && size <= *AHEAD.end();
        match (&self.memory, &self.file) {
            (Some(memory), _) if !is_header => {
                memory.bytes().get(end - size..end).map(Cow::Borrowed)
            }
            (None, Some((file, _))) if !is_header => {
                let mut bytes = vec![0; size];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(Cow::Owned(bytes))
            }
            _ => self.with(offset, size, <[u8]>::to_vec).map(Cow::Owned),
        }
    }

    /// A view of the mapping, where there is one and its alignment allows.
    pub(crate) fn view(&self, offset: u64, len: u64, align: usize) -> Option<Shared> {
        let memory = self.memory.as_ref()?;
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let bytes = memory.bytes().get(offset..offset.checked_add(len)?)?;
        let aligned = bytes.as_ptr().align_offset(align) == 0;
        aligned.then(|| Shared { memory: memory.clone(), offset, len })
    }

    /// Bytes that a tensor can refer to: a view of the mapping, else a copy.
    pub(crate) fn share(&self, offset: u64, len: u64, align: usize) -> io::Result<Shared> {
        if let Some(view) = self.view(offset, len, align) {
            return Ok(view);
        }
        let out_of_range = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let size = usize::try_from(len).map_err(io::Error::other)?;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out_of_range());
        }
        if let Some(memory) = &self.memory {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let bytes = memory.bytes().get(start..start + size).ok_or_else(out_of_range)?;
            return Ok(Shared::owned(bytes));
        }
        let (file, _) = self.file.as_ref().ok_or_else(out_of_range)?;
        let mut memory = Memory::owned(size);
        if let Some(space) = memory.space() {
            file.read_exact_at(space, offset)?;
        }
        Ok(Shared { memory: Arc::new(memory), offset: 0, len: size })
    }
}

/// Whether a location has a meaning of its own to some reader, or none to any.
pub(crate) fn is_refused(location: &str) -> bool {
    location.is_empty() || location.contains(['\0', '\\']) || location.starts_with(['#', '*'])
}

/// Opens external data as its location may be trusted: a regular file below the model's folder, by
/// a relative path without a link, and with no other name.
pub(crate) fn open_external(folder: &Path, location: &str) -> Result<File, String> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Component;

    let bad = |what: &str| format!("external data at {location:?}: {what}");
    if is_refused(location) {
        return Err(bad("expected a relative path"));
    }
    let mut path = folder.to_owned();
    for component in Path::new(location).components() {
        let Component::Normal(name) = component else {
            return Err(bad("expected a relative path without `..`"));
        };
        path.push(name);
        let link = std::fs::symlink_metadata(&path).map_err(|e| bad(&e.to_string()))?;
        if link.is_symlink() {
            return Err(bad("symbolic links are not followed"));
        }
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| bad(&e.to_string()))?;
    let metadata = file.metadata().map_err(|e| bad(&e.to_string()))?;
    if !metadata.is_file() {
        return Err(bad("expected a regular file"));
    }
    if metadata.nlink() > 1 {
        return Err(bad("expected a file with one name, it has several (hard links)"));
    }
    Ok(file)
}
