//! What the crates of all packages of smelt have in common: views of memory, tensors, errors, the C structures.

use std::cell::RefCell;
use std::ffi::{c_char, c_void, CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::path::Path;

/// A call that the model refuses; the text is the library's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    Argument(String),
    Shape(String),
    Dtype(String),
    /// The weights are missing, damaged or another model's.
    Weights(String),
    /// The library has no code for this processor.
    Cpu(String),
    Memory(String),
    /// An error that the model itself raises: an index out of range, …
    Value(String),
    /// Crate and library do not fit.
    Abi(String),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Argument(text) | Error::Shape(text) | Error::Dtype(text) | Error::Weights(text) => {
                formatter.write_str(text)
            }
            Error::Cpu(text) | Error::Memory(text) | Error::Value(text) | Error::Abi(text) => {
                formatter.write_str(text)
            }
        }
    }
}

impl std::error::Error for Error {}

/// An error code of the library as a result; `message` is NAME_last_error of the same thread.
pub(crate) fn check(code: i32, message: unsafe extern "C" fn() -> *const c_char) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the library gives a text that ends with 0 and is this thread's until its next call.
    let text = unsafe { CStr::from_ptr(message()) }.to_string_lossy().into_owned();
    Err(match code {
        2 => Error::Shape(text),
        3 => Error::Dtype(text),
        4 => Error::Weights(text),
        5 => Error::Cpu(text),
        6 => Error::Memory(text),
        7 => Error::Value(text),
        8 => Error::Abi(text),
        _ => Error::Argument(text),
    })
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// DLTensor of DLPack.
#[repr(C)]
pub(crate) struct DlTensor<'a> {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    memory: PhantomData<&'a ()>,
}

mod sealed {
    pub trait Sealed {}
}

/// What a tensor may hold.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    const DTYPE: DataType;
}

macro_rules! element {
    ($($kind:ty: $code:literal, $bits:literal;)*) => {$(
        impl sealed::Sealed for $kind {}
        impl Element for $kind {
            const DTYPE: DataType = DataType { code: $code, bits: $bits, lanes: 1 };
        }
    )*};
}

/// Numbers that Rust lacks, as their bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Float16(pub u16);
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BFloat16(pub u16);
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Float8E4M3Fn(pub u8);
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Float8E5M2(pub u8);
/// Real and imaginary part.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex<T> {
    pub re: T,
    pub im: T,
}

element! {
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    Float16: 2, 16; f32: 2, 32; f64: 2, 64; BFloat16: 4, 16;
    Complex<f32>: 5, 64; Complex<f64>: 5, 128; bool: 6, 8;
    Float8E4M3Fn: 10, 8; Float8E5M2: 12, 8;
}

/// The elements of a shape.
fn elements(shape: &[usize]) -> Result<usize, Error> {
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
    let fits = |&count: &usize| count <= isize::MAX as usize / 16 && shape.iter().all(|&n| n <= i64::MAX as usize);
    count.filter(fits).ok_or_else(|| Error::Shape(format!("the shape {shape:?} is too large")))
}

fn check_shape<T>(data: &[T], shape: &[usize]) -> Result<(), Error> {
    let (wanted, given) = (elements(shape)?, data.len());
    if wanted == given {
        return Ok(());
    }
    Err(Error::Shape(format!("the shape {shape:?} has {wanted} elements, the memory {given}")))
}

fn dlpack<T: Element>(data: *const T, shape: &[i64]) -> DlTensor<'_> {
    DlTensor {
        data: data as *mut c_void,
        device_type: 1,
        device_id: 0,
        ndim: shape.len() as i32,
        dtype: T::DTYPE,
        shape: shape.as_ptr(),
        strides: std::ptr::null(),
        byte_offset: 0,
        memory: PhantomData,
    }
}

/// Memory of someone else that the model reads, with a shape.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T: Element, const RANK: usize> {
    data: &'a [T],
    shape: [i64; RANK],
}

impl<'a, T: Element, const RANK: usize> View<'a, T, RANK> {
    /// Memory in C order: the last index is the quickest.
    pub fn new(data: &'a [T], shape: [usize; RANK]) -> Result<Self, Error> {
        check_shape(data, &shape)?;
        Ok(View { data, shape: shape.map(|extent| extent as i64) })
    }

    pub(crate) fn dlpack(&self) -> DlTensor<'_> {
        dlpack(self.data.as_ptr(), &self.shape)
    }
}

/// Memory of someone else that the model writes, with a shape.
#[derive(Debug)]
pub struct ViewMut<'a, T: Element, const RANK: usize> {
    data: &'a mut [T],
    shape: [i64; RANK],
}

impl<'a, T: Element, const RANK: usize> ViewMut<'a, T, RANK> {
    /// Memory in C order: the last index is the quickest.
    pub fn new(data: &'a mut [T], shape: [usize; RANK]) -> Result<Self, Error> {
        check_shape(data, &shape)?;
        Ok(ViewMut { data, shape: shape.map(|extent| extent as i64) })
    }

    pub(crate) fn dlpack(&mut self) -> DlTensor<'_> {
        dlpack(self.data.as_mut_ptr(), &self.shape)
    }
}

/// A tensor with memory of its own; `tensor[[i, j]]` is an element.
#[derive(Clone, Debug)]
pub struct Tensor<T: Element, const RANK: usize> {
    data: Vec<T>,
    shape: [i64; RANK],
}

impl<T: Element, const RANK: usize> Tensor<T, RANK> {
    pub fn zeros(shape: [usize; RANK]) -> Result<Self, Error> {
        let data = vec![T::default(); elements(&shape)?];
        Ok(Tensor { data, shape: shape.map(|extent| extent as i64) })
    }

    pub fn shape(&self) -> [usize; RANK] {
        self.shape.map(|extent| extent as usize)
    }

    /// All elements in C order: the last index is the quickest.
    pub fn data(&self) -> &[T] {
        &self.data
    }

    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    pub fn into_data(self) -> Vec<T> {
        self.data
    }

    fn offset(&self, index: [usize; RANK]) -> usize {
        let mut at = 0;
        for (index, extent) in index.into_iter().zip(self.shape()) {
            assert!(index < extent, "an index {index} for an extent of {extent}");
            at = at * extent + index;
        }
        at
    }

    pub fn view(&self) -> View<'_, T, RANK> {
        View { data: &self.data, shape: self.shape }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, T, RANK> {
        ViewMut { data: &mut self.data, shape: self.shape }
    }
}

impl<T: Element, const RANK: usize> Index<[usize; RANK]> for Tensor<T, RANK> {
    type Output = T;

    fn index(&self, index: [usize; RANK]) -> &T {
        &self.data[self.offset(index)]
    }
}

impl<T: Element, const RANK: usize> IndexMut<[usize; RANK]> for Tensor<T, RANK> {
    fn index_mut(&mut self, index: [usize; RANK]) -> &mut T {
        let at = self.offset(index);
        &mut self.data[at]
    }
}

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Threads that a run uses; 0: all processors.
    pub threads: usize,
    /// An instruction set by name; None: the best that the processor has.
    pub level: Option<String>,
    /// The weights' digest is not checked, which is quicker.
    pub trust_weights: bool,
}

#[repr(C)]
pub(crate) struct COptions {
    struct_bytes: usize,
    threads: i32,
    flags: u32,
    level: *const c_char,
    parallel: *const c_void,
    user: *const c_void,
}

impl Options {
    /// Calls `create` with the options as the library takes them.
    pub(crate) fn pass(&self, create: impl FnOnce(*const COptions) -> i32) -> Result<i32, Error> {
        let level = self.level.as_deref().map(|level| c_text(level.as_bytes())).transpose()?;
        Ok(create(&COptions {
            struct_bytes: std::mem::size_of::<COptions>(),
            threads: i32::try_from(self.threads).unwrap_or(i32::MAX),
            flags: u32::from(self.trust_weights),
            level: level.as_ref().map_or(std::ptr::null(), |level| level.as_ptr()),
            parallel: std::ptr::null(),
            user: std::ptr::null(),
        }))
    }
}

fn c_text(bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::Argument("a text with a zero byte".into()))
}

pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    c_text(path.as_os_str().as_encoded_bytes())
}

#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    static WORKSPACE: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Memory for a run, which each thread keeps and uses again, aligned to 64 bytes.
pub(crate) fn with_workspace<R>(bytes: usize, run: impl FnOnce(*mut c_void) -> R) -> R {
    WORKSPACE.with(|kept| {
        let mut lines = kept.take(); // a run inside of this one has memory of its own
        if lines.capacity() * 64 < bytes {
            lines = Vec::with_capacity(bytes.div_ceil(64)); // the library alone reads and writes it
        }
        let result = run(lines.as_mut_ptr().cast());
        kept.replace(lines);
        result
    })
}
