//! The C side of every call: pointers in and out, buffers, strings, the panic boundary.
//!
//! The types here wrap raw pointers that only a C caller can supply (their fields are private and nothing in Rust
//! builds them), so the promise nvml.h asks of that caller, "NULL or valid for what the function writes", is what
//! every `SAFETY` note below rests on. NULL is refused with `NVML_ERROR_INVALID_ARGUMENT`.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use nvml_wrapper_sys::bindings::{nvmlReturn_t, nvmlUUID_t};

use crate::model::ReturnCode;

/// What one call comes to.
pub(crate) type Answer<T = ()> = Result<T, ReturnCode>;

/// The panic boundary: a panic becomes `NVML_ERROR_UNKNOWN`, never unwinds into C.
pub(crate) fn boundary(call: impl FnOnce() -> Answer) -> nvmlReturn_t {
    let code = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => ReturnCode::Success,
        Ok(Err(code)) => code,
        Err(_) => ReturnCode::Unknown,
    };
    code as nvmlReturn_t
}

/// A pointer to one or more `T` that the function writes, reads or both, or NULL.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Ptr<T>(*mut T);

impl<T> Ptr<T> {
    /// Writes the value.
    pub(crate) fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so valid for writing a `T`; `write` reads nothing that was there before.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The same address as a pointer to something else (a struct whose layout the caller chose by its version).
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }

    /// The `version` that every versioned struct begins with.
    pub(crate) fn version(self) -> Answer<c_uint> {
        self.cast::<c_uint>().get()
    }

    /// Refuses the caller's struct unless it says that it is version `number` of `T`.
    pub(crate) fn expect_version(self, number: u32) -> Answer {
        if self.version()? == struct_version::<T>(number) {
            Ok(())
        } else {
            Err(ReturnCode::ArgumentVersionMismatch)
        }
    }
}

impl<T: Copy> Ptr<T> {
    /// Reads what the caller put there.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL; used only for parameters that nvml.h documents as read by the function.
        Ok(unsafe { self.0.read() })
    }

    /// Fills an array by NVML's rule: `count` holds the room on entry and the number of items on return; with too
    /// little room nothing is written and the answer is `NVML_ERROR_INSUFFICIENT_SIZE`.
    pub(crate) fn put_items(self, count: Ptr<c_uint>, items: &[T]) -> Answer {
        let room = count.get()? as usize;
        count.put(items.len() as c_uint)?;
        if room < items.len() {
            return Err(ReturnCode::InsufficientSize);
        }
        if items.is_empty() { Ok(()) } else { self.put_all(items) }
    }

    /// Fills an array that has room for all of `items`.
    pub(crate) fn put_all(self, items: &[T]) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, and the caller says that there is room for at least `items.len()` values.
        unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), self.0, items.len()) };
        Ok(())
    }

    /// Lets `change` work on each of the caller's `count` values in place.
    pub(crate) fn change_each(self, count: usize, mut change: impl FnMut(&mut T)) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        for index in 0..count {
            // SAFETY: not NULL, and the caller says that there are `count` initialised values.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above; read and written as a copy, so nothing is borrowed from C.
            let mut value = unsafe { place.read() };
            change(&mut value);
            // SAFETY: as above.
            unsafe { place.write(value) };
        }
        Ok(())
    }
}

impl Ptr<c_char> {
    /// Writes a string with its NUL into a buffer of `length` bytes.
    pub(crate) fn put_text(self, length: c_uint, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        if text.len() >= length as usize {
            return Err(ReturnCode::InsufficientSize);
        }
        // SAFETY: not NULL, and the caller says that there are `length` bytes, more than are written here.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), self.0, text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// A NUL-terminated string from the caller, or NULL.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The string; bytes that are not UTF-8 are refused, since no name in NVML has any.
    pub(crate) fn get<'a>(self) -> Answer<&'a str> {
        if self.0.is_null() {
            return Err(ReturnCode::InvalidArgument);
        }
        // SAFETY: not NULL, so NUL-terminated and alive during the call; the result is not kept beyond it.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| ReturnCode::InvalidArgument)
    }
}

/// A device handle: an opaque number to the caller, the position in the GPU file to us. Never dereferenced.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(*mut std::ffi::c_void);

/// Keeps handles apart from NULL and from small integers passed by mistake.
const HANDLE_BASE: usize = 0x4756_0000;

impl Handle {
    /// The handle of the GPU at `position` in the file.
    pub(crate) fn new(position: usize) -> Handle {
        Handle(std::ptr::without_provenance_mut(HANDLE_BASE + position))
    }

    /// The position; `None` for something that was never a handle.
    pub(crate) fn position(self) -> Option<usize> {
        self.0.addr().checked_sub(HANDLE_BASE).filter(|&position| position < 0x1_0000)
    }
}

/// NVML's `NVML_STRUCT_VERSION(T, number)`.
pub(crate) fn struct_version<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | (number << 24)
}

/// Whether `given` is the UUID `uuid`, as text or as its 16 bytes.
pub(crate) fn is_uuid(given: &nvmlUUID_t, uuid: &str) -> Answer<bool> {
    match given.type_ {
        1 => {
            // SAFETY: both members of the union are plain bytes, initialised by the caller.
            let text = unsafe { given.value.str_ };
            Ok(text == field::<41>(uuid))
        }
        2 => {
            // SAFETY: as above.
            let bytes = unsafe { given.value.bytes };
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(digits == uuid.trim_start_matches("GPU-").replace('-', ""))
        }
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// `text` in a fixed-size field, NUL-padded, cut if need be.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *to = from as c_char;
    }
    bytes
}

/// The file this code was loaded from: the simulated library, or the program it is linked into.
pub(crate) fn own_path() -> Option<PathBuf> {
    // SAFETY: `Dl_info` is a struct of pointers, for which zero is a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this image, and `info` outlives the call.
    let found =
        unsafe { libc::dladdr(own_path as fn() -> Option<PathBuf> as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so `dli_fname` is the loader's NUL-terminated name of this image.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_cross_the_boundary() {
        assert_eq!(boundary(|| panic!("on purpose")), 999);
    }

    #[test]
    fn handles_are_told_from_garbage() {
        assert_eq!(Handle::new(7).position(), Some(7));
        assert_eq!(Handle(std::ptr::null_mut()).position(), None);
        assert_eq!(Handle(std::ptr::without_provenance_mut(3)).position(), None);
    }

    #[test]
    fn fixed_fields_are_cut_and_padded() {
        assert_eq!(field::<4>("abcdef"), [97, 98, 99, 0]);
        assert_eq!(field::<4>("a"), [97, 0, 0, 0]);
    }
}
