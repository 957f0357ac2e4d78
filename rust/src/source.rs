//! Where bytes are read from: a mapping, a file, or a piece of one.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, MmapOptions};

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

enum Kind {
    Memory(Arc<Memory>),
    File(File),
    /// The bytes from an offset on, as far as they were fetched.
    Window(u64, Vec<u8>),
}

pub(crate) struct Source {
    kind: Kind,
    pub(crate) len: u64,
}

impl Source {
    #[allow(unsafe_code)]
    pub(crate) fn open(file: File, mode: Mode) -> io::Result<Self> {
        let len = file.metadata()?.len();
        if mode == Mode::Pread || len == 0 {
            return Ok(Self { kind: Kind::File(file), len });
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
        Ok(Self { kind: Kind::Memory(Arc::new(memory)), len })
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self { kind: Kind::Memory(Arc::new(Memory::copy_of(bytes))), len: bytes.len() as u64 }
    }

    /// What stands around `offset` of a file of length `len`, for parsing headers.
    pub(crate) fn window(offset: u64, bytes: Vec<u8>, len: u64) -> Self {
        Self { kind: Kind::Window(offset, bytes), len }
    }

    /// Up to `len` bytes from `offset` on, fewer at the end; `None` if they cannot be read.
    pub(crate) fn peek(&self, offset: u64, len: usize) -> Option<Cow<'_, [u8]>> {
        let available = usize::try_from(self.len.checked_sub(offset)?).unwrap_or(usize::MAX);
        let len = len.min(available);
        match &self.kind {
            Kind::Memory(memory) => {
                let start = usize::try_from(offset).ok()?;
                Some(Cow::Borrowed(memory.bytes().get(start..start + len)?))
            }
            Kind::File(file) => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(Cow::Owned(bytes))
            }
            Kind::Window(base, bytes) => {
                let start = usize::try_from(offset.checked_sub(*base)?).ok()?;
                let end = (start + len).min(bytes.len());
                Some(Cow::Borrowed(bytes.get(start..end)?))
            }
        }
    }

    /// Exactly `len` bytes.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<Cow<'_, [u8]>> {
        let len = usize::try_from(len).ok()?;
        if offset.checked_add(len as u64)? > self.len {
            return None;
        }
        self.peek(offset, len).filter(|bytes| bytes.len() == len)
    }

    /// Bytes that a tensor can refer to: a view of the mapping where alignment allows, else a copy.
    pub(crate) fn share(&self, offset: u64, len: u64, align: usize) -> io::Result<Shared> {
        let out_of_range = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let size = usize::try_from(len).map_err(io::Error::other)?;
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out_of_range());
        }
        match &self.kind {
            Kind::Memory(memory) => {
                let start = usize::try_from(offset).map_err(io::Error::other)?;
                let bytes = memory.bytes().get(start..start + size).ok_or_else(out_of_range)?;
                if bytes.as_ptr().align_offset(align) != 0 {
                    return Ok(Shared::owned(bytes));
                }
                Ok(Shared { memory: memory.clone(), offset: start, len: size })
            }
            Kind::File(file) => {
                let mut memory = Memory::owned(size);
                if let Some(space) = memory.space() {
                    file.read_exact_at(space, offset)?;
                }
                Ok(Shared { memory: Arc::new(memory), offset: 0, len: size })
            }
            Kind::Window(..) => Err(out_of_range()),
        }
    }
}

/// Opens external data as its location may be trusted: a regular file below the model's folder, by
/// a relative path without a link, and with no other name.
pub(crate) fn open_external(folder: &Path, location: &str) -> Result<File, String> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Component;

    let bad = |what: &str| format!("external data at {location:?}: {what}");
    if location.is_empty() || location.contains(['\0', '\\']) || location.starts_with(['#', '*']) {
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
