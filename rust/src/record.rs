//! One captured object, and its description as JSON.

use std::fmt::Write as _;

use twox_hash::XxHash3_128;

use crate::layout::put_json_string;
use crate::parse::MOST_NAME;
use crate::{Stats, TensorRef};

/// A tensor of a record.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Its place in the object, without `/`; empty where the object is the tensor itself.
    pub path: String,
    /// The tensor.
    pub tensor: TensorRef,
    /// JSON members that describe it further, without braces.
    pub info: String,
}

/// One captured object.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Unique key, `name/iteration/kind`.
    pub key: &'a str,
    /// What the names of its values begin with; unique too.
    pub prefix: &'a str,
    /// The object's structure, JSON.
    pub tree: &'a str,
    /// JSON members of the record, without braces.
    pub info: &'a str,
    /// Its tensors.
    pub leaves: &'a [Leaf],
}

/// Name, iteration and kind of a record's key.
pub(crate) fn split_key(key: &str) -> Option<(&str, u64, &str)> {
    let (rest, kind) = key.rsplit_once('/')?;
    let (name, iteration) = rest.rsplit_once('/')?;
    Some((name, iteration.parse().ok()?, kind)).filter(|_| !kind.is_empty())
}

/// The most bytes a value's name may have, less what a shape's name has more.
pub(crate) const LONGEST_NAME: usize = MOST_NAME - 64;

/// Set in an index entry's offset when the record's values were left out.
pub(crate) const SKIPPED_FLAG: u64 = 1 << 63;

/// The names of a record's values.
pub(crate) fn value_names(record: &Record) -> Vec<String> {
    let leaves = record.leaves.iter().enumerate();
    leaves.map(|(i, leaf)| value_name(record.prefix, &leaf.path, i)).collect()
}

/// The name of the `index`-th leaf's value. A path has no slash, so that no two names are the same.
fn value_name(prefix: &str, path: &str, index: usize) -> String {
    if prefix.len() + path.len() > LONGEST_NAME {
        format!("{prefix}//{index}")
    } else if path.is_empty() {
        prefix.to_owned()
    } else {
        format!("{prefix}/{path}")
    }
}

pub(crate) fn key_hash(key: &str) -> u64 {
    #[allow(clippy::cast_possible_truncation)] // 64 bits find it, the key itself confirms
    {
        XxHash3_128::oneshot(key.as_bytes()) as u64
    }
}

/// What is known of the record but its values. The number of tensors comes first: a reader that
/// walks needs no more of it.
pub(crate) fn record_json(record: &Record, names: &[String], skipped: Option<&str>) -> String {
    let mut out =
        String::with_capacity(record.tree.len() + record.info.len() + 64 + names.len() * 160);
    let stored = if skipped.is_some() { 0 } else { record.leaves.len() };
    let _ = write!(out, r#"{{"n":{stored}"#);
    if let Some(reason) = skipped {
        out.push_str(r#","skipped":"#);
        put_json_string(&mut out, reason);
    }
    let _ = write!(out, r#","tree":{},"leaves":["#, record.tree);
    for (i, (leaf, name)) in record.leaves.iter().zip(names).enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(r#"{"name":"#);
        put_json_string(&mut out, name);
        let _ = write!(
            out,
            r#","dtype":"{}","shape":{:?}"#,
            leaf.tensor.dtype().name(),
            leaf.tensor.shape()
        );
        if !leaf.info.is_empty() {
            out.push(',');
            out.push_str(&leaf.info);
        }
        if skipped.is_some() {
            out.push_str(r#","stats":"#);
            Stats::of(&leaf.tensor).put_json(&mut out);
        }
        out.push('}');
    }
    out.push(']');
    if !record.info.is_empty() {
        out.push(',');
        out.push_str(record.info);
    }
    out.push('}');
    out
}
