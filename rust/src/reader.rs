//! A dump, read by its headers: hostile until proven otherwise.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use crate::disk::part_path;
use crate::layout::field;
use crate::native::Found;
use crate::parse::{output_name, parse_checksum};
use crate::part::{End, Part, MOST_HOPS};
use crate::record::{key_hash, SKIPPED_FLAG};
use crate::seen::Digest;
use crate::source::{Mode, Source};
use crate::value::{Output, Tensor};
use crate::wire::LEN;
use crate::{Error, Result};

/// A dump, and the parts it rolled over to.
pub struct Reader {
    parts: Vec<Part>,
    /// Number of the first record of each part.
    starts: Vec<usize>,
    /// Hash of each key and number of its record, sorted.
    by_key: OnceLock<Vec<(u64, u32)>>,
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
        Ok(Self::new(vec![Part::parse(path, None, Mode::Private, source)?]))
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
        Self { parts, starts, by_key: OnceLock::new() }
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

    /// How it was opened.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.parts[0].mode
    }

    /// Whether this is a dump of this crate.
    #[must_use]
    pub fn native(&self) -> bool {
        self.parts[0].native
    }

    /// Whether the capture was closed.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.parts.last().is_some_and(|part| part.end == End::Complete)
    }

    /// The JSON object that was given to the writer.
    #[must_use]
    pub fn provenance(&self) -> &str {
        &self.parts[0].provenance
    }

    fn entries(&self) -> impl Iterator<Item = (&Part, [u64; 2])> {
        self.parts.iter().flat_map(|part| part.index.iter().map(move |entry| (part, *entry)))
    }

    fn locate(&self, index: usize) -> Result<(&Part, [u64; 2])> {
        let part = self.starts.partition_point(|start| *start <= index).saturating_sub(1);
        let entry = self.parts[part].index.get(index - self.starts[part]);
        match entry {
            Some(entry) => Ok((&self.parts[part], *entry)),
            None => Err(Error::Index { index, len: self.len() }),
        }
    }

    /// Key of every record, in the order of writing.
    ///
    /// # Errors
    /// [`Error::Format`].
    pub fn keys(&self) -> Result<Vec<Cow<'_, str>>> {
        self.entries().map(|(part, entry)| part.record_key(entry)).collect()
    }

    /// Whether the values of each record were left out.
    #[must_use]
    pub fn skipped(&self) -> Vec<bool> {
        self.entries().map(|(_, entry)| entry[1] & SKIPPED_FLAG != 0).collect()
    }

    /// Number of the record with this key.
    ///
    /// # Errors
    /// [`Error::Format`] if the index names a record that is another.
    pub fn find(&self, key: &str) -> Result<Option<usize>> {
        let sorted = self.by_key.get_or_init(|| {
            let mut sorted: Vec<_> =
                (0u32..).zip(self.entries()).map(|(i, e)| (e.1[0], i)).collect();
            sorted.sort_unstable();
            sorted
        });
        let hash = key_hash(key);
        let start = sorted.partition_point(|(found, _)| *found < hash);
        for &(_, i) in sorted[start..].iter().take_while(|(found, _)| *found == hash) {
            let (part, entry) = self.locate(i as usize)?;
            if part.record_key(entry)? == key {
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
        let mut found = Found::default();
        self.read(index, &mut found)?;
        Ok((found.tree, found.tensors))
    }

    /// Reads a record and its key, from one look at its header.
    pub(crate) fn read(&self, index: usize, found: &mut Found) -> Result<()> {
        let (part, entry) = self.locate(index)?;
        if part.read_in_place(entry, found)? {
            return Ok(());
        }
        // Values were left out, or another tool saved the file again, in an order of its own.
        found.clear();
        let header = part.record_header(entry)?;
        let fail = |message: &str| Err(part.failure(header.at, message.to_owned()));
        let Some(count) = header.count() else {
            return fail("expected the number of tensors");
        };
        let Some(tree) = header.tree() else {
            return fail("expected a tree");
        };
        found.key.push_str(&header.key);
        found.tree.push_str(tree);
        if count == 0 {
            return Ok(());
        }
        let Some(names) = header.names() else {
            return fail("expected the names of the leaves");
        };
        if names.len() != count {
            return fail("the number of tensors is not that of the leaves");
        }
        for name in names {
            match part.resolve(name.as_bytes(), MOST_HOPS)? {
                Output::Tensor(tensor) => found.tensors.push(tensor),
                _ => return fail("expected tensors"),
            }
        }
        Ok(())
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
                    let name = output_name(&cursor, f)?;
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
        let parts = self.parts.iter().map(Part::on_disk).collect::<Result<Option<Vec<_>>>>();
        match parts {
            Ok(Some(parts)) => Self::new(parts).problems(),
            Ok(None) => self.problems(),
            Err(error) => vec![error.to_string()],
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut keys = std::collections::HashSet::new();
        for i in 0..self.len() {
            let checked = self.verify_record(i, &mut problems).map(|key| keys.insert(key));
            match checked {
                Ok(true) => {}
                Ok(false) => problems.push(format!("record {i}: its key stands for another too")),
                Err(error) => problems.push(error.to_string()),
            }
        }
        for part in self.parts.iter().filter(|part| part.native) {
            let path = part.path.display();
            match part.walk() {
                Ok((walked, _)) if walked != part.index => {
                    problems.push(format!("{path}: the index is not that of the records"));
                }
                Ok(_) => {}
                Err(error) => problems.push(error.to_string()),
            }
            if let Err(error) = part.check_definitions() {
                problems.push(error.to_string());
            }
            if part.zeros > 0 {
                problems.push(format!(
                    "{path}: other readers refuse the {} zeros at its end; a repair cuts them off",
                    part.zeros
                ));
            }
        }
        problems
    }

    fn verify_record(&self, index: usize, problems: &mut Vec<String>) -> Result<String> {
        let (part, entry) = self.locate(index)?;
        let key = part.record_header(entry)?.key.into_owned();
        for (i, tensor) in self.record(index)?.1.iter().enumerate() {
            let hex = parse_checksum(part.cursor(tensor.message.0, tensor.message.1))?;
            let digest = hex.and_then(|hex| Digest::from_hex(&hex));
            if digest.is_some_and(|digest| digest != Digest::of(tensor.bytes())) {
                problems.push(format!("{key}: tensor {i} is not the one that was written"));
            }
        }
        Ok(key)
    }

    /// The part that was written last.
    pub(crate) fn last_part(&self) -> &Part {
        &self.parts[self.parts.len() - 1]
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
    let Some(last) = parts.last().filter(|part| part.native && part.end != End::Complete) else {
        return Ok(None);
    };
    let Some(this) = run(last).filter(|run| run.part + 1 == number) else {
        return Ok(None);
    };
    match Part::open(&part_path(first, number), mode) {
        Ok(part) => {
            let next = Run { part: number, ..this };
            Ok(run(&part).filter(|run| *run == next).map(|_| part))
        }
        // What has that name may be anything, if it is not of this run.
        Err(Error::Format { .. }) => Ok(None),
        Err(Error::Io { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::InvalidInput
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
