//! The only file that knows Python: tensors in, tensors out, errors across.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::BuildHasherDefault;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use pyo3::exceptions::{
    PyBlockingIOError, PyException, PyIndexError, PyOSError, PyRuntimeError, PyTypeError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple, PyType};
use pyo3::{create_exception, ffi, intern};

use crate::dlpack::{
    DLDataType, DLDevice, DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, CPU, VERSION,
};
use crate::make::{Make, Tensors};
use crate::native::Found;
use crate::parse::MOST_RANK;
use crate::record::{key_hash, split_key};
use crate::seen::Identity;
use crate::source::{Memory, Shared};
use crate::value::{Output, Tensor};
use crate::{reader, writer, DataType, Error, Leaf, Mode, Options, Record, TensorRef};

create_exception!(faststeal, FaststealError, PyException);

/// Once so many bytes were copied into memory, no more records are read ahead.
const MOST_COPIED: usize = 16 << 20;

/// Below so many bytes the GIL is kept: taking it back costs more than the work.
const SMALL: usize = 64 << 10;

/// Classes with two bases, which `create_exception` cannot make.
pub(crate) struct Errors {
    pub(crate) format: Py<PyType>,
    not_plain: Py<PyType>,
}

static ERRORS: PyOnceLock<Errors> = PyOnceLock::new();

pub(crate) fn errors(py: Python<'_>) -> PyResult<&Errors> {
    ERRORS.get_or_try_init(py, || {
        let own = py.get_type::<FaststealError>();
        let make = |module: &str, name: &str, doc: &str, also: Bound<'_, PyType>| {
            let body = PyDict::new(py);
            body.set_item("__module__", module)?;
            body.set_item("__doc__", doc)?;
            let class = py.get_type::<PyType>().call1((name, (own.clone(), also), body))?;
            Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
        };
        Ok(Errors {
            format: make(
                "faststeal",
                "FormatError",
                "A file is not a dump: says which, at which byte, and what was expected there.",
                py.get_type::<PyValueError>(),
            )?,
            not_plain: make(
                "faststeal._core",
                "NotPlainError",
                "A tensor whose bytes cannot be read as they lie in memory: (message, index).",
                py.get_type::<PyTypeError>(),
            )?,
        })
    })
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| {
            let message = error.to_string();
            match error {
                Error::Io { path, source } => match source.raw_os_error() {
                    // OSError picks its own subclass by the number.
                    Some(code) => {
                        let text = source.to_string();
                        let text = text.split(" (os error").next().unwrap_or_default().to_owned();
                        PyOSError::new_err((code, text, path.into_os_string()))
                    }
                    None => match std::io::Error::new(source.kind(), message.clone()) {
                        source if source.kind() == std::io::ErrorKind::UnexpectedEof => {
                            PyOSError::new_err(message)
                        }
                        source => source.into(),
                    },
                },
                Error::Replaced(_) => PyOSError::new_err(message),
                Error::Locked(_) => PyBlockingIOError::new_err(message),
                Error::Format { .. } => format_error(py, message),
                Error::Closed(_) | Error::Name { .. } => PyValueError::new_err(message),
                Error::Index { .. } => PyIndexError::new_err(message),
                Error::TooLarge { .. } => FaststealError::new_err(message),
            }
        })
    }
}

pub(crate) fn format_error(py: Python<'_>, message: String) -> PyErr {
    match errors(py) {
        Ok(errors) => PyErr::from_type(errors.format.bind(py).clone(), message),
        Err(error) => error,
    }
}

fn not_plain(py: Python<'_>, message: &str, index: usize) -> PyErr {
    match errors(py) {
        Ok(errors) => {
            PyErr::from_type(errors.not_plain.bind(py).clone(), (message.to_owned(), index))
        }
        Err(error) => error,
    }
}

/// torch's table of DLPack functions, fetched once.
struct Exchange(&'static DLPackExchangeAPI);

// SAFETY: a static table of C functions; calling them needs the GIL, which callers hold.
#[allow(unsafe_code)]
unsafe impl Send for Exchange {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Exchange {}

static EXCHANGE: PyOnceLock<Exchange> = PyOnceLock::new();

fn exchange(py: Python<'_>) -> PyResult<&'static DLPackExchangeAPI> {
    let found = EXCHANGE.get_or_try_init(py, || {
        let tensor = py.import("torch")?.getattr("Tensor")?;
        let too_old =
            || PyRuntimeError::new_err("faststeal needs torch 2.10 or newer (DLPack 1.3)");
        let capsule = tensor
            .getattr("__dlpack_c_exchange_api__")
            .map_err(|_| too_old())?
            .cast_into::<PyCapsule>()?;
        let pointer = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: the capsule's name says what it points to, and torch never frees it.
        #[allow(unsafe_code)]
        let api = unsafe { &*pointer.as_ptr().cast::<DLPackExchangeAPI>() };
        if api.version.major != VERSION.major {
            return Err(too_old());
        }
        Ok::<_, PyErr>(Exchange(api))
    })?;
    Ok(found.0)
}

/// Reads where the bytes of `tensor` are; `Err` with a text if they cannot be used as they lie.
#[allow(unsafe_code)]
fn tensor_ref(api: &DLPackExchangeAPI, tensor: &Bound<'_, PyAny>) -> Result<TensorRef, String> {
    let py = tensor.py();
    let mut out = std::mem::MaybeUninit::<DLTensor>::uninit();
    let Some(read) = api.dltensor_from_py_object_no_sync else {
        return Err("torch offers no way to read it".into());
    };
    // SAFETY: the table's contract: fills `out` and returns 0, or sets an exception.
    let out = unsafe {
        if read(tensor.as_ptr().cast::<c_void>(), out.as_mut_ptr()) != 0 {
            return Err(PyErr::take(py).map_or_else(String::new, |error| error.to_string()));
        }
        out.assume_init()
    };
    if usize::try_from(out.ndim).is_ok_and(|rank| rank > MOST_RANK) {
        return Err(format!("it has more than {MOST_RANK} dimensions"));
    }
    if out.device.device_type != CPU {
        return Err("it is not on the CPU".into());
    }
    let Some(dtype) = element_type(out.dtype) else {
        return Err("its element type has no ONNX counterpart".into());
    };
    let asks = |name: &Bound<'_, PyString>| {
        tensor.call_method0(name).is_ok_and(|answer| answer.is_truthy().unwrap_or(true))
    };
    // What DLPack does not tell: a lazy conjugation or negation, and torch's shells of sub-byte
    // types, which look like bytes.
    match dtype {
        DataType::Complex64 | DataType::Complex128 => return Err("it is complex".into()),
        DataType::Float | DataType::Double | DataType::Float16 | DataType::Bfloat16
            if asks(intern!(py, "is_neg")) =>
        {
            return Err("its negative bit is set".into());
        }
        DataType::Int8 | DataType::Uint8 => {
            let exact = tensor.getattr(intern!(py, "dtype")).is_ok_and(|found| is_byte(py, &found));
            if !exact {
                return Err("its element type has no ONNX counterpart".into());
            }
        }
        DataType::Float4E2M1 if out.ndim == 0 => return Err("it is a scalar of two".into()),
        _ => {}
    }
    let rank = usize::try_from(out.ndim).unwrap_or(0);
    // SAFETY: shape and strides have `ndim` entries and belong to the tensor, which outlives this.
    unsafe {
        let slice = |pointer: *mut i64| {
            if rank == 0 || pointer.is_null() {
                &[][..]
            } else {
                std::slice::from_raw_parts(pointer, rank)
            }
        };
        let strides = (!out.strides.is_null()).then(|| slice(out.strides));
        let offset = usize::try_from(out.byte_offset).unwrap_or(0);
        let data = out.data.cast::<u8>().cast_const().wrapping_add(offset);
        let data = if out.data.is_null() { std::ptr::null() } else { data };
        TensorRef::new(data, dtype, slice(out.shape), strides)
            .ok_or_else(|| "it has elements but no memory".into())
    }
}

fn is_byte(py: Python<'_>, dtype: &Bound<'_, PyAny>) -> bool {
    static BYTES: PyOnceLock<[Py<PyAny>; 2]> = PyOnceLock::new();
    let bytes = BYTES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        Ok::<_, PyErr>([torch.getattr("uint8")?.unbind(), torch.getattr("int8")?.unbind()])
    });
    bytes.is_ok_and(|bytes| bytes.iter().any(|byte| byte.is(dtype)))
}

/// torch's packed `float4_e2m1fn_x2` is two lanes of four bits.
fn element_type(dtype: DLDataType) -> Option<DataType> {
    let found = DataType::from_dlpack(dtype.code, dtype.bits)?;
    let lanes = if found == DataType::Float4E2M1 { 2 } else { 1 };
    (dtype.lanes == lanes).then_some(found)
}

/// What a tensor that was handed out keeps alive.
struct View {
    // Freed with the view; never read.
    _memory: Arc<Memory>,
    /// Sizes, then strides.
    shape: Vec<i64>,
    managed: DLManagedTensorVersioned,
}

/// # Safety
/// `managed` is the field of a `View` that `to_torch` leaked, and is freed once.
#[allow(unsafe_code)]
unsafe extern "C" fn free_view(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: `manager_ctx` is the box that `to_torch` leaked.
    drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<View>()) });
}

/// A torch tensor with a storage of its own size, over shared memory.
#[allow(unsafe_code)]
fn to_torch<'py>(
    py: Python<'py>,
    api: &DLPackExchangeAPI,
    tensor: Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let (dtype, mut shape, data) = tensor.for_torch();
    let Shared { memory, offset, .. } = data;
    let rank = shape.len();
    shape.resize(2 * rank, 1);
    for i in (1..rank).rev() {
        shape[rank + i - 1] = shape[rank + i].saturating_mul(shape[i].max(1));
    }
    let code = dtype.dlpack_code().unwrap_or(1);
    let lanes = if dtype == DataType::Float4E2M1 { 2 } else { 1 };
    let start = memory.bytes().as_ptr().wrapping_add(offset);
    let mut view = Box::new(View {
        _memory: memory,
        shape,
        managed: DLManagedTensorVersioned {
            version: VERSION,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(free_view),
            // A read-only mapping is not flagged: torch would warn at each tensor and do no more.
            flags: 0,
            dl_tensor: DLTensor {
                data: start.cast_mut().cast::<c_void>(),
                device: DLDevice { device_type: CPU, device_id: 0 },
                ndim: 0,
                dtype: DLDataType { code, bits: dtype.bits(), lanes },
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
        },
    });
    view.managed.dl_tensor.ndim = i32::try_from(rank).unwrap_or(0);
    view.managed.dl_tensor.shape = view.shape.as_mut_ptr();
    view.managed.dl_tensor.strides = view.shape[rank..].as_mut_ptr();
    let Some(make) = api.managed_tensor_to_py_object_no_sync else {
        return Err(PyRuntimeError::new_err("torch offers no way to make a tensor"));
    };
    let leaked = Box::into_raw(view);
    let mut object: *mut c_void = std::ptr::null_mut();
    // SAFETY: on success torch owns the view and frees it by its deleter; the object is a new
    // reference. On failure nothing was taken.
    unsafe {
        (*leaked).managed.manager_ctx = leaked.cast::<c_void>();
        if make(&raw mut (*leaked).managed, &raw mut object) != 0 {
            drop(Box::from_raw(leaked));
            return Err(PyErr::fetch(py));
        }
        Bound::from_owned_ptr_or_err(py, object.cast::<ffi::PyObject>())
    }
}

fn all_to_torch<'py>(
    py: Python<'py>,
    api: &DLPackExchangeAPI,
    tensors: impl IntoIterator<Item = Tensor>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    tensors.into_iter().map(|tensor| to_torch(py, api, tensor)).collect()
}

#[pyclass(module = "faststeal._core", frozen)]
struct Writer {
    inner: Mutex<writer::Writer>,
}

impl Writer {
    /// The lock, never waited for with the GIL held: its holder may be waiting for the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        release: bool,
        work: impl FnOnce(&mut writer::Writer) -> T + Send,
    ) -> T {
        if !release {
            match self.inner.try_lock() {
                Ok(mut guard) => return work(&mut guard),
                Err(TryLockError::Poisoned(guard)) => return work(&mut guard.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        py.detach(|| work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (path, provenance, *, storage_limit=None, total_limit=None, external=false,
                        sync=false, inline_limit=1 << 30, part_limit=writer::PART_LIMIT))]
    #[allow(clippy::too_many_arguments)] // the keywords of the public call
    fn new(
        py: Python<'_>,
        path: &str,
        provenance: &str,
        storage_limit: Option<u64>,
        total_limit: Option<u64>,
        external: bool,
        sync: bool,
        inline_limit: u64,
        part_limit: u64,
    ) -> PyResult<Self> {
        exchange(py)?;
        let options =
            Options { storage_limit, total_limit, external, sync, inline_limit, part_limit };
        let inner = writer::Writer::create(Path::new(path), provenance, options)?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    #[pyo3(signature = (key, prefix, tree, paths, tensors, info, leaves=None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // a Python call
    fn write(
        &self,
        py: Python<'_>,
        key: &str,
        prefix: &str,
        tree: &str,
        paths: Vec<String>,
        tensors: Vec<Bound<'_, PyAny>>,
        info: &str,
        leaves: Option<Vec<String>>,
    ) -> PyResult<Option<String>> {
        if paths.len() != tensors.len() || leaves.as_ref().is_some_and(|l| l.len() != paths.len()) {
            let (paths, tensors) = (paths.len(), tensors.len());
            let message = format!("expected as many paths as tensors, got {paths} and {tensors}");
            return Err(PyValueError::new_err(message));
        }
        let api = exchange(py)?;
        let mut total = 0;
        let mut described = Vec::with_capacity(tensors.len());
        for (i, (path, tensor)) in paths.into_iter().zip(&tensors).enumerate() {
            let reference = tensor_ref(api, tensor).map_err(|why| not_plain(py, &why, i))?;
            total += reference.nbytes();
            let given = leaves.as_ref().map_or("", |leaves| leaves[i].as_str());
            let info = if given.is_empty() {
                let grad = tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?;
                let strides = reference
                    .strides()
                    .map_or(String::new(), |strides| format!(r#","strides":{strides:?}"#));
                format!(r#""device":"cpu","requires_grad":{grad}{strides}"#)
            } else {
                given.to_owned()
            };
            described.push(Leaf { path, tensor: reference, info });
        }
        let record = Record { key, prefix, tree, info, leaves: &described };
        // `tensors` keeps the memory alive until this returns.
        Ok(self.with(py, total >= SMALL, |writer| writer.append(&record))?)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.with(py, true, writer::Writer::close)?)
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.with(py, false, |writer| writer.closed())
    }

    #[getter]
    fn records(&self, py: Python<'_>) -> u64 {
        self.with(py, false, |writer| writer.records())
    }

    #[getter]
    fn skipped(&self, py: Python<'_>) -> u64 {
        self.with(py, false, |writer| writer.skipped())
    }

    #[getter]
    fn bytes_seen(&self, py: Python<'_>) -> u64 {
        self.with(py, false, |writer| writer.bytes_seen())
    }

    #[getter]
    fn bytes_written(&self, py: Python<'_>) -> u64 {
        self.with(py, false, |writer| writer.bytes_written())
    }
}

#[pyclass(module = "faststeal._core", frozen)]
struct Reader {
    inner: Mutex<Option<Arc<reader::Reader>>>,
}

impl Reader {
    fn open(&self) -> PyResult<Arc<reader::Reader>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.clone().ok_or_else(|| PyValueError::new_err("the dump is closed"))
    }
}

#[pymethods]
impl Reader {
    #[new]
    #[pyo3(signature = (source, mode="private"))]
    fn new(py: Python<'_>, source: &Bound<'_, PyAny>, mode: &str) -> PyResult<Self> {
        exchange(py)?;
        let mode = match mode {
            "private" => Mode::Private,
            "readonly" => Mode::ReadOnly,
            "pread" => Mode::Pread,
            other => {
                let message =
                    format!("expected \"private\", \"readonly\" or \"pread\", got {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        let inner = if let Ok(bytes) = source.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            py.detach(|| reader::Reader::from_bytes(bytes))?
        } else {
            let path: String = source.extract()?;
            py.detach(|| reader::Reader::open(Path::new(&path), mode))?
        };
        Ok(Self { inner: Mutex::new(Some(Arc::new(inner))) })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.open()?.len())
    }

    #[getter]
    fn native(&self) -> PyResult<bool> {
        Ok(self.open()?.native())
    }

    #[getter]
    fn complete(&self) -> PyResult<bool> {
        Ok(self.open()?.complete())
    }

    #[getter]
    fn provenance(&self) -> PyResult<String> {
        Ok(self.open()?.provenance().to_owned())
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Vec<PyKey<'py>>> {
        let (reader, mut texts) = (self.open()?, Texts::default());
        let keys = reader.keys()?;
        keys.iter().filter_map(|key| texts.key(py, key).transpose()).collect()
    }

    fn skipped(&self) -> PyResult<Vec<bool>> {
        Ok(self.open()?.skipped())
    }

    fn find(&self, name: &str, iteration: u64, kind: &str) -> PyResult<isize> {
        let found = self.open()?.find(&format!("{name}/{iteration}/{kind}"))?;
        Ok(found.and_then(|i| isize::try_from(i).ok()).unwrap_or(-1))
    }

    fn record<'py>(
        &self,
        py: Python<'py>,
        index: usize,
    ) -> PyResult<(String, Vec<Bound<'py, PyAny>>)> {
        let (api, reader) = (exchange(py)?, self.open()?);
        // Views cost less than taking the GIL back; plain reads may take long.
        let (tree, tensors) = match reader.mode() {
            Mode::Pread => py.detach(|| reader.record(index))?,
            _ => reader.record(index)?,
        };
        Ok((tree, all_to_torch(py, api, tensors)?))
    }

    /// Keys and objects. `key_class` is made of a tuple; `compiled` makes a [`Make`] of a tree.
    #[allow(clippy::needless_pass_by_value)] // a Python call
    fn records<'py>(
        &self,
        py: Python<'py>,
        indices: Vec<usize>,
        key_class: &Bound<'py, PyType>,
        compiled: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let (api, reader) = (exchange(py)?, self.open()?);
        let new_tuple = py.get_type::<PyTuple>().getattr(intern!(py, "__new__"))?;
        let (mut texts, mut makes, mut found) =
            (Texts::default(), Known::<Make>::default(), Found::default());
        let (mut out, mut copied) = (Vec::with_capacity(indices.len()), 0);
        let mut read = |i| {
            reader.read(i, &mut found)?;
            let Some((name, iteration, kind)) = texts.key(py, &found.key)? else {
                return Err(PyValueError::new_err(format!("record {i} has no key")));
            };
            let key = if found.key.ends_with("/A") {
                name.into_any()
            } else {
                new_tuple.call1((key_class, (name, iteration, kind)))?
            };
            let compile = || Ok(compiled.call1((&found.tree,))?.cast_into::<Make>()?);
            let make = makes.get(&found.tree, compile)?;
            copied += found.tensors.iter().map(Tensor::copied).sum::<usize>();
            let tensors = Tensors::new(all_to_torch(py, api, found.tensors.drain(..))?);
            Ok((key, make.get().make(py, &tensors)?, copied > MOST_COPIED))
        };
        for i in indices {
            match read(i) {
                Ok((key, object, enough)) => {
                    out.push((key, object));
                    if enough {
                        break;
                    }
                }
                // What was read before is given first; the next call tells.
                Err(_) if !out.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(out)
    }

    fn info(&self, index: usize) -> PyResult<String> {
        Ok(self.open()?.info(index)?)
    }

    fn outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let api = exchange(py)?;
        let out = PyList::empty(py);
        for (name, value) in self.open()?.outputs()? {
            let value = match value {
                Output::Tensor(tensor) => to_torch(py, api, tensor)?,
                Output::Sequence(tensors) => {
                    PyList::new(py, all_to_torch(py, api, tensors)?)?.into_any()
                }
                Output::Strings(strings) => {
                    let strings = strings.iter().map(|s| PyBytes::new(py, s));
                    PyList::new(py, strings.collect::<Vec<_>>())?.into_any()
                }
            };
            out.append((name, value))?;
        }
        Ok(out)
    }

    fn verify(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let reader = self.open()?;
        Ok(py.detach(|| reader.verify()))
    }

    fn close(&self) {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

type PyKey<'py> = (Bound<'py, PyString>, u64, Bound<'py, PyString>);

/// Objects made of texts that come again and again.
struct Known<'py, T> {
    /// By the text's hash: those that share one are made again.
    made: HashMap<u64, (String, Bound<'py, T>), BuildHasherDefault<Identity>>,
}

impl<T> Default for Known<'_, T> {
    fn default() -> Self {
        Self { made: HashMap::default() }
    }
}

impl<'py, T> Known<'py, T> {
    fn get(
        &mut self,
        text: &str,
        make: impl FnOnce() -> PyResult<Bound<'py, T>>,
    ) -> PyResult<Bound<'py, T>> {
        match self.made.entry(key_hash(text)) {
            Entry::Occupied(entry) if entry.get().0 == text => Ok(entry.get().1.clone()),
            Entry::Occupied(_) => make(),
            Entry::Vacant(entry) => Ok(entry.insert((text.to_owned(), make()?)).1.clone()),
        }
    }
}

/// Names come with each call and kind.
#[derive(Default)]
struct Texts<'py>(Known<'py, PyString>);

impl<'py> Texts<'py> {
    fn text(&mut self, py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyString>> {
        self.0.get(text, || Ok(PyString::new(py, text)))
    }

    fn key(&mut self, py: Python<'py>, key: &str) -> PyResult<Option<PyKey<'py>>> {
        let Some((name, iteration, kind)) = split_key(key) else {
            return Ok(None);
        };
        Ok(Some((self.text(py, name)?, iteration, self.text(py, kind)?)))
    }
}

#[pyfunction]
fn repair(py: Python<'_>, path: &str) -> PyResult<Vec<String>> {
    Ok(py.detach(|| crate::repair(Path::new(path)))?)
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FaststealError", py.get_type::<FaststealError>())?;
    module.add("FormatError", &errors(py)?.format)?;
    module.add("NotPlainError", &errors(py)?.not_plain)?;
    module.add_class::<Make>()?;
    module.add_class::<Reader>()?;
    module.add_class::<Writer>()?;
    module.add_function(wrap_pyfunction!(repair, module)?)
}
