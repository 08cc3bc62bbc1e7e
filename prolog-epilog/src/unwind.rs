//! Where a program's tables for unwinding lie, for the libgcc that `build.rs` links in.
//!
//! Since GCC 12 libgcc asks glibc for them by `_dl_find_object`, which came with glibc 2.35: a program with that libgcc in it would
//! not even start on Enterprise Linux 9 (2.34), and Slurm drains a node whose prolog cannot be run. This is the same function by
//! means that every glibc has. It is called while a panic unwinds, never otherwise.

use std::ffi::{c_int, c_void};

/// `struct dl_find_object` of glibc's dlfcn.h, on machines where `DLFO_STRUCT_HAS_EH_DBASE` is 0.
#[repr(C)]
struct Found {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// What is looked for, and what was found so far.
struct Search {
    address: u64,
    start: u64,
    end: u64,
    eh_frame: u64,
}

/// glibc's function of this name: 0 and where the object that holds `address` keeps its tables, or -1.
///
/// # Safety
/// `found` points to glibc's `struct dl_find_object`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _dl_find_object(address: *mut c_void, found: *mut Found) -> c_int {
    let mut search = Search { address: address as u64, start: 0, end: 0, eh_frame: 0 };
    // SAFETY: `look` has the type asked for and gets `search`, which outlives the call.
    let hit = unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    if hit != 1 || search.eh_frame == 0 {
        return -1;
    }
    let found_here = Found {
        flags: 0,
        map_start: search.start as *mut c_void,
        map_end: search.end as *mut c_void,
        link_map: std::ptr::null_mut(),
        eh_frame: search.eh_frame as *mut c_void,
        reserved: [0; 7],
    };
    // SAFETY: the caller's promise.
    unsafe { found.write(found_here) };
    0
}

/// Looks at one object; 1 when it holds the address, which ends the search.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader gives one object's description, valid during the call; `data` is the `Search` of our only caller.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's own table with its own length.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let at = |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr);
    let holds = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && (at(header)..at(header).wrapping_add(header.p_memsz)).contains(&search.address)
    };
    let Some(load) = headers.iter().find(holds) else { return 0 };
    let tables = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    (search.start, search.end) = (at(load), at(load).wrapping_add(load.p_memsz));
    search.eh_frame = tables.map_or(0, at);
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_object_that_holds_an_address_are_found() {
        let ask = |address: *mut c_void| {
            let mut found = std::mem::MaybeUninit::<Found>::zeroed();
            // SAFETY: `found` is such a struct, and all zeroes are a valid one.
            let (code, found) =
                unsafe { (_dl_find_object(address, found.as_mut_ptr()), found.assume_init()) };
            (code, found)
        };
        let own = look as *mut c_void;
        let (code, found) = ask(own);
        assert_eq!((code, found.flags, found.reserved), (0, 0, [0; 7]));
        assert!(found.map_start <= own && own < found.map_end && !found.eh_frame.is_null());
        assert!(found.link_map.is_null());
        let (code, other) = ask(libc::getpid as *mut c_void);
        assert!(
            code == 0 && other.map_start != found.map_start && other.eh_frame != found.eh_frame,
            "libc's"
        );
        assert_eq!(ask(std::ptr::null_mut()).0, -1);
    }

    /// By this library's copy of libgcc, in a frame of ours and through frames of the standard library.
    #[test]
    fn a_panic_unwinds() {
        struct Dropped<'a>(&'a mut bool);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                *self.0 = true;
            }
        }
        let mut dropped = false;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = Dropped(&mut dropped);
            [1, 2].iter().for_each(|n| assert!(*n < 2, "told to"));
        }));
        assert!(caught.is_err() && dropped);
    }
}
