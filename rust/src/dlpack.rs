//! torch's side of DLPack: a table of C functions that skips Python altogether.
//!
//! Layout: `dlpack.h`, version 1.3 (`DLPackExchangeAPI`).

use std::ffi::{c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDevice {
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
}

pub(crate) const CPU: i32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
pub(crate) struct DLTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: DLDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLPackVersion {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

pub(crate) const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

#[repr(C)]
pub(crate) struct DLManagedTensorVersioned {
    pub(crate) version: DLPackVersion,
    pub(crate) manager_ctx: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    pub(crate) flags: u64,
    pub(crate) dl_tensor: DLTensor,
}

#[repr(C)]
pub(crate) struct DLPackExchangeAPI {
    pub(crate) version: DLPackVersion,
    prev_api: *mut c_void,
    managed_tensor_allocator: *mut c_void,
    managed_tensor_from_py_object_no_sync: *mut c_void,
    pub(crate) managed_tensor_to_py_object_no_sync:
        Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    pub(crate) dltensor_from_py_object_no_sync:
        Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    current_work_stream: *mut c_void,
}
