//! faststeal's core: streams tensors into one ONNX file and maps them back.
//!
//! A dump is a valid ONNX model at every moment of its life; `docs/format.md` tells how. This crate
//! knows bytes and the file. Python objects, trees and classes belong to the package around it, and
//! everything that needs an interpreter stands in `python.rs`, behind the feature `python`.

mod disk;
mod dtype;
mod error;
mod gather;
mod hash;
mod layout;
mod native;
mod parse;
mod part;
mod reader;
mod record;
mod repair;
mod seen;
mod source;
mod stats;
mod value;
mod wire;
mod writer;

pub use dtype::DataType;
pub use error::{Error, Result};
pub use gather::TensorRef;
pub use reader::Reader;
pub use record::{Leaf, Record};
pub use repair::repair;
pub use source::Mode;
pub use stats::Stats;
pub use value::{Output, Tensor};
pub use writer::{Options, Writer};

#[cfg(feature = "python")]
mod dlpack;
#[cfg(feature = "python")]
mod make;
#[cfg(feature = "python")]
mod python;
