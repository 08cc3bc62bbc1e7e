//! Linker options of the simulated `libnvidia-ml.so.1`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The real library's name: programs linked with -lnvidia-ml ask for it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Clients close the library; unloading Rust's runtime with registered TLS destructors crashes.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
