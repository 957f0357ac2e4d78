//! The one error type of the crate.

use std::io;
use std::path::PathBuf;

/// What can go wrong, one variant per kind of failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the operating system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file it was about.
        path: PathBuf,
        /// The cause, whose kind decides the class of the exception.
        source: io::Error,
    },
    /// Another live capture holds the file.
    #[error("{}: another live capture is writing this file", .0.display())]
    Locked(PathBuf),
    /// Someone took the file's name away while it was being written.
    #[error("{}: the file was replaced or removed while it was being written", .0.display())]
    Replaced(PathBuf),
    /// The file is not what a reader can accept.
    #[error("{}: at byte {offset}: {message}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What was found and what was expected.
        message: String,
    },
    /// The writer was closed before.
    #[error("{}: the dump is closed", .0.display())]
    Closed(PathBuf),
    /// The reader was asked for a record that it does not have.
    #[error("record {index} of {len}")]
    Index {
        /// The number asked for.
        index: usize,
        /// How many there are.
        len: usize,
    },
    /// A key or prefix that no reader would accept.
    #[error("{}: a name of {bytes} bytes, expected at most {}", path.display(), crate::record::LONGEST_NAME)]
    Name {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// One record, external data not counted, is more than a file can hold.
    #[error("{}: a record needs {need} bytes, a file can have {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes needed.
        need: u64,
        /// Bytes that a file may have.
        limit: u64,
    },
}

/// `Result` with the crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Adds the path to an I/O error.
pub(crate) trait AtPath<T> {
    fn at(self, path: &std::path::Path) -> Result<T>;
}

impl<T> AtPath<T> for io::Result<T> {
    fn at(self, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Error::Io { path: path.to_owned(), source })
    }
}
