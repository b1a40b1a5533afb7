//! The loaded model NAME, and the functions of its library.

use crate::smelt_model::{c_path, check, COptions, DlTensor, Error, Options};
use std::ffi::{c_char, c_void, CStr};
use std::path::Path;

/// A loaded model. Any number of threads may run it at once.
#[derive(Debug)]
pub struct Model {
    pub(crate) handle: *mut c_void,
}

// SAFETY: the library never changes a model that is loaded.
unsafe impl Send for Model {}
unsafe impl Sync for Model {}

impl Model {
    /// Loads the model; `weights` is the path of the package's weights.safetensors.
    pub fn load(weights: impl AsRef<Path>) -> Result<Model, Error> {
        Model::load_with(weights, &Options::default())
    }

    pub fn load_with(weights: impl AsRef<Path>, options: &Options) -> Result<Model, Error> {
        let path = c_path(weights.as_ref())?;
        Model::create(options, |options, handle| unsafe { NAME_create(path.as_ptr(), options, handle) })
    }

    /// Weights in memory, which must be aligned to 64 bytes.
    pub fn from_static(weights: &'static [u8], options: &Options) -> Result<Model, Error> {
        let (data, bytes) = (weights.as_ptr().cast(), weights.len());
        Model::create(options, |options, handle| unsafe {
            NAME_create_from_memory(data, bytes, options, handle)
        })
    }

    fn create(
        options: &Options,
        create: impl FnOnce(*const COptions, *mut *mut c_void) -> i32,
    ) -> Result<Model, Error> {
        let version = unsafe { NAME_abi_version() };
        if version != 1 {
            return Err(Error::Abi(format!("the library has version {version} of the interface, not 1")));
        }
        let mut handle = std::ptr::null_mut();
        check(options.pass(|options| create(options, &mut handle))?, NAME_last_error)?;
        Ok(Model { handle })
    }

    /// The instruction set in use, as `"x86-64-v4"`.
    pub fn level(&self) -> String {
        unsafe { CStr::from_ptr(NAME_level(self.handle)) }.to_string_lossy().into_owned()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { NAME_destroy(self.handle) }
    }
}

/// The shape of an output for these sizes.
pub(crate) fn shape<const RANK: usize>(sizes: &[i64], output: i32) -> Result<[usize; RANK], Error> {
    let mut found = [0i64; RANK];
    check(unsafe { NAME_output_shape(sizes.as_ptr(), output, found.as_mut_ptr()) }, NAME_last_error)?;
    Ok(found.map(|extent| extent as usize))
}

extern "C" {
    fn NAME_abi_version() -> i32;
    fn NAME_create(weights: *const c_char, options: *const COptions, model: *mut *mut c_void) -> i32;
    fn NAME_create_from_memory(
        weights: *const c_void,
        bytes: usize,
        options: *const COptions,
        model: *mut *mut c_void,
    ) -> i32;
    fn NAME_destroy(model: *mut c_void);
    fn NAME_level(model: *const c_void) -> *const c_char;
    fn NAME_output_shape(sizes: *const i64, output: i32, shape: *mut i64) -> i32;
    pub(crate) fn NAME_last_error() -> *const c_char;
    pub(crate) fn NAME_sizes(inputs: *const DlTensor<'_>, sizes: *mut i64) -> i32;
    pub(crate) fn NAME_workspace_bytes(model: *const c_void, sizes: *const i64) -> i64;
    #[allow(dead_code)] // of a model without states
    pub(crate) fn NAME_initial(model: *const c_void, input: i32, data: *mut c_void) -> i32;
    pub(crate) fn NAME_run(
        model: *const c_void,
        inputs: *const DlTensor<'_>,
        outputs: *mut DlTensor<'_>,
        workspace: *mut c_void,
        bytes: usize,
    ) -> i32;
}
