//! One captured object, and its description as JSON.

use std::fmt::Write as _;

use twox_hash::XxHash3_128;

use crate::layout::put_json_string;
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

/// Set in an index entry's offset when the record's values were left out.
pub(crate) const SKIPPED_FLAG: u64 = 1 << 63;

pub(crate) fn value_name(prefix: &str, path: &str) -> String {
    if path.is_empty() {
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
