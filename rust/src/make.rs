//! From a record's tensors to the object that they were.
//!
//! A tree is compiled once, in Python; what it is made of often is made here, and the rest by
//! Python functions.

use std::cell::OnceCell;

use pyo3::exceptions::{PyException, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::python::{errors, format_error};

/// How an object, or a part of one, is made: a function of the list of tensors.
#[pyclass(module = "faststeal._core", frozen)]
pub(crate) struct Make(Plan);

enum Plan {
    /// The same immutable value each time.
    Const(Py<PyAny>),
    /// One of the tensors.
    Pick(usize),
    List(Vec<Py<Make>>),
    Tuple(Vec<Py<Make>>),
    Dict(Vec<(Py<PyAny>, Py<Make>)>),
    /// What a Python function makes.
    Call(Py<PyAny>),
    /// A whole object, which needs so many tensors.
    Record(usize, Py<Make>),
}

/// A record's tensors, and the list of them that Python sees.
pub(crate) struct Tensors<'py> {
    all: Vec<Bound<'py, PyAny>>,
    list: OnceCell<Bound<'py, PyList>>,
}

impl<'py> Tensors<'py> {
    pub(crate) fn new(all: Vec<Bound<'py, PyAny>>) -> Self {
        Self { all, list: OnceCell::new() }
    }

    fn list(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if let Some(list) = self.list.get() {
            return Ok(list.clone());
        }
        let list = PyList::new(py, &self.all)?;
        Ok(self.list.get_or_init(|| list).clone())
    }
}

impl Make {
    pub(crate) fn make<'py>(
        &self,
        py: Python<'py>,
        tensors: &Tensors<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = |makes: &[Py<Self>]| {
            makes.iter().map(|make| make.get().make(py, tensors)).collect::<PyResult<Vec<_>>>()
        };
        match &self.0 {
            Plan::Const(value) => Ok(value.bind(py).clone()),
            Plan::Pick(index) => match tensors.all.get(*index) {
                Some(tensor) => Ok(tensor.clone()),
                None => Err(PyIndexError::new_err(format!("there is no tensor {index}"))),
            },
            Plan::List(makes) => Ok(PyList::new(py, all(makes)?)?.into_any()),
            Plan::Tuple(makes) => Ok(PyTuple::new(py, all(makes)?)?.into_any()),
            Plan::Dict(items) => {
                let made = PyDict::new(py);
                for (key, make) in items {
                    made.set_item(key, make.get().make(py, tensors)?)?;
                }
                Ok(made.into_any())
            }
            Plan::Call(function) => function.bind(py).call1((tensors.list(py)?,)),
            Plan::Record(count, make) => {
                let found = tensors.all.len();
                if found < *count {
                    let message =
                        format!("tree: expected a record of {count} tensors, found {found}");
                    return Err(format_error(py, message));
                }
                make.get().make(py, tensors).map_err(|error| unfit(py, error))
            }
        }
    }
}

/// Compiled children, or Python functions where there is none.
fn compiled(makes: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Py<Make>>> {
    let compiled = |make: Bound<'_, PyAny>| match make.cast_into::<Make>() {
        Ok(make) => Ok(make.unbind()),
        Err(error) => {
            let function = error.into_inner();
            let py = function.py();
            Py::new(py, Make(Plan::Call(function.unbind())))
        }
    };
    makes.into_iter().map(compiled).collect()
}

#[pymethods]
impl Make {
    #[staticmethod]
    fn constant(value: Py<PyAny>) -> Self {
        Self(Plan::Const(value))
    }

    #[staticmethod]
    fn pick(index: usize) -> Self {
        Self(Plan::Pick(index))
    }

    #[staticmethod]
    fn list(makes: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self(Plan::List(compiled(makes)?)))
    }

    #[staticmethod]
    fn tuple(py: Python<'_>, makes: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let makes = compiled(makes)?;
        let constants = makes.iter().map(|make| make.get().value()).collect::<Option<Vec<_>>>();
        match constants {
            Some(values) => Ok(Self(Plan::Const(PyTuple::new(py, values)?.into_any().unbind()))),
            None => Ok(Self(Plan::Tuple(makes))),
        }
    }

    #[staticmethod]
    fn dict(keys: Vec<Py<PyAny>>, makes: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self(Plan::Dict(keys.into_iter().zip(compiled(makes)?).collect())))
    }

    #[staticmethod]
    fn record(count: usize, make: Bound<'_, PyAny>) -> PyResult<Self> {
        let make = compiled(vec![make])?.remove(0);
        Ok(Self(Plan::Record(count, make)))
    }

    #[getter]
    fn is_constant(&self) -> bool {
        self.value().is_some()
    }

    #[getter]
    fn value(&self) -> Option<&Py<PyAny>> {
        match &self.0 {
            Plan::Const(value) => Some(value),
            _ => None,
        }
    }

    fn __call__<'py>(
        &self,
        py: Python<'py>,
        tensors: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.0 {
            Plan::Const(value) => Ok(value.bind(py).clone()),
            Plan::Pick(index) => tensors.get_item(index),
            _ => self.make(py, &Tensors::new(tensors.extract()?)),
        }
    }
}

/// What went wrong in making an object: a tree fits what the writer wrote.
fn unfit(py: Python<'_>, error: PyErr) -> PyErr {
    let known = errors(py).is_ok_and(|errors| error.is_instance(py, errors.format.bind(py)));
    if known || !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let text = format!("tree: expected parts that fit together: {}", error.value(py));
    let unfit = format_error(py, text);
    unfit.set_cause(py, Some(error));
    unfit
}
