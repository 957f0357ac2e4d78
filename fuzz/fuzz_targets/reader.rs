//! Any bytes: in memory, in a file by each mode, and mended where they can be.

#![no_main]

use std::path::Path;

use faststeal::{repair, Mode, Output, Reader};
use libfuzzer_sys::fuzz_target;

/// Everything that a reader can be asked, and every byte that it hands out.
fn ask(reader: &Reader) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut found = Vec::new();
    let keys = reader.keys().unwrap_or_default();
    for key in &keys {
        assert!(reader.find(key).is_ok_and(|i| i.is_some()));
    }
    assert_eq!(reader.skipped().len(), reader.len());
    for i in 0..reader.len() {
        let _ = reader.info(i);
        if let Ok((tree, tensors)) = reader.record(i) {
            found.push((tree, tensors.iter().map(|t| t.bytes().to_vec()).collect()));
        }
    }
    assert!(reader.record(reader.len()).is_err());
    for (_, output) in reader.outputs().unwrap_or_default() {
        let tensors = match output {
            Output::Tensor(tensor) => vec![tensor],
            Output::Sequence(tensors) => tensors,
            Output::Strings(strings) => {
                std::hint::black_box(strings.concat());
                continue;
            }
        };
        for tensor in tensors {
            std::hint::black_box(tensor.bytes().iter().map(|b| u64::from(*b)).sum::<u64>());
        }
    }
    let _ = reader.verify();
    found
}

fuzz_target!(|data: &[u8]| {
    let reader = Reader::from_bytes(data);
    let found = reader.as_ref().ok().map(ask);
    // Files are slow: what does not open in memory opens nowhere.
    if found.is_none() {
        return;
    }
    let dir = tempfile::tempdir_in(folder()).expect("a folder");
    let path = dir.path().join("a.onnx");
    std::fs::write(&path, data).expect("a file");
    for mode in [Mode::Private, Mode::ReadOnly, Mode::Pread] {
        let reader = Reader::open(&path, mode).expect("opens as in memory");
        ask(&reader);
    }
    if let Ok(done) = repair(&path) {
        let again = Reader::open(&path, Mode::Private).expect("a mended file");
        assert_eq!(Some(ask(&again)), found, "{done:?}");
        assert_eq!(repair(&path).expect("nothing to do"), Vec::<String>::new());
    }
});

fn folder() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        Path::new("/tmp")
    }
}
