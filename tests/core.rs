//! The crate as its users see it: records go in, the same bytes come out, and errors say where.

#![allow(clippy::unwrap_used)] // a test that panics fails
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use std::path::Path;

use faststeal::{repair, DataType, Error, Leaf, Mode, Options, Reader, Record, TensorRef, Writer};
use proptest::prelude::*;

/// The few messages of `onnx.proto` that a dump uses, decoded by prost: a reader that knows
/// nothing of how the file is framed.
mod onnx {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Model {
        #[prost(int64, tag = "1")]
        pub ir_version: i64,
        #[prost(string, tag = "2")]
        pub producer_name: String,
        #[prost(message, optional, tag = "7")]
        pub graph: Option<Graph>,
        #[prost(message, repeated, tag = "8")]
        pub opset_import: Vec<Opset>,
        #[prost(message, repeated, tag = "14")]
        pub metadata_props: Vec<Entry>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Opset {
        #[prost(int64, tag = "2")]
        pub version: i64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Entry {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(string, tag = "2")]
        pub value: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Graph {
        #[prost(message, repeated, tag = "1")]
        pub node: Vec<Node>,
        #[prost(message, repeated, tag = "12")]
        pub output: Vec<Value>,
        #[prost(message, repeated, tag = "16")]
        pub metadata_props: Vec<Entry>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Node {
        #[prost(string, repeated, tag = "1")]
        pub input: Vec<String>,
        #[prost(string, repeated, tag = "2")]
        pub output: Vec<String>,
        #[prost(string, tag = "4")]
        pub op_type: String,
        #[prost(message, repeated, tag = "5")]
        pub attribute: Vec<Attribute>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Attribute {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, optional, tag = "5")]
        pub t: Option<Tensor>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Tensor {
        #[prost(int64, repeated, packed = "false", tag = "1")]
        pub dims: Vec<i64>,
        #[prost(int32, tag = "2")]
        pub data_type: i32,
        #[prost(bytes = "vec", tag = "9")]
        pub raw_data: Vec<u8>,
        #[prost(message, repeated, tag = "13")]
        pub external_data: Vec<Entry>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Value {
        #[prost(string, tag = "1")]
        pub name: String,
    }
}

fn decode(path: &Path) -> onnx::Model {
    prost::Message::decode(&*std::fs::read(path).unwrap()).unwrap()
}

/// A tensor that owns its bytes.
#[derive(Debug, Clone)]
struct Owned {
    dtype: DataType,
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

impl Owned {
    fn new(dtype: DataType, shape: &[i64], bytes: &[u8]) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: bytes.to_vec() }
    }

    fn floats(values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(DataType::Float, &[i64::try_from(values.len()).unwrap()], &bytes)
    }
}

fn write(writer: &mut Writer, key: &str, tensors: &[Owned]) -> faststeal::Result<Option<String>> {
    let leaves: Vec<Leaf> = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| Leaf {
            path: i.to_string(),
            // SAFETY: the bytes are borrowed for longer.
            #[allow(unsafe_code)]
            tensor: unsafe { TensorRef::from_bytes(&t.bytes, t.dtype, &t.shape) }.unwrap(),
            info: String::new(),
        })
        .collect();
    let tree = "[1,\"a]\\\"\",{\"tensor\":0}]";
    writer.append(&Record { key, prefix: key, tree, info: r#""class":"C""#, leaves: &leaves })
}

fn check(reader: &Reader, index: usize, tensors: &[Owned]) {
    let (tree, found) = reader.record(index).unwrap();
    assert_eq!(tree, "[1,\"a]\\\"\",{\"tensor\":0}]");
    assert_eq!(found.len(), tensors.len());
    for (a, b) in found.iter().zip(tensors) {
        assert_eq!((a.dtype, &a.dims, a.bytes()), (b.dtype, &b.shape, &*b.bytes));
    }
}

#[test]
fn an_empty_dump_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let mut writer = Writer::create(&path, r#"{"note":"x"}"#, Options::default()).unwrap();
    for closed in [false, true] {
        if closed {
            writer.close().unwrap();
        }
        let model = decode(&path);
        assert_eq!((model.ir_version, &*model.producer_name), (10, "faststeal"));
        let graph = model.graph.unwrap();
        assert_eq!(graph.output.len(), 1);
        assert_eq!(graph.output[0].name, "faststeal_format");
        let reader = Reader::open(&path, Mode::Private).unwrap();
        assert_eq!((reader.len(), reader.complete(), reader.native()), (0, closed, true));
        assert!(reader.provenance().contains(r#""note":"x""#));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn the_same_bytes_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let big = Owned::new(DataType::Float, &[64, 1024], &vec![7; 1 << 18]);
    let flat = Owned { shape: vec![1 << 16], ..big.clone() };
    let ints = Owned { dtype: DataType::Int32, ..big.clone() };
    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    write(&mut writer, "m/0/I", &[big.clone(), big.clone()]).unwrap();
    write(&mut writer, "m/0/O", &[flat.clone(), ints.clone()]).unwrap();
    assert_eq!((writer.bytes_seen(), writer.bytes_written()), (1 << 20, 1 << 19));
    writer.close().unwrap();
    let ops: Vec<_> = decode(&path).graph.unwrap().node.iter().map(|n| n.op_type.clone()).collect();
    assert_eq!(ops, ["Constant", "Constant", "Identity", "Constant", "Reshape", "Constant"]);
    let reader = Reader::open(&path, Mode::Private).unwrap();
    check(&reader, 0, &[big.clone(), big]);
    check(&reader, 1, &[flat, ints]);
    assert_eq!(reader.verify(), Vec::<String>::new());
}

#[test]
fn types_without_an_alias_are_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let f8 = Owned::new(DataType::Float8E5M2, &[4], &[1, 2, 3, 4]);
    let reshaped = Owned { shape: vec![2, 2], ..f8.clone() };
    let e8 = Owned { dtype: DataType::Float8E8M0, ..f8.clone() };
    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    let all = [f8.clone(), f8, reshaped, e8.clone(), e8];
    write(&mut writer, "m/0/I", &all).unwrap();
    writer.close().unwrap();
    let model = decode(&path);
    let ops: Vec<_> = model.graph.unwrap().node.iter().map(|n| n.op_type.clone()).collect();
    assert_eq!(ops, ["Constant", "Constant", "Identity", "Constant", "Constant", "Constant"]);
    assert_eq!(model.opset_import[0].version, 24);
    check(&Reader::open(&path, Mode::Private).unwrap(), 0, &all);
}

#[test]
fn limits_leave_values_out_and_keep_statistics() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let options = Options { storage_limit: Some(16), total_limit: Some(24), ..Options::default() };
    let mut writer = Writer::create(&path, "{}", options).unwrap();
    let four = Owned::floats(&[1.0, 2.0, 3.0, 4.0]);
    let five = Owned::floats(&[1.0, 2.0, 3.0, 4.0, f32::NAN]);
    let other = Owned::floats(&[5.0, 2.0, 3.0, 4.0]);
    assert_eq!(write(&mut writer, "m/0/I", std::slice::from_ref(&four)).unwrap(), None);
    let reason = write(&mut writer, "m/0/O", &[five]).unwrap();
    assert_eq!(reason.as_deref(), Some("20 bytes are over the storage limit of 16"));
    let reason = write(&mut writer, "m/1/I", &[other]).unwrap();
    assert_eq!(reason.as_deref(), Some("16 new bytes after 16 are over the total limit of 24"));
    // What is there already costs nothing.
    assert_eq!(write(&mut writer, "m/1/O", std::slice::from_ref(&four)).unwrap(), None);
    assert_eq!((writer.records(), writer.skipped()), (2, 2));
    for closed in [false, true] {
        if closed {
            writer.close().unwrap();
        }
        let reader = Reader::open(&path, Mode::Private).unwrap();
        assert_eq!(reader.keys().unwrap(), ["m/0/I", "m/0/O", "m/1/I", "m/1/O"]);
        assert_eq!(reader.skipped(), [false, true, true, false]);
        check(&reader, 3, std::slice::from_ref(&four));
        let info: serde_json::Value = serde_json::from_str(&reader.info(1).unwrap()).unwrap();
        assert_eq!(info["leaves"][0]["stats"]["nan"], 1);
        assert_eq!(info["leaves"][0]["stats"]["mean"], 2.5);
        assert_eq!(info["leaves"][0]["shape"][0], 5);
        assert_eq!(info["class"], "C");
    }
}

#[test]
fn external_data_are_aligned_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    std::fs::write(dir.path().join("a.onnx.data"), b"stale").unwrap();
    let options = Options { inline_limit: 100, ..Options::default() };
    let mut writer = Writer::create(&path, "{}", options).unwrap();
    let small = Owned::new(DataType::Uint8, &[64], &[1; 64]);
    let large = Owned::new(DataType::Uint8, &[100], &[2; 100]);
    let page = Owned::new(DataType::Uint8, &[1 << 20], &vec![3; 1 << 20]);
    for (key, tensor) in [("a/0/O", &small), ("b/0/O", &large), ("c/0/O", &page)] {
        write(&mut writer, key, std::slice::from_ref(tensor)).unwrap();
    }
    let live = Reader::open(&path, Mode::Private).unwrap();
    write(&mut writer, "d/0/O", std::slice::from_ref(&large)).unwrap();
    writer.close().unwrap();
    let data = std::fs::read(dir.path().join("a.onnx.data")).unwrap();
    assert_eq!(data.len(), 4096 + (1 << 20));
    assert_eq!(data[..100], large.bytes);
    for mode in [Mode::Private, Mode::ReadOnly, Mode::Pread] {
        let reader = Reader::open(&path, mode).unwrap();
        for (i, tensor) in [&small, &large, &page, &large].into_iter().enumerate() {
            check(&reader, i, std::slice::from_ref(tensor));
        }
    }
    check(&live, 2, &[page]);
    let external: Vec<_> = decode(&path)
        .graph
        .unwrap()
        .node
        .iter()
        .filter_map(|n| n.attribute.first()?.t.clone())
        .flat_map(|t| t.external_data)
        .map(|e| e.key)
        .collect();
    assert_eq!(external, ["location", "offset", "length", "location", "offset", "length"]);
}

#[test]
fn a_full_part_rolls_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let options = Options { part_limit: 400_000, ..Options::default() };
    let mut writer = Writer::create(&path, "{}", options).unwrap();
    let tensors: Vec<Owned> =
        (0..200u8).map(|i| Owned::new(DataType::Uint8, &[5000], &[i; 5000])).collect();
    for (i, t) in tensors.iter().enumerate() {
        write(&mut writer, &format!("m/{i}/O"), &[t.clone(), tensors[0].clone()]).unwrap();
    }
    for closed in [false, true] {
        if closed {
            writer.close().unwrap();
        }
        let reader = Reader::open(&path, Mode::Private).unwrap();
        assert_eq!((reader.len(), reader.complete()), (200, closed));
        for (i, t) in tensors.iter().enumerate() {
            assert_eq!(reader.find(&format!("m/{i}/O")).unwrap(), Some(i));
            check(&reader, i, &[t.clone(), tensors[0].clone()]);
        }
    }
    let files = std::fs::read_dir(dir.path()).unwrap().count();
    assert!(files > 2, "{files}");
    for part in 0..files {
        let name = if part == 0 { "a.onnx".into() } else { format!("a.{part}.onnx") };
        assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() <= 400_000);
    }
    // Neither a part of another run is taken along, nor a folder of that name.
    let mut again = Writer::create(&path, "{}", Options::default()).unwrap();
    write(&mut again, "x/0/O", std::slice::from_ref(&tensors[0])).unwrap();
    assert_eq!(Reader::open(&path, Mode::Private).unwrap().len(), 1);
    std::fs::remove_file(dir.path().join("a.1.onnx")).unwrap();
    std::fs::create_dir(dir.path().join("a.1.onnx")).unwrap();
    assert_eq!(Reader::open(&path, Mode::Private).unwrap().len(), 1);
}

#[test]
fn the_old_file_is_left_to_those_who_have_it_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let one = Owned::floats(&[1.0]);
    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    write(&mut writer, "m/0/O", std::slice::from_ref(&one)).unwrap();
    writer.close().unwrap();
    let old = Reader::open(&path, Mode::Private).unwrap();
    let _new = Writer::create(&path, "{}", Options::default()).unwrap();
    check(&old, 0, &[one]);
    assert_eq!(Reader::open(&path, Mode::Private).unwrap().len(), 0);
}

#[test]
fn what_a_killed_growth_leaves_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let one = Owned::floats(&[1.0]);
    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    write(&mut writer, "m/0/O", std::slice::from_ref(&one)).unwrap();
    std::fs::copy(&path, dir.path().join("b.onnx")).unwrap();
    let path = dir.path().join("b.onnx");
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len + 9000).unwrap();
    assert!(<onnx::Model as prost::Message>::decode(&*std::fs::read(&path).unwrap()).is_err());
    check(&Reader::open(&path, Mode::Private).unwrap(), 0, std::slice::from_ref(&one));
    let done = repair(&path).unwrap();
    assert_eq!(
        done,
        ["cut off 9000 bytes that the file had grown by", "wrote the index of 1 records"]
    );
    assert_eq!(decode(&path).graph.unwrap().output.len(), 2);
    let reader = Reader::open(&path, Mode::Private).unwrap();
    check(&reader, 0, &[one]);
    assert!(!reader.complete());
    assert_eq!(reader.verify(), Vec::<String>::new());
    assert_eq!(repair(&path).unwrap(), Vec::<String>::new());
}

fn message<T>(result: faststeal::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_error_says_what_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.onnx");
    let shown = path.display();
    let missing = dir.path().join("no/a.onnx");
    let error = Writer::create(&missing, "{}", Options::default()).err().unwrap();
    assert!(matches!(&error, Error::Io { source, .. }
        if source.kind() == std::io::ErrorKind::NotFound));
    let folder = missing.parent().expect("a folder").display().to_string();
    assert!(error.to_string().starts_with(&format!("{folder}: ")));

    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    let locked = format!("{shown}: another live capture is writing this file");
    assert_eq!(message(Writer::create(&path, "{}", Options::default())), locked);
    assert_eq!(message(repair(&path)), locked);
    let reader = Reader::open(&path, Mode::Private).unwrap();
    assert_eq!(message(reader.record(3)), "record 3 of 0");
    writer.close().unwrap();
    let closed = write(&mut writer, "m/0/O", &[]);
    assert_eq!(message(closed), format!("{shown}: the dump is closed"));

    let mut writer = Writer::create(&path, "{}", Options::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let gone = format!("{shown}: the file was replaced or removed while it was being written");
    assert_eq!(message(writer.close()), gone);

    std::fs::write(&path, b"not a model").unwrap();
    assert_eq!(
        message(Reader::open(&path, Mode::Private)),
        format!(
            "{shown}: at byte 0: expected a field, found wire type 6: no ONNX model, or one that was \
             cut short"
        )
    );
    std::fs::write(&path, b"").unwrap();
    assert_eq!(
        message(Reader::open(&path, Mode::Private)),
        format!("{shown}: at byte 0: expected an ONNX model, found an empty file")
    );
    let options = Options { part_limit: 100_000, ..Options::default() };
    let mut writer = Writer::create(&path, "{}", options).unwrap();
    let large = Owned::new(DataType::Uint8, &[100_000], &vec![0; 100_000]);
    let text = message(write(&mut writer, "m/0/O", &[large]));
    assert!(text.starts_with(&format!("{shown}: a record needs ")), "{text}");
    assert!(text.ends_with(" bytes, a file can have 100000"), "{text}");
}

fn tensors() -> impl Strategy<Value = Vec<Owned>> {
    let dtype = prop::sample::select(vec![
        DataType::Float,
        DataType::Double,
        DataType::Uint8,
        DataType::Int64,
        DataType::Bfloat16,
        DataType::Float8E4M3FN,
    ]);
    let one = (dtype, prop::collection::vec(0i64..5, 0..4), any::<u8>()).prop_map(
        |(dtype, shape, seed)| {
            let count = shape.iter().product::<i64>() * i64::from(dtype.bits() / 8);
            // Few seeds, so that the same bytes come again.
            let bytes = (0..count).map(|i| (i % 7 + i64::from(seed % 3)) as u8).collect::<Vec<_>>();
            Owned::new(dtype, &shape, &bytes)
        },
    );
    prop::collection::vec(one, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_goes_in_comes_out(records in prop::collection::vec(tensors(), 0..12),
                              external: bool, inline_limit in 0u64..300) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.onnx");
        let options = Options { external, inline_limit, ..Options::default() };
        let mut writer = Writer::create(&path, "{}", options).unwrap();
        for (i, tensors) in records.iter().enumerate() {
            write(&mut writer, &format!("m/{i}/O"), tensors).unwrap();
        }
        for closed in [false, true] {
            if closed {
                writer.close().unwrap();
            }
            decode(&path);
            let reader = Reader::open(&path, Mode::Private).unwrap();
            prop_assert_eq!(reader.len(), records.len());
            for (i, tensors) in records.iter().enumerate() {
                check(&reader, i, tensors);
                for tensor in reader.record(i).unwrap().1 {
                    let align = usize::from(tensor.dtype.bits()).div_ceil(8);
                    prop_assert_eq!(tensor.bytes().as_ptr().align_offset(align), 0);
                }
            }
            prop_assert_eq!(reader.verify(), Vec::<String>::new());
        }
    }
}
