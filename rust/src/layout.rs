//! The bytes of the file's parts: header, record, tail. `docs/format.md` draws them.

use std::fmt::Write as _;

use crate::seen::Digest;
use crate::wire::{
    begin, end, filler_to, put_bytes, put_filler, put_padded, put_tag, put_uint, FIXED64, LEN,
};
use crate::DataType;

/// Records and the commit word of each start at a multiple of this: no 8-byte write there
/// straddles a page.
pub(crate) const RECORD_ALIGN: u64 = 64;
pub(crate) const MARKER: &str = "faststeal_format";
pub(crate) const FORMAT_VERSION: i64 = 1;
/// Key of the graph metadata that holds the provenance. Record keys have a slash.
pub(crate) const PROVENANCE: &str = "faststeal";
pub(crate) const COMPLETE: &str = "faststeal.complete";
pub(crate) const NEXT_PART: &str = "faststeal.next";
pub(crate) const CHECKSUM: &str = "xxh3_128";
/// Field of the model that holds the index: no reader knows it, none keeps it when saving again.
pub(crate) const INDEX_FIELD: u32 = 15998;
/// Field of an `Identity` or `Reshape` that tells where its original's node begins.
pub(crate) const HINT_FIELD: u32 = 15997;
pub(crate) const BASE_OPSET: u8 = 21;

/// Field numbers of the messages in `onnx.proto`.
pub(crate) mod field {
    pub(crate) const MODEL_IR_VERSION: u32 = 1;
    pub(crate) const MODEL_PRODUCER_NAME: u32 = 2;
    pub(crate) const MODEL_PRODUCER_VERSION: u32 = 3;
    pub(crate) const MODEL_GRAPH: u32 = 7;
    pub(crate) const MODEL_OPSET_IMPORT: u32 = 8;
    pub(crate) const MODEL_METADATA: u32 = 14;
    pub(crate) const MODEL_FUNCTIONS: u32 = 25;
    pub(crate) const GRAPH_NODE: u32 = 1;
    pub(crate) const GRAPH_NAME: u32 = 2;
    pub(crate) const GRAPH_INITIALIZER: u32 = 5;
    pub(crate) const GRAPH_OUTPUT: u32 = 12;
    pub(crate) const GRAPH_METADATA: u32 = 16;
    pub(crate) const NODE_INPUT: u32 = 1;
    pub(crate) const NODE_OUTPUT: u32 = 2;
    pub(crate) const NODE_OP_TYPE: u32 = 4;
    pub(crate) const NODE_ATTRIBUTE: u32 = 5;
    pub(crate) const NODE_DOMAIN: u32 = 7;
    pub(crate) const ATTRIBUTE_NAME: u32 = 1;
    pub(crate) const ATTRIBUTE_TENSOR: u32 = 5;
    pub(crate) const ATTRIBUTE_TYPE: u32 = 20;
    pub(crate) const TENSOR_DIMS: u32 = 1;
    pub(crate) const TENSOR_DATA_TYPE: u32 = 2;
    pub(crate) const TENSOR_FLOAT_DATA: u32 = 4;
    pub(crate) const TENSOR_INT32_DATA: u32 = 5;
    pub(crate) const TENSOR_STRING_DATA: u32 = 6;
    pub(crate) const TENSOR_INT64_DATA: u32 = 7;
    pub(crate) const TENSOR_NAME: u32 = 8;
    pub(crate) const TENSOR_RAW_DATA: u32 = 9;
    pub(crate) const TENSOR_DOUBLE_DATA: u32 = 10;
    pub(crate) const TENSOR_UINT64_DATA: u32 = 11;
    pub(crate) const TENSOR_EXTERNAL_DATA: u32 = 13;
    pub(crate) const TENSOR_DATA_LOCATION: u32 = 14;
    pub(crate) const TENSOR_METADATA: u32 = 16;
    pub(crate) const ENTRY_KEY: u32 = 1;
    pub(crate) const ENTRY_VALUE: u32 = 2;
    pub(crate) const VALUE_NAME: u32 = 1;
    pub(crate) const VALUE_TYPE: u32 = 2;
    pub(crate) const TYPE_TENSOR: u32 = 1;
    pub(crate) const TENSOR_TYPE_ELEM: u32 = 1;
    pub(crate) const TENSOR_TYPE_SHAPE: u32 = 2;
    pub(crate) const SHAPE_DIM: u32 = 1;
    pub(crate) const DIM_VALUE: u32 = 1;
}

/// Where the bytes of a stored tensor go.
pub(crate) enum Place<'a> {
    /// Into the record, right behind what was put so far: so many bytes.
    Inline(u64),
    /// To the file `location`, at `offset`.
    External { location: &'a str, offset: u64, nbytes: u64 },
}

/// Alignment of a tensor of `nbytes`: cache lines, and pages once padding to one is below 1 %.
pub(crate) fn alignment(nbytes: u64) -> u64 {
    if nbytes >= 1 << 20 {
        4096
    } else {
        64
    }
}

pub(crate) fn put_entry(out: &mut Vec<u8>, field: u32, key: &str, value: &str) {
    let start = begin(out, field);
    put_bytes(out, field::ENTRY_KEY, key.as_bytes());
    put_bytes(out, field::ENTRY_VALUE, value.as_bytes());
    end(out, start, 0);
}

/// A Constant node. `base` is the position in the file of `out`'s first byte plus what other bytes
/// stand between, so that the data that follow are aligned. Returns where in the file the digits
/// of the digest are.
pub(crate) fn put_constant(
    out: &mut Vec<u8>,
    base: u64,
    name: &str,
    dtype: DataType,
    dims: &[i64],
    digest: Option<Digest>,
    place: &Place,
) -> Option<u64> {
    let node = begin(out, field::GRAPH_NODE);
    put_bytes(out, field::NODE_OUTPUT, name.as_bytes());
    put_bytes(out, field::NODE_OP_TYPE, b"Constant");
    let attribute = begin(out, field::NODE_ATTRIBUTE);
    put_bytes(out, field::ATTRIBUTE_NAME, b"value");
    put_uint(out, field::ATTRIBUTE_TYPE, 4);
    let tensor = begin(out, field::ATTRIBUTE_TENSOR);
    for &dim in dims {
        put_uint(out, field::TENSOR_DIMS, dim.unsigned_abs());
    }
    put_uint(out, field::TENSOR_DATA_TYPE, dtype as u64);
    let digits = digest.map(|digest| {
        put_entry(out, field::TENSOR_METADATA, CHECKSUM, &digest.hex());
        base + out.len() as u64 - Digest::DIGITS
    });
    let beyond = match *place {
        Place::Inline(nbytes) => {
            // Padding inside raw_data passes the checker and fails in onnxruntime: hence a filler.
            let data = base + out.len() as u64 + 6;
            put_filler(out, filler_to(data, alignment(nbytes)));
            put_tag(out, field::TENSOR_RAW_DATA, LEN);
            put_padded(out, nbytes, 5);
            nbytes
        }
        Place::External { location, offset, nbytes } => {
            let entries = [
                ("location", location),
                ("offset", &offset.to_string()),
                ("length", &nbytes.to_string()),
            ];
            for (key, value) in entries {
                put_entry(out, field::TENSOR_EXTERNAL_DATA, key, value);
            }
            put_uint(out, field::TENSOR_DATA_LOCATION, 1);
            0
        }
    };
    end(out, tensor, beyond);
    end(out, attribute, beyond);
    end(out, node, beyond);
    digits
}

/// `Identity` where the shape is the original's, else `Reshape` (whose shape is a Constant).
pub(crate) fn put_alias(
    out: &mut Vec<u8>,
    base: u64,
    name: &str,
    original: &str,
    hint: u64,
    reshape: Option<&[i64]>,
) {
    let shape_name = format!("{name}//shape");
    if let Some(dims) = reshape {
        let shape = [i64::try_from(dims.len()).unwrap_or(0)];
        let place = Place::Inline(dims.len() as u64 * 8);
        put_constant(out, base, &shape_name, DataType::Int64, &shape, None, &place);
        for dim in dims {
            out.extend_from_slice(&dim.to_le_bytes());
        }
    }
    let node = begin(out, field::GRAPH_NODE);
    put_bytes(out, field::NODE_INPUT, original.as_bytes());
    if reshape.is_some() {
        put_bytes(out, field::NODE_INPUT, shape_name.as_bytes());
    }
    put_bytes(out, field::NODE_OUTPUT, name.as_bytes());
    let op: &[u8] = if reshape.is_some() { b"Reshape" } else { b"Identity" };
    put_bytes(out, field::NODE_OP_TYPE, op);
    put_tag(out, HINT_FIELD, FIXED64);
    out.extend_from_slice(&hint.to_le_bytes());
    end(out, node, 0);
}

/// A graph output with its type and shape.
pub(crate) fn put_output(out: &mut Vec<u8>, name: &str, dtype: DataType, dims: &[i64]) {
    let output = begin(out, field::GRAPH_OUTPUT);
    put_bytes(out, field::VALUE_NAME, name.as_bytes());
    let type_ = begin(out, field::VALUE_TYPE);
    let tensor = begin(out, field::TYPE_TENSOR);
    put_uint(out, field::TENSOR_TYPE_ELEM, dtype as u64);
    let shape = begin(out, field::TENSOR_TYPE_SHAPE);
    for &dim in dims {
        let dim_message = begin(out, field::SHAPE_DIM);
        put_uint(out, field::DIM_VALUE, dim.unsigned_abs());
        end(out, dim_message, 0);
    }
    end(out, shape, 0);
    end(out, tensor, 0);
    end(out, type_, 0);
    end(out, output, 0);
}

/// The start of a file, up to the arena, and where its patched bytes are.
pub(crate) struct Header {
    pub(crate) bytes: Vec<u8>,
    /// Offset of the opset's number, one byte.
    pub(crate) opset_at: u64,
    /// Offset of the aligned word whose last five bytes are the graph's length.
    pub(crate) graph_word_at: u64,
}

impl Header {
    pub(crate) fn new(provenance: &str) -> Self {
        let mut out = Vec::new();
        // Netron knows an ONNX file by these two, in this order, and by an IR below 11.
        put_uint(&mut out, field::MODEL_IR_VERSION, 10);
        put_bytes(&mut out, field::MODEL_PRODUCER_NAME, b"faststeal");
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        put_bytes(&mut out, field::MODEL_PRODUCER_VERSION, version);
        let opset = begin(&mut out, field::MODEL_OPSET_IMPORT);
        put_uint(&mut out, 2, u64::from(BASE_OPSET));
        end(&mut out, opset, 0);
        let opset_at = out.len() as u64 - 1;
        // Tag and length end an aligned word, so that one write changes the length.
        let gap = filler_to(out.len() as u64 + 6, 8);
        put_filler(&mut out, gap);
        let graph = begin(&mut out, field::MODEL_GRAPH);
        let graph_word_at = graph as u64 - 8;
        put_bytes(&mut out, field::GRAPH_NAME, b"faststeal");
        let place = Place::Inline(8);
        // onnxruntime refuses a graph that has no output: this is always one.
        put_constant(&mut out, 0, MARKER, DataType::Int64, &[], None, &place);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        put_output(&mut out, MARKER, DataType::Int64, &[]);
        put_entry(&mut out, field::GRAPH_METADATA, PROVENANCE, provenance);
        let gap = filler_to(out.len() as u64, RECORD_ALIGN);
        put_filler(&mut out, gap);
        Self { bytes: out, opset_at, graph_word_at }
    }
}

/// A JSON string with its quotes.
pub(crate) fn put_json_string(out: &mut String, text: &str) {
    out.push('"');
    if !text.bytes().any(|b| b < 0x20 || b == b'"' || b == b'\\') {
        out.push_str(text);
        out.push('"');
        return;
    }
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
