//! Any records: written, then read while the writer is open, after a kill and after it closed.

#![no_main]

use std::collections::HashSet;
use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};
use faststeal::{repair, DataType, Leaf, Mode, Options, Reader, Record, TensorRef, Writer};
use libfuzzer_sys::fuzz_target;

const TYPES: [DataType; 8] = [
    DataType::Float,
    DataType::Uint8,
    DataType::Int64,
    DataType::Bool,
    DataType::Bfloat16,
    DataType::Float8E5M2,
    DataType::Float8E8M0,
    DataType::Float4E2M1,
];

/// Memory with a view of it; few different bytes, so that many tensors are the same.
#[derive(Debug, Clone)]
struct Tensor {
    dtype: DataType,
    memory: Vec<u8>,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
}

impl<'a> Arbitrary<'a> for Tensor {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let dtype = *u.choose(&TYPES)?;
        let item = usize::from(dtype.bits()).div_ceil(8);
        let least = i32::from(dtype == DataType::Float4E2M1);
        let rank = u.int_in_range(least..=4)?;
        let mut shape = Vec::new();
        for _ in 0..rank {
            shape.push(i64::from(u.int_in_range(0u8..=5)?));
        }
        if u.ratio(1, 40)? {
            shape = vec![i64::from(u.int_in_range(60_000u32..=300_000)?)];
        }
        let count = usize::try_from(shape.iter().product::<i64>()).unwrap_or(0);
        let most: u8 = if dtype == DataType::Bool { 1 } else { 3 };
        let (start, step) = (u.int_in_range(0..=most)?, u.int_in_range(0..=most)?);
        let memory: Vec<u8> = (0..count * item)
            .map(|i| {
                let value = usize::from(start) + i * usize::from(step);
                if most == 1 {
                    (value % 2) as u8
                } else {
                    value as u8
                }
            })
            .collect();
        let mut strides = None;
        if u.ratio(1, 3)? {
            // Every axis backwards in order, some of them expanded: never beyond the memory.
            let mut wanted = vec![0i64; shape.len()];
            let mut step = 1;
            for (stride, size) in wanted.iter_mut().zip(&shape) {
                if u.arbitrary()? {
                    *stride = step;
                    step *= (*size).max(1);
                }
            }
            strides = Some(wanted);
        }
        Ok(Self { dtype, memory, shape, strides })
    }
}

impl Tensor {
    fn view(&self) -> TensorRef {
        let data = self.memory.as_ptr();
        let strides = self.strides.as_deref();
        // SAFETY: strides reach what the sizes multiply to at most, which is what memory holds.
        unsafe { TensorRef::new(data, self.dtype, &self.shape, strides) }.expect("a tensor")
    }

    /// The logical bytes, an item at a time.
    fn bytes(&self) -> Vec<u8> {
        let Some(strides) = &self.strides else {
            return self.memory.clone();
        };
        let item = usize::from(self.dtype.bits()).div_ceil(8);
        let mut out = Vec::new();
        for mut i in 0..self.shape.iter().product::<i64>() {
            let mut at = 0;
            for (size, stride) in self.shape.iter().zip(strides).rev() {
                at += i % size * stride;
                i /= size;
            }
            let at = usize::try_from(at).expect("in range") * item;
            out.extend_from_slice(&self.memory[at..at + item]);
        }
        out
    }

    fn dims(&self) -> Vec<i64> {
        let mut dims = self.shape.clone();
        if self.dtype == DataType::Float4E2M1 {
            *dims.last_mut().expect("a dimension") *= 2;
        }
        dims
    }
}

#[derive(Debug, Arbitrary)]
struct Dump {
    records: Vec<(u8, String, Vec<Tensor>)>,
    storage_limit: Option<u16>,
    total_limit: Option<u16>,
    external: bool,
    inline_limit: Option<u16>,
    small_parts: bool,
}

fn check(path: &Path, mode: Mode, wanted: &[(String, Vec<Tensor>, bool)]) {
    let reader = Reader::open(path, mode).expect("a dump");
    let keys: Vec<String> = reader.keys().expect("keys").iter().map(|k| k.to_string()).collect();
    assert_eq!(keys, wanted.iter().map(|w| w.0.clone()).collect::<Vec<_>>());
    assert_eq!(reader.skipped(), wanted.iter().map(|w| w.2).collect::<Vec<_>>());
    for (i, (key, tensors, skipped)) in wanted.iter().enumerate() {
        let (_, found) = reader.record(i).expect("a record");
        assert_eq!(found.len(), if *skipped { 0 } else { tensors.len() });
        for (a, b) in found.iter().zip(tensors) {
            assert_eq!((a.dtype, &a.dims, a.bytes()), (b.dtype, &b.dims(), &*b.bytes()));
        }
        assert_eq!(reader.find(key).expect("an index"), Some(i));
    }
    assert_eq!(reader.verify(), Vec::<String>::new());
}

fuzz_target!(|dump: Dump| {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory } else { Path::new("/tmp") };
    let dir = tempfile::tempdir_in(folder).expect("a folder");
    let path = dir.path().join("a.onnx");
    let mut options = Options {
        storage_limit: dump.storage_limit.map(u64::from),
        total_limit: dump.total_limit.map(u64::from),
        external: dump.external,
        ..Options::default()
    };
    if let Some(limit) = dump.inline_limit {
        options.inline_limit = u64::from(limit);
    }
    if dump.small_parts {
        options.part_limit = 700_000;
    }
    let mut writer = Writer::create(&path, "{\"a\":1}", options).expect("a writer");
    let mut wanted = Vec::new();
    let mut names = HashSet::new();
    for (kind, name, tensors) in dump.records {
        let key = format!("{name}/{}/{}", kind / 2, ["I", "O"][usize::from(kind % 2)]);
        if !names.insert(key.clone()) {
            continue;
        }
        let leaves: Vec<Leaf> = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| Leaf { path: i.to_string(), tensor: t.view(), info: String::new() })
            .collect();
        let record = Record { key: &key, prefix: &key, tree: "[]", info: "", leaves: &leaves };
        match writer.append(&record) {
            Ok(reason) => wanted.push((key, tensors, reason.is_some())),
            // What no part can hold, or no reader would accept, is refused and nothing is lost.
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    check(&path, Mode::Private, &wanted);
    // As a kill leaves it: a copy, which nobody holds.
    let killed = dir.path().join("killed");
    std::fs::create_dir(&killed).expect("a folder");
    for entry in std::fs::read_dir(dir.path()).expect("a folder").flatten() {
        if entry.file_type().expect("a type").is_file() {
            std::fs::copy(entry.path(), killed.join(entry.file_name())).expect("a copy");
        }
    }
    writer.close().expect("closed");
    check(&path, Mode::Pread, &wanted);
    let path = killed.join("a.onnx");
    repair(&path).expect("mended");
    check(&path, Mode::ReadOnly, &wanted);
});
