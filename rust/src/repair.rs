//! Mending on disk what a kill left.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::disk::{lock, open_regular, tail, Arena};
use crate::error::AtPath;
use crate::layout::{field, COMPLETE};
use crate::part::{End, Part};
use crate::source::Mode;
use crate::wire::{filler_header, put_padded, put_tag, FILLER, FILLER_HEADER, LEN};

use crate::{Error, Reader, Result};

/// Mends what a kill left in the dump at `path`; returns what was done, a line each.
///
/// # Errors
/// [`Error::Locked`] if a live capture is writing it, [`Error::Format`] if the damage is more than
/// a kill can do.
pub fn repair(path: &Path) -> Result<Vec<String>> {
    let reader = Reader::open(path, Mode::ReadOnly)?;
    let path = &*reader.last_part().path;
    let fail = |offset, message: &str| {
        Err(Error::Format { path: path.to_owned(), offset, message: message.to_owned() })
    };
    if !reader.native() {
        return fail(0, "expected a dump of faststeal");
    }
    open_regular(path)?;
    let file = OpenOptions::new().read(true).write(true).open(path).at(path)?;
    lock(&file, path)?;
    // Read again: it may have been live a moment ago.
    let reader = Reader::open(path, Mode::ReadOnly)?;
    let last = reader.last_part();
    let (graph, len) = (last.graph, last.source.len);
    // What is mended is where the writer put it; a tool that saves a file again moves everything.
    if !last.in_place {
        let message = "expected a file as faststeal wrote it, not one that was saved again";
        return fail(graph.0, message);
    }
    if last.end != End::Open {
        return Ok(Vec::new());
    }
    let mut head = [0u8; 8];
    file.read_exact_at(&mut head, graph.0 - 8).at(path)?;
    if head[2..] != graph_head(graph.1 - graph.0) {
        return fail(graph.0 - 6, "expected the graph's length in five bytes");
    }
    let mut done = Vec::new();
    // Fillers behind the graph were to become part of it; zeros behind them were to be covered.
    let mut end = graph.1;
    let mut word = [0u8; 8];
    while end + FILLER_HEADER <= len {
        file.read_exact_at(&mut word, end).at(path)?;
        if word[..3] != filler_header(0)[..3] {
            break;
        }
        let size = word[3..].iter().rev().fold(0u64, |n, b| n << 7 | u64::from(b & 0x7f));
        end += FILLER_HEADER + size;
    }
    if end < len {
        file.set_len(end).at(path)?;
        done.push(format!("cut off {} bytes that the file had grown by", len - end));
    }
    let Some(arena_at) = arena(last)? else {
        return fail(graph.1, "expected an arena at the end of the graph");
    };
    let graph_word_at = graph.0 - 8;
    // As at close; "0" tells that the capture did not end by itself.
    let tail = tail(COMPLETE, "0", last.index.len(), last.index.iter());
    let new_end =
        (arena_at + 2 * FILLER_HEADER + tail.len() as u64 + 8).max(end).next_multiple_of(8);
    let arena = Arena { position: arena_at, end: new_end, graph_word_at };
    arena.extend(&file, end).at(path)?;
    arena.finish(&file, tail).at(path)?;
    done.push(format!("wrote the index of {} records", last.index.len()));
    Ok(done)
}

/// Offset of the last field of the graph, if it is a filler with a header of eight bytes.
fn arena(part: &Part) -> Result<Option<u64>> {
    let mut cursor = part.cursor(part.graph.0, part.graph.1);
    let mut last = None;
    loop {
        let at = cursor.position;
        let Some(f) = cursor.next()? else { return Ok(last) };
        let is_arena = (f.number, f.wire) == (FILLER, LEN) && f.start - at == FILLER_HEADER;
        last = is_arena.then_some(at);
    }
}

/// Tag and length of a graph of `len` bytes, as the writer puts them.
fn graph_head(len: u64) -> [u8; 6] {
    let mut out = Vec::with_capacity(6);
    put_tag(&mut out, field::MODEL_GRAPH, LEN);
    put_padded(&mut out, len, 5);
    let mut head = [0; 6];
    head.copy_from_slice(&out);
    head
}
